"""What a reorganisation of the chain makes of a job. Pure.

Only these rules take back what the contract reported. What SLURM did is never taken
back: an outcome stays, an id stays, and a job that may be in SLURM is searched for and
not submitted again.
"""

from dataclasses import replace

from supervisor_tasks.jobs.effect_timing import limit_to_apply, next_poll, stop_slurm
from supervisor_tasks.jobs.events import Claimed, Reorganised
from supervisor_tasks.jobs.model import (
    IN_SLURM,
    ChainStatus,
    Effect,
    EffectKind,
    Job,
    Next,
    State,
    TopUp,
    is_final,
    pending_reports,
    validation_error,
)

LAST_LOG = 2**31 - 1  # a log index after all logs of a block


def reorganised(job: Job, event: Reorganised) -> Next:
    """The job after a reorganisation: events above the fork are void, and what the
    contract answers now counts.
    """
    if event.until is None and event.seen < job.chain_position[0]:
        # the ledger has a newer event already; the contract is asked again
        return job, ()
    rewound = _without_lost_events(job, event)
    if event.status.is_final:
        return _ended_on_chain(rewound, event.status)
    if event.ours and event.status >= ChainStatus.SCHEDULED:
        return _continue(replace(rewound, chain_status=event.status))
    return _not_ours(rewound, event)


def claimed_again(job: Job, event: Claimed) -> Next:
    """The job after a new claim of it; a reorganisation had taken the old claim away.

    The job goes on from its present state, under the new claim. If it never reached
    SLURM, it begins again. If the new claim has another definition or customer under
    the same id, the job is given back.
    """
    top_ups = job.top_ups
    if job.reorg_deadline_block is None:
        # the job had been given back: the new claim's minutes contain what was added
        # before, and what was in doubt then is lost
        top_ups = ()
    again = replace(
        job,
        claim_key=event.claim_key,
        claim_position=event.at,
        chain_position=event.at,
        chain_status=ChainStatus.SCHEDULED,
        time_limit_min=event.time_limit_min,
        top_ups=top_ups,
    )
    again = _without_needless_deadline(again)
    if (job.customer, job.definition) != (event.customer, event.definition):
        given_back = replace(again, state=State.REFUSED, reorg_deadline_block=None)
        return given_back, (Effect(EffectKind.RETURN_JOB), *stop_slurm(job))
    if _never_begun(again):
        again = replace(
            again, state=State.CLAIMED, outcome=None, status_message="", poll_count=0
        )
    return _continue(again)


def claim_mined_again(job: Job, event: Claimed) -> Next:
    """The job after its claim is read again, while the contract had shown the job as
    ours all the time. The other blocks may have the customer's top-up before the claim:
    then the claim's minutes contain it, and it is no longer in doubt.
    """
    if (job.customer, job.definition) != (event.customer, event.definition):
        return claimed_again(job, event)
    grown_min = event.time_limit_min - job.time_limit_min
    top_ups = list[TopUp]()
    for top_up in job.top_ups:
        if top_up.block is not None:
            is_contained = top_up.block <= event.at[0]
        else:
            is_contained = top_up.minutes <= grown_min
            grown_min -= top_up.minutes if is_contained else 0
        if not is_contained:
            top_ups.append(top_up)
    placed = replace(
        job,
        claim_position=event.at,
        time_limit_min=event.time_limit_min,
        top_ups=tuple(top_ups),
    )
    placed = _without_needless_deadline(placed)
    return placed, limit_to_apply(placed)


def _never_begun(job: Job) -> bool:
    """Whether the job ended because its script was rejected: the service gives scripts
    only to the claim's provider.
    """
    if job.has_script or job.slurm_id is not None:
        return False
    if job.cancel_requested or _ended_by_operator(job):
        return False
    return validation_error(job.definition, job.time_limit_min) is None


def _ended_by_operator(job: Job) -> bool:
    """Whether the operator settled or cancelled the job before it had a script. Only
    the operator's cancellation has a reason.
    """
    if job.settled_by_operator:
        return True
    if job.outcome is None or job.outcome.status is not ChainStatus.CANCELLED:
        return False
    return bool(job.outcome.reason)


def _without_lost_events(job: Job, event: Reorganised) -> Job:
    """The job without the events above the fork. Top-ups from these blocks are in
    doubt, or lost.
    """
    top_ups = _certain_top_ups(job)
    if event.until is not None:
        top_ups = tuple(_doubted(top_up, event.fork) for top_up in job.top_ups)
    rewound = replace(
        job,
        # a claim above the fork may come back in an earlier block, before its top-ups
        claim_position=min(job.claim_position, (event.fork, LAST_LOG)),
        chain_position=(event.seen, LAST_LOG),
        last_event_block=event.seen,
        top_ups=top_ups,
        cancel_requested=job.cancel_requested and event.cancel_requested,
        reorg_deadline_block=event.until,
    )
    return _without_needless_deadline(rewound)


def _without_needless_deadline(job: Job) -> Job:
    """The job, without a deadline if none of its top-ups is in doubt."""
    if any(top_up.block is None for top_up in job.top_ups):
        return job
    return replace(job, reorg_deadline_block=None)


def _ended_on_chain(job: Job, status: ChainStatus) -> Next:
    if _is_given_back(job):
        return job, ()  # the end of another provider's job
    return replace(
        job, state=State.SETTLED, chain_status=status, reorg_deadline_block=None
    ), stop_slurm(job)


def _not_ours(job: Job, event: Reorganised) -> Next:
    """The job whose claim is in a lost block. For a while the claim can come back;
    after that the job is not ours.
    """
    status = event.status
    if status >= ChainStatus.SCHEDULED:
        status = ChainStatus.PENDING  # the contract gave it to another provider
    if _is_given_back(job):
        return replace(job, chain_status=status, reorg_deadline_block=None), ()
    if event.until is None:
        lost = replace(
            job, state=State.REFUSED, chain_status=status, reorg_deadline_block=None
        )
        return lost, stop_slurm(job)
    waiting = replace(
        _as_slurm_has_it(job), chain_status=status, reorg_deadline_block=event.until
    )
    return waiting, _work_in_slurm(waiting)


def _is_given_back(job: Job) -> bool:
    return job.state is State.REFUSED and is_final(job)


def _continue(job: Job) -> Next:
    """The job is ours: open the effects that its state needs."""
    job = _as_slurm_has_it(job)
    wanted = {
        State.CLAIMED: (Effect(EffectKind.FETCH),),
        State.READY: (Effect(EffectKind.SUBMIT),),
        State.REFUSED: (Effect(EffectKind.RETURN_JOB),),
    }
    effects = [*wanted.get(job.state, ())]
    if pending_reports(job):
        effects.append(Effect(EffectKind.REPORT))
    return job, (*effects, *_work_in_slurm(job))


def _work_in_slurm(job: Job) -> tuple[Effect, ...]:
    if job.state is State.SUBMITTING:
        return (Effect(EffectKind.SUBMIT),)
    if job.state in IN_SLURM:
        return (next_poll(job), *limit_to_apply(job))
    return ()


def _as_slurm_has_it(job: Job) -> Job:
    """The job in the state that SLURM has it in, after the contract had ended it or had
    taken it from us. A job without an id may still be in SLURM: it is searched for.
    """
    if job.state not in (State.SETTLED, State.REFUSED) or _rejected(job):
        return job
    if job.outcome is not None:
        return replace(job, state=State.ENDED)
    if job.slurm_id is not None:
        return replace(job, state=State.QUEUED, poll_count=0)
    if job.has_script:
        return replace(job, state=State.SUBMITTING, poll_count=0)
    return replace(job, state=State.CLAIMED, poll_count=0)


def _rejected(job: Job) -> bool:
    """Whether the job was given back because SLURM rejected it."""
    if job.state is not State.REFUSED or job.slurm_id is not None:
        return False
    return bool(job.status_message)


def _doubted(top_up: TopUp, fork: int) -> TopUp:
    if top_up.block is not None and top_up.block > fork:
        return replace(top_up, block=None)
    return top_up


def _certain_top_ups(job: Job) -> tuple[TopUp, ...]:
    return tuple(top_up for top_up in job.top_ups if top_up.block is not None)
