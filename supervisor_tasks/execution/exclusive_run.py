"""Work that leases all due effects in one batch, and that only one worker does at a
time.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps

import structlog

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import TransientError
from supervisor_tasks.instruments import BATCHES, timed
from supervisor_tasks.ledger.advisory_locks import try_advisory_lock
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.lock_names import cluster_lock
from supervisor_tasks.ledger.periodic_run_names import finished_key

log = structlog.get_logger()

DueWork = Callable[[WorkerContext], bool]
ContextTask = Callable[[WorkerContext], None]


def exclusive(name: str) -> Callable[[DueWork], ContextTask]:
    """Decorate a function that does all that is due and returns whether there is more:
    `run_exclusive` repeats it.
    """
    return lambda work: _repeated(run_exclusive, name, work)


def side_by_side(name: str) -> Callable[[DueWork], ContextTask]:
    """Decorate a function like `exclusive` does, for work that several workers do at
    the same time.
    """
    return lambda work: _repeated(run_side_by_side, name, work)


def _repeated(
    repeat: Callable[[Ledger, str, Callable[[], bool]], None], name: str, work: DueWork
) -> ContextTask:
    @wraps(work)
    def run(context: WorkerContext) -> None:
        repeat(context.ledger, name, partial(work, context))

    return run


def run_exclusive(
    ledger: Ledger, name: str, work: Callable[[], bool], *, takes_long: bool = False
) -> None:
    """Do `work` until it returns False, unless another worker holds the lock.

    A message can arrive just before another worker releases the lock. It is not lost:
    the effects are stored, and `dispatch_due_effects` or beat dispatches them again. A
    worker that did the work records the run. With `takes_long`, a worker that finds the
    lock taken records one, too, and the work is not done once more.

    Raises the error of `work`, and LedgerUnavailableError, when the database does not
    answer; a retry of the latter helps.
    """
    if takes_long:
        _run_with_lock(ledger, name, work, takes_long=True)
    else:
        _run_in_one_thread(ledger, name, lambda: _run_with_lock(ledger, name, work))


def run_side_by_side(ledger: Ledger, name: str, work: Callable[[], bool]) -> None:
    """Do `work` until it returns False, in one thread of this process. Other workers
    may do it at the same time, so `work` leases what it works on. Raises the error of
    `work`, and LedgerUnavailableError, when the database does not answer; a retry of
    the latter helps.
    """
    _run_in_one_thread(ledger, name, lambda: _run(ledger, name, work))


def _run_in_one_thread(ledger: Ledger, name: str, run: Callable[[], None]) -> None:
    """If another thread of this process does the work, that thread does it once more,
    and the database is not asked. In a burst most messages are of that kind.
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
        ledger.local_runs.wait_for_delay(name)
        with record_run(ledger, name):
            left = work()


def _run_with_lock(
    ledger: Ledger, name: str, work: Callable[[], bool], *, takes_long: bool = False
) -> None:
    left = True
    while left:
        if not takes_long:
            ledger.local_runs.wait_for_delay(name)
        # makes this process a holder: if it stands still with the lock, other holders
        # end it
        ledger.holder.number()
        with try_advisory_lock(
            ledger.engine, cluster_lock(ledger.cluster, name)
        ) as mine:
            if not mine:
                if takes_long:
                    ledger.periodic_runs.record(finished_key(name))
                return
            with record_run(ledger, name):
                left = work()


@contextmanager
def record_run(
    ledger: Ledger, name: str, readings: Callable[[], Mapping[str, int]] = dict
) -> Iterator[None]:
    """Record up to two runs of periodic work. The first: it came to an end, so this
    program makes progress. The second: it succeeded, so the other systems answer too.
    `readings` are numbers that it read from them. Raises the error of the work within,
    and LedgerUnavailableError, when the database does not answer; a retry of the latter
    helps.
    """
    try:
        with timed(BATCHES, name):
            yield
    except TransientError:
        ledger.periodic_runs.record(finished_key(name))
        raise
    ledger.periodic_runs.record(finished_key(name), name, readings=readings)
