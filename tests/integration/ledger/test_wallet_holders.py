"""Which cluster works with which wallet, on a real Postgres."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine

from supervisor_tasks.ledger.wallet_holders import WalletHolders, WalletTakenError
from tests.support.ledger import emptied

WALLET, OTHER_WALLET = "0x" + "a" * 40, "0x" + "b" * 40


@pytest.fixture
def engine(engine: Engine) -> Engine:
    """The engine of a ledger without the rows of earlier tests."""
    emptied(engine)
    return engine


def taken(
    engine: Engine,
    cluster: str,
    *,
    shared: bool = False,
    wallet: str = WALLET,
    chain_id: int = 1,
) -> str:
    """What hold says to the cluster; "" when it may work with the wallet."""
    try:
        WalletHolders(engine, cluster).hold(chain_id, wallet, shared=shared)
    except WalletTakenError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("first_shares", "second_shares", "allowed"),
    [
        (False, False, False),
        (True, False, False),
        (False, True, False),
        (True, True, True),
    ],
)
def test_hold__a_second_cluster__only_if_both_allow_it(
    engine: Engine, first_shares: bool, second_shares: bool, allowed: bool
) -> None:
    assert taken(engine, "first", shared=first_shares) == ""
    assert (taken(engine, "second", shared=second_shares) == "") == allowed
    assert (WalletHolders(engine, "second").held() is not None) == allowed


def test_hold__refused__names_wallet_cluster_and_remedies(engine: Engine) -> None:
    taken(engine, "first")
    assert taken(engine, "second") == (
        f"ETH_PRIVATE_KEY: found the wallet {WALLET} of chain 1, with which the cluster 'first' of this ledger works;"
        " expected a wallet of its own for the cluster 'second'. Give it the key of another wallet. If both may claim jobs"
        " with one wallet, set ALLOW_CLUSTERS_TO_SHARE_A_WALLET=true on both. If 'first' is gone for good:"
        " CLUSTER_NAME=first supervisor cluster release-wallet"
    )
    assert "=true on the cluster 'first' too, and start its workers again." in taken(
        engine, "second", shared=True
    )


def test_hold__the_same_cluster_again__is_let_in(engine: Engine) -> None:
    assert [taken(engine, "first") for _ in range(2)] == ["", ""]


@pytest.mark.parametrize(("wallet", "chain_id"), [(OTHER_WALLET, 1), (WALLET, 2)])
def test_hold__another_wallet_or_chain__is_free(
    engine: Engine, wallet: str, chain_id: int
) -> None:
    taken(engine, "first")
    assert taken(engine, "second", wallet=wallet, chain_id=chain_id) == ""


def test_hold__the_first_has_another_wallet_now__the_second_is_let_in(
    engine: Engine,
) -> None:
    taken(engine, "first")
    taken(engine, "first", wallet=OTHER_WALLET)
    assert taken(engine, "second") == ""


def test_hold__the_first_does_not_allow_it_any_more__the_first_is_refused(
    engine: Engine,
) -> None:
    for cluster in ("first", "second"):
        taken(engine, cluster, shared=True)
    assert "'second'" in taken(engine, "first")


def test_hold__all_start_at_once__one_is_let_in(engine: Engine) -> None:
    with ThreadPoolExecutor(8) as pool:
        said = list(
            pool.map(lambda number: taken(engine, f"cluster-{number}"), range(8))
        )
    assert sum(text == "" for text in said) == 1


def test_release__of_a_wallet_that_was_held__another_cluster_is_let_in(
    engine: Engine,
) -> None:
    taken(engine, "first")
    WalletHolders(engine, "first").release()
    assert taken(engine, "second") == ""
