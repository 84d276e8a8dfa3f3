"""What each event makes of a job: a table of rules, by event and state. Pure.

`advance` is the only place that decides. Everything that happens to a job arrives as an
event. `advance` returns the new job and the effects (the work that is left to do). The
ledger commits the event, the job and the effects together.

`@on(Event, *states, when=...)` enters a rule into the table. For an event and a state,
the first rule whose `when` holds decides. `ignore(*events, states=..., because=...)`
declares the states in which an event changes nothing: it came twice, late, or out of
order. Each event has a rule or such a declaration for each state.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product
from typing import Any

from supervisor_tasks.jobs.billing import SECONDS_PER_MINUTE
from supervisor_tasks.jobs.effect_timing import (
    BEFORE_SECOND_SEARCH_S,
    FIRST_POLL_S,
    limit_to_apply,
    next_poll,
    stop_slurm,
    stop_without_id,
)
from supervisor_tasks.jobs.events import (
    CallbackReceived,
    CancelRequested,
    ChainStatusObserved,
    Claimed,
    EarlierRunsAwaited,
    EarlierRunsReported,
    EffectCompleted,
    EffectMissing,
    Event,
    ExistingSlurmJobAdopted,
    FalseSlurmId,
    LaterRunEnded,
    LaunchFailed,
    LimitApplied,
    MoreThanPaid,
    OperatorAbandonedEffect,
    OperatorCancelled,
    OperatorConfirmedNotSubmitted,
    OperatorSettledJob,
    Reorganised,
    RequeueForbidden,
    RequeueNotForbidden,
    RunsAfterItsEnd,
    ScriptFetched,
    ScriptUnavailable,
    SlurmCompleted,
    SlurmJobIdentified,
    SlurmJobMissing,
    SlurmPendingObserved,
    SlurmRunningObserved,
    SubmissionLostBySlurm,
    SubmissionNotFound,
    SubmissionStillPossible,
    SubmitNotExecuted,
    SubmitOutcomeUnknown,
    SubmitRejected,
    SubmitStarted,
    Submitted,
    ToppedUp,
)
from supervisor_tasks.jobs.model import (
    BEFORE_SLURM,
    IN_SLURM,
    RANK,
    ChainStatus,
    Effect,
    EffectKind,
    Job,
    Next,
    Outcome,
    SlurmId,
    State,
    Stop,
    TopUp,
    is_final,
    obsolete_effects,
    validation_error,
)
from supervisor_tasks.jobs.reorg_rules import (
    claim_mined_again,
    claimed_again,
    reorganised,
)
from supervisor_tasks.jobs.runs import (
    Sighting,
    billed_s,
    is_used_up,
    runs_after_look,
    with_ends,
)

REQUEUEABLE = (
    "its owner could have had SLURM run it once more after its end (Requeue=1)"
)
USED_UP = (
    "all runs of the job together have used the {minutes} minutes that were paid for"
)
# times that a waiting job is put back to its paid size; the next time, it is cancelled
MAX_PUT_BACK_TIMES = 3
POLL_AFTER_S = 2.0  # until the poll that checks the first put-back; doubled each time
LAUNCH_AGAIN_S = 30.0  # until a job is submitted again that a node could not start
# for a status without a place on chain: any reorganisation puts it in doubt, until the
# status's log shows its place
UNKNOWN_BLOCK = 2**62

Rule = Callable[[Job, Any], Next]
When = Callable[[Job, Any], bool]

EVERY_STATE = frozenset(State)
NOT_ENDED = tuple(state for state in State if RANK[state] < RANK[State.ENDED])

AFTER_THE_END = (State.ENDED, State.REFUSED, State.SETTLED)

RULES: dict[tuple[type, State], list[tuple[When, Rule]]] = {}
# why the event changes nothing in the state
IGNORED: dict[tuple[type, State], str] = {}


def always(_job: Job, _event: Any) -> bool:
    """The condition of a rule that has none."""
    return True


def on(event: type, *states: State, when: When = always) -> Callable[[Rule], Rule]:
    """Enter a rule for an event in these states; without states, in all of them."""

    def enter(rule: Rule) -> Rule:
        for state in states or State:
            RULES.setdefault((event, state), []).append((when, rule))
        return rule

    return enter


def ignore(*events: type, states: Iterable[State], because: str) -> None:
    """Declare that these events change nothing in these states."""
    for event, state in product(events, states):
        IGNORED[event, state] = because


def rule_for(job: Job, event: Event) -> Rule | None:
    """The rule that decides what the event makes of the job; None if it changes
    nothing.
    """
    for when, rule in RULES.get((type(event), job.state), ()):
        if when(job, event):
            return rule
    return None


def advance(job: Job | None, event: Event) -> tuple[Job | None, tuple[Effect, ...]]:
    """The job after an event, and the effects that follow. A job that the ledger does
    not have yet begins only with its claim.
    """
    if job is None:
        if not isinstance(event, Claimed):
            return None, ()
        begun, effects = _begin(event)
        return _with_block_of(event, begun), effects
    rule = rule_for(job, event)
    if rule is None:
        return job, ()
    after, effects = rule(job, event)
    if after == job:
        return after, effects
    return _with_block_of(event, after), effects


def _with_block_of(event: Event, job: Job) -> Job:
    """The job with the block that contains the event: a reorganisation may replace that
    block.
    """
    at = getattr(event, "at", None)
    if isinstance(event, ChainStatusObserved):
        if at is None:
            return replace(job, last_event_block=UNKNOWN_BLOCK)
        if job.last_event_block == UNKNOWN_BLOCK and is_final(job):
            # the job's last log, and the place of the status that was seen without one
            return replace(job, last_event_block=at[0])
    if at is None:
        return job
    return replace(job, last_event_block=max(at[0], job.last_event_block))


# --- the claim ------------------------------------------------------------------------


def _begin(event: Claimed) -> Next:
    fresh = Job(
        job_id=event.job_id,
        customer=event.customer,
        provider=event.provider,
        claim_key=event.claim_key,
        definition=event.definition,
        time_limit_min=event.time_limit_min,
        claim_position=event.at,
        chain_position=event.at,
    )
    problem = validation_error(event.definition, event.time_limit_min)
    if problem is not None:
        return _end(fresh, Outcome(status=ChainStatus.FAILED, reason=problem))
    return fresh, (Effect(EffectKind.FETCH),)


def _ends_the_doubt(job: Job, event: Claimed) -> bool:
    return event.at >= job.chain_position and job.claim_reverted_by_reorg


def _is_a_later_claim(job: Job, event: Claimed) -> bool:
    if event.at == job.chain_position:
        return event.claim_key != job.claim_key
    return event.at > job.chain_position


@on(Claimed, when=_ends_the_doubt)
def _claim_came_back(job: Job, event: Claimed) -> Next:
    return claimed_again(job, event)


def _is_its_claim_mined_again(job: Job, event: Claimed) -> bool:
    """Whether a reorganisation put the claim into another block, and the contract had
    the job as ours before the scan came to that block.
    """
    if is_final(job) or job.chain_status < ChainStatus.SCHEDULED:
        return False
    return job.claim_position < event.at <= job.chain_position


@on(Claimed, when=_is_its_claim_mined_again)
def _claim_mined_again(job: Job, event: Claimed) -> Next:
    return claim_mined_again(job, event)


@on(Claimed, State.REFUSED, when=_is_a_later_claim)
def _claimed_after_it_was_given_back(job: Job, event: Claimed) -> Next:
    if job.slurm_id is not None:
        # SLURM has or had the job: it must not be submitted twice
        return claimed_again(job, event)
    return _begin(event)


# --- the script -----------------------------------------------------------------------


def _claim_is_certain(job: Job, _: Event) -> bool:
    return not job.claim_reverted_by_reorg


@on(ScriptFetched, State.CLAIMED)
def _script_fetched(job: Job, event: ScriptFetched) -> Next:
    ready = replace(
        job, state=State.READY, has_script=True, grid_logger_url=event.grid_logger_url
    )
    return ready, (Effect(EffectKind.SUBMIT),)


# The condition: while the claim is in doubt, the service does not accept our right to
# the script.
@on(ScriptUnavailable, State.CLAIMED, when=_claim_is_certain)
def _script_unavailable(job: Job, event: ScriptUnavailable) -> Next:
    return _end(job, Outcome(status=ChainStatus.FAILED, reason=event.reason))


# --- the submission -------------------------------------------------------------------


def _has_no_id(job: Job, _: Event) -> bool:
    return job.slurm_id is None


def _is_over_and_has_no_id(job: Job, _: Event) -> bool:
    if job.slurm_id is not None:
        return False
    if job.settled_by_operator:
        return True
    return job.state in (State.SETTLED, State.REFUSED)


def _with_id(job: Job, slurm_id: SlurmId | None) -> Job:
    """The job with an id under which no look has seen it yet."""
    return replace(
        job, slurm_id=slurm_id, slurm_submit_s=None, runs=(), put_back=0, poll_count=0
    )


@on(SubmitStarted, State.READY, when=_claim_is_certain)
def _submit_started(job: Job, event: SubmitStarted) -> Next:
    submitting = replace(
        job, state=State.SUBMITTING, applied_limit_min=event.limit_min, poll_count=0
    )
    return submitting, ()


@on(Submitted, State.SUBMITTING, when=_has_no_id)
def _submitted(job: Job, event: Submitted) -> Next:
    queued = replace(_with_id(job, event.slurm_id), state=State.QUEUED)
    return queued, _first_effects(queued)


@on(
    Submitted,
    *(EVERY_STATE - {State.SUBMITTING}),
    when=_is_over_and_has_no_id,
)
def _submitted_too_late(job: Job, event: Submitted) -> Next:
    return _with_id(job, event.slurm_id), (Effect(EffectKind.CANCEL),)


@on(SubmitRejected, State.SUBMITTING)
def _submit_rejected(job: Job, event: SubmitRejected) -> Next:
    if job.wants_cancel:
        return _end_cancelled(job)
    refused = replace(job, state=State.REFUSED, status_message=event.reason)
    effects = [Effect(EffectKind.RETURN_JOB), Effect(EffectKind.NOTIFY_CUSTOMER)]
    if event.token_s:
        # the customer's login session may have answered, and may submit the job itself
        first_search_s = min(event.token_s, BEFORE_SECOND_SEARCH_S)
        effects.append(Effect(EffectKind.CANCEL, first_search_s))
    return refused, tuple(effects)


@on(SubmitNotExecuted, State.SUBMITTING)
def _submit_not_executed(job: Job, _: SubmitNotExecuted) -> Next:
    return _submit_again(job)


@on(SubmitOutcomeUnknown, State.SUBMITTING)
def _submit_outcome_unknown(job: Job, _: SubmitOutcomeUnknown) -> Next:
    return replace(job, poll_count=0), (Effect(EffectKind.SUBMIT, FIRST_POLL_S),)


@on(SubmissionNotFound, State.SUBMITTING)
def _submission_not_found(job: Job, _: SubmissionNotFound) -> Next:
    if job.poll_count == 0:
        second_search = Effect(EffectKind.SUBMIT, BEFORE_SECOND_SEARCH_S)
        return replace(job, poll_count=1), (second_search,)
    return _submit_again(job, Effect(EffectKind.SUBMIT))


def _must_be_cancelled(job: Job, _: Event) -> bool:
    return EffectKind.CANCEL not in obsolete_effects(job)


@on(SubmissionStillPossible, when=_must_be_cancelled)
def _search_later(job: Job, event: SubmissionStillPossible) -> Next:
    return job, (Effect(EffectKind.CANCEL, event.left_s),)


@on(OperatorConfirmedNotSubmitted, State.SUBMITTING)
def _operator_confirmed_not_submitted(
    job: Job, _: OperatorConfirmedNotSubmitted
) -> Next:
    return _submit_again(job, Effect(EffectKind.SUBMIT))


def _only_waited(job: Job, event: SubmissionLostBySlurm) -> bool:
    """Whether the job only waited. If it ran, also if only the contract shows that,
    SLURM has forgotten only its end.
    """
    return _waits_as(job, event.slurm_id) and not job.claim_reverted_by_reorg


def _failed_before_it_ran(job: Job, event: LaunchFailed) -> bool:
    return _waits_as(job, event.slurm_id)


def _was_never_seen(job: Job, event: FalseSlurmId) -> bool:
    return _waits_as(job, event.slurm_id) and job.slurm_submit_s is None


def _waits_as(job: Job, slurm_id: SlurmId) -> bool:
    return job.chain_status is ChainStatus.SCHEDULED and job.slurm_id == slurm_id


@on(SubmissionLostBySlurm, State.QUEUED, when=_only_waited)
def _submission_lost_by_slurm(job: Job, _: SubmissionLostBySlurm) -> Next:
    """Back from QUEUED to READY."""
    return _submit_without_id(job)


@on(LaunchFailed, State.QUEUED, when=_failed_before_it_ran)
def _launch_failed(job: Job, _: LaunchFailed) -> Next:
    """Back from QUEUED to READY, as above, but not at once: if more nodes have that
    fault, a try each second would only drain them faster.
    """
    return _submit_without_id(job, LAUNCH_AGAIN_S)


@on(FalseSlurmId, State.QUEUED, when=_was_never_seen)
def _false_id(job: Job, _: FalseSlurmId) -> Next:
    """Back from QUEUED to SUBMITTING: the job is searched for as after a missing
    answer.
    """
    searched = replace(job, state=State.SUBMITTING, slurm_id=None, poll_count=0)
    return searched, (Effect(EffectKind.SUBMIT),)


def _submit_again(job: Job, *effects: Effect) -> Next:
    """The job after a submission that certainly did not reach SLURM. `effects` is empty
    if its effect SUBMIT is still open.
    """
    if job.wants_cancel:
        return _end_cancelled(job)
    return replace(job, state=State.READY, poll_count=0), effects


def _end_cancelled(job: Job) -> Next:
    """End a cancelled job that SLURM does not have, and that has never run."""
    if job.stop is None or job.cancel_requested:
        return _end(job, Outcome(status=ChainStatus.CANCELLED))
    return _end(job, Outcome(status=job.stop.status, reason=job.stop.reason))


def _submit_without_id(job: Job, due_in_s: float = 0.0) -> Next:
    without_id = replace(job, slurm_id=None, slurm_submit_s=None, runs=())
    return _submit_again(without_id, Effect(EffectKind.SUBMIT, due_in_s))


@on(ExistingSlurmJobAdopted, *BEFORE_SLURM, when=_has_no_id)
def _existing_job_adopted(job: Job, event: ExistingSlurmJobAdopted) -> Next:
    adopted = replace(_with_id(job, event.slurm_id), state=State.QUEUED)
    if job.chain_status is ChainStatus.RUNNING:
        adopted = replace(adopted, state=State.RUNNING)
    if event.slurm_id is None:
        return adopted, (next_poll(adopted),)
    return adopted, _first_effects(adopted)


@on(ExistingSlurmJobAdopted, *IN_SLURM, when=_has_no_id)
def _existing_job_adopted_during_the_search(
    job: Job, event: ExistingSlurmJobAdopted
) -> Next:
    return _with_id(job, event.slurm_id), (Effect(EffectKind.POLL_SLURM),)


def _first_effects(job: Job) -> tuple[Effect, ...]:
    """The effects of a job that SLURM has under a new id."""
    effects = [next_poll(job)]
    if job.wants_cancel:
        effects.append(Effect(EffectKind.CANCEL))
    return (*effects, *limit_to_apply(job))


# --- in SLURM -------------------------------------------------------------------------


def _is_the_same_slurm_job(
    job: Job, event: SlurmJobIdentified | SlurmJobMissing
) -> bool:
    return job.slurm_id == event.slurm_id


def _runs_after_its_end(job: Job, event: CallbackReceived) -> bool:
    return job.slurm_id is not None and event.running


@on(CallbackReceived, *IN_SLURM)
def _callback_received(job: Job, event: CallbackReceived) -> Next:
    if event.poll_delay_s > 0:
        return job, (Effect(EffectKind.POLL_SLURM, event.poll_delay_s),)
    return replace(job, poll_count=0), (Effect(EffectKind.POLL_SLURM),)


@on(CallbackReceived, State.SETTLED, when=_runs_after_its_end)
def _callback_received_after_the_end(job: Job, event: CallbackReceived) -> Next:
    # its owner may have requeued it after its end
    return job, (Effect(EffectKind.CANCEL, event.poll_delay_s),)


@on(SlurmJobIdentified, *NOT_ENDED, when=_is_the_same_slurm_job)
def _slurm_job_identified(job: Job, event: SlurmJobIdentified) -> Next:
    identified = _with_run(
        replace(job, slurm_submit_s=event.submit_s), event.run, event.since_s
    )
    if len(identified.runs) == len(job.runs):
        return identified, ()
    return identified, limit_to_apply(identified)


@on(SlurmPendingObserved, *IN_SLURM)
def _slurm_pending_observed(job: Job, event: SlurmPendingObserved) -> Next:
    return _looked_at_again(job, event.run)


@on(SlurmRunningObserved, State.QUEUED)
def _slurm_running_observed_first(job: Job, event: SlurmRunningObserved) -> Next:
    running = replace(_with_run(job, event.run), state=State.RUNNING, poll_count=0)
    return _stopped_in_time(running, Effect(EffectKind.REPORT), next_poll(running))


@on(SlurmRunningObserved, State.RUNNING)
def _slurm_running_observed_again(job: Job, event: SlurmRunningObserved) -> Next:
    return _looked_at_again(job, event.run)


def _looked_at_again(job: Job, sighting: Sighting | None) -> Next:
    seen = _with_run(job, sighting)
    again = replace(seen, poll_count=seen.poll_count + 1)
    return _stopped_in_time(again, next_poll(seen))


@on(EarlierRunsReported, *IN_SLURM)
def _earlier_runs_reported(job: Job, event: EarlierRunsReported) -> Next:
    corrected = replace(job, runs=with_ends(job.runs, event.ends))
    if corrected == job:
        return job, ()
    return corrected, limit_to_apply(corrected)


@on(EarlierRunsAwaited, *IN_SLURM)
def _earlier_runs_awaited(job: Job, _: EarlierRunsAwaited) -> Next:
    """The journal keeps it; the effect POLL_SLURM stays open."""
    return job, ()


def _with_run(job: Job, sighting: Sighting | None, since_s: int | None = None) -> Job:
    if sighting is None:
        return job
    return replace(job, runs=runs_after_look(job.runs, sighting, since_s))


def _stopped_in_time(job: Job, *effects: Effect) -> Next:
    """Cancel a job whose runs together have used the paid time. SLURM itself counts
    only the last run.
    """
    if job.stop is not None or not is_used_up(job.limit_min, job.runs):
        return job, effects
    reason = USED_UP.format(minutes=job.limit_min)
    stop = Stop(ChainStatus.OUT_OF_CREDITS, reason)
    return replace(job, stop=stop), (*effects, Effect(EffectKind.CANCEL))


# --- more than was paid for -----------------------------------------------------------


def _ended_with_more(job: Job, event: MoreThanPaid) -> bool:
    return job.stop is None and event.ended


def _has_more_time_only(job: Job, event: MoreThanPaid) -> bool:
    return job.stop is None and event.limit_only


def _can_be_put_back(job: Job, event: MoreThanPaid) -> bool:
    if job.stop is not None or not event.waits:
        return False
    return job.put_back < MAX_PUT_BACK_TIMES


def _is_not_stopped(job: Job, _: MoreThanPaid) -> bool:
    return job.stop is None


@on(MoreThanPaid, *IN_SLURM, when=_ended_with_more)
def _had_more_than_paid(job: Job, event: MoreThanPaid) -> Next:
    stop = Stop(ChainStatus.CANCELLED, f"it had more than was paid for: {event.what}")
    return replace(job, stop=stop), ()


@on(MoreThanPaid, *IN_SLURM, when=_has_more_time_only)
def _more_time_than_paid(job: Job, _: MoreThanPaid) -> Next:
    return job, (Effect(EffectKind.TOP_UP),)


@on(MoreThanPaid, *IN_SLURM, when=_can_be_put_back)
def _put_back(job: Job, _: MoreThanPaid) -> Next:
    """Have `extend_time_limit` put the job back in SLURM; `LimitApplied` counts that. A
    look before the worker has put the job back proves nothing against the owner.
    """
    poll = Effect(EffectKind.POLL_SLURM, POLL_AFTER_S * 2**job.put_back)
    return replace(job, poll_count=0), (Effect(EffectKind.TOP_UP), poll)


@on(MoreThanPaid, *IN_SLURM, when=_is_not_stopped)
def _more_than_paid(job: Job, event: MoreThanPaid) -> Next:
    """Cancel a job that cannot be put back to its paid size."""
    stop = Stop(
        ChainStatus.CANCELLED,
        f"cancelled, as it had more than was paid for: {event.what}",
    )
    return replace(job, stop=stop), (Effect(EffectKind.CANCEL),)


# --- the end --------------------------------------------------------------------------


@on(SlurmCompleted, *IN_SLURM)
def _slurm_completed(job: Job, event: SlurmCompleted) -> Next:
    """End the job. While its owner can have it run once more, the end is not reported:
    first the effect CANCEL has SLURM reject that, and tells of a run in between.
    """
    ended, effects = _end(job, _billed(job, event))
    if not event.may_requeue:
        return ended, effects
    return replace(ended, may_run_again=True), (*effects, Effect(EffectKind.CANCEL))


def _billed(job: Job, event: SlurmCompleted) -> Outcome:
    """The outcome with the seconds of all runs, and with the supervisor's reason if the
    supervisor stopped the job. A cancellation that comes when SLURM has ended the job
    changes nothing.
    """
    elapsed_s = billed_s(
        job.limit_min, _earlier_runs_s(job, event), event.outcome.elapsed_s
    )
    outcome = replace(event.outcome, elapsed_s=elapsed_s)
    if job.stop is None or job.cancel_requested:
        return outcome
    if outcome.status is ChainStatus.CANCELLED:
        return replace(outcome, status=job.stop.status, reason=job.stop.reason)
    return replace(outcome, reason=job.stop.reason)


def _earlier_runs_s(job: Job, event: SlurmCompleted) -> int:
    """The seconds of the earlier runs. If accounting knows fewer runs than SLURM has
    counted, the higher number counts.
    """
    if event.earlier_s is None:
        return job.earlier_s
    if job.runs and event.earlier_runs < job.runs[-1].restarts:
        return max(event.earlier_s, job.earlier_s)
    return event.earlier_s


def _is_billed_and_the_same(job: Job, event: RunsAfterItsEnd) -> bool:
    return job.slurm_id == event.slurm_id and job.outcome is not None


@on(RunsAfterItsEnd, State.ENDED, State.SETTLED, when=_is_billed_and_the_same)
def _runs_once_more(job: Job, _: RunsAfterItsEnd) -> Next:
    """The effect CANCEL ends the later run. The bill stays as it is if it may have been
    sent.
    """
    if job.may_run_again:
        return job, (Effect(EffectKind.CANCEL),)
    return _stopped_after_its_end(job), (Effect(EffectKind.CANCEL),)


def _stopped_after_its_end(job: Job) -> Job:
    """The job with a stop: without one, its effect CANCEL would be closed."""
    assert job.outcome is not None  # noqa: S101  the conditions of both rules
    stop = job.stop or Stop(job.outcome.status, REQUEUEABLE)
    return replace(job, stop=stop)


def _is_later_and_unbilled(job: Job, event: LaterRunEnded) -> bool:
    if not job.may_run_again or job.slurm_id != event.slurm_id:
        return False
    return job.slurm_submit_s is not None and event.submit_s > job.slurm_submit_s


@on(LaterRunEnded, State.ENDED, when=_is_later_and_unbilled)
def _later_run_ended(job: Job, event: LaterRunEnded) -> Next:
    """Bill the later run, too, as far as the paid time goes. SLURM can be told only
    afterwards to reject a requeue.
    """
    assert job.outcome is not None  # noqa: S101  only an end sets `may_run_again`
    before_s = job.outcome.elapsed_s
    paid_s = max(job.limit_min * SECONDS_PER_MINUTE, before_s)
    elapsed_s = min(before_s + event.elapsed_s, paid_s)
    outcome = replace(job.outcome, elapsed_s=elapsed_s)
    return replace(job, outcome=outcome, slurm_submit_s=event.submit_s), ()


def _may_run_again(job: Job, _: RequeueForbidden | RequeueNotForbidden) -> bool:
    return job.may_run_again


@on(RequeueNotForbidden, State.ENDED, when=_may_run_again)
def _requeue_not_forbidden(job: Job, _: RequeueNotForbidden) -> Next:
    """Report the end all the same: the operator may take long. CANCEL stays open."""
    return _report_end(_stopped_after_its_end(job))


@on(RequeueForbidden, State.ENDED, when=_may_run_again)
def _requeue_forbidden(job: Job, _: RequeueForbidden) -> Next:
    return _report_end(job)


@on(RequeueForbidden, State.REFUSED, State.SETTLED, when=_may_run_again)
def _requeue_forbidden_later(job: Job, _: RequeueForbidden) -> Next:
    """A lost block may bring the job back to ENDED."""
    return replace(job, may_run_again=False), ()


def _report_end(job: Job) -> Next:
    return replace(job, may_run_again=False), (Effect(EffectKind.REPORT),)


@on(SlurmJobMissing, *IN_SLURM, when=_is_the_same_slurm_job)
def _slurm_job_missing(job: Job, event: SlurmJobMissing) -> Next:
    ended, effects = _end(
        job, Outcome(status=ChainStatus.PANICKED, reason=event.reason)
    )
    return ended, (*effects, *stop_slurm(job))  # it may still run


def _end(job: Job, outcome: Outcome) -> Next:
    ended = replace(
        job, state=State.ENDED, outcome=outcome, status_message=outcome.reason
    )
    effects = [Effect(EffectKind.REPORT)]
    if outcome.reason:
        effects.append(Effect(EffectKind.NOTIFY_CUSTOMER))
    return ended, (*effects, *stop_without_id(job))


# --- what the customer wants ----------------------------------------------------------


@on(CancelRequested, State.CLAIMED, State.READY)
def _cancelled_before_submission(job: Job, _: CancelRequested) -> Next:
    return _end(
        replace(job, cancel_requested=True), Outcome(status=ChainStatus.CANCELLED)
    )


@on(CancelRequested, State.SUBMITTING)
def _cancelled_during_submission(job: Job, _: CancelRequested) -> Next:
    return replace(job, cancel_requested=True), ()


@on(CancelRequested, *IN_SLURM)
def _cancelled_in_slurm(job: Job, _: CancelRequested) -> Next:
    return replace(job, cancel_requested=True), (Effect(EffectKind.CANCEL),)


def _is_a_new_top_up(job: Job, event: ToppedUp) -> bool:
    if is_final(job):
        return False
    if event.at is not None and event.at < job.claim_position:
        # The scan reads it again, or late: the job was given back and claimed again
        # since, and the minutes of the new claim contain it.
        return False
    for top_up in job.top_ups:
        if top_up.key == event.key:
            return top_up.block is None  # else it counts already
    return True


@on(ToppedUp, when=_is_a_new_top_up)
def _topped_up(job: Job, event: ToppedUp) -> Next:
    block = event.at[0] if event.at else 0
    top_ups = {top_up.key: top_up for top_up in job.top_ups}
    top_ups[event.key] = TopUp(event.key, event.minutes, block)
    longer = replace(job, top_ups=tuple(top_ups.values()))
    return longer, limit_to_apply(longer)


@on(LimitApplied)
def _limit_applied(job: Job, event: LimitApplied) -> Next:
    """A limit that a worker set and recorded late may be another than SLURM has by now:
    then the right one is set once more.
    """
    applied = replace(job, applied_limit_min=event.limit_min)
    if event.put_back:
        applied = replace(applied, put_back=job.put_back + 1)
    return applied, limit_to_apply(applied)


# --- what the contract shows ----------------------------------------------------------


def _is_later(job: Job, event: ChainStatusObserved) -> bool:
    return event.at is None or event.at > job.chain_position


def _same_status(job: Job, event: ChainStatusObserved) -> bool:
    return _is_later(job, event) and event.status is job.chain_status


def _is_believed(job: Job, event: ChainStatusObserved) -> bool:
    """Whether a status that differs from the job's present one counts."""
    if is_final(job):
        return False
    if not _is_later(job, event):
        return False
    if job.claim_reverted_by_reorg and not event.status.is_final:
        # only a new claim, or the contract's answer at the end of the doubt, shows
        # whose job it is
        return False
    if event.at is None and event.status < ChainStatus.SCHEDULED:
        # The status has no place on chain. If we did not give the job back, a block may
        # be lost: the scan finds that.
        return job.state is State.REFUSED
    return True


def _placed(job: Job, event: ChainStatusObserved) -> Job:
    """The job with the event's place on chain, if the event has one."""
    if event.at is None:
        return job
    return replace(job, chain_position=event.at)


def _is_over_on_chain(job: Job, event: ChainStatusObserved) -> bool:
    return event.status.is_final and _is_believed(job, event)


def _is_not_ours_on_chain(job: Job, event: ChainStatusObserved) -> bool:
    return event.status < ChainStatus.SCHEDULED and _is_believed(job, event)


@on(ChainStatusObserved, when=_same_status)
def _chain_status_unchanged(job: Job, event: ChainStatusObserved) -> Next:
    return _placed(job, event), ()


@on(ChainStatusObserved, when=_is_over_on_chain)
def _final_on_chain(job: Job, event: ChainStatusObserved) -> Next:
    settled = replace(
        _placed(job, event), state=State.SETTLED, chain_status=event.status
    )
    return settled, stop_slurm(job)


@on(ChainStatusObserved, when=_is_not_ours_on_chain)
def _reassigned_on_chain(job: Job, event: ChainStatusObserved) -> Next:
    lost = replace(_placed(job, event), state=State.REFUSED, chain_status=event.status)
    return lost, stop_slurm(job)


@on(ChainStatusObserved, when=_is_believed)
def _chain_status_rises(job: Job, event: ChainStatusObserved) -> Next:
    status = max(event.status, job.chain_status)
    return replace(_placed(job, event), chain_status=status), ()


on(Reorganised)(reorganised)


# --- the sweep and the operator -------------------------------------------------------


def _is_not_obsolete(job: Job, event: EffectMissing) -> bool:
    return event.kind not in obsolete_effects(job)


def _is_not_finished(job: Job, _: OperatorSettledJob) -> bool:
    return not is_final(job)


def _abandons(kind: EffectKind) -> When:
    return lambda _job, event: event.kind is kind


@on(EffectMissing, when=_is_not_obsolete)
def _effect_missing(job: Job, event: EffectMissing) -> Next:
    return job, (Effect(event.kind),)


@on(EffectCompleted)
def _effect_completed(job: Job, _: EffectCompleted) -> Next:
    return job, ()


def _is_not_being_stopped(job: Job, _: OperatorCancelled) -> bool:
    return not job.wants_cancel


@on(OperatorCancelled, State.CLAIMED, State.READY)
def _cancelled_by_the_operator_before_submission(
    job: Job, event: OperatorCancelled
) -> Next:
    return _end(job, Outcome(status=ChainStatus.CANCELLED, reason=event.reason))


@on(OperatorCancelled, *IN_SLURM, when=_is_not_being_stopped)
def _cancelled_by_the_operator(job: Job, event: OperatorCancelled) -> Next:
    """The end that SLURM shows counts, so that the seconds that the job ran are
    billed.
    """
    stop = Stop(ChainStatus.CANCELLED, event.reason)
    return replace(job, stop=stop), (Effect(EffectKind.CANCEL),)


@on(OperatorSettledJob, when=_is_not_finished)
def _operator_settled_job(job: Job, event: OperatorSettledJob) -> Next:
    """Cancel what SLURM may have of the job. After an unclear submission, the cancel
    waits until nothing can arrive.
    """
    settled = replace(job, settled_by_operator=True, may_run_again=False)
    ended, effects = _end(settled, event.outcome)
    if job.slurm_id is None:
        return ended, effects
    return ended, (*effects, *stop_slurm(job))


@on(OperatorAbandonedEffect, when=_abandons(EffectKind.CANCEL))
def _cancel_abandoned(job: Job, _: OperatorAbandonedEffect) -> Next:
    """Drop the wish to cancel together with its effect. Otherwise the next sweep would
    open the effect again.
    """
    unstopped = replace(job, cancel_requested=False, stop=None)
    if job.may_run_again:
        return _report_end(unstopped)
    return unstopped, ()


@on(OperatorAbandonedEffect, when=_abandons(EffectKind.TOP_UP))
def _limit_abandoned(job: Job, _: OperatorAbandonedEffect) -> Next:
    """Clear the limit that SLURM has. No effect changes it until the next top-up."""
    return replace(job, applied_limit_min=None), ()


# --- what changes nothing -------------------------------------------------------------


ignore(
    ScriptFetched,
    ScriptUnavailable,
    states=EVERY_STATE - {State.CLAIMED},
    because="the job has its script, or needs none any more",
)
ignore(
    SubmitStarted,
    states=EVERY_STATE - {State.READY},
    because="the job is not ready, or its submission has begun",
)
ignore(
    SubmitRejected,
    SubmitNotExecuted,
    SubmitOutcomeUnknown,
    SubmissionNotFound,
    OperatorConfirmedNotSubmitted,
    states=EVERY_STATE - {State.SUBMITTING},
    because="no submission of the job is open",
)
ignore(
    SubmissionLostBySlurm,
    LaunchFailed,
    FalseSlurmId,
    states=EVERY_STATE - {State.QUEUED},
    because="the job does not wait in SLURM under an id",
)
ignore(
    CallbackReceived,
    states=BEFORE_SLURM,
    because="there is no id to search for; the submission searches for the job",
)
ignore(
    CallbackReceived,
    states=(State.ENDED, State.REFUSED),
    because="the end of the job is decided",
)
ignore(
    SlurmPendingObserved,
    SlurmRunningObserved,
    EarlierRunsAwaited,
    EarlierRunsReported,
    MoreThanPaid,
    SlurmCompleted,
    SlurmJobMissing,
    states=BEFORE_SLURM,
    because="the ledger has no SLURM job for it to look at",
)
ignore(
    SlurmPendingObserved,
    SlurmRunningObserved,
    EarlierRunsAwaited,
    EarlierRunsReported,
    MoreThanPaid,
    SlurmCompleted,
    SlurmJobMissing,
    SlurmJobIdentified,
    ExistingSlurmJobAdopted,
    CancelRequested,
    OperatorCancelled,
    states=AFTER_THE_END,
    because="the end of the job is decided",
)
ignore(
    OperatorCancelled,
    states=(State.SUBMITTING,),
    because="SLURM may have the job or not; `supervisor job cancel` refuses until that is known",
)
ignore(
    RunsAfterItsEnd,
    LaterRunEnded,
    RequeueForbidden,
    RequeueNotForbidden,
    states=NOT_ENDED,
    because="the job has no end that a later run could follow",
)
ignore(
    RunsAfterItsEnd,
    LaterRunEnded,
    RequeueNotForbidden,
    states=(State.REFUSED,),
    because="the job was given back, and has no bill",
)
ignore(
    LaterRunEnded,
    RequeueNotForbidden,
    states=(State.SETTLED,),
    because="the contract has the bill",
)
