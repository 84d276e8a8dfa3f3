"""The commands for the wallet's transactions."""

import pytest
from sqlalchemy import text

from supervisor_tasks.ledger.facts import TRANSACTION_REQUESTS
from supervisor_tasks.ledger.ledger import Ledger
from tests.support.ledger import bring_to_queued, job_id
from tests.support.operator_commands import Run, open_report, said


@pytest.mark.usefixtures("lists_of_one")
def test_tx_cancel__more_open_ones_than_a_list_has__says_how_many_wait(
    run: Run, ledger: Ledger
) -> None:
    first, *_ = [open_report(ledger, job_id(nonce), nonce) for nonce in (4, 5, 6)]
    announced = run("tx", "cancel", first, "--yes").stderr
    assert "2 later ones wait behind it" in announced


def test_tx_show__by_number_or_hash__has_all_signatures(
    run: Run, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ledger.engine.begin() as connection:
        row = connection.scalar(
            text(
                "INSERT INTO transactions (cluster, chain_id, address, nonce, purpose, idempotency_key, gas, max_fee_wei,"
                " priority_fee_wei, raw, hash, state) VALUES ('here', 1, '0x1', 4, 'claim', 'i', 1, 1, 1, '\\x00', '0xbeef',"
                " 'SENT') RETURNING id"
            )
        )
        for tx_hash in ("0xabcd", "0xbeef"):
            insert = (
                "INSERT INTO signatures (hash, transaction_id, raw, max_fee_wei, priority_fee_wei, head)"
                " VALUES (:hash, :row, '\\x00', 1, 1, 1)"
            )
            connection.execute(text(insert), {"hash": tx_hash, "row": row})
    for name in ("0xab", "0xbeef", str(row)):
        found = said(run("tx", "show", name, "-o", "json"))
        assert {one["hash"] for one in found["signatures"]} == {"0xabcd", "0xbeef"}
    assert "0xabcd" in run("tx", "show", "0xbe").stdout
    for name in ("0x", "0xcc", "nonsense", "9" * 30):
        assert "found no transaction" in run("tx", "show", name, status=1).stderr
    monkeypatch.setenv("EXPLORER_URL", "https://explorer.example.org/tx/{hash}")
    assert "https://explorer.example.org/tx/0xbeef" in run("tx", "show", "0xbe").stdout


def test_tx_list__by_state_and_age__only_those(run: Run, ledger: Ledger) -> None:
    query = """
        INSERT INTO transactions (cluster, chain_id, address, nonce, purpose, idempotency_key, gas, max_fee_wei,
            priority_fee_wei, raw, hash, state, created_at)
        VALUES ('here', 1, '0x1', :n, 'claim', :key, 1, :fee, 1, '', :key, :state, now() - CAST(:age AS interval))"""
    rows = [(1, "MINED", "3 hours"), (2, "MINED", "1 minute"), (3, "SENT", "1 minute")]
    with ledger.engine.begin() as connection:
        for n, state, age in rows:
            values = {
                "n": n,
                "key": f"claim:{n}",
                "state": state,
                "age": age,
                "fee": 30 - n if n != 2 else 1,
            }
            connection.execute(text(query), values)
        bring_to_queued(ledger, 1)
        connection.execute(text("UPDATE jobs SET customer = '0x55'"))
        connection.execute(
            text("UPDATE transactions SET job_id = :job WHERE nonce = 2"),
            {"job": job_id(1)},
        )
    for words, nonces in (
        ((), [3, 2, 1]),
        (("--state", "mined"), [2, 1]),
        (("--since", "1h"), [3, 2]),
        (("--open", "--since", "1h"), [3]),
        (("--sort", "state"), [2, 1, 3]),
        (("--sort", "fee"), [1, 3, 2]),
        (("--customer", "0x55"), [2]),
        (("--limit", "1", "--sort", "nonce"), [3]),
    ):
        assert [
            row["nonce"] for row in said(run("tx", "list", *words, "-o", "json"))
        ] == nonces, words


def test_tx_bump_and_cancel__open_transaction__ask_the_worker_that_has_the_key(
    run: Run, ledger: Ledger
) -> None:
    with ledger.engine.begin() as connection:
        insert = (
            "INSERT INTO transactions (cluster, chain_id, address, nonce, purpose, idempotency_key, gas, max_fee_wei,"
            " priority_fee_wei, raw, hash, state) VALUES ('here', 1, '0x1', :nonce, 'claim', :hash, 1, 1, 1, '\\x00',"
            " :hash, :state) RETURNING id"
        )
        rows = [("SENT", 4), ("SIGNED", 5), ("MINED", 3)]
        sent, signed, mined = (
            connection.scalar(
                text(insert), {"nonce": nonce, "hash": f"0x{nonce}", "state": state}
            )
            for state, nonce in rows
        )
    assert (
        "a higher fee than 0.000000001 gwei per gas"
        in run("tx", "bump", str(sent), "--yes").stderr
    )
    assert (
        "1 later ones wait behind it" in run("tx", "cancel", str(sent), "--yes").stderr
    )
    run("tx", "bump", str(signed), "--yes")
    run("tx", "bump", str(signed), status=4)
    assert ledger.facts.get(TRANSACTION_REQUESTS) == {
        str(sent): "cancel",
        str(signed): "bump",
    }
    assert (
        "found MINED; expected SIGNED or SENT"
        in run("tx", "cancel", str(mined), "--yes", status=1).stderr
    )
