"""Ledger, contract and SLURM side by side: what does not fit together, and what is done about it. Pure.

Each finding carries events for the job, of which `advance` has the last word, or a SLURM job to cancel, or nothing: then it
is for people. What cannot be seen is not compared: "cannot see" is not "gone". A doubt that would end a job, or take it from
SLURM, counts only when it is seen again after a while.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from supervisor_tasks.events import Adopted, ChainSaw, Claimed, Event, Overlooked, SlurmLost, SubmissionForgotten
from supervisor_tasks.job import Address, ChainStatus, JobId, Kind, SlurmId, State
from supervisor_tasks.known import Known, OnChain
from supervisor_tasks.slurm.listing import Listed
from supervisor_tasks.slurm.output import Seen
from supervisor_tasks.slurm.states import Phase

FEW = 3  # jobs that SLURM may lose at once without it being SLURM's memory that is lost
MANY = 0.1  # and so may this part of those that it should have
JOB_NAME = re.compile(r"0x[0-9a-f]{64}")
IN_SLURM = (State.QUEUED, State.RUNNING)
BEFORE_SLURM = (State.CLAIMED, State.READY, State.SUBMITTING)
STANDING_EFFECT = {
    State.CLAIMED: Kind.FETCH,
    State.READY: Kind.SUBMIT,
    State.SUBMITTING: Kind.SUBMIT,
    State.QUEUED: Kind.WITNESS,
    State.RUNNING: Kind.WITNESS,
    State.ENDED: Kind.REPORT,
    State.REFUSED: Kind.REFUSE,
}
_NOT_ASKED = object()
LOST_REASON = "SLURM does not know the job any more, and nobody knows how it ended"


class Found(StrEnum):
    """What a sweep can find."""

    COLD_ON_CHAIN = "cold_on_chain"  # the contract has decided, and nobody told the ledger
    NOT_OURS = "not_ours"  # the contract has it pending, or with another provider
    AHEAD_ON_CHAIN = "ahead_on_chain"  # the contract has it running, the ledger does not know that
    NOT_ON_CHAIN = "not_on_chain"  # the contract has no such job: nothing is done
    LOST_END = "lost_end"  # SLURM has ended it, and nobody told the ledger
    MISSING = "missing"  # SLURM does not know it; asked again in a while
    LOST = "lost"  # SLURM did not know it before either: panicked
    FORGOTTEN = "forgotten"  # slurmctld was killed before it had saved it, and it never ran: submitted again
    HELD = "held"  # too many are lost at once, or SLURM knows nothing at all: the operator decides
    CONTRADICTED = "contradicted"  # accounting has it running, slurmctld does not know it: the operator decides
    ADOPTED = "adopted"  # SLURM had it before the ledger knew
    ANOTHERS = "anothers"  # another ledger claimed it with our key: the operator may take it over
    NEVER_SEEN = "never_seen"  # claimed, and the ledger had never heard of it
    NOBODY_AT_WORK = "nobody_at_work"  # an effect that should be open is not
    RUNS_ON = "runs_on"  # SLURM still has it, the contract is cold: cancelled
    DOUBLE = "double"  # a second SLURM job: cancelled when it is seen again
    STRAY = "stray"  # looks like ours, and is not known well enough to be cancelled


class Trace(StrEnum):
    """What is left of a job that waited, and that SLURM does not know any more."""

    NONE = "none"  # slurmctld began anew after it was submitted, and nothing of it was ever seen anywhere
    SOME = "some"  # it may have run
    UNSURE = "unsure"  # nobody can tell, or it was forgotten too often


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not fit. `cancel` is a SLURM job that the ledger's effects do not reach."""

    kind: Found
    job_id: JobId
    slurm_id: SlurmId | None = None
    events: tuple[Event, ...] = ()
    cancel: SlurmId | None = None


@dataclass(frozen=True, kw_only=True)
class View:
    """What was seen. `jobs` are the ledger's hot jobs and those that SLURM's list points to, `claims` are old ones that were
    read from the chain's logs, or taken over; `others` are those of other ledgers, with the ledger's mark. None stands for a
    side that did not answer. `asked` is what SLURM and accounting said when asked for those that SLURM does not list: None is
    that nobody knows it, and a job of which nothing could be said is left out. `traces` are those of jobs that `waited`, as far
    as they were looked for. `remembered` is what scripts and accounting
    say of those that are `unlisted`; None when they did not answer. `suspects` are earlier doubts with the seconds since then,
    `steady_s` is how long slurmctld has been up.
    """

    provider: Address
    comment: str
    jobs: Mapping[JobId, Known]
    claims: Mapping[JobId, Claimed] = field(default_factory=dict)
    others: Mapping[JobId, str] = field(default_factory=dict)
    chain: Mapping[JobId, OnChain] | None = None
    block: int = 0
    slurm: Mapping[SlurmId, Listed] | None = None
    asked: Mapping[JobId, Seen | None] = field(default_factory=dict)
    traces: Mapping[JobId, Trace] = field(default_factory=dict)
    remembered: Mapping[JobId, SlurmId] | None = field(default_factory=dict)
    suspects: Mapping[str, float] = field(default_factory=dict)
    grace_s: float = 300.0
    steady_s: float = float("inf")

    def again(self, kind: Found, job_id: JobId, slurm_id: SlurmId | None = None) -> bool:
        """Whether the same was in doubt long enough ago."""
        return self.suspects.get(_doubt(kind, job_id, slurm_id), -1.0) >= self.grace_s

    @cached_property
    def named(self) -> dict[tuple[str, str], list[Listed]]:
        """SLURM's jobs by name and user: live ones first, then the oldest."""
        found = dict[tuple[str, str], list[Listed]]()
        for row in sorted((self.slurm or {}).values(), key=lambda row: (not live(row), row.slurm_id)):
            found.setdefault((row.name, row.user), []).append(row)
        return found


def _doubt(kind: Found, job_id: JobId, slurm_id: SlurmId | None = None) -> str:
    return f"{kind} {job_id}" if slurm_id is None else f"{kind} {job_id} {slurm_id}"


def doubts(view: View, findings: Sequence[Finding]) -> dict[str, float]:
    """What is to be remembered until the next sweep, with the seconds since it was first seen. What could not be looked at
    stays in doubt as it was.
    """
    kinds = dict.fromkeys((Found.MISSING, Found.LOST, Found.HELD, Found.CONTRADICTED), Found.MISSING)
    kinds[Found.NOT_OURS] = Found.NOT_OURS
    now = [_doubt(kinds[finding.kind], finding.job_id) for finding in findings if finding.kind in kinds]
    now += [_doubt(found.kind, found.job_id, found.slurm_id) for found in findings if found.kind is Found.DOUBLE]
    kept = [name for name in view.suspects if name.startswith(Found.NOT_OURS) and view.chain is None]
    of_slurm = (Found.MISSING, Found.DOUBLE)
    kept += [name for name in view.suspects if name.startswith(of_slurm) and view.slurm is None]
    kept += [_doubt(Found.MISSING, job.job_id) for job in missing(view) if job.job_id not in view.asked]
    return {name: view.suspects.get(name, 0.0) for name in now} | {
        name: view.suspects[name] for name in kept if name in view.suspects
    }


def held_now(
    view: View, findings: Sequence[Finding], before: Mapping[JobId, SlurmId | None]
) -> dict[JobId, SlurmId | None]:
    """The jobs that the operator is to decide on; one that was held `before` stays so as long as it is in doubt."""
    doubted = doubts(view, [finding for finding in findings if finding.kind is not Found.LOST])
    kept = {job_id: slurm_id for job_id, slurm_id in before.items() if _doubt(Found.MISSING, job_id) in doubted}
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


def missing(view: View) -> list[Known]:
    """The jobs that SLURM should have and does not list."""
    if view.slurm is None:
        return []
    return [
        job
        for job in view.jobs.values()
        if job.state in IN_SLURM and _row_of(job, view.slurm) is None and Kind.WITNESS not in job.parked
    ]


def waited(view: View) -> list[Known]:
    """The jobs that would be lost now, and that were never seen running: what is left of them is to be looked for."""
    absent = (job for job in missing(view) if view.asked.get(job.job_id, _NOT_ASKED) is None)
    return [job for job in absent if _never_ran(job) and not job.heard and _is_certain(job, view)]


def _never_ran(job: Known) -> bool:
    return job.state is State.QUEUED and job.chain_status is ChainStatus.SCHEDULED and job.slurm_id is not None


def _is_certain(job: Known, view: View) -> bool:
    """Whether it was missed long enough, by a slurmctld that has had the time to hear from its nodes, and they from it."""
    return view.again(Found.MISSING, job.job_id) and view.steady_s >= view.grace_s


def never_seen(view: View) -> list[JobId]:
    """Jobs of ours that are hot on chain, and that the ledger has never heard of."""
    return [job_id for job_id in view.claims if job_id not in view.jobs and claimed(job_id, view)]


def claimed(job_id: JobId, view: View) -> bool:
    """Whether the contract has the job hot and ours."""
    return view.chain is not None and _is_claimed(view.chain.get(job_id), view.provider)


def unlisted(view: View) -> dict[JobId, Address]:
    """The jobs, with their customers, that may have been in SLURM before the ledger knew of it, and are not in its list."""
    if view.slurm is None:
        return {}
    new = {job_id: view.claims[job_id].customer for job_id in never_seen(view)}
    restored = {job.job_id: job.customer for job in view.jobs.values() if _is_behind(job, view)}
    return {job_id: user for job_id, user in (new | restored).items() if _listed_id(job_id, user, view) is None}


def unexplained(view: View) -> list[Listed]:
    """The SLURM jobs of customers of `unlisted` jobs that may be one of these under another name: their scripts tell."""
    customers = set(unlisted(view).values())
    known = {job.slurm_id for job in view.jobs.values()}
    rows = (row for row in (view.slurm or {}).values() if row.user in customers and row.slurm_id not in known)
    return [row for row in rows if row.batch and (live(row) or _ran(row))]


def marked_names(slurm: Collection[Listed], comment: str) -> set[JobId]:
    """The jobs on chain that live SLURM jobs with our mark are named after."""
    return {JobId(row.name) for row in slurm if _has_our_mark(row, comment)}


def live(row: Listed) -> bool:
    """Whether SLURM runs it or will."""
    return row.seen.phase in (Phase.WAITING, Phase.RUNNING)


# --- the contract -------------------------------------------------------------------------------------------------------


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
        again = view.again(Found.NOT_OURS, job.job_id)
        yield Finding(Found.NOT_OURS, job.job_id, events=(ChainSaw(ChainStatus.PENDING),) if again else ())
    elif standing.status.cold:
        yield Finding(Found.COLD_ON_CHAIN, job.job_id, job.slurm_id, (ChainSaw(standing.status),))
    elif standing.status > job.chain_status:
        yield Finding(Found.AHEAD_ON_CHAIN, job.job_id, events=_catch_up(job, view))


def _catch_up(job: Known, view: View) -> tuple[Event, ...]:
    """It ran, as the contract knows; a ledger that is about to submit it was restored from a backup."""
    saw = ChainSaw(ChainStatus.RUNNING)
    if job.state not in BEFORE_SLURM:
        return (saw,)
    if view.slurm is None or view.remembered is None:
        return ()  # nothing is decided without SLURM: next time
    return saw, Adopted(_listed_id(job.job_id, job.customer, view) or view.remembered.get(job.job_id))


def _is_behind(job: Known, view: View) -> bool:
    """Whether the ledger is yet to submit what has run, as the contract knows."""
    return job.state in BEFORE_SLURM and _status(job.job_id, view) is ChainStatus.RUNNING


# --- SLURM --------------------------------------------------------------------------------------------------------------


def _in_slurm(view: View, hot: Sequence[Known]) -> Iterator[Finding]:
    assert view.slurm is not None  # noqa: S101
    for job in hot:
        row = _row_of(job, view.slurm)
        if row is not None and job.state in IN_SLURM and _ended_unheard(job, row):
            yield Finding(Found.LOST_END, job.job_id, row.slurm_id, (Overlooked(Kind.WITNESS),))
    adopted = list(_adoptions(view, hot))
    yield from adopted
    here = {job.job_id for job in hot} - {finding.job_id for finding in adopted}
    yield from _held_back(view, [found for job in missing(view) if job.job_id in here for found in _absent(job, view)])
    yield from _first_seen(view)
    yield from _superfluous(view)


def _ended_unheard(job: Known, row: Listed) -> bool:
    return row.seen.phase is Phase.ENDED and Kind.WITNESS not in job.parked


def _absent(job: Known, view: View) -> Iterator[Finding]:
    """SLURM does not list it. That counts when accounting, if there is any, does not know it either."""
    if job.heard or job.job_id not in view.asked:
        return
    seen = view.asked[job.job_id]
    if seen is not None:
        if seen.phase is Phase.ENDED:
            yield Finding(Found.LOST_END, job.job_id, job.slurm_id, (Overlooked(Kind.WITNESS),))
        else:
            again = view.again(Found.MISSING, job.job_id)
            yield Finding(Found.CONTRADICTED if again else Found.MISSING, job.job_id, job.slurm_id)
    elif _is_certain(job, view):
        yield _gone(job, view)
    else:
        yield Finding(Found.MISSING, job.job_id, job.slurm_id, (Overlooked(Kind.WITNESS),))


def _gone(job: Known, view: View) -> Finding:
    """For good. What never ran is submitted again."""
    if _never_ran(job) and job.slurm_id is not None:
        trace = view.traces.get(job.job_id)
        if trace is None:
            return Finding(Found.MISSING, job.job_id, job.slurm_id)  # not looked for yet
        if trace is Trace.NONE:
            return Finding(Found.FORGOTTEN, job.job_id, job.slurm_id, (SubmissionForgotten(job.slurm_id),))
        if trace is Trace.UNSURE:
            return Finding(Found.HELD, job.job_id, job.slurm_id)
    return Finding(Found.LOST, job.job_id, job.slurm_id, (SlurmLost(job.slurm_id, LOST_REASON),))


def _held_back(view: View, found: Sequence[Finding]) -> list[Finding]:
    """Many at once, or an empty list: SLURM has lost its memory, or it is another SLURM. The jobs may run all the same."""
    explained = {finding.job_id for finding in found if finding.kind is Found.LOST_END}
    absent = sum(job.job_id not in explained for job in missing(view))
    expected = sum(job.state in IN_SLURM for job in view.jobs.values())
    if view.slurm and absent <= max(FEW, MANY * expected):
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
        claim, running = view.claims[job_id], _status(job_id, view) is ChainStatus.RUNNING
        slurm_id = _listed_id(job_id, claim.customer, view) or view.remembered.get(job_id)
        events: tuple[Event, ...] = (claim,)
        if running:
            events += (ChainSaw(ChainStatus.RUNNING),)
        if running or slurm_id is not None:
            events += (Adopted(slurm_id),)
        yield Finding(Found.NEVER_SEEN, job_id, slurm_id, events)


def _listed_id(job_id: JobId, customer: Address, view: View) -> SlurmId | None:
    """The SLURM job by its name and user: one that lives, or one that ran."""
    rows = view.named.get((job_id, customer), [])
    return next((row.slurm_id for row in rows if live(row) or _ran(row)), None)


def _status(job_id: JobId, view: View) -> ChainStatus | None:
    standing = None if view.chain is None else view.chain.get(job_id)
    return None if standing is None else standing.status


def _superfluous(view: View) -> Iterator[Finding]:
    """Live SLURM jobs that should not be. Only what is certainly ours is cancelled."""
    assert view.slurm is not None  # noqa: S101
    by_id = dict[SlurmId | None, list[Known]]()  # more than one where slurmctld has given an id again
    for job in view.jobs.values():
        by_id.setdefault(job.slurm_id, []).append(job)
    for row in view.slurm.values():
        if not live(row):
            continue
        known = [job for job in by_id.get(row.slurm_id, ()) if _is_known_as(row, job)]
        if known:  # what one of them is to be ended for, another may be running for
            if all(job.finished for job in known):
                yield from _runs_on(next((job for job in known if row.name == job.job_id), known[0]), row, view)
        elif _has_our_mark(row, view.comment):
            yield from _marked(row, view)


def _is_known_as(row: Listed, job: Known) -> bool:
    return _is(row, job) and (row.name == job.job_id or not _may_be_another(job))


def _may_be_another(job: Known) -> bool:
    """Whether nothing but the id and the owner speak for it."""
    return job.finished and job.slurm_submit_s is None


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
    return standing is not None and not _is_claimed(standing, job.provider)


# --- the ledger itself --------------------------------------------------------------------------------------------------


def _unattended(job: Known) -> Iterator[Finding]:
    """What should be open by the job's state and is not; what is parked is the operator's."""
    wanted = {STANDING_EFFECT[job.state]} if job.state in STANDING_EFFECT else set()
    if job.state is State.RUNNING and job.chain_status is ChainStatus.SCHEDULED:
        wanted.add(Kind.REPORT)
    if job.cancel_requested and job.state in IN_SLURM:
        wanted.add(Kind.CANCEL)
    for kind in sorted(wanted - job.open):
        yield Finding(Found.NOBODY_AT_WORK, job.job_id, job.slurm_id, (Overlooked(kind),))


# --- rows ---------------------------------------------------------------------------------------------------------------


def _row_of(job: Known, slurm: Mapping[SlurmId, Listed]) -> Listed | None:
    """The job under the ledger's id."""
    row = slurm.get(job.slurm_id) if job.slurm_id is not None else None
    return row if row is not None and _is(row, job) else None


def _is(row: Listed, job: Known) -> bool:
    """SLURM uses ids again after a wrap, and after it lost its state. An owner can change the name, a requeue the time."""
    return row.user == job.customer and (row.name == job.job_id or job.slurm_submit_s in (None, row.submit_s))


def _ran(row: Listed) -> bool:
    """Whether it ended by itself: not rejected, and not cancelled under an earlier claim."""
    return row.seen.phase is Phase.ENDED and row.seen.state != "CANCELLED" and row.seen.reason != "BadConstraints"


def _has_our_mark(row: Listed, comment: str) -> bool:
    return row.comment == comment and JOB_NAME.fullmatch(row.name) is not None and live(row)


def _is_claimed(standing: OnChain | None, provider: Address) -> bool:
    """Whether the job is ours, and hot."""
    return (
        standing is not None
        and standing.provider == provider
        and standing.status in (ChainStatus.SCHEDULED, ChainStatus.RUNNING)
    )
