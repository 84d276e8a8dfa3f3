"""Reports that come to nothing: they delay no other, an alarm is raised, and nothing is
paid for without end. A real chain and a real ledger.
"""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text

from devgrid.chain.chain import Chain
from devgrid.chain.deployment import start_chain
from devgrid.chain.model import ChainNode, ChainPrices
from devgrid.processes import Processes
from devgrid.state_folder import private_processes
from supervisor_tasks.errors import TransientError
from supervisor_tasks.execution.effect_failures import (
    given_back_on_failure,
)
from supervisor_tasks.jobs.claim import claim
from supervisor_tasks.jobs.events import (
    SlurmCompleted,
    SlurmRunningObserved,
    Submitted,
)
from supervisor_tasks.jobs.model import (
    ChainStatus,
    EffectKind,
    Outcome,
    SlurmId,
)
from supervisor_tasks.jobs.report import report
from supervisor_tasks.ledger.alarms import AlarmName
from supervisor_tasks.ledger.ledger import JobChange
from tests.support.running_claims import (
    NO_ESTIMATE,
    REFUSED,
    STARTED,
    broken_for,
    due,
    provider_of,
    started,
)
from tests.support.wallet_harness import (
    ChainHarness,
    databases,
    empty,
    scheduled_jobs,
    settled,
)

pytestmark = pytest.mark.slow  # transactions that stay pending

REVERTS_WHEN_PAID_FOR = "0x3a600557005b60006000fd"  # an estimate has no gas price


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with private_processes() as running:
        yield running


@pytest.fixture(scope="module")
def database(processes: Processes) -> Iterator[Engine]:
    with databases(processes, "one") as (engine,):
        yield engine


@pytest.fixture(scope="module")
def chain(processes: Processes) -> Chain:
    return start_chain(processes)


@pytest.fixture
def fleet(chain: Chain, database: Engine) -> ChainHarness:
    empty(database)
    account = chain.new_account()
    chain.register_provider(account, [ChainNode(2, 32, 64_000)], ChainPrices())
    return ChainHarness.of(chain, account, database)


def reported(fleet: ChainHarness) -> None:
    due(fleet)
    report(fleet.site)
    settled(fleet)


def no_answer(fleet: ChainHarness) -> None:
    """As when the node goes away while a batch of reports is written."""
    due(fleet)
    leased = fleet.site.ledger.effects.lease([EffectKind.REPORT])
    if leased:
        with given_back_on_failure(fleet.site.ledger, leased):
            raise TransientError("the node is away")


def test_report__reverts_whenever_it_is_mined__is_parked_after_a_few(
    chain: Chain, fleet: ChainHarness
) -> None:
    job_id = started(fleet, provider_of(fleet))
    code = chain.rpc.call("eth_getCode", chain.addresses.metascheduler, "latest")
    chain.rpc.call(
        "anvil_setCode", chain.addresses.metascheduler, REVERTS_WHEN_PAID_FOR
    )
    try:
        for _ in range(5):
            reported(fleet)
        assert fleet.states() == ["MINED", *["REVERTED"] * 3]
        assert fleet.alarms() == {AlarmName.EFFECT_PARKED}
        fleet.site.ledger.effects.retry(job_id=job_id)
        for _ in range(3):
            reported(fleet)
        # once more, as the operator wished
        assert fleet.states() == ["MINED", *["REVERTED"] * 4]
    finally:
        chain.rpc.call("anvil_setCode", chain.addresses.metascheduler, code)
    fleet.site.ledger.effects.retry(job_id=job_id)
    reported(fleet)
    assert chain.job(job_id).status is ChainStatus.RUNNING


@pytest.mark.parametrize(
    "end", ["fe", "605e56"], ids=["invalid opcode", "more gas than a block holds"]
)
def test_report__no_estimate_for_one__waits_alone_and_is_not_parked(
    chain: Chain, fleet: ChainHarness, end: str
) -> None:
    stuck, free = (started(fleet, provider_of(fleet)) for _ in range(2))
    with broken_for(chain, stuck[2:], end):
        for _ in range(5):
            reported(fleet)
        assert chain.job(free).status is ChainStatus.RUNNING
        assert chain.job(stuck).status is ChainStatus.SCHEDULED
        assert fleet.states() == ["MINED"] * 3
        assert fleet.alarms() == set()
        with fleet.engine.connect() as connection:
            of_stuck = text(
                "SELECT last_error, attempts FROM effects WHERE done_at IS NULL AND kind = 'report'"
            )
            ((error, attempts),) = connection.execute(of_stuck)
        assert "gas" in error or "InvalidFEOpcode" in error
        assert attempts >= 5
    reported(fleet)
    assert chain.job(stuck).status is ChainStatus.RUNNING


def test_report__reverts_in_the_dry_run__is_parked_at_the_third_time_despite_others(
    chain: Chain, fleet: ChainHarness
) -> None:
    job_id = started(fleet, provider_of(fleet))
    alarms = list[set[str]]()
    for end in (
        NO_ESTIMATE,
        NO_ESTIMATE,
        NO_ESTIMATE,
        REFUSED,
        REFUSED,
        NO_ESTIMATE,
        REFUSED,
    ):
        with broken_for(chain, job_id[2:], end):
            reported(fleet)
        alarms.append(fleet.alarms())
    assert alarms == [*[set[AlarmName]()] * 6, {AlarmName.EFFECT_PARKED}]
    fleet.site.ledger.effects.retry(job_id=job_id)
    reported(fleet)
    assert chain.job(job_id).status is ChainStatus.RUNNING


def test_report__reverts_with_other_failures_in_between__is_paid_for_no_oftener(
    chain: Chain, fleet: ChainHarness
) -> None:
    started(fleet, provider_of(fleet))
    code = chain.rpc.call("eth_getCode", chain.addresses.metascheduler, "latest")
    try:
        chain.rpc.call(
            "anvil_setCode", chain.addresses.metascheduler, REVERTS_WHEN_PAID_FOR
        )
        for _ in range(5):
            reported(fleet)
            no_answer(fleet)
    finally:
        chain.rpc.call("anvil_setCode", chain.addresses.metascheduler, code)
    assert fleet.states() == ["MINED", *["REVERTED"] * 3]
    assert fleet.alarms() == {AlarmName.EFFECT_PARKED}


def test_report__three_jobs_end_and_the_wallet_is_empty__follow_after_a_deposit(
    chain: Chain, fleet: ChainHarness
) -> None:
    job_ids = scheduled_jobs(chain, provider_of(fleet), 3)
    claim(fleet.site)
    settled(fleet)
    ended = SlurmCompleted(Outcome(status=ChainStatus.FINISHED, elapsed_s=125))
    for slurm_id, job_id in enumerate(job_ids, start=1):
        begun = (*STARTED[:2], Submitted(SlurmId(slurm_id)), SlurmRunningObserved())
        fleet.site.ledger.record(
            *(JobChange(job_id, event) for event in (*begun, ended))
        )
    signed = fleet.signatures()
    chain.rpc.call("anvil_setBalance", fleet.account.address, "0x0")
    for _ in range(3):
        due(fleet)
        report(fleet.site)
    assert fleet.signatures() == signed
    assert fleet.alarms() == {AlarmName.WALLET_EMPTY}
    with fleet.engine.connect() as connection:
        parked = "SELECT count(*) FROM effects WHERE parked_at IS NOT NULL"
        assert connection.scalar(text(parked)) == 0
    chain.rpc.call("anvil_setBalance", fleet.account.address, hex(10**20))
    reported(fleet)
    statuses = {chain.job(job_id).status for job_id in job_ids}
    assert statuses == {ChainStatus.FINISHED}


# --- what an operator asks for --------------------------------------------------------
