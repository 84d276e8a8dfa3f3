"""The tables of the ledger."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
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
    """All tables; a str is TEXT, an int BIGINT, and every time carries its zone."""

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
    """A job: definition, limits, state, SLURM id, script, SLURM's final facts, the contract's status last seen."""

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
    heard_block: Mapped[int] = mapped_column(server_default=text("0"))
    doubt_until: Mapped[int | None]
    script: Mapped[str | None]
    grid_logger_url: Mapped[str]
    slurm_id: Mapped[int | None]
    slurm_submit_s: Mapped[int | None]
    top_ups: Mapped[list[Any]]
    applied_limit_min: Mapped[int | None]
    cancel_requested: Mapped[bool]
    looks: Mapped[int] = mapped_column(Integer)
    outcome_status: Mapped[int | None] = mapped_column(SmallInteger)
    elapsed_s: Mapped[int | None]
    exit_status: Mapped[int | None]
    reason: Mapped[str | None]
    settled_by_operator: Mapped[bool] = mapped_column(server_default=text("false"))
    message: Mapped[str]
    runs: Mapped[list[Any]] = mapped_column(server_default=text("'[]'"))
    put_back: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    stop_status: Mapped[int | None] = mapped_column(SmallInteger)
    stop_reason: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())

    __table_args__ = (
        Index("jobs_by_state", "cluster", "state", postgresql_where=text("state <> 'SETTLED'")),
        Index("jobs_by_slurm_id", "cluster", "slurm_id"),
        Index("jobs_by_heard_block", "cluster", "heard_block"),
        Index("jobs_in_doubt", "cluster", "doubt_until", postgresql_where=text("doubt_until IS NOT NULL")),
    )


class EventRow(Base):
    """The journal: what happened to a job and when. Never updated."""

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
    """The outbox: what is left to do for a job. At most one open effect a (job, kind).

    `wakes` counts the demands: one that arrives while the effect is being carried out keeps it open. `lease` is the
    holder (see leases.py) that carries it out, `takings` how often it was ever leased, `woken_at` when a message was last
    sent for it. `failing_since` is when the failures in a row began, `unforeseen` counts those in a row that nobody
    foresaw, `refusals` those that were the contract's, with nothing that worked in between, and `evidence` is what was seen
    when the effect was parked.
    """

    __tablename__ = "effects"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    cluster: Mapped[str]
    job_id: Mapped[str]
    kind: Mapped[str]
    due_at: Mapped[datetime]
    wakes: Mapped[int] = mapped_column(Integer, server_default=text("1"))
    attempts: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    takings: Mapped[int] = mapped_column(server_default=text("0"))
    lease: Mapped[int | None]
    lease_until: Mapped[datetime | None]
    woken_at: Mapped[datetime | None]
    last_error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    done_at: Mapped[datetime | None]
    parked_at: Mapped[datetime | None]
    evidence: Mapped[dict[str, Any] | None]
    unforeseen: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    refusals: Mapped[int] = mapped_column(Integer, server_default=text("0"))
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
        ForeignKeyConstraint(["cluster", "job_id"], ["jobs.cluster", "jobs.job_id"]),
    )


class Callback(Base):
    """The inbox: what plugins said, verbatim. Unique on its content, so that a repeat changes nothing.

    `proof` tells whether the caller proved itself by the site's key ("proven", "unproven"), or that the site has none ("no
    key"). `strange` are those that were about no job of the ledger when they came.
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
    strange: Mapped[bool] = mapped_column(server_default=text("false"))
    received_at: Mapped[datetime] = mapped_column(server_default=func.now())
    read_at: Mapped[datetime | None]

    __table_args__ = (
        UniqueConstraint(
            "cluster", "job_id", "slurm_id", "status", "duration_s", "exit_code", name="callbacks_content"
        ),
        Index("callbacks_unread", "cluster", "id", postgresql_where=text("read_at IS NULL")),
        Index("callbacks_strange", "cluster", postgresql_where=text("strange")),
    )


class TransactionRow(Base):
    """Every write to the chain, signed before it is sent. One open or mined transaction an intent. `hash`, `raw` and the fees
    are of the present signature, or of the one that was mined. `contested_at` is when its nonce was first seen mined without
    it.
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
    )


class SignatureRow(Base):
    """All that was ever signed for a transaction: any of them may be the one that is mined. `head` is the block of then."""

    __tablename__ = "signatures"

    hash: Mapped[str] = mapped_column(primary_key=True)
    transaction_id: Mapped[int] = mapped_column(ForeignKey("transactions.id", ondelete="CASCADE"))
    raw: Mapped[bytes]
    max_fee_wei: Mapped[int] = mapped_column(Numeric(78, 0))
    priority_fee_wei: Mapped[int] = mapped_column(Numeric(78, 0))
    head: Mapped[int]
    signed_at: Mapped[datetime] = mapped_column(server_default=func.now())

    __table_args__ = (Index("signatures_by_transaction", "transaction_id"),)


class MarkRow(Base):
    """The mark by which a ledger knows what it wrote to the chain, even when it has forgotten."""

    __tablename__ = "marks"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    mark: Mapped[bytes]


class TakenMarkRow(Base):
    """A mark of a ledger that is lost: the operator made what it claimed ours."""

    __tablename__ = "taken_marks"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    mark: Mapped[bytes] = mapped_column(primary_key=True)
    taken_at: Mapped[datetime] = mapped_column(server_default=func.now())


class OthersClaimRow(Base):
    """A claim that another ledger made with our key, while the job is hot; also after it was taken over."""

    __tablename__ = "others_claims"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(primary_key=True)
    mark: Mapped[bytes]
    claim: Mapped[dict[str, Any]]
    seen_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Cursor(Base):
    """How far the chain has been read."""

    __tablename__ = "cursors"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    stream: Mapped[str] = mapped_column(primary_key=True)
    block_number: Mapped[int]
    block_hash: Mapped[str]


class BlockRow(Base):
    """The last blocks that were read: by their hashes a reorganisation is seen."""

    __tablename__ = "blocks"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    hash: Mapped[str]


class Tick(Base):
    """When a periodic piece of work last succeeded."""

    __tablename__ = "ticks"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    succeeded_at: Mapped[datetime]


class AccountRow(Base):
    """A customer who is to have an account at the site, and how far that is."""

    __tablename__ = "accounts"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(primary_key=True)
    requested_at: Mapped[datetime] = mapped_column(server_default=func.now())
    due_at: Mapped[datetime] = mapped_column(server_default=func.now())
    attempts: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    last_error: Mapped[str | None]
    done_at: Mapped[datetime | None]

    __table_args__ = (Index("accounts_due", "cluster", "due_at", postgresql_where=text("done_at IS NULL")),)


class AlarmRow(Base):
    """An alarm that is on: what an operator is called for. It is gone when what it is about is over."""

    __tablename__ = "alarms"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    details: Mapped[dict[str, Any]]
    raised_at: Mapped[datetime] = mapped_column(server_default=func.now())
    seen_at: Mapped[datetime] = mapped_column(server_default=func.now())


class SwitchRow(Base):
    """What an operator has switched on."""

    __tablename__ = "switches"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    reason: Mapped[str]
    set_at: Mapped[datetime] = mapped_column(server_default=func.now())


class SweepRow(Base):
    """A sweep: what was looked at, found and done. `suspects` are doubts with the second (since the epoch) of the first
    sight: what is done only when it is seen again.
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
    """What one process has learnt and another one works with, and since when it is so."""

    __tablename__ = "facts"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]
    since: Mapped[datetime] = mapped_column(server_default=func.now())


class BenchmarkRunRow(Base):
    """A benchmark run: why, on which hardware, how far. At most one open run a cluster. `token`, random hex digits, is in
    the names and the output of its jobs.

    `machines` is the digest of the hardware: of that which was asked for, and of that which there was as soon as the run has
    begun. `terms` is the digest of prices and operator's labels at that time. What was measured before a run that is made
    `anew` counts no more. The first two are missing where whoever asked did not know them.
    """

    __tablename__ = "benchmark_runs"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    cluster: Mapped[str]
    why: Mapped[str]
    state: Mapped[str]
    token: Mapped[str]
    hardware: Mapped[dict[str, Any] | None]
    machines: Mapped[str | None]
    terms: Mapped[str | None]
    anew: Mapped[bool] = mapped_column(server_default=text("true"))
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
    """A benchmark of a run: its SLURM job, what it printed (the last 10 MB at most), and its labels or why there are none.

    `called_at` is when sbatch was last about to be called, `run_as` as whom, `lost` how often SLURM then knew nothing of it,
    `missing_at` since when SLURM does not know the job, `cleaned` whether its file on the login node is gone, or left there.
    `left_out` are labels that this benchmark could not measure this time, with the reasons.
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
    due_at: Mapped[datetime] = mapped_column(server_default=func.now())
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
