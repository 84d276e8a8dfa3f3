"""Writes new transactions: what the provider writes to the chain, signed and committed
before it is sent.

One writer at a time per (chain, address), under an advisory lock. Each write has an
idempotency key, a name that states what it is for. A key with an open or mined
transaction is never written a second time. The ledger holds the bytes before the first
node sees them, so that the same bytes can be sent again after any process dies.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain.blocks import shown_block
from supervisor_tasks.chain.rpc.client import Call
from supervisor_tasks.chain.rpc.response_schema import MAX_NUMBER
from supervisor_tasks.crash_points import CrashPoint, crash_point
from supervisor_tasks.errors import TransientError
from supervisor_tasks.ledger.transaction_names import Purpose
from supervisor_tasks.wallet.account import AccountState, WalletAccount
from supervisor_tasks.wallet.fees import Fees, Market, fees
from supervisor_tasks.wallet.gas import Estimate, estimated
from supervisor_tasks.wallet.nonces import confirmed_nonces
from supervisor_tasks.wallet.raw_transaction import (
    FILLER_GAS,
    TransactionFields,
    append_tag,
)


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


class TransactionWriter:
    """Writes the new transactions of an account: calls of the contract. Prices are wei
    per gas.
    """

    def __init__(self, account: WalletAccount, contract: str) -> None:
        self._account = account
        self._contract = contract
        self._store = account.transactions

    def missing(self, idempotency_keys: Sequence[str]) -> set[str]:
        """The idempotency keys that have no open or mined transaction."""
        return self._store.missing(idempotency_keys)

    def estimate(self, writes: Sequence[Write]) -> list[Estimate]:
        """The gas that each write would use now, with a margin but no more than a block
        holds; or why there is no estimate. Raises RpcUnavailableError, when no endpoint
        answers; a retry helps.
        """
        calls: list[Call] = [
            ("eth_estimateGas", (self._call(write), "latest")) for write in writes
        ]
        head, *answers = self._account.rpc.batch(
            [("eth_getBlockByNumber", ("latest", False)), *calls]
        )
        # a private chain may have no real limit
        limit = min(int(shown_block(head, "latest")["gasLimit"], 16), MAX_NUMBER)
        return [estimated(answer, limit) for answer in answers]

    def send(
        self, writes: Sequence[Write], most_open: Mapping[str, int] | None = None
    ) -> int:
        """Sign, commit and broadcast the writes whose idempotency key is new, with
        consecutive nonces; returns how many. Each write needs its gas. No more of a
        purpose are open then than `most_open` says, with those of other clusters that
        share the wallet: they may have sent some since the caller counted. Raises
        RpcUnavailableError before anything is signed (a retry helps), WalletEmptyError
        when the balance did not pay for all writes (a retry helps after a deposit), and
        TooDearError when a write costs more than the bound (the others are sent; a retry
        helps at a lower price). Nothing that was signed is lost: the task
        collect_receipts sends it again.
        """
        with self._account.exclusive():
            asked = self._within(most_open or {}, self._new_writes(writes))
            if not asked:
                return 0
            state = self._account.fetch_account_state()
            new = [write for write in asked if not self._too_dear(write, state.market)]
            first = self._next_nonce(state)
            paid, needed_wei = self._affordable(new, state)
            rows = [
                self._row(write, first + n, self._fees(write, state.market))
                for n, write in enumerate(paid)
            ]
            if rows:
                self._commit_and_send(rows, state)
        too_dear = self._raise_too_dear_alarm(asked, state)
        if len(paid) < len(new):
            self._account.raise_wallet_empty_alarm(state.balance_wei, needed_wei)
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
        known = self._store.next_nonce(self._account.address)
        signed, mined = known or 0, state.mined_nonces
        if mined > signed:
            mined = confirmed_nonces(self._account.rpc, self._account.address, mined)
        if known is not None and mined > known:
            self._account.raise_unknown_transaction_alarm(
                nonces=f"{known} to {mined - 1}"
            )
        return max(signed, mined)

    def _raise_too_dear_alarm(
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
                    self._account.bounds.wei_per_tx,
                )
                self._account.alarms.on(
                    AlarmName.TRANSACTION_TOO_DEAR, error=str(error)
                )
                return error
        return None

    def _too_dear(self, write: Write, market: Market) -> bool:
        """Whether the write would cost more than the bound at the price at which it can be
        mined, or at WALLET_MAX_WEI_PER_GAS if that is lower. It would hold up all later
        ones. A write within the bound whose price is above WALLET_MAX_WEI_PER_GAS is
        signed at that price, and waits until the market's price falls.
        """
        price_wei = min(market.least_wei, self._account.bounds.wei_per_gas)
        return write.known_gas * price_wei > self._account.bounds.wei_per_tx

    def _fees(self, write: Write, market: Market) -> Fees:
        return fees(market, self._account.bounds.of(write.known_gas))

    def fill(self, nonce: int) -> None:
        """Use up a nonce for which the ledger has no transaction, so that later ones
        can be mined. Raises RpcUnavailableError before anything is signed, when no
        endpoint answers; a retry helps.
        """
        with self._account.exclusive():
            state = self._account.fetch_account_state()
            write = Write(
                f"fill {nonce} at block {state.head}",
                Purpose.FILL_NONCE,
                "0x",
                gas=FILLER_GAS,
                to=self._account.address,
            )
            self._commit_and_send(
                [self._row(write, nonce, self._fees(write, state.market))], state
            )

    def _affordable(
        self, writes: Sequence[Write], state: AccountState
    ) -> tuple[list[Write], int]:
        """The writes that the balance pays for beside what is open; and the wei that
        all writes and open ones need.
        """
        needed_wei = self._store.outstanding(self._account.address).cost_wei
        paid = list[Write]()
        for write in writes:
            needed_wei += write.known_gas * self._fees(write, state.market).max_fee_wei
            if needed_wei <= state.balance_wei:
                paid.append(write)
        return paid, needed_wei

    def open_by_purpose(self) -> Counter[str]:
        """How many of this address's transactions are open, by purpose."""
        return self._store.open_by_purpose(self._account.address)

    def _commit_and_send(
        self, rows: Sequence[dict[str, Any]], state: AccountState
    ) -> None:
        with crash_point(CrashPoint.TRANSACTION_COMMIT):
            self._store.add(rows, state.head)
        self._account.try_to_broadcast([(row["hash"], row["raw"]) for row in rows])

    def _call(self, write: Write) -> dict[str, str]:
        return {
            "from": self._account.address,
            "to": write.to or self._contract,
            "data": self._tagged(write),
        }

    def _tagged(self, write: Write) -> str:
        if write.to == self._account.address:
            return write.data
        return append_tag(write.data, self._store.instance_tag())

    def _row(self, write: Write, nonce: int, price: Fees) -> dict[str, Any]:
        if write.gas is None:
            raise ValueError(f"{write.purpose}: gas is not known; estimate it first")
        data = bytes.fromhex(self._tagged(write).removeprefix("0x"))
        fields = TransactionFields(
            nonce, write.gas, write.to or self._contract, 0, data, price
        )
        about = {"address": self._account.address, "nonce": nonce, "gas": write.gas}
        purpose = {
            "purpose": write.purpose,
            "job_id": write.job_id,
            "idempotency_key": write.idempotency_key,
        }
        return {**about, **purpose, **self._account.signed(fields)}
