"""Collect what a sweep compares: the ledger first, then SLURM and the contract. For
missing jobs the sweep also asks accounting, and searches for any other trace of them.
"""

import math
import random
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from supervisor_tasks.chain.blocks import seconds_since
from supervisor_tasks.chain.contract import ChainEvent, Contract
from supervisor_tasks.chain_events.cross_check import unconfirmed_transactions
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import (
    ProviderUnknownError,
    SupervisorError,
    TransientError,
)
from supervisor_tasks.jobs.callback_fallback import ENDED
from supervisor_tasks.jobs.events import (
    Claimed,
    SubmissionLostBySlurm,
    SubmitStarted,
    Submitted,
)
from supervisor_tasks.jobs.model import Address, Job, JobId, SlurmId
from supervisor_tasks.jobs.runs import CLOCKS_APART_S
from supervisor_tasks.ledger.alarms import AlarmName
from supervisor_tasks.ledger.block_reads import CONTRACT_STREAM
from supervisor_tasks.ledger.facts import (
    PROVIDER,
    SLURM_ACCEPTED,
    SLURM_BOOT_TIME,
    SLURM_START,
    SlurmStart,
)
from supervisor_tasks.ledger.foreign_claims import ForeignClaim
from supervisor_tasks.ledger.heartbeats import continuous_uptime_s
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.reconciliations import Begun
from supervisor_tasks.reconciliation import backfill
from supervisor_tasks.reconciliation.models import JobSummary
from supervisor_tasks.reconciliation.snapshot import (
    Snapshot,
    Trace,
    absence_confirmed,
    is_active_and_ours,
    is_live_row,
    names_with_our_comment,
    pending_and_missing,
    unexplained,
    unlisted,
)
from supervisor_tasks.slurm.commands import comment
from supervisor_tasks.slurm.parsers import JobRecord, QuestionRejectedError
from supervisor_tasks.slurm.script_matching import ScriptSearch
from supervisor_tasks.slurm_lookup.cluster_guard import require_expected_cluster
from supervisor_tasks.slurm_lookup.lookup import look_at
from supervisor_tasks.slurm_lookup.plausible_callbacks import plausible_ids

JOBS_ASKED_AT_ONCE = 1000
JOBS_TRACED_AT_ONCE = 50
# whose homes one sweep looks at: each needs a login and a command
CUSTOMERS_AT_ONCE = 10
MAX_UNANSWERED_QUESTIONS = 3  # questions without an answer: each may take half a minute
SCANNED_WITHIN_S = 90.0  # a longer gap in the scan may hide that blocks are lost
SAVED_WITHIN_S = 60.0  # slurmctld writes its state down every few seconds
MAX_FORGOTTEN_TIMES = (
    3  # how often a job is submitted again because slurmctld forgot it
)
MAX_TEXT_CHARS = 500


@dataclass(slots=True)
class ReconciliationReport:
    """What a sweep reports about itself."""

    why: str
    seconds: dict[str, float] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)
    stale: dict[str, int] = field(default_factory=dict)
    cancelled: int = 0
    not_cancelled: dict[str, str] = field(default_factory=dict)  # by SLURM id: why
    left_to_cancel: int = 0
    more: bool = False

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Measure how long a part takes."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.seconds[part] = round(time.monotonic() - began_s, 3)

    @contextmanager
    def asking(self, side: str) -> Iterator[None]:
        """Treat a side that does not answer, or not as it should, as unseen. The sweep
        still compares the others.
        """
        with self.timed(side):
            try:
                yield
            except SupervisorError as error:
                self.unseen[side] = str(error)[:MAX_TEXT_CHARS]


def collect_snapshot(
    context: WorkerContext, begun: Begun, report: ReconciliationReport
) -> tuple[Snapshot, int | None]:
    """Collect everything that a sweep compares, the ledger first. Returns the snapshot,
    and how far back claims have been read.
    """
    ledger, cluster, services = context.ledger, context.slurm.cluster, context.sweep
    boot = ledger.facts.read(SLURM_BOOT_TIME)
    provider = ledger.facts.get_or(PROVIDER, "")
    with report.timed("ledger"):
        jobs = ledger.reconciliations.active(
            cluster.settings.partition, compares_sizes=cluster.settings.compares_sizes
        )
        uptime_s: float | None = math.inf
        if not cluster.queries.has_accounting:
            uptime_s = continuous_uptime_s(ledger.periodic_runs.ages_s())
        booted, slurmctld_uptime_s = "", 0.0
        if boot is not None:
            booted, slurmctld_uptime_s = boot.value, boot.age_s
        snapshot = Snapshot(
            provider=Address(provider),
            comment=comment(cluster.settings.public_address),
            jobs=jobs,
            previous_doubts=begun.previous_doubts_s,
            grace_s=services.grace_s,
            slurmctld_uptime_s=slurmctld_uptime_s,
            continuous_uptime_s=uptime_s,
        )
    with report.asking("slurm"):
        require_expected_cluster(context)
        snapshot = snapshot.changed(slurm=cluster.queries.list_all())
    snapshot = snapshot.changed(
        jobs=dict(snapshot.jobs) | _pointed_to(ledger, snapshot)
    )
    read_since = None
    with report.asking("chain"):
        snapshot, read_since = _look_at_chain(context, snapshot, report)
    if snapshot.slurm is None:
        return snapshot, read_since
    persisted = _persisted_by_slurm(ledger, snapshot, begun)
    snapshot = snapshot.changed(
        persisted_by_slurm=persisted, first_job_id=_start(ledger).first_id
    )
    if unlisted(snapshot):
        snapshot = _with_histories(context, snapshot, report)
        if has_unstored_claims(ledger, snapshot):
            read_since = None  # these blocks are read again
        if unlisted(snapshot).keys() - snapshot.undecided_histories:
            # the next sweep asks for the missing jobs: each sweep runs few commands
            report.more = True
            return snapshot, read_since
    with report.asking("lost jobs"):
        snapshot = snapshot.changed(
            confirmed_lookups=_confirmed_lookups(context, snapshot)
        )
    with report.asking("traces"):
        snapshot = snapshot.changed(traces=_traces(context, snapshot, booted, report))
    with_ids = _missing_for_long(snapshot)
    snapshot = snapshot.changed(
        recently_reported=_recently_reported(ledger, snapshot, with_ids),
        proven_ends=frozenset(ledger.callbacks.jobs_proven_as(with_ids, ENDED)),
    )
    return snapshot, read_since


def _pointed_to(ledger: Ledger, snapshot: Snapshot) -> dict[JobId, JobSummary]:
    """The ledger's jobs that SLURM's live jobs point to by id or name. These are the
    jobs that are not active, and those that were not submitted yet when the ledger was
    read: they are read again.
    """
    other_ids = {row.slurm_id for row in snapshot.rows.values() if is_live_row(row)}
    other_names = names_with_our_comment(snapshot.rows.values(), snapshot.comment)
    for job in snapshot.jobs.values():
        if job.slurm_id is not None:
            other_ids.discard(job.slurm_id)
            other_names.discard(job.job_id)
    return ledger.reconciliations.named(other_names, other_ids)


def _look_at_chain(
    context: WorkerContext, snapshot: Snapshot, report: ReconciliationReport
) -> tuple[Snapshot, int | None]:
    """Read old claims, and the jobs on the contract. Returns the snapshot with them,
    and how far back claims have been read.
    """
    if not snapshot.provider:
        raise ProviderUnknownError(
            "no worker of the chain queue has stored yet which address this provider has"
        )
    ledger, contract = context.ledger, context.sweep.contract_of(snapshot.provider)
    claims, others, read_since = backfill.read_old_claims(context, contract)
    report.more |= read_since is None
    others = ledger.foreign_claims.all() | others
    adopted = ledger.foreign_claims.adopted_tags()
    for job_id, other in others.items():
        if other.tag in adopted:
            claims[job_id] = other.claim
    claimed_ids = claims.keys() | others.keys()
    unknown = claimed_ids - ledger.reconciliations.named(claimed_ids, ()).keys()
    cursor = ledger.cursors.of(CONTRACT_STREAM)
    block = int(contract.rpc.call("eth_blockNumber"), 16)
    in_slurm = names_with_our_comment(snapshot.rows.values(), snapshot.comment)
    also_asked = (in_slurm | unknown | others.keys()) - snapshot.jobs.keys()
    chain = contract.on_chain([*snapshot.jobs, *also_asked], block)
    snapshot = snapshot.changed(
        block=block,
        chain=chain,
        scan_is_current=_scan_is_current(ledger),
        scanned_block=cursor[0] if cursor else 0,
    )
    _store_foreign_claims(ledger, others, snapshot)
    new_claims = {job_id: claims[job_id] for job_id in unknown & claims.keys()}
    doubted = _doubted(context, contract, snapshot, new_claims)
    if doubted:
        report.unseen["claims"] = (
            f"no second endpoint shows the claims of {len(doubted)} jobs, such as {min(doubted)}"
        )
        read_since = None  # these blocks are read again
    for job_id in doubted:
        del new_claims[job_id]
    foreign_claim_tags = {
        job_id: others[job_id].tag.hex() for job_id in unknown - claims.keys()
    }
    return snapshot.changed(
        claims=new_claims, foreign_claim_tags=foreign_claim_tags
    ), read_since


def _doubted(
    context: WorkerContext,
    contract: Contract,
    snapshot: Snapshot,
    claims: Mapping[JobId, Claimed],
) -> set[JobId]:
    """The jobs whose claim only one endpoint shows, among those that the contract has
    active and ours.
    """
    events = list[ChainEvent]()
    for job_id, claim in claims.items():
        if is_active_and_ours(job_id, snapshot):
            tx_hash = claim.claim_key.rpartition(":")[0]
            events.append(
                ChainEvent(job_id, replace(claim, claim_known_to_ledger=True), tx_hash)
            )
    doubted_hashes = unconfirmed_transactions(context.ledger, contract, events)
    return {event.job_id for event in events if event.tx_hash in doubted_hashes}


def _scan_is_current(ledger: Ledger) -> bool:
    """Whether the scan goes on, and has found no lost blocks that the operator must
    decide on.
    """
    age_s = ledger.periodic_runs.age_s("scan")
    if age_s is None or age_s >= SCANNED_WITHIN_S:
        return False
    alarms = {alarm.name for alarm in ledger.alarms.all()}
    return AlarmName.REORGANISED_TOO_DEEP not in alarms


def _store_foreign_claims(
    ledger: Ledger, others: Mapping[JobId, ForeignClaim], snapshot: Snapshot
) -> None:
    """Keep other ledgers' claims as long as the contract has their jobs active and
    ours.
    """
    active, over = list[ForeignClaim](), list[JobId]()
    for job_id, other in others.items():
        if is_active_and_ours(job_id, snapshot):
            active.append(other)
        elif other.claim.at[0] <= snapshot.block:
            over.append(job_id)
    ledger.foreign_claims.store(active)
    ledger.foreign_claims.delete(over)


def _persisted_by_slurm(
    ledger: Ledger, snapshot: Snapshot, begun: Begun
) -> frozenset[JobId]:
    """The missing jobs that slurmctld had on its disk when it was started, by the
    database's clock. They were submitted well before the last answer of the slurmctld
    that ran then. Jobs from before the operator last accepted a loss do not count.
    """
    slurm_ids = {job.slurm_id for job in snapshot.missing if job.slurm_id is not None}
    if not slurm_ids:
        return frozenset()
    now_s = begun.at.timestamp()
    until_s = _saved_until_s(ledger, now_s)
    accepted = ledger.facts.read(SLURM_ACCEPTED)
    since_s = -math.inf
    if accepted is not None:
        since_s = now_s - accepted.age_s
    submissions = ledger.journal.submissions(slurm_ids)
    persisted = set[JobId]()
    for job_id in {job.job_id for job in snapshot.missing} & submissions.keys():
        if since_s < submissions[job_id].answered_s <= until_s:
            persisted.add(job_id)
    return frozenset(persisted)


def _saved_until_s(ledger: Ledger, now_s: float) -> float:
    """Until when the slurmctld that ran before had the time to save what it took. If
    the start is unknown, all jobs count as saved.
    """
    boot, start = ledger.facts.read(SLURM_BOOT_TIME), _start(ledger)
    if boot is None or boot.value != start.booted:
        return math.inf
    return now_s - boot.age_s - start.silent_s - SAVED_WITHIN_S


def _start(ledger: Ledger) -> SlurmStart:
    return ledger.facts.get_or(SLURM_START, SlurmStart())


def _confirmed_lookups(
    context: WorkerContext, snapshot: Snapshot
) -> dict[JobId, JobRecord | None]:
    """Ask SLURM and accounting once more about jobs that SLURM does not list. None
    means that neither knows the job.
    """
    asked = (
        snapshot.missing[:JOBS_ASKED_AT_ONCE]
        + snapshot.parked_and_absent[:JOBS_ASKED_AT_ONCE]
    )
    absent = [job.job_id for job in asked]
    if not absent:
        return {}
    results = look_at(context, context.ledger.jobs(absent).values(), snapshot.slurm)
    return {
        job_id: result.record
        for job_id, result in results.items()
        if not result.unclear
    }


def _missing_for_long(snapshot: Snapshot) -> dict[JobId, SlurmId]:
    """The SLURM ids of the jobs that would count as lost."""
    slurm_ids = dict[JobId, SlurmId]()
    for job in snapshot.missing:
        if job.slurm_id is not None and absence_confirmed(job, snapshot):
            slurm_ids[job.job_id] = job.slurm_id
    return slurm_ids


def _recently_reported(
    ledger: Ledger, snapshot: Snapshot, slurm_ids: Mapping[JobId, SlurmId]
) -> frozenset[JobId]:
    """The missing jobs for which an end has come in since the ledger was read, or not
    long before. The POLL_SLURM effect decides whether that end can be true. The sender
    of a false callback may have slowed that effect down.
    """
    return frozenset(
        ledger.callbacks.jobs_reported_as(slurm_ids, ENDED, snapshot.grace_s)
    )


def _traces(
    context: WorkerContext,
    snapshot: Snapshot,
    booted: str,
    report: ReconciliationReport,
) -> dict[JobId, Trace]:
    """Whether anything was ever seen of jobs that waited and that SLURM has lost. If
    they are too many for one sweep, it searches for a random choice of them.
    """
    lost = [job.job_id for job in pending_and_missing(snapshot)]
    chosen = random.sample(lost, min(len(lost), JOBS_TRACED_AT_ONCE))
    if not chosen or not booted.isdecimal():
        return {}
    if context.slurm.cluster.site.controller().booted != booted:
        return {}  # slurmctld has just restarted: a later sweep looks
    jobs = context.ledger.jobs(chosen)
    traces = _traces_by_time(context, snapshot, jobs, int(booted))
    undecided = {job_id: job for job_id, job in jobs.items() if job_id not in traces}
    return traces | _remaining_traces(context, snapshot, undecided, report)


def _traces_by_time(
    context: WorkerContext, snapshot: Snapshot, jobs: Mapping[JobId, Job], booted_s: int
) -> dict[JobId, Trace]:
    """The traces that follow from when SLURM took the jobs, and from how often it has
    forgotten them. A job for which nothing follows is left out.
    """
    # before the ages: a slow answer makes no job younger
    now_s = context.slurm.cluster.clock.now_s()
    answered_ago_s = context.ledger.journal.last_ages_s(jobs, Submitted)
    losses_ago_s = context.ledger.journal.ages(jobs, SubmissionLostBySlurm)
    persisted = set(snapshot.persisted_by_slurm or ())
    traces = dict[JobId, Trace]()
    for job_id, job in jobs.items():
        accepted_at_s = _accepted_at_s(job, now_s, answered_ago_s.get(job_id))
        if job_id in persisted:
            traces[job_id] = Trace.UNSURE
        elif accepted_at_s > booted_s:
            # slurmctld forgets a waiting job only when it is killed: then it restarted
            # after it had accepted the job.
            traces[job_id] = Trace.SOME
        elif len(losses_ago_s.get(job_id, ())) >= MAX_FORGOTTEN_TIMES:
            traces[job_id] = Trace.UNSURE
    return traces


def _remaining_traces(
    context: WorkerContext,
    snapshot: Snapshot,
    jobs: Mapping[JobId, Job],
    report: ReconciliationReport,
) -> dict[JobId, Trace]:
    """What is left of these jobs in SLURM's list, in accounting, in the inbox and in
    their customers' homes. A job is left out if the sweep has not looked everywhere for
    it.
    """
    if not jobs:
        return {}
    begun_ago_s = context.ledger.journal.last_ages_s(jobs, SubmitStarted)
    reported = _with_callbacks(context, jobs, begun_ago_s)
    submitted_s = {row.slurm_id: row.submit_s for row in snapshot.rows.values()}
    owners = context.ledger.owners(submitted_s)
    searches = list[ScriptSearch]()
    for job_id, ago_s in begun_ago_s.items():
        if job_id not in reported:
            customer = jobs[job_id].customer
            searches.append(ScriptSearch(job_id, customer, ago_s, owners))
    submitted = context.slurm.cluster.search.was_submitted(searches, snapshot.rows)
    traces = dict.fromkeys(jobs, Trace.SOME)  # also if the journal has no submission
    customers = dict[JobId, Address]()
    for job_id, is_submitted in submitted.items():
        if is_submitted is None:
            traces[job_id] = Trace.UNSURE
        elif not is_submitted:
            del traces[job_id]
            customers[job_id] = jobs[job_id].customer
    return traces | _log_traces(context, customers, begun_ago_s, report)


def _with_callbacks(
    context: WorkerContext,
    jobs: Mapping[JobId, Job],
    begun_ago_s: Mapping[JobId, float],
) -> set[JobId]:
    """The jobs about which a plugin has called since their submission began, under
    their own SLURM id or another one that they may have had.
    """
    under_own_id = set[JobId]()
    other_ids = dict[JobId, set[SlurmId]]()
    last_ages_s = context.ledger.callbacks.last_callback_ages_s(begun_ago_s)
    for job_id, ages_s in last_ages_s.items():
        slurm_ids = set[SlurmId]()
        for slurm_id, age_s in ages_s.items():
            if age_s <= begun_ago_s[job_id]:
                slurm_ids.add(slurm_id)
        if jobs[job_id].slurm_id in slurm_ids:
            under_own_id.add(job_id)
        else:
            other_ids[job_id] = slurm_ids
    plausible = plausible_ids(context, other_ids, begun_ago_s)
    return under_own_id | {
        job_id for job_id, slurm_ids in plausible.items() if slurm_ids
    }


def _log_traces(
    context: WorkerContext,
    customers: Mapping[JobId, Address],
    begun_ago_s: Mapping[JobId, float],
    report: ReconciliationReport,
) -> dict[JobId, Trace]:
    """Whether each job has written its log. A customer whose logs the sweep has not
    seen is left out. Each customer needs a separate question, so the sweep makes a
    random choice of them.
    """
    asked_of = dict[Address, dict[JobId, float]]()
    for job_id, customer in customers.items():
        asked_of.setdefault(customer, {})[job_id] = begun_ago_s[job_id]
    users = sorted(asked_of)
    traces = dict[JobId, Trace]()
    failures = 0
    for user in random.sample(users, min(len(users), CUSTOMERS_AT_ONCE)):
        try:
            written = context.slurm.cluster.logs.jobs_with_logs(user, asked_of[user])
        except TransientError as error:
            # a broken account must not stop the search for the others
            report.unseen["logs"] = str(error)[:MAX_TEXT_CHARS]
            failures += 1
            if failures >= MAX_UNANSWERED_QUESTIONS:
                break
            continue
        traces |= dict.fromkeys(asked_of[user], Trace.NONE)
        traces |= dict.fromkeys(written, Trace.SOME)
    return traces


def _accepted_at_s(job: Job, now_s: float, answered_ago_s: float | None) -> float:
    """When SLURM took the job, by the site's clocks. If no look has shown that time,
    SLURM had accepted the job before it answered. Infinite if the journal does not have
    the answer.
    """
    if answered_ago_s is None:
        return math.inf
    if job.slurm_submit_s is None:
        return now_s - answered_ago_s - CLOCKS_APART_S
    return job.slurm_submit_s


def _claimed_ago_s(
    context: WorkerContext, snapshot: Snapshot, job_ids: Collection[JobId]
) -> float:
    """How many seconds ago the first of these jobs was claimed; SLURM had none of them
    before. The blocks of the claims show that time. The ledger does not: one that was
    restored from a backup may have stored the claims just now.
    """
    blocks, in_journal = list[int](), list[JobId]()
    for job_id in job_ids:
        if job_id in snapshot.claims:
            blocks.append(snapshot.claims[job_id].at[0])
        else:
            in_journal.append(job_id)
    first_in_journal = context.ledger.journal.first_claim(in_journal)
    if first_in_journal is not None:
        blocks.append(first_in_journal)
    if not blocks:
        return 0.0
    return seconds_since(context.sweep.contract_of(snapshot.provider).rpc, min(blocks))


def _with_histories(
    context: WorkerContext, snapshot: Snapshot, report: ReconciliationReport
) -> Snapshot:
    """The snapshot with what SLURM had of the unlisted jobs before, and with the jobs
    that accounting cannot be asked about.
    """
    snapshot = snapshot.changed(historical_matches=None)
    with report.asking("accounting"):
        matches, rejected = _historical_matches(context, snapshot)
        snapshot = snapshot.changed(
            historical_matches=matches, undecided_histories=frozenset(rejected)
        )
        if rejected:
            first = min(rejected)
            report.unseen["customers"] = (
                f"sacct on the login node does not know the customers of {len(rejected)}"
                f" jobs, such as {first}: {rejected[first]}"
            )[:MAX_TEXT_CHARS]
    return snapshot


def has_unstored_claims(ledger: Ledger, snapshot: Snapshot) -> bool:
    """Whether the claim of an undecided job is only in the blocks that were just read.
    Claims of a tag that was taken over are stored while their jobs are active.
    """
    claimed = snapshot.claims.keys() & snapshot.undecided_histories
    if not claimed:
        return False
    stored, adopted = ledger.foreign_claims.all(), ledger.foreign_claims.adopted_tags()
    return any(
        job_id not in stored or stored[job_id].tag not in adopted for job_id in claimed
    )


def _historical_matches(
    context: WorkerContext, snapshot: Snapshot
) -> tuple[dict[JobId, SlurmId], dict[JobId, QuestionRejectedError]]:
    """What batch scripts and accounting show of jobs that SLURM does not list by their
    names, and that may have run before the ledger knew of them. The second result has
    the jobs whose customers the login node does not know.
    """
    cluster, customers = context.slurm.cluster, unlisted(snapshot)
    matches, rest = dict[JobId, SlurmId](), dict(customers)
    rejected = dict[JobId, QuestionRejectedError]()
    for slurm_id, job_id in cluster.search.scripts(unexplained(snapshot)).items():
        if customers.get(job_id) == snapshot.rows[slurm_id].user:
            matches[job_id] = slurm_id
            rest.pop(job_id, None)
    if not rest:
        return matches, rejected
    claimed_ago_s = dict.fromkeys(rest, _claimed_ago_s(context, snapshot, rest))
    for job_id, records in cluster.search.sacct_submissions_of(
        rest, claimed_ago_s
    ).items():
        if isinstance(records, QuestionRejectedError):
            rejected[job_id] = records
            continue
        for record in records:
            if record.elapsed_s:
                matches[job_id] = record.slurm_id  # the last run remains
    return matches, rejected
