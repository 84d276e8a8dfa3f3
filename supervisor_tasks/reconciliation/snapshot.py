"""What a sweep has seen of ledger, contract and SLURM, and what follows from comparing
them. Pure.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from supervisor_tasks.jobs.events import Claimed
from supervisor_tasks.jobs.model import (
    BEFORE_SLURM,
    IN_SLURM,
    Address,
    ChainStatus,
    EffectKind,
    JobId,
    SlurmId,
    State,
)
from supervisor_tasks.reconciliation.models import JobSummary, OnChainJob
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.parsers import JobRecord
from supervisor_tasks.slurm.squeue import SqueueRow

# the Linux user of a customer; 0X counts too, as the alarm about jobs that the ledger
# does not know must miss none
CUSTOMER = re.compile("0[xX][0-9a-fA-F]{40}")
JOB_NAME = re.compile(r"0x[0-9a-f]{64}")
MIN_LOST_JOBS = 3  # jobs that SLURM may lose at once without having lost its state
# of the jobs that SLURM should have: so many may be lost at once, too
MAX_LOST_FRACTION = 0.1


class DiscrepancyKind(StrEnum):
    """What a sweep can find."""

    # the contract has decided, and the ledger does not know that
    FINAL_ON_CHAIN = "final_on_chain"
    # the contract has it pending, or with another provider
    REASSIGNED_ON_CHAIN = "reassigned_on_chain"
    # the contract has it running, the ledger does not know that
    AHEAD_ON_CHAIN = "ahead_on_chain"
    NOT_ON_CHAIN = "not_on_chain"  # the contract has no such job: nothing is done
    # SLURM has ended it, and the ledger does not know that
    END_NOT_RECORDED = "end_not_recorded"
    LIMIT_LOST = "limit_lost"  # SLURM has a time limit from before a top-up
    RUNS_AGAIN = "runs_again"  # SLURM has requeued it, and no look has shown that yet
    # SLURM runs it, the ledger has it waiting, and its POLL_SLURM effect is parked
    RUN_NOT_RECORDED = "run_not_recorded"
    # SLURM gives it, or is about to give it, more than was paid for
    MORE_THAN_PAID = "more_than_paid"
    MISSING = "missing"  # SLURM does not know it; the sweep asks again after a while
    LOST = "lost"  # SLURM did not know it in an earlier sweep either: panicked
    # slurmctld was killed before it had saved it, and it never ran: submitted again
    FORGOTTEN = "forgotten"
    # too many are lost at once, a source of ends is away, or SLURM forgot it as soon as
    # its nodes were free: the operator decides
    NEEDS_OPERATOR = "needs_operator"
    # accounting has it running, slurmctld does not know it: the operator decides
    CONTRADICTED = "contradicted"
    ADOPTED = "adopted"  # SLURM had it before the ledger knew
    # another ledger claimed it with our key: the operator may take it over
    FOREIGN_CLAIM = "foreign_claim"
    NEVER_SEEN = "never_seen"  # claimed, and new to the ledger
    EFFECT_MISSING = "effect_missing"  # an effect that should be open is not
    # SLURM has requeued it after the end that the ledger knows
    RUNS_AFTER_END = "runs_after_end"
    # SLURM still has it, its status on the contract is final: cancelled
    ORPHAN_RUNNING = "orphan_running"
    # a second SLURM job: cancelled if SLURM lists the ledger's own, or when a later
    # sweep sees it again
    DUPLICATE = "duplicate"
    # looks like ours, and is not known well enough to be cancelled
    UNIDENTIFIED = "unidentified"


class Trace(StrEnum):
    """What is left of a job that waited, and that SLURM does not know any more."""

    # slurmctld restarted after it was submitted, and nothing of it was ever seen
    # anywhere
    NONE = "none"
    SOME = "some"  # it may have run
    # it cannot be decided, only a callback without a proof names it, or it was forgotten
    # too often
    UNSURE = "unsure"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What a sweep has seen. None stands for a side that did not answer.

    `jobs` are the ledger's active jobs and those that SLURM's list points to. `claims`
    are old claims that were read from the chain's logs, or taken over.
    `foreign_claim_tags` are other ledgers' claims, with that ledger's instance tag.
    `scan_is_current` means that the scan goes on, and would have found lost blocks. It
    has read the blocks up to `scanned_block`. `unconfirmed_on_chain` are jobs that the
    contract has as over, or as another provider's, at only one of several endpoints.

    `persisted_by_slurm` are jobs that SLURM does not list, and that slurmctld had on
    its disk when it was started; None if that was not looked up. `confirmed_lookups` is
    the answer of SLURM and accounting about jobs that SLURM does not list. In it None
    means that neither knows the job; a job with an unclear answer is left out. `traces`
    are those of the jobs of `pending_and_missing`; a job that the sweep has not looked
    for is left out. `recently_reported` are jobs for which an end came in meanwhile, or
    not long ago: jobs/monitor.py decides on them. `proven_ends` are jobs whose end one of
    our own hooks has reported. `last_seen_completing` are jobs that SLURM last showed as
    COMPLETING. `historical_matches` is what scripts
    and accounting show of the jobs that are `unlisted`; None if they did not answer.
    `undecided_histories` are those of these jobs whose customers the login node does
    not know: accounting cannot be asked about them.

    `continuous_uptime_s` is for how long the sources of ends have reported without a
    gap. It is None while a source is missing, and infinite if accounting can be asked.
    `previous_doubts` are earlier doubts with the seconds since then.
    `slurmctld_uptime_s` is how long slurmctld has been up, and `first_job_id` the id
    with which it began, or 0.
    """

    provider: Address
    comment: str
    jobs: Mapping[JobId, JobSummary]
    claims: Mapping[JobId, Claimed] = field(default_factory=dict)
    foreign_claim_tags: Mapping[JobId, str] = field(default_factory=dict)
    chain: Mapping[JobId, OnChainJob] | None = None
    block: int = 0
    scan_is_current: bool = True
    scanned_block: int = 0
    unconfirmed_on_chain: Collection[JobId] = frozenset()
    slurm: Mapping[SlurmId, SqueueRow] | None = None
    persisted_by_slurm: Collection[JobId] | None = None
    confirmed_lookups: Mapping[JobId, JobRecord | None] = field(default_factory=dict)
    traces: Mapping[JobId, Trace] = field(default_factory=dict)
    recently_reported: Collection[JobId] = frozenset()
    proven_ends: Collection[JobId] = frozenset()
    last_seen_completing: Collection[JobId] = frozenset()
    continuous_uptime_s: float | None = float("inf")
    historical_matches: Mapping[JobId, SlurmId] | None = field(default_factory=dict)
    undecided_histories: Collection[JobId] = frozenset()
    previous_doubts: Mapping[str, float] = field(default_factory=dict)
    grace_s: float = 300.0
    slurmctld_uptime_s: float = float("inf")
    first_job_id: int = 0

    def confirmed_by_earlier_sweep(
        self, kind: DiscrepancyKind, job_id: JobId, slurm_id: SlurmId | None = None
    ) -> bool:
        """Whether the same doubt was first seen at least `grace_s` ago."""
        key = doubt_key(kind, job_id, slurm_id)
        return self.previous_doubts.get(key, -1.0) >= self.grace_s

    def too_many(self, absent: int) -> bool:
        """Whether SLURM lists no jobs, or lacks so many that it must have lost its
        state.
        """
        return not self.slurm or self._many(absent)

    def _many(self, absent: int) -> bool:
        expected = sum(job.state in IN_SLURM for job in self.jobs.values())
        return absent > max(MIN_LOST_JOBS, MAX_LOST_FRACTION * expected)

    def changed(self, **changes: Any) -> "Snapshot":
        """Return a copy with other values of these fields. Which jobs SLURM does not list
        is not computed again, unless it depends on them: a sweep of many jobs reads it
        at each step.
        """
        copy = replace(self, **changes)
        if not changes.keys() & {"jobs", "slurm"}:
            copy.__dict__["_not_listed"] = self._not_listed
        return copy

    @property
    def rows(self) -> Mapping[SlurmId, SqueueRow]:
        """What SLURM lists; nothing if it did not answer."""
        return self.slurm or {}

    def on_chain(self, job_id: JobId) -> OnChainJob | None:
        """Return the job as the contract has it; None if the contract does not know it,
        or was not asked.
        """
        if self.chain is None:
            return None
        return self.chain.get(job_id)

    @cached_property
    def missing(self) -> list[JobSummary]:
        """The jobs that SLURM should have and does not list, or lists without enough to
        identify them at once.
        """
        return [job for job in self._not_listed if not _waits_for_operator(job)]

    @property
    def parked_and_absent(self) -> list[JobSummary]:
        """The same of jobs whose POLL_SLURM effect is parked. They are not missing:
        an operator decides, and only an end that accounting knows counts.
        """
        return [job for job in self._not_listed if _waits_for_operator(job)]

    @cached_property
    def _not_listed(self) -> list[JobSummary]:
        if self.slurm is None:
            return []
        not_listed = list[JobSummary]()
        for job in self.jobs.values():
            if job.state in IN_SLURM and row_of(job, self.slurm) is None:
                not_listed.append(job)
        return not_listed

    @cached_property
    def unknown(self) -> list[JobSummary]:
        """The missing jobs that SLURM and accounting were asked about, and that neither
        knows. A job about which an unread callback has come is left out.
        """
        asked = self.confirmed_lookups
        unknown = list[JobSummary]()
        for job in self.missing:
            if job.has_unread_callback or job.job_id not in asked:
                continue
            if asked[job.job_id] is None:
                unknown.append(job)
        return unknown

    @cached_property
    def forgotten(self) -> list[JobId]:
        """The jobs that slurmctld had saved, and that neither SLURM nor accounting
        knows any more.
        """
        if self.persisted_by_slurm is None:
            return []
        forgotten = list[JobId]()
        for job in self.unknown:
            if job.job_id in self.persisted_by_slurm:
                forgotten.append(job.job_id)
        return forgotten

    @cached_property
    def slurm_lost_state(self) -> bool:
        """Whether slurmctld was started with an older state than it had, or with none.

        Many forgotten jobs are enough to show that, also if slurmctld's ids went on:
        they do so even if slurmctld was started with the order to forget all jobs. With
        few forgotten jobs, an empty list shows it only if the ids began again. If they
        went on, or if that is not known, the last jobs may have ended without a
        callback, and slurmctld has forgotten them in time.
        """
        if not self.forgotten:
            return False
        if self._many(len(self.forgotten)):
            return True
        last_id = max(self.jobs[job_id].slurm_id or 0 for job_id in self.forgotten)
        return not self.slurm and 0 < self.first_job_id <= last_id

    @property
    def knows_all_it_had_saved(self) -> bool:
        """Whether SLURM answered, and lacks no job that slurmctld had on its disk."""
        return (
            self.slurm is not None
            and self.persisted_by_slurm is not None
            and not self.persisted_by_slurm
        )

    @cached_property
    def jobs_of_id(self) -> dict[SlurmId | None, list[JobSummary]]:
        """The ledger's jobs by SLURM id: several if slurmctld has given an id again."""
        jobs_of_id = dict[SlurmId | None, list[JobSummary]]()
        for job in self.jobs.values():
            jobs_of_id.setdefault(job.slurm_id, []).append(job)
        return jobs_of_id

    @cached_property
    def named(self) -> dict[tuple[str, str], list[SqueueRow]]:
        """SLURM's jobs by name and user: live ones first, then the oldest. An owner can
        rename a job: a SLURM job that the ledger knows as another job than its name
        shows is left out.
        """
        rows = sorted(
            self.rows.values(), key=lambda row: (not is_live_row(row), row.slurm_id)
        )
        job_ids = {
            (job.slurm_id, job.slurm_submit_s): job.job_id
            for job in self.jobs.values()
            if job.slurm_submit_s
        }
        named = dict[tuple[str, str], list[SqueueRow]]()
        for row in rows:
            job_id = job_ids.get((row.slurm_id, row.submit_s), row.name)
            if job_id == row.name:
                named.setdefault((row.name, row.user), []).append(row)
        return named


def doubt_key(
    kind: DiscrepancyKind, job_id: JobId, slurm_id: SlurmId | None = None
) -> str:
    """The name under which a doubt is remembered until the next sweep."""
    return f"{kind} {job_id}" if slurm_id is None else f"{kind} {job_id} {slurm_id}"


def pending_and_missing(snapshot: Snapshot) -> list[JobSummary]:
    """Return the jobs that would be lost now, and that were never seen running. The
    sweep searches for what is left of them.
    """
    pending = list[JobSummary]()
    for job in snapshot.unknown:
        if never_ran(job) and absence_confirmed(job, snapshot):
            pending.append(job)
    return pending


def never_ran(job: JobSummary) -> bool:
    """Whether neither SLURM nor the contract ever showed that the job runs."""
    is_queued = (job.state, job.chain_status) == (State.QUEUED, ChainStatus.SCHEDULED)
    return is_queued and job.slurm_id is not None


def absence_confirmed(job: JobSummary, snapshot: Snapshot) -> bool:
    """Whether the job was missing long enough. slurmctld and its nodes must have had
    the time to reach each other. Each reporter that may have the job's end in its spool
    must have had the time to deliver it, if it is there.
    """
    if not snapshot.confirmed_by_earlier_sweep(DiscrepancyKind.MISSING, job.job_id):
        return False
    if snapshot.slurmctld_uptime_s < snapshot.grace_s:
        return False
    sources_uptime_s = snapshot.continuous_uptime_s
    return sources_uptime_s is None or sources_uptime_s >= snapshot.grace_s


def never_seen(snapshot: Snapshot) -> list[JobId]:
    """Return our jobs that are active on chain and unknown to the ledger."""
    return new_among(snapshot.claims, snapshot)


def new_among(job_ids: Iterable[JobId], snapshot: Snapshot) -> list[JobId]:
    """Return the jobs, out of these, that are active, ours and unknown to the
    ledger.
    """
    new = list[JobId]()
    for job_id in job_ids:
        if job_id not in snapshot.jobs and is_active_and_ours(job_id, snapshot):
            new.append(job_id)
    return new


def is_active_and_ours(job_id: JobId, snapshot: Snapshot) -> bool:
    """Whether the job is active and ours on the contract."""
    return is_active_job_of(snapshot.on_chain(job_id), snapshot.provider)


def unlisted(snapshot: Snapshot) -> dict[JobId, Address]:
    """Return the jobs, with their customers, that SLURM does not list by name, and that
    may have been in SLURM before the ledger knew of them.
    """
    if snapshot.slurm is None:
        return {}
    customers = dict[JobId, Address]()
    for job_id in never_seen(snapshot):
        customers[job_id] = snapshot.claims[job_id].customer
    for job in snapshot.jobs.values():  # of a ledger that was restored from a backup
        if is_behind(job, snapshot):
            customers[job.job_id] = job.customer
    not_listed = dict[JobId, Address]()
    for job_id, customer in customers.items():
        if listed_id(job_id, customer, snapshot) is None:
            not_listed[job_id] = customer
    return not_listed


def unexplained(snapshot: Snapshot) -> list[SqueueRow]:
    """Return the SLURM jobs of customers of `unlisted` jobs that may be one of these
    under another name. Their scripts show whether they are.
    """
    customers = set(unlisted(snapshot).values())
    rows = list[SqueueRow]()
    for row in snapshot.rows.values():
        if row.user not in customers or row.slurm_id in snapshot.jobs_of_id:
            continue
        if row.has_script and _runs_or_ran(row):
            rows.append(row)
    return rows


def foreign(snapshot: Snapshot) -> list[SqueueRow]:
    """Return the SLURM jobs of customers that no active job of the ledger and no claim
    explains: they run, wait, or have run, and are not paid for. Those that have run may
    be jobs that are settled.
    """
    expected = _expected(snapshot)
    rows = list[SqueueRow]()
    for row in snapshot.rows.values():
        jobs_of_id = snapshot.jobs_of_id.get(row.slurm_id, ())
        if any(_may_be_known_as(row, job) for job in jobs_of_id):
            continue
        if (row.name, row.user) in expected:
            continue
        used_slurm = is_live_row(row) or _has_run(row)
        if used_slurm and CUSTOMER.fullmatch(row.user):
            rows.append(row)
    return rows


def _has_run(row: SqueueRow) -> bool:
    return row.record.phase is Phase.ENDED and row.record.elapsed_s > 0


def _may_be_known_as(row: SqueueRow, job: JobSummary) -> bool:
    """Whether the row may be this job, which has its id. slurmctld may give the id of
    an old job again. A live job may have another name and time since the last look.
    """
    if job.is_final:
        return is_row_of(row, job)
    return row.user == job.customer


def _expected(snapshot: Snapshot) -> set[tuple[str, str]]:
    """The names and users of jobs that SLURM may have before the ledger has their ids:
    those whose submission may arrive, and active claims that the ledger does not have,
    which may be another ledger's. Their owners know these names too: a job that only
    waits to be submitted, or that is over, explains nothing.
    """
    expected = set[tuple[str, str]]()
    for job in snapshot.jobs.values():
        if _may_arrive(job):
            expected.add((job.job_id, job.customer))
    claimed = {*snapshot.claims, *snapshot.foreign_claim_tags}
    for job_id in new_among(claimed, snapshot):
        on_chain = snapshot.on_chain(job_id)
        if on_chain is not None:
            expected.add((job_id, on_chain.customer))
    return expected


def _may_arrive(job: JobSummary) -> bool:
    """Whether a submission of the job may arrive in SLURM, and a worker waits for it. A
    job that is over is cancelled when it arrives. That of a REFUSED job would be its
    customer's own.
    """
    if job.slurm_id is not None or job.state is State.REFUSED:
        return False
    waiting = job.open - job.parked
    if job.state is State.SUBMITTING:
        return EffectKind.SUBMIT in waiting
    return EffectKind.CANCEL in waiting


def names_with_our_comment(slurm: Collection[SqueueRow], comment: str) -> set[JobId]:
    """Return the job ids that are the names of live SLURM jobs with our comment."""
    names = set[JobId]()
    for row in slurm:
        if has_our_comment(row, comment):
            names.add(JobId(row.name))
    return names


def is_live_row(row: SqueueRow) -> bool:
    """Whether SLURM runs the job or will run it."""
    return row.record.phase in (Phase.WAITING, Phase.RUNNING)


def is_behind(job: JobSummary, snapshot: Snapshot) -> bool:
    """Whether the ledger has not submitted the job yet, though the contract shows that
    it runs.
    """
    return (
        job.state in BEFORE_SLURM
        and status_of(job.job_id, snapshot) is ChainStatus.RUNNING
    )


def listed_id(job_id: JobId, customer: Address, snapshot: Snapshot) -> SlurmId | None:
    """Return the id of the SLURM job with that name and user: one that is live, or one
    that ran.
    """
    for row in snapshot.named.get((job_id, customer), []):
        if _runs_or_ran(row):
            return row.slurm_id
    return None


def status_of(job_id: JobId, snapshot: Snapshot) -> ChainStatus | None:
    """Return the job's status on the contract; None if the contract does not know it,
    or was not asked.
    """
    on_chain = snapshot.on_chain(job_id)
    if on_chain is None:
        return None
    return on_chain.status


def _waits_for_operator(job: JobSummary) -> bool:
    return EffectKind.POLL_SLURM in job.parked


def row_of(job: JobSummary, slurm: Mapping[SlurmId, SqueueRow]) -> SqueueRow | None:
    """Return the SLURM job under the ledger's id, if it is this job."""
    if job.slurm_id is None:
        return None
    row = slurm.get(job.slurm_id)
    if row is None or not is_row_of(row, job):
        return None
    return row


def is_row_of(row: SqueueRow, job: JobSummary) -> bool:
    """Whether the row is this job. SLURM uses ids again after a wrap, and after it lost
    its state. An owner can change the name, and a requeue changes the time, so one of
    the two must agree. Jobs that this check leaves out are looked at more closely: see
    `confirmed_lookups`.
    """
    if row.user != job.customer:
        return False
    return row.name == job.job_id or row.submit_s == job.slurm_submit_s


def _runs_or_ran(row: SqueueRow) -> bool:
    """Whether SLURM runs the job or will run it, or whether it ended by itself: it was
    not rejected, and not cancelled under an earlier claim.
    """
    if row.record.phase is not Phase.ENDED:
        return is_live_row(row)
    was_rejected = row.record.reason == "BadConstraints"
    return row.record.state != "CANCELLED" and not was_rejected


def has_our_comment(row: SqueueRow, comment: str) -> bool:
    """Whether a live SLURM job looks like one of ours."""
    return (
        row.comment == comment
        and JOB_NAME.fullmatch(row.name) is not None
        and is_live_row(row)
    )


def is_active_job_of(on_chain: OnChainJob | None, provider: Address) -> bool:
    """Whether the job is ours, and active."""
    if on_chain is None or on_chain.provider != provider:
        return False
    return on_chain.status.is_active
