"""The wallet's account on one chain: its key signs, and the nodes say what it has and
take what it has signed.

One process at a time signs, under an advisory lock for each (chain, address).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import structlog
from coincurve import PrivateKey
from eth_account import Account
from eth_account.messages import encode_defunct
from eth_account.signers.local import LocalAccount
from sqlalchemy import Engine

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain.blocks import shown_block
from supervisor_tasks.chain.rpc.client import (
    Call,
    Rpc,
    RpcError,
    RpcUnavailableError,
    require,
)
from supervisor_tasks.crash_points import CrashPoint, crash_point
from supervisor_tasks.jobs.model import Address
from supervisor_tasks.ledger.advisory_locks import advisory_lock
from supervisor_tasks.ledger.alarm_store import Alarms
from supervisor_tasks.ledger.database import clock_s
from supervisor_tasks.ledger.lock_names import wallet_lock
from supervisor_tasks.ledger.transactions import TransactionStore
from supervisor_tasks.wallet.fees import DEFAULT_TIP_WEI, Bounds, Market
from supervisor_tasks.wallet.raw_transaction import TransactionFields, hash_of, sign

log = structlog.get_logger()

# 1,000 gwei a gas, one coin a transaction
DEFAULT_BOUNDS = Bounds(wei_per_gas=10**12, wei_per_tx=10**18)


@dataclass(frozen=True, slots=True)
class AccountState:
    """What a node reports about the wallet's account and the market, at one block."""

    mined_nonces: int
    balance_wei: int
    market: Market
    head: int
    head_hash: str


class WalletAccount:
    """One address on one chain, with its key and its transactions in the ledger. Prices
    are wei per gas.
    """

    def __init__(
        self,
        engine: Engine,
        cluster: str,
        rpc: Rpc,
        chain_id: int,
        key: str,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        self._engine = engine
        self._chain_id = chain_id
        self._account: LocalAccount = Account.from_key(key)
        self._key = PrivateKey(bytes(self._account.key))
        self.rpc = rpc
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

    def exclusive(self) -> AbstractContextManager[None]:
        """A lock. While a process holds it, no other process that shares the ledger
        signs for this address.
        """
        return advisory_lock(self._engine, wallet_lock(self._chain_id, self.address))

    def fetch_account_state(self) -> AccountState:
        """What a node reports about the account and the market, in one request. Raises
        RpcUnavailableError, when no endpoint answers; a retry helps.
        """
        nonce, balance, block, tip, price = self.rpc.batch(
            [
                ("eth_getTransactionCount", (self.address, "latest")),
                ("eth_getBalance", (self.address, "latest")),
                ("eth_getBlockByNumber", ("latest", False)),
                ("eth_maxPriorityFeePerGas", ()),
                ("eth_gasPrice", ()),
            ]
        )
        head = shown_block(block, "latest")
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

    def raise_wallet_empty_alarm(self, balance_wei: int, needed_wei: int) -> None:
        """Raise the alarm: the account needs a deposit before work can go on. Raises
        LedgerUnavailableError, when the database does not answer; a retry helps.
        """
        about = {
            "balance_wei": balance_wei,
            "needed_wei": needed_wei,
            "seen_s": round(clock_s(self._engine)),
        }
        self.alarms.on(AlarmName.WALLET_EMPTY, address=self.address, **about)

    def raise_unknown_transaction_alarm(self, **about: Any) -> None:
        """Raise the alarm: another writer uses this wallet's key."""
        self.alarms.on(
            AlarmName.UNKNOWN_TRANSACTION_ON_ACCOUNT, address=self.address, **about
        )

    def signed(self, fields: TransactionFields) -> dict[str, Any]:
        """Sign, and return the columns of the signature: its bytes, hash and prices."""
        with crash_point(CrashPoint.SIGN):
            raw = sign(fields, self._chain_id, self._key)
        return {
            "max_fee_wei": fields.fees.max_fee_wei,
            "priority_fee_wei": fields.fees.priority_fee_wei,
            "raw": raw,
            "hash": hash_of(raw),
        }

    def try_to_broadcast(self, transactions: Sequence[tuple[str, bytes]]) -> None:
        """Broadcast hashes and bytes. The task collect_receipts sends them again if no
        node answers.
        """
        try:
            self.broadcast(transactions)
        except RpcUnavailableError as error:
            log.warning(
                "broadcast_failed", transactions=len(transactions), error=str(error)
            )

    def broadcast(self, transactions: Sequence[tuple[str, bytes]]) -> None:
        """Broadcast hashes and bytes, and store what the nodes answer. Raises
        RpcUnavailableError, when no endpoint answers; a retry helps.
        """
        with crash_point(CrashPoint.BROADCAST):
            answers = self.rpc.batch([_raw_call(raw) for _, raw in transactions])
        errors = list[tuple[str, str | None]]()
        for (tx_hash, _), answer in zip(transactions, answers, strict=True):
            message = None
            if isinstance(answer, RpcError):
                message = answer.message
            errors.append((tx_hash, message))
        self.transactions.broadcast(errors)

    def broadcast_raw(self, signed: Sequence[bytes]) -> None:
        """Broadcast bytes that were signed before; the nodes' answers are ignored."""
        self.rpc.batch([_raw_call(raw) for raw in signed])


def _raw_call(raw: bytes) -> Call:
    return "eth_sendRawTransaction", ("0x" + raw.hex(),)
