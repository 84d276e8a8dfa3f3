"""Work that takes all due effects in one batch, and that only one worker does at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps

import structlog

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import TransientError
from supervisor_tasks.jobs.backoff import retry_delay_s
from supervisor_tasks.ledger.alarms import AlarmName
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.lock_names import cluster_lock
from supervisor_tasks.ledger.outbox import PARKED_AFTER, OpenEffect
from supervisor_tasks.ledger.tick_names import finished_key
from supervisor_tasks.ledger.worker_sessions import try_advisory_lock
from supervisor_tasks.monitoring.instruments import BATCHES, timed
from supervisor_tasks.slurm.homes import UNSAFE

log = structlog.get_logger()

DIRECTORY_REFUSES = "the directory refuses: "
DIRECTORY_AWAY = "the directory does not answer: "
RUN_NOT_PLANNED = "the run cannot be planned: "
# Alarms about effects whose last error begins with these words, when they have failed for so many seconds.
ALARMS_OF_ERRORS = (
    (AlarmName.HOME_UNSAFE, UNSAFE, 0.0),
    (AlarmName.LDAP_REQUEST_REJECTED, DIRECTORY_REFUSES, 0.0),
    (AlarmName.LDAP_UNAVAILABLE, DIRECTORY_AWAY, 180.0),
    (AlarmName.BENCHMARK_STALLED, RUN_NOT_PLANNED, 0.0),
)


DueWork = Callable[[WorkerContext], bool]
ContextTask = Callable[[WorkerContext], None]


def exclusive(name: str) -> Callable[[DueWork], ContextTask]:
    """Decorate a function that takes all that is due and returns whether there is more: `run_exclusive` repeats it."""

    def decorate(work: DueWork) -> ContextTask:
        @wraps(work)
        def run(context: WorkerContext) -> None:
            run_exclusive(context.ledger, name, partial(work, context))

        return run

    return decorate


def side_by_side(name: str) -> Callable[[DueWork], ContextTask]:
    """Decorate a function like `exclusive` does, for work that several workers do at the same time."""

    def decorate(work: DueWork) -> ContextTask:
        @wraps(work)
        def run(context: WorkerContext) -> None:
            run_side_by_side(context.ledger, name, partial(work, context))

        return run

    return decorate


def run_exclusive(ledger: Ledger, name: str, work: Callable[[], bool], *, takes_long: bool = False) -> None:
    """Do `work` until it returns False, unless another worker holds the lock.

    A wake-up can arrive just before another worker releases the lock. It is not lost: the effects are stored, and
    `dispatch_due_effects` or beat dispatches them again. A worker that did the work leaves a tick. With `takes_long`, a
    worker that finds the lock taken leaves one, too, and the work is not done once more.
    """
    if takes_long:
        _run_with_lock(ledger, name, work, takes_long=True)
    else:
        _run_in_one_thread(ledger, name, lambda: _run_with_lock(ledger, name, work))


def run_side_by_side(ledger: Ledger, name: str, work: Callable[[], bool]) -> None:
    """Do `work` until it returns False, in one thread of this process. Other workers may do it at the same time, so
    `work` takes what it works on by leases.
    """
    _run_in_one_thread(ledger, name, lambda: _run(ledger, name, work))


def _run_in_one_thread(ledger: Ledger, name: str, run: Callable[[], None]) -> None:
    """If another thread of this process does the work, that thread does it once more, and the database is not asked. In
    a burst most wake-ups are of that kind.
    """
    if not ledger.local_runs.begin(name):
        return
    try:
        run()
        while ledger.local_runs.again(name):
            run()
    except BaseException:
        ledger.local_runs.end(name)
        raise


def _run(ledger: Ledger, name: str, work: Callable[[], bool]) -> None:
    left = True
    while left:
        ledger.local_runs.pace(name)
        with record_run(ledger, name):
            left = work()


def _run_with_lock(ledger: Ledger, name: str, work: Callable[[], bool], *, takes_long: bool = False) -> None:
    left = True
    while left:
        if not takes_long:
            ledger.local_runs.pace(name)
        ledger.holder.number()  # makes this process a holder: if it stands still with the lock, other holders end it
        with try_advisory_lock(ledger.engine, cluster_lock(ledger.cluster, name)) as mine:
            if not mine:
                if takes_long:
                    ledger.ticks.record(finished_key(name))
                return
            with record_run(ledger, name):
                left = work()


@contextmanager
def record_run(ledger: Ledger, name: str, readings: Callable[[], Mapping[str, int]] = dict) -> Iterator[None]:
    """Leave up to two ticks for periodic work. The first: it came to an end, so this program makes progress. The
    second: it succeeded, so the other systems answer too. `readings` are numbers that it read from them.
    """
    try:
        with timed(BATCHES, name):
            yield
    except TransientError:
        ledger.ticks.record(finished_key(name))
        raise
    ledger.ticks.record(finished_key(name), name, readings=readings)


@contextmanager
def given_back_on_failure(ledger: Ledger, effects: Sequence[OpenEffect]) -> Iterator[None]:
    """Make the effects of a batch due again soon if the batch fails. A TransientError is logged as a warning. An
    unexpected error is raised; an effect that fails so each time is taken alone, and then parked.
    """
    again_s = retry_delay_s(max(effect.attempts for effect in effects))
    try:
        yield
    except TransientError as error:
        ledger.effects.postpone(effects, again_s, str(error))
        log.warning("batch_postponed", effects=len(effects), error=str(error))
    except Exception as error:
        give_back_unforeseen(ledger, effects, error)
        raise
    except BaseException as error:  # the worker got the order to end: no failure of the effects
        ledger.effects.postpone(effects, again_s, repr(error))
        raise


def give_back_unforeseen(ledger: Ledger, effects: Sequence[OpenEffect], error: Exception, **seen: object) -> None:
    """Make effects due again soon after an unexpected error. One that was taken alone is parked at its third error."""
    if len(effects) == 1 and effects[0].unexpected_failures + 1 >= PARKED_AFTER:
        park(ledger, effects[0], error_text(error), error=type(error).__name__, **seen)
    else:
        again_s = retry_delay_s(max(effect.attempts for effect in effects))
        ledger.effects.postpone(effects, again_s, error_text(error), unexpected=True)


def error_text(error: Exception) -> str:
    """Return an unexpected error for the operator. The repr of an OSError does not name its file."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{type(error).__name__}: {error}"
    return repr(error)


def park(ledger: Ledger, effect: OpenEffect, reason: str, **seen: object) -> None:
    """Leave an effect to the operator, with an alarm and the evidence in `seen`. If news of the job came in meanwhile,
    the effect is tried once more instead.
    """
    parked = ledger.effects.park(effect, reason, {"reason": reason, **seen})
    about = effect.named | {"kind": effect.kind, "attempts": effect.attempts, "reason": reason}
    if not parked:
        log.warning("effect_retried_after_new_event", **about)
        return
    log.error("effect_parked", **about)
    watch_effects(ledger)


def watch_effects(ledger: Ledger) -> None:
    """Call the operator for parked effects, and for effects that have failed for long. The alarms end when there are
    none. Late effects are still tried: an outage never ends a job.
    """
    trouble = ledger.effects.trouble()
    if trouble.parked:
        ledger.alarms.on(
            AlarmName.EFFECT_PARKED, effects=trouble.parked, advice="supervisor effect list --state parked"
        )
    else:
        ledger.alarms.off(AlarmName.EFFECT_PARKED)
    if trouble.late:
        ledger.alarms.on(
            AlarmName.EFFECT_OVERDUE,
            effects=trouble.late,
            tries=trouble.most_tries,
            for_s=round(trouble.longest_s),
            last_error=trouble.last_error,
        )
    else:
        ledger.alarms.off(AlarmName.EFFECT_OVERDUE)
    for alarm, words, for_s in ALARMS_OF_ERRORS:
        _watch_errors(ledger, alarm, words, for_s)


def _watch_errors(ledger: Ledger, alarm: AlarmName, words: str, for_s: float) -> None:
    failing = ledger.effects.failing_with(words, for_s)
    if failing.effects:
        ledger.alarms.on(alarm, effects=failing.effects, errors=failing.errors, subjects=failing.subjects)
    else:
        ledger.alarms.off(alarm)
