"""Which customers must get an account, and which have one. Each row has a due time, as all work that is left to do."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from supervisor_tasks.jobs.model import Address
from supervisor_tasks.ledger.mapping import sanitize_and_truncate
from supervisor_tasks.ledger.tables import AccountRow

ACCOUNTS = AccountRow.metadata.tables["accounts"]
MAX_ACCOUNTS = 200  # accounts that are read at a time

# The accounts that were tried without success: the refused ones, with the first of them, and those that wait for long.
TROUBLE = text(
    """
    SELECT count(*) FILTER (WHERE refused) AS refused,
        (array_agg(customer ORDER BY requested_at) FILTER (WHERE refused))[1] AS customer,
        (array_agg(last_error ORDER BY requested_at) FILTER (WHERE refused))[1] AS error,
        count(*) FILTER (WHERE late) AS late,
        COALESCE(max(EXTRACT(EPOCH FROM now() - requested_at)) FILTER (WHERE late), 0)::float8 AS late_s,
        (array_agg(last_error ORDER BY requested_at) FILTER (WHERE late))[1] AS late_error
    FROM (
        SELECT *, starts_with(last_error, :refused) AS refused,
            NOT starts_with(last_error, :refused) AND requested_at < now() - :away_s * interval '1 second' AS late
        FROM accounts WHERE cluster = :cluster AND done_at IS NULL AND last_error IS NOT NULL
    ) AS failing
    """
)


@dataclass(frozen=True, slots=True)
class WantedAccount:
    """The customer whose account must be made, and how often that was tried."""

    customer: Address
    attempts: int


@dataclass(frozen=True, slots=True)
class AccountAlarmSummary:
    """The accounts that were refused, and those that wait for a directory that does not answer."""

    refused: int
    customer: str | None
    error: str | None
    late: int
    late_s: float
    late_error: str | None


class Accounts:
    """The accounts of one cluster."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    def want(self, connection: Connection, customers: Sequence[Address]) -> None:
        """Add customers who must get an account, in the given transaction. Known customers stay as they are."""
        if customers:
            rows = [{"cluster": self._cluster, "customer": customer} for customer in customers]
            connection.execute(insert(ACCOUNTS).on_conflict_do_nothing(), rows)

    def due(self) -> list[WantedAccount]:
        """The accounts that are due now, longest due first, at most MAX_ACCOUNTS."""
        waiting = ACCOUNTS.c.cluster == self._cluster, ACCOUNTS.c.done_at.is_(None), ACCOUNTS.c.due_at <= func.now()
        query = (
            select(ACCOUNTS.c.customer, ACCOUNTS.c.attempts)
            .where(*waiting)
            .order_by(ACCOUNTS.c.due_at)
            .limit(MAX_ACCOUNTS)
        )
        with self._engine.connect() as connection:
            return [WantedAccount(Address(row.customer), row.attempts) for row in connection.execute(query)]

    def trouble(self, refused: str, away_s: float) -> AccountAlarmSummary:
        """The accounts that were tried without success.

        An account is refused if its last error begins with `refused`. Otherwise it is late, `away_s` seconds after it
        was asked for.
        """
        parameters = {"cluster": self._cluster, "refused": refused, "away_s": away_s}
        with self._engine.connect() as connection:
            return AccountAlarmSummary(**connection.execute(TROUBLE, parameters).mappings().one())

    def made(self, customer: Address) -> None:
        """Store that the customer has an account."""
        self._set(customer, done_at=func.now(), last_error=None)

    def postpone(self, wanted: WantedAccount, due_in_s: float, error: str) -> None:
        """Store that the account could not be made. It is due again in `due_in_s` seconds."""
        later = func.now() + func.make_interval(0, 0, 0, 0, 0, 0, due_in_s)
        self._set(
            wanted.customer, due_at=later, last_error=sanitize_and_truncate(error), attempts=ACCOUNTS.c.attempts + 1
        )

    def _set(self, customer: Address, **values: object) -> None:
        his = ACCOUNTS.c.cluster == self._cluster, ACCOUNTS.c.customer == customer
        with self._engine.begin() as connection:
            connection.execute(update(ACCOUNTS).where(*his).values(**values))
