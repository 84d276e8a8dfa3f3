"""The facts of one cluster in the ledger."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, bindparam, delete, func, select, text

from supervisor_tasks.in_memory.read_once import discard, kept
from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.facts import Fact, Stored, Value
from supervisor_tasks.ledger.tables import FACTS

Default = TypeVar("Default")

AGE_S = func.extract("epoch", func.now() - FACTS.c.since).label("age_s")
_ALL = select(FACTS.c.name, FACTS.c.value, AGE_S).where(
    FACTS.c.cluster == bindparam("cluster")
)
_ONE = _ALL.where(FACTS.c.name == bindparam("name"))
# One statement, so it needs no BEGIN and no COMMIT of its own.
_SET = text(
    """
    INSERT INTO facts (cluster, name, value) VALUES (:cluster, :name, :value)
    ON CONFLICT (cluster, name) DO UPDATE SET value = excluded.value, since = now() WHERE facts.value <> excluded.value
    RETURNING name
    """
)


class Facts:
    """The facts of one cluster. Its methods raise LedgerUnavailableError, when the
    database does not answer; a retry helps.
    """

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster
        self._key = ("facts", id(engine), cluster)

    def set(
        self, fact: Fact[Value], value: Value, connection: Connection | None = None
    ) -> bool:
        """Write a fact down. True when it had another value before, or none: only then
        its age restarts at 0. With a connection, this is part of its transaction.
        """
        stored = fact.codec.encode(value)
        given = {"cluster": self._cluster, "name": fact.name, "value": stored}
        with self._own_or(connection, read_connection) as mine:
            is_new = mine.scalar(_SET, given) is not None
        discard(self._key)
        return is_new

    def read(self, fact: Fact[Value]) -> Stored[Value] | None:
        """The fact with its age; None when it is not set."""
        facts = kept(self._key, self._all)
        stored = self._one(fact.name) if facts is None else facts.get(fact.name)
        if stored is None:
            return None
        return Stored(fact.codec.decode(stored.value), stored.age_s)

    def _one(self, name: str) -> Stored[str] | None:
        with read_connection(self._engine) as connection:
            row = connection.execute(
                _ONE, {"cluster": self._cluster, "name": name}
            ).first()
        return None if row is None else Stored(row.value, float(row.age_s))

    def _all(self) -> dict[str, Stored[str]]:
        with read_connection(self._engine) as connection:
            rows = connection.execute(_ALL, {"cluster": self._cluster})
            return {row.name: Stored(row.value, float(row.age_s)) for row in rows}

    def get(self, fact: Fact[Value]) -> Value | None:
        """The value of the fact; None when it is not set."""
        return self.get_or(fact, None)

    def get_or(self, fact: Fact[Value], default: Default) -> Value | Default:
        """The value of the fact; the default when it is not set."""
        stored = self.read(fact)
        return default if stored is None else stored.value

    def clear(self, fact: Fact[Any]) -> None:
        """Delete the value of the fact."""
        with self._engine.begin() as connection:
            connection.execute(delete(FACTS).where(*self._this(fact)))
        discard(self._key)

    def clear_if(
        self, fact: Fact[Value], value: Value, connection: Connection | None = None
    ) -> bool:
        """Delete the value of the fact if it is still `value`; True if it was. With a
        connection, this is part of its transaction.
        """
        this = *self._this(fact), FACTS.c.value == fact.codec.encode(value)
        with self._own_or(connection, Engine.begin) as mine:
            was_this = mine.execute(delete(FACTS).where(*this)).rowcount > 0
        discard(self._key)
        return was_this

    def _own_or(
        self,
        connection: Connection | None,
        begin: Callable[[Engine], AbstractContextManager[Connection]],
    ) -> AbstractContextManager[Connection]:
        """The caller's connection, which stays open; without one, a new connection."""
        if connection is None:
            return begin(self._engine)
        return nullcontext(connection)

    def _this(self, fact: Fact[Any]) -> tuple[Any, ...]:
        return FACTS.c.cluster == self._cluster, FACTS.c.name == fact.name
