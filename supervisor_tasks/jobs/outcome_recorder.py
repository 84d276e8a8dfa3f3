"""Records what came of a batch's effects: events in one transaction, and failed effects
given back or parked.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import structlog

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.crash_points import CrashPoint, crash_point
from supervisor_tasks.errors import OutcomeUnknownError, PermanentError, TransientError
from supervisor_tasks.execution import effect_failures
from supervisor_tasks.execution.backoff import MAX_WAIT_FOR_LOGIN_S, retry_delay_s
from supervisor_tasks.jobs.effect_group import CommandFullError, EffectOutcome, Start
from supervisor_tasks.jobs.events import (
    Event,
    SubmissionNotFound,
    SubmitNotExecuted,
    SubmitOutcomeUnknown,
    SubmitRejected,
    Submitted,
)
from supervisor_tasks.jobs.model import EffectKind, Job, JobId
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.ledger.outbox import Failure, LeaseLostError, OpenEffect
from supervisor_tasks.slurm.guarded_command import GuardNotBegunError
from supervisor_tasks.slurm.ssh import LoginBackedOffError

log = structlog.get_logger()

# Events that are true only for the moment. They count only if this worker still holds
# the effect. Permanent facts, such as an id, always count.
REQUIRES_LEASE = (
    SubmissionNotFound,
    SubmitNotExecuted,
    SubmitRejected,
    SubmitOutcomeUnknown,
)


class OutcomeRecorder:
    """Records outcomes of effects of one kind. `jobs` has the jobs of the effects under
    way, as they were when their group began.
    """

    def __init__(
        self, context: WorkerContext, kind: EffectKind, jobs: Mapping[OpenEffect, Job]
    ) -> None:
        self._ledger = context.ledger
        self._kind = kind
        self._jobs = jobs

    def record(
        self, outcomes: Sequence[EffectOutcome], starts: Sequence[Start]
    ) -> list[OpenEffect]:
        """Commit all events in one transaction, and give back the effects that failed.
        Returns the effects of `starts` that another worker holds by now; their events
        are not recorded.

        If the transaction fails for another reason than an outage, each outcome and
        each start is committed alone: an event that cannot be recorded holds up no
        other. An outcome that cannot be recorded is given back.
        """
        changes, held = _changes(outcomes, starts)
        jobs = dict[JobId, Job]()
        try:
            if changes:
                with _crash_point_of(outcomes):
                    jobs = self._ledger.record(*changes, held=held)
        except LeaseLostError as error:
            return self._record_held(outcomes, starts, error.lost)
        except Exception as error:  # noqa: BLE001  becomes the outcome of each effect
            if len(outcomes) + len(starts) == 1 or isinstance(error, TransientError):
                self._not_recorded(outcomes, starts, error)
                return []
            return self._record_each(outcomes, starts)
        for start in starts:
            start.committed.set_result(
                {effect.job_id: jobs[effect.job_id] for effect in start.events}
            )
        self.give_back(outcomes)
        _log_completed(outcomes, jobs)
        return []

    def give_back(self, outcomes: Iterable[EffectOutcome]) -> None:
        """Make effects that failed due again, or park them, as their errors ask for;
        those with the same error together.
        """
        by_error = dict[tuple[type, str], tuple[Exception, list[OpenEffect]]]()
        for outcome in outcomes:
            error = outcome.error
            if error is not None:
                _, alike = by_error.setdefault((type(error), str(error)), (error, []))
                alike.append(outcome.effect)
        for error, alike in by_error.values():
            try:
                self._give_back_alike(alike, error)
            except Exception as failure:  # noqa: BLE001  their leases end with this process or at their time; a raise would end all work of this kind
                log.warning(
                    "lease_release_failed", effects=len(alike), error=repr(failure)
                )

    def _record_held(
        self,
        outcomes: Sequence[EffectOutcome],
        starts: Sequence[Start],
        lost: Collection[int],
    ) -> list[OpenEffect]:
        """Record the events that need no lost lease. `lost`: the ids of the effects
        that another worker holds.
        """
        kept = list[EffectOutcome]()
        dropped = list[JobId]()
        for outcome in outcomes:
            if outcome.effect.id in lost and isinstance(outcome.event, REQUIRES_LEASE):
                dropped.append(outcome.effect.job_id)
            else:
                kept.append(outcome)
        if dropped:
            log.warning(
                "effect_leases_lost",
                kind=self._kind,
                jobs=dropped,
                error="their outcomes do not count any more",
            )
        lost_starts = list[OpenEffect]()
        held_starts = list[Start]()
        for start in starts:
            held = dict[OpenEffect, Event]()
            for effect, event in start.events.items():
                if effect.id in lost:
                    lost_starts.append(effect)
                else:
                    held[effect] = event
            held_starts.append(Start(held, start.committed))
        return lost_starts + self.record(kept, held_starts)

    def _record_each(
        self, outcomes: Sequence[EffectOutcome], starts: Sequence[Start]
    ) -> list[OpenEffect]:
        lost = list[OpenEffect]()
        for outcome in outcomes:
            lost += self.record([outcome], [])
        for start in starts:
            lost += self.record([], [start])
        return lost

    def _not_recorded(
        self,
        outcomes: Sequence[EffectOutcome],
        starts: Sequence[Start],
        error: Exception,
    ) -> None:
        for start in starts:
            start.fail(error)
        self.give_back(
            [EffectOutcome(outcome.effect, error=error) for outcome in outcomes]
        )

    def _give_back_alike(self, effects: Sequence[OpenEffect], error: Exception) -> None:
        ledger = self._ledger
        fields = {
            "kind": self._kind,
            "jobs": [effect.job_id for effect in effects],
            "error": str(error),
        }
        match error:
            case LeaseLostError():
                log.warning("effect_leases_lost", **fields)
            case CommandFullError():
                log.info("submissions_left_for_next_command", **fields)
                ledger.effects.postpone(effects, 0.0)
            case LoginBackedOffError():
                log.warning("login_not_answering", **fields)
                ledger.effects.postpone(effects, error.again_in_s, str(error))
            case GuardNotBegunError():
                attempts = effect_failures.most_attempts(effects)
                log.warning("effects_postponed", attempts=attempts, **fields)
                wait_s = retry_delay_s(attempts, MAX_WAIT_FOR_LOGIN_S)
                ledger.effects.postpone(effects, wait_s, str(error))
            case TransientError() | OutcomeUnknownError():
                attempts = effect_failures.most_attempts(effects)
                log.warning("effects_postponed", attempts=attempts, **fields)
                ledger.effects.postpone(effects, retry_delay_s(attempts), str(error))
            case PermanentError():
                name = {"error": type(error).__name__}
                effect_failures.park_all(
                    ledger,
                    [
                        Failure(effect, str(error), name | self._evidence(effect))
                        for effect in effects
                    ],
                )
            case _:
                log.error("effects_failed_unexpectedly", exc_info=error, **fields)
                # of use only for an effect that was taken alone
                evidence = self._evidence(effects[0])
                effect_failures.give_back_unexpected(ledger, effects, error, **evidence)

    def _evidence(self, effect: OpenEffect) -> dict[str, object]:
        job = self._jobs.get(effect)
        if job is None:
            return {}
        return {"state": job.state, "slurm_id": job.slurm_id}


def _changes(
    outcomes: Sequence[EffectOutcome], starts: Sequence[Start]
) -> tuple[list[JobChange], list[OpenEffect]]:
    """The changes of all events, and the effects whose leases these need."""
    changes = list[JobChange]()
    held = list[OpenEffect]()
    for start in starts:
        for effect, event in start.events.items():
            changes.append(JobChange(effect.job_id, event))
            held.append(effect)
    for outcome in outcomes:
        if outcome.event is None:
            continue
        changes.append(_change(outcome, outcome.event))
        if isinstance(outcome.event, REQUIRES_LEASE):
            held.append(outcome.effect)
    return changes, held


def _crash_point_of(
    outcomes: Sequence[EffectOutcome],
) -> AbstractContextManager[None]:
    if any(isinstance(outcome.event, Submitted) for outcome in outcomes):
        return crash_point(CrashPoint.ID_STORED)
    return nullcontext()


def _change(outcome: EffectOutcome, event: Event) -> JobChange:
    change = JobChange(
        outcome.effect.job_id, event, failure_reason=_failure_reason(event)
    )
    if outcome.error is not None:
        return change
    return replace(change, done=outcome.effect)


def _failure_reason(event: Event) -> str | None:
    """Why the effect was carried out without a result, or None. A submission can be cut off,
    searched for and made again without an end. So it counts as a failure, and an alarm
    is raised when it lasts.
    """
    match event:
        case SubmitOutcomeUnknown():
            return event.reason
        case SubmissionNotFound():
            return "its submission was cut off, and SLURM has nothing of it"
    return None


def _log_completed(
    outcomes: Sequence[EffectOutcome], jobs: Mapping[JobId, Job]
) -> None:
    for outcome in outcomes:
        if outcome.error is not None:
            continue
        job = jobs[outcome.effect.job_id]
        log.info(
            "effect_completed",
            job_id=job.job_id,
            kind=outcome.effect.kind,
            state=job.state,
            slurm_id=job.slurm_id,
        )
