"""The totals behind the metrics, on a real Postgres: counted with the change, once, by
any number of workers.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import Engine, text

from supervisor_tasks.jobs.events import (
    ChainStatusObserved,
    Event,
    Reorganised,
    ScriptFetched,
    SlurmCompleted,
    SlurmRunningObserved,
    SubmitNotExecuted,
    SubmitRejected,
    SubmitStarted,
)
from supervisor_tasks.jobs.model import ChainStatus, JobId, Outcome
from supervisor_tasks.ledger.block_reads import Blocks
from supervisor_tasks.ledger.facts import BALANCE, Balance
from supervisor_tasks.ledger.figures import read_figures
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.status_queries import Overview
from supervisor_tasks.ledger.transactions import Mined, Sent, TransactionStore
from supervisor_tasks.observability.metrics import LedgerMetrics, LedgerReading
from tests.support.ledger import bring_to_queued, claim, job_id

CHAIN_ID = 7
ADDRESS = "0x" + "a" * 40


def record(ledger: Ledger, job: JobId, *events: Event) -> None:
    for event in events:
        ledger.record(JobChange(job, event))


def ended(status: ChainStatus, elapsed_s: int) -> SlurmCompleted:
    return SlurmCompleted(Outcome(status=status, elapsed_s=elapsed_s))


def settled(status: ChainStatus) -> ChainStatusObserved:
    return ChainStatusObserved(status, (20, 0))


def totals(ledger: Ledger) -> dict[tuple[str, str], int]:
    return {
        key: int(total)
        for key, total in ledger.counters.read().items()
        if key[0] not in HISTOGRAMS
    }


HISTOGRAMS = ("claim_to_submit", "end_to_settle")


def test_exposition__of_jobs_in_several_states__has_what_happened(
    ledger: Ledger, engine: Engine
) -> None:
    running = ChainStatusObserved(ChainStatus.RUNNING, (10, 0))
    finished, failed, panicked, waits, refused = (
        job_id(number) for number in range(1, 6)
    )
    for number in (1, 2, 3, 4):
        bring_to_queued(ledger, number)
    record(
        ledger,
        finished,
        SlurmRunningObserved(),
        running,
        ended(ChainStatus.FINISHED, 125),
        settled(ChainStatus.FINISHED),
    )
    record(
        ledger,
        failed,
        SlurmRunningObserved(),
        running,
        ended(ChainStatus.FAILED, 59),
        settled(ChainStatus.FAILED),
    )
    record(
        ledger,
        panicked,
        SlurmRunningObserved(),
        running,
        ended(ChainStatus.FINISHED, 600),
        settled(ChainStatus.PANICKED),
    )
    record(
        ledger,
        refused,
        claim(5),
        ScriptFetched("echo", ""),
        SubmitStarted(10),
        SubmitNotExecuted("busy"),
    )
    record(ledger, refused, SubmitStarted(10), SubmitRejected("no such partition"))
    ledger.facts.set(BALANCE, Balance(ADDRESS, 10**18))
    registry = CollectorRegistry()
    registry.register(LedgerMetrics("here", lambda: reading(engine)))
    lines = generate_latest(registry).decode().splitlines()
    for line in (
        'supervisor_jobs{cluster="here",state="QUEUED"} 1.0',
        'supervisor_jobs{cluster="here",state="REFUSED"} 1.0',
        'supervisor_jobs{cluster="here",state="RUNNING"} 0.0',
        'supervisor_jobs_claimed_total{cluster="here"} 5.0',
        'supervisor_jobs_settled_total{cluster="here",outcome="finished"} 1.0',
        'supervisor_jobs_settled_total{cluster="here",outcome="failed"} 1.0',
        'supervisor_jobs_settled_total{cluster="here",outcome="panicked"} 1.0',
        'supervisor_jobs_settled_total{cluster="here",outcome="cancelled"} 0.0',
        'supervisor_jobs_refused_total{cluster="here"} 1.0',
        'supervisor_jobs_billed_seconds_total{cluster="here"} 120.0',
        'supervisor_submissions_total{cluster="here",result="accepted"} 4.0',
        'supervisor_submissions_total{cluster="here",result="rejected"} 1.0',
        'supervisor_submissions_total{cluster="here",result="not_run"} 1.0',
        'supervisor_job_submission_duration_seconds_count{cluster="here"} 4.0',
        'supervisor_job_settlement_duration_seconds_count{cluster="here"} 3.0',
        'supervisor_wallet_balance_wei{address="0x'
        + "a" * 40
        + '",cluster="here"} 1e+18',
    ):
        assert line in lines
    assert waits in ledger.jobs([waits])


def reading(engine: Engine) -> LedgerReading:
    return LedgerReading(
        Overview(engine, "here").snapshot(), read_figures(engine, "here"), healthy=True
    )


def test_count__settled_twice_because_of_a_reorganisation__is_one_job(
    ledger: Ledger,
) -> None:
    job = bring_to_queued(ledger, 1)
    end = ended(ChainStatus.FINISHED, 120)
    record(ledger, job, SlurmRunningObserved(), end, settled(ChainStatus.FINISHED))
    once = ledger.counters.read()
    lost = Reorganised(
        status=ChainStatus.SCHEDULED,
        ours=True,
        cancel_requested=False,
        fork=15,
        seen=16,
        until=30,
    )
    record(ledger, job, lost)
    assert ledger.jobs([job])[job].state != "SETTLED"
    record(ledger, job, ChainStatusObserved(ChainStatus.FINISHED, (21, 0)))
    assert ledger.jobs([job])[job].state == "SETTLED"
    assert ledger.counters.read() == once


def test_count__change_that_is_not_committed__counts_nothing(ledger: Ledger) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        ledger.record(JobChange(job_id(1), claim(1)), also=fail)
    assert ledger.counters.read() == {}


def test_fold__beside_workers_that_count__loses_and_doubles_nothing(
    ledger: Ledger, engine: Engine
) -> None:
    others = [Ledger(engine, "here", lambda _: None) for _ in range(4)]

    def work(worker: int) -> None:
        for number in range(10):
            bring_to_queued(others[worker], 100 * worker + number)
            others[worker].counters.fold()

    with ThreadPoolExecutor(len(others)) as pool:
        list(pool.map(work, range(len(others))))
    for other in others:
        other.holder.close()
    assert totals(ledger) == {("jobs_claimed", ""): 40, ("submissions", "accepted"): 40}
    ledger.counters.fold()
    assert totals(ledger) == {("jobs_claimed", ""): 40, ("submissions", "accepted"): 40}
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM counter_increments")) == 0


def test_counters__of_other_clusters__are_apart(ledger: Ledger, engine: Engine) -> None:
    bring_to_queued(ledger, 1)
    other = Ledger(engine, "there", lambda _: None)
    other.counters.fold()
    assert other.counters.read() == {}
    other.holder.close()


def signed(nonce: int) -> dict[str, object]:
    return {
        "address": ADDRESS,
        "nonce": nonce,
        "purpose": "claim",
        "job_id": None,
        "idempotency_key": f"claim:{nonce}",
        "gas": 100_000,
        "max_fee_wei": 20,
        "priority_fee_wei": 1,
        "raw": b"\x02",
        "hash": f"0x{nonce:064x}",
    }


@pytest.fixture
def transactions(ledger: Ledger, engine: Engine) -> TransactionStore:
    transactions = TransactionStore(engine, "here", CHAIN_ID)
    transactions.add([signed(nonce) for nonce in range(4)], head=1)
    return transactions


def mined(sent: Sent, *, success: bool = True, earned: int = 0) -> Mined:
    return Mined(
        sent, success, 20, "0xb", sent.hash, 50_000, gas_price_wei=10, earned=earned
    )


def close(engine: Engine, transactions: TransactionStore, *results: Mined) -> None:
    with engine.begin() as connection:
        transactions.close(connection, results, {})


def test_transactions__mined_reverted_replaced_and_lost__are_counted(
    ledger: Ledger, engine: Engine, transactions: TransactionStore
) -> None:
    one, two, three, four = transactions.open_transactions()
    transactions.replace(
        [
            (
                one.id,
                {
                    "raw": b"\x02",
                    "hash": one.hash,
                    "max_fee_wei": 30,
                    "priority_fee_wei": 2,
                },
            )
        ],
        head=2,
    )
    close(
        engine, transactions, mined(one, earned=3 * 10**18), mined(two, success=False)
    )
    close(engine, transactions, replace(mined(three, success=False), given_up=True))
    transactions.mark_foreign([four.id, one.id])  # the second one is not open any more
    assert totals(ledger) == {
        ("transactions", "mined"): 1,
        ("transactions", "reverted"): 1,
        ("transactions", "given_up"): 1,
        ("transactions", "foreign"): 1,
        ("replacements", ""): 1,
        ("gas", ""): 150_000,
        ("fees_wei", ""): 1_500_000,
        ("credits", ""): 3 * 10**18,
    }


def test_transactions__mined_again_after_a_reorganisation__are_counted_once(
    ledger: Ledger, engine: Engine, transactions: TransactionStore
) -> None:
    one, *_ = transactions.open_transactions()
    close(engine, transactions, mined(one, earned=7))
    once = totals(ledger)
    with engine.begin() as connection:
        Blocks(engine, "here", 10).take_back(connection, 15)
    assert len(transactions.open_transactions()) == 4
    close(engine, transactions, mined(one, earned=7))
    assert totals(ledger) == once
    assert read_figures(engine, "here").cost_wei == pytest.approx(
        (500_000 + 3 * 2_000_000) / 4
    )


def test_figures__queries__read_no_large_table_as_a_whole(
    ledger: Ledger, engine: Engine
) -> None:
    """A scrape of a ledger with 20,000 settled jobs and 20,000 transactions does not
    read them.
    """
    with engine.begin() as connection:
        connection.execute(text(MANY_JOBS))
        connection.execute(text(MANY_TRANSACTIONS))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for table in ("jobs", "transactions", "effects", "callbacks"):
            connection.execute(text(f"VACUUM ANALYZE {table}"))
    before = _rows_read(engine)
    read_figures(engine, "here")
    assert _rows_read(engine) - before <= 300


def _rows_read(engine: Engine) -> int:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("SELECT pg_stat_force_next_flush()"))
    engine.dispose()  # a session writes its statistics at its end
    with engine.connect() as connection:
        rows = connection.scalar(text(ROWS_READ))
    return int(rows if rows is not None else Decimal(0))


ROWS_READ = """
    SELECT sum(seq_tup_read + COALESCE(idx_tup_fetch, 0)) FROM pg_stat_user_tables
    WHERE relname IN ('jobs', 'transactions', 'effects', 'callbacks')
"""
MANY_JOBS = """
    INSERT INTO jobs (cluster, job_id, customer, provider, claim_key, definition, time_limit_min, state, chain_status,
        chain_block, chain_log_index, grid_logger_url, top_ups, cancel_requested, poll_count, status_message)
    SELECT 'here', to_hex(n), '', '', '', '{}', 1, 'SETTLED', 5, 1, 1, '', '[]', false, 0, ''
    FROM generate_series(1, 20000) AS n
"""
MANY_TRANSACTIONS = """
    INSERT INTO transactions (cluster, chain_id, address, nonce, purpose, idempotency_key, gas, max_fee_wei, priority_fee_wei,
        raw, hash, state)
    SELECT 'here', 7, 'a', n, 'claim', n, 1, 1, 1, '', n, 'MINED' FROM generate_series(1, 20000) AS n
"""
