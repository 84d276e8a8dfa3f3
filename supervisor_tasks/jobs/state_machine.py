"""What each event makes of a job.

`advance` is the only place that decides. It is pure: whatever happened to a job arrives as an event, and the answer is the new
job and the effects (things to do) that follow from it. The ledger commits all three together.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from supervisor_tasks.effects import BEFORE_SECOND_SEARCH_S, FIRST_LOOK_S, limit_to_apply, look, stop_slurm
from supervisor_tasks.events import (
    Adopted,
    CalledBack,
    CancelRequested,
    Carried,
    ChainSaw,
    Claimed,
    EarlierRunsTold,
    Event,
    LimitApplied,
    MoreThanPaid,
    OperatorDenied,
    OperatorForgot,
    OperatorSettled,
    Overlooked,
    Recognised,
    Reorganised,
    RunsAfterItsEnd,
    ScriptFetched,
    ScriptUnavailable,
    SlurmEnded,
    SlurmLost,
    SlurmStarted,
    SlurmWaiting,
    SubmissionDenied,
    SubmissionForgotten,
    SubmitNotFound,
    SubmitNotRun,
    SubmitRejected,
    SubmitStarted,
    Submitted,
    SubmitUnclear,
    ToppedUp,
)
from supervisor_tasks.job import (
    RANK,
    ChainStatus,
    Effect,
    Job,
    Kind,
    Outcome,
    State,
    Stop,
    TopUp,
    closes,
    finished,
    unfit,
)
from supervisor_tasks.jobs.runs import Sighting, billed_s, is_used_up, seen, with_ends
from supervisor_tasks.reorganised import claimed_again, reorganised

REQUEUEABLE = "its owner could have had SLURM run it once more after its end (Requeue=1)"
USED_UP = "all runs of the job together have used the {minutes} minutes that were paid for"
PUT_BACK_AT_MOST = 3  # times that the owner of a job that waits is let off
LOOK_AFTER_S = 2.0  # whether what was put back is
UNKNOWN_BLOCK = 2**62  # of a word without a place: any reorganisation puts it in question

Next = tuple[Job, tuple[Effect, ...]]


def advance(job: Job | None, event: Event) -> tuple[Job | None, tuple[Effect, ...]]:
    """What an event makes of a job. A job that is not known yet begins with its claim and with nothing else; an event
    that comes twice, late or out of order changes nothing that was decided.
    """
    if isinstance(event, Claimed):
        after, effects = _claimed(job, event)
    elif job is None:
        return None, ()
    else:
        after, effects = _RULES[type(event)](job, event)
    return (after if after == job else _heard(after, event)), effects


def _heard(job: Job, event: Event) -> Job:
    """Remember the block that an event was read from: a reorganisation may take it away."""
    if isinstance(event, ChainSaw) and event.at is None:
        return replace(job, heard_block=UNKNOWN_BLOCK)
    at = getattr(event, "at", None)
    return job if at is None or at[0] <= job.heard_block else replace(job, heard_block=at[0])


def _claimed(job: Job | None, event: Claimed) -> Next:
    if job is not None:
        if event.at < job.chain_at:
            return job, ()
        if job.claim_in_doubt:
            return claimed_again(job, event)
        later = event.claim_key != job.claim_key or event.at > job.chain_at
        if not (job.state is State.REFUSED and later):
            return job, ()
        if job.slurm_id is not None:
            return claimed_again(job, event)  # SLURM has or had it: never a second time
    fresh = Job(
        job_id=event.job_id,
        customer=event.customer,
        provider=event.provider,
        claim_key=event.claim_key,
        definition=event.definition,
        time_limit_min=event.time_limit_min,
        chain_at=event.at,
    )
    problem = unfit(event.definition, event.time_limit_min)
    if problem is not None:
        return _end(fresh, Outcome(status=ChainStatus.FAILED, reason=problem))
    return fresh, (Effect(Kind.FETCH),)


def _script_fetched(job: Job, event: ScriptFetched) -> Next:
    if job.state is not State.CLAIMED:
        return job, ()
    ready = replace(job, state=State.READY, has_script=True, grid_logger_url=event.grid_logger_url)
    return ready, (Effect(Kind.SUBMIT),)


def _script_unavailable(job: Job, event: ScriptUnavailable) -> Next:
    if job.state is not State.CLAIMED or job.claim_in_doubt:
        return job, ()  # while the claim is in a lost block, the service does not know us
    return _end(job, Outcome(status=ChainStatus.FAILED, reason=event.reason))


def _submit_started(job: Job, event: SubmitStarted) -> Next:
    if job.state is not State.READY or job.claim_in_doubt:
        return job, ()
    return replace(job, state=State.SUBMITTING, applied_limit_min=event.limit_min, looks=0), ()


def _submitted(job: Job, event: Submitted) -> Next:
    if job.slurm_id is not None:
        return job, ()
    known = replace(job, slurm_id=event.slurm_id, slurm_submit_s=None, runs=(), put_back=0, looks=0)
    if job.state is State.SUBMITTING:
        queued = replace(known, state=State.QUEUED)
        cancel = (Effect(Kind.CANCEL),) if job.cancel_requested else ()
        return queued, (look(queued), *cancel, *limit_to_apply(queued))
    if job.state in (State.SETTLED, State.REFUSED) or job.settled_by_operator:
        return known, (Effect(Kind.CANCEL),)
    return job, ()


def _submit_rejected(job: Job, event: SubmitRejected) -> Next:
    if job.state is not State.SUBMITTING:
        return job, ()
    if job.cancel_requested:
        return _end(job, Outcome(status=ChainStatus.CANCELLED))
    refused = replace(job, state=State.REFUSED, message=event.reason)
    return refused, (Effect(Kind.REFUSE), Effect(Kind.TELL_USER))


def _submit_not_run(job: Job, _: SubmitNotRun) -> Next:
    if job.state is not State.SUBMITTING:
        return job, ()
    return _submit_again(job)


def _submit_unclear(job: Job, _: SubmitUnclear) -> Next:
    if job.state is not State.SUBMITTING:
        return job, ()
    return replace(job, looks=0), (Effect(Kind.SUBMIT, FIRST_LOOK_S),)


def _submit_not_found(job: Job, _: SubmitNotFound) -> Next:
    if job.state is not State.SUBMITTING:
        return job, ()
    if job.looks == 0:
        return replace(job, looks=1), (Effect(Kind.SUBMIT, BEFORE_SECOND_SEARCH_S),)
    again, effects = _submit_again(job)
    return again, effects or (Effect(Kind.SUBMIT),)


def _submit_again(job: Job) -> Next:
    """SLURM certainly has not got the job; its submission is open still."""
    if job.cancel_requested:
        return _end(job, Outcome(status=ChainStatus.CANCELLED))
    return replace(job, state=State.READY, looks=0), ()


def _called_back(job: Job, event: CalledBack) -> Next:
    if job.state is State.SETTLED and job.slurm_id is not None and event.running:
        return job, (Effect(Kind.CANCEL, event.look_in_s),)  # its owner may have requeued it after its end
    if job.state not in (State.QUEUED, State.RUNNING):
        return job, ()
    if event.look_in_s > 0:
        return job, (Effect(Kind.WITNESS, event.look_in_s),)
    return replace(job, looks=0), (Effect(Kind.WITNESS),)


def _recognised(job: Job, event: Recognised) -> Next:
    if job.slurm_id != event.slurm_id or RANK[job.state] >= RANK[State.ENDED]:
        return job, ()
    known = _with_run(replace(job, slurm_submit_s=event.submit_s), event.run, event.since_s)
    if len(known.runs) == len(job.runs):
        return known, ()
    return known, limit_to_apply(known)


def _slurm_waiting(job: Job, event: SlurmWaiting) -> Next:
    if job.state not in (State.QUEUED, State.RUNNING):
        return job, ()
    waiting = replace(_with_run(job, event.run), looks=job.looks + 1)
    return _stopped_in_time(waiting, look(replace(waiting, looks=job.looks)))


def _slurm_started(job: Job, event: SlurmStarted) -> Next:
    if job.state is State.QUEUED:
        running = replace(_with_run(job, event.run), state=State.RUNNING, looks=0)
        return _stopped_in_time(running, Effect(Kind.REPORT), look(running))
    if job.state is State.RUNNING:
        running = replace(_with_run(job, event.run), looks=job.looks + 1)
        return _stopped_in_time(running, look(replace(running, looks=job.looks)))
    return job, ()


def _earlier_runs_told(job: Job, event: EarlierRunsTold) -> Next:
    if job.state not in (State.QUEUED, State.RUNNING):
        return job, ()
    known = replace(job, runs=with_ends(job.runs, event.ends_s))
    return known, limit_to_apply(known) if known != job else ()


def _with_run(job: Job, sighting: Sighting | None, since_s: int | None = None) -> Job:
    return job if sighting is None else replace(job, runs=seen(job.runs, sighting, since_s))


def _stopped_in_time(job: Job, *effects: Effect) -> Next:
    """A job whose runs together have used what was paid for is cancelled. SLURM itself knows only the last run."""
    if job.stop is not None or not is_used_up(job.limit_min, job.runs):
        return job, effects
    stopped = replace(job, stop=Stop(ChainStatus.OUT_OF_CREDITS, USED_UP.format(minutes=job.limit_min)))
    return stopped, (*effects, Effect(Kind.CANCEL))


def _more_than_paid(job: Job, event: MoreThanPaid) -> Next:
    """What SLURM does not let be put back is ended."""
    if job.state not in (State.QUEUED, State.RUNNING) or job.stop is not None:
        return job, ()
    if event.ended:
        return replace(job, stop=Stop(ChainStatus.CANCELLED, f"it had more than was paid for: {event.what}")), ()
    if event.limit_only:
        return job, (Effect(Kind.TOP_UP),)
    if event.waits and job.put_back < PUT_BACK_AT_MOST:
        again = replace(job, put_back=job.put_back + 1, looks=0)
        return again, (Effect(Kind.TOP_UP), Effect(Kind.WITNESS, LOOK_AFTER_S * 2**job.put_back))
    stop = Stop(ChainStatus.CANCELLED, f"cancelled, as it had more than was paid for: {event.what}")
    return replace(job, stop=stop), (Effect(Kind.CANCEL),)


def _slurm_ended(job: Job, event: SlurmEnded) -> Next:
    if job.state not in (State.QUEUED, State.RUNNING):
        return job, ()
    outcome = replace(event.outcome, elapsed_s=billed_s(job.limit_min, _before_s(job, event), event.outcome.elapsed_s))
    if job.stop is not None and not job.cancel_requested:
        status = job.stop.status if outcome.status is ChainStatus.CANCELLED else outcome.status
        outcome = replace(outcome, status=status, reason=job.stop.reason)
    ended, effects = _end(job, outcome)
    if not event.may_requeue:
        return ended, effects
    return replace(ended, stop=job.stop or Stop(outcome.status, REQUEUEABLE)), (*effects, Effect(Kind.CANCEL))


def _runs_after_its_end(job: Job, event: RunsAfterItsEnd) -> Next:
    """What was billed stays as it is; the run that comes after is ended."""
    if job.slurm_id != event.slurm_id or job.state not in (State.ENDED, State.SETTLED) or job.outcome is None:
        return job, ()
    return replace(job, stop=job.stop or Stop(job.outcome.status, REQUEUEABLE)), (Effect(Kind.CANCEL),)


def _before_s(job: Job, event: SlurmEnded) -> int:
    """The seconds of the earlier runs. Accounting that knows fewer of them than the looks does not lessen what these saw."""
    if event.earlier_s is None:
        return job.earlier_s
    return event.earlier_s if event.earlier_runs >= len(job.runs) - 1 else max(event.earlier_s, job.earlier_s)


def _cancel_requested(job: Job, _: CancelRequested) -> Next:
    if RANK[job.state] >= RANK[State.ENDED]:
        return job, ()
    asked = replace(job, cancel_requested=True)
    if job.state in (State.CLAIMED, State.READY):
        return _end(asked, Outcome(status=ChainStatus.CANCELLED))
    if job.state is State.SUBMITTING:
        return asked, ()
    return asked, (Effect(Kind.CANCEL),)


def _topped_up(job: Job, event: ToppedUp) -> Next:
    known = {top_up.key: top_up for top_up in job.top_ups}
    if finished(job) or (event.key in known and known[event.key].block is not None):
        return job, ()
    known[event.key] = TopUp(event.key, event.minutes, event.at[0] if event.at else 0)
    longer = replace(job, top_ups=tuple(known.values()))
    return longer, limit_to_apply(longer)


def _limit_applied(job: Job, event: LimitApplied) -> Next:
    longer = job.applied_limit_min is None or event.limit_min > job.applied_limit_min
    if not longer and event.limit_min != job.run_limit_min:
        return job, ()
    applied = replace(job, applied_limit_min=event.limit_min)
    return applied, limit_to_apply(applied)


def _chain_saw(job: Job, event: ChainSaw) -> Next:
    if event.at is not None and event.at <= job.chain_at:
        return job, ()
    if event.status is job.chain_status:
        return replace(job, chain_at=event.at or job.chain_at), ()
    if finished(job):
        return job, ()
    if event.at is None and event.status < ChainStatus.SCHEDULED and job.state is not State.REFUSED:
        return job, ()  # we did not give it back: a block may have been lost, and the scan will find that
    if job.claim_in_doubt and not event.status.cold:
        return job, ()  # whose it is only a claim tells, or the question that ends the doubt
    job = replace(job, chain_at=event.at or job.chain_at)
    if event.status.cold:
        settled = replace(job, state=State.SETTLED, chain_status=event.status)
        return settled, stop_slurm(job)
    if event.status < ChainStatus.SCHEDULED:
        lost = replace(job, state=State.REFUSED, chain_status=event.status)
        return lost, stop_slurm(job)
    if event.status < job.chain_status:
        return job, ()
    return replace(job, chain_status=event.status), ()


def _overlooked(job: Job, event: Overlooked) -> Next:
    return job, () if event.kind in closes(job) else (Effect(event.kind),)


def _adopted(job: Job, event: Adopted) -> Next:
    if job.slurm_id is not None or RANK[job.state] >= RANK[State.ENDED]:
        return job, ()
    if job.state in (State.QUEUED, State.RUNNING):
        return replace(job, slurm_id=event.slurm_id, slurm_submit_s=None, runs=(), put_back=0, looks=0), (
            Effect(Kind.WITNESS),
        )
    ran = job.chain_status is ChainStatus.RUNNING
    state = State.RUNNING if ran else State.QUEUED
    taken = replace(job, state=state, slurm_id=event.slurm_id, slurm_submit_s=None, runs=(), put_back=0, looks=0)
    if event.slurm_id is None:
        return taken, (look(taken),)
    cancel = (Effect(Kind.CANCEL),) if job.cancel_requested else ()
    return taken, (look(taken), *cancel, *limit_to_apply(taken))


def _slurm_lost(job: Job, event: SlurmLost) -> Next:
    if job.state not in (State.QUEUED, State.RUNNING) or job.slurm_id != event.slurm_id:
        return job, ()
    ended, effects = _end(job, Outcome(status=ChainStatus.PANICKED, reason=event.reason))
    return ended, (*effects, *stop_slurm(job))  # it may run all the same


def _submission_forgotten(job: Job, event: SubmissionForgotten) -> Next:
    """One of the two ways back: of a job that ran, or of which the contract knows that it did, SLURM can forget nothing but the
    end.
    """
    waits = job.state is State.QUEUED and job.chain_status is ChainStatus.SCHEDULED
    if not waits or job.slurm_id != event.slurm_id or job.claim_in_doubt:
        return job, ()
    again, effects = _submit_again(replace(job, slurm_id=None, slurm_submit_s=None, runs=()))
    return again, effects or (Effect(Kind.SUBMIT),)


def _submission_denied(job: Job, event: SubmissionDenied) -> Next:
    """The other way back: what was never recognised is looked for as after an answer that did not come."""
    waits = job.state is State.QUEUED and job.chain_status is ChainStatus.SCHEDULED
    if not waits or job.slurm_id != event.slurm_id or job.slurm_submit_s is not None:
        return job, ()
    return replace(job, state=State.SUBMITTING, slurm_id=None, looks=0), (Effect(Kind.SUBMIT),)


def _carried(job: Job, _: Carried) -> Next:
    return job, ()


def _operator_denied(job: Job, _: OperatorDenied) -> Next:
    if job.state is not State.SUBMITTING:
        return job, ()
    again, effects = _submit_again(job)
    return again, effects or (Effect(Kind.SUBMIT),)


def _operator_settled(job: Job, event: OperatorSettled) -> Next:
    """What SLURM may still hold of the job is cancelled: after an unclear submission when it can no longer arrive."""
    if finished(job):
        return job, ()
    settled, effects = _end(replace(job, settled_by_operator=True), event.outcome)
    return settled, (*effects, *stop_slurm(job))


def _operator_forgot(job: Job, event: OperatorForgot) -> Next:
    """The wish is gone with its effect, or the next sweep would open that again. Nobody looks after the limit that SLURM has,
    until the next top-up.
    """
    if event.kind is Kind.CANCEL:
        return replace(job, cancel_requested=False, stop=None), ()
    if event.kind is Kind.TOP_UP:
        return replace(job, applied_limit_min=None), ()
    return job, ()


# Each rule takes the one event that it is listed under.
_RULES: dict[type, Callable[[Job, Any], Next]] = {
    ScriptFetched: _script_fetched,
    ScriptUnavailable: _script_unavailable,
    SubmitStarted: _submit_started,
    Submitted: _submitted,
    SubmitRejected: _submit_rejected,
    SubmitNotRun: _submit_not_run,
    SubmitUnclear: _submit_unclear,
    SubmitNotFound: _submit_not_found,
    CalledBack: _called_back,
    Recognised: _recognised,
    SlurmWaiting: _slurm_waiting,
    SlurmStarted: _slurm_started,
    EarlierRunsTold: _earlier_runs_told,
    MoreThanPaid: _more_than_paid,
    SlurmEnded: _slurm_ended,
    RunsAfterItsEnd: _runs_after_its_end,
    CancelRequested: _cancel_requested,
    ToppedUp: _topped_up,
    LimitApplied: _limit_applied,
    ChainSaw: _chain_saw,
    Overlooked: _overlooked,
    Adopted: _adopted,
    SlurmLost: _slurm_lost,
    SubmissionForgotten: _submission_forgotten,
    SubmissionDenied: _submission_denied,
    Reorganised: reorganised,
    Carried: _carried,
    OperatorDenied: _operator_denied,
    OperatorSettled: _operator_settled,
    OperatorForgot: _operator_forgot,
}


def _end(job: Job, outcome: Outcome) -> Next:
    ended = replace(job, state=State.ENDED, outcome=outcome, message=outcome.reason)
    tell = (Effect(Kind.TELL_USER),) if outcome.reason else ()
    return ended, (Effect(Kind.REPORT), *tell)
