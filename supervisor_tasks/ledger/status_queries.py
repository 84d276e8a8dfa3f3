"""The queries of an operator. All of them, except those about one job, read partial
indexes, so that a million settled jobs cost nothing.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, text

from supervisor_tasks.alarms.alarm_names import Alarm
from supervisor_tasks.jobs.model import ChainStatus, EffectKind
from supervisor_tasks.ledger.alarm_store import Alarms
from supervisor_tasks.ledger.fact_store import Facts
from supervisor_tasks.ledger.facts import ENDPOINTS
from supervisor_tasks.ledger.list_filter import filter_parameters
from supervisor_tasks.ledger.periodic_run_names import CHAIN_HEAD, CLAIMABLE, QUEUE
from supervisor_tasks.ledger.reconciliations import Reconciliation, Reconciliations
from supervisor_tasks.ledger.registrations import REGISTRATION_STATUS
from supervisor_tasks.ledger.switch_names import Switch
from supervisor_tasks.ledger.switches import Switches
from supervisor_tasks.ledger.tables import IS_OPEN
from supervisor_tasks.provider.registration_rules import RegistrationStatus

Row = dict[str, Any]

_HEX_OF_ID = 66  # characters of a complete job id, or of a hash
_DIGITS_OF_BIGINT = 19
MAX_NAMED_JOBS = 5  # jobs that one name may have, before the rest is left out
MAX_ROWS = 1000  # rows of a list


@dataclass(frozen=True, slots=True)
class EffectCount:
    """The open effects of a kind: due and not begun, waiting for their time, under way
    (`leased`), parked. `failing` counts those that fail and are not parked.
    `oldest_due_s` is for how long the first one has been due; `untaken_s` is the same,
    and 0 while a worker has a lease in force of one of that kind.
    """

    kind: str
    due: int
    waiting: int
    leased: int
    parked: int
    failing: int
    oldest_due_s: float
    untaken_s: float


@dataclass(frozen=True, slots=True)
class Writer:
    """The wallet, as the ledger knows it."""

    address: str
    chain_id: int
    next_nonce: int


@dataclass(frozen=True, slots=True)
class StoredReading:
    """A number that a process of the fleet read elsewhere, and how old it is."""

    number: int
    age_s: float


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs are wanted: in these states (none: all that are neither settled nor
    given back), of customers whose address begins with `customer`, and claimed at most
    `since` ago. `sort` is a key of SORTED_BY.
    """

    states: tuple[str, ...] = ()
    customer: str | None = None
    since: timedelta | None = None
    sort: str = "age"
    limit: int = MAX_ROWS

    @property
    def source(self) -> str:
        """The query without its order. Without states, it reads the partial index of
        jobs that are not settled.
        """
        return _JOBS_IN_STATES if self.states else _JOBS_OPEN


@dataclass(frozen=True, slots=True)
class TransactionFilter:
    """Which transactions are wanted: those that are not known to be mined, in a state,
    signed at most `since` ago, or for jobs of customers whose address begins with
    `customer`. `sort` is a key of TRANSACTIONS_BY; empty: the latest first, or with
    `only_open` in the order in which they were written.
    """

    only_open: bool = False
    state: str | None = None
    since: timedelta | None = None
    customer: str | None = None
    sort: str = ""
    limit: int = MAX_ROWS

    @property
    def query(self) -> str:
        """The query with its order."""
        only_open, order = "", TRANSACTIONS_BY["age"]
        if self.only_open:
            only_open, order = _ONLY_OPEN, "ORDER BY id"
        of_customer = _OF_CUSTOMER if self.customer else ""
        return f"{_TRANSACTIONS_WANTED} {only_open} {of_customer} {TRANSACTIONS_BY.get(self.sort, order)} LIMIT :most"


@dataclass(frozen=True, slots=True)
class OpenEffectFilter:
    """Which open effects are wanted: `place` is due, waiting, leased or parked. They
    are of this kind, opened at most `since` ago, and of the jobs or the account of
    customers whose address begins with `customer`. `sort` is a key of EFFECTS_BY.
    """

    place: str | None = None
    kind: str | None = None
    since: timedelta | None = None
    customer: str | None = None
    sort: str = "due"
    limit: int = MAX_ROWS


@dataclass(frozen=True, slots=True)
class StatusSummary:
    """The state of a cluster. Jobs that were settled or given back are not counted:
    there may be millions of them.
    """

    cluster: str
    jobs: dict[str, int]
    effects: list[EffectCount]
    unread_callbacks: dict[int, int]
    oldest_unread_s: float
    transactions: dict[str, int]
    oldest_transaction_s: float
    wallet: Writer | None
    cursors: dict[str, int]
    periodic_run_ages_s: dict[str, float]
    alarms: list[Alarm]
    claiming_paused: bool
    submissions_paused: bool  # no job is submitted to SLURM
    last_sweep: Reconciliation | None
    since_sweep_s: float
    registration_status: RegistrationStatus | None = None
    endpoints: dict[str, str] = field(default_factory=dict)  # their health, by name
    # the node's last block, as the worker of the chain queue read it
    head: StoredReading | None = None
    # the jobs that wait on the contract, as a worker of the chain queue read them
    claimable: StoredReading | None = None
    queues: dict[str, StoredReading] = field(
        default_factory=dict
    )  # the messages that wait at the broker, as beat read it


class Overview:
    """The queries about one cluster. Its methods raise LedgerUnavailableError, when the
    database does not answer; a retry helps.
    """

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    def snapshot(self) -> StatusSummary:
        """The state of the cluster, in one summary."""
        facts = Facts(self._engine, self._cluster)
        last_sweep = next(
            iter(Reconciliations(self._engine, self._cluster).last()), None
        )
        with self._engine.connect() as connection:
            unread = self._rows(connection, _UNREAD)
            transactions = self._rows(connection, _TRANSACTIONS)
            runs = self._rows(connection, _PERIODIC_RUNS)
            readings = _readings(runs)
            return StatusSummary(
                cluster=self._cluster,
                jobs=_by(self._rows(connection, _JOBS), "state", "n"),
                effects=[
                    EffectCount(**row) for row in self._rows(connection, _EFFECTS)
                ],
                unread_callbacks=_by(unread, "status", "n"),
                oldest_unread_s=_oldest_s(unread),
                transactions=_by(transactions, "state", "n"),
                oldest_transaction_s=_oldest_s(transactions),
                wallet=next(
                    (Writer(**row) for row in self._rows(connection, _WALLET)), None
                ),
                cursors=_by(self._rows(connection, _CURSORS), "stream", "block_number"),
                periodic_run_ages_s=_by(
                    (row for row in runs if row["number"] is None), "name", "age_s"
                ),
                head=readings.get(CHAIN_HEAD),
                claimable=readings.get(CLAIMABLE),
                queues={
                    name.removeprefix(QUEUE): reading
                    for name, reading in readings.items()
                    if name.startswith(QUEUE)
                },
                alarms=Alarms(self._engine, self._cluster).all(),
                registration_status=facts.get(REGISTRATION_STATUS),
                endpoints=facts.get_or(ENDPOINTS, {}),
                claiming_paused=Switches(self._engine, self._cluster).is_set(
                    Switch.CLAIMING_PAUSED
                ),
                submissions_paused=Switches(self._engine, self._cluster).is_set(
                    Switch.SUBMISSIONS_PAUSED
                ),
                last_sweep=last_sweep,
                since_sweep_s=0.0
                if last_sweep is None
                else _age_s(connection, last_sweep.finished_at),
            )

    def now(self) -> datetime:
        """The database's time, from which ages count."""
        with self._engine.connect() as connection:
            moment: datetime = connection.scalar(text("SELECT now()"))
            return moment

    def jobs(self, wanted: "JobFilter | None" = None) -> list[Row]:
        """The jobs that are wanted, or all that are neither settled nor given back, the
        latest first; at most MAX_ROWS.
        """
        wanted = wanted or JobFilter()
        query = f"{wanted.source} {SORTED_BY[wanted.sort]} LIMIT :most"
        with self._engine.connect() as connection:
            return self._rows(
                connection, query, states=list(wanted.states), **_wanted(wanted)
            )

    def jobs_of_ids(self, job_ids: Sequence[str]) -> list[Row]:
        """These jobs, in any state, the latest first."""
        with self._engine.connect() as connection:
            return self._rows(
                connection,
                _JOBS_OF_IDS,
                job_ids=list(job_ids),
                customer=None,
                since_s=None,
            )

    def lately_over(self, limit: int) -> list[Row]:
        """The jobs that were settled or given back last, the latest first."""
        with self._engine.connect() as connection:
            return self._rows(
                connection,
                _LATELY_OVER,
                most=min(limit, MAX_ROWS),
                customer=None,
                since_s=None,
            )

    def by_state(self) -> list[Row]:
        """How many jobs that are neither settled nor given back are in each state, and
        when the first of them entered it.
        """
        with self._engine.connect() as connection:
            return self._rows(connection, _BY_STATE)

    def settled_within(self, within_s: float) -> int:
        """How many jobs were settled in the last `within_s`."""
        with self._engine.connect() as connection:
            (row,) = self._rows(connection, _SETTLED_WITHIN, within_s=within_s)
            return int(row["n"])

    def named(self, name: str) -> list[str]:
        """The ids of the jobs with this name, at most MAX_NAMED_JOBS: slurm:NUMBER,
        customer:ADDRESS (those that are neither settled nor given back), or the
        beginning of an id. Of the last form, only a complete id is cheap.
        """
        kind, _, value = name.lower().rpartition(":")
        if kind not in _NAMED or not _FORMS[kind].fullmatch(value):
            return []
        with self._engine.connect() as connection:
            rows = self._rows(
                connection,
                _NAMED[kind],
                value=_PATTERN[kind](value),
                most=MAX_NAMED_JOBS,
            )
            return [row["job_id"] for row in rows]

    def job(self, job_id: str) -> Row:
        """The row of a job, for an operator."""
        with self._engine.connect() as connection:
            (row,) = self._rows(connection, _JOB, job_id=job_id)
            return row

    def timeline(self, job_id: str) -> list[Row]:
        """All that the ledger has stored about a job, in the order of time: `at`,
        `source`, `what`, `details`.
        """
        with self._engine.connect() as connection:
            return self._rows(connection, _TIMELINE, job_id=job_id)

    def effects(self, wanted: OpenEffectFilter) -> list[Row]:
        """The open effects that are wanted; at most MAX_ROWS."""
        query = f"{_OPEN_EFFECTS} {EFFECTS_BY[wanted.sort]} LIMIT :most"
        with self._engine.connect() as connection:
            return self._rows(
                connection,
                query,
                place=wanted.place,
                kind=wanted.kind,
                **_wanted(wanted),
            )

    def retryable(
        self, effect_id: int | None = None, job_id: str | None = None
    ) -> list[Row]:
        """How many effects of each kind `Effects.retry` would start over: this one,
        those of this job, or all. `subject` is that of one of them.
        """
        with self._engine.connect() as connection:
            return self._rows(
                connection,
                _RETRYABLE,
                effect_id=effect_id,
                job_id=job_id,
                kinds=[kind.value for kind in EffectKind],
            )

    def parked(
        self, effect_id: int | None = None, job_id: str | None = None
    ) -> list[Row]:
        """The effects that wait for the operator, the one that has waited longest
        first: this one, those of this job, or all; at most MAX_ROWS.
        """
        with self._engine.connect() as connection:
            return self._rows(
                connection,
                _PARKED,
                effect_id=effect_id,
                job_id=job_id,
                most=MAX_ROWS,
            )

    def transactions(self, wanted: TransactionFilter) -> list[Row]:
        """The transactions that are wanted; at most MAX_ROWS."""
        with self._engine.connect() as connection:
            return self._rows(
                connection, wanted.query, state=wanted.state, **_wanted(wanted)
            )

    def open_transactions_of(self, job_id: str) -> list[Row]:
        """The transactions of a job that are not known to be mined, in the order in
        which they were written.
        """
        with self._engine.connect() as connection:
            return self._rows(connection, _OPEN_TRANSACTIONS_OF, job_id=job_id)

    def open_transactions_after(self, nonce: int) -> int:
        """How many transactions with a later nonce are not known to be mined."""
        with self._engine.connect() as connection:
            (row,) = self._rows(connection, _OPEN_TRANSACTIONS_AFTER, nonce=nonce)
            return int(row["n"])

    def transaction(self, name: str) -> list[Row]:
        """The transactions with this id, or with a signature whose hash has this
        beginning; at most two.
        """
        number: int | None = None
        pattern: str | None = None
        if _NUMBER.fullmatch(name):
            number = int(name)
        elif _HASH.fullmatch(name.lower()):
            pattern = f"{name.lower()}%"
        else:
            return []
        with self._engine.connect() as connection:
            transactions = self._rows(
                connection, _TRANSACTION, number=number, beginning=pattern
            )
            for row in transactions:
                row["signatures"] = self._rows(
                    connection, _SIGNATURES, number=row["id"]
                )
            return transactions

    def _rows(
        self, connection: Connection, query: str, **parameters: object
    ) -> list[Row]:
        rows = connection.execute(
            text(query), {"cluster": self._cluster, **parameters}
        ).mappings()
        return list(map(_named_statuses, rows))


def _by(rows: Iterable[Row], key: str, value: str) -> dict[Any, Any]:
    """One column of rows by another one."""
    return {row[key]: row[value] for row in rows}


def _oldest_s(rows: Iterable[Row]) -> float:
    return max((row["oldest_s"] for row in rows), default=0.0)


def _readings(runs: Iterable[Row]) -> dict[str, StoredReading]:
    """The periodic runs that have a number, by name."""
    return {
        row["name"]: StoredReading(row["number"], row["age_s"])
        for row in runs
        if row["number"] is not None
    }


def _wanted(
    wanted: JobFilter | OpenEffectFilter | TransactionFilter,
) -> dict[str, object]:
    """Return the parameters that all lists have."""
    return {
        **filter_parameters(wanted.customer, wanted.since),
        "most": min(wanted.limit, MAX_ROWS),
    }


def _named_statuses(row: Mapping[Any, Any]) -> Row:
    """The row with the names of its statuses instead of their numbers."""
    named = dict(row)
    for column in ("chain_status", "outcome_status"):
        if named.get(column) is not None:
            named[column] = ChainStatus(named[column]).name
    return named


def _age_s(connection: Connection, moment: datetime) -> float:
    """Seconds since then, by the database's clock."""
    query = text("SELECT EXTRACT(EPOCH FROM now() - :moment)::float8")
    return float(connection.execute(query, {"moment": moment}).scalar_one())


# Each look changes a job's row, so the row's last change does not show since when the
# job has been in its state. The job's first event in that state shows it.
_BY_STATE = f"""
    SELECT state, count(*) AS jobs, min(COALESCE(entered.at, created_at)) AS oldest_at FROM jobs
    LEFT JOIN LATERAL (
        SELECT at FROM events WHERE events.cluster = jobs.cluster AND events.job_id = jobs.job_id
            AND events.state = jobs.state ORDER BY events.id LIMIT 1
    ) AS entered ON true
    WHERE jobs.cluster = :cluster AND {IS_OPEN} GROUP BY state ORDER BY state"""  # noqa: S608  our own words

_JOBS = f"""
    SELECT state, count(*) AS n FROM jobs
    WHERE cluster = :cluster AND {IS_OPEN} GROUP BY state ORDER BY state"""  # noqa: S608

_EFFECTS = """
    SELECT kind,
        count(*) FILTER (WHERE parked_at IS NULL AND lease IS NULL AND due_at <= now()) AS due,
        count(*) FILTER (WHERE parked_at IS NULL AND lease IS NULL AND due_at > now()) AS waiting,
        count(*) FILTER (WHERE lease IS NOT NULL) AS leased,
        count(*) FILTER (WHERE parked_at IS NOT NULL) AS parked,
        count(*) FILTER (WHERE parked_at IS NULL AND failing_since IS NOT NULL) AS failing,
        COALESCE(max(EXTRACT(EPOCH FROM now() - due_at))
            FILTER (WHERE parked_at IS NULL AND lease IS NULL AND due_at <= now()), 0)::float8 AS oldest_due_s,
        CASE WHEN bool_or(lease_until > now()) THEN 0 ELSE COALESCE(max(EXTRACT(EPOCH FROM now() - due_at))
            FILTER (WHERE parked_at IS NULL AND lease IS NULL AND due_at <= now()), 0) END::float8 AS untaken_s
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

_CURSORS = (
    "SELECT stream, block_number FROM cursors WHERE cluster = :cluster ORDER BY stream"
)

_PERIODIC_RUNS = """
    SELECT name, EXTRACT(EPOCH FROM now() - succeeded_at)::float8 AS age_s, number
    FROM periodic_runs WHERE cluster = :cluster ORDER BY name"""

_JOB_COLUMNS = """
    SELECT job_id, state, chain_status, slurm_id, customer, time_limit_min, outcome_status, elapsed_s, created_at,
        updated_at, COALESCE(reason, status_message) AS reason
    FROM jobs WHERE cluster = :cluster
        AND (CAST(:customer AS text) IS NULL OR customer LIKE :customer)
        AND (CAST(:since_s AS float8) IS NULL OR created_at >= now() - :since_s * interval '1 second')"""
_JOBS_OPEN = (
    f"{_JOB_COLUMNS} AND {IS_OPEN} AND cardinality(CAST(:states AS text[])) = 0"
)
_JOBS_IN_STATES = f"{_JOB_COLUMNS} AND state = ANY(:states)"
_JOBS_OF_IDS = (
    f"{_JOB_COLUMNS} AND job_id = ANY(:job_ids) ORDER BY created_at DESC, job_id"
)
_LATELY_OVER = f"""{_JOB_COLUMNS} AND state IN ('SETTLED', 'REFUSED') AND NOT ({IS_OPEN})
    ORDER BY updated_at DESC LIMIT :most"""  # the first condition is that of the index
_SETTLED_WITHIN = """
    SELECT count(*) AS n FROM jobs WHERE cluster = :cluster AND state IN ('SETTLED', 'REFUSED') AND state = 'SETTLED'
        AND updated_at >= now() - :within_s * interval '1 second'"""
SORTED_BY = {
    "age": "ORDER BY created_at DESC, job_id",
    "changed": "ORDER BY updated_at DESC, job_id",
    "state": "ORDER BY state, created_at DESC, job_id",
    "customer": "ORDER BY customer, created_at DESC, job_id",
    "slurm": "ORDER BY slurm_id DESC NULLS LAST, job_id",
}

_HEX = re.compile(f"[0-9a-fx]{{1,{_HEX_OF_ID}}}")
_FORMS = {
    "": _HEX,
    "slurm": re.compile(f"[0-9]{{1,{_HEX_OF_ID}}}"),
    "customer": _HEX,
}
_NUMBER = re.compile(f"[0-9]{{1,{_DIGITS_OF_BIGINT - 1}}}")
_HASH = re.compile(f"0x[0-9a-f]{{1,{_HEX_OF_ID - 2}}}")
_PATTERN: dict[str, Callable[[str], Any]] = {
    "": lambda value: _of_hex(value) + ("" if len(value) == _HEX_OF_ID else "%"),
    "slurm": lambda value: min(int(value), 2**63 - 1),
    "customer": lambda value: _of_hex(value) + "%",
}
_NAMED = {
    "": "SELECT job_id FROM jobs WHERE cluster = :cluster AND job_id LIKE :value ORDER BY job_id LIMIT :most",
    "slurm": "SELECT job_id FROM jobs WHERE cluster = :cluster AND slurm_id = :value ORDER BY created_at DESC LIMIT :most",
    "customer": f"""
        SELECT job_id FROM jobs WHERE cluster = :cluster AND {IS_OPEN} AND customer LIKE :value
        ORDER BY created_at DESC LIMIT :most""",  # noqa: S608
}


def _of_hex(value: str) -> str:
    return value if value.startswith("0x") else f"0x{value}"


_JOB = """
    SELECT job_id, state, chain_status, chain_block, slurm_id, customer, provider, definition, time_limit_min,
        applied_limit_min, top_ups, cancel_requested, outcome_status, elapsed_s, exit_status, reason, status_message,
        settled_by_operator, grid_logger_url, octet_length(script) AS script_bytes, claim_key, created_at, updated_at
    FROM jobs WHERE cluster = :cluster AND job_id = :job_id"""

_TIMELINE_TRANSACTION = """
    SELECT created_at, 'transaction', purpose, jsonb_strip_nulls(jsonb_build_object('hash', hash, 'nonce', nonce,
        'state', state, 'block', block_number, 'error', error, 'sent_at', sent_at, 'done_at', done_at)), id
    FROM transactions WHERE cluster = :cluster"""
# A claim is sent before its job is known, so its transaction names no job; the job has
# its hash.
_CLAIM_OF_JOB = """
    SELECT transaction_id FROM jobs JOIN signatures ON hash = split_part(claim_key, ':', 1)
    WHERE jobs.cluster = :cluster AND jobs.job_id = :job_id"""
_TIMELINE = f"""
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
        {_TIMELINE_TRANSACTION} AND job_id = :job_id
        UNION ALL
        {_TIMELINE_TRANSACTION} AND job_id IS NULL AND id = ({_CLAIM_OF_JOB})
        UNION ALL
        SELECT at, 'command', command, jsonb_build_object('operator', operator, 'reason', reason, 'outcome', outcome), id
        FROM operator_log WHERE cluster = :cluster AND (subject = :job_id OR subject LIKE '% of ' || :job_id)
    ) AS timeline ORDER BY at, source, id"""  # noqa: S608  our own words

_OPEN_EFFECTS = """
    SELECT * FROM (
        SELECT effects.id AS effect, COALESCE(job_id, subject) AS subject, kind, CASE WHEN parked_at IS NOT NULL THEN 'parked'
                WHEN lease IS NOT NULL THEN 'leased' WHEN due_at <= now() THEN 'due' ELSE 'waiting' END AS place,
            jobs.state, due_at, attempts, failing_since, parked_at, last_error, evidence
        FROM effects LEFT JOIN jobs USING (cluster, job_id)
        WHERE cluster = :cluster AND done_at IS NULL AND (CAST(:kind AS text) IS NULL OR kind = :kind)
            AND (CAST(:customer AS text) IS NULL OR COALESCE(jobs.customer, subject) LIKE :customer)
            AND (CAST(:since_s AS float8) IS NULL OR effects.created_at >= now() - :since_s * interval '1 second')
    ) AS open WHERE CAST(:place AS text) IS NULL OR place = :place"""
EFFECTS_BY = {
    "due": "ORDER BY due_at, effect",
    "age": "ORDER BY effect",
    "kind": "ORDER BY kind, due_at, effect",
    "state": "ORDER BY place, due_at, effect",
    "tries": "ORDER BY attempts DESC, due_at, effect",
}

_RETRYABLE = """
    SELECT kind, count(*) AS n, min(COALESCE(job_id, subject)) AS subject FROM effects
    WHERE cluster = :cluster AND done_at IS NULL AND failing_since IS NOT NULL AND lease IS NULL
        AND kind = ANY(:kinds)
        AND (CAST(:effect_id AS bigint) IS NULL OR id = :effect_id)
        AND (CAST(:job_id AS text) IS NULL OR job_id = :job_id)
    GROUP BY kind ORDER BY kind"""

_PARKED = """
    SELECT effects.id AS effect, COALESCE(job_id, subject) AS subject, kind, jobs.state, parked_at, attempts,
        last_error, evidence
    FROM effects LEFT JOIN jobs USING (cluster, job_id)
    WHERE cluster = :cluster AND done_at IS NULL AND failing_since IS NOT NULL AND parked_at IS NOT NULL
        AND (CAST(:effect_id AS bigint) IS NULL OR effects.id = :effect_id)
        AND (CAST(:job_id AS text) IS NULL OR job_id = :job_id)
    ORDER BY parked_at LIMIT :most"""

_TRANSACTION_COLUMNS = (
    "id, nonce, purpose, job_id, state, hash, max_fee_wei::text AS max_fee_wei, block_number, error, created_at, sent_at,"
    " done_at"
)
_TRANSACTIONS_WANTED = f"""
    SELECT {_TRANSACTION_COLUMNS} FROM transactions WHERE cluster = :cluster
        AND (CAST(:state AS text) IS NULL OR state = :state)
        AND (CAST(:since_s AS float8) IS NULL OR created_at >= now() - :since_s * interval '1 second')"""  # noqa: S608
_OF_CUSTOMER = "AND job_id IN (SELECT job_id FROM jobs WHERE cluster = :cluster AND customer LIKE :customer)"
_ONLY_OPEN = "AND state IN ('SIGNED', 'SENT')"
_OPEN_TRANSACTIONS_OF = f"""
    SELECT {_TRANSACTION_COLUMNS} FROM transactions WHERE cluster = :cluster {_ONLY_OPEN} AND job_id = :job_id
    ORDER BY id"""  # noqa: S608  our own words
_OPEN_TRANSACTIONS_AFTER = f"""
    SELECT count(*) AS n FROM transactions WHERE cluster = :cluster {_ONLY_OPEN} AND nonce > :nonce"""  # noqa: S608
TRANSACTIONS_BY = {
    "age": "ORDER BY id DESC",
    "nonce": "ORDER BY nonce DESC, id DESC",
    "state": "ORDER BY state, id DESC",
    "purpose": "ORDER BY purpose, id DESC",
    "fee": "ORDER BY transactions.max_fee_wei DESC, id DESC",
}
_TRANSACTION = f"""
    SELECT {_TRANSACTION_COLUMNS}, chain_id, address, idempotency_key, gas, priority_fee_wei::text AS priority_fee_wei,
        block_hash, nonce_conflict_at, gas_used, gas_price_wei::text AS gas_price_wei
    FROM transactions WHERE cluster = :cluster AND (id = CAST(:number AS bigint) OR id IN (
        SELECT transaction_id FROM signatures WHERE hash LIKE CAST(:beginning AS text)
    )) ORDER BY id LIMIT 2"""  # noqa: S608
_SIGNATURES = """
    SELECT hash, max_fee_wei::text AS max_fee_wei, priority_fee_wei::text AS priority_fee_wei, head, signed_at
    FROM signatures WHERE transaction_id = :number ORDER BY signed_at, hash"""
