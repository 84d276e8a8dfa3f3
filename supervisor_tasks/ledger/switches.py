"""Switches that the operator has set."""

from typing import Any

from sqlalchemy import Engine, delete, select
from sqlalchemy.dialects.postgresql import insert

from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.switch_names import Switch
from supervisor_tasks.ledger.tables import SWITCHES


class Switches:
    """The operator's switches of one cluster. Its methods raise LedgerUnavailableError,
    when the database does not answer; a retry helps.
    """

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    def set(self, switch: Switch, reason: str = "") -> None:
        """Turn a switch on. The reason is shown to operators."""
        row = insert(SWITCHES).values(
            cluster=self._cluster, name=switch.value, reason=reason
        )
        upsert = row.on_conflict_do_update(
            index_elements=["cluster", "name"], set_={"reason": reason}
        )
        with self._engine.begin() as connection:
            connection.execute(upsert)

    def unset(self, switch: Switch, reason: str | None = None) -> None:
        """Turn a switch off. With a reason, only if it is on for this reason."""
        deletion = delete(SWITCHES).where(*self._here(switch))
        if reason is not None:
            deletion = deletion.where(SWITCHES.c.reason == reason)
        with self._engine.begin() as connection:
            connection.execute(deletion)

    def is_set(self, switch: Switch) -> bool:
        """Whether the switch is on."""
        return self.reason(switch) is not None

    def reason(self, switch: Switch) -> str | None:
        """The reason why the switch is on; None when it is off."""
        with read_connection(self._engine) as connection:
            found: str | None = connection.scalar(
                select(SWITCHES.c.reason).where(*self._here(switch))
            )
        return found

    def _here(self, switch: Switch) -> tuple[Any, ...]:
        return SWITCHES.c.cluster == self._cluster, SWITCHES.c.name == switch.value
