"""Runs batches of effects: leases the due effects of one kind, works in parallel, and records the answers together.

A process has one Batch for each kind. Messages only wake it; a message that arrives while it runs makes it look again.
One thread leases and records, and a bounded pool of threads works. So an effect that hangs or fails delays no other.
Answers are committed together, at least every RECORD_EVERY_S.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from queue import Empty, SimpleQueue

import structlog

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.crash_points import CrashPoint, crash_point
from supervisor_tasks.errors import OutcomeUnknownError, PermanentError, TransientError
from supervisor_tasks.jobs import exclusive_run
from supervisor_tasks.jobs.backoff import retry_delay_s
from supervisor_tasks.jobs.cancel import cancel
from supervisor_tasks.jobs.events import (
    Event,
    SubmissionNotFound,
    SubmitNotExecuted,
    SubmitOutcomeUnknown,
    SubmitRejected,
    Submitted,
)
from supervisor_tasks.jobs.extend_time_limit import extend_time_limit
from supervisor_tasks.jobs.fetch_script import fetch
from supervisor_tasks.jobs.group import EffectOutcome, Group, one_by_one
from supervisor_tasks.jobs.model import EffectKind, Job, JobId
from supervisor_tasks.jobs.notify_customer import notify_customer
from supervisor_tasks.jobs.submit import submit
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.outbox import LeaseLostError, OpenEffect
from supervisor_tasks.monitoring.instruments import BATCHES, timed
from supervisor_tasks.slurm.ssh import SshSilentError

log = structlog.get_logger()

RECORD_EVERY_S = 0.25  # after a commit, answers wait this long for others
RECORD_AT_MOST = 100  # answers in one transaction
OF_ONE_CUSTOMER = 20  # submissions in one command: they share the time in which sbatch may begin
# Events that are true only for the moment. They count only if this worker still holds the effect. Permanent facts, such
# as an id, always count.
REQUIRES_LEASE = (SubmissionNotFound, SubmitNotExecuted, SubmitRejected, SubmitOutcomeUnknown)

Take = Callable[[Ledger, int], list[OpenEffect]]  # with the most groups to take


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """How a process carries out effects of a kind. `at_once` groups run in parallel, with at most `of_one` effects
    each. `waiting` more groups are taken, so that no thread is idle until the next commit.
    """

    work: Callable[[Group], None]
    at_once: int
    take: Take
    waiting: int = 0
    of_one: int = 1

    @property
    def room(self) -> int:
        """The most groups that are taken."""
        return self.at_once + self.waiting


def _due(kind: EffectKind) -> Take:
    return lambda ledger, most: ledger.effects.lease([kind], most)


def _due_of_customers(ledger: Ledger, most: int) -> list[OpenEffect]:
    return ledger.effects.lease_groups(most, OF_ONE_CUSTOMER)


BATCH_POLICIES = {
    EffectKind.FETCH: BatchPolicy(
        one_by_one(lambda context, job, effect: fetch(context, job, effect.attempts)), 16, _due(EffectKind.FETCH), 48
    ),
    # Half of these threads serve all customers whose logins are slow (SLOW_COMMANDS in slurm/ssh.py).
    EffectKind.SUBMIT: BatchPolicy(submit, 16, _due_of_customers, of_one=OF_ONE_CUSTOMER),
    EffectKind.CANCEL: BatchPolicy(
        one_by_one(lambda context, job, _: cancel(context, job)), 4, _due(EffectKind.CANCEL), 12
    ),
    EffectKind.TOP_UP: BatchPolicy(
        one_by_one(lambda context, job, _: extend_time_limit(context, job)), 4, _due(EffectKind.TOP_UP), 12
    ),
    EffectKind.NOTIFY_CUSTOMER: BatchPolicy(
        one_by_one(lambda context, job, _: notify_customer(context, job)), 8, _due(EffectKind.NOTIFY_CUSTOMER), 24
    ),
}


@dataclass(slots=True)
class _Start:
    """Events that must be committed before a group goes on."""

    events: Mapping[OpenEffect, Event]
    committed: "Future[Mapping[JobId, Job]]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class _Ended:
    """A group has ended. `effects` is its size, and `polls` the number of looks at due effects before it began."""

    effects: int
    polls: int


_Item = EffectOutcome | _Start | _Ended | None  # None: look again


class Batch:
    """The effects of one kind that this process carries out. Threads may share it."""

    def __init__(self, context: WorkerContext, kind: EffectKind, take: Take | None = None) -> None:
        self._context = context
        self._kind = kind
        self._way = BATCH_POLICIES[kind]
        self._take_due = take or self._way.take
        self._pool = ThreadPoolExecutor(self._way.at_once, thread_name_prefix=kind.value)
        self._items: SimpleQueue[_Item] = SimpleQueue()
        self._lock = threading.Lock()
        self._asked = False
        self._runs = False
        # Only the thread that runs the batch uses these.
        self._jobs: dict[OpenEffect, Job] = {}  # of effects without a recorded answer
        self._groups = 0
        self._polls = 0
        self._recorded_s = float("-inf")

    def run(self, goes_on: Callable[[], bool]) -> None:
        """Carry out all due effects, as long as `goes_on` answers True. Returns at once if another thread already runs
        the batch; that thread then looks again. Raises LedgerUnavailableError; a retry helps.
        """
        with self._lock:
            self._asked = True
            if self._runs:
                self._items.put(None)
                return
            self._runs = True
        failure: Exception | None = None
        while not self._is_done(goes_on):
            try:
                if self._may_take() and goes_on():
                    self._take()
            except Exception as error:  # noqa: BLE001  raised after the groups under way have ended
                log.warning("effect_lease_failed", kind=self._kind, error=repr(error))
                failure = error
            if self._groups:
                self._record(self._gather())
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Begin no more groups."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _is_done(self, goes_on: Callable[[], bool]) -> bool:
        with self._lock:
            if self._groups or (self._asked and goes_on()):
                return False
            self._runs = False
            return True

    # --- what is due ------------------------------------------------------------------------------------------------

    def _may_take(self) -> bool:
        return self._asked and self._groups < self._way.room

    def _take(self) -> None:
        with self._lock:
            self._asked = False
        self._polls += 1
        room = self._way.room - self._groups
        taken = self._take_due(self._context.ledger, room)
        if not taken:
            return
        try:
            jobs = self._context.ledger.jobs({effect.job_id for effect in taken})
        except Exception as error:
            self._give_back([EffectOutcome(effect, error=error) for effect in taken])
            raise
        groups = self._grouped([(jobs[effect.job_id], effect) for effect in taken])
        is_full = len(groups) >= room or any(len(group) >= self._way.of_one > 1 for group in groups)
        if is_full or taken[0].is_alone:
            self._asked = True
        for members in groups:
            self._begin(members)

    def _grouped(self, members: Sequence[tuple[Job, OpenEffect]]) -> list[list[tuple[Job, OpenEffect]]]:
        if self._way.of_one == 1:
            return [[member] for member in members]
        ordered = sorted(members, key=lambda member: member[0].customer)
        return [list(group) for _, group in groupby(ordered, key=lambda member: member[0].customer)]

    def _begin(self, members: Sequence[tuple[Job, OpenEffect]]) -> None:
        self._groups += 1
        self._jobs |= {effect: job for job, effect in members}
        group = Group(self._context, members, self._start, self._items.put)
        working = self._pool.submit(self._carry_out, group)
        working.add_done_callback(partial(self._ended, group, self._polls))

    def _carry_out(self, group: Group) -> None:
        shown = {"job_id": group.members[0][0].job_id} if len(group.members) == 1 else {"jobs": len(group.members)}
        log_context = structlog.contextvars.bound_contextvars(task=self._kind.value, **shown)
        with log_context, timed(BATCHES, self._kind.value):
            self._way.work(group)

    def _ended(self, group: Group, polls: int, done: "Future[None]") -> None:
        """Answer each effect of the group that has no answer yet, with the error that ended the group."""
        error = CancelledError() if done.cancelled() else done.exception()
        group.failed(
            error if isinstance(error, Exception) else RuntimeError(f"it was not said what came of this: {error!r}")
        )
        self._items.put(_Ended(len(group.members), polls))

    def _start(self, events: Mapping[OpenEffect, Event]) -> Mapping[JobId, Job]:
        start = _Start(events)
        self._items.put(start)
        return start.committed.result()

    # --- what came of it --------------------------------------------------------------------------------------------

    def _gather(self) -> list[_Item]:
        """Wait for items, and return them when they must be recorded.

        That is at once if there was no commit for RECORD_EVERY_S, if a group waits for a commit, or if half of the
        groups under way have ended and there is room for more. Otherwise it is RECORD_EVERY_S after the last commit.
        """
        items = [self._items.get()]
        while len(items) < RECORD_AT_MOST:
            left_s = 0.0 if self._is_urgent(items) else self._recorded_s + RECORD_EVERY_S - time.monotonic()
            try:
                items.append(self._items.get(timeout=left_s) if left_s > 0 else self._items.get_nowait())
            except Empty:
                break
        return items

    def _is_urgent(self, items: Sequence[_Item]) -> bool:
        ended = sum(isinstance(item, _Ended) for item in items)
        return 2 * ended >= self._groups or any(item is None or isinstance(item, _Start) for item in items)

    def _record(self, items: Sequence[_Item]) -> None:
        outcomes = {
            item.effect: item for item in reversed(items) if isinstance(item, EffectOutcome)
        }  # the first one counts
        new = [outcome for effect, outcome in outcomes.items() if effect in self._jobs]
        starts = [item for item in items if isinstance(item, _Start)]
        if new or starts:
            self._commit(new, starts)
            self._recorded_s = time.monotonic()
        for outcome in new:
            del self._jobs[outcome.effect]
        for item in items:
            if isinstance(item, _Ended):
                self._end(item)

    def _end(self, group: _Ended) -> None:
        self._groups -= 1
        if group.effects >= self._way.of_one > 1 or self._polls > group.polls:
            self._asked = True  # effects that became due meanwhile may wait for the end of this group

    def _commit(self, outcomes: Sequence[EffectOutcome], starts: Sequence[_Start]) -> None:
        """Record all answers in one transaction. Effects that another worker holds by now are left out. If the
        transaction fails for another reason than an outage, each answer is recorded alone.
        """
        try:
            after = self._recorded(outcomes, starts)
        except LeaseLostError as error:
            self._commit(*_without(error, outcomes, starts))
            lost = [outcome.effect for outcome in outcomes if _is_lost(outcome, error)]
            lost += [effect for start in starts for effect in start.events if effect.id in error.lost]
            for effect in lost:
                self._items.put(EffectOutcome(effect, error=error))
        except Exception as error:  # noqa: BLE001  becomes the answer of each effect
            if len(outcomes) + len(starts) > 1 and not isinstance(error, TransientError):
                self._commit_each(outcomes, starts)
                return
            for start in starts:
                start.committed.set_exception(error)
            self._give_back([EffectOutcome(outcome.effect, error=error) for outcome in outcomes])
        else:
            for start in starts:
                start.committed.set_result({effect.job_id: after[effect.job_id] for effect in start.events})
            self._give_back([outcome for outcome in outcomes if outcome.error is not None])
            _report_outcomes(outcomes, after)

    def _commit_each(self, outcomes: Sequence[EffectOutcome], starts: Sequence[_Start]) -> None:
        for outcome in outcomes:
            self._commit([outcome], [])
        for start in starts:
            self._commit([], [start])

    def _recorded(self, outcomes: Sequence[EffectOutcome], starts: Sequence[_Start]) -> dict[JobId, Job]:
        changes = [JobChange(effect.job_id, event) for start in starts for effect, event in start.events.items()]
        held = [effect for start in starts for effect in start.events]
        for outcome in outcomes:
            if outcome.event is not None:
                changes.append(_change(outcome, outcome.event))
                held += [outcome.effect] if isinstance(outcome.event, REQUIRES_LEASE) else []
        if not changes:
            return {}
        has_ids = any(isinstance(outcome.event, Submitted) for outcome in outcomes)
        with crash_point(CrashPoint.ID_STORED) if has_ids else nullcontext():
            return self._context.ledger.record(*changes, held=held)

    def _give_back(self, outcomes: Iterable[EffectOutcome]) -> None:
        """Give back the effects that failed; those with the same error together."""
        by_error = dict[tuple[type, str], list[EffectOutcome]]()
        for outcome in outcomes:
            by_error.setdefault((type(outcome.error), str(outcome.error)), []).append(outcome)
        for alike in by_error.values():
            error = alike[0].error
            assert error is not None  # noqa: S101
            try:
                self._fail([outcome.effect for outcome in alike], error)
            except Exception as failure:  # noqa: BLE001  their leases run out; a raise would end all work of this kind
                log.warning("lease_release_failed", effects=len(alike), error=repr(failure))

    def _fail(self, effects: Sequence[OpenEffect], error: Exception) -> None:
        ledger = self._context.ledger
        about = {"kind": self._kind, "jobs": [effect.job_id for effect in effects], "error": str(error)}
        match error:
            case LeaseLostError():
                log.warning("effect_leases_lost", **about)
            case SshSilentError():
                log.warning("login_not_answering", **about)
                ledger.effects.postpone(effects, error.again_in_s, str(error))
            case TransientError() | OutcomeUnknownError():
                attempts = max(effect.attempts for effect in effects)
                log.warning("effects_postponed", attempts=attempts, **about)
                ledger.effects.postpone(effects, retry_delay_s(attempts), str(error))
            case PermanentError():
                for effect in effects:
                    exclusive_run.park(ledger, effect, str(error), error=type(error).__name__, **self._seen(effect))
            case _:
                log.error("effects_failed_unexpectedly", exc_info=error, **about)
                seen = self._seen(effects[0]) if len(effects) == 1 else {}
                exclusive_run.give_back_unforeseen(ledger, effects, error, **seen)

    def _seen(self, effect: OpenEffect) -> dict[str, object]:
        job = self._jobs.get(effect)
        return {} if job is None else {"state": job.state, "slurm_id": job.slurm_id}


def _change(outcome: EffectOutcome, event: Event) -> JobChange:
    ends = outcome.error is None
    return JobChange(
        outcome.effect.job_id, event, done=outcome.effect if ends else None, failure_reason=_failure_reason(event)
    )


def _failure_reason(event: Event) -> str | None:
    """Why the effect was carried out in vain, or None. A submission can be cut off, searched for and made again without
    an end. So it counts as a failure, and an alarm is raised when it lasts.
    """
    if isinstance(event, SubmitOutcomeUnknown):
        return event.reason
    return "its submission was cut off, and SLURM has nothing of it" if isinstance(event, SubmissionNotFound) else None


def _is_lost(outcome: EffectOutcome, error: LeaseLostError) -> bool:
    return outcome.effect.id in error.lost and isinstance(outcome.event, REQUIRES_LEASE)


def _without(
    error: LeaseLostError, outcomes: Sequence[EffectOutcome], starts: Sequence[_Start]
) -> tuple[list[EffectOutcome], list[_Start]]:
    left = [_start_without(error, start) for start in starts]
    return [outcome for outcome in outcomes if not _is_lost(outcome, error)], left


def _start_without(error: LeaseLostError, start: _Start) -> _Start:
    events = {effect: event for effect, event in start.events.items() if effect.id not in error.lost}
    return _Start(events, start.committed)


def _report_outcomes(outcomes: Sequence[EffectOutcome], after: Mapping[JobId, Job]) -> None:
    for outcome in outcomes:
        if outcome.error is None:
            job, effect = after[outcome.effect.job_id], outcome.effect
            log.info("effect_completed", job_id=job.job_id, kind=effect.kind, state=job.state, slurm_id=job.slurm_id)
