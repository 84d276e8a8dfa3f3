"""`python -m tests.support.audit STATE_FOLDER`: checks on a grid that the invariants I1
to I8 hold.

Run it when nothing is left to do. The checks compare ledger, contract, SLURM's own
records, the spool and the records of starts that the jobs left. Prints a line for each check and
for each violation, and ends with status 1 if there is a violation.
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from eth_utils.crypto import keccak

from tests.support.audit_evidence import (
    OF_LEDGER,
    Evidence,
    OnChainJob,
    Transaction,
    gather,
)
from tests.support.slurm_records import SlurmJob

ACTIVE = ("PENDING", "META_SCHEDULED", "SCHEDULED", "RUNNING")
# The status on the contract that belongs to SLURM's end state (only COMPLETED is
# FINISHED).
STATUS_OF = {
    "COMPLETED": "FINISHED",
    "TIMEOUT": "OUT_OF_CREDITS",
    "CANCELLED": "CANCELLED",
    **dict.fromkeys(
        (
            "FAILED",
            "OUT_OF_MEMORY",
            "DEADLINE",
            "NODE_FAIL",
            "BOOT_FAIL",
            "PREEMPTED",
            "REVOKED",
        ),
        "FAILED",
    ),
}
NUMBER_OF = {
    "CANCELLED": 4,
    "FINISHED": 5,
    "FAILED": 6,
    "OUT_OF_CREDITS": 7,
    "PANICKED": 8,
}
# JobStatus of the plugins: CANCELLED, FINISHED, FAILED, OUT_OF_CREDITS
END_STATUSES = (6, 7, 8, 9)
KEPT_STATUSES = (
    4,
    *END_STATUSES,
)  # 4: RUNNING; a status of another version is acknowledged and not kept
# every other end is FAILED (8) to our hooks
HOOK_STATUS_OF = {"COMPLETED": 7, "CANCELLED": 6, "TIMEOUT": 9}
# of one job and SLURM id; more callbacks about a settled job are acknowledged and not
# kept
MAX_CALLBACKS_KEPT = 1000
# the fact: the last callback that was checked, and perhaps deleted
UNKNOWN_CHECKED_TO = "callbacks.unknown_checked_to"
LEGAL = {
    ("PENDING", "META_SCHEDULED"),
    ("META_SCHEDULED", "SCHEDULED"),
    ("SCHEDULED", "RUNNING"),
    ("SCHEDULED", "PENDING"),
    *((active, "CANCELLED") for active in ACTIVE),
    *(("RUNNING", final) for final in NUMBER_OF),
    *((active, "PANICKED") for active in ACTIVE),
}
CORE_DUMPED = 0x80
# without the bit of a core dump 125, as accounting and the completion hook show it
OUT_OF_MEMORY_STATUS = 253
# scontrol shows the signal that such a job got, or the exit code that followed;
# accounting and the completion hook show 0.
ENDED_BY_SLURM = (
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "DEADLINE",
    "BOOT_FAIL",
)
JOB_CALLS = ("providerSetJobStatus", "refuseJob")

# for each item that was examined: the violation, or None
ItemResults = Iterator[str | None]


@dataclass(frozen=True, slots=True)
class Check:
    """A check: what must hold (`question`), the invariant that this belongs to, and the
    function that examines it.
    """

    name: str
    invariant: str
    question: str
    examine: Callable[[Evidence], ItemResults]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found: the number of items that it examined, and the violations."""

    check: Check
    examined: int
    violations: tuple[str, ...]


CHECKS: list[Check] = []


def check(
    invariant: str, question: str
) -> Callable[[Callable[[Evidence], ItemResults]], Callable[[Evidence], ItemResults]]:
    """Add a check."""

    def add(
        examine: Callable[[Evidence], ItemResults],
    ) -> Callable[[Evidence], ItemResults]:
        CHECKS.append(Check(examine.__name__, invariant, question, examine))
        return examine

    return add


def audit(evidence: Evidence) -> list[CheckResult]:
    """Run all checks on the same evidence."""
    findings = []
    for entry in CHECKS:
        results = list(entry.examine(evidence))
        findings.append(
            CheckResult(
                entry,
                len(results),
                tuple(violation for violation in results if violation),
            )
        )
    return findings


def violations(findings: list[CheckResult]) -> list[str]:
    """The violations of all checks, each with the name of its check."""
    return [
        f"{found.check.name}: {violation}"
        for found in findings
        for violation in found.violations
    ]


# --- I1, I5: every job has ended, and right -------------------------------------------


@check("I1", "the provider has claimed at least one job")
def something_to_check(evidence: Evidence) -> ItemResults:
    yield None if evidence.ours else "nothing to check: the provider has claimed no job"


@check("I1", "every job that was claimed has ended on the contract, or was given back")
def ended(evidence: Evidence) -> ItemResults:
    for job in evidence.ours:
        active = job.status in ACTIVE and not _given_back(evidence, job)
        yield f"{job.job_id} is still {job.status}" if active else None


@check("I1", "every job ended as its customer expects")
def expected(evidence: Evidence) -> ItemResults:
    for job_id, row in evidence.expected.items():
        job = evidence.jobs.get(job_id)
        status = job.status if job else "nowhere on chain"
        exit_code = row.get("exit_status")
        unsaved = (
            job is not None
            and evidence.unsaved_ends(job_id)
            and _matching_records(evidence, job)
        )
        if (
            (status == "PANICKED" and job_id in evidence.forgotten)
            or unsaved
            or _ended_by_slurm(evidence, job)
        ):
            yield None
        elif status not in row["ends"]:
            yield f"{job_id} is {status}; expected {' or '.join(row['ends'])}"
        elif job and exit_code is not None and job.exit_code != exit_code:
            yield f"{job_id} has exit status {job.exit_code}; expected {exit_code}"
        else:
            yield None


@check(
    "I5",
    "no job was panicked, and only jobs that SLURM has no place for were given back",
)
def not_given_up(evidence: Evidence) -> ItemResults:
    for job in evidence.ours:
        wanted = evidence.expected.get(job.job_id, {}).get("ends", ())
        if (
            job.status == "PANICKED"
            and "PANICKED" not in wanted
            and job.job_id not in evidence.forgotten
        ):
            yield f"{job.job_id} was panicked"
        elif (
            job.job_id in evidence.refused
            and evidence.expected
            and "PENDING" not in wanted
        ):
            yield f"{job.job_id} was refused"
        elif job.job_id in evidence.refused and evidence.ran(job.job_id):
            yield f"{job.job_id} was refused, and ran"
        else:
            yield None


@check(
    "I5", "a job that a killed slurmctld forgot ended at no cost, or as its log shows"
)
def forgotten_by_slurm(evidence: Evidence) -> ItemResults:
    for job in evidence.ours:
        if job.job_id in evidence.forgotten:
            free = job.status in ("PANICKED", "CANCELLED") and job.final_cost_wei == 0
            yield (
                None
                if free or _matching_records(evidence, job)
                else f"{job.job_id} is {job.status} for {job.final_cost_wei} wei; SLURM forgot it"
            )


@check("I1", "contract and SLURM have the same end of each job")
def right_status(evidence: Evidence) -> ItemResults:
    for job in _settled_by_us(evidence):
        seen = _decisive(evidence, job.job_id)
        if seen is None:
            lost = job.job_id in evidence.forgotten and (
                job.status == "PANICKED" or bool(_matching_records(evidence, job))
            )
            without = (
                lost
                or job.status == "CANCELLED"
                or (job.status == "FAILED" and _cannot_run(evidence, job))
            )
            yield (
                None
                if without
                else f"{job.job_id} is {job.status}, and SLURM never had it"
            )
        elif _matching_records(evidence, job):
            yield None
        elif STATUS_OF.get(seen.state) != job.status:
            yield f"{job.job_id} is {job.status}; SLURM has {seen.state} of {seen.slurm_id}"
        else:
            yield f"{job.job_id} has exit status {job.exit_code}; SLURM has {seen.exit_status}"


@check("I1", "each job went through the statuses on the contract once, step by step")
def steps(evidence: Evidence) -> ItemResults:
    by_job = defaultdict(list)
    for step in evidence.transitions:
        by_job[step.job_id].append((step.before, step.after))
    for job_id, path in by_job.items():
        illegal = [pair for pair in path if pair not in LEGAL]
        broken = any(left[1] != right[0] for left, right in pairwise(path))
        yield f"{job_id} went {path}" if illegal or broken else None


# --- I7: the bill ---------------------------------------------------------------------


@check(
    "I7", "the minutes that were written are SLURM's elapsed seconds / 60, rounded down"
)
def minutes(evidence: Evidence) -> ItemResults:
    written = {_job_id(call): int(call.arguments[2]) for call in _end_reports(evidence)}
    for job in _settled_by_us(evidence):
        seen = _decisive(evidence, job.job_id)
        records = _matching_records(evidence, job) or ([seen] if seen else [])
        right = {record.elapsed_s // 60 for record in records} or {0}
        found = written.get(job.job_id)
        yield (
            None
            if found in right
            else f"{job.job_id} was billed {found} minutes; SLURM's elapsed time gives {right}"
        )


@check("I7", "the customer paid those minutes")
def paid(evidence: Evidence) -> ItemResults:
    written = {_job_id(call): int(call.arguments[2]) for call in _end_reports(evidence)}
    for job in _settled_by_us(evidence):
        price = job.price_wei_per_min * written.get(job.job_id, 0)
        yield (
            None
            if job.final_cost_wei == price
            else f"{job.job_id} cost {job.final_cost_wei} wei; expected {price}"
        )


# --- I3: once in SLURM ----------------------------------------------------------------


@check("I3", "each job ran once, as SLURM's records and its own records of starts show")
def ran_once(evidence: Evidence) -> ItemResults:
    for job in evidence.ours:
        ids = {
            seen.slurm_id for seen in evidence.ran(job.job_id)
        } | evidence.start_records.get(job.job_id, set())
        runs = evidence.expected.get(job.job_id, {}).get("runs")
        if len(ids) > 1:
            yield f"{job.job_id} ran as {sorted(ids)}"
        elif (runs == 1 or job.status == "FINISHED") and not ids:
            lost = job.job_id in evidence.forgotten and (
                job.status == "PANICKED" or bool(_matching_records(evidence, job))
            )
            yield (
                None
                if lost or _ended_by_slurm(evidence, job)
                else f"{job.job_id} never ran"
            )
        elif runs == 0 and ids:
            yield f"{job.job_id} ran as {sorted(ids)}; it should not have"
        else:
            yield None


@check("I3", "each second submission of a job was cancelled before it ran")
def no_twins(evidence: Evidence) -> ItemResults:
    for job in evidence.ours:
        extras = [
            seen
            for seen in evidence.slurm_jobs(job.job_id)
            if seen != _decisive(evidence, job.job_id)
        ]
        loose = [seen for seen in extras if seen.state not in ("CANCELLED", "FAILED")]
        yield (
            f"{job.job_id} has also {[(s.slurm_id, s.state) for s in loose]}"
            if loose
            else None
        )


@check("I3", "SLURM has no live job of the grid left")
def none_left(evidence: Evidence) -> ItemResults:
    for seen in evidence.slurm.values():
        yield (
            f"SLURM's {seen.slurm_id} of {seen.job_id} is {seen.state}"
            if seen.live
            else None
        )


# --- I4, I8: the callbacks ------------------------------------------------------------


HOOK_EVENTS_STORED = (
    "each end for which slurmctld called the hook is stored with its exact figures, in the spool, or noted as lost,"
    " unless slurmctld died before the hook had finished"
)


@check("I8", HOOK_EVENTS_STORED)
def hook_events_stored(evidence: Evidence) -> ItemResults:
    stored = _stored_callbacks(evidence)
    files = [
        *evidence.spooled,
        *evidence.drafts,
    ]  # the reporter takes over the draft of a hook that died, after a while
    spooled = {int(name.split("-")[1]) for name in files if "-end" in name}
    for seen in evidence.hook_finished:
        if seen.job_id:
            figures = (
                HOOK_STATUS_OF.get(seen.state, 8),
                seen.elapsed_s,
                _hook_exit_status(seen),
            )
            is_stored = _is_stored(stored, seen.job_id, seen.slurm_id, figures)
            kept = is_stored or seen.slurm_id in spooled | evidence.lost_ends
            kept = kept or _may_be_purged(evidence, seen.job_id, seen.slurm_id)
            end = f"the end of {seen.job_id} ({seen.slurm_id}; status, seconds, exit status {figures})"
            yield None if kept else f"{end} is neither stored nor spooled"
    for slurm_id in evidence.hook_unfinished:
        yield f"the hook was called for the end of {slurm_id} and did not finish"


@check("I8", "every callback that was acknowledged to its caller is stored")
def acknowledged(evidence: Evidence) -> ItemResults:
    stored = _stored_callbacks(evidence)
    for row in evidence.acknowledged:
        figures = row["status"], row["duration_s"], row["exit_code"]
        if row["status"] in KEPT_STATUSES:
            kept = _is_stored(stored, row["job_id"], row["slurm_id"], figures)
            kept = kept or _may_be_purged(evidence, row["job_id"], row["slurm_id"])
            yield None if kept else f"acknowledged and not stored: {row}"


@check("I1", "all events of the spool are delivered, and all stored callbacks read")
def callbacks_read(evidence: Evidence) -> ItemResults:
    for name in evidence.spooled:
        yield f"{name} waits in the spool"
    for name in evidence.rejected:
        yield f"{name} was rejected by the supervisor"
    for row in evidence.ledger["callbacks"]:
        yield (
            None
            if row["read_at"]
            else f"callback {row['id']} of {row['job_id']} was never read"
        )


# --- I6: the wallet -------------------------------------------------------------------


@check("I6", "the nonces of the ledger have no gap, and the last one is the chain's")
def nonces(evidence: Evidence) -> ItemResults:
    written = sorted(
        row["nonce"]
        for row in evidence.ledger["transactions"]
        if row["address"] == evidence.provider
    )
    known = set(written)
    for nonce in range(written[0], evidence.next_nonce) if written else []:
        yield (
            None
            if nonce in known
            else f"nonce {nonce} was mined and is not in the ledger"
        )
    for nonce in written:
        yield (
            f"nonce {nonce} of the ledger was never mined"
            if nonce >= evidence.next_nonce
            else None
        )
    for nonce in evidence.waiting_nonces:
        yield f"nonce {nonce} still waits at the node"


@check("I6", "the exact bytes of every transaction of the wallet are in the ledger")
def signed_bytes(evidence: Evidence) -> ItemResults:
    hashes = {"0x" + keccak(raw).hex() for raw in _signed_bytes(evidence)}
    for sent in evidence.transactions:
        if sent.call is not None:
            yield (
                None
                if sent.hash in hashes
                else f"{sent.call} {sent.hash} (nonce {sent.nonce}) is not in the ledger"
            )


@check("I6", "no idempotency key was written twice")
def one_write_an_idempotency_key(evidence: Evidence) -> ItemResults:
    mined = {sent.hash for sent in evidence.transactions if sent.succeeded}
    hashes = {
        "0x" + keccak(bytes(row["raw"])).hex(): row["idempotency_key"]
        for row in evidence.ledger["transactions"]
    }
    by_key = Counter(key for tx_hash, key in hashes.items() if tx_hash in mined)
    for key, count in by_key.items():
        yield f"{key} was mined {count} times" if count > 1 else None
    times_claimed = Counter(claim.job_id for claim in evidence.claims)
    written = Counter(
        _purpose(sent)
        for sent in evidence.transactions
        if sent.succeeded and sent.call in JOB_CALLS
    )
    for (call, job_id, status), count in written.items():
        yield (
            f"{call} {job_id} {status} was written {count} times"
            if count > times_claimed[job_id]
            else None
        )


@check("I6", "the ledger has the true outcome of each transaction")
def fates(evidence: Evidence) -> ItemResults:
    on_chain = {sent.hash: sent for sent in evidence.transactions}
    nonces_used = {sent.nonce for sent in evidence.transactions}
    signed = defaultdict(set)
    for row in evidence.ledger["signatures"]:
        signed[row[OF_LEDGER], row["transaction_id"]].add(
            "0x" + keccak(bytes(row["raw"])).hex()
        )
    for row in evidence.ledger["transactions"]:
        mined = [
            on_chain[tx_hash]
            for tx_hash in signed[row[OF_LEDGER], row["id"]]
            if tx_hash in on_chain
        ]
        if mined:
            outcome = "MINED" if mined[0].succeeded else "REVERTED"
        else:
            outcome = "FOREIGN" if row["nonce"] in nonces_used else "not mined"
        transaction = f"{row['idempotency_key']} (nonce {row['nonce']})"
        yield (
            None
            if row["state"] == outcome
            else f"{transaction} is {row['state']} in the ledger, {outcome} on chain"
        )


# --- I2 and the ledger's own rows -----------------------------------------------------


@check("I2", "every claim that was mined is in the ledger")
def claims(evidence: Evidence) -> ItemResults:
    for claim in evidence.claims:
        row = evidence.ledger_jobs.get(claim.job_id)
        if row is None:
            yield f"{claim.job_id} was claimed in {claim.tx_hash} and is not in the ledger"
        elif (
            row["claim_key"].startswith(claim.tx_hash)
            and row["time_limit_min"] != claim.minutes
        ):
            yield f"{claim.job_id} may run {claim.minutes} minutes; the ledger has {row['time_limit_min']}"
        else:
            yield None


@check("I2", "no job is in two ledgers")
def one_ledger(evidence: Evidence) -> ItemResults:
    for job_id, count in Counter(
        row["job_id"] for row in evidence.ledger["jobs"]
    ).items():
        yield f"{job_id} is in {count} ledgers" if count > 1 else None


@check("I1", "ledger and contract agree on each job")
def ledger_agrees(evidence: Evidence) -> ItemResults:
    numbers = {
        "PENDING": 0,
        "META_SCHEDULED": 1,
        "SCHEDULED": 2,
        "RUNNING": 3,
        **NUMBER_OF,
    }
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
def ledger_figures(evidence: Evidence) -> ItemResults:
    for row in evidence.ledger["jobs"]:
        seen = evidence.slurm.get(row["slurm_id"] or 0)
        if row["slurm_id"] is None or row["job_id"] in evidence.forgotten:
            continue
        if seen is None or seen.job_id != row["job_id"]:
            yield f"{row['job_id']} has SLURM id {row['slurm_id']}, which SLURM gave to {seen and seen.job_id}"
        elif row["elapsed_s"] is not None and not _is_elapsed(
            evidence, seen, row["elapsed_s"]
        ):
            yield f"{row['job_id']} ran {row['elapsed_s']} s in the ledger, {seen.elapsed_s} s in SLURM"
        else:
            yield None


@check("I1", "nothing is parked and nothing is left to do")
def nothing_left(evidence: Evidence) -> ItemResults:
    for table, rows in evidence.ledger.items():
        for row in rows:
            if table == "effects":
                effect = f"{row['kind']} of {row['job_id'] or row['subject']}"
                state = "parked" if row.get("parked_at") else "open"
                yield (
                    None
                    if row["done_at"]
                    else f"{effect} is {state}: {row.get('last_error')}"
                )


# --- what the checks share ------------------------------------------------------------


def _given_back(evidence: Evidence, job: OnChainJob) -> bool:
    return job.job_id in evidence.refused and job.status in (
        "PENDING",
        "META_SCHEDULED",
    )


CallbackFigures = tuple[int, int, int]  # status, seconds, exit status


def _stored_callbacks(
    evidence: Evidence,
) -> dict[tuple[str, int], set[CallbackFigures]]:
    stored = defaultdict(set)
    for row in evidence.ledger["callbacks"]:
        stored[row["job_id"], row["slurm_id"]].add(
            (row["status"], row["duration_s"], row["exit_code"])
        )
    return stored


def _is_stored(
    stored: dict[tuple[str, int], set[CallbackFigures]],
    job_id: str,
    slurm_id: int,
    figures: CallbackFigures,
) -> bool:
    """Whether this callback is stored, or there is no room for more callbacks about this
    job.
    """
    of_job = stored.get((job_id, slurm_id), set())
    return figures in of_job or len(of_job) >= MAX_CALLBACKS_KEPT


def _may_be_purged(evidence: Evidence, job_id: str, slurm_id: int) -> bool:
    """Whether the ledger may have deleted this callback. 45 minutes after it was read,
    the ledger deletes a callback that matches no job of its own under its SLURM id, and
    notes up to which callback it has looked.
    """
    if not any(
        row["name"] == UNKNOWN_CHECKED_TO and int(row["value"]) > 0
        for row in evidence.ledger["facts"]
    ):
        return False
    job = evidence.ledger_jobs.get(job_id)
    if job is None:
        return True
    may_get_the_id = job["slurm_id"] is None and job["state"] not in (
        "SETTLED",
        "REFUSED",
    )
    return job["slurm_id"] != slurm_id and not may_get_the_id


def _hook_exit_status(seen: SlurmJob) -> int:
    if seen.state in ENDED_BY_SLURM:
        return 0
    return OUT_OF_MEMORY_STATUS if seen.state == "OUT_OF_MEMORY" else seen.exit_status


def _settled_by_us(evidence: Evidence) -> list[OnChainJob]:
    """Jobs whose end the provider wrote; some are ended by others (a customer before
    the claim, a time-out).
    """
    last = {step.job_id: step for step in evidence.transitions}
    return [
        job
        for job in evidence.ours
        if job.status not in ACTIVE and last[job.job_id].sender == evidence.provider
    ]


def _decisive(evidence: Evidence, job_id: str) -> SlurmJob | None:
    """The SLURM job that counts: the one that ran, or else the first one."""
    candidates = evidence.ran(job_id) or evidence.slurm_jobs(job_id)
    return candidates[0] if candidates else None


def _matching_records(evidence: Evidence, job: OnChainJob) -> list[SlurmJob]:
    """The records of SLURM that agree with the end of the job on the contract. A
    slurmctld that was killed may have logged one end before the kill, and record
    another one since.
    """
    seen = _decisive(evidence, job.job_id)
    records = [*([seen] if seen else []), *evidence.unsaved_ends(job.job_id)]
    return [
        record
        for record in records
        if STATUS_OF.get(record.state) == job.status
        and job.exit_code & ~CORE_DUMPED
        == (0 if record.state in ENDED_BY_SLURM else record.exit_status)
    ]


def _ended_by_slurm(evidence: Evidence, job: OnChainJob | None) -> bool:
    """Whether SLURM ended the job by itself, and the contract has that end."""
    return (
        job is not None
        and evidence.ended_by_slurm(job.job_id)
        and bool(_matching_records(evidence, job))
    )


def _cannot_run(evidence: Evidence, job: OnChainJob) -> bool:
    """Whether the job must fail before it reaches SLURM, as no service has its
    script.
    """
    wanted = evidence.expected.get(job.job_id, {})
    return "FAILED" in wanted.get("ends", ()) and wanted.get("runs") == 0


def _is_elapsed(evidence: Evidence, seen: SlurmJob, elapsed_s: int) -> bool:
    # The time of a line in the log can be a second later than the time in SLURM's
    # record.
    unsaved = (
        abs(end.elapsed_s - elapsed_s) <= 1
        for end in evidence.unsaved_ends(seen.job_id)
    )
    return elapsed_s == seen.elapsed_s or any(unsaved)


def _end_reports(evidence: Evidence) -> list[Transaction]:
    return [
        sent
        for sent in evidence.transactions
        if sent.call == "providerSetJobStatus"
        and sent.succeeded
        and sent.arguments[1] >= NUMBER_OF["CANCELLED"]
    ]


def _job_id(call: Transaction) -> str:
    return "0x" + bytes(call.arguments[0]).hex()


def _purpose(call: Transaction) -> tuple[str | None, str, str]:
    """The purpose of a call: its function, the job, and the status to set."""
    return (
        call.call,
        _job_id(call),
        str(call.arguments[1]) if len(call.arguments) > 1 else "",
    )


def _signed_bytes(evidence: Evidence) -> Iterator[bytes]:
    """The signed bytes in all tables: a transaction that was replaced has been signed
    more than once.
    """
    for rows in evidence.ledger.values():
        for row in rows:
            if row.get("raw") is not None:
                yield bytes(row["raw"])


def main() -> None:
    """Print the result of each check, and each violation."""
    parser = argparse.ArgumentParser(prog="audit", description=__doc__)
    parser.add_argument("folder", type=Path, help="the grid's state folder")
    parser.add_argument(
        "other_ledgers",
        nargs="*",
        help="URLs of the databases of other fleets with the same wallet",
    )
    options = parser.parse_args()
    findings = audit(gather(options.folder, *options.other_ledgers))
    for found in findings:
        mark = f"{len(found.violations)} WRONG" if found.violations else "ok"
        print(
            f"{found.check.invariant}  {found.examined:>6}  {mark:>8}  {found.check.question}"
        )
    for line in violations(findings):
        print(f"VIOLATION {line}")
    sys.exit(1 if violations(findings) else 0)


if __name__ == "__main__":
    main()
