"""Which customers are to have an account, and which have one: rows with a due time, as all that is left to do."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, func, select, update
from sqlalchemy.dialects.postgresql import insert

from supervisor_tasks.job import Address
from supervisor_tasks.ledger.models import AccountRow

ACCOUNTS = AccountRow.metadata.tables["accounts"]
MOST = 200  # at a time


@dataclass(frozen=True, slots=True)
class WantedAccount:
    """Whose account is to be made, and how often that was tried."""

    customer: Address
    attempts: int


class Accounts:
    """The accounts of one cluster."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    def want(self, connection: Connection, customers: Sequence[Address]) -> None:
        """Write down, within a transaction, who is to have one; whoever is known already is left as he is."""
        if customers:
            rows = [{"cluster": self._cluster, "customer": customer} for customer in customers]
            connection.execute(insert(ACCOUNTS).on_conflict_do_nothing(), rows)

    def due(self) -> list[WantedAccount]:
        """What is to be made now."""
        waiting = ACCOUNTS.c.cluster == self._cluster, ACCOUNTS.c.done_at.is_(None), ACCOUNTS.c.due_at <= func.now()
        query = select(ACCOUNTS.c.customer, ACCOUNTS.c.attempts).where(*waiting).order_by(ACCOUNTS.c.due_at).limit(MOST)
        with self._engine.connect() as connection:
            return [WantedAccount(Address(row.customer), row.attempts) for row in connection.execute(query)]

    def made(self, customer: Address) -> None:
        """He has one."""
        self._set(customer, done_at=func.now(), last_error=None)

    def postpone(self, wanted: WantedAccount, due_in_s: float, error: str) -> None:
        """It did not work; again in a while."""
        later = func.now() + func.make_interval(0, 0, 0, 0, 0, 0, due_in_s)
        self._set(wanted.customer, due_at=later, last_error=error, attempts=ACCOUNTS.c.attempts + 1)

    def _set(self, customer: Address, **values: object) -> None:
        his = ACCOUNTS.c.cluster == self._cluster, ACCOUNTS.c.customer == customer
        with self._engine.begin() as connection:
            connection.execute(update(ACCOUNTS).where(*his).values(**values))
