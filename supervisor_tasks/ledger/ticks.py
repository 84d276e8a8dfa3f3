"""Ticks: when each piece of periodic work last succeeded, by the database's clock."""

import time

from sqlalchemy import Engine, delete, func, select
from sqlalchemy.dialects.postgresql import insert

from supervisor_tasks.ledger.database import asking
from supervisor_tasks.ledger.models import Tick

TICKS = Tick.metadata.tables["ticks"]

TICK_S = 1.0  # two ticks of one name within that time are one


class Ticks:
    """The ticks of one cluster."""

    def __init__(self, engine: Engine, cluster: str, every_s: float = TICK_S) -> None:
        self._engine = engine
        self._cluster = cluster
        self._every_s = every_s
        self._left_s: dict[str, float] = {}

    def leave(self, *names: str) -> None:
        """Pieces of periodic work have just succeeded; each is written at most once in `every_s`."""
        now_s = time.monotonic()
        new = [name for name in names if now_s - self._left_s.get(name, float("-inf")) >= self._every_s]
        if not new:
            return
        row = insert(TICKS).values(
            [{"cluster": self._cluster, "name": name, "succeeded_at": func.now()} for name in new]
        )
        now = {"succeeded_at": func.now()}
        with self._engine.begin() as connection:
            connection.execute(row.on_conflict_do_update(index_elements=["cluster", "name"], set_=now))
        self._left_s |= dict.fromkeys(new, now_s)

    def remove(self, name: str) -> None:
        """A piece of periodic work does not succeed any more."""
        self._left_s.pop(name, None)
        with self._engine.begin() as connection:
            connection.execute(delete(TICKS).where(TICKS.c.cluster == self._cluster, TICKS.c.name == name))

    def ages_s(self) -> dict[str, float]:
        """How old all ticks are, by the database's clock."""
        age = func.extract("epoch", func.now() - TICKS.c.succeeded_at).label("age_s")
        query = select(TICKS.c.name, age).where(TICKS.c.cluster == self._cluster)
        with asking(self._engine) as connection:
            return {row.name: float(row.age_s) for row in connection.execute(query)}

    def age_s(self, name: str) -> float | None:
        """How long ago a piece of periodic work succeeded, by the database's clock; None when it never did."""
        age = func.extract("epoch", func.now() - TICKS.c.succeeded_at)
        with asking(self._engine) as connection:
            found = connection.scalar(select(age).where(TICKS.c.cluster == self._cluster, TICKS.c.name == name))
        return None if found is None else float(found)
