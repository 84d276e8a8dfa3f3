"""Registration on a real chain, with a real ledger: from an unknown provider to one
that claims, and back.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import Engine, text

from devgrid.chain.chain import Chain
from devgrid.chain.deployment import deploy, start_chain
from devgrid.chain.model import Account, ChainNode, ChainPrices, JobDefinition
from devgrid.processes import wait_until
from devgrid.state_folder import private_processes
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.benchmarking.benchmark_run import (
    BenchmarkRun,
    BenchmarkState,
    PlannedBenchmark,
)
from supervisor_tasks.bootstrap import build
from supervisor_tasks.cli.exit_codes import ExitCode
from supervisor_tasks.config.needs import Need
from supervisor_tasks.config.settings import load
from supervisor_tasks.indexer.scan import scan
from supervisor_tasks.jobs.claim import claim
from supervisor_tasks.ledger.benchmarks import BenchmarkResult
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.registrations import NODES as NODES_SEEN
from supervisor_tasks.ledger.registrations import REGISTRATION_RECORD, Registrations
from supervisor_tasks.ledger.wallet_holders import WalletHolders
from supervisor_tasks.lifecycle import Worker
from supervisor_tasks.messaging.queues import Queue
from supervisor_tasks.open_transactions.receipts import collect_receipts
from supervisor_tasks.provider.offer import Machine, Prices
from supervisor_tasks.provider.register import register
from supervisor_tasks.provider.registration_rules import RegistrationStatus
from supervisor_tasks.wallet.transaction_writer import WalletEmptyError
from tests.support.commands import Result, supervisor
from tests.support.ledger import emptied
from tests.support.wallet_harness import gas_limit, held

DEFINITION = JobDefinition(batch_location_hash="hash")
MACHINES = (Machine(0, 64, 256_000), Machine(2, 8, 16_000))
NODES = tuple(
    ChainNode(machine.gpus, machine.cpus, machine.mem_mb) for machine in MACHINES
)
BLOCK_GAS = 8_000_000
LABELS = {
    "METASCHEDULER_LABELS": "zone=ch,name=Here & now",
    "BENCHMARK_DISABLE": "true",
}


@pytest.fixture(scope="module")
def chain() -> Iterator[Chain]:
    with private_processes() as processes:
        yield start_chain(processes)


@dataclass(slots=True)
class RegistrationScenario:
    """A provider with its ledger. The work is done when the test says so."""

    chain: Chain
    provider: Account
    ledger: Ledger
    environment: dict[str, str]
    app: Celery
    worker: Worker
    engine: Engine
    facts: Registrations = field(init=False)

    def __post_init__(self) -> None:
        self.facts = Registrations(self.ledger.facts)

    def restart(self, **settings: str) -> None:
        self.worker.close()
        self.ledger.periodic_runs.record("slurm", NODES_SEEN)
        self.environment |= settings
        self.worker = build(
            load(Need.WALLET, environment=self.environment), [Queue.CHAIN], self.app
        )

    def look(self) -> None:
        """The registration is looked at, what was sent is followed, and looked at
        again.
        """
        self.ledger.periodic_runs.record("slurm", NODES_SEEN)
        register(self.worker.context)
        collect_receipts(self.worker.context)
        register(self.worker.context)

    def status(self) -> RegistrationStatus:
        known = self.facts.status()
        assert known is not None
        return known[0]

    def alarms(self) -> set[str]:
        return {alarm.name for alarm in self.ledger.alarms.all()}

    def sent(self) -> int:
        """How many registrations were ever signed."""
        with self.engine.connect() as connection:
            return int(
                connection.scalar(
                    text("SELECT count(*) FROM transactions WHERE purpose = 'register'")
                )
                or 0
            )

    def claims(self) -> int:
        """How many claims are written for a job that waits."""
        self.ledger.periodic_runs.record("slurm", NODES_SEEN)
        count = "SELECT count(*) FROM transactions WHERE purpose = 'claim'"
        with self.engine.connect() as connection:
            before = int(connection.scalar(text(count)) or 0)
            connection.rollback()
            claim(self.worker.context)
            collect_receipts(self.worker.context)
            return int(connection.scalar(text(count)) or 0) - before

    def assign(self) -> None:
        customer = self.chain.new_account()
        self.chain.admin.mint_credits(customer.address, 10**24)
        (job_id,) = self.chain.customers.request_jobs(customer, DEFINITION, 1, 10**20)
        self.chain.admin.meta_schedule([job_id], self.provider.address)

    def command(self, *words: str) -> Result:
        environment = {
            name: value
            for name, value in self.environment.items()
            if "PRIVATE_KEY" not in name
        }
        return supervisor("provider", *words, env=environment)

    def supervisor(self, *words: str) -> str:
        result = self.command(*words)
        assert result.exit_code == 0, result.output
        return result.stdout

    def told(self) -> Any:
        return json.loads(self.supervisor("show", "-o", "json"))


@pytest.fixture
def scenario(
    migrated_ledger: tuple[Engine, dict[str, str]], chain: Chain
) -> Iterator[RegistrationScenario]:
    engine, environment = migrated_ledger
    emptied(engine)
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE blocks"))
    provider = chain.new_account()
    settings = environment | LABELS
    settings |= {
        "METASCHEDULER_ENDPOINT_RPC": chain.rpc_url,
        "METASCHEDULER_SMART_CONTRACT": chain.addresses.metascheduler,
        "CHAIN_ID": str(chain.chain_id),
        "ETH_PRIVATE_KEY": provider.private_key,
    }
    app = Celery("test", broker="memory://")
    worker = build(load(Need.WALLET, environment=settings), [Queue.CHAIN], app)
    ledger = Ledger(engine, "here", lambda _: None)
    Registrations(ledger.facts).store_hardware(MACHINES)
    ledger.periodic_runs.record("slurm", NODES_SEEN)
    found = RegistrationScenario(chain, provider, ledger, settings, app, worker, engine)
    scan(found.worker.context)
    try:
        yield found
    finally:
        found.worker.close()
        ledger.holder.close()
        app.close()


def test_register__each_registration_status__is_recorded_and_decides_on_claims(
    scenario: RegistrationScenario, caplog: pytest.LogCaptureFixture
) -> None:
    chain, address = scenario.chain, scenario.provider.address
    scenario.look()
    waiting = chain.providers.waiting(address)
    assert waiting.nodes == NODES
    assert waiting.prices == ChainPrices()
    assert waiting.labels == (("name", "here-now"), ("zone", "ch"))
    assert scenario.status() is RegistrationStatus.WAITING
    scenario.look()
    assert scenario.sent() == 1, "it does not nag"

    chain.admin.approve_provider(address)
    scenario.look()
    assert scenario.status() is RegistrationStatus.APPROVED
    scenario.assign()
    assert scenario.claims() == 1
    assert scenario.alarms() == set()

    scenario.assign()
    chain.admin.ban_provider(address)
    assert scenario.claims() == 0
    assert "not_claiming" in caplog.text
    assert "claim_would_revert" not in caplog.text, "it is not even tried"
    scenario.look()
    assert scenario.status() is RegistrationStatus.BANNED
    assert scenario.alarms() == {AlarmName.PROVIDER_BANNED}
    chain.admin.ban_provider(address, banned=False)
    assert scenario.claims() == 1
    scenario.look()
    assert scenario.status() is RegistrationStatus.APPROVED
    assert scenario.alarms() == set()

    scenario.assign()
    chain.admin.remove_provider(address)
    assert scenario.claims() == 0
    scenario.look()
    assert scenario.status() is RegistrationStatus.REMOVED
    assert scenario.alarms() == {AlarmName.PROVIDER_REJECTED}
    assert scenario.sent() == 1, "what was turned down is not offered again"

    scenario.restart(METASCHEDULER_CPU_PRICE_PER_MIN=str(12 * 10**17))
    scenario.look()
    assert scenario.status() is RegistrationStatus.WAITING
    assert scenario.alarms() == set()
    chain.admin.remove_provider(address)
    scenario.look()
    assert scenario.status() is RegistrationStatus.REJECTED
    assert scenario.alarms() == {AlarmName.PROVIDER_REJECTED}
    scenario.restart(METASCHEDULER_CPU_PRICE_PER_MIN=str(95 * 10**16))
    scenario.look()
    assert scenario.sent() == 2, "nor the one before"
    assert "turned this offer down" in scenario.told()["why"]

    assert "asked" in scenario.supervisor("register", "--yes")
    scenario.look()
    assert scenario.status() is RegistrationStatus.WAITING
    assert scenario.sent() == 3
    assert scenario.told()["asked"] == {}


def test_price_changed__restart__is_in_the_next_block_and_the_rest_is_kept(
    scenario: RegistrationScenario,
) -> None:
    benchmark = {"cpu": "epyc", "compute.gflops": "100.00"}
    scenario.chain.register_provider(
        scenario.provider,
        NODES,
        ChainPrices(),
        benchmark | {"zone": "ch", "name": "here-now"},
    )
    scenario.look()
    assert scenario.sent() == 0
    scenario.restart(METASCHEDULER_GPU_PRICE_PER_MIN=str(9 * 10**18))
    block = scenario.chain.block_number()
    register(scenario.worker.context)
    wait_until(lambda: scenario.chain.block_number() > block, "the next block", 30.0)
    assert scenario.chain.block_number() == block + 1
    scenario.look()
    waiting = scenario.chain.providers.waiting(scenario.provider.address)
    assert waiting.prices.gpu_wei_per_min == 9 * 10**18
    assert dict(waiting.labels) == benchmark | {"zone": "ch", "name": "here-now"}
    assert scenario.status() is RegistrationStatus.CHANGING
    told = scenario.told()
    assert told["registered"]["prices"]["gpu_credits_per_min"] == "8.5"
    assert told["waiting"]["prices"]["gpu_credits_per_min"] == "9"
    scenario.assign()
    assert scenario.claims() == 1, "the old registration is in force"
    shown = scenario.supervisor("show")
    for words in ("changing, for", "are allowed", "GPU, credits/min", "label zone"):
        assert words in shown


def test_label_changed__wallet_empty__is_registered_after_a_deposit(
    scenario: RegistrationScenario,
) -> None:
    scenario.restart(METASCHEDULER_LABELS="gpu=a100,name=here")
    scenario.look()
    scenario.chain.admin.approve_provider(scenario.provider.address)
    scenario.look()
    assert scenario.status() is RegistrationStatus.APPROVED

    scenario.chain.set_balance(scenario.provider, 0)
    scenario.restart(METASCHEDULER_LABELS="gpu=h100,name=here")
    with pytest.raises(WalletEmptyError):
        scenario.look()
    assert scenario.sent() == 1
    scenario.chain.set_balance(scenario.provider, 100)
    scenario.look()
    waiting = scenario.chain.providers.waiting(scenario.provider.address)
    assert waiting.labels == (("gpu", "h100"), ("name", "here"))
    assert (scenario.sent(), scenario.status()) == (2, RegistrationStatus.CHANGING)


def test_register__another_contract_or_wallet__registers_there_without_an_alarm(
    scenario: RegistrationScenario, tmp_path: Path
) -> None:
    scenario.look()
    scenario.chain.admin.approve_provider(scenario.provider.address)
    scenario.look()
    assert scenario.status() is RegistrationStatus.APPROVED

    successor = deploy(tmp_path, scenario.chain.rpc_url)
    scenario.restart(METASCHEDULER_SMART_CONTRACT=successor.addresses.metascheduler)
    scenario.look()
    assert successor.providers.waits_for_approval(scenario.provider.address)
    assert scenario.status() is RegistrationStatus.WAITING
    assert scenario.alarms() == set()
    successor.admin.approve_provider(scenario.provider.address)
    scenario.look()
    assert scenario.status() is RegistrationStatus.APPROVED

    other = scenario.chain.new_account()
    scenario.restart(ETH_PRIVATE_KEY=other.private_key)
    scenario.look()
    assert successor.providers.waits_for_approval(other.address)
    assert scenario.status() is RegistrationStatus.WAITING
    assert scenario.alarms() == set()


def test_register__prices_on_chain_change__each_is_kept_in_the_order_of_time(
    scenario: RegistrationScenario,
) -> None:
    scenario.look()
    assert scenario.facts.registered_prices() == (), "nothing is approved"
    scenario.chain.admin.approve_provider(scenario.provider.address)
    begun = datetime.now(UTC)
    scenario.look()
    scenario.look()
    scenario.restart(METASCHEDULER_GPU_PRICE_PER_MIN=str(9 * 10**18))
    scenario.look()
    usual = Prices(**asdict(ChainPrices()))
    assert [one.prices for one in scenario.facts.registered_prices()] == [usual], (
        "the old registration is in force"
    )
    scenario.chain.admin.approve_provider(scenario.provider.address)
    scenario.look()
    first, second = scenario.facts.registered_prices()
    assert (first.prices, second.prices) == (
        usual,
        replace(usual, gpu_wei_per_min=9 * 10**18),
    )
    assert begun <= first.since < second.since <= datetime.now(UTC)


def test_register__not_mined_yet__is_not_sent_twice_after_any_change(
    scenario: RegistrationScenario,
) -> None:
    scenario.chain.rpc.call("evm_setAutomine", False)
    try:
        register(scenario.worker.context)
        scenario.restart(METASCHEDULER_GPU_PRICE_PER_MIN=str(9 * 10**18))
        register(scenario.worker.context)
        assert scenario.sent() == 1
        assert "under way" in scenario.told()["why"]
    finally:
        scenario.chain.rpc.call("evm_setAutomine", True)
        scenario.chain.mine()
    collect_receipts(scenario.worker.context)
    scenario.look()
    assert scenario.sent() == 2
    assert (
        scenario.chain.providers.waiting(
            scenario.provider.address
        ).prices.gpu_wei_per_min
        == 9 * 10**18
    )


def test_register__price_there_and_back_while_waiting__the_last_one_waits(
    scenario: RegistrationScenario,
) -> None:
    scenario.look()
    scenario.restart(METASCHEDULER_GPU_PRICE_PER_MIN=str(9 * 10**18))
    scenario.look()
    scenario.restart(METASCHEDULER_GPU_PRICE_PER_MIN=str(85 * 10**17))
    scenario.look()
    assert scenario.sent() == 3
    assert (
        scenario.chain.providers.waiting(scenario.provider.address).prices
        == ChainPrices()
    )
    assert scenario.status() is RegistrationStatus.WAITING


def test_register__contract_would_reject__spends_nothing_and_raises_an_alarm(
    scenario: RegistrationScenario,
) -> None:
    scenario.facts.store_hardware((Machine(0, 0, 16_000),))
    scenario.look()
    assert scenario.sent() == 0
    assert scenario.alarms() == {AlarmName.REGISTRATION_REJECTED}
    assert "InvalidTotalCpus" in scenario.told()["why"]
    scenario.facts.store_hardware(MACHINES)
    scenario.look()
    assert scenario.alarms() == set()
    assert scenario.status() is RegistrationStatus.WAITING


def test_register__another_cluster_registers_for_the_wallet__only_compares(
    scenario: RegistrationScenario,
) -> None:
    partner = WalletHolders(scenario.engine, "east")
    partner.hold(scenario.chain.chain_id, scenario.provider.address, shared=True)
    scenario.look()
    assert (scenario.sent(), scenario.alarms()) == (0, {AlarmName.SHARED_OFFER_DIFFERS})
    assert "the fleet of that cluster is not at work" in scenario.told()["why"]
    partner.release()
    scenario.look()
    scenario.chain.admin.approve_provider(scenario.provider.address)
    partner.hold(scenario.chain.chain_id, scenario.provider.address, shared=True)
    scenario.look()
    assert scenario.alarms() == set()
    scenario.restart(METASCHEDULER_GPU_PRICE_PER_MIN=str(9 * 10**18))
    scenario.look()
    assert (scenario.sent(), scenario.alarms()) == (1, {AlarmName.SHARED_OFFER_DIFFERS})
    why = scenario.told()["why"]
    assert why.startswith("the cluster 'east' registers")
    assert "the gpu price was 8.5 credits a minute, is 9" in why
    refusal = scenario.command("register", "--yes")
    assert refusal.exit_code == ExitCode.REFUSED
    assert "CLUSTER_NAME=east supervisor provider register" in refusal.stderr
    partner.release()
    scenario.look()
    assert (scenario.sent(), scenario.alarms()) == (2, set())


def test_register__machines_exceed_the_usual_gas_margin__fits_into_a_block(
    scenario: RegistrationScenario,
) -> None:
    scenario.facts.store_hardware((Machine(2, 64, 256_000),) * 400)
    with gas_limit(scenario.chain, BLOCK_GAS):
        scenario.look()
        assert scenario.status() is RegistrationStatus.WAITING
    assert len(scenario.chain.providers.waiting(scenario.provider.address).nodes) == 400
    assert (scenario.sent(), scenario.alarms()) == (1, set())


def test_register__too_many_machines_for_a_block__signs_nothing_and_raises_an_alarm(
    scenario: RegistrationScenario,
) -> None:
    scenario.facts.store_hardware((Machine(2, 64, 256_000),) * 500)
    with gas_limit(scenario.chain, BLOCK_GAS):
        for _ in range(2):
            scenario.look()
            assert scenario.sent() == 0
            assert scenario.alarms() == {AlarmName.REGISTRATION_REJECTED}
            assert (
                f"more gas than a block holds, which is {BLOCK_GAS}"
                in scenario.told()["why"]
            )
    scenario.look()
    assert (scenario.status(), scenario.alarms()) == (RegistrationStatus.WAITING, set())


def test_register__signed_for_more_gas_than_a_block_holds__is_replaced(
    scenario: RegistrationScenario,
) -> None:
    scenario.facts.store_hardware((Machine(2, 64, 256_000),) * 400)
    # the node loses it, and blocks have become smaller when it is sent again
    with held(scenario.chain):
        register(scenario.worker.context)
        scenario.chain.rpc.call("anvil_dropAllTransactions")
    assert scenario.sent() == 1
    with scenario.engine.begin() as connection:
        connection.execute(
            text("UPDATE transactions SET sent_at = now() - interval '1 minute'")
        )
    with gas_limit(scenario.chain, BLOCK_GAS):
        collect_receipts(scenario.worker.context)
        scenario.look()
        assert scenario.status() is RegistrationStatus.WAITING
    assert (scenario.sent(), scenario.alarms()) == (2, set())


def test_register__slurm_is_away__registers_prices_with_the_nodes_of_the_contract(
    scenario: RegistrationScenario,
) -> None:
    scenario.ledger.periodic_runs.remove("slurm")
    register(scenario.worker.context)
    assert scenario.sent() == 0
    assert "SLURM shows no node" in scenario.told()["why"]
    scenario.chain.register_provider(
        scenario.provider, NODES[:1], ChainPrices(), {"zone": "ch", "name": "here-now"}
    )
    scenario.restart(METASCHEDULER_GPU_PRICE_PER_MIN=str(9 * 10**18))
    scenario.ledger.periodic_runs.remove("slurm")
    register(scenario.worker.context)
    collect_receipts(scenario.worker.context)
    waiting = scenario.chain.providers.waiting(scenario.provider.address)
    assert (waiting.nodes, waiting.prices.gpu_wei_per_min) == (NODES[:1], 9 * 10**18)


def test_slurm_is_back__nodes_not_read_yet__count_only_after_the_next_look(
    scenario: RegistrationScenario,
) -> None:
    scenario.ledger.periodic_runs.remove(NODES_SEEN)
    register(scenario.worker.context)
    assert scenario.sent() == 0
    assert "SLURM shows no node" in scenario.told()["why"]
    scenario.facts.delete_hardware()
    assert scenario.facts.hardware() == ((), 0.0)
    scenario.facts.store_hardware(MACHINES)
    scenario.look()
    assert scenario.sent() == 1


def test_register__measures_first__asks_for_one_run_and_registers_at_its_end(
    scenario: RegistrationScenario,
) -> None:
    scenario.restart(BENCHMARK_DISABLE="false")
    scenario.look()
    runs = scenario.ledger.benchmarks
    run = runs.under_way()
    assert run is not None
    assert run.why == "nothing is registered"
    assert scenario.sent() == 0
    assert scenario.told()["decision"] == "measure first"
    runs.finish(run)
    scenario.look()
    assert scenario.status() is RegistrationStatus.WAITING
    assert runs.under_way() is None
    scenario.supervisor("measure", "--yes", "--reason", "new cooling")
    register(scenario.worker.context)
    run = runs.under_way()
    assert run is not None
    assert run.why == "new cooling"


def test_register__unusual_prices_and_labels_that_do_not_count__warns_of_both(
    scenario: RegistrationScenario,
) -> None:
    scenario.chain.register_provider(
        scenario.provider, NODES, ChainPrices(), {"cpu": "epyc"}
    )
    scenario.restart(
        METASCHEDULER_GPU_PRICE_PER_MIN=str(8_500 * 10**18),
        METASCHEDULER_LABELS="cpu=fast",
    )
    scenario.look()
    warnings = scenario.told()["warnings"]
    assert "the gpu price is 8500 credits a minute; usual are 8.5" in warnings[0]
    assert "LABELS_OVERRIDE=cpu" in warnings[1]
    assert scenario.chain.providers.waiting(scenario.provider.address).labels == (
        ("cpu", "epyc"),
    )
    scenario.restart(LABELS_OVERRIDE="cpu")
    scenario.look()
    assert scenario.chain.providers.waiting(scenario.provider.address).labels == (
        ("cpu", "fast"),
    )


def test_register__its_block_is_lost__is_sent_again_and_not_taken_for_turned_down(
    scenario: RegistrationScenario,
) -> None:
    scenario.restart(CHAIN_CONFIRMATIONS="5")
    scan(scenario.worker.context)
    above = scenario.chain.block_number()
    scenario.look()
    assert scenario.status() is RegistrationStatus.WAITING
    scenario.chain.reorganise_from(above + 1)
    register(scenario.worker.context)
    assert scenario.alarms() == set()
    assert "does not show it yet" in scenario.told()["why"]
    scan(scenario.worker.context)
    scenario.look()
    assert scenario.status() is RegistrationStatus.WAITING
    assert scenario.sent() == 1
    assert scenario.chain.providers.waits_for_approval(scenario.provider.address)


# --- what was measured, and the machines of it ----------------------------------------

FEWER = MACHINES[:1]
MEASURED_HERE = {"BENCHMARK_DISABLE": "false", "HARDWARE_STABLE_S": "0"}


def begin_on(
    scenario: RegistrationScenario, machines: tuple[Machine, ...], gflops: float
) -> BenchmarkRun:
    """The run that is under way begins on these machines, and measures that."""
    runs = scenario.ledger.benchmarks
    run = runs.under_way()
    assert run is not None
    runs.begin(
        run,
        [PlannedBenchmark(benchmark="hpl", script="xhpl")],
        "benchmark-",
        {"nodes": [asdict(one) for one in machines]},
    )
    (hpl,) = runs.measurements(run)
    assert runs.store_result(
        hpl,
        BenchmarkResult(
            state=BenchmarkState.MEASURED, labels={"compute.gflops": gflops}
        ),
    )
    return run


def measure_on(
    scenario: RegistrationScenario, machines: tuple[Machine, ...], gflops: float
) -> int:
    """The run that is under way begins on these machines, measures that, and ends."""
    run = begin_on(scenario, machines, gflops)
    scenario.ledger.benchmarks.finish(run)
    return run.id


def gflops_waiting(scenario: RegistrationScenario) -> str | None:
    return dict(scenario.chain.providers.waiting(scenario.provider.address).labels).get(
        "compute.gflops"
    )


@pytest.fixture
def measured(scenario: RegistrationScenario) -> RegistrationScenario:
    """A provider whose machines were all measured, and are registered."""
    scenario.restart(**MEASURED_HERE)
    scenario.look()
    measure_on(scenario, MACHINES, 100.0)
    scenario.look()
    assert gflops_waiting(scenario) == "100.00"
    return scenario


def show(scenario: RegistrationScenario, machines: tuple[Machine, ...]) -> None:
    scenario.facts.store_hardware(machines)
    scenario.look()


def run_numbers(scenario: RegistrationScenario) -> list[int]:
    return [run["id"] for run in scenario.ledger.benchmark_queries.runs(10)]


def make_older(scenario: RegistrationScenario, days: int) -> None:
    with scenario.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE benchmark_runs SET ended_at = ended_at - make_interval(days => :d)"
            ),
            {"d": days},
        )


def test_measure__node_back_before_the_run_ends__registers_no_numbers_of_fewer_nodes(
    measured: RegistrationScenario,
) -> None:
    make_older(measured, 8)
    show(measured, FEWER)
    show(measured, MACHINES)
    measure_on(measured, FEWER, 50.0)
    measured.look()
    assert (measured.sent(), gflops_waiting(measured)) == (1, "100.00")
    run = measured.ledger.benchmarks.under_way()
    assert run is not None, "all of them must be measured"
    assert run.why == "other nodes work than were measured"
    measure_on(measured, MACHINES, 110.0)
    measured.look()
    assert (measured.sent(), gflops_waiting(measured)) == (2, "110.00")
    assert measured.ledger.benchmarks.under_way() is None


def test_node__comes_and_goes__each_set_of_nodes_is_measured_once(
    measured: RegistrationScenario,
) -> None:
    show(measured, FEWER)
    measure_on(measured, FEWER, 50.0)
    measured.look()
    assert gflops_waiting(measured) == "50.00"
    numbers = run_numbers(measured)
    for machines, gflops in (
        (MACHINES, "100.00"),
        (FEWER, "50.00"),
        (MACHINES, "100.00"),
    ):
        show(measured, machines)
        waiting = measured.chain.providers.waiting(measured.provider.address)
        assert (len(waiting.nodes), gflops_waiting(measured)) == (len(machines), gflops)
    assert run_numbers(measured) == numbers
    make_older(measured, 8)
    show(measured, FEWER)
    assert run_numbers(measured) == numbers, "they were measured last"
    show(measured, MACHINES)
    assert len(run_numbers(measured)) == len(numbers) + 1, "it was long ago"


def test_price_changed__before_slurm_is_known__is_registered_and_measured_when_it_is(
    measured: RegistrationScenario,
) -> None:
    measured.restart(METASCHEDULER_GPU_PRICE_PER_MIN=str(9 * 10**18))
    measured.ledger.periodic_runs.remove("slurm")
    register(measured.worker.context)
    collect_receipts(measured.worker.context)
    register(measured.worker.context)
    assert (
        measured.chain.providers.waiting(
            measured.provider.address
        ).prices.gpu_wei_per_min
        == 9 * 10**18
    )
    assert measured.ledger.benchmarks.under_way() is None
    measured.look()
    run = measured.ledger.benchmarks.under_way()
    assert run is not None
    assert "prices" in run.why
    measure_on(measured, MACHINES, 100.0)
    measured.look()
    assert measured.ledger.benchmarks.under_way() is None


def test_override_taken_back__run_under_way__registers_what_was_measured_before_it(
    measured: RegistrationScenario,
) -> None:
    measured.restart(
        METASCHEDULER_LABELS="compute.gflops=mine", LABELS_OVERRIDE="compute.gflops"
    )
    measured.look()
    assert gflops_waiting(measured) == "mine"
    run = begin_on(measured, MACHINES, 110.0)
    measured.restart(METASCHEDULER_LABELS="zone=ch", LABELS_OVERRIDE="")
    measured.look()
    assert gflops_waiting(measured) == "100.00"
    measured.ledger.benchmarks.finish(run)
    measured.look()  # asks for a run with these labels
    measure_on(measured, MACHINES, 120.0)
    measured.look()
    assert gflops_waiting(measured) == "120.00"


def test_measure__worker_dies_after_asking__the_same_is_not_measured_again(
    measured: RegistrationScenario,
) -> None:
    """The record of the registration is as it was before."""
    before = measured.ledger.facts.get(REGISTRATION_RECORD)
    assert before is not None
    show(measured, FEWER)
    measured.facts.store(before)
    measure_on(measured, FEWER, 50.0)
    measured.look()
    assert measured.ledger.benchmarks.under_way() is None
    assert gflops_waiting(measured) == "50.00"


def test_measure__while_a_run_is_under_way__is_done_when_it_has_ended(
    measured: RegistrationScenario,
) -> None:
    measured.supervisor("measure", "--yes", "--reason", "new cooling")
    measured.look()
    measured.supervisor("measure", "--yes", "--reason", "new switches")
    measured.look()
    assert measured.told()["asked"] == {"measure": "new switches"}
    measure_on(measured, MACHINES, 101.0)
    measured.look()
    run = measured.ledger.benchmarks.under_way()
    assert run is not None
    assert run.why == "new switches"
    assert measured.told()["asked"] == {}


def test_measure__while_a_node_is_away__all_are_measured_when_it_is_back(
    measured: RegistrationScenario,
) -> None:
    """What was measured before the operator asked counts no more."""
    measured.supervisor("measure", "--yes", "--reason", "new cooling")
    measured.look()
    measure_on(measured, FEWER, 60.0)
    measured.look()
    run = measured.ledger.benchmarks.under_way()
    assert run is not None
    assert run.why == "other nodes work than were measured"
    assert gflops_waiting(measured) == "100.00"


def test_measure__run_cancelled_before_it_began__is_not_asked_for_again(
    scenario: RegistrationScenario,
) -> None:
    scenario.restart(**MEASURED_HERE)
    scenario.look()
    runs = scenario.ledger.benchmarks
    assert runs.cancel("enough") is not None
    run = runs.under_way()
    assert run is not None
    runs.finish(run)
    scenario.look()
    assert runs.under_way() is None
    assert scenario.status() is RegistrationStatus.WAITING
