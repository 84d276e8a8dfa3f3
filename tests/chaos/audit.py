"""`python -m tests.chaos.audit STATE_FOLDER`: does the outside world bear out what the project promises (I1 to I8)?

Run it when everything has come to rest. Each check compares ledger, contract, SLURM's own records, the spool and the marks that
the jobs left; it prints what was looked at and each violation in a line, and ends with status 1 when there is any.
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from eth_utils.crypto import keccak

from tests.chaos.evidence import OF_LEDGER, Evidence, OnChainJob, Transaction, gather
from tests.chaos.slurm_records import SlurmJob

HOT = ("PENDING", "META_SCHEDULED", "SCHEDULED", "RUNNING")
# What the contract shall say of a job that SLURM ended so (interfaces.md: only COMPLETED is FINISHED).
STATUS_OF = {
    "COMPLETED": "FINISHED",
    "TIMEOUT": "OUT_OF_CREDITS",
    "CANCELLED": "CANCELLED",
    **dict.fromkeys(
        ("FAILED", "OUT_OF_MEMORY", "DEADLINE", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED"), "FAILED"
    ),
}
NUMBER_OF = {"CANCELLED": 4, "FINISHED": 5, "FAILED": 6, "OUT_OF_CREDITS": 7, "PANICKED": 8}
TOLD_ENDS = (6, 7, 8, 9)  # JobStatus of the plugins: CANCELLED, FINISHED, FAILED, OUT_OF_CREDITS
TOLD = (4, *TOLD_ENDS)  # and RUNNING; what else is acknowledged comes from plugins of other versions, and is not kept
TOLD_OF = {"COMPLETED": 7, "CANCELLED": 6, "TIMEOUT": 9}  # every other end is FAILED (8) to our hooks
ENOUGH = 1000  # callbacks about one job and SLURM id; what more is said of a job that is settled is acknowledged and not kept
LEGAL = {
    ("PENDING", "META_SCHEDULED"),
    ("META_SCHEDULED", "SCHEDULED"),
    ("SCHEDULED", "RUNNING"),
    ("SCHEDULED", "PENDING"),
    *((hot, "CANCELLED") for hot in HOT),
    *(("RUNNING", cold) for cold in NUMBER_OF),
    *((hot, "PANICKED") for hot in HOT),
}
CORE_DUMPED = 0x80
OUT_OF_MEMORY_STATUS = 253  # without the bit of a core dump 125, as accounting and the completion hook show it
# scontrol shows the signal that such a job got, or what it made of that; accounting and the completion hook show 0.
ENDED_BY_SLURM = ("CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "DEADLINE", "BOOT_FAIL")
JOB_CALLS = ("providerSetJobStatus", "refuseJob")

Looked = Iterator[str | None]  # one for each thing looked at: what is wrong with it, or None


@dataclass(frozen=True, slots=True)
class Check:
    """One question, and the invariant that it is about."""

    name: str
    invariant: str
    question: str
    look: Callable[[Evidence], Looked]


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """What a check found."""

    check: Check
    looked_at: int
    violations: tuple[str, ...]


CHECKS: list[Check] = []


def check(invariant: str, question: str) -> Callable[[Callable[[Evidence], Looked]], Callable[[Evidence], Looked]]:
    """Add a check."""

    def add(look: Callable[[Evidence], Looked]) -> Callable[[Evidence], Looked]:
        CHECKS.append(Check(look.__name__, invariant, question, look))
        return look

    return add


def audit(evidence: Evidence) -> list[Discrepancy]:
    """Every check on the same evidence."""
    findings = []
    for entry in CHECKS:
        looked = list(entry.look(evidence))
        findings.append(Discrepancy(entry, len(looked), tuple(problem for problem in looked if problem)))
    return findings


def violations(findings: list[Discrepancy]) -> list[str]:
    """All that is wrong, with the names of the checks."""
    return [f"{found.check.name}: {problem}" for found in findings for problem in found.violations]


# --- I1, I5: every job has ended, and right -------------------------------------------------------------------------------


@check("I1", "there is a job of ours to look at: of none, nothing can be said")
def something_to_check(evidence: Evidence) -> Looked:
    yield None if evidence.ours else "nothing to check: the provider has claimed no job"


@check("I1", "every job that was claimed has ended on the contract, or was given back")
def ended(evidence: Evidence) -> Looked:
    for job in evidence.ours:
        hot = job.status in HOT and not _given_back(evidence, job)
        yield f"{job.job_id} is still {job.status}" if hot else None


@check("I1", "every job ended as its customer expects")
def expected(evidence: Evidence) -> Looked:
    for job_id, row in evidence.expected.items():
        job = evidence.jobs.get(job_id)
        status = job.status if job else "nowhere on chain"
        exit_code = row.get("exit_status")
        unsaved = job is not None and evidence.unsaved_ends(job_id) and _words(evidence, job)
        if (status == "PANICKED" and job_id in evidence.forgotten) or unsaved or _of_slurm(evidence, job):
            yield None
        elif status not in row["ends"]:
            yield f"{job_id} is {status}; expected {' or '.join(row['ends'])}"
        elif job and exit_code is not None and job.exit_code != exit_code:
            yield f"{job_id} has exit status {job.exit_code}; expected {exit_code}"
        else:
            yield None


@check("I5", "nothing was panicked, and nothing was given back but what SLURM had no place for")
def not_given_up(evidence: Evidence) -> Looked:
    for job in evidence.ours:
        wanted = evidence.expected.get(job.job_id, {}).get("ends", ())
        if job.status == "PANICKED" and "PANICKED" not in wanted and job.job_id not in evidence.forgotten:
            yield f"{job.job_id} was panicked"
        elif job.job_id in evidence.refused and evidence.expected and "PENDING" not in wanted:
            yield f"{job.job_id} was refused"
        elif job.job_id in evidence.refused and evidence.ran(job.job_id):
            yield f"{job.job_id} was refused, and ran"
        else:
            yield None


@check("I5", "what slurmctld was killed too early to remember ended at no cost, or as it had said before it was killed")
def forgotten_by_slurm(evidence: Evidence) -> Looked:
    for job in evidence.ours:
        if job.job_id in evidence.forgotten:
            free = job.status in ("PANICKED", "CANCELLED") and job.final_cost_wei == 0
            yield (
                None
                if free or _words(evidence, job)
                else f"{job.job_id} is {job.status} for {job.final_cost_wei} wei; SLURM forgot it"
            )


@check("I1", "the contract says of each job what SLURM says of it")
def right_status(evidence: Evidence) -> Looked:
    for job in _settled_by_us(evidence):
        seen = _decisive(evidence, job.job_id)
        if seen is None:
            lost = job.job_id in evidence.forgotten and (job.status == "PANICKED" or bool(_words(evidence, job)))
            without = lost or job.status == "CANCELLED" or (job.status == "FAILED" and _cannot_run(evidence, job))
            yield None if without else f"{job.job_id} is {job.status}, and SLURM never had it"
        elif _words(evidence, job):
            yield None
        elif STATUS_OF.get(seen.state) != job.status:
            yield f"{job.job_id} is {job.status}; SLURM says {seen.state} of {seen.slurm_id}"
        else:
            yield f"{job.job_id} has exit status {job.exit_code}; SLURM says {seen.exit_status}"


@check("I1", "each job went its way on the contract once, step by step")
def steps(evidence: Evidence) -> Looked:
    by_job = defaultdict(list)
    for step in evidence.transitions:
        by_job[step.job_id].append((step.before, step.after))
    for job_id, path in by_job.items():
        illegal = [pair for pair in path if pair not in LEGAL]
        broken = any(left[1] != right[0] for left, right in pairwise(path))
        yield f"{job_id} went {path}" if illegal or broken else None


# --- I7: the bill ---------------------------------------------------------------------------------------------------------


@check("I7", "the minutes written are SLURM's elapsed seconds / 60, rounded down")
def minutes(evidence: Evidence) -> Looked:
    written = {_job_id(call): int(call.arguments[2]) for call in _end_reports(evidence)}
    for job in _settled_by_us(evidence):
        seen = _decisive(evidence, job.job_id)
        words = _words(evidence, job) or ([seen] if seen else [])
        right = {word.elapsed_s // 60 for word in words} or {0}
        found = written.get(job.job_id)
        yield None if found in right else f"{job.job_id} was billed {found} minutes; SLURM's elapsed time gives {right}"


@check("I7", "the customer paid those minutes")
def paid(evidence: Evidence) -> Looked:
    written = {_job_id(call): int(call.arguments[2]) for call in _end_reports(evidence)}
    for job in _settled_by_us(evidence):
        price = job.price_wei_per_min * written.get(job.job_id, 0)
        yield None if job.final_cost_wei == price else f"{job.job_id} cost {job.final_cost_wei} wei; expected {price}"


# --- I3: once in SLURM ----------------------------------------------------------------------------------------------------


@check("I3", "each job ran once, by SLURM's records and by its own marks")
def ran_once(evidence: Evidence) -> Looked:
    for job in evidence.ours:
        ids = {seen.slurm_id for seen in evidence.ran(job.job_id)} | evidence.marks.get(job.job_id, set())
        runs = evidence.expected.get(job.job_id, {}).get("runs")
        if len(ids) > 1:
            yield f"{job.job_id} ran as {sorted(ids)}"
        elif (runs == 1 or job.status == "FINISHED") and not ids:
            lost = job.job_id in evidence.forgotten and (job.status == "PANICKED" or bool(_words(evidence, job)))
            yield None if lost or _of_slurm(evidence, job) else f"{job.job_id} never ran"
        elif runs == 0 and ids:
            yield f"{job.job_id} ran as {sorted(ids)}; it should not have"
        else:
            yield None


@check("I3", "a second submission, where there was one, was cancelled before it ran")
def no_twins(evidence: Evidence) -> Looked:
    for job in evidence.ours:
        extras = [seen for seen in evidence.slurm_jobs(job.job_id) if seen != _decisive(evidence, job.job_id)]
        loose = [seen for seen in extras if seen.state not in ("CANCELLED", "FAILED")]
        yield f"{job.job_id} has also {[(s.slurm_id, s.state) for s in loose]}" if loose else None


@check("I3", "SLURM holds no job of the grid any more")
def none_left(evidence: Evidence) -> Looked:
    for seen in evidence.slurm.values():
        yield f"SLURM's {seen.slurm_id} of {seen.job_id} is {seen.state}" if seen.live else None


# --- I4, I8: the callbacks ------------------------------------------------------------------------------------------------


HOOKS_HEARD = (
    "every end that SLURM's hook was told of (or was called for, by a slurmctld that lived on) is in the inbox, word by word,"
    " or still in the spool, or noted as lost"
)


@check("I8", HOOKS_HEARD)
def hooks_heard(evidence: Evidence) -> Looked:
    stored = _inbox(evidence)
    files = [*evidence.spooled, *evidence.drafts]  # the draft of a hook that died is taken over after a while
    spooled = {int(name.split("-")[1]) for name in files if "-end" in name}
    for seen in evidence.told:
        if seen.job_id:
            said = TOLD_OF.get(seen.state, 8), seen.elapsed_s, _told_exit(seen)
            heard = _is_kept(stored, seen.job_id, seen.slurm_id, said) or seen.slurm_id in spooled | evidence.lost_ends
            about = f"the end of {seen.job_id} ({seen.slurm_id}; status, seconds, exit status {said})"
            yield None if heard else f"{about} is neither in the inbox nor spooled"
    for slurm_id in evidence.untold:
        yield f"the hook was called for the end of {slurm_id} and never came to its own"


@check("I8", "every callback that a caller saw acknowledged is in the inbox")
def acknowledged(evidence: Evidence) -> Looked:
    stored = _inbox(evidence)
    for row in evidence.acknowledged:
        said = row["status"], row["duration_s"], row["exit_code"]
        if row["status"] in TOLD:
            kept = _is_kept(stored, row["job_id"], row["slurm_id"], said)
            yield None if kept else f"acknowledged and not stored: {row}"


@check("I1", "the spool is delivered and the inbox read")
def inbox_read(evidence: Evidence) -> Looked:
    for name in evidence.spooled:
        yield f"{name} waits in the spool"
    for name in evidence.rejected:
        yield f"{name} was rejected by the supervisor"
    for row in evidence.ledger["callbacks"]:
        yield None if row["read_at"] else f"callback {row['id']} of {row['job_id']} was never read"


# --- I6: the wallet -------------------------------------------------------------------------------------------------------


@check("I6", "the nonces of the ledger have no gap and end where the chain is")
def nonces(evidence: Evidence) -> Looked:
    written = sorted(row["nonce"] for row in evidence.ledger["transactions"] if row["address"] == evidence.provider)
    known = set(written)
    for nonce in range(written[0], evidence.next_nonce) if written else []:
        yield None if nonce in known else f"nonce {nonce} was mined and is not in the ledger"
    for nonce in written:
        yield f"nonce {nonce} of the ledger was never mined" if nonce >= evidence.next_nonce else None
    for nonce in evidence.waiting_nonces:
        yield f"nonce {nonce} still waits at the node"


@check("I6", "every transaction of the wallet was in the ledger, byte by byte, before anybody saw it")
def signed_bytes(evidence: Evidence) -> Looked:
    hashes = {"0x" + keccak(raw).hex() for raw in _raws(evidence)}
    for sent in evidence.transactions:
        if sent.call is not None:
            yield None if sent.hash in hashes else f"{sent.call} {sent.hash} (nonce {sent.nonce}) is not in the ledger"


@check("I6", "no intent was written twice")
def one_write_an_intent(evidence: Evidence) -> Looked:
    mined = {sent.hash for sent in evidence.transactions if sent.succeeded}
    hashes = {"0x" + keccak(bytes(row["raw"])).hex(): row["intent"] for row in evidence.ledger["transactions"]}
    by_intent = Counter(intent for tx_hash, intent in hashes.items() if tx_hash in mined)
    for intent, count in by_intent.items():
        yield f"{intent} was mined {count} times" if count > 1 else None
    times_claimed = Counter(claim.job_id for claim in evidence.claims)
    meant = Counter(_meaning(sent) for sent in evidence.transactions if sent.succeeded and sent.call in JOB_CALLS)
    for (call, job_id, status), count in meant.items():
        yield f"{call} {job_id} {status} was written {count} times" if count > times_claimed[job_id] else None


@check("I6", "the ledger knows of each transaction what became of it")
def fates(evidence: Evidence) -> Looked:
    on_chain = {sent.hash: sent for sent in evidence.transactions}
    nonces_used = {sent.nonce for sent in evidence.transactions}
    signed = defaultdict(set)
    for row in evidence.ledger["signatures"]:
        signed[row[OF_LEDGER], row["transaction_id"]].add("0x" + keccak(bytes(row["raw"])).hex())
    for row in evidence.ledger["transactions"]:
        mined = [on_chain[tx_hash] for tx_hash in signed[row[OF_LEDGER], row["id"]] if tx_hash in on_chain]
        if mined:
            known = "MINED" if mined[0].succeeded else "REVERTED"
        else:
            known = "FOREIGN" if row["nonce"] in nonces_used else "not mined"
        about = f"{row['intent']} (nonce {row['nonce']})"
        yield None if row["state"] == known else f"{about} is {row['state']} in the ledger, {known} on chain"


# --- I2 and the ledger's own rows -----------------------------------------------------------------------------------------


@check("I2", "every claim that was mined is in the ledger")
def claims(evidence: Evidence) -> Looked:
    for claim in evidence.claims:
        row = evidence.ledger_jobs.get(claim.job_id)
        if row is None:
            yield f"{claim.job_id} was claimed in {claim.tx_hash} and is not in the ledger"
        elif row["claim_key"].startswith(claim.tx_hash) and row["time_limit_min"] != claim.minutes:
            yield f"{claim.job_id} may run {claim.minutes} minutes; the ledger has {row['time_limit_min']}"
        else:
            yield None


@check("I2", "no job is in two ledgers")
def one_ledger(evidence: Evidence) -> Looked:
    for job_id, count in Counter(row["job_id"] for row in evidence.ledger["jobs"]).items():
        yield f"{job_id} is in {count} ledgers" if count > 1 else None


@check("I1", "ledger and contract agree on each job")
def ledger_agrees(evidence: Evidence) -> Looked:
    numbers = {"PENDING": 0, "META_SCHEDULED": 1, "SCHEDULED": 2, "RUNNING": 3, **NUMBER_OF}
    for row in evidence.ledger["jobs"]:
        job = evidence.jobs.get(row["job_id"])
        if job is None:
            yield f"{row['job_id']} is in the ledger and not on chain"
        elif row["state"] == "REFUSED" and job.job_id in evidence.refused:
            yield None
        elif row["state"] != "SETTLED" or row["chain_status"] != numbers[job.status]:
            yield f"{job.job_id} is {row['state']} (chain {row['chain_status']}) in the ledger, {job.status} on chain"
        else:
            yield None


@check("I7", "the ledger has SLURM's own figures")
def ledger_figures(evidence: Evidence) -> Looked:
    for row in evidence.ledger["jobs"]:
        seen = evidence.slurm.get(row["slurm_id"] or 0)
        if row["slurm_id"] is None or row["job_id"] in evidence.forgotten:
            continue
        if seen is None or seen.job_id != row["job_id"]:
            yield f"{row['job_id']} has SLURM id {row['slurm_id']}, which SLURM gave to {seen and seen.job_id}"
        elif row["elapsed_s"] is not None and not _elapsed(evidence, seen, row["elapsed_s"]):
            yield f"{row['job_id']} ran {row['elapsed_s']} s in the ledger, {seen.elapsed_s} s in SLURM"
        else:
            yield None


@check("I1", "nothing is parked and nothing is left to do")
def nothing_left(evidence: Evidence) -> Looked:
    for table, rows in evidence.ledger.items():
        for row in rows:
            if table == "effects":
                about = f"{row['kind']} of {row['job_id'] or row['subject']}"
                state = "parked" if row.get("parked_at") else "open"
                yield None if row["done_at"] else f"{about} is {state}: {row.get('last_error')}"


# --- what the checks share ------------------------------------------------------------------------------------------------


def _given_back(evidence: Evidence, job: OnChainJob) -> bool:
    return job.job_id in evidence.refused and job.status in ("PENDING", "META_SCHEDULED")


Said = tuple[int, int, int]  # status, seconds, exit status


def _inbox(evidence: Evidence) -> dict[tuple[str, int], set[Said]]:
    stored = defaultdict(set)
    for row in evidence.ledger["callbacks"]:
        stored[row["job_id"], row["slurm_id"]].add((row["status"], row["duration_s"], row["exit_code"]))
    return stored


def _is_kept(stored: dict[tuple[str, int], set[Said]], job_id: str, slurm_id: int, said: Said) -> bool:
    about = stored.get((job_id, slurm_id), set())
    return said in about or len(about) >= ENOUGH


def _told_exit(seen: SlurmJob) -> int:
    if seen.state in ENDED_BY_SLURM:
        return 0
    return OUT_OF_MEMORY_STATUS if seen.state == "OUT_OF_MEMORY" else seen.exit_status


def _settled_by_us(evidence: Evidence) -> list[OnChainJob]:
    """Jobs whose end the provider wrote; some are ended by others (a customer before the claim, a time-out)."""
    last = {step.job_id: step for step in evidence.transitions}
    return [job for job in evidence.ours if job.status not in HOT and last[job.job_id].sender == evidence.provider]


def _decisive(evidence: Evidence, job_id: str) -> SlurmJob | None:
    """The SLURM job that counts: the one that ran, or else the first one."""
    candidates = evidence.ran(job_id) or evidence.slurm_jobs(job_id)
    return candidates[0] if candidates else None


def _words(evidence: Evidence, job: OnChainJob) -> list[SlurmJob]:
    """The records of SLURM that bear out what the contract says of a job's end. A slurmctld that was killed may have said one
    thing before, and another one since.
    """
    seen = _decisive(evidence, job.job_id)
    said = [*([seen] if seen else []), *evidence.unsaved_ends(job.job_id)]
    return [
        word
        for word in said
        if STATUS_OF.get(word.state) == job.status
        and job.exit_code & ~CORE_DUMPED == (0 if word.state in ENDED_BY_SLURM else word.exit_status)
    ]


def _of_slurm(evidence: Evidence, job: OnChainJob | None) -> bool:
    """Whether SLURM ended the job by itself, and the contract says how."""
    return job is not None and evidence.ended_by_slurm(job.job_id) and bool(_words(evidence, job))


def _cannot_run(evidence: Evidence, job: OnChainJob) -> bool:
    """Whether the customer knows that the job fails before it reaches SLURM: its script is not there."""
    wanted = evidence.expected.get(job.job_id, {})
    return "FAILED" in wanted.get("ends", ()) and wanted.get("runs") == 0


def _elapsed(evidence: Evidence, seen: SlurmJob, elapsed_s: int) -> bool:
    # The second of a line in the log can be the one after SLURM's own.
    unsaved = (abs(end.elapsed_s - elapsed_s) <= 1 for end in evidence.unsaved_ends(seen.job_id))
    return elapsed_s == seen.elapsed_s or any(unsaved)


def _end_reports(evidence: Evidence) -> list[Transaction]:
    return [
        sent
        for sent in evidence.transactions
        if sent.call == "providerSetJobStatus" and sent.succeeded and sent.arguments[1] >= NUMBER_OF["CANCELLED"]
    ]


def _job_id(call: Transaction) -> str:
    return "0x" + bytes(call.arguments[0]).hex()


def _meaning(call: Transaction) -> tuple[str | None, str, str]:
    """What a call is for: the job, and the status that it shall have."""
    return call.call, _job_id(call), str(call.arguments[1]) if len(call.arguments) > 1 else ""


def _raws(evidence: Evidence) -> Iterator[bytes]:
    """All signed bytes, of both tables: a transaction that was replaced has more than one."""
    for rows in evidence.ledger.values():
        for row in rows:
            if row.get("raw") is not None:
                yield bytes(row["raw"])


def main() -> None:
    """Print what was looked at, and each violation."""
    parser = argparse.ArgumentParser(prog="audit", description=__doc__)
    parser.add_argument("folder", type=Path, help="the grid's state folder")
    parser.add_argument("other_ledgers", nargs="*", help="databases of more fleets with the same wallet, as URLs")
    options = parser.parse_args()
    findings = audit(gather(options.folder, *options.other_ledgers))
    for found in findings:
        mark = f"{len(found.violations)} WRONG" if found.violations else "ok"
        print(f"{found.check.invariant}  {found.looked_at:>6}  {mark:>8}  {found.check.question}")
    for line in violations(findings):
        print(f"VIOLATION {line}")
    sys.exit(1 if violations(findings) else 0)


if __name__ == "__main__":
    main()
