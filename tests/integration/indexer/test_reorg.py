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
from supervisor_tasks.ledger.alarms import AlarmName
from supervisor_tasks.ledger.block_reads import CONTRACT_STREAM
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


def playing(
    migrated_ledger: tuple[Engine, dict[str, str]],
    chain: Chain,
    confirmations: int,
    **more: str,
) -> Iterator[ReorgScenario]:
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
def play(
    migrated_ledger: tuple[Engine, dict[str, str]], chain: Chain
) -> Iterator[ReorgScenario]:
    yield from playing(migrated_ledger, chain, CONFIRMATIONS)


@pytest.fixture
def shallow(
    migrated_ledger: tuple[Engine, dict[str, str]], chain: Chain
) -> Iterator[ReorgScenario]:
    yield from playing(migrated_ledger, chain, 1)


@pytest.fixture
def sharing(
    migrated_ledger: tuple[Engine, dict[str, str]], chain: Chain, play: ReorgScenario
) -> Iterator[tuple[ReorgScenario, ReorgScenario]]:
    """Two clusters of one ledger with one wallet."""
    accounts = play.provider, play.customer
    for other in working(
        migrated_ledger, chain, accounts, CONFIRMATIONS, CLUSTER_NAME="there"
    ):
        for each in (play, other):
            wallet = chain.chain_id, each.worker.context.chain.contract.provider
            each.ledger.wallets.hold(*wallet, shared=True)
        yield play, other


@pytest.fixture
def few(
    request: pytest.FixtureRequest,
    migrated_ledger: tuple[Engine, dict[str, str]],
    chain: Chain,
) -> Iterator[ReorgScenario]:
    yield from playing(migrated_ledger, chain, request.param)


@pytest.fixture
def traces() -> Iterator[TraceReceiver]:
    with trace_receiver() as receiver:
        yield receiver


@pytest.fixture
def traced(
    migrated_ledger: tuple[Engine, dict[str, str]], chain: Chain, traces: TraceReceiver
) -> Iterator[ReorgScenario]:
    yield from playing(
        migrated_ledger, chain, CONFIRMATIONS, OTEL_EXPORTER_OTLP_ENDPOINT=traces.url
    )


def test_end_lost__the_trace__keeps_its_root_and_has_the_later_end_under_it(
    traced: ReorgScenario, traces: TraceReceiver
) -> None:
    job_id = traced.claimed(*STARTED)
    traced.report()
    above = traced.chain.block_number()
    traced.ends_right(job_id)
    wait_until(
        lambda: ROOT in [span.name for span in traces.of(job_id)],
        "the root",
        20.0,
        0.05,
    )
    traced.lose(above)
    scan(traced.worker.context)
    assert traced.job(job_id).state is State.ENDED
    traced.follow()
    assert traced.job(job_id).state is State.SETTLED
    wait_until(
        lambda: AGAIN in [span.name for span in traces.of(job_id)],
        "the later end",
        20.0,
        0.05,
    )
    traced.worker.context.tracer.close()
    spans = traces.of(job_id)
    (root,), (again,) = (
        [span for span in spans if span.name == name] for name in (ROOT, AGAIN)
    )
    assert [span.parent for span in spans if not span.parent] == [root.parent]
    assert again.parent == root.id
    assert again.begun_s >= root.ended_s
    assert {span.parent for span in spans} <= {"", root.id, again.id}
    assert len({span.trace for span in spans}) == 1
    assert len({span.id for span in spans}) == len(spans)
    assert [span.name for span in spans if span.parent == again.id] == [State.ENDED]


def test_claim_lost__of_a_running_job__slurm_goes_on_and_the_claim_is_sent_again(
    play: ReorgScenario,
) -> None:
    (job_id,) = play.request()
    play.assign(job_id)
    above = play.chain.block_number()
    play.claim()
    play.happens(job_id, *STARTED)
    play.report()
    scan(play.worker.context)
    play.lose(above)
    scan(play.worker.context)
    assert play.chain.job(job_id).status is ChainStatus.META_SCHEDULED
    assert (play.job(job_id).state, play.job(job_id).claim_reverted_by_reorg) == (
        State.RUNNING,
        True,
    )
    assert "report" not in play.open_kinds(job_id)
    play.follow()
    assert not play.job(job_id).claim_reverted_by_reorg
    assert play.chain.job(job_id).status is ChainStatus.RUNNING
    play.ends_right(job_id)


def test_report_lost__of_the_start__is_sent_again(play: ReorgScenario) -> None:
    job_id = play.claimed(*STARTED)
    above = play.chain.block_number()
    play.report()
    scan(play.worker.context)
    assert play.job(job_id).chain_status is ChainStatus.RUNNING
    play.lose(above)
    scan(play.worker.context)
    assert play.job(job_id).chain_status is ChainStatus.SCHEDULED
    play.follow()
    assert play.chain.job(job_id).status is ChainStatus.RUNNING
    play.ends_right(job_id)


def test_end_lost__job_was_settled__is_settled_again_only_when_mined_again(
    play: ReorgScenario,
) -> None:
    job_id = play.claimed(*STARTED)
    above = play.chain.block_number()
    play.ends_right(job_id)
    play.lose(above)
    scan(play.worker.context)
    assert play.job(job_id).state is State.ENDED
    play.follow()
    assert play.job(job_id).state is State.SETTLED
    assert play.on_chain(job_id) == (ChainStatus.FINISHED, 2)
    assert play.journal(job_id).count("Submitted") == 1


def test_receipt__its_block_is_lost_before_the_scan_reads_it__is_taken_back(
    play: ReorgScenario,
) -> None:
    job_id = play.claimed(*STARTED)
    scan(play.worker.context)
    above = play.chain.block_number()
    play.report()  # its receipt is read, its block is not
    play.lose(above)
    scan(play.worker.context)
    assert play.job(job_id).chain_status is ChainStatus.SCHEDULED
    play.follow()
    play.ends_right(job_id)


def test_claim_lost__shared_wallet_and_above_the_scan__what_the_scan_reads_counts(
    sharing: tuple[ReorgScenario, ReorgScenario],
) -> None:
    play, _ = sharing
    (job_id,) = play.request()
    scan(play.worker.context)
    cursor = play.ledger.cursors.of(CONTRACT_STREAM)
    assert cursor is not None
    play.chain.mine(3)
    play.assign(job_id)
    play.claim()  # its receipt is read, its block is not
    play.happens(job_id, *STARTED)
    play.lose(cursor[0])
    scan(play.worker.context)
    (event,) = play.rows(
        "SELECT details FROM events WHERE job_id = :id AND name = 'Reorganised'",
        id=job_id,
    )
    assert not event.details["ours"]
    assert event.details["fork"] > cursor[0]
    assert event.details["seen"] <= cursor[0]
    play.assign(job_id)
    play.follow()
    play.ends_right(job_id)


@pytest.mark.parametrize(
    ("few", "between"), [(1, 20), (3, 20), (3, 200)], indirect=["few"]
)
def test_end_lost__long_before_the_next_scan__is_reported_again(
    few: ReorgScenario, between: int
) -> None:
    """As many blocks as that are mined between two scans where blocks are quick, or no
    worker scans for a while.
    """
    play = few
    job_id = play.claimed(*STARTED)
    play.report()
    scan(play.worker.context)
    play.chain.mine(2)
    above = play.chain.block_number()
    play.happens(job_id, ENDED)
    play.report()  # its receipt is read
    assert play.job(job_id).state is State.SETTLED
    play.lose(above)
    play.chain.mine(between)
    scan(play.worker.context)
    # it is not as deep as blocks were mined since
    assert play.ledger.alarms.all() == []
    assert play.job(job_id).state is State.ENDED
    play.follow()
    assert play.job(job_id).state is State.SETTLED
    assert play.on_chain(job_id) == (ChainStatus.FINISHED, 2)
    assert play.journal(job_id).count("Submitted") == 1


def test_claim_lost__long_before_the_next_scan__is_sent_again(
    shallow: ReorgScenario,
) -> None:
    play = shallow
    (job_id,) = play.request()
    play.assign(job_id)
    scan(play.worker.context)
    play.chain.mine(2)
    above = play.chain.block_number()
    play.claim()
    play.happens(job_id, *STARTED)
    play.lose(above)
    play.chain.mine(20)
    scan(play.worker.context)
    assert (play.job(job_id).state, play.job(job_id).claim_reverted_by_reorg) == (
        State.RUNNING,
        True,
    )
    play.follow()
    assert not play.job(job_id).claim_reverted_by_reorg
    play.report()
    play.ends_right(job_id)


def test_receipt__committed_after_the_scan_passed_its_block__is_compared(
    shallow: ReorgScenario,
) -> None:
    play = shallow
    job_id = play.claimed(*STARTED)
    play.report()
    play.chain.mine(20)
    scan(play.worker.context)
    true = "SELECT state, block_number, block_hash FROM transactions WHERE purpose = 'report RUNNING'"
    before = play.rows(true)
    # as if just read
    play.execute(
        "UPDATE transactions SET block_hash = '0xff' WHERE purpose = 'report RUNNING'"
    )
    scan(play.worker.context)
    assert play.rows(true)[0].state == "SIGNED"
    play.follow()
    assert play.rows(true) == before
    play.ends_right(job_id)


def test_receipts__lost_deeper_than_expected__wait_for_the_operator_without_a_block(
    shallow: ReorgScenario,
) -> None:
    play = shallow
    job_id = play.claimed(*STARTED)
    scan(play.worker.context)
    above = play.chain.block_number()
    play.report()
    play.chain.mine(5)
    play.happens(job_id, ENDED)
    play.report()
    before = play.job(job_id)
    play.lose(above)
    play.chain.mine(20)
    scan(play.worker.context)
    assert play.job(job_id) == before
    assert [alarm.name for alarm in play.ledger.alarms.all()] == [
        AlarmName.REORGANISED_TOO_DEEP
    ]
    play.ledger.facts.set(REWIND, None)
    scan(play.worker.context)
    assert play.ledger.alarms.all() == []
    assert play.job(job_id).state is State.ENDED
    play.follow()
    assert play.job(job_id).state is State.SETTLED
    assert play.on_chain(job_id) == (ChainStatus.FINISHED, 2)


def test_claim_lost__of_a_cancellation__customers_request_stays(
    play: ReorgScenario,
) -> None:
    job_id = play.claimed(*STARTED)
    play.chain.customers.cancel_job(play.customer, job_id)
    above = play.chain.block_number()
    play.claim()
    assert "cancel" in play.open_kinds(job_id)
    scan(play.worker.context)
    play.lose(above)
    scan(play.worker.context)
    assert play.job(job_id).cancel_requested
    play.follow()
    assert "cancel" in play.open_kinds(job_id)
    play.ends_right(job_id)


def test_cancellation_lost__with_its_claim__job_goes_on(play: ReorgScenario) -> None:
    job_id = play.claimed(*STARTED)
    above = play.chain.block_number()
    play.chain.customers.cancel_job(play.customer, job_id)
    play.claim()
    scan(play.worker.context)
    play.lose(above)
    play.follow()
    assert not play.job(job_id).cancel_requested
    assert "cancel" not in play.open_kinds(job_id)
    play.ends_right(job_id)


def test_claim_lost__of_a_top_up__top_up_counts_once(play: ReorgScenario) -> None:
    job_id = play.claimed(*STARTED)
    play.chain.customers.top_up_job(play.customer, job_id, 5 * MINUTE_WEI)
    above = play.chain.block_number()
    play.claim()
    scan(play.worker.context)
    assert play.job(job_id).limit_min == 65
    play.chain.mine()  # it will be mined in another block
    play.lose(above)
    scan(play.worker.context)
    assert (play.job(job_id).limit_min, play.job(job_id).top_ups[0].block) == (65, None)
    play.follow()
    play.chain.mine(2 * CONFIRMATIONS)
    scan(play.worker.context)
    job = play.job(job_id)
    assert (job.limit_min, len(job.top_ups), job.reorg_deadline_block) == (65, 1, None)
    play.ends_right(job_id)


def test_top_up_lost__with_its_claim__counts_no_more_after_the_confirmations(
    play: ReorgScenario,
) -> None:
    job_id = play.claimed(*STARTED)
    above = play.chain.block_number()
    play.chain.customers.top_up_job(play.customer, job_id, 5 * MINUTE_WEI)
    play.claim()
    scan(play.worker.context)
    play.lose(above)
    play.follow()
    assert play.job(job_id).limit_min == 65  # a customer's transaction may come back
    play.chain.mine(2 * CONFIRMATIONS)
    scan(play.worker.context)
    assert play.job(job_id).limit_min == 60
    assert "top_up" in play.open_kinds(job_id)


def test_refusal_lost__of_a_job_that_slurm_rejected__is_sent_again(
    play: ReorgScenario,
) -> None:
    rejected = (ScriptFetched("echo", ""), SubmitStarted(60), SubmitRejected("full"))
    job_id = play.claimed(*rejected)
    above = play.chain.block_number()
    play.report()
    scan(play.worker.context)
    assert play.job(job_id).chain_status is ChainStatus.PENDING
    play.lose(above)
    play.follow()
    assert (play.job(job_id).state, play.chain.job(job_id).status) == (
        State.REFUSED,
        ChainStatus.PENDING,
    )
    assert "return_job" not in play.open_kinds(job_id)


def test_claims__mined_in_another_order__each_job_has_its_own_end(
    play: ReorgScenario,
) -> None:
    first, second = play.request(2)
    above = play.chain.block_number()
    for job_id, slurm_id in ((first, 7), (second, 8)):
        play.assign(job_id)
        play.claim()
        play.happens(
            job_id, *STARTED[:2], Submitted(SlurmId(slurm_id)), SlurmRunningObserved()
        )
    play.report()
    scan(play.worker.context)
    keys = play.job(first).claim_key, play.job(second).claim_key
    play.lose(above)
    play.assign(second)
    play.assign(first)
    play.follow()
    assert (play.job(second).claim_key, play.job(first).claim_key) == keys
    assert (play.job(first).slurm_id, play.job(second).slurm_id) == (7, 8)
    play.report()
    play.follow()
    play.ends_right(first, 61)
    play.ends_right(second, 301)


def test_claims__of_clusters_with_one_wallet_swap_jobs__each_is_one_clusters(
    sharing: tuple[ReorgScenario, ReorgScenario],
) -> None:
    here, there = sharing
    first, second = here.request(2)
    above = here.chain.block_number()
    for play, job_id, slurm_id in ((here, first, 7), (there, second, 8)):
        play.assign(job_id)
        play.claim()
        play.happens(
            job_id, *STARTED[:2], Submitted(SlurmId(slurm_id)), SlurmRunningObserved()
        )
    for play in sharing:
        scan(play.worker.context)
    here.lose(above)
    here.assign(second)
    here.assign(first)
    for play in sharing:
        play.follow()
    here.chain.mine(2 * CONFIRMATIONS)
    for play in sharing:
        scan(play.worker.context)
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
    play: ReorgScenario,
) -> None:
    (job_id,) = play.request()
    above = play.chain.block_number()
    play.assign(job_id)
    play.claim()
    play.happens(job_id, *STARTED)
    scan(play.worker.context)
    play.lose(above)
    play.follow()
    assert play.job(job_id).state is State.RUNNING  # it may come back
    assert "cancel" not in play.open_kinds(job_id)
    play.chain.mine(2 * CONFIRMATIONS)
    scan(play.worker.context)
    job = play.job(job_id)
    assert (job.state, job.chain_status, job.reorg_deadline_block) == (
        State.REFUSED,
        ChainStatus.PENDING,
        None,
    )
    assert play.open_kinds(job_id) == {"cancel"}
    assert (
        play.rows("SELECT 1 FROM transactions WHERE state IN ('SIGNED', 'SENT')") == []
    )


def test_scan__node_is_behind__finds_no_reorganisation(play: ReorgScenario) -> None:
    job_id, behind = play.claimed(*STARTED), 40
    play.report()
    scan(play.worker.context)
    play.chain.mine(behind)
    scan(play.worker.context)
    before = play.job(job_id)
    snapshot = play.rows("SELECT * FROM cursors")
    with play.chain.behind(behind):
        scan(play.worker.context)
        assert play.job(job_id) == before
        assert play.rows("SELECT * FROM cursors") == snapshot
        assert play.ledger.alarms.all() == []
        play.execute("UPDATE facts SET since = now() - interval '4 minutes'")
        scan(play.worker.context)
        (alarm,) = play.ledger.alarms.all()
        assert alarm.name == AlarmName.NODE_BEHIND
        play.chain.mine(behind + 1)
    scan(play.worker.context)
    assert play.ledger.alarms.all() == []


def test_reorganisation__deeper_than_expected__waits_for_the_operator(
    shallow: ReorgScenario,
) -> None:
    play = shallow
    job_id = play.claimed(*STARTED)
    scan(play.worker.context)
    above = play.chain.block_number()
    play.report()
    scan(play.worker.context)
    play.chain.mine(3)
    scan(play.worker.context)
    before = play.job(job_id)
    play.lose(above)
    scan(play.worker.context)
    assert play.job(job_id) == before
    (alarm,) = play.ledger.alarms.all()
    assert alarm.name == AlarmName.REORGANISED_TOO_DEEP
    play.assign(play.request()[0])
    sent = play.rows("SELECT id FROM transactions")
    play.claim()
    # on which chain is not known
    assert play.rows("SELECT id FROM transactions") == sent
    common = alarm.details["last_common_block"]
    # an empty block may come again as it was
    assert common < alarm.details["read_up_to"]
    for refused in (
        common + 1,
        0,
    ):  # above the fork there is nothing in common; below what is kept, nothing to compare
        play.ledger.facts.set(REWIND, refused)
        scan(play.worker.context)
        assert play.ledger.facts.read(REWIND) is None
        assert play.job(job_id) == before
        assert [alarm.name for alarm in play.ledger.alarms.all()] == [
            AlarmName.REORGANISED_TOO_DEEP
        ]
    play.ledger.facts.set(REWIND, None)
    scan(play.worker.context)
    assert play.ledger.alarms.all() == []
    play.follow()
    play.ends_right(job_id)


def test_scan__after_a_long_downtime__reads_all_blocks(play: ReorgScenario) -> None:
    (job_id,) = play.request()
    play.assign(job_id)
    play.chain.send(play.provider, "MetaScheduler", "claimNextJob")
    for _ in range(6):
        play.chain.mine(200)  # more than one question for logs
    head = play.chain.block_number()
    scan(play.worker.context)
    assert play.job(job_id).state is State.CLAIMED
    assert play.rows("SELECT block_number FROM cursors")[0].block_number >= head
    assert EffectKind.FETCH.value in play.open_kinds(job_id)
