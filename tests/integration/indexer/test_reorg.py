"""Blocks that are lost: a real chain that anvil reorganises, a real ledger, and the
work of the chain queue.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import Engine, text

from devgrid.chain.chain import Chain
from devgrid.chain.deployment import start_chain
from devgrid.chain.model import Account, ChainNode, ChainPrices, JobDefinition
from devgrid.processes import wait_until
from devgrid.state_folder import private_processes
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.bootstrap import build
from supervisor_tasks.config.needs import Need
from supervisor_tasks.config.settings import load
from supervisor_tasks.indexer.scan import scan
from supervisor_tasks.jobs.claim import claim
from supervisor_tasks.jobs.events import (
    Event,
    ScriptFetched,
    SlurmCompleted,
    SlurmRunningObserved,
    SubmitRejected,
    SubmitStarted,
    Submitted,
)
from supervisor_tasks.jobs.model import (
    ChainStatus,
    EffectKind,
    Job,
    JobId,
    Outcome,
    SlurmId,
    State,
)
from supervisor_tasks.jobs.report import report
from supervisor_tasks.jobs.trace import AGAIN, ROOT
from supervisor_tasks.ledger.cursor_names import CONTRACT_STREAM
from supervisor_tasks.ledger.facts import REWIND
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.lifecycle import Worker
from supervisor_tasks.messaging.queues import Queue
from supervisor_tasks.open_transactions.receipts import collect_receipts
from tests.support.ledger import emptied
from tests.support.traces import TraceReceiver, trace_receiver

pytestmark = pytest.mark.slow  # chains that mine and are taken back

DEFINITION = JobDefinition(
    gpus=0, mem_per_cpu_mb=100, cpus_per_task=1, ntasks=1, batch_location_hash="hash"
)
CONFIRMATIONS = 80  # twenty seconds of this chain, which goes on while a test works
MINUTE_WEI = ChainPrices().of(DEFINITION)
STARTED = (
    ScriptFetched("echo", ""),
    SubmitStarted(60),
    Submitted(SlurmId(7)),
    SlurmRunningObserved(),
)
ENDED = SlurmCompleted(Outcome(status=ChainStatus.FINISHED, elapsed_s=125))


@pytest.fixture(scope="module")
def chain() -> Iterator[Chain]:
    with private_processes() as processes:
        yield start_chain(processes, block_time_s=0.25)


@dataclass(slots=True)
class ReorgScenario:
    """A provider with its ledger, and what the test does to both. The work is done when
    the test says so.
    """

    chain: Chain
    provider: Account
    customer: Account
    worker: Worker
    ledger: Ledger
    engine: Engine

    def request(self, number: int = 1) -> list[JobId]:
        return [
            JobId(found)
            for found in self.chain.customers.request_jobs(
                self.customer, DEFINITION, number, 60 * MINUTE_WEI
            )
        ]

    def assign(self, job_id: JobId) -> None:
        self.chain.admin.meta_schedule([job_id], self.provider.address)

    def claimed(self, *events: Event) -> JobId:
        """A job that is claimed, with what SLURM said of it."""
        (job_id,) = self.request()
        self.assign(job_id)
        self.claim()
        self.happens(job_id, *events)
        return job_id

    def claim(self) -> None:
        self.ledger.periodic_runs.record("slurm")
        claim(self.worker.context)
        collect_receipts(self.worker.context)

    def happens(self, job_id: JobId, *events: Event) -> None:
        self.ledger.record(*(JobChange(job_id, event) for event in events))

    def report(self) -> None:
        report(self.worker.context)
        collect_receipts(self.worker.context)

    def lose(self, above: int) -> None:
        """All blocks above this one are replaced by empty ones."""
        self.chain.reorganise_from(above + 1)

    def follow(self) -> None:
        """The scan sees what happened, the tracker sends again what was lost, the scan
        reads that.
        """
        scan(self.worker.context)
        collect_receipts(self.worker.context)
        scan(self.worker.context)

    def job(self, job_id: JobId) -> Job:
        return self.ledger.jobs([job_id])[job_id]

    def on_chain(self, job_id: JobId) -> tuple[ChainStatus, int]:
        """The status and the minutes that were billed."""
        found = self.chain.job(job_id)
        return found.status, found.final_cost_wei // MINUTE_WEI

    def rows(self, query: str, **parameters: object) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(text(query), parameters))

    def execute(self, statement: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement))

    def journal(self, job_id: JobId) -> list[str]:
        return [
            row.name
            for row in self.rows(
                "SELECT name FROM events WHERE job_id = :id ORDER BY id", id=job_id
            )
        ]

    def open_kinds(self, job_id: JobId) -> set[str]:
        query = "SELECT kind FROM effects WHERE job_id = :id AND done_at IS NULL"
        return {row.kind for row in self.rows(query, id=job_id)}

    def ends_right(self, job_id: JobId, elapsed_s: int = 125) -> None:
        """The job ends in SLURM; the contract says so, with the right minutes, and the
        ledger agrees.
        """
        self.happens(
            job_id,
            SlurmCompleted(Outcome(status=ChainStatus.FINISHED, elapsed_s=elapsed_s)),
        )
        self.report()
        scan(self.worker.context)
        assert self.on_chain(job_id) == (ChainStatus.FINISHED, elapsed_s // 60)
        assert self.job(job_id).state is State.SETTLED
        assert self.journal(job_id).count("Submitted") == 1
        assert self.rows("SELECT 1 FROM effects WHERE parked_at IS NOT NULL") == []
        assert (
            self.rows("SELECT 1 FROM transactions WHERE state IN ('SIGNED', 'SENT')")
            == []
        )


def new_scenario(
    migrated_ledger: tuple[Engine, dict[str, str]],
    chain: Chain,
    confirmations: int,
    **more: str,
) -> Iterator[ReorgScenario]:
    """A new provider and a new customer, with an empty ledger."""
    engine, _ = migrated_ledger
    emptied(engine)
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE blocks"))
    provider, customer = chain.new_account(), chain.new_account()
    chain.admin.mint_credits(customer.address, 10**24)
    chain.register_provider(provider, [ChainNode(2, 32, 64_000)], ChainPrices())
    yield from working(
        migrated_ledger, chain, (provider, customer), confirmations, **more
    )


def working(
    migrated_ledger: tuple[Engine, dict[str, str]],
    chain: Chain,
    accounts: tuple[Account, Account],
    confirmations: int,
    **more: str,
) -> Iterator[ReorgScenario]:
    """A worker of the cluster CLUSTER_NAME, for a provider and a customer."""
    (engine, environment), (provider, customer) = migrated_ledger, accounts
    for_chain = {
        "METASCHEDULER_ENDPOINT_RPC": chain.rpc_url,
        "METASCHEDULER_SMART_CONTRACT": chain.addresses.metascheduler,
        "CHAIN_ID": str(chain.chain_id),
        "CHAIN_CONFIRMATIONS": str(confirmations),
        "ETH_PRIVATE_KEY": provider.private_key,
        **more,
    }
    app = Celery("test", broker="memory://")
    worker = build(
        load(Need.WALLET, environment=environment | for_chain), [Queue.CHAIN], app
    )
    ledger = Ledger(engine, more.get("CLUSTER_NAME", "here"), lambda _: None)
    try:
        scan(worker.context)
        yield ReorgScenario(chain, provider, customer, worker, ledger, engine)
    finally:
        worker.close()
        ledger.holder.close()
        app.close()


@pytest.fixture
def scenario(
    migrated_ledger: tuple[Engine, dict[str, str]], chain: Chain
) -> Iterator[ReorgScenario]:
    yield from new_scenario(migrated_ledger, chain, CONFIRMATIONS)


@pytest.fixture
def one_confirmation(
    migrated_ledger: tuple[Engine, dict[str, str]], chain: Chain
) -> Iterator[ReorgScenario]:
    """A scenario whose chain counts a block as final after one more."""
    yield from new_scenario(migrated_ledger, chain, 1)


@pytest.fixture
def two_clusters(
    migrated_ledger: tuple[Engine, dict[str, str]],
    chain: Chain,
    scenario: ReorgScenario,
) -> Iterator[tuple[ReorgScenario, ReorgScenario]]:
    """Two clusters of one ledger with one wallet."""
    accounts = scenario.provider, scenario.customer
    for other in working(
        migrated_ledger, chain, accounts, CONFIRMATIONS, CLUSTER_NAME="there"
    ):
        for each in (scenario, other):
            wallet = chain.chain_id, each.worker.context.chain.contract.provider
            each.ledger.wallets.hold(*wallet, shared=True)
        yield scenario, other


@pytest.fixture
def some_confirmations(
    request: pytest.FixtureRequest,
    migrated_ledger: tuple[Engine, dict[str, str]],
    chain: Chain,
) -> Iterator[ReorgScenario]:
    """A scenario with as many confirmations as the test asks for."""
    yield from new_scenario(migrated_ledger, chain, request.param)


@pytest.fixture
def traces() -> Iterator[TraceReceiver]:
    with trace_receiver() as receiver:
        yield receiver


@pytest.fixture
def traced_scenario(
    migrated_ledger: tuple[Engine, dict[str, str]], chain: Chain, traces: TraceReceiver
) -> Iterator[ReorgScenario]:
    yield from new_scenario(
        migrated_ledger, chain, CONFIRMATIONS, OTEL_EXPORTER_OTLP_ENDPOINT=traces.url
    )


def test_end_lost__the_trace__keeps_its_root_and_has_the_later_end_under_it(
    traced_scenario: ReorgScenario, traces: TraceReceiver
) -> None:
    job_id = traced_scenario.claimed(*STARTED)
    traced_scenario.report()
    above = traced_scenario.chain.block_number()
    traced_scenario.ends_right(job_id)
    wait_until(
        lambda: ROOT in [span.name for span in traces.of(job_id)],
        "the root",
        20.0,
        0.05,
    )
    traced_scenario.lose(above)
    scan(traced_scenario.worker.context)
    assert traced_scenario.job(job_id).state is State.ENDED
    traced_scenario.follow()
    assert traced_scenario.job(job_id).state is State.SETTLED
    wait_until(
        lambda: AGAIN in [span.name for span in traces.of(job_id)],
        "the later end",
        20.0,
        0.05,
    )
    traced_scenario.worker.context.tracer.close()
    spans = traces.of(job_id)
    (root,) = (span for span in spans if span.name == ROOT)
    (again,) = (span for span in spans if span.name == AGAIN)
    assert [span.parent for span in spans if not span.parent] == [root.parent]
    assert again.parent == root.id
    assert again.begun_s >= root.ended_s
    assert {span.parent for span in spans} <= {"", root.id, again.id}
    assert len({span.trace for span in spans}) == 1
    assert len({span.id for span in spans}) == len(spans)
    assert [span.name for span in spans if span.parent == again.id] == [State.ENDED]


def test_claim_lost__of_a_running_job__slurm_goes_on_and_the_claim_is_sent_again(
    scenario: ReorgScenario,
) -> None:
    (job_id,) = scenario.request()
    scenario.assign(job_id)
    above = scenario.chain.block_number()
    scenario.claim()
    scenario.happens(job_id, *STARTED)
    scenario.report()
    scan(scenario.worker.context)
    scenario.lose(above)
    scan(scenario.worker.context)
    assert scenario.chain.job(job_id).status is ChainStatus.META_SCHEDULED
    assert (
        scenario.job(job_id).state,
        scenario.job(job_id).claim_reverted_by_reorg,
    ) == (
        State.RUNNING,
        True,
    )
    assert "report" not in scenario.open_kinds(job_id)
    scenario.follow()
    assert not scenario.job(job_id).claim_reverted_by_reorg
    assert scenario.chain.job(job_id).status is ChainStatus.RUNNING
    scenario.ends_right(job_id)


def test_report_lost__of_the_start__is_sent_again(scenario: ReorgScenario) -> None:
    job_id = scenario.claimed(*STARTED)
    above = scenario.chain.block_number()
    scenario.report()
    scan(scenario.worker.context)
    assert scenario.job(job_id).chain_status is ChainStatus.RUNNING
    scenario.lose(above)
    scan(scenario.worker.context)
    assert scenario.job(job_id).chain_status is ChainStatus.SCHEDULED
    scenario.follow()
    assert scenario.chain.job(job_id).status is ChainStatus.RUNNING
    scenario.ends_right(job_id)


def test_end_lost__job_was_settled__is_settled_again_only_when_mined_again(
    scenario: ReorgScenario,
) -> None:
    job_id = scenario.claimed(*STARTED)
    above = scenario.chain.block_number()
    scenario.ends_right(job_id)
    scenario.lose(above)
    scan(scenario.worker.context)
    assert scenario.job(job_id).state is State.ENDED
    scenario.follow()
    assert scenario.job(job_id).state is State.SETTLED
    assert scenario.on_chain(job_id) == (ChainStatus.FINISHED, 2)
    assert scenario.journal(job_id).count("Submitted") == 1


def test_receipt__its_block_is_lost_before_the_scan_reads_it__is_taken_back(
    scenario: ReorgScenario,
) -> None:
    job_id = scenario.claimed(*STARTED)
    scan(scenario.worker.context)
    above = scenario.chain.block_number()
    scenario.report()  # its receipt is read, its block is not
    scenario.lose(above)
    scan(scenario.worker.context)
    assert scenario.job(job_id).chain_status is ChainStatus.SCHEDULED
    scenario.follow()
    scenario.ends_right(job_id)


def test_claim_lost__shared_wallet_and_above_the_scan__what_the_scan_reads_counts(
    two_clusters: tuple[ReorgScenario, ReorgScenario],
) -> None:
    scenario, _ = two_clusters
    (job_id,) = scenario.request()
    scan(scenario.worker.context)
    cursor = scenario.ledger.cursors.of(CONTRACT_STREAM)
    assert cursor is not None
    scenario.chain.mine(3)
    scenario.assign(job_id)
    scenario.claim()  # its receipt is read, its block is not
    scenario.happens(job_id, *STARTED)
    scenario.lose(cursor[0])
    scan(scenario.worker.context)
    (event,) = scenario.rows(
        "SELECT details FROM events WHERE job_id = :id AND name = 'Reorganised'",
        id=job_id,
    )
    assert not event.details["ours"]
    assert event.details["fork"] > cursor[0]
    assert event.details["seen"] <= cursor[0]
    scenario.assign(job_id)
    scenario.follow()
    scenario.ends_right(job_id)


@pytest.mark.parametrize(
    ("some_confirmations", "between"),
    [(1, 20), (3, 20), (3, 200)],
    indirect=["some_confirmations"],
)
def test_end_lost__long_before_the_next_scan__is_reported_again(
    some_confirmations: ReorgScenario, between: int
) -> None:
    """As many blocks as that are mined between two scans where blocks are quick, or no
    worker scans for a while.
    """
    scenario = some_confirmations
    job_id = scenario.claimed(*STARTED)
    scenario.report()
    scan(scenario.worker.context)
    scenario.chain.mine(2)
    above = scenario.chain.block_number()
    scenario.happens(job_id, ENDED)
    scenario.report()  # its receipt is read
    assert scenario.job(job_id).state is State.SETTLED
    scenario.lose(above)
    scenario.chain.mine(between)
    scan(scenario.worker.context)
    # it is not as deep as blocks were mined since
    assert scenario.ledger.alarms.all() == []
    assert scenario.job(job_id).state is State.ENDED
    scenario.follow()
    assert scenario.job(job_id).state is State.SETTLED
    assert scenario.on_chain(job_id) == (ChainStatus.FINISHED, 2)
    assert scenario.journal(job_id).count("Submitted") == 1


def test_claim_lost__long_before_the_next_scan__is_sent_again(
    one_confirmation: ReorgScenario,
) -> None:
    scenario = one_confirmation
    (job_id,) = scenario.request()
    scenario.assign(job_id)
    scan(scenario.worker.context)
    scenario.chain.mine(2)
    above = scenario.chain.block_number()
    scenario.claim()
    scenario.happens(job_id, *STARTED)
    scenario.lose(above)
    scenario.chain.mine(20)
    scan(scenario.worker.context)
    assert (
        scenario.job(job_id).state,
        scenario.job(job_id).claim_reverted_by_reorg,
    ) == (
        State.RUNNING,
        True,
    )
    scenario.follow()
    assert not scenario.job(job_id).claim_reverted_by_reorg
    scenario.report()
    scenario.ends_right(job_id)


def test_receipt__committed_after_the_scan_passed_its_block__is_compared(
    one_confirmation: ReorgScenario,
) -> None:
    scenario = one_confirmation
    job_id = scenario.claimed(*STARTED)
    scenario.report()
    scenario.chain.mine(20)
    scan(scenario.worker.context)
    true = "SELECT state, block_number, block_hash FROM transactions WHERE purpose = 'report RUNNING'"
    before = scenario.rows(true)
    # as if just read
    scenario.execute(
        "UPDATE transactions SET block_hash = '0xff' WHERE purpose = 'report RUNNING'"
    )
    scan(scenario.worker.context)
    assert scenario.rows(true)[0].state == "SIGNED"
    scenario.follow()
    assert scenario.rows(true) == before
    scenario.ends_right(job_id)


def test_receipts__lost_deeper_than_expected__wait_for_the_operator_without_a_block(
    one_confirmation: ReorgScenario,
) -> None:
    scenario = one_confirmation
    job_id = scenario.claimed(*STARTED)
    scan(scenario.worker.context)
    above = scenario.chain.block_number()
    scenario.report()
    scenario.chain.mine(5)
    scenario.happens(job_id, ENDED)
    scenario.report()
    before = scenario.job(job_id)
    scenario.lose(above)
    scenario.chain.mine(20)
    scan(scenario.worker.context)
    assert scenario.job(job_id) == before
    assert [alarm.name for alarm in scenario.ledger.alarms.all()] == [
        AlarmName.REORGANISED_TOO_DEEP
    ]
    scenario.ledger.facts.set(REWIND, None)
    scan(scenario.worker.context)
    assert scenario.ledger.alarms.all() == []
    assert scenario.job(job_id).state is State.ENDED
    scenario.follow()
    assert scenario.job(job_id).state is State.SETTLED
    assert scenario.on_chain(job_id) == (ChainStatus.FINISHED, 2)


def test_claim_lost__of_a_cancellation__customers_request_stays(
    scenario: ReorgScenario,
) -> None:
    job_id = scenario.claimed(*STARTED)
    scenario.chain.customers.cancel_job(scenario.customer, job_id)
    above = scenario.chain.block_number()
    scenario.claim()
    assert "cancel" in scenario.open_kinds(job_id)
    scan(scenario.worker.context)
    scenario.lose(above)
    scan(scenario.worker.context)
    assert scenario.job(job_id).cancel_requested
    scenario.follow()
    assert "cancel" in scenario.open_kinds(job_id)
    scenario.ends_right(job_id)


def test_cancellation_lost__with_its_claim__job_goes_on(
    scenario: ReorgScenario,
) -> None:
    job_id = scenario.claimed(*STARTED)
    above = scenario.chain.block_number()
    scenario.chain.customers.cancel_job(scenario.customer, job_id)
    scenario.claim()
    scan(scenario.worker.context)
    scenario.lose(above)
    scenario.follow()
    assert not scenario.job(job_id).cancel_requested
    assert "cancel" not in scenario.open_kinds(job_id)
    scenario.ends_right(job_id)


def test_claim_lost__of_a_top_up__top_up_counts_once(scenario: ReorgScenario) -> None:
    job_id = scenario.claimed(*STARTED)
    scenario.chain.customers.top_up_job(scenario.customer, job_id, 5 * MINUTE_WEI)
    above = scenario.chain.block_number()
    scenario.claim()
    scan(scenario.worker.context)
    assert scenario.job(job_id).limit_min == 65
    scenario.chain.mine()  # it will be mined in another block
    scenario.lose(above)
    scan(scenario.worker.context)
    assert (scenario.job(job_id).limit_min, scenario.job(job_id).top_ups[0].block) == (
        65,
        None,
    )
    scenario.follow()
    scenario.chain.mine(2 * CONFIRMATIONS)
    scan(scenario.worker.context)
    job = scenario.job(job_id)
    assert (job.limit_min, len(job.top_ups), job.reorg_deadline_block) == (65, 1, None)
    scenario.ends_right(job_id)


def test_top_up_lost__with_its_claim__counts_no_more_after_the_confirmations(
    scenario: ReorgScenario,
) -> None:
    job_id = scenario.claimed(*STARTED)
    above = scenario.chain.block_number()
    scenario.chain.customers.top_up_job(scenario.customer, job_id, 5 * MINUTE_WEI)
    scenario.claim()
    scan(scenario.worker.context)
    scenario.lose(above)
    scenario.follow()
    assert (
        scenario.job(job_id).limit_min == 65
    )  # a customer's transaction may come back
    scenario.chain.mine(2 * CONFIRMATIONS)
    scan(scenario.worker.context)
    assert scenario.job(job_id).limit_min == 60
    assert "top_up" in scenario.open_kinds(job_id)


def test_refusal_lost__of_a_job_that_slurm_rejected__is_sent_again(
    scenario: ReorgScenario,
) -> None:
    rejected = (ScriptFetched("echo", ""), SubmitStarted(60), SubmitRejected("full"))
    job_id = scenario.claimed(*rejected)
    above = scenario.chain.block_number()
    scenario.report()
    scan(scenario.worker.context)
    assert scenario.job(job_id).chain_status is ChainStatus.PENDING
    scenario.lose(above)
    scenario.follow()
    assert (scenario.job(job_id).state, scenario.chain.job(job_id).status) == (
        State.REFUSED,
        ChainStatus.PENDING,
    )
    assert "return_job" not in scenario.open_kinds(job_id)


def test_claims__mined_in_another_order__each_job_has_its_own_end(
    scenario: ReorgScenario,
) -> None:
    first, second = scenario.request(2)
    above = scenario.chain.block_number()
    for job_id, slurm_id in ((first, 7), (second, 8)):
        scenario.assign(job_id)
        scenario.claim()
        scenario.happens(
            job_id, *STARTED[:2], Submitted(SlurmId(slurm_id)), SlurmRunningObserved()
        )
    scenario.report()
    scan(scenario.worker.context)
    keys = scenario.job(first).claim_key, scenario.job(second).claim_key
    scenario.lose(above)
    scenario.assign(second)
    scenario.assign(first)
    scenario.follow()
    assert (scenario.job(second).claim_key, scenario.job(first).claim_key) == keys
    assert (scenario.job(first).slurm_id, scenario.job(second).slurm_id) == (7, 8)
    scenario.report()
    scenario.follow()
    scenario.ends_right(first, 61)
    scenario.ends_right(second, 301)


def test_claims__of_clusters_with_one_wallet_swap_jobs__each_is_one_clusters(
    two_clusters: tuple[ReorgScenario, ReorgScenario],
) -> None:
    here, there = two_clusters
    first, second = here.request(2)
    above = here.chain.block_number()
    for scenario, job_id, slurm_id in ((here, first, 7), (there, second, 8)):
        scenario.assign(job_id)
        scenario.claim()
        scenario.happens(
            job_id, *STARTED[:2], Submitted(SlurmId(slurm_id)), SlurmRunningObserved()
        )
    for scenario in two_clusters:
        scan(scenario.worker.context)
    here.lose(above)
    here.assign(second)
    here.assign(first)
    for scenario in two_clusters:
        scenario.follow()
    here.chain.mine(2 * CONFIRMATIONS)
    for scenario in two_clusters:
        scan(scenario.worker.context)
    assert {job_id: here.job(job_id).state for job_id in (first, second)} == {
        first: State.REFUSED,
        second: State.CLAIMED,
    }
    assert {job_id: there.job(job_id).state for job_id in (first, second)} == {
        first: State.CLAIMED,
        second: State.REFUSED,
    }
    assert "cancel" in here.open_kinds(first)


def test_claim_lost__for_good__job_is_cancelled_in_slurm_after_the_confirmations(
    scenario: ReorgScenario,
) -> None:
    (job_id,) = scenario.request()
    above = scenario.chain.block_number()
    scenario.assign(job_id)
    scenario.claim()
    scenario.happens(job_id, *STARTED)
    scan(scenario.worker.context)
    scenario.lose(above)
    scenario.follow()
    assert scenario.job(job_id).state is State.RUNNING  # it may come back
    assert "cancel" not in scenario.open_kinds(job_id)
    scenario.chain.mine(2 * CONFIRMATIONS)
    scan(scenario.worker.context)
    job = scenario.job(job_id)
    assert (job.state, job.chain_status, job.reorg_deadline_block) == (
        State.REFUSED,
        ChainStatus.PENDING,
        None,
    )
    assert scenario.open_kinds(job_id) == {"cancel"}
    assert (
        scenario.rows("SELECT 1 FROM transactions WHERE state IN ('SIGNED', 'SENT')")
        == []
    )


def test_scan__node_is_behind__finds_no_reorganisation(scenario: ReorgScenario) -> None:
    job_id, behind = scenario.claimed(*STARTED), 40
    scenario.report()
    scan(scenario.worker.context)
    scenario.chain.mine(behind)
    scan(scenario.worker.context)
    before = scenario.job(job_id)
    snapshot = scenario.rows("SELECT * FROM cursors")
    with scenario.chain.behind(behind):
        scan(scenario.worker.context)
        assert scenario.job(job_id) == before
        assert scenario.rows("SELECT * FROM cursors") == snapshot
        assert scenario.ledger.alarms.all() == []
        scenario.execute("UPDATE facts SET since = now() - interval '4 minutes'")
        scan(scenario.worker.context)
        (alarm,) = scenario.ledger.alarms.all()
        assert alarm.name == AlarmName.NODE_BEHIND
        scenario.chain.mine(behind + 1)
    scan(scenario.worker.context)
    assert scenario.ledger.alarms.all() == []


def test_reorganisation__deeper_than_expected__waits_for_the_operator(
    one_confirmation: ReorgScenario,
) -> None:
    scenario = one_confirmation
    scenario.chain.mine(100)  # more than are kept: block 0 is not among them
    job_id = scenario.claimed(*STARTED)
    scan(scenario.worker.context)
    above = scenario.chain.block_number()
    scenario.report()
    scan(scenario.worker.context)
    scenario.chain.mine(3)
    scan(scenario.worker.context)
    before = scenario.job(job_id)
    scenario.lose(above)
    scan(scenario.worker.context)
    assert scenario.job(job_id) == before
    (alarm,) = scenario.ledger.alarms.all()
    assert alarm.name == AlarmName.REORGANISED_TOO_DEEP
    scenario.assign(scenario.request()[0])
    sent = scenario.rows("SELECT id FROM transactions")
    scenario.claim()
    # on which chain is not known
    assert scenario.rows("SELECT id FROM transactions") == sent
    common = alarm.details["last_common_block"]
    # an empty block may come again as it was
    assert common < alarm.details["read_up_to"]
    for refused in (
        common + 1,
        0,
    ):  # above the fork there is nothing in common; below what is kept, nothing to compare
        scenario.ledger.facts.set(REWIND, refused)
        scan(scenario.worker.context)
        assert scenario.ledger.facts.read(REWIND) is None
        assert scenario.job(job_id) == before
        assert [alarm.name for alarm in scenario.ledger.alarms.all()] == [
            AlarmName.REORGANISED_TOO_DEEP
        ]
    scenario.ledger.facts.set(REWIND, None)
    scan(scenario.worker.context)
    assert scenario.ledger.alarms.all() == []
    scenario.follow()
    scenario.ends_right(job_id)


def test_scan__after_a_long_downtime__reads_all_blocks(scenario: ReorgScenario) -> None:
    (job_id,) = scenario.request()
    scenario.assign(job_id)
    scenario.chain.send(scenario.provider, "MetaScheduler", "claimNextJob")
    for _ in range(6):
        scenario.chain.mine(200)  # more than one question for logs
    head = scenario.chain.block_number()
    scan(scenario.worker.context)
    assert scenario.job(job_id).state is State.CLAIMED
    assert scenario.rows("SELECT block_number FROM cursors")[0].block_number >= head
    assert EffectKind.FETCH.value in scenario.open_kinds(job_id)
