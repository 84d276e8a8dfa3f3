"""What operators changed by a command: the operator, the time, the change and the
reason.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, func, insert, inspect, select, update

from supervisor_tasks.ledger.clusters import known_clusters
from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.stored_text import sanitize_and_truncate
from supervisor_tasks.ledger.tables import OPERATOR_LOG

DONE = "done"


class OperatorLog:
    """The operators' changes of one cluster. Its methods raise LedgerUnavailableError,
    when the database does not answer; a retry helps.
    """

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    def begin(
        self, *subjects: str, operator: str, command: str, change: str, reason: str
    ) -> list[int]:
        """Store what is about to be changed, an entry for each subject; returns their
        ids. The outcome is not known yet.
        """
        texts = {
            "operator": operator,
            "command": command,
            "change": change,
            "reason": reason,
        }
        row = {"cluster": self._cluster} | {
            name: sanitize_and_truncate(text) for name, text in texts.items()
        }
        rows = [
            {**row, "subject": sanitize_and_truncate(subject)} for subject in subjects
        ]
        with self._engine.begin() as connection:
            return list(
                connection.scalars(
                    insert(OPERATOR_LOG).values(rows).returning(OPERATOR_LOG.c.id)
                )
            )

    def end(self, entries: Sequence[int], outcome: str) -> None:
        """Store what came of the change: DONE, or the error."""
        with self._engine.begin() as connection:
            connection.execute(
                update(OPERATOR_LOG)
                .where(OPERATOR_LOG.c.id.in_(entries))
                .values(outcome=sanitize_and_truncate(outcome))
            )

    def last(
        self,
        most: int,
        *,
        since: datetime | None = None,
        operator: str = "",
        command: str = "",
        subject: str = "",
    ) -> list[dict[str, Any]]:
        """The last changes, the latest first. Their operator, command and subject begin
        with these texts. An outcome of None means that the command ended before it
        could store one.
        """
        columns = [column for column in OPERATOR_LOG.c if column.name != "cluster"]
        query = (
            select(*columns)
            .where(OPERATOR_LOG.c.cluster == self._cluster)
            .order_by(OPERATOR_LOG.c.id.desc())
            .limit(most)
        )
        for column, beginning in (
            (OPERATOR_LOG.c.operator, operator),
            (OPERATOR_LOG.c.command, command),
            (OPERATOR_LOG.c.subject, subject),
        ):
            if beginning:
                query = query.where(column.startswith(beginning, autoescape=True))
        if since is not None:
            query = query.where(OPERATOR_LOG.c.at >= since)
        with read_connection(self._engine) as connection:
            return list(map(dict, connection.execute(query).mappings()))

    def now(self) -> datetime:
        """The database's time."""
        with read_connection(self._engine) as connection:
            moment: datetime = connection.execute(select(func.now())).scalar_one()
        return moment


def logs_of_all(engine: Engine, cluster: str) -> list[OperatorLog]:
    """The operators' logs of the cluster and of all others that the ledger knows. Empty
    if the database has the tables of an older release, without such a log or without
    the tables that show the clusters. Raises LedgerUnavailableError, when the database
    does not answer; a retry helps.
    """
    needed = {"operator_log", "jobs", "periodic_runs", "cursors", "instance_tags"}
    if not needed <= set(inspect(engine).get_table_names()):
        return []
    return [
        OperatorLog(engine, name) for name in sorted({cluster, *known_clusters(engine)})
    ]
