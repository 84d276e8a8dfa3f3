"""The alarms about the chain and the wallet, on a real chain and a real Postgres: when
they end, and what of another wallet or another time does not count.
"""

import time

import pytest
from sqlalchemy import Engine

from devgrid.chain.chain import Chain
from devgrid.chain.model import Account
from devgrid.ports import free_port
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain.rpc.client import RpcUnavailableError
from supervisor_tasks.chain.rpc.failover import Endpoints
from supervisor_tasks.jobs.claim import claim
from supervisor_tasks.monitoring.chain_alarms import FAILURES_APART_S, UNANSWERED_S
from tests.support.ledger import let_time_pass
from tests.support.wallet_harness import ChainHarness, registered

COIN = 10**18


@pytest.fixture
def away(chain: Chain, provider: Account, empty_database: Engine) -> ChainHarness:
    """The fleet, whose only endpoint does not answer."""
    url = f"http://127.0.0.1:{free_port()}"
    return ChainHarness.of(
        chain, provider, empty_database, Endpoints([url], chain.chain_id)
    )


def fails(harness: ChainHarness) -> set[str]:
    """The alarms after a look that the chain does not answer."""
    with pytest.raises(RpcUnavailableError):
        claim(harness.site)
    return harness.alarms()


def test_claim__restarted_with_one_endpoint__ends_the_alarms_of_several(
    chain: Chain, provider: Account, empty_database: Engine
) -> None:
    one = Endpoints([chain.rpc_url], chain.chain_id)
    harness = ChainHarness.of(chain, provider, empty_database, one)
    for name in (
        AlarmName.RPC_ENDPOINT_UNAVAILABLE,
        AlarmName.EVENTS_FROM_ONE_ENDPOINT,
    ):
        harness.site.ledger.alarms.on(name)
    claim(harness.site)
    assert harness.alarms() == set()


def test_claim__first_look_after_the_fleet_was_down_fails__alarms_a_minute_later(
    harness: ChainHarness, away: ChainHarness
) -> None:
    claim(harness.site)
    let_time_pass(harness.engine, 3600.0)
    assert fails(away) == set()
    let_time_pass(harness.engine, UNANSWERED_S + 1, "condition.chain_not_answering")
    assert fails(away) == {AlarmName.CHAIN_NOT_ANSWERING}
    claim(harness.site)
    assert harness.alarms() == set()


def test_claim__fails_before_and_after_a_stop_of_the_fleet__alarms_a_minute_later(
    harness: ChainHarness, away: ChainHarness
) -> None:
    claim(harness.site)
    assert fails(away) == set()
    let_time_pass(harness.engine, FAILURES_APART_S + 1)
    assert fails(away) == set()
    let_time_pass(harness.engine, UNANSWERED_S + 1, "condition.chain_not_answering")
    assert fails(away) == {AlarmName.CHAIN_NOT_ANSWERING}


def test_claim__wallet_was_changed__alarm_shows_the_present_one_and_its_need(
    chain: Chain, harness: ChainHarness, empty_database: Engine
) -> None:
    harness.account.raise_wallet_empty_alarm(0, 1000 * COIN)
    present = ChainHarness.of(
        chain, registered(chain), empty_database, min_wei=500 * COIN
    )
    balance_wei = present.account.fetch_account_state().balance_wei
    assert balance_wei < 500 * COIN
    claim(present.site)
    (alarm,) = present.site.ledger.alarms.all()
    assert alarm.details == {
        "address": present.account.address,
        "balance_wei": balance_wei,
        "needed_wei": 500 * COIN,
    }


def test_claim__clock_of_the_worker_that_wrote_is_an_hour_behind__need_counts_still(
    harness: ChainHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour_ago_s = time.time() - 3600.0
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: hour_ago_s)
        harness.account.raise_wallet_empty_alarm(0, 1000 * COIN)
    claim(harness.site)
    (alarm,) = harness.site.ledger.alarms.all()
    assert alarm.details["needed_wei"] == 1000 * COIN
