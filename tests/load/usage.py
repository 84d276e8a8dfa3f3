"""Measures the usage of a grid's own processes: CPU, memory, messages, transactions."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, cast

import psutil
import redis
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from devgrid.grid import Grid

FLEET = ("worker", "beat", "callbacks", "flower")
OWN = (*FLEET, "reporter", "postgres", "redis")
SECOND_WORKER = "worker-2"
_TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage so far: seconds of CPU by process, messages sent to the broker,
    transactions of Postgres.
    """

    cpu_s: dict[str, float]
    messages: int
    transactions: int

    def since(self, before: "Usage") -> "Usage":
        """The usage between `before` and this one."""
        cpu_s = {
            name: used - before.cpu_s.get(name, 0.0)
            for name, used in self.cpu_s.items()
        }
        return Usage(
            cpu_s,
            self.messages - before.messages,
            self.transactions - before.transactions,
        )

    def describe(self, jobs: int) -> str:
        """The CPU of each process in milliseconds a job, the greatest first."""
        shares = sorted(self.cpu_s.items(), key=lambda share: -share[1])
        return ", ".join(f"{name} {1000 * used / jobs:.1f}" for name, used in shares)


class Meter:
    """Reads the usage of a grid. Queries its ledger over one connection, whose
    transactions are not counted.
    """

    def __init__(self, grid: Grid, names: Sequence[str] = OWN) -> None:
        self._grid = grid
        self._names = names
        url = grid.environment["DATABASE_URL"]
        self._engine = create_engine(
            url, isolation_level="AUTOCOMMIT", poolclass=NullPool
        )
        self._connection = self._engine.connect()
        self._redis: Any = redis.Redis(
            unix_socket_path=grid.environment["BROKER_URL"].removeprefix(
                "redis+socket://"
            )
        )
        self._queries = 0

    def __enter__(self) -> "Meter":
        return self

    def __exit__(
        self,
        _: type[BaseException] | None,
        __: BaseException | None,
        ___: TracebackType | None,
    ) -> None:
        self._connection.close()
        self._engine.dispose()
        self._redis.close()

    def ask(self, query: str, **parameters: object) -> Any:
        """The single value that a query of the ledger returns."""
        self._queries += 1
        return self._connection.scalar(text(query), parameters)

    def read(self) -> Usage:
        """The usage so far. Postgres counts the transactions of other connections about
        a second late.
        """
        transactions = int(self.ask(_TRANSACTIONS)) - self._queries
        cpu_s = {name: cpu_s_of(self._grid, name) for name in self._names}
        return Usage(cpu_s, self._messages(), transactions)

    def _messages(self) -> int:
        """How many messages were pushed to lists. Published messages are events, which
        only Flower reads.
        """
        counted = cast(dict[str, dict[str, int]], self._redis.info("commandstats"))
        return sum(
            counted.get(f"cmdstat_{name}", {}).get("calls", 0)
            for name in ("lpush", "rpush")
        )


def cpu_s_of(grid: Grid, name: str) -> float:
    """The seconds of CPU that a process and its children have used, with children that
    have ended.
    """
    processes = [process_of(grid, name)]
    processes += processes[0].children(recursive=True)
    return sum(sum(process.cpu_times()[:4]) for process in processes)


def memory_mb(grid: Grid, name: str) -> float:
    """Resident memory of a process."""
    return float(process_of(grid, name).memory_info().rss / 2**20)


def process_of(grid: Grid, name: str) -> psutil.Process:
    """A running process of the grid. Raises RuntimeError when it has ended."""
    process = grid.processes.find(name).process()
    if process is None:
        raise RuntimeError(f"{name} has ended")
    return process
