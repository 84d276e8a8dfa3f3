"""The tables of the ledger."""

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """The base of all tables. A str is TEXT, an int is BIGINT, and every time has a time zone."""

    type_annotation_map = {  # noqa: RUF012  SQLAlchemy's own convention
        str: Text,
        int: BigInteger,
        bool: Boolean,
        bytes: LargeBinary,
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB,
        list[Any]: JSONB,
    }


class JobRow(Base):
    """A job: definition, limits, state, SLURM id, script, its outcome in SLURM, and the last status on the contract."""

    __tablename__ = "jobs"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str]
    provider: Mapped[str]
    claim_key: Mapped[str]
    definition: Mapped[dict[str, Any]]
    time_limit_min: Mapped[int]
    state: Mapped[str]
    chain_status: Mapped[int] = mapped_column(SmallInteger)
    chain_block: Mapped[int]
    chain_log_index: Mapped[int]
    last_event_block: Mapped[int] = mapped_column(server_default=text("0"))
    reorg_deadline_block: Mapped[int | None]
    script: Mapped[str | None]
    grid_logger_url: Mapped[str]
    slurm_id: Mapped[int | None]
    slurm_submit_s: Mapped[int | None]
    top_ups: Mapped[list[Any]]
    applied_limit_min: Mapped[int | None]
    cancel_requested: Mapped[bool]
    poll_count: Mapped[int] = mapped_column(Integer)
    outcome_status: Mapped[int | None] = mapped_column(SmallInteger)
    elapsed_s: Mapped[int | None]
    exit_status: Mapped[int | None]
    reason: Mapped[str | None]
    settled_by_operator: Mapped[bool] = mapped_column(server_default=text("false"))
    status_message: Mapped[str]
    runs: Mapped[list[Any]] = mapped_column(server_default=text("'[]'"))
    put_back: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    stop_status: Mapped[int | None] = mapped_column(SmallInteger)
    stop_reason: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())

    __table_args__ = (
        Index("jobs_by_state", "cluster", "state", postgresql_where=text("state <> 'SETTLED'")),
        Index("jobs_by_slurm_id", "cluster", "slurm_id"),
        Index("jobs_by_last_event_block", "cluster", "last_event_block"),
        Index(
            "jobs_in_doubt",
            "cluster",
            "reorg_deadline_block",
            postgresql_where=text("reorg_deadline_block IS NOT NULL"),
        ),
        Index(
            "jobs_cold_by_age",
            "cluster",
            "updated_at",
            "job_id",
            postgresql_where=text("state IN ('SETTLED', 'REFUSED')"),
        ),
        Index(
            "jobs_settled_with_script",
            "cluster",
            "updated_at",
            postgresql_where=text("state = 'SETTLED' AND script IS NOT NULL"),
        ),
    )


class EventRow(Base):
    """The journal: what happened to a job, and when. Rows are never updated."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    cluster: Mapped[str]
    job_id: Mapped[str]
    at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    name: Mapped[str]
    details: Mapped[dict[str, Any]]
    state: Mapped[str]

    __table_args__ = (Index("events_by_job", "cluster", "job_id", "id"),)


class EffectRow(Base):
    """The outbox: what is left to do for a subject. There is at most one open effect per (job, kind).

    The subject is a job, or what `subject` names: a customer who needs an account (the address), or a benchmark run (its
    number). An effect of such a subject is never opened twice, and stays when it is done.

    `generation` counts the demands; a demand that arrives while the effect is being carried out keeps it open. `lease`
    is the holder (see worker_sessions.py) that carries it out. `lease_token` is how often it was ever leased.
    `notified_at` is when a message was last sent for it. `failing_since` is when the failures in a row began.
    `unexpected_failures` counts the unexpected failures in a row. `contract_rejections` counts the refusals by the
    contract without a success in between. `evidence` is what was seen when the effect was parked.
    """

    __tablename__ = "effects"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    cluster: Mapped[str]
    job_id: Mapped[str | None]
    subject: Mapped[str | None]
    kind: Mapped[str]
    due_at: Mapped[datetime]
    generation: Mapped[int] = mapped_column(Integer, server_default=text("1"))
    attempts: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    lease_token: Mapped[int] = mapped_column(server_default=text("0"))
    lease: Mapped[int | None]
    lease_until: Mapped[datetime | None]
    notified_at: Mapped[datetime | None]
    last_error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    done_at: Mapped[datetime | None]
    parked_at: Mapped[datetime | None]
    evidence: Mapped[dict[str, Any] | None]
    unexpected_failures: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    contract_rejections: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    failing_since: Mapped[datetime | None]

    __table_args__ = (
        Index(
            "effects_one_open",
            "cluster",
            "job_id",
            "kind",
            unique=True,
            postgresql_where=text("done_at IS NULL"),
        ),
        Index(
            "effects_due",
            "cluster",
            "due_at",
            postgresql_where=text("done_at IS NULL AND parked_at IS NULL"),
        ),
        Index(
            "effects_failing",
            "cluster",
            "failing_since",
            postgresql_where=text("done_at IS NULL AND failing_since IS NOT NULL"),
        ),
        Index("effects_by_job", "cluster", "job_id"),
        Index(
            "effects_by_subject",
            "cluster",
            "kind",
            "subject",
            unique=True,
            postgresql_where=text("subject IS NOT NULL"),
        ),
        CheckConstraint("(job_id IS NULL) <> (subject IS NULL)", name="effects_one_subject"),
        ForeignKeyConstraint(["cluster", "job_id"], ["jobs.cluster", "jobs.job_id"]),
    )


class Callback(Base):
    """The inbox: the callbacks of plugins, verbatim. The content is unique, so a repeated callback changes nothing.

    `proof` is "proven" or "unproven": whether the caller proved that it has the site's key; or "no key" if the site has
    none. `unknown_job`: the callback was about no job of the ledger when it came.
    """

    __tablename__ = "callbacks"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    cluster: Mapped[str]
    job_id: Mapped[str]
    slurm_id: Mapped[int]
    status: Mapped[int] = mapped_column(SmallInteger)
    duration_s: Mapped[int]
    exit_code: Mapped[int]
    peer: Mapped[str]
    proof: Mapped[str] = mapped_column(server_default=text("'no key'"))
    unknown_job: Mapped[bool] = mapped_column(server_default=text("false"))
    received_at: Mapped[datetime] = mapped_column(server_default=func.now())
    read_at: Mapped[datetime | None]

    __table_args__ = (
        UniqueConstraint(
            "cluster", "job_id", "slurm_id", "status", "duration_s", "exit_code", name="callbacks_content"
        ),
        Index("callbacks_unread", "cluster", "id", postgresql_where=text("read_at IS NULL")),
        Index("callbacks_unknown_job", "cluster", postgresql_where=text("unknown_job")),
    )


class TransactionRow(Base):
    """A write to the chain, stored signed before it is sent. An intent has at most one open or mined transaction.

    `hash`, `raw` and the fees are of the present signature, or of the one that was mined. `contested_at` is when its
    nonce was first seen mined without it. `gas_used`, `gas_price_wei` and `earned` are of the last receipt: what was
    paid for the gas, and what the contract paid to the provider (in its smallest unit). They stay if a reorganisation
    opens the transaction again.
    """

    __tablename__ = "transactions"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    cluster: Mapped[str]
    chain_id: Mapped[int]
    address: Mapped[str]
    nonce: Mapped[int]
    purpose: Mapped[str]
    job_id: Mapped[str | None]
    intent: Mapped[str]
    gas: Mapped[int]
    max_fee_wei: Mapped[int] = mapped_column(Numeric(78, 0))
    priority_fee_wei: Mapped[int] = mapped_column(Numeric(78, 0))
    raw: Mapped[bytes]
    hash: Mapped[str]
    state: Mapped[str]
    block_number: Mapped[int | None]
    block_hash: Mapped[str | None]
    error: Mapped[str | None]
    gas_used: Mapped[int | None]
    gas_price_wei: Mapped[int | None] = mapped_column(Numeric(78, 0))
    earned: Mapped[int | None] = mapped_column(Numeric(78, 0))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    sent_at: Mapped[datetime | None]
    contested_at: Mapped[datetime | None]
    done_at: Mapped[datetime | None]

    __table_args__ = (
        UniqueConstraint("chain_id", "address", "nonce", name="transactions_nonce"),
        Index(
            "transactions_intent",
            "cluster",
            "intent",
            unique=True,
            postgresql_where=text("state NOT IN ('REVERTED', 'FOREIGN')"),
        ),
        Index("transactions_by_job", "cluster", "job_id", postgresql_where=text("job_id IS NOT NULL")),
        Index("transactions_open", "cluster", "id", postgresql_where=text("state IN ('SIGNED', 'SENT')")),
        Index("transactions_by_block", "cluster", "block_number"),
        Index(
            "transactions_without_a_job",
            "cluster",
            "done_at",
            postgresql_where=text("job_id IS NULL AND done_at IS NOT NULL"),
        ),
        Index("transactions_earned", "cluster", "done_at", postgresql_where=text("earned > 0")),
    )


class CounterRow(Base):
    """A total of the metrics. Its increments since the last fold are in `counter_increments`."""

    __tablename__ = "counters"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    label: Mapped[str] = mapped_column(primary_key=True)
    total: Mapped[Decimal] = mapped_column(Numeric)


class CounterIncrementRow(Base):
    """What one change of the ledger adds to a total."""

    __tablename__ = "counter_increments"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    cluster: Mapped[str]
    name: Mapped[str]
    label: Mapped[str]
    amount: Mapped[Decimal] = mapped_column(Numeric)

    __table_args__ = (Index("counter_increments_by_cluster", "cluster"),)


class SignatureRow(Base):
    """Every signature of a transaction: any of them may be mined. `head` is the last block when it was signed."""

    __tablename__ = "signatures"

    hash: Mapped[str] = mapped_column(primary_key=True)
    transaction_id: Mapped[int] = mapped_column(ForeignKey("transactions.id", ondelete="CASCADE"))
    raw: Mapped[bytes]
    max_fee_wei: Mapped[int] = mapped_column(Numeric(78, 0))
    priority_fee_wei: Mapped[int] = mapped_column(Numeric(78, 0))
    head: Mapped[int]
    signed_at: Mapped[datetime] = mapped_column(server_default=func.now())

    __table_args__ = (Index("signatures_by_transaction", "transaction_id"),)


class WalletHolderRow(Base):
    """The wallet that a cluster works with. `shared`: its settings let other clusters work with the wallet too."""

    __tablename__ = "wallet_holders"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    chain_id: Mapped[int]
    address: Mapped[str]
    shared: Mapped[bool]
    started_at: Mapped[datetime] = mapped_column(server_default=func.now())

    __table_args__ = (Index("wallet_holders_by_address", "chain_id", "address"),)


class InstanceTagRow(Base):
    """The tag by which a ledger recognises its own transactions on the chain, even if it has no record of them."""

    __tablename__ = "instance_tags"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    tag: Mapped[bytes]


class AdoptedTagRow(Base):
    """The tag of a lost ledger. The operator has made its claims this ledger's own."""

    __tablename__ = "adopted_tags"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    tag: Mapped[bytes] = mapped_column(primary_key=True)
    adopted_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ForeignClaimRow(Base):
    """A claim that another ledger made with this provider's key. Kept while the job is hot, also after a takeover."""

    __tablename__ = "foreign_claims"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(primary_key=True)
    tag: Mapped[bytes]
    claim: Mapped[dict[str, Any]]
    seen_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Cursor(Base):
    """How far a stream of the chain has been read."""

    __tablename__ = "cursors"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    stream: Mapped[str] = mapped_column(primary_key=True)
    block_number: Mapped[int]
    block_hash: Mapped[str]


class BlockRow(Base):
    """The last blocks that were read. Their hashes show a reorganisation."""

    __tablename__ = "blocks"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    hash: Mapped[str]


class PeriodicRunRow(Base):
    """When a piece of periodic work last succeeded. `number`: what it read then, if it reads a number."""

    __tablename__ = "periodic_runs"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    succeeded_at: Mapped[datetime]
    number: Mapped[int | None]


class AlarmRow(Base):
    """An alarm that is on, which calls an operator. The row is deleted when its cause is gone."""

    __tablename__ = "alarms"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    details: Mapped[dict[str, Any]]
    raised_at: Mapped[datetime] = mapped_column(server_default=func.now())
    seen_at: Mapped[datetime] = mapped_column(server_default=func.now())


class AlarmIncidentRow(Base):
    """An alarm from its first raise until it has been off for a while. It is the same incident when it is raised again
    before that. `due_at` is when the notify task must look at it, `key` begins the keys of its messages.
    """

    __tablename__ = "alarm_incidents"

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    cluster: Mapped[str]
    alarm: Mapped[str]
    key: Mapped[str] = mapped_column(server_default=text("gen_random_uuid()::text"))
    details: Mapped[dict[str, Any]]
    raised_at: Mapped[datetime] = mapped_column(server_default=func.now())
    raises: Mapped[int] = mapped_column(Integer, server_default=text("1"))
    cleared_at: Mapped[datetime | None]
    closed_at: Mapped[datetime | None]
    due_at: Mapped[datetime | None] = mapped_column(server_default=func.now())

    __table_args__ = (
        Index(
            "alarm_incidents_open",
            "cluster",
            "alarm",
            unique=True,
            postgresql_where=text("closed_at IS NULL AND alarm <> 'test'"),
        ),
        Index("alarm_incidents_due", "cluster", "due_at", postgresql_where=text("due_at IS NOT NULL")),
    )


class AlarmMessageRow(Base):
    """A message of an incident to one channel: it is left to do until it is done, and parked when it fails for long.
    `sent_at` is when the channel first took it; a channel can want a message again and again until the incident ends.
    """

    __tablename__ = "alarm_messages"

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    cluster: Mapped[str]
    incident_id: Mapped[int] = mapped_column(ForeignKey("alarm_incidents.id", ondelete="CASCADE"))
    channel: Mapped[str]
    kind: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    due_at: Mapped[datetime] = mapped_column(server_default=func.now())
    attempts: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    failing_since: Mapped[datetime | None]
    last_error: Mapped[str | None]
    sent_at: Mapped[datetime | None]
    done_at: Mapped[datetime | None]
    parked_at: Mapped[datetime | None]

    __table_args__ = (
        UniqueConstraint("incident_id", "channel", "kind"),
        Index("alarm_messages_due", "cluster", "due_at", postgresql_where=text("done_at IS NULL")),
    )


class AlarmSilenceRow(Base):
    """A silence: an operator wants no messages of an alarm from one time to another. The row stays when that is over: an
    incident that began and ended meanwhile is not told.
    """

    __tablename__ = "alarm_silences"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    alarm: Mapped[str] = mapped_column(primary_key=True)
    begun_at: Mapped[datetime] = mapped_column(server_default=func.now())
    ends_at: Mapped[datetime]
    reason: Mapped[str]


class SwitchRow(Base):
    """A switch that an operator has turned on."""

    __tablename__ = "switches"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    reason: Mapped[str]
    set_at: Mapped[datetime] = mapped_column(server_default=func.now())


class OperatorLogRow(Base):
    """A change that an operator made by a command. `subject` is what was changed (a job, an effect), `change` what was
    announced. `outcome` is "done" or the error; None if the command ended before it could store one.
    """

    __tablename__ = "operator_log"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    cluster: Mapped[str]
    at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    operator: Mapped[str]
    command: Mapped[str]
    subject: Mapped[str]
    change: Mapped[str]
    reason: Mapped[str]
    outcome: Mapped[str | None]

    __table_args__ = (Index("operator_log_by_cluster", "cluster", "id"),)


class SweepRow(Base):
    """A sweep: what it looked at, found and did. `suspects` are its doubts, with the Unix time when each was first
    seen: the sweep acts on a doubt only when it sees it again.
    """

    __tablename__ = "sweeps"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    cluster: Mapped[str]
    begun_at: Mapped[datetime]
    finished_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    report: Mapped[dict[str, Any]]
    suspects: Mapped[dict[str, Any]]

    __table_args__ = (Index("sweeps_by_cluster", "cluster", "id"),)


class FactRow(Base):
    """A value that one process writes and another one uses, and since when it has this value."""

    __tablename__ = "facts"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]
    since: Mapped[datetime] = mapped_column(server_default=func.now())


class BenchmarkRunRow(Base):
    """A benchmark run: why, on which hardware, how far. A cluster has at most one open run. `token`, random hex digits,
    is in the names and the output of its jobs.

    `hardware_digest` is the digest of the hardware: first of the hardware that was asked for, and from the run's begin
    of the real hardware. `pricing_digest` is the digest of the prices and the operator's labels at that time. Either
    may be missing if the caller did not know it. If `forced` is set, results from before this run no longer count.
    """

    __tablename__ = "benchmark_runs"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    cluster: Mapped[str]
    why: Mapped[str]
    state: Mapped[str]
    token: Mapped[str]
    hardware: Mapped[dict[str, Any] | None]
    hardware_digest: Mapped[str | None]
    pricing_digest: Mapped[str | None]
    forced: Mapped[bool] = mapped_column(server_default=text("true"))
    cancel_reason: Mapped[str | None]
    asked_at: Mapped[datetime] = mapped_column(server_default=func.now())
    begun_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]

    __table_args__ = (
        Index(
            "benchmark_runs_one_open",
            "cluster",
            unique=True,
            postgresql_where=text("state IN ('ASKED', 'RUNNING')"),
        ),
        Index("benchmark_runs_by_cluster", "cluster", "id"),
    )


class BenchmarkResultRow(Base):
    """A benchmark of a run: its SLURM job, its output (at most the last 10 MB), and its labels or why there are none.

    `called_at` is when a worker was last about to call sbatch, and `run_as` the user of that call. `lost` is how often
    SLURM then did not know the job. `missing_at` is since when SLURM does not know the job. `cleaned`: its file on the
    login node is gone, or was given up and stays there. `left_out` are labels that this benchmark could not measure
    this time, with the reasons.
    """

    __tablename__ = "benchmark_results"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("benchmark_runs.id", ondelete="CASCADE"))
    cluster: Mapped[str]
    benchmark: Mapped[str]
    stage: Mapped[str]
    job_name: Mapped[str]
    run_as: Mapped[str | None]
    options: Mapped[list[Any]]
    script: Mapped[str]
    lost: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    called_at: Mapped[datetime | None]
    slurm_id: Mapped[int | None]
    slurm_state: Mapped[str] = mapped_column(server_default=text("''"))
    exit_status: Mapped[int] = mapped_column(server_default=text("0"))
    missing_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    labels: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    left_out: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    notes: Mapped[list[Any]] = mapped_column(server_default=text("'[]'"))
    tool: Mapped[str] = mapped_column(server_default=text("''"))
    output: Mapped[bytes | None]
    reason: Mapped[str | None]
    cleaned: Mapped[bool] = mapped_column(server_default=text("false"))

    __table_args__ = (
        UniqueConstraint("run_id", "benchmark", name="benchmark_results_one_a_run"),
        Index("benchmark_results_measured", "cluster", "benchmark", "id", postgresql_where=text("stage = 'MEASURED'")),
    )
