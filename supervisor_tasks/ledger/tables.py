"""The tables of the ledger, by their names. SQLAlchemy's ORM would take a
worker 6 MB.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from supervisor_tasks.jobs.model import ChainStatus

METADATA = MetaData()
TIME = DateTime(timezone=True)
# Whether something is left to decide about a job, as `is_final_status` of jobs/model.py
# says: it is neither settled nor given back. The first part is the condition of the
# index jobs_by_state.
IS_OPEN = f"state <> 'SETTLED' AND NOT (state = 'REFUSED' AND chain_status < {ChainStatus.SCHEDULED:d})"

# A job: definition, limits, state, SLURM id, script, its outcome in SLURM, and the last
# status on the contract.
JOBS = Table(
    "jobs",
    METADATA,
    Column("cluster", Text, primary_key=True),
    Column("job_id", Text, primary_key=True),
    Column("customer", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("claim_key", Text, nullable=False),
    Column("definition", JSONB, nullable=False),
    Column("time_limit_min", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("chain_status", SmallInteger, nullable=False),
    Column("claim_block", BigInteger, server_default=text("0"), nullable=False),
    Column("claim_log_index", BigInteger, server_default=text("0"), nullable=False),
    Column("chain_block", BigInteger, nullable=False),
    Column("chain_log_index", BigInteger, nullable=False),
    Column("last_event_block", BigInteger, server_default=text("0"), nullable=False),
    Column("reorg_deadline_block", BigInteger),
    Column("script", Text),
    Column("grid_logger_url", Text, nullable=False),
    Column("slurm_id", BigInteger),
    Column("slurm_submit_s", BigInteger),
    Column("top_ups", JSONB, nullable=False),
    Column("applied_limit_min", BigInteger),
    Column("cancel_requested", Boolean, nullable=False),
    Column("poll_count", Integer, nullable=False),
    Column("outcome_status", SmallInteger),
    Column("elapsed_s", BigInteger),
    Column("exit_status", BigInteger),
    Column("reason", Text),
    Column(
        "settled_by_operator", Boolean, server_default=text("false"), nullable=False
    ),
    Column("status_message", Text, nullable=False),
    Column("runs", JSONB, server_default=text("'[]'"), nullable=False),
    Column("put_back", Integer, server_default=text("0"), nullable=False),
    Column("stop_status", SmallInteger),
    Column("stop_reason", Text),
    Column("may_run_again", Boolean, server_default=text("false"), nullable=False),
    Column("created_at", TIME, server_default=func.now(), nullable=False),
    Column("updated_at", TIME, server_default=func.now(), nullable=False),
    Index(
        "jobs_by_state", "cluster", "state", postgresql_where=text("state <> 'SETTLED'")
    ),
    Index("jobs_by_slurm_id", "cluster", "slurm_id"),
    Index("jobs_by_last_event_block", "cluster", "last_event_block"),
    Index(
        "jobs_in_doubt",
        "cluster",
        "reorg_deadline_block",
        postgresql_where=text("reorg_deadline_block IS NOT NULL"),
    ),
    Index(
        "jobs_final_by_age",
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

# The journal: what happened to a job, and when. Rows are never updated.
EVENTS = Table(
    "events",
    METADATA,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("job_id", Text, nullable=False),
    Column("at", TIME, server_default=func.clock_timestamp(), nullable=False),
    Column("name", Text, nullable=False),
    Column("details", JSONB, nullable=False),
    Column("state", Text, nullable=False),
    Index("events_by_job", "cluster", "job_id", "id"),
)

# The outbox: what is left to do for a subject. There is at most one open effect per
# (job, kind).
#
# The subject is a job, or what `subject` names: a customer who needs an account (the
# address), or a benchmark run (its number). An effect of such a subject is never opened
# twice, and stays when it is done.
#
# `generation` counts the requests; a request that arrives while the effect is being
# carried out keeps it open. `lease` is the holder (see worker_sessions.py) that carries
# it out. `lease_token` is how often it was ever leased. `notified_at` is when a message
# was last sent for it. `failing_since` is when the failures in a row began.
# `unexpected_failures` counts the unexpected failures in a row. `contract_rejections`
# counts the rejections by the contract without a success in between. `evidence` is what
# was seen when the effect was parked.
EFFECTS = Table(
    "effects",
    METADATA,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("job_id", Text),
    Column("subject", Text),
    Column("kind", Text, nullable=False),
    Column("due_at", TIME, nullable=False),
    Column("generation", Integer, server_default=text("1"), nullable=False),
    Column("attempts", Integer, server_default=text("0"), nullable=False),
    Column("lease_token", BigInteger, server_default=text("0"), nullable=False),
    Column("lease", BigInteger),
    Column("lease_until", TIME),
    Column("notified_at", TIME),
    Column("last_error", Text),
    Column("created_at", TIME, server_default=func.now(), nullable=False),
    Column("done_at", TIME),
    Column("parked_at", TIME),
    Column("evidence", JSONB),
    Column("unexpected_failures", Integer, server_default=text("0"), nullable=False),
    Column("contract_rejections", Integer, server_default=text("0"), nullable=False),
    Column("failing_since", TIME),
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
    CheckConstraint(
        "(job_id IS NULL) <> (subject IS NULL)", name="effects_one_subject"
    ),
    ForeignKeyConstraint(["cluster", "job_id"], ["jobs.cluster", "jobs.job_id"]),
)

# The stored callbacks of plugins, verbatim. The content is unique, so a repeated
# callback changes nothing.
#
# `proof` is "proven" or "unproven": whether the caller proved that it has the site's
# key; or "no key" if the site has none. `unknown_job`: the callback was about no job of
# the ledger when it came.
CALLBACKS = Table(
    "callbacks",
    METADATA,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("job_id", Text, nullable=False),
    Column("slurm_id", BigInteger, nullable=False),
    Column("status", SmallInteger, nullable=False),
    Column("duration_s", BigInteger, nullable=False),
    Column("exit_code", BigInteger, nullable=False),
    Column("peer", Text, nullable=False),
    Column("proof", Text, server_default=text("'no key'"), nullable=False),
    Column("unknown_job", Boolean, server_default=text("false"), nullable=False),
    Column("received_at", TIME, server_default=func.now(), nullable=False),
    Column("read_at", TIME),
    UniqueConstraint(
        "cluster",
        "job_id",
        "slurm_id",
        "status",
        "duration_s",
        "exit_code",
        name="callbacks_content",
    ),
    Index(
        "callbacks_unread", "cluster", "id", postgresql_where=text("read_at IS NULL")
    ),
    Index("callbacks_unknown_job", "cluster", postgresql_where=text("unknown_job")),
)

# A write to the chain, stored signed before it is sent. An idempotency key has at most
# one open or mined transaction.
#
# `hash`, `raw` and the fees are of the present signature, or of the one that was mined.
# `nonce_conflict_at` is when its nonce was first seen mined without it. `gas_used`,
# `gas_price_wei` and `earned` are of the last receipt: what was paid for the gas, and
# what the contract paid to the provider (in its smallest unit). They stay if a
# reorganisation opens the transaction again.
TRANSACTIONS = Table(
    "transactions",
    METADATA,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("chain_id", BigInteger, nullable=False),
    Column("address", Text, nullable=False),
    Column("nonce", BigInteger, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("job_id", Text),
    Column("idempotency_key", Text, nullable=False),
    Column("gas", BigInteger, nullable=False),
    Column("max_fee_wei", Numeric(78, 0), nullable=False),
    Column("priority_fee_wei", Numeric(78, 0), nullable=False),
    Column("raw", LargeBinary, nullable=False),
    Column("hash", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("block_number", BigInteger),
    Column("block_hash", Text),
    Column("error", Text),
    Column("gas_used", BigInteger),
    Column("gas_price_wei", Numeric(78, 0)),
    Column("earned", Numeric(78, 0)),
    Column("created_at", TIME, server_default=func.now(), nullable=False),
    Column("sent_at", TIME),
    Column("nonce_conflict_at", TIME),
    Column("done_at", TIME),
    UniqueConstraint("chain_id", "address", "nonce", name="transactions_nonce"),
    Index(
        "transactions_idempotency_key",
        "cluster",
        "idempotency_key",
        unique=True,
        postgresql_where=text("state NOT IN ('REVERTED', 'FOREIGN')"),
    ),
    Index(
        "transactions_by_job",
        "cluster",
        "job_id",
        postgresql_where=text("job_id IS NOT NULL"),
    ),
    Index(
        "transactions_open",
        "cluster",
        "id",
        postgresql_where=text("state IN ('SIGNED', 'SENT')"),
    ),
    Index("transactions_by_block", "cluster", "block_number"),
    Index(
        "transactions_without_a_job",
        "cluster",
        "done_at",
        postgresql_where=text("job_id IS NULL AND done_at IS NOT NULL"),
    ),
    Index(
        "transactions_earned", "cluster", "done_at", postgresql_where=text("earned > 0")
    ),
)

# A total of the metrics. Its increments since the last fold are in
# `counter_increments`.
Table(
    "counters",
    METADATA,
    Column("cluster", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("label", Text, primary_key=True),
    Column("total", Numeric, nullable=False),
)

# What one change of the ledger adds to a total.
Table(
    "counter_increments",
    METADATA,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("amount", Numeric, nullable=False),
    Index("counter_increments_by_cluster", "cluster"),
)

# Every signature of a transaction: any of them may be mined. `head` is the last block
# when it was signed.
SIGNATURES = Table(
    "signatures",
    METADATA,
    Column("hash", Text, primary_key=True),
    Column(
        "transaction_id",
        BigInteger,
        ForeignKey("transactions.id", ondelete="CASCADE"),
        nullable=False,
    ),
    Column("raw", LargeBinary, nullable=False),
    Column("max_fee_wei", Numeric(78, 0), nullable=False),
    Column("priority_fee_wei", Numeric(78, 0), nullable=False),
    Column("head", BigInteger, nullable=False),
    Column("signed_at", TIME, server_default=func.now(), nullable=False),
    Index("signatures_by_transaction", "transaction_id"),
)

# The wallet that a cluster works with. `shared`: its settings let other clusters work
# with the wallet too.
WALLET_HOLDERS = Table(
    "wallet_holders",
    METADATA,
    Column("cluster", Text, primary_key=True),
    Column("chain_id", BigInteger, nullable=False),
    Column("address", Text, nullable=False),
    Column("shared", Boolean, nullable=False),
    Column("started_at", TIME, server_default=func.now(), nullable=False),
    Index("wallet_holders_by_address", "chain_id", "address"),
)

# The tag by which a ledger recognises its own transactions on the chain, even if it has
# no record of them.
INSTANCE_TAGS = Table(
    "instance_tags",
    METADATA,
    Column("cluster", Text, primary_key=True),
    Column("tag", LargeBinary, nullable=False),
)

# The tag of a lost ledger. The operator has made its claims this ledger's own.
ADOPTED_TAGS = Table(
    "adopted_tags",
    METADATA,
    Column("cluster", Text, primary_key=True),
    Column("tag", LargeBinary, primary_key=True),
    Column("adopted_at", TIME, server_default=func.now(), nullable=False),
)

# A claim that another ledger made with this provider's key. Kept while the job is
# active, also after its tag was adopted.
FOREIGN_CLAIMS = Table(
    "foreign_claims",
    METADATA,
    Column("cluster", Text, primary_key=True),
    Column("job_id", Text, primary_key=True),
    Column("tag", LargeBinary, nullable=False),
    Column("claim", JSONB, nullable=False),
    Column("seen_at", TIME, server_default=func.now(), nullable=False),
)

# How far a stream of the chain has been read.
CURSORS = Table(
    "cursors",
    METADATA,
    Column("cluster", Text, primary_key=True),
    Column("stream", Text, primary_key=True),
    Column("block_number", BigInteger, nullable=False),
    Column("block_hash", Text, nullable=False),
)

# The last blocks that were read. Their hashes show a reorganisation.
BLOCKS = Table(
    "blocks",
    METADATA,
    Column("cluster", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("hash", Text, nullable=False),
)

# When a piece of periodic work last succeeded. `number`: what it read then, if it reads
# a number.
PERIODIC_RUNS = Table(
    "periodic_runs",
    METADATA,
    Column("cluster", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("succeeded_at", TIME, nullable=False),
    Column("number", BigInteger),
)

# An alarm that is on. The row is deleted when its cause is
# gone.
ALARMS = Table(
    "alarms",
    METADATA,
    Column("cluster", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("details", JSONB, nullable=False),
    Column("raised_at", TIME, server_default=func.now(), nullable=False),
    Column("seen_at", TIME, server_default=func.now(), nullable=False),
)

# An alarm from its first raise until it has been off for a while. It is the same
# incident when it is raised again before that. `due_at` is when the notify task must
# look at it, `key` begins the keys of its messages.
Table(
    "alarm_incidents",
    METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("alarm", Text, nullable=False),
    Column("key", Text, server_default=text("gen_random_uuid()::text"), nullable=False),
    Column("details", JSONB, nullable=False),
    Column("raised_at", TIME, server_default=func.now(), nullable=False),
    Column("raises", Integer, server_default=text("1"), nullable=False),
    Column("cleared_at", TIME),
    Column("closed_at", TIME),
    Column("due_at", TIME, server_default=func.now()),
    Index(
        "alarm_incidents_open",
        "cluster",
        "alarm",
        unique=True,
        postgresql_where=text("closed_at IS NULL AND alarm <> 'test'"),
    ),
    Index(
        "alarm_incidents_due",
        "cluster",
        "due_at",
        postgresql_where=text("due_at IS NOT NULL"),
    ),
)

# A message of an incident to one channel: it is open until it is done, and parked when
# it fails for long. `sent_at` is when the channel first took it; a channel can want a
# message again and again until the incident ends.
Table(
    "alarm_messages",
    METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column(
        "incident_id",
        BigInteger,
        ForeignKey("alarm_incidents.id", ondelete="CASCADE"),
        nullable=False,
    ),
    Column("channel", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("created_at", TIME, server_default=func.now(), nullable=False),
    Column("due_at", TIME, server_default=func.now(), nullable=False),
    Column("attempts", Integer, server_default=text("0"), nullable=False),
    Column("failing_since", TIME),
    Column("last_error", Text),
    Column("sent_at", TIME),
    Column("done_at", TIME),
    Column("parked_at", TIME),
    UniqueConstraint("incident_id", "channel", "kind"),
    Index(
        "alarm_messages_due",
        "cluster",
        "due_at",
        postgresql_where=text("done_at IS NULL"),
    ),
)

# A silence: an operator wants no messages of an alarm from one time to another. The row
# stays when that is over: an incident that began and ended meanwhile is not reported.
Table(
    "alarm_silences",
    METADATA,
    Column("cluster", Text, primary_key=True),
    Column("alarm", Text, primary_key=True),
    Column("begun_at", TIME, server_default=func.now(), nullable=False),
    Column("ends_at", TIME, nullable=False),
    Column("reason", Text, nullable=False),
)

# A switch that an operator has turned on.
SWITCHES = Table(
    "switches",
    METADATA,
    Column("cluster", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("set_at", TIME, server_default=func.now(), nullable=False),
)

# A change that an operator made by a command. `subject` is what was changed (a job, an
# effect), `change` what was announced. `outcome` is "done" or the error; None if the
# command ended before it could store one.
OPERATOR_LOG = Table(
    "operator_log",
    METADATA,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("at", TIME, server_default=func.clock_timestamp(), nullable=False),
    Column("operator", Text, nullable=False),
    Column("command", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("change", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("outcome", Text),
    Index("operator_log_by_cluster", "cluster", "id"),
)

# A reconciliation: what it looked at, found and did. `previous_doubts` are the doubts
# that it leaves to the next one, with the Unix time when each was first seen. A
# reconciliation acts on a doubt only when it sees it again.
RECONCILIATIONS = Table(
    "reconciliations",
    METADATA,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("begun_at", TIME, nullable=False),
    Column("finished_at", TIME, server_default=func.clock_timestamp(), nullable=False),
    Column("report", JSONB, nullable=False),
    Column("previous_doubts", JSONB, nullable=False),
    Index("reconciliations_by_cluster", "cluster", "id"),
)

# A value that one process writes and another one uses, and since when it has this
# value.
FACTS = Table(
    "facts",
    METADATA,
    Column("cluster", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Column("since", TIME, server_default=func.now(), nullable=False),
)

# A benchmark run: why, on which hardware, how far. A cluster has at most one open run.
# `token`, random hex digits, is in the names and the output of its jobs.
#
# `hardware_digest` is the digest of the hardware: first of the hardware that was asked
# for, and from the run's begin of the real hardware. `pricing_digest` is the digest of
# the prices and the operator's labels at that time. Either may be missing if the caller
# did not know it. If `forced` is set, results from before this run no longer count.
BENCHMARK_RUNS = Table(
    "benchmark_runs",
    METADATA,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("token", Text, nullable=False),
    Column("hardware", JSONB),
    Column("hardware_digest", Text),
    Column("pricing_digest", Text),
    Column("forced", Boolean, server_default=text("true"), nullable=False),
    Column("cancel_reason", Text),
    Column("asked_at", TIME, server_default=func.now(), nullable=False),
    Column("begun_at", TIME),
    Column("ended_at", TIME),
    Index(
        "benchmark_runs_one_open",
        "cluster",
        unique=True,
        postgresql_where=text("state IN ('ASKED', 'RUNNING')"),
    ),
    Index("benchmark_runs_by_cluster", "cluster", "id"),
)

# A benchmark of a run: its SLURM job, its output (at most the last 10 MB), and its
# labels or why there are none.
#
# `called_at` is when a worker was last about to call sbatch, and `run_as` the user of
# that call. `lost` is how often SLURM then did not know the job. `missing_at` is since
# when SLURM does not know the job. `cleaned`: its file on the login node is gone, or
# was given up and stays there. `left_out` are labels that this benchmark could not
# measure this time, with the reasons.
BENCHMARK_RESULTS = Table(
    "benchmark_results",
    METADATA,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column(
        "run_id",
        BigInteger,
        ForeignKey("benchmark_runs.id", ondelete="CASCADE"),
        nullable=False,
    ),
    Column("cluster", Text, nullable=False),
    Column("benchmark", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("job_name", Text, nullable=False),
    Column("run_as", Text),
    Column("options", JSONB, nullable=False),
    Column("script", Text, nullable=False),
    Column("lost", Integer, server_default=text("0"), nullable=False),
    Column("called_at", TIME),
    Column("slurm_id", BigInteger),
    Column("slurm_state", Text, server_default=text("''"), nullable=False),
    Column("exit_status", BigInteger, server_default=text("0"), nullable=False),
    Column("missing_at", TIME),
    Column("ended_at", TIME),
    Column("labels", JSONB, server_default=text("'{}'"), nullable=False),
    Column("left_out", JSONB, server_default=text("'{}'"), nullable=False),
    Column("notes", JSONB, server_default=text("'[]'"), nullable=False),
    Column("tool", Text, server_default=text("''"), nullable=False),
    Column("output", LargeBinary),
    Column("reason", Text),
    Column("cleaned", Boolean, server_default=text("false"), nullable=False),
    UniqueConstraint("run_id", "benchmark", name="benchmark_results_one_a_run"),
    Index(
        "benchmark_results_measured",
        "cluster",
        "benchmark",
        "id",
        postgresql_where=text("state = 'MEASURED'"),
    ),
)
