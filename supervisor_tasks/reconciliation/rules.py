"""Compare ledger, contract and SLURM: what does not fit together, and what a sweep does
about it. Pure.

Each discrepancy carries events for the job, a SLURM job to cancel, or nothing. `advance`
makes the final decision on an event; a discrepancy with nothing is for the operator. A
sweep does not compare what it cannot see: "cannot see" is not "gone". A doubt that
would end a job, or remove it from SLURM, counts only when a sweep sees it again after a
while.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from supervisor_tasks.jobs.events import (
    ChainStatusObserved,
    EffectMissing,
    Event,
    ExistingSlurmJobAdopted,
    RequeueNotForbidden,
    RunsAfterItsEnd,
    SlurmJobMissing,
    SubmissionLostBySlurm,
)
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
from supervisor_tasks.jobs.reorg_rules import LAST_LOG
from supervisor_tasks.jobs.size_rules import excesses
from supervisor_tasks.reconciliation.models import JobSummary, OnChainJob
from supervisor_tasks.reconciliation.snapshot import (
    DiscrepancyKind,
    Snapshot,
    Trace,
    absence_confirmed,
    foreign,
    has_our_comment,
    is_active_job_of,
    is_behind,
    is_live_row,
    is_row_of,
    listed_id,
    names_with_our_comment,
    never_ran,
    never_seen,
    new_among,
    row_of,
    status_of,
)
from supervisor_tasks.slurm.job_states import COMPLETING, Phase
from supervisor_tasks.slurm.parsers import JobRecord
from supervisor_tasks.slurm.squeue import SqueueRow

STANDING_EFFECTS = {
    State.CLAIMED: {EffectKind.FETCH},
    State.READY: {EffectKind.SUBMIT},
    State.SUBMITTING: {EffectKind.SUBMIT},
    State.QUEUED: {EffectKind.POLL_SLURM},
    State.RUNNING: {EffectKind.POLL_SLURM},
    State.ENDED: {EffectKind.REPORT},
    State.REFUSED: {EffectKind.RETURN_JOB},
    State.SETTLED: set[EffectKind](),
}
TAKEN_IN = (DiscrepancyKind.ADOPTED, DiscrepancyKind.NEVER_SEEN)
ADOPTED_IN = (State.CLAIMED, State.READY, *IN_SLURM)
NOT_OURS_ANY_MORE = (
    DiscrepancyKind.FINAL_ON_CHAIN,
    DiscrepancyKind.REASSIGNED_ON_CHAIN,
)
LOST_REASON = "SLURM does not know the job any more, and how it ended is not known"


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """One thing that does not fit. `cancel` is a SLURM job that the ledger's effects do
    not reach.
    """

    kind: DiscrepancyKind
    job_id: JobId
    slurm_id: SlurmId | None = None
    events: tuple[Event, ...] = ()
    cancel: SlurmId | None = None


def of_kind(
    discrepancies: Sequence[Discrepancy], *kinds: DiscrepancyKind
) -> list[Discrepancy]:
    """Return the discrepancies of these kinds."""
    return [discrepancy for discrepancy in discrepancies if discrepancy.kind in kinds]


def find_discrepancies(snapshot: Snapshot) -> list[Discrepancy]:
    """Return everything that does not fit."""
    undecided = [job for job in snapshot.jobs.values() if not job.is_final]
    discrepancies = [*_on_chain(snapshot, undecided), *_claimed_by_others(snapshot)]
    active = _active(undecided, discrepancies)
    if snapshot.slurm is not None:
        discrepancies += _in_slurm(snapshot, snapshot.slurm, active)
    with_events = {
        discrepancy.job_id for discrepancy in discrepancies if discrepancy.events
    }
    for job in active:
        if job.job_id not in with_events:
            discrepancies += _missing_effects(job)
    return discrepancies


def _active(
    undecided: Sequence[JobSummary], discrepancies: Sequence[Discrepancy]
) -> list[JobSummary]:
    """The jobs that the other comparisons look at: they are not final, and the contract
    still has them as ours.
    """
    not_ours = {
        discrepancy.job_id for discrepancy in of_kind(discrepancies, *NOT_OURS_ANY_MORE)
    }
    return [job for job in undecided if job.job_id not in not_ours]


# --- the contract ---------------------------------------------------------------------


def _on_chain(
    snapshot: Snapshot, undecided: Sequence[JobSummary]
) -> Iterator[Discrepancy]:
    if snapshot.chain is None:
        return
    for job in undecided:
        node_is_behind = job.chain_block > snapshot.block
        if not node_is_behind and job.job_id not in snapshot.unconfirmed_on_chain:
            yield from _by_contract(job, snapshot.chain.get(job.job_id), snapshot)


def ends_on_chain(snapshot: Snapshot) -> dict[JobId, tuple[ChainStatus, Address]]:
    """Return the status and the provider on the contract of the jobs that a sweep would
    end, cancel in SLURM, or take for submitted, because of these.
    """
    running = names_with_our_comment(snapshot.rows.values(), snapshot.comment)
    ends = dict[JobId, tuple[ChainStatus, Address]]()
    for job_id, on_chain in (snapshot.chain or {}).items():
        job = snapshot.jobs.get(job_id)
        if job is None:
            ends_here = job_id in running and on_chain.status.is_final
        elif is_active_job_of(on_chain, job.provider):
            ends_here = is_behind(job, snapshot)
        else:
            ends_here = job.is_final or any(_by_contract(job, on_chain, snapshot))
        if ends_here:
            ends[job_id] = on_chain.status, on_chain.provider
    return ends


def _claimed_by_others(snapshot: Snapshot) -> Iterator[Discrepancy]:
    """Jobs that another ledger claimed with our key, and that are active and ours."""
    for job_id in new_among(snapshot.foreign_claim_tags, snapshot):
        yield Discrepancy(DiscrepancyKind.FOREIGN_CLAIM, job_id)


def _by_contract(
    job: JobSummary, on_chain: OnChainJob | None, snapshot: Snapshot
) -> Iterator[Discrepancy]:
    if on_chain is None:
        yield Discrepancy(DiscrepancyKind.NOT_ON_CHAIN, job.job_id)
    elif on_chain.provider != job.provider or on_chain.status < ChainStatus.SCHEDULED:
        yield _reassigned(job, snapshot)
    elif on_chain.status.is_final:
        if _will_be_scanned(on_chain, snapshot):
            return
        events = (ChainStatusObserved(on_chain.status),)
        yield Discrepancy(
            DiscrepancyKind.FINAL_ON_CHAIN, job.job_id, job.slurm_id, events
        )
    elif on_chain.status > job.chain_status or is_behind(job, snapshot):
        yield Discrepancy(
            DiscrepancyKind.AHEAD_ON_CHAIN, job.job_id, events=_catch_up(job, snapshot)
        )


def _will_be_scanned(on_chain: OnChainJob, snapshot: Snapshot) -> bool:
    """Whether the scan has yet to read the block in which the job ended. The ledger has
    no hash of that block. If it is lost before the scan reads it, nothing would take
    the end back.
    """
    return snapshot.scan_is_current and on_chain.changed_block > snapshot.scanned_block


def _reassigned(job: JobSummary, snapshot: Snapshot) -> Discrepancy:
    """The contract has the job pending, or with another provider: a doubt, until a
    later sweep sees it again.
    """
    kind = DiscrepancyKind.REASSIGNED_ON_CHAIN
    was_seen_before = snapshot.confirmed_by_earlier_sweep(kind, job.job_id)
    if not was_seen_before or not snapshot.scan_is_current:
        return Discrepancy(kind, job.job_id)
    pending = ChainStatusObserved(ChainStatus.PENDING, at=(snapshot.block, LAST_LOG))
    return Discrepancy(kind, job.job_id, events=(pending,))


def _catch_up(job: JobSummary, snapshot: Snapshot) -> tuple[Event, ...]:
    """The contract shows that the job ran. A ledger that has not submitted it yet was
    restored from a backup.
    """
    running = ChainStatusObserved(ChainStatus.RUNNING)
    if job.state not in BEFORE_SLURM:
        return (running,)
    if snapshot.slurm is None or snapshot.historical_matches is None:
        return ()  # nothing is decided without SLURM: a later sweep decides
    if job.job_id in snapshot.undecided_histories:
        return ()
    slurm_id = listed_id(job.job_id, job.customer, snapshot)
    if slurm_id is None:
        slurm_id = snapshot.historical_matches.get(job.job_id)
    return running, ExistingSlurmJobAdopted(slurm_id)


# --- SLURM ----------------------------------------------------------------------------


def _in_slurm(
    snapshot: Snapshot, slurm: Mapping[SlurmId, SqueueRow], active: Sequence[JobSummary]
) -> Iterator[Discrepancy]:
    for job in active:
        row = row_of(job, slurm)
        if row is not None and job.state in IN_SLURM:
            yield from _listed(job, row)
    adopted = list(_adoptions(snapshot, active))
    yield from adopted
    compared = {job.job_id for job in active} - {
        discrepancy.job_id for discrepancy in adopted
    }
    absent = list[Discrepancy]()
    for job in snapshot.missing:
        if job.job_id in compared:
            absent += _absent(job, snapshot)
    for job in snapshot.parked_and_absent:
        if job.job_id in compared:
            absent += _ended_while_parked(job, snapshot)
    yield from _escalate_mass_loss(snapshot, absent)
    yield from _first_seen(snapshot)
    yield from _unexpected_jobs(snapshot, slurm)


def _listed(job: JobSummary, row: SqueueRow) -> Iterator[Discrepancy]:
    """SLURM lists the job. An end counts also if the job's POLL_SLURM effect is parked:
    the operator waits for it, and SLURM soon forgets it. A job that has more than was
    paid for counts then, too: its owner can hold it until the effect is parked. So does
    one that runs now: its owner has released it.
    """
    if _has_ended(job, row):
        events = (EffectMissing(EffectKind.POLL_SLURM),)
        yield Discrepancy(
            DiscrepancyKind.END_NOT_RECORDED, job.job_id, row.slurm_id, events
        )
        return
    if not is_live_row(row):
        return
    is_unseen_run = job.state is State.QUEUED and row.record.phase is Phase.RUNNING
    if is_unseen_run and EffectKind.POLL_SLURM in job.parked:
        yield Discrepancy(
            DiscrepancyKind.RUN_NOT_RECORDED,
            job.job_id,
            row.slurm_id,
            (EffectMissing(EffectKind.POLL_SLURM),),
        )
        return
    # slurmctld was killed before it saved the limit that it was given; any other lower
    # limit is the owner's own wish
    has_earlier_limit = row.limit_min in job.earlier_limits_min
    if has_earlier_limit and EffectKind.TOP_UP not in job.open:
        yield Discrepancy(
            DiscrepancyKind.LIMIT_LOST,
            job.job_id,
            row.slurm_id,
            (EffectMissing(EffectKind.TOP_UP),),
        )
    elif not job.stopped:
        yield from _not_as_paid(job, row)


def _has_ended(job: JobSummary, row: SqueueRow) -> bool:
    """Whether SLURM has ended the job, or is about to show its end. Then a look records
    that it was COMPLETING: SLURM counts MinJobAge from the job's end, so it forgets the
    job with an epilog that takes as long.
    """
    if row.record.phase is Phase.ENDED:
        return True
    return row.record.state == COMPLETING and EffectKind.POLL_SLURM not in job.parked


def _not_as_paid(job: JobSummary, row: SqueueRow) -> Iterator[Discrepancy]:
    """The job has more than was paid for, or a run that the ledger does not know. The
    POLL_SLURM effect looks at once, and decides.
    """
    look = (EffectMissing(EffectKind.POLL_SLURM),)
    if job.slurm_submit_s not in (None, row.submit_s):
        yield Discrepancy(DiscrepancyKind.RUNS_AGAIN, job.job_id, row.slurm_id, look)
        return
    if job.paid is None or row.record.size is None:
        return
    if excesses(row.record.size, job.paid):
        yield Discrepancy(
            DiscrepancyKind.MORE_THAN_PAID, job.job_id, row.slurm_id, look
        )


def _absent(job: JobSummary, snapshot: Snapshot) -> Iterator[Discrepancy]:
    """SLURM does not list the job. That counts if accounting does not know the job
    either, or if the site has none.
    """
    if job.has_unread_callback or job.job_id not in snapshot.confirmed_lookups:
        return
    record = snapshot.confirmed_lookups[job.job_id]
    if record is not None:
        yield from _absent_with_record(job, record, snapshot)
        return
    may_have_ended = job.job_id in snapshot.recently_reported
    if absence_confirmed(job, snapshot) and not may_have_ended:
        yield _missing_job(job, snapshot)
        return
    look = (EffectMissing(EffectKind.POLL_SLURM),)
    yield Discrepancy(DiscrepancyKind.MISSING, job.job_id, job.slurm_id, look)


def _ended_while_parked(job: JobSummary, snapshot: Snapshot) -> Iterator[Discrepancy]:
    """The job's POLL_SLURM effect is parked, and accounting has its end now."""
    record = snapshot.confirmed_lookups.get(job.job_id)
    if record is not None and record.phase is Phase.ENDED:
        yield from _absent_with_record(job, record, snapshot)


def _absent_with_record(
    job: JobSummary, record: JobRecord, snapshot: Snapshot
) -> Iterator[Discrepancy]:
    """SLURM does not list the job, and accounting or a closer look has a record of
    it.
    """
    if record.phase is Phase.ENDED:
        events = (EffectMissing(EffectKind.POLL_SLURM),)
        yield Discrepancy(
            DiscrepancyKind.END_NOT_RECORDED, job.job_id, job.slurm_id, events
        )
    elif not _is_listed(record, snapshot):
        kind = DiscrepancyKind.MISSING
        if snapshot.confirmed_by_earlier_sweep(DiscrepancyKind.MISSING, job.job_id):
            kind = DiscrepancyKind.CONTRADICTED
        yield Discrepancy(kind, job.job_id, job.slurm_id)


def _is_listed(record: JobRecord, snapshot: Snapshot) -> bool:
    """Whether SLURM's list has the job after all, renamed or with a user that cannot be
    named at the moment.
    """
    row = snapshot.rows.get(record.slurm_id)
    return row is not None and row.record == record


def _missing_job(job: JobSummary, snapshot: Snapshot) -> Discrepancy:
    """The job is lost for good, with three exceptions. Its end may be in a spool that no
    reporter delivers, or a hook of ours has reported its end and accounting does not have
    it, or its last look shows that it has ended. A job that never ran is submitted again.
    """
    needs_operator = Discrepancy(
        DiscrepancyKind.NEEDS_OPERATOR, job.job_id, job.slurm_id
    )
    has_ended = job.job_id in snapshot.proven_ends
    has_ended |= job.job_id in snapshot.last_seen_completing
    if snapshot.continuous_uptime_s is None or has_ended:
        return needs_operator
    if never_ran(job) and job.slurm_id is not None:
        trace = snapshot.traces.get(job.job_id)
        if trace is None:
            # not searched for yet
            return Discrepancy(DiscrepancyKind.MISSING, job.job_id, job.slurm_id)
        if trace is Trace.NONE and not snapshot.slurm_lost_state:
            events = (SubmissionLostBySlurm(job.slurm_id),)
            return Discrepancy(
                DiscrepancyKind.FORGOTTEN, job.job_id, job.slurm_id, events
            )
        if trace is not Trace.SOME:
            return needs_operator
    return Discrepancy(
        DiscrepancyKind.LOST,
        job.job_id,
        job.slurm_id,
        (SlurmJobMissing(job.slurm_id, LOST_REASON),),
    )


def _escalate_mass_loss(
    snapshot: Snapshot, discrepancies: Sequence[Discrepancy]
) -> list[Discrepancy]:
    """Many missing jobs at once, or an empty list, mean that SLURM has lost its state,
    or that it is another SLURM. The jobs may still run, so the operator decides.
    """
    missing_ids = {job.job_id for job in snapshot.missing}
    unexplained = missing_ids - _explained(snapshot, discrepancies)
    if not snapshot.too_many(len(unexplained)):
        return list(discrepancies)
    escalated = list[Discrepancy]()
    for discrepancy in discrepancies:
        if discrepancy.kind is DiscrepancyKind.LOST:
            discrepancy = replace(
                discrepancy, kind=DiscrepancyKind.NEEDS_OPERATOR, events=()
            )
        escalated.append(discrepancy)
    return escalated


def _explained(snapshot: Snapshot, discrepancies: Sequence[Discrepancy]) -> set[JobId]:
    """The jobs that have ended, or that SLURM lists after all."""
    ended = of_kind(discrepancies, DiscrepancyKind.END_NOT_RECORDED)
    explained = {discrepancy.job_id for discrepancy in ended}
    for job_id, record in snapshot.confirmed_lookups.items():
        if record is not None and _is_listed(record, snapshot):
            explained.add(job_id)
    return explained


def _adoptions(
    snapshot: Snapshot, active: Sequence[JobSummary]
) -> Iterator[Discrepancy]:
    """Jobs that SLURM has, and that the ledger takes for not submitted."""
    for job in active:
        if job.slurm_id is not None or not _may_be_adopted(job):
            continue
        slurm_id = _adoptable_id(job, snapshot)
        if slurm_id is not None:
            events = (ExistingSlurmJobAdopted(slurm_id),)
            yield Discrepancy(DiscrepancyKind.ADOPTED, job.job_id, slurm_id, events)


def _adoptable_id(job: JobSummary, snapshot: Snapshot) -> SlurmId | None:
    """The live SLURM job of this name and user; of a parked submission also one that
    has ended, as no worker searches for it.
    """
    if job.state is State.SUBMITTING:
        return listed_id(job.job_id, job.customer, snapshot)
    rows = snapshot.named.get((job.job_id, job.customer), [])
    if rows and is_live_row(rows[0]):
        return rows[0].slurm_id
    return None


def _may_be_adopted(job: JobSummary) -> bool:
    """Whether the sweep adopts the job. In SUBMITTING the submission itself searches for
    its job, until it is parked; its customer may submit it with its token after that.
    """
    if job.state is State.SUBMITTING:
        return EffectKind.SUBMIT in job.parked
    return job.state in ADOPTED_IN


def _first_seen(snapshot: Snapshot) -> Iterator[Discrepancy]:
    """Jobs that were claimed before this ledger existed. A job that SLURM has, or that
    ran, is adopted and not submitted again. A job whose history accounting cannot show
    waits for a later sweep.
    """
    if snapshot.historical_matches is None:
        return
    for job_id in never_seen(snapshot):
        if job_id in snapshot.undecided_histories:
            continue
        claim = snapshot.claims[job_id]
        running = status_of(job_id, snapshot) is ChainStatus.RUNNING
        slurm_id = listed_id(job_id, claim.customer, snapshot)
        if slurm_id is None:
            slurm_id = snapshot.historical_matches.get(job_id)
        events: tuple[Event, ...] = (claim,)
        if running:
            events += (ChainStatusObserved(ChainStatus.RUNNING),)
        if running or slurm_id is not None:
            events += (ExistingSlurmJobAdopted(slurm_id),)
        yield Discrepancy(DiscrepancyKind.NEVER_SEEN, job_id, slurm_id, events)


def unpaid(snapshot: Snapshot, discrepancies: Sequence[Discrepancy]) -> list[SqueueRow]:
    """Return the `foreign` jobs without those that this sweep cancels, or takes into
    the ledger.
    """
    handled = set[SlurmId | None]()
    for discrepancy in discrepancies:
        handled.add(discrepancy.cancel)
        if discrepancy.kind in TAKEN_IN:
            handled.add(discrepancy.slurm_id)
    return [row for row in foreign(snapshot) if row.slurm_id not in handled]


def _unexpected_jobs(
    snapshot: Snapshot, slurm: Mapping[SlurmId, SqueueRow]
) -> Iterator[Discrepancy]:
    """Live SLURM jobs that should not exist. A sweep cancels only what is certainly
    ours.
    """
    for row in slurm.values():
        if is_live_row(row):
            yield from _unexpected_row(row, snapshot)


def _unexpected_row(row: SqueueRow, snapshot: Snapshot) -> Iterator[Discrepancy]:
    """A live SLURM job, and the ledger's jobs that have its id."""
    ended, others = list[JobSummary](), list[JobSummary]()
    for job in snapshot.jobs_of_id.get(row.slurm_id, []):
        if _runs_after_its_end(row, job):
            ended.append(job)
        elif _is_known_as(row, job):
            others.append(job)
    if others:
        yield from _runs_on(others, row, snapshot)
    elif ended:
        last = max(ended, key=lambda job: job.slurm_submit_s or 0)
        yield Discrepancy(
            DiscrepancyKind.RUNS_AFTER_END,
            last.job_id,
            row.slurm_id,
            (RunsAfterItsEnd(row.slurm_id),),
        )
    elif has_our_comment(row, snapshot.comment):
        yield from _jobs_with_our_comment(row, snapshot)


def _runs_after_its_end(row: SqueueRow, job: JobSummary) -> bool:
    """Whether SLURM has requeued the job since the end that the ledger knows, and no
    open effect cancels it. Its owner may have renamed it. Before the cancellation a
    worker checks that it is this job, and not another one with the same id.
    """
    if job.state not in (State.ENDED, State.SETTLED):
        return False
    if EffectKind.CANCEL in job.open or row.user != job.customer:
        return False
    if job.slurm_submit_s is None:
        return False
    return row.record.restarts > 0 and row.submit_s > job.slurm_submit_s


def _is_known_as(row: SqueueRow, job: JobSummary) -> bool:
    """Whether the SLURM job is this job. While the job is active and no look has shown
    it, its id and owner are enough.
    """
    if is_row_of(row, job):
        return True
    if job.is_final or job.slurm_submit_s is not None:
        return False
    return row.user == job.customer


def _runs_on(
    jobs: Sequence[JobSummary], row: SqueueRow, snapshot: Snapshot
) -> Iterator[Discrepancy]:
    """SLURM still has the job under the ledger's id, while its status on the contract is
    final. It may run it for any of these jobs, so it is cancelled only if all are final.
    """
    shown = jobs[0]
    for job in jobs:
        if not job.is_final:
            return
        if job.job_id == row.name:
            shown = job
    if _over(shown, snapshot) and EffectKind.CANCEL not in shown.open:
        events = (EffectMissing(EffectKind.CANCEL),)
        yield Discrepancy(
            DiscrepancyKind.ORPHAN_RUNNING, shown.job_id, row.slurm_id, events
        )


def _jobs_with_our_comment(row: SqueueRow, snapshot: Snapshot) -> Iterator[Discrepancy]:
    """A SLURM job with our comment that the ledger does not know by its id."""
    job_id = JobId(row.name)
    job = snapshot.jobs.get(job_id)
    if job is None:
        yield from _unknown_to_the_ledger(job_id, row, snapshot)
    elif row.user != job.customer:
        yield Discrepancy(DiscrepancyKind.UNIDENTIFIED, job_id, row.slurm_id)
    elif job.is_final:
        if _over(job, snapshot):
            yield Discrepancy(
                DiscrepancyKind.ORPHAN_RUNNING,
                job_id,
                row.slurm_id,
                cancel=row.slurm_id,
            )
    elif job.slurm_id not in (None, row.slurm_id):
        cancel = None
        if _is_live(job, snapshot) or snapshot.confirmed_by_earlier_sweep(
            DiscrepancyKind.DUPLICATE, job_id, row.slurm_id
        ):
            cancel = row.slurm_id
        yield Discrepancy(
            DiscrepancyKind.DUPLICATE, job_id, row.slurm_id, cancel=cancel
        )


def _is_live(job: JobSummary, snapshot: Snapshot) -> bool:
    """Whether SLURM lists the job, live, under the ledger's id. The supervisor never
    submits such a job once more.
    """
    row = row_of(job, snapshot.rows)
    return row is not None and is_live_row(row)


def _unknown_to_the_ledger(
    job_id: JobId, row: SqueueRow, snapshot: Snapshot
) -> Iterator[Discrepancy]:
    """A SLURM job with our comment, named after a job on chain that the ledger does not
    know.
    """
    on_chain = snapshot.on_chain(job_id)
    if on_chain is None or job_id in snapshot.claims:
        return
    parties = on_chain.provider, on_chain.customer
    ours = parties == (snapshot.provider, row.user)
    confirmed = job_id not in snapshot.unconfirmed_on_chain
    if ours and confirmed and on_chain.status.is_final:
        yield Discrepancy(
            DiscrepancyKind.ORPHAN_RUNNING, job_id, row.slurm_id, cancel=row.slurm_id
        )
    else:
        yield Discrepancy(DiscrepancyKind.UNIDENTIFIED, job_id, row.slurm_id)


def _over(job: JobSummary, snapshot: Snapshot) -> bool:
    """Whether the contract expects nothing more of this job from us."""
    on_chain = snapshot.on_chain(job.job_id)
    if on_chain is None or job.job_id in snapshot.unconfirmed_on_chain:
        return False
    return not is_active_job_of(on_chain, job.provider)


# --- the ledger itself ----------------------------------------------------------------


def _missing_effects(job: JobSummary) -> Iterator[Discrepancy]:
    """Effects that the job's state requires and that are not open. A parked effect is
    left to the operator.
    """
    required = set(STANDING_EFFECTS[job.state])
    if job.state is State.ENDED and job.may_run_again:
        required = {EffectKind.CANCEL}
        if EffectKind.CANCEL in job.parked:  # its report must not wait for the operator
            yield Discrepancy(
                DiscrepancyKind.EFFECT_MISSING,
                job.job_id,
                job.slurm_id,
                (RequeueNotForbidden(),),
            )
    if (job.state, job.chain_status) == (State.RUNNING, ChainStatus.SCHEDULED):
        required.add(EffectKind.REPORT)
    must_end = job.cancel_requested or job.stopped
    if must_end and job.state in IN_SLURM:
        required.add(EffectKind.CANCEL)
    for kind in sorted(required - job.open):
        yield Discrepancy(
            DiscrepancyKind.EFFECT_MISSING,
            job.job_id,
            job.slurm_id,
            (EffectMissing(kind),),
        )
