"""Reports that come to nothing: they delay no other, an alarm is raised, and nothing is
paid for without end. A real chain and a real ledger.
"""

import pytest
from sqlalchemy import text

from devgrid.chain.chain import Chain
from supervisor_tasks.alarms.alarm_names import AlarmName
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
    scheduled_jobs,
    settled,
)

pytestmark = pytest.mark.slow  # transactions that stay pending

REVERTS_WHEN_PAID_FOR = "0x3a600557005b60006000fd"  # an estimate has no gas price


def reported(harness: ChainHarness) -> None:
    due(harness)
    report(harness.site)
    settled(harness)


def no_answer(harness: ChainHarness) -> None:
    """As when the node goes away while a batch of reports is written."""
    due(harness)
    leased = harness.site.ledger.effects.lease([EffectKind.REPORT])
    if leased:
        with given_back_on_failure(harness.site.ledger, leased):
            raise TransientError("the node is away")


def test_report__reverts_whenever_it_is_mined__is_parked_after_a_few(
    chain: Chain, harness: ChainHarness
) -> None:
    job_id = started(harness, provider_of(harness))
    code = chain.rpc.call("eth_getCode", chain.addresses.metascheduler, "latest")
    chain.rpc.call(
        "anvil_setCode", chain.addresses.metascheduler, REVERTS_WHEN_PAID_FOR
    )
    try:
        for _ in range(5):
            reported(harness)
        assert harness.states() == ["MINED", *["REVERTED"] * 3]
        assert harness.alarms() == {AlarmName.EFFECT_PARKED}
        harness.site.ledger.effects.retry(job_id=job_id)
        for _ in range(3):
            reported(harness)
        # once more, as the operator wished
        assert harness.states() == ["MINED", *["REVERTED"] * 4]
    finally:
        chain.rpc.call("anvil_setCode", chain.addresses.metascheduler, code)
    harness.site.ledger.effects.retry(job_id=job_id)
    reported(harness)
    assert chain.job(job_id).status is ChainStatus.RUNNING


@pytest.mark.parametrize(
    "end", ["fe", "605e56"], ids=["invalid opcode", "more gas than a block holds"]
)
def test_report__no_estimate_for_one__waits_alone_and_is_not_parked(
    chain: Chain, harness: ChainHarness, end: str
) -> None:
    stuck, free = (started(harness, provider_of(harness)) for _ in range(2))
    with broken_for(chain, stuck[2:], end):
        for _ in range(5):
            reported(harness)
        assert chain.job(free).status is ChainStatus.RUNNING
        assert chain.job(stuck).status is ChainStatus.SCHEDULED
        assert harness.states() == ["MINED"] * 3
        assert harness.alarms() == set()
        with harness.engine.connect() as connection:
            of_stuck = text(
                "SELECT last_error, attempts FROM effects WHERE done_at IS NULL AND kind = 'report'"
            )
            ((error, attempts),) = connection.execute(of_stuck)
        assert "gas" in error or "InvalidFEOpcode" in error
        assert attempts >= 5
    reported(harness)
    assert chain.job(stuck).status is ChainStatus.RUNNING


def test_report__reverts_in_the_dry_run__is_parked_at_the_third_time_despite_others(
    chain: Chain, harness: ChainHarness
) -> None:
    job_id = started(harness, provider_of(harness))
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
            reported(harness)
        alarms.append(harness.alarms())
    assert alarms == [*[set[AlarmName]()] * 6, {AlarmName.EFFECT_PARKED}]
    harness.site.ledger.effects.retry(job_id=job_id)
    reported(harness)
    assert chain.job(job_id).status is ChainStatus.RUNNING


def test_report__reverts_with_other_failures_in_between__is_paid_for_no_oftener(
    chain: Chain, harness: ChainHarness
) -> None:
    started(harness, provider_of(harness))
    code = chain.rpc.call("eth_getCode", chain.addresses.metascheduler, "latest")
    try:
        chain.rpc.call(
            "anvil_setCode", chain.addresses.metascheduler, REVERTS_WHEN_PAID_FOR
        )
        for _ in range(5):
            reported(harness)
            no_answer(harness)
    finally:
        chain.rpc.call("anvil_setCode", chain.addresses.metascheduler, code)
    assert harness.states() == ["MINED", *["REVERTED"] * 3]
    assert harness.alarms() == {AlarmName.EFFECT_PARKED}


def test_report__three_jobs_end_and_the_wallet_is_empty__follow_after_a_deposit(
    chain: Chain, harness: ChainHarness
) -> None:
    job_ids = scheduled_jobs(chain, provider_of(harness), 3)
    claim(harness.site)
    settled(harness)
    ended = SlurmCompleted(Outcome(status=ChainStatus.FINISHED, elapsed_s=125))
    for slurm_id, job_id in enumerate(job_ids, start=1):
        begun = (*STARTED[:2], Submitted(SlurmId(slurm_id)), SlurmRunningObserved())
        harness.site.ledger.record(
            *(JobChange(job_id, event) for event in (*begun, ended))
        )
    signed = harness.signatures()
    chain.rpc.call("anvil_setBalance", harness.account.address, "0x0")
    for _ in range(3):
        due(harness)
        report(harness.site)
    assert harness.signatures() == signed
    assert harness.alarms() == {AlarmName.WALLET_EMPTY}
    with harness.engine.connect() as connection:
        parked = "SELECT count(*) FROM effects WHERE parked_at IS NOT NULL"
        assert connection.scalar(text(parked)) == 0
    chain.rpc.call("anvil_setBalance", harness.account.address, hex(10**20))
    reported(harness)
    statuses = {chain.job(job_id).status for job_id in job_ids}
    assert statuses == {ChainStatus.FINISHED}


# --- what an operator asks for --------------------------------------------------------
