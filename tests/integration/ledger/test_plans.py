"""No frequent query reads a big table whole: their plans, in a ledger with a million
settled jobs.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text

from devgrid import REPOSITORY
from devgrid.services.start import start_server
from devgrid.state_folder import private_processes
from grpc_callbacks import callback_store, callback_writer
from supervisor_tasks.chain.rpc.client import Rpc
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.jobs.callback_fallback import ENDED
from supervisor_tasks.jobs.claim import WAITING
from supervisor_tasks.jobs.events import (
    CallbackReceived,
    SlurmPendingObserved,
    SubmitStarted,
)
from supervisor_tasks.jobs.model import EffectKind, JobId, SlurmId
from supervisor_tasks.ledger import callbacks_sql, retention
from supervisor_tasks.ledger.archive import archive
from supervisor_tasks.ledger.block_reads import Blocks
from supervisor_tasks.ledger.callbacks import UNKNOWN_CHECKED_TO
from supervisor_tasks.ledger.doctor_queries import (
    last_callback_age_s,
    last_customer,
)
from supervisor_tasks.ledger.due import Due
from supervisor_tasks.ledger.earnings import Earnings, EarningsFilter
from supervisor_tasks.ledger.incidents import Incidents
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.outbox import (
    Failure,
    request_accounts_of_waiting_jobs,
)
from supervisor_tasks.ledger.status_queries import Overview, TransactionFilter
from supervisor_tasks.messaging.due_rules import EXCLUSIVE_TASKS, FACTS
from supervisor_tasks.wallet.account import WalletAccount
from supervisor_tasks.wallet.sent_transactions import SentTransactions
from supervisor_tasks.wallet.transaction_writer import TransactionWriter
from tests.support.large_ledger import ACTIVE, SETTLED, fill
from tests.support.ledger import through

CLUSTER = "old"
OF_JOBS = {"jobs", "events", "effects", "callbacks", "transactions", "signatures"}
# Retention reads these once a day; what a batch or a tick asks needs an index.
OF_OPERATION = {
    "benchmark_runs",
    "benchmark_results",
    "alarm_incidents",
    "alarm_messages",
    "reconciliations",
}
# rows that a plan may expect to read; a quarter of a per cent of the smallest table
# that is big
FEW = 10 * ACTIVE
RUNNING = JobId(f"0x{SETTLED + 1:064x}")
BATCH = 1000
FORK = SETTLED - 10  # each settled job was mined in a block of its own
KEY = "0x" + "1" * 64

# fills the tables with a million jobs
pytestmark = [pytest.mark.timeout(600), pytest.mark.chaos]


# What accumulates over years beside the jobs: benchmark runs, incidents, sweeps.
ACCUMULATED = (
    """
    INSERT INTO benchmark_runs (cluster, why, state, token, hardware, hardware_digest, pricing_digest, ended_at)
    SELECT :cluster, 'a week is over', 'DONE', lpad(to_hex(n), 16, '0'), '{}', 'digest', 'prices', now()
    FROM generate_series(1, 20000) AS n""",
    """
    INSERT INTO benchmark_results (run_id, cluster, benchmark, state, job_name, run_as, options, script, labels, cleaned)
    SELECT runs.id, :cluster, 'osu-' || n, 'MEASURED', 'job-' || runs.id || '-' || n, 'benchmark', '[]', '', '{}', true
    FROM benchmark_runs AS runs, generate_series(1, 5) AS n""",
    """
    INSERT INTO alarm_incidents (cluster, alarm, details, cleared_at, closed_at, due_at)
    SELECT :cluster, 'effect_overdue', '{}', now(), now(), NULL FROM generate_series(1, 100000)""",
    """
    INSERT INTO alarm_messages (cluster, incident_id, channel, kind, sent_at, done_at)
    SELECT :cluster, id, 'mail', 'raised', now(), now() FROM alarm_incidents""",
    """
    INSERT INTO reconciliations (cluster, begun_at, report, previous_doubts)
    SELECT :cluster, now(), '{}', '[]' FROM generate_series(1, 100000)""",
    "VACUUM ANALYZE",
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with private_processes() as processes:
        folder = processes.folder / "postgres"
        folder.mkdir()
        server = embedded_servers.postgres(folder)
        start_server(processes, "postgres", server)
        environment = {"PATH": "/usr/bin:/bin", "DATABASE_URL": server.url}
        argv = [sys.executable, "-m", "supervisor_tasks.cli", "db", "upgrade", "--yes"]
        subprocess.run(
            argv, cwd=REPOSITORY, env=environment, check=True, capture_output=True
        )
        engine = create_engine(server.url)
        fill(engine, CLUSTER)
        execute(engine, *ACCUMULATED, cluster=CLUSTER)
        yield engine
        engine.dispose()


@pytest.fixture
def ledger(engine: Engine) -> Iterator[Ledger]:
    ledger = Ledger(engine, CLUSTER, dispatch=lambda _: None)
    yield ledger
    ledger.holder.close()


@pytest.fixture
def account(engine: Engine) -> WalletAccount:
    return WalletAccount(engine, CLUSTER, Rpc.at("http://127.0.0.1:9"), 179188, KEY)


@contextmanager
def plans(engine: Engine) -> Iterator[list[tuple[str, Any]]]:
    """The plan of each statement that is run meanwhile."""
    found: list[tuple[str, Any]] = []

    def explain(
        connection: Connection,
        cursor: Any,
        statement: str,
        parameters: Any,
        context: Any,
        many: bool,
    ) -> None:
        verb = statement.split(maxsplit=1)[0].upper()
        if verb not in (
            "SELECT",
            "UPDATE",
            "INSERT",
            "DELETE",
            "WITH",
        ) or statement.startswith("EXPLAIN"):
            return
        for each in list(parameters)[:1] if many else [parameters]:
            with cursor.connection.cursor() as own:
                own.execute(f"EXPLAIN (FORMAT JSON) {statement}", each)
                found.append((statement, own.fetchone()[0][0]["Plan"]))

    event.listen(engine, "before_cursor_execute", explain)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", explain)


def nodes(
    plan: dict[str, Any], most: float = float("inf"), loops: float = 1.0
) -> Iterator[dict[str, Any]]:
    """All nodes of a plan, with the rows of all their runs; one right below a Limit
    brings no more rows than that. What is inside a nested loop is run for each row of
    its outside, and a SubPlan for each row of what it belongs to.
    """
    rows = min(plan["Plan Rows"], most)
    yield plan | {"Plan Rows": rows * loops, "Loops": loops}
    within = loops
    for below in plan.get("Plans", ()):
        relation = below["Parent Relationship"]
        again = relation == "SubPlan" or (
            relation == "Inner" and plan["Node Type"] == "Nested Loop"
        )
        limited = rows if plan["Node Type"] == "Limit" else float("inf")
        if relation == "Inner" and again:
            below_loops = within
        elif again:
            below_loops = loops * rows
        else:
            below_loops = loops
        yield from nodes(below, limited, below_loops)
        if relation == "Outer":
            within = loops * max(below["Plan Rows"], 1)


def costly(
    found: Sequence[tuple[str, Any]], big: Set[str] = OF_JOBS | OF_OPERATION
) -> list[str]:
    """What reads a big table whole, or expects very many rows of it."""
    return [
        f"{node['Node Type']} on {node.get('Relation Name')} ({node['Plan Rows']} rows): {statement}"
        for statement, plan in found
        for node in nodes(plan)
        if (node.get("Relation Name") in big and node["Node Type"] == "Seq Scan")
        or (
            node["Plan Rows"] > FEW
            and (node.get("Relation Name") in big or node["Loops"] > 1)
        )
        if node["Node Type"] != "ModifyTable"
    ]


def blocks(ledger: Ledger) -> Blocks:
    return Blocks(ledger.engine, CLUSTER, 64)


def taken_back(ledger: Ledger) -> None:
    """As in a reorganisation; nothing of it stays."""
    with ledger.engine.connect() as connection:
        blocks(ledger).take_back(connection, FORK)


def execute(measured: Engine, *statements: str, **parameters: object) -> None:
    """Before or behind what is measured, over a connection of its own."""
    engine = create_engine(measured.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement), parameters)
    engine.dispose()


def callbacks_said(ledger: Ledger) -> None:
    """What each batch of callbacks asks, and what is asked of one for which there is no
    room.
    """
    given = [
        {"job_id": f"0x{n:064x}", "slurm_id": n}
        for n in range(1, callback_writer.BATCH_CALLBACKS)
    ]
    said = {
        "cluster": CLUSTER,
        "status": 7,
        "duration_s": 61,
        "exit_code": 0,
        "most": 1000,
        "most_over": 10,
        "again_s": 30.0,
        "proven": [False] * len(given),
    }
    said |= {
        "job_ids": [one["job_id"] for one in given],
        "slurm_ids": [one["slurm_id"] for one in given],
    }
    alike = {
        "statuses": 7,
        "durations_s": 61,
        "exit_codes": 0,
        "peers": "peer",
        "proofs": "no key",
    }
    said |= {name: [value] * len(given) for name, value in alike.items()}
    with ledger.engine.connect() as connection:
        connection.exec_driver_sql(callbacks_sql.INSERT_OURS, said).all()
        connection.exec_driver_sql(callbacks_sql.KNOWN, said).all()
        for kept in callback_store.KEPT.values():
            connection.exec_driver_sql(
                kept, said | {"job_id": given[0]["job_id"], "proven": False}
            ).all()
        connection.exec_driver_sql(callbacks_sql.NEEDLESS, said | given[0]).all()


def free_leases(ledger: Ledger) -> None:
    """Of a worker that is gone and held all that is open."""
    leased = "UPDATE effects SET lease = 7, lease_until = now() + interval '1 hour' WHERE done_at IS NULL"
    execute(ledger.engine, leased, "ANALYZE effects")
    ledger.effects.due_without_message()
    left = (
        "UPDATE effects SET lease = NULL, lease_until = NULL, unexpected_failures = 0, failing_since = NULL"
        " WHERE done_at IS NULL"
    )
    execute(ledger.engine, left, "ANALYZE effects")


def lease_isolated(ledger: Ledger) -> None:
    """Where nothing else is due."""
    failed = "UPDATE effects SET unexpected_failures = 2, failing_since = now() WHERE done_at IS NULL"
    execute(ledger.engine, failed, "ANALYZE effects")
    ledger.effects.lease([EffectKind.POLL_SLURM])
    left = (
        "UPDATE effects SET unexpected_failures = 0, failing_since = NULL, lease = NULL, lease_until = NULL"
        " WHERE done_at IS NULL"
    )
    execute(ledger.engine, left, "ANALYZE effects")


def purge_unknown(ledger: Ledger) -> None:
    """An hour after the last time, with a million callbacks that were looked at
    then.
    """
    old = "UPDATE callbacks SET read_at = now() - interval '2 days' WHERE id > :looked_at AND id <= :looked_at + 500"
    looked_at = "INSERT INTO facts (cluster, name, value) VALUES (:cluster, :name, CAST(:looked_at AS text))"
    execute(
        ledger.engine,
        old,
        looked_at,
        cluster=CLUSTER,
        name=UNKNOWN_CHECKED_TO.name,
        looked_at=SETTLED - BATCH,
    )
    ledger.callbacks.purge_unknown()


def give_back(ledger: Ledger) -> None:
    """What a batch does with effects that have no end yet: it extends their leases,
    postpones some, and parks one.
    """
    held = ledger.effects.lease([EffectKind.POLL_SLURM])
    ledger.effects.extend(held)
    ledger.effects.postpone(held[1:], 5.0, "SLURM is away")
    ledger.effects.park([Failure(held[0], "unknown answer")])
    left = (
        "UPDATE effects SET lease = NULL, lease_until = NULL, failing_since = NULL, last_error = NULL, parked_at = NULL,"
        " due_at = now(), attempts = 0 WHERE done_at IS NULL"
    )
    execute(ledger.engine, left, "ANALYZE effects")


def request_accounts(ledger: Ledger) -> None:
    with ledger.engine.begin() as connection:
        request_accounts_of_waiting_jobs(connection, CLUSTER)


def cut_off(ledger: Ledger) -> None:
    """Of a job whose submissions were cut off twice, beside a million events."""
    cut = """
        INSERT INTO events (cluster, job_id, name, details, state)
        SELECT :cluster, :job_id, name, '{"reason": "cut off", "unparsed": false}', 'SUBMITTING'
        FROM unnest(ARRAY['Claimed', 'SubmitOutcomeUnknown', 'SubmitOutcomeUnknown']) AS name"""
    failing = """
        UPDATE effects SET failing_since = now() - interval '1 minute'
        WHERE cluster = :cluster AND job_id = :job_id AND done_at IS NULL"""
    of_job = {"cluster": CLUSTER, "job_id": RUNNING}
    execute(ledger.engine, cut, failing, **of_job)
    job = ledger.jobs([RUNNING])[RUNNING]
    with ledger.engine.connect() as connection:
        effect_id = connection.scalar(
            text("SELECT id FROM effects WHERE job_id = :job_id AND done_at IS NULL"),
            of_job,
        )
    assert len(ledger.journal.cut_off(job, effect_id).reasons) == 2
    left = "UPDATE effects SET failing_since = NULL WHERE cluster = :cluster AND job_id = :job_id"
    execute(ledger.engine, left, **of_job)


def incidents_due(ledger: Ledger) -> None:
    """What the task that sends alarms asks each time."""
    incidents = Incidents(ledger.engine, CLUSTER)
    with ledger.engine.connect() as connection:
        incidents.to_plan(connection)
    incidents.due()
    incidents.undelivered(300.0)


def benchmark_questions(ledger: Ledger) -> None:
    """What the tasks ask about benchmarks."""
    benchmarks = ledger.benchmarks
    benchmarks.under_way()
    benchmarks.names_under_way()
    benchmarks.users()
    benchmarks.labels()
    benchmarks.ended()
    benchmarks.pricing_digest()


FREQUENT_QUERIES: dict[str, Callable[[Ledger, WalletAccount], object]] = {
    "lease": lambda ledger, _: ledger.effects.lease([EffectKind.POLL_SLURM]),
    "forgotten": lambda ledger, _: ledger.effects.due_without_message(),
    "jobs": lambda ledger, _: ledger.jobs([RUNNING, JobId(f"0x{1:064x}")]),
    "record": lambda ledger, _: ledger.record(
        JobChange(RUNNING, CallbackReceived()),
        JobChange(RUNNING, SlurmPendingObserved("RUNNING")),
    ),
    "count_in_states": lambda ledger, _: ledger.count_in_states(WAITING),
    "unread_callbacks": lambda ledger, _: ledger.callbacks.unread(),
    "has_unread_callbacks": lambda ledger, _: ledger.callbacks.has_unread(),
    "callbacks_of": lambda ledger, _: ledger.callbacks.about(
        {JobId(f"0x{n:064x}"): SlurmId(n) for n in range(1, BATCH)}
    ),
    "submissions": lambda ledger, _: ledger.journal.submissions(
        [SlurmId(n) for n in range(1, BATCH)]
    ),
    "what is due": lambda ledger, _: Due(
        through(ledger.engine), CLUSTER, EXCLUSIVE_TASKS, FACTS
    ).ask(),
    "alarm_summary": lambda ledger, _: ledger.effects.alarm_summary(),
    "snapshot": lambda ledger, _: Overview(ledger.engine, CLUSTER).snapshot(),
    "parked": lambda ledger, _: Overview(ledger.engine, CLUSTER).parked(),
    "jobs that are active": lambda ledger, _: Overview(ledger.engine, CLUSTER).jobs(),
    "jobs by state": lambda ledger, _: Overview(ledger.engine, CLUSTER).by_state(),
    "job by its id": lambda ledger, _: Overview(ledger.engine, CLUSTER).named(RUNNING),
    "story": lambda ledger, _: Overview(ledger.engine, CLUSTER).timeline(RUNNING),
    "latest transactions": lambda ledger, _: Overview(
        ledger.engine, CLUSTER
    ).transactions(TransactionFilter()),
    "transactions that are open": lambda ledger, _: Overview(
        ledger.engine, CLUSTER
    ).transactions(TransactionFilter(only_open=True)),
    "open transactions of a job": lambda ledger, _: Overview(
        ledger.engine, CLUSTER
    ).open_transactions_of(RUNNING),
    "owners": lambda ledger, _: ledger.owners({SlurmId(n): 0 for n in range(1, 9)}),
    "first_claim": lambda ledger, _: ledger.journal.first_claim(
        [f"0x{n:064x}" for n in range(1, BATCH)]
    ),
    "ages": lambda ledger, _: ledger.journal.ages_s(
        [f"0x{n:064x}" for n in range(1, BATCH)], SubmitStarted
    ),
    "looks": lambda ledger, _: ledger.journal.looks(
        [f"0x{n:064x}" for n in range(1, BATCH)], 7200.0
    ),
    "last_callbacks": lambda ledger, _: ledger.callbacks.last_callbacks(
        [f"0x{n:064x}" for n in range(1, BATCH)]
    ),
    "ever_suspended": lambda ledger, _: ledger.journal.ever_suspended(
        [f"0x{n:064x}" for n in range(1, BATCH)]
    ),
    "counts of callbacks": lambda ledger, _: ledger.callbacks.counts(
        [(JobId(f"0x{n:064x}"), n) for n in range(1, BATCH)]
    ),
    "slurm_ids": lambda ledger, _: ledger.slurm_ids(
        [f"0x{n:064x}" for n in range(1, BATCH)]
    ),
    "callbacks that tell an end": lambda ledger, _: ledger.callbacks.jobs_reported_as(
        {JobId(f"0x{n:064x}"): SlurmId(n) for n in range(1, BATCH)}, ENDED, 300.0
    ),
    "callbacks that prove an end": lambda ledger, _: ledger.callbacks.jobs_proven_as(
        {JobId(f"0x{n:064x}"): SlurmId(n) for n in range(1, BATCH)}, ENDED
    ),
    "jobs that are over for long": lambda ledger, _: ledger.callbacks.settled_for(
        [JobId(f"0x{n:064x}") for n in range(1, BATCH)], 900.0
    ),
    "callbacks_since": lambda ledger, _: ledger.callbacks.of_last(RUNNING, 3600.0),
    "stored callbacks: full": lambda ledger, _: callbacks_said(ledger),
    "leases of the dead": lambda ledger, _: free_leases(ledger),
    "lease of an isolated effect": lambda ledger, _: lease_isolated(ledger),
    "lease of submissions": lambda ledger, _: ledger.effects.lease_groups(16, 20),
    "lease of cancellations": lambda ledger, _: ledger.effects.lease_cancellations(16),
    "before_submission": lambda ledger, _: ledger.journal.before_submission(
        [f"0x{n:064x}" for n in range(1, BATCH)]
    ),
    "scripts": lambda ledger, _: ledger.scripts(
        [f"0x{n:064x}" for n in range(1, BATCH)]
    ),
    "failed_launches": lambda ledger, _: ledger.journal.failed_launches(
        [f"0x{n:064x}" for n in range(1, BATCH)]
    ),
    "unparsed_answers": lambda ledger, _: ledger.journal.unparsed_answers(RUNNING),
    "cut_off": lambda ledger, _: cut_off(ledger),
    "jobs that wait, by customer": lambda ledger, _: ledger.journal.waiting(WAITING),
    "effects given back": lambda ledger, _: give_back(ledger),
    "effects due at once": lambda ledger, _: ledger.effects.reschedule_now(
        [RUNNING], [EffectKind.REPORT]
    ),
    "effects that fail alike": lambda ledger, _: ledger.effects.failing_with("SLURM"),
    "lease of top-ups": lambda ledger, _: ledger.effects.lease([EffectKind.TOP_UP]),
    "benchmarks": lambda ledger, _: benchmark_questions(ledger),
    "incidents": lambda ledger, _: incidents_due(ledger),
    "last sweeps": lambda ledger, _: ledger.reconciliations.last(10),
    "purge_unknown": lambda ledger, _: purge_unknown(ledger),
    "sweep: active": lambda ledger, _: ledger.reconciliations.active(),
    "sweep: named": lambda ledger, _: ledger.reconciliations.named(
        [RUNNING], [SlurmId(7)]
    ),
    "sweep: stale": lambda ledger, _: ledger.reconciliations.stale(),
    "accounts of jobs that wait": lambda ledger, _: request_accounts(ledger),
    "lease of accounts": lambda ledger, _: ledger.effects.lease(
        [EffectKind.ACCOUNT], 200
    ),
    "blocks: mined_in": lambda ledger, _: blocks(ledger).mined_in(FORK, SETTLED),
    "blocks: last_mined_in": lambda ledger, _: blocks(ledger).last_mined_in(),
    "blocks: jobs_with_events_above": lambda ledger, _: blocks(
        ledger
    ).jobs_with_events_above(FORK),
    "journal: claimed_above": lambda ledger, _: ledger.journal.claimed_above(
        [f"0x{n:064x}" for n in range(1, BATCH)], FORK
    ),
    "blocks: jobs_whose_doubt_is_over": lambda ledger, _: blocks(
        ledger
    ).jobs_whose_doubt_is_over(FORK),
    "blocks: take_back": lambda ledger, _: taken_back(ledger),
    "missing": lambda _, account: TransactionWriter(account, "").missing(
        ["claim:7", "claim:none"]
    ),
    "sent_transactions": lambda _, account: SentTransactions(account).all(),
    "abandoned": lambda _, account: SentTransactions(account).abandoned(7, 20),
    "broadcast": lambda _, account: account.transactions.broadcast([(RUNNING, None)]),
    "reverted": lambda _, account: account.transactions.reverted({"claim:7": RUNNING}),
    "outstanding": lambda _, account: SentTransactions(account).outstanding(),
    "open_by_purpose": lambda _, account: TransactionWriter(
        account, ""
    ).open_by_purpose(),
    "next_nonce": lambda _, account: account.transactions.next_nonce("0x" + "3" * 40),
    "at_nonces": lambda _, account: account.transactions.at_nonces(
        "0x" + "3" * 40, range(7, 20)
    ),
    "bill of a job": lambda ledger, _: Earnings(ledger.engine, CLUSTER).total(
        EarningsFilter(RUNNING)
    ),
    "earned today": lambda ledger, _: Earnings(ledger.engine, CLUSTER).today(),
    "last customer": lambda ledger, _: last_customer(ledger.engine, CLUSTER),
    "last callback": lambda ledger, _: last_callback_age_s(ledger.engine, CLUSTER),
    "ours": lambda _, account: account.transactions.ours([RUNNING]),
    "writers": lambda _, account: account.transactions.writers([RUNNING]),
}


FIRST_OLD, OLD, LOOSE, SWEEPS = SETTLED // 2, 2000, 500, 600
# Old jobs with their scripts, a claim's transactions without a job, and sweeps, amid a
# million jobs that are young.
GROWN_OLD = (
    """
    UPDATE jobs SET updated_at = now() - interval '500 days', script = '#!/bin/sh'
    WHERE cluster = :cluster AND slurm_id > :first AND slurm_id <= :first + :old""",
    """
    UPDATE transactions SET job_id = NULL, done_at = now() - interval '500 days'
    WHERE cluster = :cluster AND nonce > :first - :loose AND nonce <= :first""",
    """
    INSERT INTO reconciliations (cluster, begun_at, finished_at, report, previous_doubts)
    SELECT :cluster, now() - interval '500 days', now() - interval '500 days', '{}', '[]'
    FROM generate_series(1, :sweeps)""",
    "VACUUM ANALYZE",
)


def test_retention__old_rows_amid_a_million_others__are_found_by_an_index(
    engine: Engine, ledger: Ledger, tmp_path: Path
) -> None:
    execute(
        engine,
        *GROWN_OLD,
        cluster=CLUSTER,
        first=FIRST_OLD,
        old=OLD,
        loose=LOOSE,
        sweeps=SWEEPS,
    )
    rows = retention.Retention(engine, CLUSTER, 400)
    before = datetime.now(UTC) - timedelta(days=400)
    with plans(engine) as found:
        written = archive(engine, CLUSTER, before, tmp_path / "old.jsonl.zst")
        old = rows.old()
        deleted = rows.delete(lambda: True)
    assert costly(found, OF_JOBS) == []
    assert (written["job"], written["transaction"]) == (OLD, LOOSE)
    assert (old.scripts, old.jobs, deleted.left) == (OLD, OLD, False)
    assert (deleted.rows["scripts"], deleted.rows["jobs"], deleted.rows["effects"]) == (
        OLD,
        OLD,
        OLD,
    )
    assert deleted.rows["transactions"] == OLD + LOOSE
    verbs = Counter(statement.split(maxsplit=1)[0] for statement, _ in found)
    assert verbs["DELETE"] >= 5 * OLD // retention.BATCH_ROWS


@pytest.mark.parametrize("name", FREQUENT_QUERIES)
def test_frequent_query__with_a_million_settled_jobs__reads_only_what_it_needs(
    name: str, engine: Engine, ledger: Ledger, account: WalletAccount
) -> None:
    with plans(engine) as found:
        FREQUENT_QUERIES[name](ledger, account)
    assert found, "no statement was run"
    assert costly(found) == []


def test_costly__nested_loop_over_many_and_many__is_found(engine: Engine) -> None:
    with plans(engine) as found, engine.connect() as connection:
        connection.exec_driver_sql(
            "SET enable_hashjoin = off; SET enable_mergejoin = off"
        )
        connection.exec_driver_sql(
            "SELECT * FROM jobs AS a, jobs AS b WHERE a.state = 'RUNNING' AND b.state = 'RUNNING'"
            " AND a.poll_count + b.poll_count = 1"
        )
    assert costly(found)


def test_costly__query_without_an_index__is_found(engine: Engine) -> None:
    with plans(engine) as found, engine.connect() as connection:
        connection.exec_driver_sql("SELECT * FROM jobs WHERE status_message = 'x'")
    assert len(costly(found)) == 1
