"""Which cluster works with which wallet, on a real Postgres."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, text

from supervisor_tasks.ledger.block_reads import Cursors
from supervisor_tasks.ledger.cursor_names import CONTRACT_STREAM
from supervisor_tasks.ledger.wallet_holders import (
    OtherChainError,
    WalletHolders,
    WalletTakenError,
)
from tests.support.ledger import emptied

TRANSACTION = """
    INSERT INTO transactions (cluster, chain_id, address, nonce, purpose, idempotency_key, gas, max_fee_wei, priority_fee_wei,
        raw, hash, state)
    VALUES ('first', 1, 'a', 0, 'register', 'r', 1, 1, 1, '', 'h', 'MINED')
    """
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


def read_a_block(engine: Engine, cluster: str) -> None:
    with engine.begin() as connection:
        Cursors(engine, cluster).set(connection, CONTRACT_STREAM, 7, "0x0")


def test_hold__ledger_has_read_another_chain__is_refused_until_the_chain_is_back(
    engine: Engine,
) -> None:
    taken(engine, "first", chain_id=1)
    read_a_block(engine, "first")
    for _ in range(2):
        with pytest.raises(OtherChainError) as refused:
            taken(engine, "first", chain_id=2, wallet=OTHER_WALLET)
    assert str(refused.value) == (
        "CHAIN_ID: found 2; expected 1, the chain that the ledger has read for the cluster 'first'. If CHAIN_ID is wrong,"
        " set CHAIN_ID=1. If the cluster moves to chain 2, let its jobs end with CHAIN_ID=1 first, then give the fleet"
        " another CLUSTER_NAME: docs/how-to/change-keys.md"
    )
    assert taken(engine, "first", chain_id=1) == ""
    assert taken(engine, "second", chain_id=2) == ""


def test_hold__ledger_has_read_no_block__another_chain_is_taken(engine: Engine) -> None:
    taken(engine, "first", chain_id=1)
    read_a_block(engine, "second")
    assert taken(engine, "first", chain_id=2) == ""


def test_hold__wallet_was_released__the_transactions_tell_the_chain(
    engine: Engine,
) -> None:
    read_a_block(engine, "first")
    with engine.begin() as connection:
        connection.execute(text(TRANSACTION))
    with pytest.raises(OtherChainError):
        taken(engine, "first", chain_id=2)
    assert taken(engine, "first", chain_id=1) == ""


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
