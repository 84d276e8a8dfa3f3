"""The wallet's transactions that are signed and not known to be mined. They are sent
again, replaced, cancelled and closed; open_transactions/resubmit.py decides which.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from supervisor_tasks.chain.abi_codec import Revert, decode_revert
from supervisor_tasks.chain.rpc.client import BATCH_CALLS, Call, RpcError, require
from supervisor_tasks.crash_points import CrashPoint, crash_point
from supervisor_tasks.ledger.transactions import Mined, Outstanding, Sent
from supervisor_tasks.wallet.account import AccountState, WalletAccount
from supervisor_tasks.wallet.fees import Fees, Market, replacement
from supervisor_tasks.wallet.gas import GivenUpError, RevertedError
from supervisor_tasks.wallet.raw_transaction import (
    FILLER_GAS,
    TransactionFields,
    decode,
)

# receipts that are asked for in one request, together with a block
MAX_HASHES = BATCH_CALLS - 1


class SentTransactions:
    """The open transactions of an account, and of its former keys."""

    def __init__(self, account: WalletAccount) -> None:
        self._account = account
        self._store = account.transactions

    def all(self) -> list[Sent]:
        """The transactions that are signed and not known to be mined, by nonce; those
        of a former key, too.
        """
        return self._store.open_transactions()

    def outstanding(self) -> Outstanding:
        """What is open: the oldest transaction, and the most that this address's
        transactions can cost.
        """
        return self._store.outstanding(self._account.address)

    def abandoned(self, first: int, last: int) -> list[Sent]:
        """The transactions with nonces from `first` to `last` that clusters sharing the
        wallet signed, and that no fleet follows now.
        """
        return self._store.abandoned(self._account.address, first, last)

    def close(
        self,
        connection: Connection,
        mined: Sequence[Mined],
        reverted: dict[int, RevertedError],
    ) -> None:
        """Record, within a transaction of the ledger, where the transactions were
        mined, and why some reverted.
        """
        self._store.close(
            connection,
            mined,
            {row_id: str(error) for row_id, error in reverted.items()},
        )

    def mined_nonces(self, addresses: Sequence[str]) -> list[int]:
        """How many transactions of each address are mined."""
        calls = [
            ("eth_getTransactionCount", (address, "latest")) for address in addresses
        ]
        return [int(require(answer), 16) for answer in self._account.rpc.batch(calls)]

    def is_confirmed_unmined(self, sent: Sent, state: AccountState) -> bool:
        """Whether a node that has the block at which `state` was read knows no receipt
        of any signature. False when the node does not have that block yet, or rejects
        the question.
        """
        starts = range(0, len(sent.hashes), MAX_HASHES)
        return all(
            self._not_mined(sent.hashes[start : start + MAX_HASHES], state)
            for start in starts
        )

    def _not_mined(self, hashes: Sequence[str], state: AccountState) -> bool:
        calls: list[Call] = [
            ("eth_getTransactionReceipt", (tx_hash,)) for tx_hash in hashes
        ]
        block, *receipts = self._account.rpc.batch(
            [("eth_getBlockByNumber", (hex(state.head), False)), *calls]
        )
        if not isinstance(block, dict) or block["hash"] != state.head_hash:
            return False
        return all(receipt is None for receipt in receipts)

    def send_again(self, transactions: Sequence[Sent]) -> None:
        """Broadcast the same bytes once more."""
        if transactions:
            self._account.broadcast([(entry.hash, entry.raw) for entry in transactions])

    def replace(self, transactions: Sequence[tuple[Sent, Fees]], head: int) -> None:
        """Sign the same transactions again with other prices, commit them, and
        broadcast them.
        """
        self._commit_again(
            [
                (entry.id, self._account.signed(replace(decode(entry.raw), fees=price)))
                for entry, price in transactions
            ],
            head,
        )

    def cancel_with_replacement(
        self, transactions: Sequence[Sent], market: Market, head: int
    ) -> None:
        """Replace transactions that no node takes by ones that do nothing, so that
        later nonces can be mined. The idempotency key is not free until that
        transaction is mined: if the first bytes are mined after all, they count.
        """
        signed = []
        for entry in transactions:
            cap_wei = self._account.bounds.of(FILLER_GAS)
            price = replacement(entry.fees, market, cap_wei)
            if price is None:
                price = entry.fees.at_most(cap_wei)
            nothing = TransactionFields(
                entry.nonce, FILLER_GAS, self._account.address, 0, b"", price
            )
            signed.append(
                (entry.id, {"gas": FILLER_GAS, **self._account.signed(nothing)})
            )
        self._commit_again(signed, head)

    def _commit_again(
        self, signed: Sequence[tuple[int, dict[str, Any]]], head: int
    ) -> None:
        """Commit new signatures of open transactions, and broadcast them."""
        if not signed:
            return
        with self._account.exclusive():
            with crash_point(CrashPoint.TRANSACTION_COMMIT):
                self._store.replace(signed, head)
            self._account.try_to_broadcast(
                [(row["hash"], row["raw"]) for _, row in signed]
            )

    def why_reverted(self, mined: Sequence[Mined]) -> dict[int, RevertedError]:
        """The reasons (by the transaction's id) why mined transactions reverted. Each
        call is replayed on the state before its block, and on the state after it.
        """
        reverted = dict[int, RevertedError]()
        failed, calls = list[Mined](), list[Call]()
        for result in mined:
            if result.given_up:
                reverted[result.sent.id] = GivenUpError()
            elif not result.success:
                failed.append(result)
                call = self._replayed(result.sent)
                calls.append(("eth_call", (call, hex(result.block_number - 1))))
                calls.append(("eth_call", (call, hex(result.block_number))))
        answers = self._account.rpc.batch(calls)
        for place, result in enumerate(failed):
            both = answers[2 * place : 2 * place + 2]
            reverted[result.sent.id] = _why(result, both)
        return reverted

    def _replayed(self, sent: Sent) -> dict[str, str]:
        fields = decode(sent.raw)
        return {
            "from": sent.address,
            "to": fields.to,
            "data": "0x" + fields.data.hex(),
            "gas": hex(fields.gas),
        }


def _why(result: Mined, answers: Sequence[Any]) -> RevertedError:
    for answer in answers:
        if isinstance(answer, RpcError) and answer.data:
            return RevertedError(decode_revert(answer.data))
    if result.gas_used >= result.sent.gas:
        return RevertedError(Revert("OutOfGas", (result.sent.gas,)))
    return RevertedError(Revert("unknown", ()))
