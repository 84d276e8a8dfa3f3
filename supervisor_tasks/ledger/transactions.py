"""The wallet's part of the ledger: transactions, all their signatures, and the instance
tag of the ledger's own calls.

A transaction is not an effect of the outbox, because nonces have an order. A
transaction that is mined late, replaced or dropped decides about those after it, so no
transaction can be leased, postponed or parked alone.
"""

import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    Select,
    and_,
    bindparam,
    exists,
    func,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.dialects.postgresql import insert as upsert

from supervisor_tasks.chain.rpc.node_errors import NodeErrorKind, classify
from supervisor_tasks.ledger.bulk import as_rows, insert_rows
from supervisor_tasks.ledger.counters import Amounts, Counters, Total
from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.mapping import optional_float
from supervisor_tasks.ledger.periodic_run_names import SCANNED
from supervisor_tasks.ledger.stored_text import sanitize_and_truncate, sanitize_optional
from supervisor_tasks.ledger.tables import (
    INSTANCE_TAGS,
    PERIODIC_RUNS,
    SIGNATURES,
    TRANSACTIONS,
)
from supervisor_tasks.ledger.transaction_names import OPEN_STATES, Purpose
from supervisor_tasks.provider.registration_rules import TransactionStatus
from supervisor_tasks.wallet.fees import Fees
from supervisor_tasks.wallet.raw_transaction import TAG_BYTES

# A fleet whose chain workers are at work records the run SCANNED, at least each 75 s.
AT_WORK_S = 180.0
# at most
COST_WEI = (TRANSACTIONS.c.gas * TRANSACTIONS.c.max_fee_wei).label("cost_wei")
# states in which the idempotency key is free for another transaction
IDEMPOTENCY_KEY_FREE = ("REVERTED", "FOREIGN")
MAX_ERROR_CHARS = 500  # characters of a node's answer that are kept
ADDRESS_DIGITS = 40
INT64_HEX_DIGITS = 66  # with 0x
# Transfer(address,address,uint256)
TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"

# Rejections after which the node still has the transaction, or one that took its place.
KNOWN_TO_NODE = (NodeErrorKind.ALREADY_KNOWN, NodeErrorKind.NONCE_TOO_LOW)

# columns of the present signature, beside the hash
PRESENT = ("raw", "max_fee_wei", "priority_fee_wei")

# A new transaction replaces a foreign one at the same nonce.
_WRITTEN = (
    "cluster",
    "chain_id",
    "address",
    "nonce",
    "purpose",
    "job_id",
    "idempotency_key",
    "gas",
    "hash",
    "state",
    *PRESENT,
)
_VOID = ("done_at", "nonce_conflict_at", "sent_at", "error")
_ADD = insert_rows(
    "transactions",
    _WRITTEN,
    "ON CONFLICT ON CONSTRAINT transactions_nonce DO UPDATE SET "
    + ", ".join(
        [
            *(f"{name} = excluded.{name}" for name in _WRITTEN),
            *(f"{name} = NULL" for name in _VOID),
        ]
    )
    + " WHERE transactions.state = 'FOREIGN' RETURNING nonce, id",
)
_ADD_SIGNATURES = insert_rows(
    "signatures", ("transaction_id", "head", "hash", *PRESENT)
)
# By the signature's hash: there is no index of the present hashes.
_BROADCAST = text(
    """
    UPDATE transactions SET state = said.state, error = said.error, sent_at = now()
    FROM unnest(CAST(:hashes AS text[]), CAST(:states AS text[]), CAST(:errors AS text[])) AS said(hash, state, error)
    JOIN signatures ON signatures.hash = said.hash
    WHERE transactions.id = signatures.transaction_id AND transactions.hash = said.hash AND transactions.done_at IS NULL
    """
)
_CLOSE = text(
    """
    UPDATE transactions SET state = mined.state, block_number = mined.block_number, block_hash = mined.block_hash,
        hash = mined.hash, error = mined.error, gas_used = mined.gas_used, gas_price_wei = mined.gas_price_wei,
        earned = mined.earned, nonce_conflict_at = NULL, done_at = now(),
        raw = signatures.raw, max_fee_wei = signatures.max_fee_wei, priority_fee_wei = signatures.priority_fee_wei
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS mined(id bigint, state text, block_number bigint, block_hash text,
        hash text, error text, gas_used bigint, gas_price_wei numeric, earned numeric)
    LEFT JOIN signatures ON signatures.hash = mined.hash
    WHERE transactions.id = mined.id
    """
)


def _age(column: Any) -> Any:
    return func.extract("epoch", func.now() - column)


def _open_transactions(*which: Any) -> Select[Any]:
    """Which open transactions of a chain, with all their signatures."""
    columns, signed = TRANSACTIONS.c, SIGNATURES.c
    each = SIGNATURES.alias()
    by_age = func.array_agg(
        aggregate_order_by(each.c.hash, each.c.signed_at, each.c.hash)
    )
    hashes = (
        select(by_age)
        .where(each.c.transaction_id == columns.id)
        .correlate(TRANSACTIONS)
        .scalar_subquery()
    )
    of_chain = columns.chain_id == bindparam("chain_id")
    return (
        select(
            TRANSACTIONS,
            hashes.label("hashes"),
            func.coalesce(signed.head, 0).label("head"),
            _age(func.coalesce(columns.sent_at, columns.created_at)).label(
                "sent_age_s"
            ),
            _age(func.coalesce(signed.signed_at, columns.created_at)).label(
                "signed_age_s"
            ),
            _age(columns.nonce_conflict_at).label("nonce_conflict_age_s"),
        )
        .outerjoin(SIGNATURES, signed.hash == columns.hash)
        .where(of_chain, columns.state.in_(OPEN_STATES), *which)
        .order_by(columns.nonce)
    )


# These are asked at each block: SQLAlchemy would take longer to build them than to run
# them.
_OPEN_TRANSACTIONS = _open_transactions(TRANSACTIONS.c.cluster == bindparam("cluster"))
_AT_WORK = exists().where(
    PERIODIC_RUNS.c.cluster == TRANSACTIONS.c.cluster,
    PERIODIC_RUNS.c.name == SCANNED,
    PERIODIC_RUNS.c.succeeded_at > func.now() - timedelta(seconds=AT_WORK_S),
)
_ABANDONED = _open_transactions(
    TRANSACTIONS.c.cluster != bindparam("cluster"),
    TRANSACTIONS.c.address == bindparam("address"),
    TRANSACTIONS.c.nonce.between(bindparam("first"), bindparam("last")),
    ~_AT_WORK,
)
_OPEN_OF_WALLET = and_(
    TRANSACTIONS.c.chain_id == bindparam("chain_id"),
    TRANSACTIONS.c.address == bindparam("address"),
)  # other clusters may share the wallet
_OUTSTANDING = (
    select(
        *(
            TRANSACTIONS.c[name]
            for name in ("id", "nonce", "purpose", "address", "chain_id", "cluster")
        ),
        COST_WEI,
    )
    .where(
        or_(TRANSACTIONS.c.cluster == bindparam("cluster"), _OPEN_OF_WALLET),
        TRANSACTIONS.c.state.in_(OPEN_STATES),
    )
    .order_by(TRANSACTIONS.c.id)
)
# Those of a cluster that is down, or was renamed, stay open after they are mined: only
# its own fleet reads their receipts.
_PURPOSES = (
    select(TRANSACTIONS.c.purpose, func.count())
    .where(
        _OPEN_OF_WALLET,
        TRANSACTIONS.c.state.in_(OPEN_STATES),
        or_(TRANSACTIONS.c.cluster == bindparam("cluster"), _AT_WORK),
    )
    .group_by(TRANSACTIONS.c.purpose)
)


@dataclass(frozen=True, slots=True)
class Sent:
    """A transaction that is not known to be mined.

    `hashes` are those of all its signatures, oldest first; `raw` and `hash` are of the
    present one. Ages are in seconds: see wallet.pending_policy.Pending.
    """

    id: int
    address: str
    nonce: int
    hash: str
    raw: bytes
    hashes: tuple[str, ...]
    purpose: str
    job_id: str | None
    gas: int
    fees: Fees
    accepted: bool
    rejection: NodeErrorKind | None
    sent_age_s: float
    signed_age_s: float
    nonce_conflict_age_s: float | None
    head: int


@dataclass(frozen=True, slots=True)
class Mined:
    """A transaction with its receipt. `hash` is of the signature that was mined.
    `given_up`: this signature does nothing (see SentTransactions.cancel_with_replacement), so the
    write is not done. `earned` is what the called contract paid to the sender, in the
    smallest unit of credits. `gas_price_wei` is 0 if the node does not show it.
    """

    sent: Sent
    success: bool
    block_number: int
    block_hash: str
    hash: str
    gas_used: int
    given_up: bool = False
    gas_price_wei: int = 0
    earned: int = 0

    @classmethod
    def from_receipt(cls, sent: Sent, receipt: dict[str, Any]) -> "Mined":
        """From the answer of eth_getTransactionReceipt."""
        given_up = (
            sent.purpose != Purpose.FILL_NONCE
            and (receipt.get("to") or "").lower() == sent.address
        )
        return cls(
            sent,
            int(receipt["status"], 16) == 1 and not given_up,
            int(receipt["blockNumber"], 16),
            receipt["blockHash"],
            receipt["transactionHash"],
            int(receipt["gasUsed"], 16),
            given_up,
            int(receipt.get("effectiveGasPrice") or "0x0", 16),
            _earned(receipt, sent.address),
        )

    @property
    def result(self) -> str:
        """The result, as the counter of transactions names it."""
        if self.given_up:
            return "given_up"
        return "mined" if self.success else "reverted"


@dataclass(frozen=True, slots=True)
class OldestOpen:
    """The transaction that all others wait behind."""

    id: int
    nonce: int
    purpose: str
    address: str


@dataclass(frozen=True, slots=True)
class Outstanding:
    """The open transactions: the cluster's oldest one of any address, and the most that
    those of one address can cost, in Wei, with those of clusters that share it.
    """

    oldest: OldestOpen | None
    cost_wei: int


class TransactionStore:
    """The transactions of one cluster on one chain. Its methods raise
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """

    def __init__(self, engine: Engine, cluster: str, chain_id: int) -> None:
        self._engine = engine
        self._cluster = cluster
        self._chain_id = chain_id
        self._counters = Counters(engine, cluster)
        self._tag: bytes | None = None

    def instance_tag(self) -> bytes:
        """The bytes that the ledger appends to the data of each call. The first caller
        creates them.
        """
        if self._tag is None:
            new = upsert(INSTANCE_TAGS).values(
                cluster=self._cluster, tag=secrets.token_bytes(TAG_BYTES)
            )
            with self._engine.begin() as connection:
                connection.execute(new.on_conflict_do_nothing())
                here = INSTANCE_TAGS.c.cluster == self._cluster
                self._tag = bytes(
                    connection.execute(
                        select(INSTANCE_TAGS.c.tag).where(here)
                    ).scalar_one()
                )
        return self._tag

    def missing(self, idempotency_keys: Sequence[str]) -> set[str]:
        """Those of these idempotency keys that have no open or mined transaction."""
        any_of = TRANSACTIONS.c.idempotency_key == func.any(
            bindparam("idempotency_keys", list(idempotency_keys))
        )
        query = select(TRANSACTIONS.c.idempotency_key).where(
            TRANSACTIONS.c.cluster == self._cluster,
            any_of,
            TRANSACTIONS.c.state.not_in(IDEMPOTENCY_KEY_FREE),
        )
        with read_connection(self._engine) as connection:
            return set(idempotency_keys) - set(connection.scalars(query))

    def reverted(self, idempotency_keys: Mapping[str, str]) -> dict[str, int]:
        """How many transactions of each idempotency key were mined and reverted.
        `idempotency_keys`: the job of each. Keys without one are left out.
        """
        columns = TRANSACTIONS.c
        of_jobs = columns.job_id == func.any(
            bindparam("job_ids", sorted(set(idempotency_keys.values())))
        )
        any_of = columns.idempotency_key == func.any(
            bindparam("idempotency_keys", list(idempotency_keys))
        )
        query = select(columns.idempotency_key, func.count().label("times")).where(
            columns.cluster == self._cluster,
            of_jobs,
            any_of,
            columns.state == "REVERTED",
        )
        with read_connection(self._engine) as connection:
            rows = connection.execute(query.group_by(columns.idempotency_key))
            return dict(rows.all())

    def status_of(self, idempotency_key: str) -> TransactionStatus:
        """What became of the transaction of an idempotency key. A reverted or foreign
        transaction counts as none.
        """
        columns = TRANSACTIONS.c
        query = select(columns.state, columns.block_number).where(
            columns.cluster == self._cluster,
            columns.idempotency_key == idempotency_key,
            columns.state.not_in(IDEMPOTENCY_KEY_FREE),
        )
        with self._engine.connect() as connection:
            row = connection.execute(query).first()
        if row is None:
            return TransactionStatus()
        return _status(row.state, row.block_number)

    def outstanding(self, address: str) -> Outstanding:
        """The open transactions, in one cheap query: a look at the chain asks it at
        each block.
        """
        rows = self._of_wallet(_OUTSTANDING, address, cluster=self._cluster)
        oldest, cost_wei = None, 0
        for row in rows:
            if oldest is None and row.cluster == self._cluster:
                oldest = OldestOpen(row.id, row.nonce, row.purpose, row.address)
            if (row.chain_id, row.address) == (self._chain_id, address):
                cost_wei += int(row.cost_wei)
        return Outstanding(oldest, cost_wei)

    def open_by_purpose(self, address: str) -> Counter[str]:
        """How many transactions of this address are open, by purpose; those of clusters
        at work that share the wallet, too.
        """
        return Counter(dict(self._of_wallet(_PURPOSES, address, cluster=self._cluster)))

    def _of_wallet(
        self, query: Select[Any], address: str, **given: str | int
    ) -> Sequence[Any]:
        with read_connection(self._engine) as connection:
            return connection.execute(
                query, {"chain_id": self._chain_id, "address": address, **given}
            ).all()

    def next_nonce(self, address: str) -> int | None:
        """The nonce after the last signed one; None if there is none. All clusters
        count: they may share a wallet.
        """
        query = select(func.max(TRANSACTIONS.c.nonce)).where(*self._of(address))
        with read_connection(self._engine) as connection:
            last = connection.scalar(query)
        return None if last is None else int(last) + 1

    def at_nonces(
        self, address: str, nonces: Sequence[int]
    ) -> dict[int, tuple[str, str, bytes]]:
        """State, hash and bytes of the ledger's transactions at these nonces, open or
        not.
        """
        columns = TRANSACTIONS.c
        any_of = columns.nonce == func.any(bindparam("nonces", list(nonces)))
        query = select(columns.nonce, columns.state, columns.hash, columns.raw).where(
            *self._of(address), any_of
        )
        with read_connection(self._engine) as connection:
            return {
                row.nonce: (row.state, row.hash, row.raw)
                for row in connection.execute(query)
            }

    def add(self, rows: Sequence[dict[str, Any]], head: int) -> None:
        """Commit new transactions with their first signatures."""
        whole = [
            row
            | {"cluster": self._cluster, "chain_id": self._chain_id, "state": "SIGNED"}
            for row in rows
        ]
        with self._engine.begin() as connection:
            ids: dict[int, int] = dict(connection.execute(_ADD, as_rows(whole)).all())
            signed = [_signature(ids[row["nonce"]], row, head) for row in rows]
            connection.execute(_ADD_SIGNATURES, as_rows(signed))

    def replace(self, signed: Sequence[tuple[int, dict[str, Any]]], head: int) -> None:
        """Commit new signatures of open transactions."""
        with self._engine.begin() as connection:
            self._counters.add(
                connection, Counter({(Total.REPLACEMENTS, ""): len(signed)})
            )
            for row_id, row in signed:
                still_open = (
                    TRANSACTIONS.c.id == row_id,
                    TRANSACTIONS.c.state.in_(OPEN_STATES),
                )
                new = {**row, "state": "SIGNED", "sent_at": func.now(), "error": None}
                connection.execute(update(TRANSACTIONS).where(*still_open).values(new))
                # The same bytes may have been signed before, if a block with other
                # bytes of the transaction was lost.
                again = (
                    upsert(SIGNATURES)
                    .values(_signature(row_id, row, head))
                    .on_conflict_do_nothing()
                )
                connection.execute(again)

    def open_transactions(self) -> list[Sent]:
        """Signed transactions that are not known to be mined, also those of a former
        key, ordered by nonce.
        """
        given = {"cluster": self._cluster, "chain_id": self._chain_id}
        with read_connection(self._engine) as connection:
            return list(map(_sent, connection.execute(_OPEN_TRANSACTIONS, given)))

    def abandoned(self, address: str, first: int, last: int) -> list[Sent]:
        """Open transactions of this address with nonces from `first` to `last`, by
        nonce, of clusters that share the wallet and whose fleets are not at work.
        """
        nonces = {"first": first, "last": last}
        return list(
            map(
                _sent,
                self._of_wallet(_ABANDONED, address, cluster=self._cluster, **nonces),
            )
        )

    def broadcast(self, answers: Iterable[tuple[str, str | None]]) -> None:
        """Store the node's answer for each signature (by hash): None when the node
        accepted it. A signature that was replaced meanwhile is left alone.
        """
        hashes, states, errors = list[str](), list[str](), list[str | None]()
        for tx_hash, error in answers:
            hashes.append(tx_hash)
            states.append(_state_after(error))
            errors.append(
                None
                if error is None
                else sanitize_and_truncate(error)[:MAX_ERROR_CHARS]
            )
        with self._engine.begin() as connection:
            connection.execute(
                _BROADCAST, {"hashes": hashes, "states": states, "errors": errors}
            )

    def close(
        self, connection: Connection, mined: Sequence[Mined], errors: dict[int, str]
    ) -> None:
        """Store where transactions were mined, and why they reverted (`errors`, by id),
        in the given transaction.

        A transaction that was mined before, in a block that was lost, is not counted
        again.
        """
        self._counters.add(connection, counted(self._first_mined(connection, mined)))
        ends = [
            {
                "id": result.sent.id,
                "state": "MINED" if result.success else "REVERTED",
                "block_number": result.block_number,
                "block_hash": result.block_hash,
                "hash": result.hash,
                "error": sanitize_optional(errors.get(result.sent.id)),
                "gas_used": result.gas_used,
                "gas_price_wei": result.gas_price_wei,
                "earned": result.earned,
            }
            for result in mined
        ]
        connection.execute(_CLOSE, as_rows(ends))

    def mark_nonce_conflict(self, ids: Sequence[int]) -> None:
        """Store that the nonces of these transactions are mined, but it is not known
        with which transaction.
        """
        self._mark_open(
            ids,
            nonce_conflict_at=func.coalesce(
                TRANSACTIONS.c.nonce_conflict_at, func.now()
            ),
        )

    def clear_nonce_conflict(self, ids: Sequence[int]) -> None:
        """Store that the nonces of these transactions are not mined after all."""
        self._mark_open(ids, nonce_conflict_at=None)

    def mark_foreign(self, ids: Sequence[int]) -> None:
        """Store that foreign transactions have the nonces of these. The idempotency
        keys of these are free again.
        """
        values = {
            "state": "FOREIGN",
            "done_at": func.now(),
            "error": "another writer's transaction has this nonce",
        }
        with self._engine.begin() as connection:
            lost = self._update_open(connection, ids, values)
            self._counters.add(
                connection, Counter({(Total.TRANSACTIONS, "foreign"): lost})
            )

    def ours(self, hashes: Iterable[str]) -> set[str]:
        """The hashes, out of these, that are signatures of this ledger."""
        any_of = SIGNATURES.c.hash == func.any(bindparam("hashes", list(hashes)))
        with read_connection(self._engine) as connection:
            return set(connection.scalars(select(SIGNATURES.c.hash).where(any_of)))

    def writers(self, hashes: Iterable[str]) -> dict[str, str]:
        """The cluster of this ledger that signed each hash; other hashes are left
        out.
        """
        any_of = SIGNATURES.c.hash == func.any(bindparam("hashes", list(hashes)))
        query = (
            select(SIGNATURES.c.hash, TRANSACTIONS.c.cluster)
            .join(TRANSACTIONS, TRANSACTIONS.c.id == SIGNATURES.c.transaction_id)
            .where(any_of)
        )
        with read_connection(self._engine) as connection:
            return dict(connection.execute(query).all())

    def tags_of(self, clusters: Collection[str]) -> set[bytes]:
        """The instance tags of these clusters of the ledger."""
        query = select(INSTANCE_TAGS.c.tag).where(INSTANCE_TAGS.c.cluster.in_(clusters))
        with read_connection(self._engine) as connection:
            return set(map(bytes, connection.scalars(query)))

    def _mark_open(self, ids: Sequence[int], **values: Any) -> None:
        if not ids:
            return
        with self._engine.begin() as connection:
            self._update_open(connection, ids, values)

    def _update_open(
        self, connection: Connection, ids: Sequence[int], values: Mapping[str, Any]
    ) -> int:
        """Update the transactions, out of these, that are open; returns their
        number.
        """
        any_of = TRANSACTIONS.c.id == func.any(bindparam("ids", list(ids)))
        still_open = update(TRANSACTIONS).where(
            any_of, TRANSACTIONS.c.state.in_(OPEN_STATES)
        )
        return connection.execute(still_open.values(values)).rowcount

    def _first_mined(
        self, connection: Connection, mined: Sequence[Mined]
    ) -> list[Mined]:
        """The transactions, out of these, that were not known to be mined before."""
        any_of = TRANSACTIONS.c.id == func.any(
            bindparam("ids", [result.sent.id for result in mined])
        )
        fresh = (
            select(TRANSACTIONS.c.id)
            .where(any_of, TRANSACTIONS.c.gas_used.is_(None))
            .with_for_update()
        )
        ids = set(connection.scalars(fresh))
        return [result for result in mined if result.sent.id in ids]

    def _of(self, address: str) -> tuple[Any, ...]:
        return (
            TRANSACTIONS.c.chain_id == self._chain_id,
            TRANSACTIONS.c.address == address,
        )


def _status(state: str, block: int | None) -> TransactionStatus:
    if state in OPEN_STATES:
        return TransactionStatus(open=True)
    return TransactionStatus(mined_block=block)


def counted(mined: Iterable[Mined]) -> Amounts:
    """What these transactions add to the totals. Pure."""
    amounts: Amounts = Counter()
    for result in mined:
        amounts[Total.TRANSACTIONS, result.result] += 1
        amounts[Total.GAS, ""] += result.gas_used
        amounts[Total.FEES_WEI, ""] += result.gas_used * result.gas_price_wei
        amounts[Total.CREDITS, ""] += result.earned
    return amounts


def _earned(receipt: Mapping[str, Any], address: str) -> int:
    """What the called contract paid to this address, by the token's events. An event
    that is no transfer is left out.
    """
    payer = (receipt.get("to") or "").lower()
    earned = 0
    for entry in receipt.get("logs") or ():
        if _is_transfer(entry, payer, address):
            earned += int(entry["data"], 16)
    return earned


def _is_transfer(entry: Mapping[str, Any], payer: str, payee: str) -> bool:
    topics = [topic.lower() for topic in entry["topics"]]
    addresses = [f"0x{topic[-ADDRESS_DIGITS:]}" for topic in topics[1:]]
    transfer = [TRANSFER], [payer, payee], INT64_HEX_DIGITS
    return (topics[:1], addresses, len(entry["data"])) == transfer


def _signature(row_id: int, row: dict[str, Any], head: int) -> dict[str, Any]:
    return {
        "transaction_id": row_id,
        "head": head,
        **{name: row[name] for name in ("hash", *PRESENT)},
    }


def _state_after(error: str | None) -> str:
    """The state after the node's answer. A rejected transaction stays open: it is sent
    again; its receipt decides.
    """
    is_sent = error is None or classify(error) in KNOWN_TO_NODE
    return "SENT" if is_sent else "SIGNED"


def _sent(row: Any) -> Sent:
    fees = Fees(
        int(row.max_fee_wei),
        int(row.priority_fee_wei),
        legacy=bytes(row.raw[:1]) >= b"\xc0",
    )
    return Sent(
        id=row.id,
        address=row.address,
        nonce=row.nonce,
        hash=row.hash,
        raw=row.raw,
        hashes=tuple(row.hashes or (row.hash,)),
        purpose=row.purpose,
        job_id=row.job_id,
        gas=row.gas,
        fees=fees,
        accepted=row.state == "SENT",
        rejection=None if row.error is None else classify(row.error),
        sent_age_s=float(row.sent_age_s),
        signed_age_s=float(row.signed_age_s),
        nonce_conflict_age_s=optional_float(row.nonce_conflict_age_s),
        head=row.head,
    )
