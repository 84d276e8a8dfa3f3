"""`supervisor earnings` and a job's bill, against the contract's own transfers on a
real chain, to the wei.
"""

import csv
import io
import json
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine

from devgrid.chain.chain import Chain
from devgrid.chain.model import Account, ChainNode, ChainPrices
from supervisor_tasks.indexer.scan import scan
from supervisor_tasks.jobs.events import OperatorSettledJob
from supervisor_tasks.jobs.model import ChainStatus, JobId, Outcome
from supervisor_tasks.jobs.report import report
from supervisor_tasks.ledger.earnings import Earnings, EarningsFilter, Per
from supervisor_tasks.ledger.fact_store import Facts
from supervisor_tasks.ledger.facts import BALANCE, Balance
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.ledger.registrations import Registrations
from supervisor_tasks.ledger.status_queries import Overview
from supervisor_tasks.ledger.transactions import TRANSFER
from supervisor_tasks.wallet.transaction_writer import Write
from tests.support.commands import Result, supervisor
from tests.support.wallet_harness import (
    CUSTOMERS,
    GAS,
    ChainHarness,
    claims,
    scheduled_jobs,
    sent,
)

# how the jobs end: the status, SLURM's seconds, the minutes that the customer pays
ENDS = {
    "finished": (Outcome(status=ChainStatus.FINISHED, elapsed_s=185), 3),
    "failed": (Outcome(status=ChainStatus.FAILED, elapsed_s=119, exit_status=256), 1),
    "at once": (Outcome(status=ChainStatus.FINISHED, elapsed_s=59), 0),
    "panicked": (Outcome(status=ChainStatus.PANICKED, elapsed_s=600, reason="lost"), 0),
    # more than is locked
    "too long": (Outcome(status=ChainStatus.FINISHED, elapsed_s=60 * 10**6), 10**6),
}

# no wei is lost unseen
PRICES = ChainPrices(
    8_500_000_000_000_000_001, 950_000_000_000_000_003, 80_000_000_000_007
)


@pytest.fixture(scope="module")
def provider(chain: Chain) -> Account:
    account = chain.new_account()
    chain.register_provider(account, [ChainNode(2, 32, 64_000)], PRICES)
    return account


@pytest.fixture(scope="module")
def earned(chain: Chain, provider: Account, database: Engine) -> dict[str, JobId]:
    """Jobs that were claimed, reported and paid; the chain is asked from here on."""
    harness = ChainHarness.of(chain, provider, database)
    append_prices(harness)
    scan(harness.site)
    jobs = dict(zip(ENDS, scheduled_jobs(chain, provider, len(ENDS)), strict=True))
    sent(harness, *claims(len(ENDS)))
    # reverts; its gas is paid
    sent(harness, Write("wrong", "report RUNNING", "0x1f92a63f" + "00" * 32, gas=GAS))
    scan(harness.site)
    ledger = harness.site.ledger
    ledger.record(
        *(
            JobChange(jobs[name], OperatorSettledJob(outcome))
            for name, (outcome, _) in ENDS.items()
        )
    )
    report(harness.site)
    while harness.follow():
        pass
    return jobs


def append_prices(harness: ChainHarness) -> None:
    registered = harness.site.chain.contract.on_offer().registered
    assert registered is not None
    Registrations(harness.site.ledger.facts).append_prices(
        registered.prices, datetime.now(UTC)
    )


def transfers(chain: Chain, provider: Account) -> dict[str, int]:
    """What the contract has paid the provider, by the token's own events: the amount of
    each transaction.
    """
    topics = [
        TRANSFER,
        *(
            f"0x{address[2:]:0>64}"
            for address in (chain.addresses.metascheduler, provider.address)
        ),
    ]
    query = {"address": chain.addresses.credit, "topics": topics, "fromBlock": "0x0"}
    return {
        log["transactionHash"]: int(log["data"], 16)
        for log in chain.rpc.call("eth_getLogs", query)
    }


def command(engine: Engine, *words: str, status: int = 0) -> Result:
    url = engine.url.render_as_string(hide_password=False)
    result = supervisor(*words, env={"DATABASE_URL": url, "CLUSTER_NAME": "here"})
    assert result.exit_code == status, (result.output, result.exception)
    return result


def test_total__of_mined_reports__is_what_the_contract_transferred(
    chain: Chain, provider: Account, database: Engine, earned: dict[str, JobId]
) -> None:
    found = Earnings(database, "here")
    paid = transfers(chain, provider)
    everything = EarningsFilter()
    assert sum(paid.values()) > 0
    assert (
        found.total(everything).earned_wei
        == sum(paid.values())
        == chain.credit_balance(provider.address)
    )
    for per in Per:
        rows = found.rows(per, everything, None)
        assert sum(row.earned_wei for row in rows) == sum(paid.values()), per
        assert sum(row.fees_wei for row in rows) == found.total(everything).fees_wei, (
            per
        )
        assert sum(row.minutes for row in rows) == sum(
            minutes for _, minutes in ENDS.values()
        ), per
        assert sum(row.jobs for row in rows) == len(ENDS), per


def test_total__fees__are_what_the_wallet_spent(
    chain: Chain, provider: Account, database: Engine, earned: dict[str, JobId]
) -> None:
    harness = ChainHarness.of(chain, provider, database)
    hashes = [tx_hash for (tx_hash,) in harness.rows("hash")]
    receipts = chain.receipts(hashes)
    spent = sum(
        int(receipt["gasUsed"], 16) * int(receipt["effectiveGasPrice"], 16)
        for receipt in receipts
    )
    assert any(receipt["status"] == "0x0" for receipt in receipts)
    assert Earnings(database, "here").total(EarningsFilter()).fees_wei == spent


def test_job__bill_and_payment__are_as_the_contract_computed_them(
    chain: Chain, database: Engine, earned: dict[str, JobId]
) -> None:
    for name, (_, minutes) in ENDS.items():
        document = json.loads(
            command(database, "job", "show", earned[name], "-o", "json").stdout
        )["bill"]
        final = chain.job(earned[name]).final_cost_wei
        assert document["minutes"] == minutes, name
        assert int(document["credits_wei"]) == final, name
        locked = name == "too long"
        assert (int(document["bill_wei"]) == final) is not locked, name
        shown = command(database, "earnings", "--job", earned[name]).stdout
        assert ("not as billed" in shown) is locked, name
        assert (
            f"{minutes} min x (1 CPU x 0.950000000000000003 + 100 MB x 0.000080000000000007)"
            in shown
        ), name


def test_job__its_claim__is_among_what_its_gas_cost(
    chain: Chain, database: Engine, provider: Account, earned: dict[str, JobId]
) -> None:
    harness, found = (
        ChainHarness.of(chain, provider, database),
        Earnings(database, "here"),
    )
    rows = {row.name: row for row in found.rows(Per.JOB, EarningsFilter(), None)}
    for job_id in earned.values():
        key = harness.site.ledger.jobs([job_id])[job_id].claim_key.partition(":")[0]
        (receipt,) = chain.receipts([key])
        claim = int(receipt["gasUsed"], 16) * int(receipt["effectiveGasPrice"], 16)
        reports = [
            used * price
            for of_job, used, price in harness.rows("job_id, gas_used, gas_price_wei")
            if of_job == job_id
        ]
        assert rows[job_id].fees_wei == claim + sum(reports)
        assert found.total(EarningsFilter(job_id)).fees_wei == rows[job_id].fees_wei
        timeline = Overview(database, "here").timeline(job_id)
        assert [
            entry["details"]["hash"] for entry in timeline if entry["what"] == "claim"
        ] == [key]


def test_status__three_paid_jobs__tells_the_days_earnings_and_what_the_wallet_holds(
    provider: Account, database: Engine, earned: dict[str, JobId]
) -> None:
    Facts(database, "here").set(BALANCE, Balance(provider.address, 12 * 10**17))
    document = json.loads(command(database, "status", "-o", "json").stdout)
    latest = Earnings(database, "here").rows(Per.DAY, EarningsFilter(), 1)[0]
    assert document["earned_today_wei"] == str(latest.earned_wei)
    assert document["balance_wei"] == str(12 * 10**17)
    shown = command(database, "status").stdout
    assert "holds 1.2 coins for gas" in shown
    assert "credits from 3 paid jobs" in shown


def test_csv__read_again__has_every_wei(
    chain: Chain, provider: Account, database: Engine, earned: dict[str, JobId]
) -> None:
    shown = command(database, "earnings", "--per", "job", "--csv").stdout
    rows = list(csv.DictReader(io.StringIO(shown)))
    assert {row["job"] for row in rows} == {*earned.values(), "(no job)"}
    assert sum(int(row["credits_wei"]) for row in rows) == sum(
        transfers(chain, provider).values()
    )
    by_id = {row["job"]: row for row in rows}
    assert by_id[earned["failed"]]["outcome"] == "FAILED"
    assert by_id[earned["failed"]]["minutes"] == "1"


def test_table__filters_and_total__are_of_the_same_jobs(
    database: Engine, earned: dict[str, JobId]
) -> None:
    customer = CUSTOMERS[earned["failed"]].address
    (row,) = json.loads(
        command(
            database,
            "earnings",
            "--per",
            "customer",
            "--customer",
            customer[:8],
            "-o",
            "json",
        ).stdout
    )
    assert row["customer"] == customer
    assert row["jobs"] == len(ENDS)
    assert (
        f"{len(ENDS)} jobs, 1000004 minutes"
        in command(database, "earnings", "--customer", customer).stdout
    )
    assert command(
        database, "earnings", "--customer", "0x" + "9" * 40
    ).stdout.startswith("earnings: none")
    assert (
        "expected an address"
        in command(database, "earnings", "--customer", "alice", status=2).stderr
    )


@pytest.mark.parametrize(
    ("sort", "column"),
    [("credits", "credits_wei"), ("minutes", "minutes"), ("gas", "gas_paid_wei")],
)
def test_sort__by_credits_minutes_or_gas__rows_have_the_largest_sum_first(
    database: Engine, earned: dict[str, JobId], sort: str, column: str
) -> None:
    shown = json.loads(
        command(
            database, "earnings", "--per", "job", "--sort", sort, "-o", "json"
        ).stdout
    )
    sums = [int(row[column]) for row in shown]
    assert sums == sorted(sums, reverse=True)
    assert len(set(sums)) > 1
    (first,) = json.loads(
        command(
            database,
            "earnings",
            "--per",
            "job",
            "--sort",
            sort,
            "--limit",
            "1",
            "-o",
            "json",
        ).stdout
    )
    assert int(first[column]) == sums[0]


def test_plot__earnings_per_month__are_drawn_in_the_terminal_and_as_svg(
    database: Engine, earned: dict[str, JobId], tmp_path: Path
) -> None:
    file = tmp_path / "earnings.svg"
    shown = command(
        database, "earnings", "--per", "month", "--plot", "--svg", str(file)
    ).stdout
    assert "█" in shown
    assert f"{file}: 1 month" in shown
    text = " ".join(ET.fromstring(file.read_text()).itertext())  # noqa: S314  made here
    assert "Credits of here per month" in text
    assert "xlink:href=" not in file.read_text()
    refused = command(
        database, "earnings", "--customer", "0x" + "9" * 40, "--plot", status=1
    ).stderr
    assert "found no earnings to draw" in refused


def test_job__prices_change_while_it_runs__bill_is_at_the_price_of_its_assignment(
    chain: Chain, database: Engine, provider: Account, earned: dict[str, JobId]
) -> None:
    harness = ChainHarness.of(chain, provider, database)
    ledger = harness.site.ledger
    before, waiting = scheduled_jobs(chain, provider, 2)
    sent(harness, *claims(1, 100))
    scan(harness.site)
    dearer = ChainPrices(
        PRICES.gpu_wei_per_min, 2 * PRICES.cpu_wei_per_min + 1, PRICES.mem_wei_per_min
    )
    chain.register_provider(provider, [ChainNode(2, 32, 64_000)], dearer)
    append_prices(harness)
    sent(harness, *claims(1, 101))  # it was assigned at the old prices
    (after,) = scheduled_jobs(chain, provider, 1)
    sent(harness, *claims(1, 102))
    scan(harness.site)
    ended = OperatorSettledJob(Outcome(status=ChainStatus.FINISHED, elapsed_s=185))
    ledger.record(*(JobChange(job_id, ended) for job_id in (before, waiting, after)))
    report(harness.site)
    while harness.follow():
        pass
    for job_id, cpu in (
        (before, "0.950000000000000003"),
        (waiting, "0.950000000000000003"),
        (after, "1.900000000000000007"),
    ):
        document = json.loads(
            command(database, "job", "show", job_id, "-o", "json").stdout
        )["bill"]
        assert int(document["bill_wei"]) == chain.job(job_id).final_cost_wei > 0
        shown = command(database, "earnings", "--job", job_id).stdout
        assert f"3 min x (1 CPU x {cpu} + " in shown
        assert "not as billed" not in shown
