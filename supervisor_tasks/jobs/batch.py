"""Runs batches of effects: leases the due effects of one kind, carries them out in
parallel, records the outcomes together.

A process has one Batch for each kind. Messages only start it; a message that arrives
while it runs makes it query the ledger again. One thread leases and records, and a
bounded pool of threads carries out. So an effect that hangs or fails delays no other.
Outcomes are committed together, at least every RECORD_EVERY_S. Which function carries
out which kind: batch_policies.py.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from queue import Empty, SimpleQueue
from sys import getsizeof

import structlog

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.instruments import BATCHES, timed
from supervisor_tasks.jobs.batch_policies import BATCH_POLICIES, LeaseDue
from supervisor_tasks.jobs.effect_group import EffectOutcome, Group, Members, Start
from supervisor_tasks.jobs.events import ScriptFetched
from supervisor_tasks.jobs.model import EffectKind, Job
from supervisor_tasks.jobs.outcome_recorder import OutcomeRecorder
from supervisor_tasks.ledger.outbox import LeaseLostError, OpenEffect

log = structlog.get_logger()

RECORD_EVERY_S = 0.25  # after a commit, outcomes wait this long for others
MAX_RECORDED_OUTCOMES = 100  # outcomes in one transaction
# While outcomes of more bytes than this wait for their commit, a thread begins no other
# group. A fetched script has up to 4 MiB, and 64 of them could wait.
MAX_UNRECORDED_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Ended:
    """A group has ended. `effects` is its size, and `lease_rounds` how often the ledger
    was queried for due effects before it began.
    """

    effects: int
    lease_rounds: int


_Item = EffectOutcome | Start | _Ended | None  # None: query the ledger again


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Items that are recorded together: the first outcome of each effect that has none
    yet, the starts, and the groups that have ended.
    """

    items: Sequence[_Item]
    outcomes: Sequence[EffectOutcome]
    starts: Sequence[Start]
    ended: Sequence[_Ended]


class Batch:
    """The effects of one kind that this process carries out. Threads may share it."""

    def __init__(
        self,
        context: WorkerContext,
        kind: EffectKind,
        lease_due: LeaseDue | None = None,
    ) -> None:
        self._context = context
        self._kind = kind
        self._policy = BATCH_POLICIES[kind]
        self._lease_due = lease_due or self._policy.lease_due
        self._pool = ThreadPoolExecutor(
            self._policy.parallel, thread_name_prefix=kind.value
        )
        self._items: SimpleQueue[_Item] = SimpleQueue()
        self._lock = threading.Lock()
        self._unrecorded_bytes = 0
        self._closed = False
        self._memory_freed = threading.Condition()
        self._lease_again = False
        self._runs = False
        # Only the thread that runs the batch uses these.
        self._jobs: dict[OpenEffect, Job] = {}  # of effects without a recorded outcome
        self._recorder = OutcomeRecorder(context, kind, self._jobs)
        self._groups = 0
        self._lease_rounds = 0
        self._recorded_s = float("-inf")

    def run(self, goes_on: Callable[[], bool]) -> None:
        """Carry out all due effects, as long as `goes_on` answers True, and record what
        came of them. Returns at once if another thread already runs the batch; that
        thread then leases again. Raises LedgerUnavailableError, when the database does
        not answer; a retry helps.
        """
        with self._lock:
            self._lease_again = True
            if self._runs:
                self._items.put(None)
                return
            self._runs = True
        failure: Exception | None = None
        while not self._is_done(goes_on):
            may_begin_more = self._groups < self._policy.max_groups
            try:
                if self._lease_again and may_begin_more and goes_on():
                    self._begin_due()
            except Exception as error:  # noqa: BLE001  raised after the groups under way have ended
                log.warning("effect_lease_failed", kind=self._kind, error=repr(error))
                failure = error
            if self._groups:
                failure = self._record(self._gather()) or failure
        if failure is not None:
            raise failure

    def _record(self, gathered: _Gathered) -> Exception | None:
        """Record outcomes and starts. If the recorder itself fails, its error is
        returned, and all of these count as under way no longer: their leases end at
        their time. Otherwise no further effect of the kind would be carried out.
        """
        failure: Exception | None = None
        lost: Sequence[OpenEffect] = []
        try:
            lost = self._recorder.record(gathered.outcomes, gathered.starts)
        except Exception as error:
            log.exception("effect_outcomes_not_recorded", kind=self._kind)
            failure = error
            for start in gathered.starts:
                start.fail(error)
        self._finish(gathered, lost)
        self._release_bytes(gathered.items)
        return failure

    def close(self) -> None:
        """Begin no more groups."""
        with self._memory_freed:
            self._closed = True
            self._memory_freed.notify_all()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _is_done(self, goes_on: Callable[[], bool]) -> bool:
        with self._lock:
            if self._groups:
                return False
            if self._lease_again and goes_on():
                return False
            self._runs = False
            return True

    # --- due effects are leased, and groups of them begin -----------------------------

    def _begin_due(self) -> None:
        """Lease what is due, and have the policy's function carry out each group, on a
        thread of the pool.
        """
        with self._lock:
            self._lease_again = False
        self._lease_rounds += 1
        max_new = self._policy.max_groups - self._groups
        effects = self._lease_due(self._context.ledger, max_new)
        if not effects:
            return
        groups = self._grouped(self._with_jobs(effects))
        may_be_more = effects[0].is_isolated or len(groups) >= max_new
        if may_be_more or self._is_whole_group(max(map(len, groups))):
            self._lease_again = True  # more effects may be due
        for members in groups:
            group = Group(self._context, members, self._await_commit)
            done = self._pool.submit(self._in_context, self._policy.handler, group)
            self._groups += 1
            self._jobs |= {effect: job for job, effect in members}
            done.add_done_callback(partial(self._ended, group, self._lease_rounds))

    def _with_jobs(self, effects: Sequence[OpenEffect]) -> Members:
        """The effects with their jobs. If the ledger does not answer, the effects are
        given back.
        """
        try:
            jobs = self._context.ledger.jobs({effect.job_id for effect in effects})
            return [(jobs[effect.job_id], effect) for effect in effects]
        except Exception as error:
            self._recorder.give_back(
                [EffectOutcome(effect, error=error) for effect in effects]
            )
            raise

    def _grouped(self, members: Members) -> list[Members]:
        if self._policy.group_size == 1:
            return [[member] for member in members]
        ordered = sorted(members, key=_customer)
        return [list(group) for _, group in groupby(ordered, key=_customer)]

    def _is_whole_group(self, effects: int) -> bool:
        """Whether a group of so many effects takes no more. Its customer may have more
        that are due.
        """
        return self._policy.group_size > 1 and effects >= self._policy.group_size

    def _in_context(self, handler: Callable[[Group], None], group: Group) -> None:
        """Call `handler` with the group, in the log's context. Then wait while the
        outcomes that wait for their commit fill their memory.
        """
        if len(group.members) == 1:
            fields: dict[str, object] = {"job_id": group.members[0][0].job_id}
        else:
            fields = {"jobs": len(group.members)}
        log_context = structlog.contextvars.bound_contextvars(
            task=self._kind.value, **fields
        )
        with log_context, timed(BATCHES, self._kind.value):
            handler(group)
        with self._memory_freed:
            self._memory_freed.wait_for(
                lambda: self._closed or not self._memory_is_full()
            )

    def _memory_is_full(self) -> bool:
        """Whether the outcomes that wait for their commit fill their memory."""
        return self._unrecorded_bytes > MAX_UNRECORDED_BYTES

    def _await_commit(self, item: EffectOutcome | Start) -> None:
        """Have the thread that runs the batch record an outcome or a start."""
        with self._memory_freed:
            self._unrecorded_bytes += _bytes([item])
        self._items.put(item)

    def _ended(self, group: Group, lease_rounds: int, done: "Future[None]") -> None:
        """Answer each effect of the group that has no answer yet, with the error that
        ended the group.
        """
        error = CancelledError() if done.cancelled() else done.exception()
        if not isinstance(error, Exception):
            error = RuntimeError(
                f"the function that carried it out gave no outcome: {error!r}"
            )
        group.fail(error)
        self._items.put(_Ended(len(group.members), lease_rounds))

    # --- outcomes are gathered and recorded -------------------------------------------

    def _gather(self) -> _Gathered:
        """Wait for items, and return them when they must be recorded.

        That is RECORD_EVERY_S after the last commit, and at once in three cases. A
        group waits for a commit. Half of the groups under way have ended, and there is
        room for more. The outcomes fill their memory.
        """
        items = [self._items.get()]
        while (
            len(items) < MAX_RECORDED_OUTCOMES and _bytes(items) <= MAX_UNRECORDED_BYTES
        ):
            left_s = 0.0
            if not self._is_urgent(items):
                left_s = self._recorded_s + RECORD_EVERY_S - time.monotonic()
            try:
                items.append(self._items.get(timeout=max(left_s, 0.0)))
            except Empty:
                break
        return self._sorted(items)

    def _is_urgent(self, items: Sequence[_Item]) -> bool:
        if self._memory_is_full():
            return True
        ended = 0
        for item in items:
            if item is None or isinstance(item, Start):
                return True
            ended += isinstance(item, _Ended)
        return 2 * ended >= self._groups

    def _release_bytes(self, items: Sequence[_Item]) -> None:
        with self._memory_freed:
            self._unrecorded_bytes -= _bytes(items)
            self._memory_freed.notify_all()

    def _sorted(self, items: Sequence[_Item]) -> _Gathered:
        first = dict[OpenEffect, EffectOutcome]()
        starts = list[Start]()
        ended = list[_Ended]()
        for item in items:
            match item:
                case EffectOutcome(effect) if effect in self._jobs:
                    first.setdefault(effect, item)
                case Start():
                    starts.append(item)
                case _Ended():
                    ended.append(item)
        return _Gathered(items, list(first.values()), starts, ended)

    def _finish(self, gathered: _Gathered, lost: Sequence[OpenEffect]) -> None:
        """Take what was recorded off the lists of what is under way. Effects that were
        lost are answered with that.
        """
        # one for all, so that they are given back, and logged, together
        error = LeaseLostError(lost)
        for effect in lost:
            self._items.put(EffectOutcome(effect, error=error))
        if gathered.outcomes or gathered.starts:
            self._recorded_s = time.monotonic()
        for outcome in gathered.outcomes:
            del self._jobs[outcome.effect]
        for group in gathered.ended:
            self._end(group)

    def _end(self, group: _Ended) -> None:
        self._groups -= 1
        if (
            self._is_whole_group(group.effects)
            or self._lease_rounds > group.lease_rounds
        ):
            # effects that became due meanwhile may wait for the end of this group
            self._lease_again = True


def _bytes(items: Sequence[_Item]) -> int:
    """The memory that outcomes take, as far as it can be much."""
    total = 0
    for item in items:
        if isinstance(item, EffectOutcome) and isinstance(item.event, ScriptFetched):
            total += getsizeof(item.event.script)
    return total


def _customer(member: tuple[Job, OpenEffect]) -> str:
    return member[0].customer
