"""The wallet's writer on a real chain and a real Postgres: signed and committed first, one
transaction an idempotency key, no gap.
"""

import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from sqlalchemy import Engine, insert, select, text, update
from sqlalchemy.exc import IntegrityError

from devgrid.chain.chain import Chain
from devgrid.chain.model import Account
from devgrid.machine import deadline
from devgrid.processes import wait_until
from supervisor_tasks.chain.contract import (
    CLAIM,
    Contract,
    report_call,
)
from supervisor_tasks.chain.rpc.client import Rpc, RpcUnavailableError
from supervisor_tasks.jobs.events import ChainStatusObserved, Claimed
from supervisor_tasks.jobs.model import ChainStatus, StatusUpdate
from supervisor_tasks.ledger.tables import TRANSACTIONS
from supervisor_tasks.ledger.transactions import Mined
from supervisor_tasks.wallet.account import WalletAccount
from supervisor_tasks.wallet.gas import RevertedError
from supervisor_tasks.wallet.sent_transactions import SentTransactions
from supervisor_tasks.wallet.transaction_writer import TransactionWriter, Write
from tests.support.wallet_harness import scheduled_jobs


@dataclass(frozen=True)
class Wallet:
    """An account with what writes its new transactions and tends the open ones."""

    account: WalletAccount
    writer: TransactionWriter
    sent_transactions: SentTransactions


@pytest.fixture
def wallet(chain: Chain, provider: Account, empty_database: Engine) -> Wallet:
    return wallet_at(chain.rpc_url, chain, provider, empty_database)


def wallet_at(url: str, chain: Chain, provider: Account, engine: Engine) -> Wallet:
    account = WalletAccount(
        engine, "here", Rpc.at(url), chain.chain_id, provider.private_key
    )
    return Wallet(
        account,
        TransactionWriter(account, chain.addresses.metascheduler),
        SentTransactions(account),
    )


def rows(engine: Engine) -> list[tuple[int, str, str]]:
    with engine.connect() as connection:
        found = connection.execute(
            text(
                "SELECT nonce, idempotency_key, state FROM transactions ORDER BY nonce"
            )
        )
        return [(row.nonce, row.idempotency_key, row.state) for row in found]


def claims(wallet: Wallet, number: int) -> list[Write]:
    gas = wallet.writer.estimate([Write("", "claim", CLAIM.encode())])[0]
    assert isinstance(gas, int)
    return [
        Write(f"claim:{n}", "claim", CLAIM.encode(), gas=gas) for n in range(number)
    ]


def mined(wallet: Wallet, chain: Chain) -> list[tuple[Mined, dict[str, object]]]:
    sent = wallet.sent_transactions.all()

    def receipts() -> list[dict[str, object] | None]:
        return chain.rpc.batch(
            [("eth_getTransactionReceipt", (entry.hash,)) for entry in sent]
        )

    wait_until(lambda: all(receipts()), "receipts", 20.0)
    pairs = zip(sent, receipts(), strict=True)
    return [
        (Mined.from_receipt(entry, receipt), receipt)
        for entry, receipt in pairs
        if receipt is not None
    ]


def test_send__n_claims__have_consecutive_nonces_and_events_in_receipts(
    chain: Chain, provider: Account, wallet: Wallet, empty_database: Engine
) -> None:
    job_ids = scheduled_jobs(chain, provider, 5)
    assert wallet.writer.send(claims(wallet, 5)) == 5
    nonces = [nonce for nonce, _, _ in rows(empty_database)]
    assert nonces == list(range(nonces[0], nonces[0] + 5))
    contract = Contract(
        chain.rpc, chain.chain_id, chain.addresses.metascheduler, wallet.account.address
    )
    happened = [
        entry
        for _, receipt in mined(wallet, chain)
        for entry in contract.decode_events(receipt["logs"])[0]  # type: ignore[arg-type]
    ]
    claimed = [entry.event for entry in happened if isinstance(entry.event, Claimed)]
    assert [event.job_id for event in claimed] == job_ids
    assert {event.definition.batch_location_hash for event in claimed} == {"hash"}
    statuses = [
        entry.event.status
        for entry in happened
        if isinstance(entry.event, ChainStatusObserved)
    ]
    assert statuses == [ChainStatus.SCHEDULED] * 5
    assert set(contract.statuses(job_ids).values()) == {
        (ChainStatus.SCHEDULED, provider.address)
    }


def test_send__idempotency_key_that_is_open__is_not_written_again(
    chain: Chain, provider: Account, wallet: Wallet, empty_database: Engine
) -> None:
    scheduled_jobs(chain, provider, 2)
    writes = claims(wallet, 2)
    assert wallet.writer.send(writes[:1]) == 1
    assert wallet.writer.send(writes) == 1
    assert wallet.writer.send(writes) == 0
    assert [key for _, key, _ in rows(empty_database)] == ["claim:0", "claim:1"]


def test_send__two_workers_at_once__no_nonce_twice_and_no_key_twice(
    chain: Chain, provider: Account, wallet: Wallet, empty_database: Engine
) -> None:
    """Some of their writes are the same."""
    scheduled_jobs(chain, provider, 12)
    other = wallet_at(chain.rpc_url, chain, provider, empty_database)
    writes, begin = claims(wallet, 12), threading.Barrier(2)

    def send(writer: TransactionWriter, its_writes: list[Write]) -> int:
        begin.wait(deadline(20.0))
        return sum(writer.send([write]) for write in its_writes)

    with ThreadPoolExecutor(2) as workers:
        sent = [
            workers.submit(send, wallet.writer, writes[:8]),
            workers.submit(send, other.writer, writes[4:]),
        ]
        assert sum(future.result() for future in sent) == 12
    written = rows(empty_database)
    first = written[0][0]
    assert [nonce for nonce, _, _ in written] == list(range(first, first + 12))
    keys = {key for _, key, _ in written}
    assert keys == {write.idempotency_key for write in writes}


def test_add__idempotency_key_that_has_a_row__the_database_rejects_it(
    chain: Chain, provider: Account, wallet: Wallet, empty_database: Engine
) -> None:
    """A reverted transaction frees its key."""
    scheduled_jobs(chain, provider, 1)
    wallet.writer.send(claims(wallet, 1))
    with empty_database.connect() as connection:
        row = dict(connection.execute(select(TRANSACTIONS)).mappings().one())
    again = insert(TRANSACTIONS).values(
        {**row, "id": row["id"] + 1, "nonce": row["nonce"] + 1}
    )
    with (
        pytest.raises(IntegrityError, match="transactions_idempotency_key"),
        empty_database.begin() as connection,
    ):
        connection.execute(again)
    with empty_database.begin() as connection:
        connection.execute(update(TRANSACTIONS).values(state="REVERTED"))
        connection.execute(again)
    assert len(rows(empty_database)) == 2


@contextmanager
def proxy_that_cuts(chain: Chain, word: bytes) -> Iterator[str]:
    """An HTTP proxy to the chain that hangs up on requests which hold a word."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if word in body:
                self.close_connection = True
                return
            request = urllib.request.Request(  # noqa: S310
                chain.rpc_url, body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=deadline(10)) as answer:  # noqa: S310
                content = answer.read()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing on the terminal."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_send__node_gone_after_the_commit__the_same_bytes_go_out_later(
    chain: Chain, provider: Account, empty_database: Engine
) -> None:
    scheduled_jobs(chain, provider, 2)
    with proxy_that_cuts(chain, b"eth_sendRawTransaction") as url:
        wallet = wallet_at(url, chain, provider, empty_database)
        assert wallet.writer.send(claims(wallet, 2)) == 2
    assert [state for _, _, state in rows(empty_database)] == ["SIGNED", "SIGNED"]
    again = wallet_at(
        chain.rpc_url, chain, provider, empty_database
    )  # as after a restart
    hashes = [entry.hash for entry in again.sent_transactions.all()]
    again.sent_transactions.send_again(again.sent_transactions.all())
    results = mined(again, chain)
    assert [result.sent.hash for result, _ in results] == hashes
    assert all(result.success for result, _ in results)


def test_send__node_unreachable__raises_before_anything_is_signed(
    chain: Chain, provider: Account, empty_database: Engine
) -> None:
    wallet = wallet_at("http://127.0.0.1:9", chain, provider, empty_database)
    with pytest.raises(RpcUnavailableError):
        wallet.writer.send([Write("claim:0", "claim", CLAIM.encode(), gas=200_000)])
    assert rows(empty_database) == []


def test_estimate__what_the_contract_would_reject__costs_nothing_and_names_the_error(
    chain: Chain, provider: Account, wallet: Wallet
) -> None:
    (job_id,) = scheduled_jobs(chain, provider, 1)
    report = report_call(job_id, StatusUpdate(ChainStatus.FINISHED))
    answer = wallet.writer.estimate([Write("", "report", report)])[0]
    assert isinstance(answer, RevertedError)
    assert (answer.revert.name, answer.revert.arguments) == (
        "InvalidTransition",
        (1, 5),
    )


def test_send__call_that_is_reverted__is_found_out_and_the_key_may_be_used_again(
    chain: Chain, provider: Account, wallet: Wallet, empty_database: Engine
) -> None:
    (job_id,) = scheduled_jobs(chain, provider, 1)
    write = Write(
        "end",
        "report",
        report_call(job_id, StatusUpdate(ChainStatus.FINISHED)),
        job_id,
        gas=300_000,
    )
    wallet.writer.send([write])
    ((result, _),) = mined(wallet, chain)
    assert not result.success
    reason = wallet.sent_transactions.why_reverted([result])[result.sent.id]
    assert reason.revert.name == "InvalidTransition"
    with empty_database.begin() as connection:
        wallet.sent_transactions.close(connection, [result], {result.sent.id: reason})
    assert [state for _, _, state in rows(empty_database)] == ["REVERTED"]
    assert wallet.writer.missing(["end"]) == {"end"}
    assert wallet.sent_transactions.all() == []


def test_send__another_program_used_the_wallet__goes_on_behind_it(
    chain: Chain, provider: Account, wallet: Wallet, empty_database: Engine
) -> None:
    scheduled_jobs(chain, provider, 3)
    wallet.writer.send(claims(wallet, 1))
    chain.send(provider, "MetaScheduler", "claimNextJob")
    wallet.writer.send([replace(claims(wallet, 1)[0], idempotency_key="later")])
    nonces = [nonce for nonce, _, _ in rows(empty_database)]
    assert nonces[1] == nonces[0] + 2
    assert all(result.success for result, _ in mined(wallet, chain))
