"""What each event makes of a job: a table of rules, by event and state. Pure.

`advance` is the only place that decides. Whatever happens to a job arrives as an event; the answer is the new job and the
effects (things to do) that follow from it. The ledger commits all three together.

`@on(Event, *states, when=...)` enters a rule into the table. The first rule of an event and a state whose `when` holds decides.
An event in a state without such a rule changes nothing: it comes twice, late, or out of order.
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
    SlurmId,
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
Rule = Callable[[Job, Any], Next]
When = Callable[[Job, Any], bool]

IN_SLURM = (State.QUEUED, State.RUNNING)
NOT_ENDED = tuple(state for state in State if RANK[state] < RANK[State.ENDED])
NOT_IN_SLURM = (State.CLAIMED, State.READY, State.SUBMITTING)

RULES: dict[tuple[type, State], list[tuple[When, Rule]]] = {}


def _always(_job: Job, _event: Any) -> bool:
    return True


def on(event: type, *states: State, when: When = _always) -> Callable[[Rule], Rule]:
    """Enter a rule for an event in these states; in all, where none is named."""

    def enter(rule: Rule) -> Rule:
        for state in states or State:
            RULES.setdefault((event, state), []).append((when, rule))
        return rule

    return enter


def rule_for(job: Job, event: Event) -> Rule | None:
    """The rule that decides what the event makes of the job; None if it changes nothing."""
    rules = RULES.get((type(event), job.state), ())
    return next((rule for when, rule in rules if when(job, event)), None)


def advance(job: Job | None, event: Event) -> tuple[Job | None, tuple[Effect, ...]]:
    """What an event makes of a job. A job that is not known yet begins with its claim and with nothing else."""
    if job is None:
        if not isinstance(event, Claimed):
            return None, ()
        after, effects = _begin(event)
    else:
        rule = rule_for(job, event)
        if rule is None:
            return job, ()
        after, effects = rule(job, event)
    return (after if after == job else _heard(after, event)), effects


def _heard(job: Job, event: Event) -> Job:
    """Remember the block that an event was read from: a reorganisation may take it away."""
    if isinstance(event, ChainSaw) and event.at is None:
        return replace(job, heard_block=UNKNOWN_BLOCK)
    at = getattr(event, "at", None)
    return job if at is None or at[0] <= job.heard_block else replace(job, heard_block=at[0])


# --- the claim ----------------------------------------------------------------------------------------------------------


def _begin(event: Claimed) -> Next:
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


def _ends_the_doubt(job: Job, event: Claimed) -> bool:
    return event.at >= job.chain_at and job.claim_in_doubt


def _is_a_later_claim(job: Job, event: Claimed) -> bool:
    return event.at > job.chain_at or (event.at == job.chain_at and event.claim_key != job.claim_key)


@on(Claimed, when=_ends_the_doubt)
def _claim_came_back(job: Job, event: Claimed) -> Next:
    return claimed_again(job, event)


@on(Claimed, State.REFUSED, when=_is_a_later_claim)
def _claimed_after_it_was_given_back(job: Job, event: Claimed) -> Next:
    if job.slurm_id is not None:
        return claimed_again(job, event)  # SLURM has or had it: never a second time
    return _begin(event)


# --- the script ---------------------------------------------------------------------------------------------------------


def _claim_is_certain(job: Job, _: Event) -> bool:
    return not job.claim_in_doubt


@on(ScriptFetched, State.CLAIMED)
def _script_fetched(job: Job, event: ScriptFetched) -> Next:
    ready = replace(job, state=State.READY, has_script=True, grid_logger_url=event.grid_logger_url)
    return ready, (Effect(Kind.SUBMIT),)


@on(
    ScriptUnavailable, State.CLAIMED, when=_claim_is_certain
)  # the service does not know us while the claim is in doubt
def _script_unavailable(job: Job, event: ScriptUnavailable) -> Next:
    return _end(job, Outcome(status=ChainStatus.FAILED, reason=event.reason))


# --- the submission -----------------------------------------------------------------------------------------------------


def _has_no_id(job: Job, _: Event) -> bool:
    return job.slurm_id is None


def _is_over_and_has_no_id(job: Job, _: Event) -> bool:
    over = job.state in (State.SETTLED, State.REFUSED) or job.settled_by_operator
    return over and job.slurm_id is None


def _with_id(job: Job, slurm_id: SlurmId | None) -> Job:
    """The job under an id of which nothing was seen yet."""
    return replace(job, slurm_id=slurm_id, slurm_submit_s=None, runs=(), put_back=0, looks=0)


@on(SubmitStarted, State.READY, when=_claim_is_certain)
def _submit_started(job: Job, event: SubmitStarted) -> Next:
    return replace(job, state=State.SUBMITTING, applied_limit_min=event.limit_min, looks=0), ()


@on(Submitted, State.SUBMITTING, when=_has_no_id)
def _submitted(job: Job, event: Submitted) -> Next:
    queued = replace(_with_id(job, event.slurm_id), state=State.QUEUED)
    return queued, (look(queued), *_cancel_if_requested(job), *limit_to_apply(queued))


@on(Submitted, *(state for state in State if state is not State.SUBMITTING), when=_is_over_and_has_no_id)
def _submitted_too_late(job: Job, event: Submitted) -> Next:
    return _with_id(job, event.slurm_id), (Effect(Kind.CANCEL),)


@on(SubmitRejected, State.SUBMITTING)
def _submit_rejected(job: Job, event: SubmitRejected) -> Next:
    if job.cancel_requested:
        return _end(job, Outcome(status=ChainStatus.CANCELLED))
    refused = replace(job, state=State.REFUSED, message=event.reason)
    return refused, (Effect(Kind.REFUSE), Effect(Kind.TELL_USER))


@on(SubmitNotRun, State.SUBMITTING)
def _submit_not_run(job: Job, _: SubmitNotRun) -> Next:
    return _submit_again(job)


@on(SubmitUnclear, State.SUBMITTING)
def _submit_unclear(job: Job, _: SubmitUnclear) -> Next:
    return replace(job, looks=0), (Effect(Kind.SUBMIT, FIRST_LOOK_S),)


@on(SubmitNotFound, State.SUBMITTING)
def _submit_not_found(job: Job, _: SubmitNotFound) -> Next:
    if job.looks == 0:
        return replace(job, looks=1), (Effect(Kind.SUBMIT, BEFORE_SECOND_SEARCH_S),)
    return _submit_again_with_an_effect(job)


@on(OperatorDenied, State.SUBMITTING)
def _operator_denied(job: Job, _: OperatorDenied) -> Next:
    return _submit_again_with_an_effect(job)


def _forgot_a_job_that_waited(job: Job, event: SubmissionForgotten) -> bool:
    """Of a job that ran, or of which the contract knows that it did, SLURM can forget nothing but the end."""
    return _waits_as(job, event.slurm_id) and not job.claim_in_doubt


def _denies_what_was_never_seen(job: Job, event: SubmissionDenied) -> bool:
    return _waits_as(job, event.slurm_id) and job.slurm_submit_s is None


def _waits_as(job: Job, slurm_id: SlurmId) -> bool:
    return job.chain_status is ChainStatus.SCHEDULED and job.slurm_id == slurm_id


@on(SubmissionForgotten, State.QUEUED, when=_forgot_a_job_that_waited)
def _submission_forgotten(job: Job, _: SubmissionForgotten) -> Next:
    """One of the two ways back."""
    return _submit_again_with_an_effect(replace(job, slurm_id=None, slurm_submit_s=None, runs=()))


@on(SubmissionDenied, State.QUEUED, when=_denies_what_was_never_seen)
def _submission_denied(job: Job, _: SubmissionDenied) -> Next:
    """The other way back: what was never recognised is looked for as after an answer that did not come."""
    return replace(job, state=State.SUBMITTING, slurm_id=None, looks=0), (Effect(Kind.SUBMIT),)


def _submit_again(job: Job) -> Next:
    """SLURM certainly has not got the job; its submission is open still."""
    if job.cancel_requested:
        return _end(job, Outcome(status=ChainStatus.CANCELLED))
    return replace(job, state=State.READY, looks=0), ()


def _submit_again_with_an_effect(job: Job) -> Next:
    again, effects = _submit_again(job)
    return again, effects or (Effect(Kind.SUBMIT),)


@on(Adopted, *NOT_IN_SLURM, when=_has_no_id)
def _adopted(job: Job, event: Adopted) -> Next:
    ran = job.chain_status is ChainStatus.RUNNING
    taken = replace(_with_id(job, event.slurm_id), state=State.RUNNING if ran else State.QUEUED)
    if event.slurm_id is None:
        return taken, (look(taken),)
    return taken, (look(taken), *_cancel_if_requested(job), *limit_to_apply(taken))


@on(Adopted, *IN_SLURM, when=_has_no_id)
def _adopted_while_it_is_looked_for(job: Job, event: Adopted) -> Next:
    return _with_id(job, event.slurm_id), (Effect(Kind.WITNESS),)


def _cancel_if_requested(job: Job) -> tuple[Effect, ...]:
    return (Effect(Kind.CANCEL),) if job.cancel_requested else ()


# --- in SLURM -----------------------------------------------------------------------------------------------------------


def _is_the_same_slurm_job(job: Job, event: Recognised | SlurmLost) -> bool:
    return job.slurm_id == event.slurm_id


def _runs_after_its_end(job: Job, event: CalledBack) -> bool:
    return job.slurm_id is not None and event.running


@on(CalledBack, *IN_SLURM)
def _called_back(job: Job, event: CalledBack) -> Next:
    if event.look_in_s > 0:
        return job, (Effect(Kind.WITNESS, event.look_in_s),)
    return replace(job, looks=0), (Effect(Kind.WITNESS),)


@on(CalledBack, State.SETTLED, when=_runs_after_its_end)
def _called_back_after_the_end(job: Job, event: CalledBack) -> Next:
    return job, (Effect(Kind.CANCEL, event.look_in_s),)  # its owner may have requeued it after its end


@on(Recognised, *NOT_ENDED, when=_is_the_same_slurm_job)
def _recognised(job: Job, event: Recognised) -> Next:
    known = _with_run(replace(job, slurm_submit_s=event.submit_s), event.run, event.since_s)
    if len(known.runs) == len(job.runs):
        return known, ()
    return known, limit_to_apply(known)


@on(SlurmWaiting, *IN_SLURM)
def _slurm_waiting(job: Job, event: SlurmWaiting) -> Next:
    waiting = replace(_with_run(job, event.run), looks=job.looks + 1)
    return _stopped_in_time(waiting, look(replace(waiting, looks=job.looks)))


@on(SlurmStarted, State.QUEUED)
def _slurm_started(job: Job, event: SlurmStarted) -> Next:
    running = replace(_with_run(job, event.run), state=State.RUNNING, looks=0)
    return _stopped_in_time(running, Effect(Kind.REPORT), look(running))


@on(SlurmStarted, State.RUNNING)
def _slurm_still_runs_it(job: Job, event: SlurmStarted) -> Next:
    running = replace(_with_run(job, event.run), looks=job.looks + 1)
    return _stopped_in_time(running, look(replace(running, looks=job.looks)))


@on(EarlierRunsTold, *IN_SLURM)
def _earlier_runs_told(job: Job, event: EarlierRunsTold) -> Next:
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


# --- more than was paid for ---------------------------------------------------------------------------------------------


def _ended_with_more(job: Job, event: MoreThanPaid) -> bool:
    return job.stop is None and event.ended


def _has_more_time_only(job: Job, event: MoreThanPaid) -> bool:
    return job.stop is None and event.limit_only


def _can_be_put_back(job: Job, event: MoreThanPaid) -> bool:
    return job.stop is None and event.waits and job.put_back < PUT_BACK_AT_MOST


def _is_not_stopped(job: Job, _: MoreThanPaid) -> bool:
    return job.stop is None


@on(MoreThanPaid, *IN_SLURM, when=_ended_with_more)
def _had_more_than_paid(job: Job, event: MoreThanPaid) -> Next:
    return replace(job, stop=Stop(ChainStatus.CANCELLED, f"it had more than was paid for: {event.what}")), ()


@on(MoreThanPaid, *IN_SLURM, when=_has_more_time_only)
def _more_time_than_paid(job: Job, _: MoreThanPaid) -> Next:
    return job, (Effect(Kind.TOP_UP),)


@on(MoreThanPaid, *IN_SLURM, when=_can_be_put_back)
def _put_back(job: Job, _: MoreThanPaid) -> Next:
    again = replace(job, put_back=job.put_back + 1, looks=0)
    return again, (Effect(Kind.TOP_UP), Effect(Kind.WITNESS, LOOK_AFTER_S * 2**job.put_back))


@on(MoreThanPaid, *IN_SLURM, when=_is_not_stopped)
def _more_than_paid(job: Job, event: MoreThanPaid) -> Next:
    """What SLURM does not let be put back is ended."""
    stop = Stop(ChainStatus.CANCELLED, f"cancelled, as it had more than was paid for: {event.what}")
    return replace(job, stop=stop), (Effect(Kind.CANCEL),)


# --- the end ------------------------------------------------------------------------------------------------------------


@on(SlurmEnded, *IN_SLURM)
def _slurm_ended(job: Job, event: SlurmEnded) -> Next:
    outcome = _billed(job, event)
    ended, effects = _end(job, outcome)
    if not event.may_requeue:
        return ended, effects
    return replace(ended, stop=job.stop or Stop(outcome.status, REQUEUEABLE)), (*effects, Effect(Kind.CANCEL))


def _billed(job: Job, event: SlurmEnded) -> Outcome:
    """The outcome with the seconds of all runs; of a job that the supervisor stopped, with its reason."""
    elapsed_s = billed_s(job.limit_min, _before_s(job, event), event.outcome.elapsed_s)
    outcome = replace(event.outcome, elapsed_s=elapsed_s)
    if job.stop is None or job.cancel_requested:
        return outcome
    status = job.stop.status if outcome.status is ChainStatus.CANCELLED else outcome.status
    return replace(outcome, status=status, reason=job.stop.reason)


def _before_s(job: Job, event: SlurmEnded) -> int:
    """The seconds of the earlier runs. Accounting that knows fewer of them than the looks does not lessen what these saw."""
    if event.earlier_s is None:
        return job.earlier_s
    return event.earlier_s if event.earlier_runs >= len(job.runs) - 1 else max(event.earlier_s, job.earlier_s)


def _is_billed_and_the_same(job: Job, event: RunsAfterItsEnd) -> bool:
    return job.slurm_id == event.slurm_id and job.outcome is not None


@on(RunsAfterItsEnd, State.ENDED, State.SETTLED, when=_is_billed_and_the_same)
def _runs_once_more(job: Job, _: RunsAfterItsEnd) -> Next:
    """What was billed stays as it is; the run that comes after is ended."""
    assert job.outcome is not None  # noqa: S101  the rule's condition
    return replace(job, stop=job.stop or Stop(job.outcome.status, REQUEUEABLE)), (Effect(Kind.CANCEL),)


@on(SlurmLost, *IN_SLURM, when=_is_the_same_slurm_job)
def _slurm_lost(job: Job, event: SlurmLost) -> Next:
    ended, effects = _end(job, Outcome(status=ChainStatus.PANICKED, reason=event.reason))
    return ended, (*effects, *stop_slurm(job))  # it may run all the same


def _end(job: Job, outcome: Outcome) -> Next:
    ended = replace(job, state=State.ENDED, outcome=outcome, message=outcome.reason)
    tell = (Effect(Kind.TELL_USER),) if outcome.reason else ()
    return ended, (Effect(Kind.REPORT), *tell)


# --- what the customer wants --------------------------------------------------------------------------------------------


@on(CancelRequested, State.CLAIMED, State.READY)
def _cancelled_before_submission(job: Job, _: CancelRequested) -> Next:
    return _end(replace(job, cancel_requested=True), Outcome(status=ChainStatus.CANCELLED))


@on(CancelRequested, State.SUBMITTING)
def _cancelled_during_submission(job: Job, _: CancelRequested) -> Next:
    return replace(job, cancel_requested=True), ()


@on(CancelRequested, *IN_SLURM)
def _cancelled_in_slurm(job: Job, _: CancelRequested) -> Next:
    return replace(job, cancel_requested=True), (Effect(Kind.CANCEL),)


def _is_a_new_top_up(job: Job, event: ToppedUp) -> bool:
    known = {top_up.key: top_up for top_up in job.top_ups}
    counted = event.key in known and known[event.key].block is not None
    return not counted and not finished(job)


@on(ToppedUp, when=_is_a_new_top_up)
def _topped_up(job: Job, event: ToppedUp) -> Next:
    known = {top_up.key: top_up for top_up in job.top_ups}
    known[event.key] = TopUp(event.key, event.minutes, event.at[0] if event.at else 0)
    longer = replace(job, top_ups=tuple(known.values()))
    return longer, limit_to_apply(longer)


def _is_another_limit(job: Job, event: LimitApplied) -> bool:
    longer = job.applied_limit_min is None or event.limit_min > job.applied_limit_min
    return longer or event.limit_min == job.run_limit_min


@on(LimitApplied, when=_is_another_limit)
def _limit_applied(job: Job, event: LimitApplied) -> Next:
    applied = replace(job, applied_limit_min=event.limit_min)
    return applied, limit_to_apply(applied)


# --- what the contract says ---------------------------------------------------------------------------------------------


def _is_later(job: Job, event: ChainSaw) -> bool:
    return event.at is None or event.at > job.chain_at


def _says_the_same(job: Job, event: ChainSaw) -> bool:
    return _is_later(job, event) and event.status is job.chain_status


def _is_believed(job: Job, event: ChainSaw) -> bool:
    """Whether a status that is another one counts."""
    if not _is_later(job, event) or finished(job):
        return False
    if job.claim_in_doubt and not event.status.cold:
        return False  # whose it is only a claim tells, or the question that ends the doubt
    taken_away = event.at is None and event.status < ChainStatus.SCHEDULED
    # Without a place, and not given back by us: a block may have been lost, and the scan will find that.
    return not taken_away or job.state is State.REFUSED


def _says_it_is_over(job: Job, event: ChainSaw) -> bool:
    return event.status.cold and _is_believed(job, event)


def _says_it_is_not_ours(job: Job, event: ChainSaw) -> bool:
    return event.status < ChainStatus.SCHEDULED and _is_believed(job, event)


@on(ChainSaw, when=_says_the_same)
def _chain_said_the_same(job: Job, event: ChainSaw) -> Next:
    return replace(job, chain_at=event.at or job.chain_at), ()


@on(ChainSaw, when=_says_it_is_over)
def _settled(job: Job, event: ChainSaw) -> Next:
    settled = replace(job, state=State.SETTLED, chain_at=event.at or job.chain_at, chain_status=event.status)
    return settled, stop_slurm(job)


@on(ChainSaw, when=_says_it_is_not_ours)
def _lost(job: Job, event: ChainSaw) -> Next:
    lost = replace(job, state=State.REFUSED, chain_at=event.at or job.chain_at, chain_status=event.status)
    return lost, stop_slurm(job)


@on(ChainSaw, when=_is_believed)
def _chain_status_rises(job: Job, event: ChainSaw) -> Next:
    return replace(job, chain_at=event.at or job.chain_at, chain_status=max(event.status, job.chain_status)), ()


on(Reorganised)(reorganised)


# --- the sweep and the operator -----------------------------------------------------------------------------------------


def _has_a_purpose(job: Job, event: Overlooked) -> bool:
    return event.kind not in closes(job)


def _is_not_finished(job: Job, _: OperatorSettled) -> bool:
    return not finished(job)


def _gives_up(kind: Kind) -> When:
    return lambda _job, event: event.kind is kind


@on(Overlooked, when=_has_a_purpose)
def _overlooked(job: Job, event: Overlooked) -> Next:
    return job, (Effect(event.kind),)


@on(Carried)
def _carried(job: Job, _: Carried) -> Next:
    return job, ()


@on(OperatorSettled, when=_is_not_finished)
def _operator_settled(job: Job, event: OperatorSettled) -> Next:
    """What SLURM may still hold of the job is cancelled: after an unclear submission when it can no longer arrive."""
    settled, effects = _end(replace(job, settled_by_operator=True), event.outcome)
    return settled, (*effects, *stop_slurm(job))


@on(OperatorForgot, when=_gives_up(Kind.CANCEL))
def _cancel_given_up(job: Job, _: OperatorForgot) -> Next:
    """The wish is gone with its effect, or the next sweep would open that again."""
    return replace(job, cancel_requested=False, stop=None), ()


@on(OperatorForgot, when=_gives_up(Kind.TOP_UP))
def _limit_given_up(job: Job, _: OperatorForgot) -> Next:
    """No effect looks after the limit that SLURM has, until the next top-up."""
    return replace(job, applied_limit_min=None), ()
