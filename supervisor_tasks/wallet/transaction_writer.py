"""The wallet: what the provider writes to the chain, signed and committed before it is
sent.

One writer at a time per (chain, address), under an advisory lock. Each write has an
idempotency key, a name that states what it is for. A key with an open or mined
transaction is never written a second time. The ledger holds the bytes before the first
node sees them, so that the same bytes can be sent again after any process dies.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import structlog
from coincurve import PrivateKey
from eth_account import Account
from eth_account.messages import encode_defunct
from eth_account.signers.local import LocalAccount
from sqlalchemy import Connection, Engine

from supervisor_tasks.chain.abi_codec import Revert, decode_revert
from supervisor_tasks.chain.rpc.client import (
    BATCH_CALLS,
    Call,
    Rpc,
    RpcError,
    RpcUnavailableError,
    require,
)
from supervisor_tasks.chain.rpc.response_schema import MAX_NUMBER
from supervisor_tasks.crash_points import CrashPoint, crash_point
from supervisor_tasks.errors import TransientError
from supervisor_tasks.jobs.model import Address
from supervisor_tasks.ledger.advisory_locks import advisory_lock
from supervisor_tasks.ledger.alarm_store import Alarms
from supervisor_tasks.ledger.alarms import AlarmName
from supervisor_tasks.ledger.lock_names import wallet_lock
from supervisor_tasks.ledger.transactions import (
    NONCE_FILLER,
    Mined,
    Outstanding,
    Sent,
    TransactionStore,
)
from supervisor_tasks.wallet.fees import (
    DEFAULT_TIP_WEI,
    Bounds,
    Fees,
    Market,
    fees,
    replacement,
)
from supervisor_tasks.wallet.gas import Estimate, GivenUpError, RevertedError, estimated
from supervisor_tasks.wallet.nonces import confirmed_nonces
from supervisor_tasks.wallet.raw_transaction import (
    TransactionFields,
    append_tag,
    decode,
    hash_of,
    sign,
)

log = structlog.get_logger()

FILLER_GAS = 21_000  # of a transaction that does nothing
# receipts that are asked for in one request, together with a block
MAX_HASHES = BATCH_CALLS - 1
# 1,000 gwei a gas, one coin a transaction
DEFAULT_BOUNDS = Bounds(wei_per_gas=10**12, wei_per_tx=10**18)


class WalletEmptyError(TransientError):
    """The balance is too low for another transaction. Retry after a deposit."""

    def __init__(self, balance_wei: int, needed_wei: int) -> None:
        super().__init__(f"the wallet holds {balance_wei} wei and needs {needed_wei}")
        self.balance_wei, self.needed_wei = balance_wei, needed_wei


class TooDearError(TransientError):
    """Not signed: at the price that the node reports, it costs more than the operator
    allows. Retry when it falls.
    """

    def __init__(self, purpose: str, gas: int, price_wei: int, most_wei: int) -> None:
        super().__init__(
            f"{purpose}: found {gas} gas at {price_wei} wei, {gas * price_wei} wei in all; expected {most_wei} wei at most"
            " (WALLET_MAX_WEI_PER_TX): look at what the node says, or raise the setting"
        )


@dataclass(frozen=True, slots=True)
class Write:
    """A call to write to the chain; `to` None means the meta-scheduler. `gas` None
    means that the gas must be estimated, which finds a revert at no cost.
    """

    idempotency_key: str
    purpose: str
    data: str
    job_id: str | None = None
    gas: int | None = None
    to: str | None = None

    @property
    def known_gas(self) -> int:
        """The gas, for what the write can cost; 0 as long as it is not known."""
        return self.gas or 0


@dataclass(frozen=True, slots=True)
class AccountState:
    """What a node reports about the wallet's account and the market, at one block."""

    mined_nonces: int
    balance_wei: int
    market: Market
    head: int
    head_hash: str


class Wallet:
    """Signs and sends for one address on one chain. Prices are wei per gas."""

    def __init__(
        self,
        engine: Engine,
        cluster: str,
        rpc: Rpc,
        chain_id: int,
        contract: str,
        key: str,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        self._engine = engine
        self._rpc = rpc
        self._chain_id = chain_id
        self._contract = contract
        self._account: LocalAccount = Account.from_key(key)
        self._key = PrivateKey(bytes(self._account.key))
        self.bounds = bounds
        self.alarms = Alarms(engine, cluster)
        self.address = Address(self._account.address.lower())
        self.transactions = TransactionStore(engine, cluster, chain_id)

    def sign_message(self, message: bytes) -> bytes:
        """Sign an Ethereum personal message (EIP-191). Returns r, s and v = 0 or 1: 65
        bytes.
        """
        signed = self._account.sign_message(encode_defunct(primitive=message))
        return bytes(signed.signature[:64]) + bytes([signed.signature[64] - 27])

    # --- new writes -------------------------------------------------------------------

    def missing(self, idempotency_keys: Sequence[str]) -> set[str]:
        """The idempotency keys that have no open or mined transaction."""
        return self.transactions.missing(idempotency_keys)

    def estimate(self, writes: Sequence[Write]) -> list[Estimate]:
        """The gas that each write would use now, with a margin but no more than a block
        holds; or why there is no estimate. Raises RpcUnavailableError.
        """
        calls: list[Call] = [
            ("eth_estimateGas", (self._call(write), "latest")) for write in writes
        ]
        head, *answers = self._rpc.batch(
            [("eth_getBlockByNumber", ("latest", False)), *calls]
        )
        # a private chain may have no real limit
        limit = min(int(_seen(head)["gasLimit"], 16), MAX_NUMBER)
        return [estimated(answer, limit) for answer in answers]

    def send(
        self, writes: Sequence[Write], most_open: Mapping[str, int] | None = None
    ) -> int:
        """Sign, commit and broadcast the writes whose idempotency key is new, with
        consecutive nonces; returns how many. Each write needs its gas. No more of a
        purpose are open then than `most_open` says, with those of other clusters that
        share the wallet: they may have sent some since the caller counted. Raises
        RpcUnavailableError before anything is signed, WalletEmptyError when the balance
        did not pay for all writes, and TooDearError when a write costs more than the
        bound (the others are sent). Nothing that was signed is lost: the tracker sends
        it again.
        """
        with self.exclusive():
            asked = self._within(most_open or {}, self._new_writes(writes))
            if not asked:
                return 0
            state = self.fetch_account_state()
            new = [write for write in asked if not self._too_dear(write, state.market)]
            first = self._next_nonce(state)
            paid, needed_wei = self._affordable(new, state)
            rows = [
                self._row(write, first + n, self._fees(write, state.market))
                for n, write in enumerate(paid)
            ]
            if rows:
                self._commit_and_send(rows, state)
        too_dear = self._alarm_of_too_dear(asked, state)
        if len(paid) < len(new):
            self.alarm_of_empty(state.balance_wei, needed_wei)
            raise WalletEmptyError(state.balance_wei, needed_wei)
        if too_dear is not None:
            raise too_dear
        return len(new)

    def _new_writes(self, writes: Sequence[Write]) -> list[Write]:
        """The writes whose idempotency key has no open or mined transaction."""
        idempotency_keys = [write.idempotency_key for write in writes]
        missing = self.missing(idempotency_keys)
        return [write for write in writes if write.idempotency_key in missing]

    def _within(
        self, most_open: Mapping[str, int], writes: Sequence[Write]
    ) -> list[Write]:
        """The writes that leave at most so many of each purpose open."""
        if not most_open:
            return list(writes)
        under_way, kept = self.open_by_purpose(), list[Write]()
        for write in writes:
            most = most_open.get(write.purpose)
            if most is None or under_way[write.purpose] < most:
                under_way[write.purpose] += 1
                kept.append(write)
        return kept

    def _next_nonce(self, state: AccountState) -> int:
        """The first nonce that is neither signed nor mined. Raises the alarm if
        nonces are mined that the ledger has not signed. Raises RpcUnavailableError.
        """
        known = self.transactions.next_nonce(self.address)
        signed, mined = known or 0, state.mined_nonces
        if mined > signed:
            mined = confirmed_nonces(self._rpc, self.address, mined)
        if known is not None and mined > known:
            self.alarm_of_foreign(nonces=f"{known} to {mined - 1}")
        return max(signed, mined)

    def _alarm_of_too_dear(
        self, writes: Sequence[Write], state: AccountState
    ) -> TooDearError | None:
        """Raise the alarm for the first write that costs more than the bound, and
        return the error; None if there is none.
        """
        for write in writes:
            if self._too_dear(write, state.market):
                error = TooDearError(
                    write.purpose,
                    write.known_gas,
                    state.market.least_wei,
                    self.bounds.wei_per_tx,
                )
                self.alarms.on(AlarmName.TRANSACTION_TOO_DEAR, error=str(error))
                return error
        return None

    def _too_dear(self, write: Write, market: Market) -> bool:
        """Whether the write could not be mined within the bound. It would wait for ever
        and hold up all later ones.
        """
        price_wei = min(market.least_wei, self.bounds.wei_per_gas)
        return write.known_gas * price_wei > self.bounds.wei_per_tx

    def _fees(self, write: Write, market: Market) -> Fees:
        return fees(market, self.bounds.of(write.known_gas))

    def dearer(self, sent: Sent, market: Market) -> Fees | None:
        """What a replacement pays; None when the bound allows no higher price."""
        return replacement(sent.fees, market, self.bounds.of(sent.gas))

    def fill(self, nonce: int) -> None:
        """Use up a nonce for which the ledger has no transaction, so that later ones
        can be mined. Raises RpcUnavailableError before anything is signed.
        """
        with self.exclusive():
            state = self.fetch_account_state()
            write = Write(
                f"fill {nonce} at block {state.head}",
                NONCE_FILLER,
                "0x",
                gas=FILLER_GAS,
                to=self.address,
            )
            self._commit_and_send(
                [self._row(write, nonce, self._fees(write, state.market))], state
            )

    def exclusive(self) -> AbstractContextManager[None]:
        """A lock. While a process holds it, no other process that shares the ledger
        signs for this address.
        """
        return advisory_lock(self._engine, wallet_lock(self._chain_id, self.address))

    def fetch_account_state(self) -> AccountState:
        """What a node reports about the account and the market, in one request. Raises
        RpcUnavailableError.
        """
        nonce, balance, block, tip, price = self._rpc.batch(
            [
                ("eth_getTransactionCount", (self.address, "latest")),
                ("eth_getBalance", (self.address, "latest")),
                ("eth_getBlockByNumber", ("latest", False)),
                ("eth_maxPriorityFeePerGas", ()),
                ("eth_gasPrice", ()),
            ]
        )
        head = _seen(block)
        base_fee_wei, tip_wei, gas_price_wei = None, DEFAULT_TIP_WEI, 0
        if head.get("baseFeePerGas"):
            base_fee_wei = int(head["baseFeePerGas"], 16)
        else:
            require(price)
        if not isinstance(tip, RpcError):
            tip_wei = int(tip, 16)
        if not isinstance(price, RpcError):
            gas_price_wei = int(price, 16)
        market = Market(base_fee_wei, tip_wei, gas_price_wei)
        nonces, balance_wei = int(require(nonce), 16), int(require(balance), 16)
        return AccountState(
            nonces, balance_wei, market, int(head["number"], 16), head["hash"]
        )

    def _affordable(
        self, writes: Sequence[Write], state: AccountState
    ) -> tuple[list[Write], int]:
        """The writes that the balance pays for beside what is open; and the wei that
        all writes and open ones need.
        """
        needed_wei = self.outstanding().cost_wei
        paid = list[Write]()
        for write in writes:
            needed_wei += write.known_gas * self._fees(write, state.market).max_fee_wei
            if needed_wei <= state.balance_wei:
                paid.append(write)
        return paid, needed_wei

    def outstanding(self) -> Outstanding:
        """What is open: the oldest transaction, and the most that this address's
        transactions can cost.
        """
        return self.transactions.outstanding(self.address)

    def open_by_purpose(self) -> Counter[str]:
        """How many of this address's transactions are open, by purpose."""
        return self.transactions.open_by_purpose(self.address)

    def _commit_and_send(
        self, rows: Sequence[dict[str, Any]], state: AccountState
    ) -> None:
        with crash_point(CrashPoint.TRANSACTION_COMMIT):
            self.transactions.add(rows, state.head)
        self._try_to_broadcast([(row["hash"], row["raw"]) for row in rows])

    # --- open transactions ------------------------------------------------------------

    def open_transactions(self) -> list[Sent]:
        """The transactions that are signed and not known to be mined, by nonce; those
        of a former key, too.
        """
        return self.transactions.open_transactions()

    def abandoned(self, first: int, last: int) -> list[Sent]:
        """The transactions with nonces from `first` to `last` that clusters sharing the
        wallet signed, and that no fleet follows now.
        """
        return self.transactions.abandoned(self.address, first, last)

    def close(
        self,
        connection: Connection,
        mined: Sequence[Mined],
        reverted: dict[int, RevertedError],
    ) -> None:
        """Record, within a transaction of the ledger, where the transactions were
        mined, and why some reverted.
        """
        self.transactions.close(
            connection,
            mined,
            {row_id: str(error) for row_id, error in reverted.items()},
        )

    def mined_nonces(self, addresses: Sequence[str]) -> list[int]:
        """How many transactions of each address are mined."""
        calls = [
            ("eth_getTransactionCount", (address, "latest")) for address in addresses
        ]
        return [int(require(answer), 16) for answer in self._rpc.batch(calls)]

    def is_confirmed_unmined(self, sent: Sent, state: AccountState) -> bool:
        """Whether a node that has the block at which `state` was read knows no receipt
        of any signature. False when the node does not have that block yet, or rejects
        to answer.
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
        block, *receipts = self._rpc.batch(
            [("eth_getBlockByNumber", (hex(state.head), False)), *calls]
        )
        if not isinstance(block, dict) or block["hash"] != state.head_hash:
            return False
        return all(receipt is None for receipt in receipts)

    def alarm_of_empty(self, balance_wei: int, needed_wei: int) -> None:
        """Turn on the alarm: the account needs a deposit before work can go on."""
        about = {
            "balance_wei": balance_wei,
            "needed_wei": needed_wei,
            "seen_s": round(time.time()),
        }
        self.alarms.on(AlarmName.WALLET_EMPTY, address=self.address, **about)

    def alarm_of_foreign(self, **about: Any) -> None:
        """Turn on the alarm: another writer uses this wallet's key."""
        self.alarms.on(
            AlarmName.UNKNOWN_TRANSACTION_ON_ACCOUNT, address=self.address, **about
        )

    def send_again(self, transactions: Sequence[Sent]) -> None:
        """Broadcast the same bytes once more."""
        if transactions:
            self._broadcast([(entry.hash, entry.raw) for entry in transactions])

    def broadcast_raw(self, signed: Sequence[bytes]) -> None:
        """Broadcast bytes that were signed before; the nodes' answers are ignored."""
        self._rpc.batch([_raw_call(raw) for raw in signed])

    def replace(self, transactions: Sequence[tuple[Sent, Fees]], head: int) -> None:
        """Sign the same transactions again with other prices, commit them, and
        broadcast them.
        """
        self._commit_again(
            [
                (entry.id, self._signed(replace(decode(entry.raw), fees=price)))
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
            cap_wei = self.bounds.of(FILLER_GAS)
            price = replacement(entry.fees, market, cap_wei)
            if price is None:
                price = entry.fees.at_most(cap_wei)
            nothing = TransactionFields(
                entry.nonce, FILLER_GAS, self.address, 0, b"", price
            )
            signed.append((entry.id, {"gas": FILLER_GAS, **self._signed(nothing)}))
        self._commit_again(signed, head)

    def _commit_again(
        self, signed: Sequence[tuple[int, dict[str, Any]]], head: int
    ) -> None:
        """Commit new signatures of open transactions, and broadcast them."""
        if not signed:
            return
        with self.exclusive():
            with crash_point(CrashPoint.TRANSACTION_COMMIT):
                self.transactions.replace(signed, head)
            self._try_to_broadcast([(row["hash"], row["raw"]) for _, row in signed])

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
        answers = self._rpc.batch(calls)
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

    # --- signing and sending ----------------------------------------------------------

    def _call(self, write: Write) -> dict[str, str]:
        return {
            "from": self.address,
            "to": write.to or self._contract,
            "data": self._tagged(write),
        }

    def _tagged(self, write: Write) -> str:
        if write.to == self.address:
            return write.data
        return append_tag(write.data, self.transactions.instance_tag())

    def _row(self, write: Write, nonce: int, price: Fees) -> dict[str, Any]:
        if write.gas is None:
            raise ValueError(f"{write.purpose}: gas is not known; estimate it first")
        data = bytes.fromhex(self._tagged(write).removeprefix("0x"))
        fields = TransactionFields(
            nonce, write.gas, write.to or self._contract, 0, data, price
        )
        about = {"address": self.address, "nonce": nonce, "gas": write.gas}
        purpose = {
            "purpose": write.purpose,
            "job_id": write.job_id,
            "idempotency_key": write.idempotency_key,
        }
        return {**about, **purpose, **self._signed(fields)}

    def _signed(self, fields: TransactionFields) -> dict[str, Any]:
        with crash_point(CrashPoint.SIGN):
            raw = sign(fields, self._chain_id, self._key)
        return {
            "max_fee_wei": fields.fees.max_fee_wei,
            "priority_fee_wei": fields.fees.priority_fee_wei,
            "raw": raw,
            "hash": hash_of(raw),
        }

    def _try_to_broadcast(self, transactions: Sequence[tuple[str, bytes]]) -> None:
        try:
            self._broadcast(transactions)
        except RpcUnavailableError as error:  # the tracker sends them again
            log.warning(
                "broadcast_failed", transactions=len(transactions), error=str(error)
            )

    def _broadcast(self, transactions: Sequence[tuple[str, bytes]]) -> None:
        with crash_point(CrashPoint.BROADCAST):
            answers = self._rpc.batch([_raw_call(raw) for _, raw in transactions])
        said = list[tuple[str, str | None]]()
        for (tx_hash, _), answer in zip(transactions, answers, strict=True):
            message = None
            if isinstance(answer, RpcError):
                message = answer.message
            said.append((tx_hash, message))
        self.transactions.broadcast(said)


def _raw_call(raw: bytes) -> Call:
    return "eth_sendRawTransaction", ("0x" + raw.hex(),)


def _seen(block: Any) -> dict[str, Any]:
    found: dict[str, Any] | None = require(block)
    if found is None:
        raise RpcUnavailableError("the node does not show its last block")
    return found


def _why(result: Mined, answers: Sequence[Any]) -> RevertedError:
    for answer in answers:
        if isinstance(answer, RpcError) and answer.data:
            return RevertedError(decode_revert(answer.data))
    if result.gas_used >= result.sent.gas:
        return RevertedError(Revert("OutOfGas", (result.sent.gas,)))
    return RevertedError(Revert("unknown", ()))
