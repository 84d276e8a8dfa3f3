"""The wallet: what the provider writes to the chain, signed and committed before it is sent.

One writer at a time per (chain, address), under an advisory lock. Each write has an intent, a name that says what it is
for; an intent that is open or mined is never written a second time. The bytes are in the ledger before the first node
sees them, so that whatever dies, the same bytes can be sent again.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog
from eth_account import Account
from eth_account.messages import encode_defunct
from eth_account.signers.local import LocalAccount
from eth_utils.address import to_checksum_address
from sqlalchemy import Connection, Engine, bindparam, func, insert, select, update

from supervisor_tasks.chain.codec import Revert, decode_revert
from supervisor_tasks.chain.rpc import Rpc, RpcError, RpcUnavailableError, require
from supervisor_tasks.errors import PermanentError
from supervisor_tasks.job import Address
from supervisor_tasks.ledger.leases import one_at_a_time
from supervisor_tasks.ledger.models import TransactionRow

log = structlog.get_logger()

TRANSACTIONS = TransactionRow.metadata.tables["transactions"]

OPEN = ("SIGNED", "SENT")
GAS_MARGIN = 1.3  # on an estimate: the state may have changed by the time the transaction is mined
SEND_AGAIN_S = 15.0  # a transaction without a receipt for so long is sent again, byte by byte the same


class RevertedError(PermanentError):
    """The contract would refuse, or has refused; `revert` says why."""

    def __init__(self, revert: Revert) -> None:
        super().__init__(f"the contract reverts with {revert}")
        self.revert = revert


@dataclass(frozen=True, slots=True)
class Write:
    """A call to be written to the chain. `gas` None means: to be estimated, which finds a revert out for free."""

    intent: str
    purpose: str
    data: str
    job_id: str | None = None
    gas: int | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """A transaction that is not known to be mined."""

    id: int
    hash: str
    raw: bytes
    purpose: str
    job_id: str | None
    stale: bool


@dataclass(frozen=True, slots=True)
class Mined:
    """A transaction with its receipt."""

    sent: Sent
    success: bool
    block_number: int
    block_hash: str

    @classmethod
    def from_receipt(cls, sent: Sent, receipt: dict[str, Any]) -> "Mined":
        """What eth_getTransactionReceipt says."""
        return cls(sent, int(receipt["status"], 16) == 1, int(receipt["blockNumber"], 16), receipt["blockHash"])


@dataclass(frozen=True, slots=True)
class Fees:
    """Prices of gas. A chain without a base fee takes legacy transactions."""

    max_fee_wei: int
    priority_fee_wei: int
    legacy: bool

    def fields(self) -> dict[str, int]:
        """The fields of a transaction."""
        if self.legacy:
            return {"gasPrice": self.max_fee_wei}
        return {"maxFeePerGas": self.max_fee_wei, "maxPriorityFeePerGas": self.priority_fee_wei, "type": 2}


class Wallet:
    """Signs and sends for one address on one chain; all writes go to one contract."""

    def __init__(self, engine: Engine, cluster: str, rpc: Rpc, chain_id: int, contract: str, key: str) -> None:
        self._engine = engine
        self._cluster = cluster
        self._rpc = rpc
        self._chain_id = chain_id
        self._contract = contract
        self._account: LocalAccount = Account.from_key(key)
        self.address = Address(self._account.address.lower())

    def sign_message(self, message: bytes) -> bytes:
        """An Ethereum personal message (EIP-191), as r, s and v = 0 or 1: 65 bytes."""
        signed = self._account.sign_message(encode_defunct(primitive=message))
        return bytes(signed.signature[:64]) + bytes([signed.signature[64] - 27])

    def missing(self, intents: Sequence[str]) -> set[str]:
        """Those of the intents for which there is no open or mined transaction."""
        any_of = TRANSACTIONS.c.intent == func.any(bindparam("intents", list(intents)))
        query = select(TRANSACTIONS.c.intent).where(
            TRANSACTIONS.c.cluster == self._cluster, any_of, TRANSACTIONS.c.state != "REVERTED"
        )
        with self._engine.connect() as connection:
            return set(intents) - set(connection.scalars(query))

    def estimate(self, writes: Sequence[Write]) -> list[int | RevertedError]:
        """The gas that each write would use now, with a margin, or the contract's reason to refuse it."""
        calls = [("eth_estimateGas", (self._call(write), "latest")) for write in writes]
        return [_gas_or_revert(answer) for answer in self._rpc.batch(calls)]

    def send(self, writes: Sequence[Write]) -> int:
        """Sign, commit and broadcast the writes whose intent is new, with consecutive nonces; returns how many.
        Each needs its gas. Raises RpcUnavailableError before anything is signed; after that nothing is lost.
        """
        with self.alone():
            wanted = self.missing([write.intent for write in writes])
            new = [write for write in writes if write.intent in wanted]
            if not new:
                return 0
            rows = self._sign(new)
            with self._engine.begin() as connection:
                connection.execute(insert(TRANSACTIONS), rows)
            try:
                self._broadcast([(row["hash"], row["raw"]) for row in rows])
            except RpcUnavailableError as error:
                log.warning(
                    "broadcast_failed", transactions=len(rows), error=str(error)
                )  # the tracker sends them again
        return len(new)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody signs meanwhile."""
        with one_at_a_time(self._engine, f"wallet {self._chain_id} {self.address}"):
            yield

    def open_transactions(self) -> list[Sent]:
        """What was signed and is not known to be mined, in the order of the nonces."""
        columns = TRANSACTIONS.c
        age = func.extract("epoch", func.now() - func.coalesce(columns.sent_at, columns.created_at))
        query = (
            select(columns.id, columns.hash, columns.raw, columns.purpose, columns.job_id, age.label("age_s"))
            .add_columns(columns.state)
            .where(columns.cluster == self._cluster, columns.state.in_(OPEN))
            .order_by(columns.nonce)
        )
        with self._engine.connect() as connection:
            return [
                Sent(row.id, row.hash, row.raw, row.purpose, row.job_id, row.age_s > _patience_s(row.state))
                for row in connection.execute(query)
            ]

    def send_again(self, transactions: Sequence[Sent]) -> None:
        """Broadcast the same bytes once more."""
        if transactions:
            self._broadcast([(transaction.hash, transaction.raw) for transaction in transactions])

    def close(self, connection: Connection, mined: Sequence[Mined], reverted: dict[int, RevertedError]) -> None:
        """Write down, within a transaction of the ledger, where they were mined, and why those that reverted did."""
        marks = [
            {
                "b_id": result.sent.id,
                "b_state": "MINED" if result.success else "REVERTED",
                "b_block": result.block_number,
                "b_hash": result.block_hash,
                "b_error": None if result.success else str(reverted[result.sent.id]),
            }
            for result in mined
        ]
        connection.execute(
            update(TRANSACTIONS)
            .where(TRANSACTIONS.c.id == bindparam("b_id"))
            .values(
                state=bindparam("b_state"),
                block_number=bindparam("b_block"),
                block_hash=bindparam("b_hash"),
                error=bindparam("b_error"),
                done_at=func.now(),
            ),
            marks,
        )

    def why_reverted(self, transaction: Sent, block_number: int) -> RevertedError:
        """The reason of a mined transaction that reverted: the call is replayed on the state before its block."""
        data = self._rpc.call("eth_getTransactionByHash", transaction.hash)["input"]
        for block in (hex(block_number - 1), hex(block_number)):
            call = {"from": self.address, "to": self._contract, "data": data}
            answer = self._rpc.batch([("eth_call", (call, block))])[0]
            if isinstance(answer, RpcError) and answer.data:
                return RevertedError(decode_revert(answer.data))
        return RevertedError(Revert("unknown", ()))

    def _call(self, write: Write) -> dict[str, str]:
        return {"from": self.address, "to": self._contract, "data": write.data}

    def _sign(self, writes: Sequence[Write]) -> list[dict[str, Any]]:
        nonce, fees = self._next_nonce_and_fees()
        return [self._row(write, nonce + position, fees) for position, write in enumerate(writes)]

    def _row(self, write: Write, nonce: int, fees: Fees) -> dict[str, Any]:
        if write.gas is None:
            raise ValueError(f"{write.purpose}: gas is not known; estimate it first")
        fields: dict[str, Any] = {
            "chainId": self._chain_id,
            "nonce": nonce,
            "gas": write.gas,
            "to": self._checksummed(),
            "value": 0,
            "data": write.data,
        }
        signed = self._account.sign_transaction(fields | fees.fields())
        return {
            "cluster": self._cluster,
            "chain_id": self._chain_id,
            "address": self.address,
            "nonce": nonce,
            "purpose": write.purpose,
            "job_id": write.job_id,
            "intent": write.intent,
            "gas": write.gas,
            "max_fee_wei": fees.max_fee_wei,
            "priority_fee_wei": fees.priority_fee_wei,
            "raw": bytes(signed.raw_transaction),
            "hash": "0x" + signed.hash.hex().removeprefix("0x"),
            "state": "SIGNED",
        }

    def _checksummed(self) -> str:
        return to_checksum_address(self._contract)

    def _next_nonce_and_fees(self) -> tuple[int, Fees]:
        mined, block, tip = self._rpc.batch(
            [
                ("eth_getTransactionCount", (self.address, "latest")),
                ("eth_getBlockByNumber", ("latest", False)),
                ("eth_maxPriorityFeePerGas", ()),
            ]
        )
        mine = TRANSACTIONS.c.chain_id == self._chain_id, TRANSACTIONS.c.address == self.address
        with self._engine.connect() as connection:
            last = connection.scalar(select(func.max(TRANSACTIONS.c.nonce)).where(*mine))
        known = 0 if last is None else int(last) + 1
        return max(known, int(require(mined), 16)), self._fees(require(block), tip)

    def _fees(self, block: dict[str, Any], tip: str | RpcError) -> Fees:
        if "baseFeePerGas" not in block:
            price = int(self._rpc.call("eth_gasPrice"), 16)
            return Fees(price, price, legacy=True)
        priority = 10**9 if isinstance(tip, RpcError) else int(tip, 16)
        return Fees(2 * int(block["baseFeePerGas"], 16) + priority, priority, legacy=False)

    def _broadcast(self, transactions: Sequence[tuple[str, bytes]]) -> None:
        answers = self._rpc.batch([("eth_sendRawTransaction", ("0x" + raw.hex(),)) for _, raw in transactions])
        marks = [
            {"b_hash": tx_hash, "b_state": state, "b_error": error}
            for (tx_hash, _), answer in zip(transactions, answers, strict=True)
            for state, error in [_after_broadcast(answer)]
        ]
        with self._engine.begin() as connection:
            connection.execute(
                update(TRANSACTIONS)
                .where(TRANSACTIONS.c.hash == bindparam("b_hash"), TRANSACTIONS.c.done_at.is_(None))
                .values(state=bindparam("b_state"), error=bindparam("b_error"), sent_at=func.now()),
                marks,
            )


def _patience_s(state: str) -> float:
    """A transaction that no node is known to have is sent again at once."""
    return 1.0 if state == "SIGNED" else SEND_AGAIN_S


def _after_broadcast(answer: str | RpcError) -> tuple[str, str | None]:
    """The state of a transaction after the node's answer. What a node refuses is kept open, with the node's words: its
    receipt decides, and it is sent again.
    """
    if not isinstance(answer, RpcError):
        return "SENT", None
    known = any(phrase in answer.message.lower() for phrase in ("already known", "already imported", "nonce too low"))
    return ("SENT" if known else "SIGNED"), answer.message[:500]


def _gas_or_revert(answer: str | RpcError) -> int | RevertedError:
    if not isinstance(answer, RpcError):
        return int(int(answer, 16) * GAS_MARGIN)
    if answer.data:
        return RevertedError(decode_revert(answer.data))
    return require(answer)  # type: ignore[no-any-return]  # raises
