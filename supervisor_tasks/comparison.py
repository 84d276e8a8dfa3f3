"""Ledger, contract and SLURM side by side: what does not fit together, and what is done about it. Pure.

Each finding carries events for the job, of which `advance` has the last word, or a SLURM job to cancel, or nothing: then it
is for people. What cannot be seen is not compared: "cannot see" is not "gone". A doubt that would end a job, or take it from
SLURM, counts only when it is seen again after a while.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from supervisor_tasks.events import (
    Adopted,
    ChainSaw,
    Event,
    Overlooked,
    RunsAfterItsEnd,
    SlurmLost,
    SubmissionForgotten,
)
from supervisor_tasks.job import ChainStatus, JobId, Kind, SlurmId, State
from supervisor_tasks.jobs.size_rules import excesses
from supervisor_tasks.known import Known, OnChain
from supervisor_tasks.reorganised import LAST_LOG
from supervisor_tasks.slurm.listing import Listed
from supervisor_tasks.slurm.output import Seen
from supervisor_tasks.slurm.states import Phase
from supervisor_tasks.view import (
    BEFORE_SLURM,
    IN_SLURM,
    Found,
    Trace,
    View,
    claimed,
    doubt,
    has_our_mark,
    is_behind,
    is_certain,
    is_claimed,
    is_row_of,
    listed_id,
    live,
    missing,
    never_ran,
    never_seen,
    row_of,
    status_of,
)

STANDING_EFFECT = {
    State.CLAIMED: Kind.FETCH,
    State.READY: Kind.SUBMIT,
    State.SUBMITTING: Kind.SUBMIT,
    State.QUEUED: Kind.WITNESS,
    State.RUNNING: Kind.WITNESS,
    State.ENDED: Kind.REPORT,
    State.REFUSED: Kind.REFUSE,
}
LOST_REASON = "SLURM does not know the job any more, and nobody knows how it ended"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not fit. `cancel` is a SLURM job that the ledger's effects do not reach."""

    kind: Found
    job_id: JobId
    slurm_id: SlurmId | None = None
    events: tuple[Event, ...] = ()
    cancel: SlurmId | None = None


def doubts(view: View, findings: Sequence[Finding]) -> dict[str, float]:
    """What is to be remembered until the next sweep, with the seconds since it was first seen. What could not be looked at
    stays in doubt as it was.
    """
    kinds = dict.fromkeys((Found.MISSING, Found.LOST, Found.HELD, Found.CONTRADICTED), Found.MISSING)
    kinds[Found.NOT_OURS] = Found.NOT_OURS
    now = [doubt(kinds[finding.kind], finding.job_id) for finding in findings if finding.kind in kinds]
    now += [doubt(found.kind, found.job_id, found.slurm_id) for found in findings if found.kind is Found.DOUBLE]
    kept = [name for name in view.suspects if name.startswith(Found.NOT_OURS) and view.chain is None]
    of_slurm = (Found.MISSING, Found.DOUBLE)
    kept += [name for name in view.suspects if name.startswith(of_slurm) and view.slurm is None]
    kept += [doubt(Found.MISSING, job.job_id) for job in missing(view) if job.job_id not in view.asked]
    return {name: view.suspects.get(name, 0.0) for name in now} | {
        name: view.suspects[name] for name in kept if name in view.suspects
    }


def held_now(
    view: View, findings: Sequence[Finding], before: Mapping[JobId, SlurmId | None]
) -> dict[JobId, SlurmId | None]:
    """The jobs that the operator is to decide on; one that was held `before` stays so as long as it is in doubt."""
    doubted = doubts(view, [finding for finding in findings if finding.kind is not Found.LOST])
    kept = {job_id: slurm_id for job_id, slurm_id in before.items() if doubt(Found.MISSING, job_id) in doubted}
    held = (finding for finding in findings if finding.kind in (Found.HELD, Found.CONTRADICTED))
    return kept | {finding.job_id: finding.slurm_id for finding in held}


def compare(view: View) -> list[Finding]:
    """All that does not fit."""
    chain = list(_on_chain(view))
    settled = {finding.job_id for finding in chain if finding.kind in (Found.COLD_ON_CHAIN, Found.NOT_OURS)}
    hot = [job for job in view.jobs.values() if not job.finished and job.job_id not in settled]
    slurm = list(_in_slurm(view, hot)) if view.slurm is not None else []
    busy = {finding.job_id for finding in chain + slurm if finding.events}
    return chain + slurm + [found for job in hot if job.job_id not in busy for found in _unattended(job)]


# --- the contract -----------------------------------------------------------------------------------------------------


def _on_chain(view: View) -> Iterator[Finding]:
    if view.chain is None:
        return
    for job in view.jobs.values():
        if not job.finished and job.chain_block <= view.block:  # else the node that answered is behind
            yield from _by_contract(job, view.chain.get(job.job_id), view)
    for job_id in view.others:
        if job_id not in view.jobs and claimed(job_id, view):
            yield Finding(Found.ANOTHERS, job_id)


def _by_contract(job: Known, standing: OnChain | None, view: View) -> Iterator[Finding]:
    if standing is None:
        yield Finding(Found.NOT_ON_CHAIN, job.job_id)
    elif standing.provider != job.provider or standing.status < ChainStatus.SCHEDULED:
        given_back = ChainSaw(ChainStatus.PENDING, at=(view.block, LAST_LOG))
        again = view.again(Found.NOT_OURS, job.job_id) and view.scanned
        yield Finding(Found.NOT_OURS, job.job_id, events=(given_back,) if again else ())
    elif standing.status.cold:
        yield Finding(Found.COLD_ON_CHAIN, job.job_id, job.slurm_id, (ChainSaw(standing.status),))
    elif standing.status > job.chain_status or is_behind(job, view):
        yield Finding(Found.AHEAD_ON_CHAIN, job.job_id, events=_catch_up(job, view))


def _catch_up(job: Known, view: View) -> tuple[Event, ...]:
    """It ran, as the contract knows; a ledger that is about to submit it was restored from a backup."""
    saw = ChainSaw(ChainStatus.RUNNING)
    if job.state not in BEFORE_SLURM:
        return (saw,)
    if view.slurm is None or view.remembered is None:
        return ()  # nothing is decided without SLURM: next time
    return saw, Adopted(listed_id(job.job_id, job.customer, view) or view.remembered.get(job.job_id))


# --- SLURM ------------------------------------------------------------------------------------------------------------


def _in_slurm(view: View, hot: Sequence[Known]) -> Iterator[Finding]:
    assert view.slurm is not None  # noqa: S101
    for job in hot:
        row = row_of(job, view.slurm)
        if row is None or job.state not in IN_SLURM:
            continue
        if row.seen.phase is Phase.ENDED:  # also of a parked one: it is what the operator waits for, and soon forgotten
            yield Finding(Found.LOST_END, job.job_id, row.slurm_id, (Overlooked(Kind.WITNESS),))
        elif _lost_a_top_up(job, row):
            yield Finding(Found.LIMIT_LOST, job.job_id, row.slurm_id, (Overlooked(Kind.TOP_UP),))
        elif live(row) and not job.stopped and Kind.WITNESS not in job.parked:
            yield from _not_as_paid(job, row)
    adopted = list(_adoptions(view, hot))
    yield from adopted
    here = {job.job_id for job in hot} - {finding.job_id for finding in adopted}
    yield from _held_back(view, [found for job in missing(view) if job.job_id in here for found in _absent(job, view)])
    yield from _first_seen(view)
    yield from _superfluous(view)


def _not_as_paid(job: Known, row: Listed) -> Iterator[Finding]:
    """It has more than was paid for, or a run that the ledger does not know: the witness looks at once, and decides."""
    if job.slurm_submit_s not in (None, row.submit_s):
        yield Finding(Found.RUNS_AGAIN, job.job_id, row.slurm_id, (Overlooked(Kind.WITNESS),))
    elif job.paid is not None and row.seen.size is not None and excesses(row.seen.size, job.paid):
        yield Finding(Found.MORE_THAN_PAID, job.job_id, row.slurm_id, (Overlooked(Kind.WITNESS),))


def _lost_a_top_up(job: Known, row: Listed) -> bool:
    """slurmctld was killed before it had saved the limit that it was given. Any other lower limit is the owner's own wish."""
    return live(row) and row.limit_min in job.earlier_limits_min and Kind.TOP_UP not in job.open


def _absent(job: Known, view: View) -> Iterator[Finding]:
    """SLURM does not list it. That counts when accounting, if there is any, does not know it either."""
    if job.heard or job.job_id not in view.asked:
        return
    seen = view.asked[job.job_id]
    if seen is not None:
        if seen.phase is Phase.ENDED:
            yield Finding(Found.LOST_END, job.job_id, job.slurm_id, (Overlooked(Kind.WITNESS),))
        elif not _is_listed(seen, view):
            again = view.again(Found.MISSING, job.job_id)
            yield Finding(Found.CONTRADICTED if again else Found.MISSING, job.job_id, job.slurm_id)
    elif is_certain(job, view) and job.job_id not in view.told:
        yield _gone(job, view)
    else:
        yield Finding(Found.MISSING, job.job_id, job.slurm_id, (Overlooked(Kind.WITNESS),))


def _is_listed(seen: Seen, view: View) -> bool:
    """Whether a job that was renamed, or whose user cannot be named at the moment, was recognised in SLURM's list."""
    row = (view.slurm or {}).get(seen.slurm_id)
    return row is not None and row.seen == seen


def _gone(job: Known, view: View) -> Finding:
    """For good, unless its end may be in a spool that nobody delivers. What never ran is submitted again."""
    if view.in_touch_s is None:
        return Finding(Found.HELD, job.job_id, job.slurm_id)
    if never_ran(job) and job.slurm_id is not None:
        trace = view.traces.get(job.job_id)
        if trace is None:
            return Finding(Found.MISSING, job.job_id, job.slurm_id)  # not looked for yet
        if trace is Trace.NONE and not view.lost_its_memory:
            return Finding(Found.FORGOTTEN, job.job_id, job.slurm_id, (SubmissionForgotten(job.slurm_id),))
        if trace is not Trace.SOME:
            return Finding(Found.HELD, job.job_id, job.slurm_id)
    return Finding(Found.LOST, job.job_id, job.slurm_id, (SlurmLost(job.slurm_id, LOST_REASON),))


def _held_back(view: View, found: Sequence[Finding]) -> list[Finding]:
    """Many at once, or an empty list: SLURM has lost its memory, or it is another SLURM. The jobs may run all the same."""
    explained = {finding.job_id for finding in found if finding.kind is Found.LOST_END}
    explained |= {job_id for job_id, seen in view.asked.items() if seen is not None and _is_listed(seen, view)}
    absent = sum(job.job_id not in explained for job in missing(view))
    if not view.too_many(absent):
        return list(found)
    return [
        replace(finding, kind=Found.HELD, events=()) if finding.kind is Found.LOST else finding for finding in found
    ]


def _adoptions(view: View, hot: Sequence[Known]) -> Iterator[Finding]:
    """A job that was not submitted, as the ledger thinks, and that SLURM has. In SUBMITTING the submission itself looks."""
    for job in hot:
        unknown = job.slurm_id is None and job.state in (State.CLAIMED, State.READY, *IN_SLURM)
        rows = view.named.get((job.job_id, job.customer), []) if unknown else []
        if rows and live(rows[0]):
            yield Finding(Found.ADOPTED, job.job_id, rows[0].slurm_id, (Adopted(rows[0].slurm_id),))


def _first_seen(view: View) -> Iterator[Finding]:
    """Claimed before this ledger existed. If SLURM has it, it is adopted and not submitted again; so it is when it ran."""
    if view.remembered is None:
        return
    for job_id in never_seen(view):
        claim, running = view.claims[job_id], status_of(job_id, view) is ChainStatus.RUNNING
        slurm_id = listed_id(job_id, claim.customer, view) or view.remembered.get(job_id)
        events: tuple[Event, ...] = (claim,)
        if running:
            events += (ChainSaw(ChainStatus.RUNNING),)
        if running or slurm_id is not None:
            events += (Adopted(slurm_id),)
        yield Finding(Found.NEVER_SEEN, job_id, slurm_id, events)


def _superfluous(view: View) -> Iterator[Finding]:
    """Live SLURM jobs that should not be. Only what is certainly ours is cancelled."""
    assert view.slurm is not None  # noqa: S101
    by_id = dict[SlurmId | None, list[Known]]()  # more than one where slurmctld has given an id again
    for job in view.jobs.values():
        by_id.setdefault(job.slurm_id, []).append(job)
    for row in view.slurm.values():
        if not live(row):
            continue
        of_id = by_id.get(row.slurm_id, [])
        ended = [job for job in of_id if _runs_after_its_end(row, job)]
        known = [job for job in of_id if job not in ended and _is_known_as(row, job)]
        if ended and not known:
            last = max(ended, key=lambda job: job.slurm_submit_s or 0)
            yield Finding(Found.RUNS_AFTER_END, last.job_id, row.slurm_id, (RunsAfterItsEnd(row.slurm_id),))
        elif known:  # what one of them is to be ended for, another may be running for
            if all(job.finished for job in known):
                yield from _runs_on(next((job for job in known if row.name == job.job_id), known[0]), row, view)
        elif has_our_mark(row, view.comment):
            yield from _marked(row, view)


def _runs_after_its_end(row: Listed, job: Known) -> bool:
    """Whether it was requeued since the end that the ledger knows, and nothing is under way that ends it. Its owner may have
    changed its name; that it is the job, and not another one with its id, is looked at before it is cancelled.
    """
    if job.state not in (State.ENDED, State.SETTLED) or Kind.CANCEL in job.open or job.slurm_submit_s is None:
        return False
    return row.user == job.customer and row.seen.restarts > 0 and row.submit_s > job.slurm_submit_s


def _is_known_as(row: Listed, job: Known) -> bool:
    """Also one that nobody has seen yet, and of which only the id and the owner speak, as long as it is hot."""
    may_be = not job.finished and job.slurm_submit_s is None and row.user == job.customer
    return is_row_of(row, job) or may_be


def _runs_on(job: Known, row: Listed, view: View) -> Iterator[Finding]:
    """The SLURM job that the ledger knows, while the contract is cold."""
    if job.finished and _over(job, view) and Kind.CANCEL not in job.open:
        yield Finding(Found.RUNS_ON, job.job_id, row.slurm_id, (Overlooked(Kind.CANCEL),))


def _marked(row: Listed, view: View) -> Iterator[Finding]:
    """A SLURM job with our mark that the ledger does not know by its id."""
    job_id = JobId(row.name)
    job = view.jobs.get(job_id)
    if job is None:
        standing = None if view.chain is None else view.chain.get(job_id)
        if standing is None or job_id in view.claims:
            return
        ours = standing.provider == view.provider and standing.customer == row.user
        cancel = row.slurm_id if ours and standing.status.cold else None
        yield Finding(Found.RUNS_ON if cancel else Found.STRAY, job_id, row.slurm_id, cancel=cancel)
    elif row.user != job.customer:
        yield Finding(Found.STRAY, job_id, row.slurm_id)
    elif job.finished:
        if _over(job, view):
            yield Finding(Found.RUNS_ON, job_id, row.slurm_id, cancel=row.slurm_id)
    elif job.slurm_id not in (None, row.slurm_id):
        again = view.again(Found.DOUBLE, job_id, row.slurm_id)
        yield Finding(Found.DOUBLE, job_id, row.slurm_id, cancel=row.slurm_id if again else None)


def _over(job: Known, view: View) -> bool:
    """Whether the contract wants no more of it from us."""
    standing = None if view.chain is None else view.chain.get(job.job_id)
    return standing is not None and not is_claimed(standing, job.provider)


# --- the ledger itself ------------------------------------------------------------------------------------------------


def _unattended(job: Known) -> Iterator[Finding]:
    """What should be open by the job's state and is not; what is parked is the operator's."""
    wanted = {STANDING_EFFECT[job.state]} if job.state in STANDING_EFFECT else set()
    if job.state is State.RUNNING and job.chain_status is ChainStatus.SCHEDULED:
        wanted.add(Kind.REPORT)
    if (job.cancel_requested or job.stopped) and job.state in IN_SLURM:
        wanted.add(Kind.CANCEL)
    for kind in sorted(wanted - job.open):
        yield Finding(Found.NOBODY_AT_WORK, job.job_id, job.slurm_id, (Overlooked(kind),))
