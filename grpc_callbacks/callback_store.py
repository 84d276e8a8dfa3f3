"""The statements that store callbacks, and the one connection over which they go. Not
for several threads.

It uses the driver alone: SQLAlchemy would take this process 20 MB, and a fifth of the
CPU of each batch.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import psycopg
from psycopg.rows import dict_row, scalar_row

from grpc_callbacks.callback_limits import (
    MAX_CALLBACKS_WHEN_OVER,
    CallbackOrigin,
    LedgerJob,
    Scope,
    most_of_ours,
    scope_of,
)
from grpc_callbacks.callers import Proof
from supervisor_tasks.connections.postgres_url import for_libpq
from supervisor_tasks.crash_points import CrashPoint, crash_point
from supervisor_tasks.ledger.callbacks_sql import (
    INSERT,
    INSERT_OURS,
    KEPT_EARLY,
    KEPT_UNKNOWN,
    KNOWN,
    NEEDLESS,
    TRY,
)
from supervisor_tasks.ledger.driver import answering_within
from supervisor_tasks.ledger.heartbeats import record_heartbeats

TIMEOUT_S = 2  # the plugins wait for 30 s; sshd and people wait for less

# An index answers every query here. The planner reads a small table as a whole, and
# keeps doing so for minutes after the table has grown, until autovacuum has counted its
# rows: a burst of callbacks into an empty ledger cost 1.5 ms each instead of 0.1 ms.
#
# Postgres would plan a statement for each batch, as it expects more rows of an array
# that it does not know yet, and that took more time than the statement. So a plan is
# kept, but only for PLAN_FOR_S. For an empty table one index is as good as another: a
# plan that was made then read all jobs for each callback, until autovacuum had counted
# the rows.
PLANNER = "-c enable_seqscan=off -c jit=off -c plan_cache_mode=force_generic_plan"
PLAN_FOR_S = 1.0

CONNECT = answering_within(TIMEOUT_S)
CONNECT["options"] += f" {PLANNER}"

# A job's second run begins with the same callback as its first. A repeat after this
# time is a new hint; a plugin that tries again does so sooner.
HINT_AGAIN_S = 30.0

ARRAYS = {
    "job_id": "job_ids",
    "slurm_id": "slurm_ids",
    "status": "statuses",
    "duration_s": "durations_s",
    "exit_code": "exit_codes",
    "peer": "peers",
    "proof": "proofs",
}

KEPT = {CallbackOrigin.EARLY: KEPT_EARLY, CallbackOrigin.UNKNOWN_JOB: KEPT_UNKNOWN}

Row = dict[str, Any]
Content = tuple[str, int, int, int, int]
Connection = psycopg.Connection[Any]


@dataclass(slots=True)
class BatchOutcome:
    """What became of rows, by their id(): those without room, and those about jobs of
    the ledger that were stored.
    """

    refused: dict[int, CallbackOrigin] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)


class CallbackStore:
    """The stored callbacks of one cluster. `most`: how many are kept of each origin.
    `url` has SQLAlchemy's form.
    """

    def __init__(
        self, url: str, cluster: str, most: Mapping[CallbackOrigin, int]
    ) -> None:
        self._url = for_libpq(url)
        self._cluster = cluster
        self._most = most
        self._connection: Connection | None = None
        self._planned_s = float("-inf")

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def store(self, rows: Sequence[Row]) -> BatchOutcome:
        """Commit the rows that have room; without rows, only ask whether the database
        answers. Raises psycopg.Error, when the database does not answer or rejects them; a
        retry helps.

        Tries twice when the connection is broken: one from before a restart of the
        database fails once.
        """
        is_old = self._connection is not None
        try:
            return self._store(rows)
        except psycopg.Error:
            if not is_old or self._connection is not None:
                raise
            return self._store(rows)

    def record_heartbeats(self, names: Collection[str]) -> None:
        """Commit heartbeats. Raises psycopg.Error, when the database does not answer; a
        retry helps.
        """
        connection = self._open()
        with connection.transaction():
            record_heartbeats(connection.execute, self._cluster, names)

    def _store(self, rows: Sequence[Row]) -> BatchOutcome:
        try:
            with _point_of(rows):
                return self._execute(self._open(), rows)
        finally:
            if self._connection is not None and self._connection.broken:
                self._connection = None

    def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(
                self._url, autocommit=True, prepare_threshold=1, **CONNECT
            )
        return self._connection

    def _execute(self, connection: Connection, rows: Sequence[Row]) -> BatchOutcome:
        """Store the rows that have room. Nearly all callbacks are about jobs of ours:
        these need one statement, which is a transaction of its own.
        """
        stored = BatchOutcome()
        if not rows:
            connection.execute(TRY)
            return stored
        self._discard_old_plans(connection)
        ours = self._insert_ours(connection, rows)
        others = list[Row]()
        for row in rows:
            if _content(row) in ours:
                stored.known.add(id(row))
            else:
                others.append(row)
        if others:
            with connection.transaction():
                self._insert_others(connection, others, stored)
        return stored

    def _discard_old_plans(self, connection: Connection) -> None:
        now_s = time.monotonic()
        if now_s - self._planned_s >= PLAN_FOR_S:
            connection.execute("DISCARD PLANS")
            self._planned_s = now_s

    def _insert_ours(self, connection: Connection, rows: Sequence[Row]) -> set[Content]:
        """Store the rows about jobs of ours that have room; returns their contents. Of
        rows with the same content, one is stored, and rather one with a proof.
        """
        by_content = {
            _content(row): row
            for row in sorted(rows, key=lambda row: row["proof"] == Proof.PROVEN)
        }
        one_each = list(by_content.values())
        given = {
            array: list(map(itemgetter(column), one_each))
            for column, array in ARRAYS.items()
        }
        limits = {
            "cluster": self._cluster,
            "most": self._most[CallbackOrigin.OURS],
            "most_over": min(self._most[CallbackOrigin.OURS], MAX_CALLBACKS_WHEN_OVER),
            "again_s": HINT_AGAIN_S,
        }
        places = connection.cursor(row_factory=scalar_row).execute(
            INSERT_OURS, given | limits
        )
        return {_content(one_each[place - 1]) for place in places}

    def _insert_others(
        self, connection: Connection, rows: Sequence[Row], stored: BatchOutcome
    ) -> None:
        """Store the rows that have room. A row without room that is needless (NEEDLESS)
        is not refused: it counts as acknowledged.
        """
        scopes, left = self._limits(connection, rows)
        fitting, others = list[Row](), list[tuple[Row, CallbackOrigin]]()
        for row, scope in zip(rows, scopes, strict=True):
            origin = scope[0]
            if left[scope] <= 0:
                others.append((row, origin))
                continue
            left[scope] -= 1
            is_unknown = origin is CallbackOrigin.UNKNOWN_JOB
            fitting.append(row | {"unknown_job": is_unknown, "again_s": HINT_AGAIN_S})
            if not is_unknown:
                stored.known.add(id(row))
        if fitting:
            connection.cursor().executemany(INSERT, fitting)
        for row, origin in others:
            if not _scalar(connection, NEEDLESS, row):
                stored.refused[id(row)] = origin

    def _limits(
        self, connection: Connection, rows: Sequence[Row]
    ) -> tuple[list[Scope], dict[Scope, int]]:
        """Return each callback's scope, and the room that is left in each scope."""
        pairs = [
            (row["job_id"], row["slurm_id"], row["proof"] == Proof.PROVEN)
            for row in rows
        ]
        job_ids, slurm_ids, proven = zip(*dict.fromkeys(pairs), strict=True)
        about = {
            "job_ids": list(job_ids),
            "slurm_ids": list(slurm_ids),
            "proven": list(proven),
        }
        most = self._most[CallbackOrigin.OURS]
        scopes, left = dict[tuple[str, int, bool], Scope](), dict[Scope, int]()
        for found in (
            connection.cursor(row_factory=dict_row)
            .execute(KNOWN, about | {"cluster": self._cluster, "most": most})
            .fetchall()
        ):
            if found["known"]:
                job = LedgerJob(found["given_id"], found["state"])
            else:
                job = None
            scope = scope_of(
                found["job_id"], found["slurm_id"], job, proven=found["proven"]
            )
            scopes[found["job_id"], found["slurm_id"], found["proven"]] = scope
            if job is not None and scope[0] is CallbackOrigin.OURS:
                kept_of_job = most_of_ours(job, most, proven=found["proven"])
                left[scope] = kept_of_job - found["kept"]
            elif scope not in left:
                left[scope] = self._left_in_scope(connection, scope)
        return [scopes[pair] for pair in pairs], left

    def _left_in_scope(self, connection: Connection, scope: Scope) -> int:
        origin, job_id, _, proven = scope
        about = {
            "cluster": self._cluster,
            "job_id": job_id,
            "proven": proven,
            "most": self._most[origin],
        }
        return self._most[origin] - int(_scalar(connection, KEPT[origin], about))


def _scalar(
    connection: Connection, statement: str, parameters: Mapping[str, Any]
) -> Any:
    return (
        connection.cursor(row_factory=scalar_row)
        .execute(statement, parameters)
        .fetchone()
    )


def _content(row: Row) -> Content:
    """Return the content of a callback: the ledger keeps one row of each."""
    return (
        row["job_id"],
        row["slurm_id"],
        row["status"],
        row["duration_s"],
        row["exit_code"],
    )


def _point_of(rows: Sequence[Row]) -> AbstractContextManager[None]:
    """Return the crash point of a commit; none for a check of the database, which
    changes nothing.
    """
    return crash_point(CrashPoint.CALLBACK_STORED) if rows else nullcontext()
