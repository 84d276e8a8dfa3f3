"""What the metrics need of the ledger beside the status summary: moments as Unix times,
the wallet, and the totals.

Each query reads a partial index, a small table or the last rows of a large one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from sqlalchemy import Engine, text

from supervisor_tasks.ledger.counters import Counters
from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.fact_store import Facts
from supervisor_tasks.ledger.facts import BALANCE, Balance
from supervisor_tasks.ledger.incidents_sql import MESSAGE_STATE

NEVER = 0.0  # the time of a moment that has not come, or of the first one of no rows

_MOMENTS = text(
    """
    SELECT
        COALESCE((SELECT EXTRACT(EPOCH FROM min(due_at)) FROM effects WHERE cluster = :cluster AND done_at IS NULL
            AND parked_at IS NULL AND lease IS NULL AND due_at <= now()), 0)::float8 AS effect_s,
        COALESCE((SELECT EXTRACT(EPOCH FROM min(received_at)) FROM callbacks
            WHERE cluster = :cluster AND read_at IS NULL), 0)::float8 AS callback_s,
        COALESCE((SELECT EXTRACT(EPOCH FROM min(created_at)) FROM transactions
            WHERE cluster = :cluster AND state IN ('SIGNED', 'SENT')), 0)::float8 AS transaction_s,
        COALESCE((SELECT EXTRACT(EPOCH FROM finished_at) FROM reconciliations
            WHERE cluster = :cluster ORDER BY id DESC LIMIT 1), 0)::float8 AS sweep_s
    """
)
_PERIODIC_RUNS = text(
    "SELECT name, EXTRACT(EPOCH FROM succeeded_at)::float8 AS at_s FROM periodic_runs"
    " WHERE cluster = :cluster AND number IS NULL"
)
_MESSAGES = text(
    f"""
    SELECT {MESSAGE_STATE} AS state, count(*) AS messages FROM alarm_messages AS message
    WHERE message.cluster = :cluster AND message.done_at IS NULL GROUP BY 1
    """  # noqa: S608
)
_COST = text(
    """
    SELECT avg(cost_wei)::float8 FROM (
        SELECT COALESCE(NULLIF(gas_used * gas_price_wei, 0), gas * max_fee_wei) AS cost_wei
        FROM transactions WHERE cluster = :cluster ORDER BY id DESC LIMIT 100
    ) AS last_ones
    """
)


@dataclass(frozen=True, slots=True)
class Moments:
    """Unix times by the database's clock: of the first due effect, unread callback and
    open transaction; of the last sweep's end. NEVER if there is none.
    """

    effect_s: float = NEVER
    callback_s: float = NEVER
    transaction_s: float = NEVER
    sweep_s: float = NEVER


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a cluster. `cost_wei` is the mean cost of the last transactions;
    None if there is none.
    """

    moments: Moments = Moments()
    # the Unix times of the periodic runs, by name
    periodic_runs: Mapping[str, float] = field(default_factory=dict)
    balance: Balance | None = None
    cost_wei: float | None = None
    # by name and label; see counters.py
    totals: Mapping[tuple[str, str], Decimal] = field(default_factory=dict)
    # about alarms, that are left to send, by their state
    messages: Mapping[str, int] = field(default_factory=dict)


def read_figures(engine: Engine, cluster: str) -> Figures:
    """Read the figures. Raises LedgerUnavailableError; a retry helps."""
    here = {"cluster": cluster}
    with read_connection(engine) as connection:
        moments = Moments(*connection.execute(_MOMENTS, here).one())
        periodic_runs: dict[str, float] = dict(
            connection.execute(_PERIODIC_RUNS, here).all()
        )
        messages: dict[str, int] = dict(connection.execute(_MESSAGES, here).all())
        cost_wei = connection.scalar(_COST, here)
    balance = Facts(engine, cluster).get(BALANCE)
    return Figures(
        moments,
        periodic_runs,
        balance,
        cost_wei,
        Counters(engine, cluster).read(),
        messages,
    )
