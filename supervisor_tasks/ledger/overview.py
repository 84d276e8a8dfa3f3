"""What an operator asks the ledger. Every question but those of one job reads partial indexes: a million settled jobs cost
nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, text

from supervisor_tasks.job import ChainStatus
from supervisor_tasks.ledger.facts import ENDPOINTS, Facts
from supervisor_tasks.ledger.operator import Alarm, Alarms, Switch, Switches
from supervisor_tasks.ledger.provider import STANDING
from supervisor_tasks.ledger.sweeps import Sweeps, Swept
from supervisor_tasks.registration import Standing

Row = dict[str, Any]

_HEX_OF_ID = 66  # characters of a whole job id
MOST = 1000  # rows of a list


@dataclass(frozen=True, slots=True)
class EffectCount:
    """The open effects of a kind: due and not begun, waiting for their time, under way, parked. `failing` are those of
    them that have failed lately; `oldest_due_s` is how long the first one has been due.
    """

    kind: str
    due: int
    waiting: int
    leased: int
    parked: int
    failing: int
    oldest_due_s: float


@dataclass(frozen=True, slots=True)
class Writer:
    """The wallet, as the ledger knows it."""

    address: str
    chain_id: int
    next_nonce: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How it stands with a cluster. Settled jobs are not counted: there may be millions of them."""

    cluster: str
    jobs: dict[str, int]
    effects: list[EffectCount]
    unread_callbacks: dict[int, int]
    oldest_unread_s: float
    transactions: dict[str, int]
    oldest_transaction_s: float
    wallet: Writer | None
    cursors: dict[str, int]
    ticks_s: dict[str, float]
    alarms: list[Alarm]
    drained: bool
    held: bool  # nothing is given to SLURM
    last_sweep: Swept | None
    since_sweep_s: float
    standing: Standing | None = None
    endpoints: dict[str, str] = field(default_factory=dict)  # their health, by name


class Overview:
    """The questions about one cluster."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    def snapshot(self) -> Snapshot:
        """How it stands."""
        facts = Facts(self._engine, self._cluster)
        last_sweep = next(iter(Sweeps(self._engine, self._cluster).last()), None)
        with self._engine.connect() as connection:
            unread = self._rows(connection, _UNREAD)
            transactions = self._rows(connection, _TRANSACTIONS)
            return Snapshot(
                cluster=self._cluster,
                jobs={row["state"]: row["n"] for row in self._rows(connection, _JOBS)},
                effects=[EffectCount(**row) for row in self._rows(connection, _EFFECTS)],
                unread_callbacks={row["status"]: row["n"] for row in unread},
                oldest_unread_s=max((row["oldest_s"] for row in unread), default=0.0),
                transactions={row["state"]: row["n"] for row in transactions},
                oldest_transaction_s=max((row["oldest_s"] for row in transactions), default=0.0),
                wallet=next((Writer(**row) for row in self._rows(connection, _WALLET)), None),
                cursors={row["stream"]: row["block_number"] for row in self._rows(connection, _CURSORS)},
                ticks_s={row["name"]: row["age_s"] for row in self._rows(connection, _TICKS)},
                alarms=Alarms(self._engine, self._cluster).all(),
                standing=facts.get(STANDING),
                endpoints=facts.get(ENDPOINTS) or {},
                drained=Switches(self._engine, self._cluster).is_set(Switch.DRAINED),
                held=Switches(self._engine, self._cluster).is_set(Switch.SUBMISSIONS_HELD),
                last_sweep=last_sweep,
                since_sweep_s=0.0 if last_sweep is None else _age_s(connection, last_sweep.finished_at),
            )

    def jobs(self, state: str | None = None) -> list[Row]:
        """Jobs in a state, or all that are not settled; the latest first."""
        with self._engine.connect() as connection:
            return self._rows(connection, _JOB_LIST, state=state, most=MOST)

    def matching(self, beginning: str) -> list[str]:
        """The ids of the jobs that begin so, two at most. Only whole ids are cheap."""
        pattern = beginning.lower() + ("" if len(beginning) == _HEX_OF_ID else "%")
        with self._engine.connect() as connection:
            return [row["job_id"] for row in self._rows(connection, _MATCHING, pattern=pattern)]

    def job(self, job_id: str) -> Row:
        """The facts of a job."""
        with self._engine.connect() as connection:
            (row,) = self._rows(connection, _JOB, job_id=job_id)
            return row

    def story(self, job_id: str) -> list[Row]:
        """All that was written down of a job, in the order in which it happened: `at`, `source`, `what`, `details`."""
        with self._engine.connect() as connection:
            return self._rows(connection, _STORY, job_id=job_id)

    def parked(self) -> list[Row]:
        """The effects that wait for the operator, the one that has waited longest first."""
        with self._engine.connect() as connection:
            return self._rows(connection, _PARKED, most=MOST)

    def transactions(self, only_open: bool) -> list[Row]:
        """The latest transactions, or those that are not known to be mined."""
        with self._engine.connect() as connection:
            return self._rows(connection, _OPEN_TRANSACTIONS if only_open else _LATEST_TRANSACTIONS, most=MOST)

    def _rows(self, connection: Connection, query: str, **parameters: object) -> list[Row]:
        rows = connection.execute(text(query), {"cluster": self._cluster, **parameters}).mappings()
        return [_plain(row) for row in rows]


def _plain(row: Mapping[Any, Any]) -> Row:
    return {
        str(name): ChainStatus(value).name
        if name in ("chain_status", "outcome_status") and value is not None
        else value
        for name, value in row.items()
    }


def _age_s(connection: Connection, moment: datetime) -> float:
    """Seconds since then, by the database's clock."""
    return float(connection.scalar(text("SELECT EXTRACT(EPOCH FROM now() - :moment)::float8"), {"moment": moment}) or 0)


_JOBS = "SELECT state, count(*) AS n FROM jobs WHERE cluster = :cluster AND state <> 'SETTLED' GROUP BY state ORDER BY state"

_EFFECTS = """
    SELECT kind,
        count(*) FILTER (WHERE parked_at IS NULL AND lease IS NULL AND due_at <= now()) AS due,
        count(*) FILTER (WHERE parked_at IS NULL AND lease IS NULL AND due_at > now()) AS waiting,
        count(*) FILTER (WHERE lease IS NOT NULL) AS leased,
        count(*) FILTER (WHERE parked_at IS NOT NULL) AS parked,
        count(*) FILTER (WHERE parked_at IS NULL AND failing_since IS NOT NULL) AS failing,
        COALESCE(max(EXTRACT(EPOCH FROM now() - due_at))
            FILTER (WHERE parked_at IS NULL AND lease IS NULL AND due_at <= now()), 0)::float8 AS oldest_due_s
    FROM effects WHERE cluster = :cluster AND done_at IS NULL GROUP BY kind ORDER BY kind"""

_UNREAD = """
    SELECT status, count(*) AS n, max(EXTRACT(EPOCH FROM now() - received_at))::float8 AS oldest_s
    FROM callbacks WHERE cluster = :cluster AND read_at IS NULL GROUP BY status ORDER BY status"""

_TRANSACTIONS = """
    SELECT state, count(*) AS n, max(EXTRACT(EPOCH FROM now() - created_at))::float8 AS oldest_s
    FROM transactions WHERE cluster = :cluster AND state IN ('SIGNED', 'SENT') GROUP BY state ORDER BY state"""

_WALLET = """
    SELECT address, chain_id, (SELECT max(nonce) + 1 FROM transactions AS of_it
        WHERE of_it.chain_id = last.chain_id AND of_it.address = last.address) AS next_nonce
    FROM (SELECT address, chain_id FROM transactions WHERE cluster = :cluster ORDER BY id DESC LIMIT 1) AS last"""

_CURSORS = "SELECT stream, block_number FROM cursors WHERE cluster = :cluster ORDER BY stream"

_TICKS = """
    SELECT name, EXTRACT(EPOCH FROM now() - succeeded_at)::float8 AS age_s
    FROM ticks WHERE cluster = :cluster ORDER BY name"""

_JOB_LIST = """
    SELECT job_id, state, chain_status, slurm_id, customer, time_limit_min, elapsed_s, created_at, updated_at,
        COALESCE(reason, message) AS reason
    FROM jobs WHERE cluster = :cluster AND state = CAST(:state AS text)
    UNION ALL
    SELECT job_id, state, chain_status, slurm_id, customer, time_limit_min, elapsed_s, created_at, updated_at,
        COALESCE(reason, message)
    FROM jobs WHERE cluster = :cluster AND CAST(:state AS text) IS NULL AND state <> 'SETTLED'
    ORDER BY created_at DESC LIMIT :most"""

_MATCHING = "SELECT job_id FROM jobs WHERE cluster = :cluster AND job_id LIKE :pattern ORDER BY job_id LIMIT 2"

_JOB = """
    SELECT job_id, state, chain_status, chain_block, slurm_id, customer, provider, definition, time_limit_min,
        applied_limit_min, top_ups, cancel_requested, outcome_status, elapsed_s, exit_status, reason, message,
        settled_by_operator, grid_logger_url, octet_length(script) AS script_bytes, claim_key, created_at, updated_at
    FROM jobs WHERE cluster = :cluster AND job_id = :job_id"""

_STORY = """
    SELECT at, source, what, details FROM (
        SELECT at, 'journal' AS source, name AS what, details || jsonb_build_object('state', state) AS details, id
        FROM events WHERE cluster = :cluster AND job_id = :job_id
        UNION ALL
        SELECT created_at, 'effect', kind, jsonb_strip_nulls(jsonb_build_object('effect', id, 'attempts', attempts,
            'due_at', due_at, 'done_at', done_at, 'parked_at', parked_at, 'last_error', last_error,
            'evidence', evidence)), id
        FROM effects WHERE cluster = :cluster AND job_id = :job_id
        UNION ALL
        SELECT received_at, 'callback', 'status ' || status, jsonb_build_object('slurm_id', slurm_id,
            'duration_s', duration_s, 'exit_code', exit_code, 'peer', peer, 'read_at', read_at), id
        FROM callbacks WHERE cluster = :cluster AND job_id = :job_id
        UNION ALL
        SELECT created_at, 'transaction', purpose, jsonb_strip_nulls(jsonb_build_object('hash', hash, 'nonce', nonce,
            'state', state, 'block', block_number, 'error', error, 'sent_at', sent_at, 'done_at', done_at)), id
        FROM transactions WHERE cluster = :cluster AND job_id = :job_id
    ) AS told ORDER BY at, source, id"""

_PARKED = """
    SELECT effects.id AS effect, effects.job_id, kind, jobs.state, parked_at, attempts, last_error, evidence
    FROM effects JOIN jobs USING (cluster, job_id)
    WHERE cluster = :cluster AND done_at IS NULL AND failing_since IS NOT NULL AND parked_at IS NOT NULL
    ORDER BY parked_at LIMIT :most"""

_TRANSACTION_COLUMNS = (
    "id, nonce, purpose, job_id, state, hash, max_fee_wei::text AS max_fee_wei, block_number, error, created_at, sent_at,"
    " done_at"
)
_OPEN_TRANSACTIONS = (
    f"SELECT {_TRANSACTION_COLUMNS} FROM transactions WHERE cluster = :cluster AND state IN ('SIGNED', 'SENT')"  # noqa: S608
    " ORDER BY id LIMIT :most"
)
_LATEST_TRANSACTIONS = (
    f"SELECT {_TRANSACTION_COLUMNS} FROM transactions WHERE cluster = :cluster ORDER BY id DESC LIMIT :most"  # noqa: S608
)
