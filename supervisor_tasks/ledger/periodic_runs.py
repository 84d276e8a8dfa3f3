"""Periodic runs: when each piece of periodic work last succeeded, by the database's
clock.

A run with a number is a reading: what a process last read elsewhere, such as the
chain's head. It is written with a run that is due in any case, so it costs no
transaction of its own.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import Engine, delete, func, select

from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.mapping import optional_float
from supervisor_tasks.ledger.periodic_runs_sql import RECORD_RUNS
from supervisor_tasks.ledger.tables import PERIODIC_RUNS

RECORD_EVERY_S = 1.0  # within this time, only the first run of a name is written


class PeriodicRuns:
    """The periodic runs of one cluster. Its methods raise LedgerUnavailableError, when
    the database does not answer; a retry helps.
    """

    def __init__(
        self, engine: Engine, cluster: str, every_s: float = RECORD_EVERY_S
    ) -> None:
        self._engine = engine
        self._cluster = cluster
        self._every_s = every_s
        self._recorded_s: dict[str, float] = {}
        self._held = threading.local()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Inside this context, the runs that this thread records are written by one
        statement, at its end.
        """
        self._held.numbers = {}
        try:
            yield
        finally:
            numbers = self._held.numbers
            del self._held.numbers
            if numbers:
                self._write(numbers)

    def record(
        self, *names: str, readings: Callable[[], Mapping[str, int]] = dict
    ) -> None:
        """Store that this periodic work has just succeeded, and what it read. Each run
        is written at most once in `every_s`; `readings` is called only when one is
        written.
        """
        now_s = time.monotonic()
        new = [
            name
            for name in names
            if now_s - self._recorded_s.get(name, float("-inf")) >= self._every_s
        ]
        if not new:
            return
        numbers: dict[str, int | None] = {**dict.fromkeys(new), **readings()}
        held = getattr(self._held, "numbers", None)
        if held is None:
            self._write(numbers)
        else:
            held |= numbers
        self._recorded_s |= dict.fromkeys(new, now_s)

    def _write(self, numbers: Mapping[str, int | None]) -> None:
        given = {
            "cluster": self._cluster,
            "names": list(numbers),
            "numbers": list(numbers.values()),
        }
        with read_connection(self._engine) as connection:
            connection.exec_driver_sql(RECORD_RUNS, given)

    def remove(self, name: str) -> None:
        """Delete a run: this periodic work is not done any more."""
        self._recorded_s.pop(name, None)
        with self._engine.begin() as connection:
            connection.execute(
                delete(PERIODIC_RUNS).where(
                    PERIODIC_RUNS.c.cluster == self._cluster,
                    PERIODIC_RUNS.c.name == name,
                )
            )

    def ages_s(self) -> dict[str, float]:
        """The ages of all periodic runs in seconds, by the database's clock."""
        age = func.extract("epoch", func.now() - PERIODIC_RUNS.c.succeeded_at).label(
            "age_s"
        )
        query = select(PERIODIC_RUNS.c.name, age).where(
            PERIODIC_RUNS.c.cluster == self._cluster
        )
        with read_connection(self._engine) as connection:
            return {row.name: float(row.age_s) for row in connection.execute(query)}

    def age_s(self, name: str) -> float | None:
        """How many seconds ago this periodic work succeeded, by the database's clock;
        None when it never did.
        """
        age = func.extract("epoch", func.now() - PERIODIC_RUNS.c.succeeded_at)
        with read_connection(self._engine) as connection:
            found = connection.scalar(
                select(age).where(
                    PERIODIC_RUNS.c.cluster == self._cluster,
                    PERIODIC_RUNS.c.name == name,
                )
            )
        return optional_float(found)
