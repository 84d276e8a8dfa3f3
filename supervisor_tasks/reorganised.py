"""What a reorganisation of the chain makes of a job. Pure.

The only rules that take back what the contract was heard to say. What SLURM did is never taken back: an outcome stays, an id
stays, and a job that may be in SLURM is looked for and not submitted again.
"""

from dataclasses import replace

from supervisor_tasks.effects import limit_to_apply, look, stop_slurm
from supervisor_tasks.events import Claimed, Reorganised
from supervisor_tasks.job import ChainStatus, Effect, Job, Kind, State, TopUp, finished, path_to_goal, unfit

LAST_LOG = 2**31 - 1  # behind all logs of a block

Next = tuple[Job, tuple[Effect, ...]]


def reorganised(job: Job, event: Reorganised) -> Next:
    """The contract's words above the fork are void; what it says now counts."""
    if event.until is None and event.seen < job.chain_at[0]:
        return job, ()  # something newer was heard; the question is asked again
    back = _without_lost_words(job, event)
    if event.status.cold:
        return _cold(back, event.status)
    if event.ours and event.status >= ChainStatus.SCHEDULED:
        return _ours(back, event)
    return _not_ours(back, event)


def claimed_again(job: Job, event: Claimed) -> Next:
    """The contract gave us a job once more whose claim a reorganisation had taken away: the journey goes on where it is,
    under the new claim. What never reached SLURM begins anew. Another job under the same id is given back.
    """
    again = replace(
        job,
        claim_key=event.claim_key,
        chain_at=event.at,
        chain_status=ChainStatus.SCHEDULED,
        time_limit_min=event.time_limit_min,
        # Of a job that had been given back nothing is in doubt any more: what was is lost.
        top_ups=job.top_ups if job.doubt_until is not None else _certain(job),
    )
    again = replace(again, doubt_until=job.doubt_until if _doubtful(again) else None)
    if (job.customer, job.definition) != (event.customer, event.definition):
        given_back = replace(again, state=State.REFUSED, doubt_until=None)
        return given_back, (Effect(Kind.REFUSE), *stop_slurm(job))
    return _go_on(_begun_anew(again) if _never_begun(again) else again)


def _never_begun(job: Job) -> bool:
    """Whether it ended because nobody gave us its script: the service does not know who has lost the claim."""
    unknown = not job.has_script and job.slurm_id is None and not job.cancel_requested
    return unknown and unfit(job.definition, job.time_limit_min) is None


def _begun_anew(job: Job) -> Job:
    return replace(job, state=State.CLAIMED, outcome=None, message="", looks=0)


def _without_lost_words(job: Job, event: Reorganised) -> Job:
    """The job as if nothing above the fork had been heard. Top-ups that were heard there are in doubt, or lost."""
    top_ups = _certain(job) if event.until is None else tuple(_doubted(top_up, event.fork) for top_up in job.top_ups)
    back = replace(
        job,
        chain_at=(event.seen, LAST_LOG),
        heard_block=event.seen,
        top_ups=top_ups,
        cancel_requested=job.cancel_requested and event.cancel_requested,
    )
    return replace(back, doubt_until=event.until if _doubtful(back) else None)


def _cold(job: Job, status: ChainStatus) -> Next:
    if job.state is State.REFUSED and job.chain_status < ChainStatus.SCHEDULED:
        return job, ()  # somebody else's end
    return replace(job, state=State.SETTLED, chain_status=status, doubt_until=None), stop_slurm(job)


def _ours(job: Job, event: Reorganised) -> Next:
    return _go_on(replace(job, chain_status=event.status))


def _not_ours(job: Job, event: Reorganised) -> Next:
    """The claim is in a lost block. For a while it may come back; after that the job is somebody else's."""
    given_back = job.state is State.REFUSED and finished(job)
    status = event.status if event.status < ChainStatus.SCHEDULED else ChainStatus.PENDING
    if given_back:
        return replace(job, chain_status=status, doubt_until=None), ()
    if event.until is None:
        lost = replace(job, state=State.REFUSED, chain_status=status, doubt_until=None)
        return lost, stop_slurm(job)
    waiting = replace(_where_it_was(job), chain_status=status, doubt_until=event.until)
    return waiting, _work_in_slurm(waiting)


def _go_on(job: Job) -> Next:
    """The job is ours: what is to be done where it stands."""
    job = _where_it_was(job)
    report = (Effect(Kind.REPORT),) if path_to_goal(job) else ()
    wanted = {
        State.CLAIMED: (Effect(Kind.FETCH),),
        State.READY: (Effect(Kind.SUBMIT),),
        State.REFUSED: (Effect(Kind.REFUSE),),
    }
    return job, (*wanted.get(job.state, ()), *report, *_work_in_slurm(job))


def _work_in_slurm(job: Job) -> tuple[Effect, ...]:
    if job.state is State.SUBMITTING:
        return (Effect(Kind.SUBMIT),)
    return (look(job), *limit_to_apply(job)) if job.state in (State.QUEUED, State.RUNNING) else ()


def _where_it_was(job: Job) -> Job:
    """A job that the contract had ended, or had taken from us, stands where SLURM has it. Of one without an id it is not
    known that SLURM does not have it: it is looked for.
    """
    if job.state not in (State.SETTLED, State.REFUSED) or _rejected(job):
        return job
    if job.outcome is not None:
        return replace(job, state=State.ENDED)
    if job.slurm_id is not None:
        return replace(job, state=State.QUEUED, looks=0)
    return replace(job, state=State.SUBMITTING if job.has_script else State.CLAIMED, looks=0)


def _rejected(job: Job) -> bool:
    """Whether it was given back because SLURM would not take it."""
    return job.state is State.REFUSED and job.slurm_id is None and bool(job.message)


def _doubted(top_up: TopUp, fork: int) -> TopUp:
    return replace(top_up, block=None) if top_up.block is not None and top_up.block > fork else top_up


def _certain(job: Job) -> tuple[TopUp, ...]:
    return tuple(top_up for top_up in job.top_ups if top_up.block is not None)


def _doubtful(job: Job) -> bool:
    return any(top_up.block is None for top_up in job.top_ups)
