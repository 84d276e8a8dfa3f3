"""The alarms that are on, for the operator."""

import json
from typing import Any

import structlog
from sqlalchemy import Engine, bindparam, delete, exists, func, select
from sqlalchemy.dialects.postgresql import insert

from supervisor_tasks.alarms.alarm_names import Alarm, AlarmName
from supervisor_tasks.in_memory.read_once import discard, kept
from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.incidents import clear_incident, open_incident
from supervisor_tasks.ledger.stored_text import sanitize_json
from supervisor_tasks.ledger.tables import ALARMS

log = structlog.get_logger()

_ALL = (
    select(ALARMS)
    .where(ALARMS.c.cluster == bindparam("cluster"))
    .order_by(ALARMS.c.raised_at)
)


class Alarms:
    """The alarms of one cluster. Raising an alarm that is on, or ending one that is
    off, writes nothing to the log.

    The transaction that raises or ends an alarm also changes its incident, from which
    the messages to people follow. Its methods raise LedgerUnavailableError, when the
    database does not answer; a retry helps.
    """

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster
        self._key = ("alarms", id(engine), cluster)

    def on(self, name: AlarmName, **details: Any) -> None:
        """Raise an alarm. It is logged once, however often it is raised. Its details
        are the last ones.
        """
        stored_details = sanitize_json(details)
        row = insert(ALARMS).values(
            cluster=self._cluster, name=name.value, details=stored_details
        )
        last_raise = {"details": stored_details, "seen_at": func.now()}
        upsert = row.on_conflict_do_update(
            index_elements=["cluster", "name"], set_=last_raise
        )
        with self._engine.begin() as connection:
            # now() is the start of the transaction: only a row of this transaction has
            # this time
            is_new = connection.scalar(
                upsert.returning(ALARMS.c.raised_at == func.now())
            )
            if is_new:
                open_incident(
                    connection, self._cluster, name.value, json.dumps(stored_details)
                )
        discard(self._key)
        if is_new:
            log.error("alarm_on", alarm=name.value, **details)

    def off(self, name: AlarmName, *, quiet_s: float | None = None) -> None:
        """End an alarm. With `quiet_s`, end it only if it was not raised again for so
        long.
        """
        alarms = kept(self._key, self._all)
        if alarms is not None and all(alarm.name != name for alarm in alarms):
            return
        conditions = [ALARMS.c.cluster == self._cluster, ALARMS.c.name == name.value]
        if quiet_s is not None:
            conditions.append(
                ALARMS.c.seen_at
                <= func.now() - func.make_interval(0, 0, 0, 0, 0, 0, quiet_s)
            )
        # one round trip; mostly the alarm is off
        with read_connection(self._engine) as connection:
            if not connection.scalar(select(exists().where(*conditions))):
                return
        deletion = delete(ALARMS).where(*conditions)
        with self._engine.begin() as connection:
            ended = connection.execute(deletion).rowcount
            if ended:
                clear_incident(connection, self._cluster, name.value)
        if ended:
            log.info("alarm_off", alarm=name.value)
        discard(self._key)

    def all(self) -> list[Alarm]:
        """The alarms that are on, oldest first."""
        alarms = kept(self._key, self._all)
        return self._all() if alarms is None else alarms

    def _all(self) -> list[Alarm]:
        with read_connection(self._engine) as connection:
            rows = connection.execute(_ALL, {"cluster": self._cluster})
            return [Alarm(row.name, row.details, row.raised_at) for row in rows]
