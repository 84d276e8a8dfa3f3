"""The wallet's part of the ledger: transactions, all their signatures, and the mark by which the ledger knows its own."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, func, insert, select, update
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.dialects.postgresql import insert as upsert

from supervisor_tasks.chain.fees import Fees
from supervisor_tasks.chain.refusals import Refusal, meaning
from supervisor_tasks.chain.signed import MARK_BYTES
from supervisor_tasks.ledger.database import asking
from supervisor_tasks.ledger.models import MarkRow, SignatureRow, TransactionRow
from supervisor_tasks.ledger.rows import storable
from supervisor_tasks.registration import Fate

TRANSACTIONS = TransactionRow.metadata.tables["transactions"]
SIGNATURES = SignatureRow.metadata.tables["signatures"]
MARKS = MarkRow.metadata.tables["marks"]

FILL = "fill"  # the purpose of what only uses a nonce up
OPEN = ("SIGNED", "SENT")
INTENT_FREE = ("REVERTED", "FOREIGN")  # the intent may be written again
SAID = 500  # characters of a node's words that are kept

# After a node's refusal it is still known to have the transaction, or one that took its place.
NODE_HAS_IT = (Refusal.ALREADY_KNOWN, Refusal.NONCE_TOO_LOW)


@dataclass(frozen=True, slots=True)
class Sent:
    """A transaction that is not known to be mined; `hashes` are those of all its signatures, oldest first, `raw` and `hash` of
    the present one.
    Ages in seconds: see remedies.Pending.
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
    refusal: Refusal | None
    sent_age_s: float
    signed_age_s: float
    contested_age_s: float | None
    head: int

    @property
    def cost_wei(self) -> int:
        """The most that it can cost."""
        return self.gas * self.fees.max_fee_wei


@dataclass(frozen=True, slots=True)
class Mined:
    """A transaction with its receipt; `hash` is of the signature that was mined. `given_up`: that one does nothing (see
    Wallet.give_up), so its intent is not done.
    """

    sent: Sent
    success: bool
    block_number: int
    block_hash: str
    hash: str
    gas_used: int
    given_up: bool = False

    @classmethod
    def from_receipt(cls, sent: Sent, receipt: dict[str, Any]) -> "Mined":
        """What eth_getTransactionReceipt says."""
        given_up = sent.purpose != FILL and (receipt.get("to") or "").lower() == sent.address
        return cls(
            sent,
            int(receipt["status"], 16) == 1 and not given_up,
            int(receipt["blockNumber"], 16),
            receipt["blockHash"],
            receipt["transactionHash"],
            int(receipt["gasUsed"], 16),
            given_up,
        )


@dataclass(frozen=True, slots=True)
class OldestOpen:
    """The transaction that all others wait behind."""

    id: int
    nonce: int
    purpose: str
    address: str


class Book:
    """The transactions of one cluster on one chain."""

    def __init__(self, engine: Engine, cluster: str, chain_id: int) -> None:
        self._engine = engine
        self._cluster = cluster
        self._chain_id = chain_id
        self._mark: bytes | None = None

    def mark(self) -> bytes:
        """What the ledger puts behind the data of each call. Made when it is asked for the first time."""
        if self._mark is None:
            new = upsert(MARKS).values(cluster=self._cluster, mark=secrets.token_bytes(MARK_BYTES))
            with self._engine.begin() as connection:
                connection.execute(new.on_conflict_do_nothing())
                here = MARKS.c.cluster == self._cluster
                self._mark = bytes(connection.execute(select(MARKS.c.mark).where(here)).scalar_one())
        return self._mark

    def missing(self, intents: Sequence[str]) -> set[str]:
        """Those of the intents for which there is no open or mined transaction."""
        any_of = TRANSACTIONS.c.intent == func.any(bindparam("intents", list(intents)))
        query = select(TRANSACTIONS.c.intent).where(
            TRANSACTIONS.c.cluster == self._cluster, any_of, TRANSACTIONS.c.state.not_in(INTENT_FREE)
        )
        with asking(self._engine) as connection:
            return set(intents) - set(connection.scalars(query))

    def reverted(self, intents: Mapping[str, str]) -> dict[str, int]:
        """How many transactions of these intents (with the job of each) were mined and reverted; none is left out."""
        columns = TRANSACTIONS.c
        of_jobs = columns.job_id == func.any(bindparam("job_ids", sorted(set(intents.values()))))
        any_of = columns.intent == func.any(bindparam("intents", list(intents)))
        query = select(columns.intent, func.count().label("times")).where(
            columns.cluster == self._cluster, of_jobs, any_of, columns.state == "REVERTED"
        )
        with asking(self._engine) as connection:
            return {row.intent: row.times for row in connection.execute(query.group_by(columns.intent))}

    def fate(self, intent: str) -> Fate:
        """What became of the transaction of an intent; one that reverted, or whose nonce is somebody else's, is none."""
        columns = TRANSACTIONS.c
        query = select(columns.state, columns.block_number).where(
            columns.cluster == self._cluster, columns.intent == intent, columns.state.not_in(INTENT_FREE)
        )
        with self._engine.connect() as connection:
            row = connection.execute(query).first()
        return Fate() if row is None else _fate(row.state, row.block_number)

    def oldest_open(self) -> OldestOpen | None:
        """The transaction that has been open for longest."""
        columns = TRANSACTIONS.c
        query = select(columns.id, columns.nonce, columns.purpose, columns.address).where(
            columns.cluster == self._cluster, columns.state.in_(OPEN)
        )
        with asking(self._engine) as connection:
            row = connection.execute(query.order_by(columns.id).limit(1)).first()
        return None if row is None else OldestOpen(row.id, row.nonce, row.purpose, row.address)

    def next_nonce(self, address: str) -> int | None:
        """The nonce behind the last one that was ever signed with; None when none was. Clusters may share a wallet."""
        query = select(func.max(TRANSACTIONS.c.nonce)).where(*self._of(address))
        with asking(self._engine) as connection:
            last = connection.scalar(query)
        return None if last is None else int(last) + 1

    def at_nonces(self, address: str, nonces: Sequence[int]) -> dict[int, tuple[str, str, bytes]]:
        """State, hash and bytes of what the ledger has at these nonces, open or not."""
        columns = TRANSACTIONS.c
        any_of = columns.nonce == func.any(bindparam("nonces", list(nonces)))
        query = select(columns.nonce, columns.state, columns.hash, columns.raw).where(*self._of(address), any_of)
        with asking(self._engine) as connection:
            return {row.nonce: (row.state, row.hash, row.raw) for row in connection.execute(query)}

    def add(self, rows: Sequence[dict[str, Any]], head: int) -> None:
        """Commit new transactions with their first signatures. One at a nonce that was somebody else's takes its place."""
        whole = [row | {"cluster": self._cluster, "chain_id": self._chain_id, "state": "SIGNED"} for row in rows]
        new = upsert(TRANSACTIONS).values(whole)
        again = {name: new.excluded[name] for name in whole[0]} | dict.fromkeys(
            ("done_at", "contested_at", "sent_at", "error")
        )
        placed = new.on_conflict_do_update(
            constraint="transactions_nonce", set_=again, where=TRANSACTIONS.c.state == "FOREIGN"
        ).returning(TRANSACTIONS.c.nonce, TRANSACTIONS.c.id)
        with self._engine.begin() as connection:
            ids = {row.nonce: row.id for row in connection.execute(placed)}
            connection.execute(insert(SIGNATURES), [_signature(ids[row["nonce"]], row, head) for row in rows])

    def replace(self, signed: Sequence[tuple[int, dict[str, Any]]], head: int) -> None:
        """Commit new signatures of open transactions."""
        with self._engine.begin() as connection:
            for row_id, row in signed:
                still_open = TRANSACTIONS.c.id == row_id, TRANSACTIONS.c.state.in_(OPEN)
                new = {**row, "state": "SIGNED", "sent_at": func.now(), "error": None}
                connection.execute(update(TRANSACTIONS).where(*still_open).values(new))
                # The same bytes may have been signed before, if what was mined with others has lost its block.
                again = upsert(SIGNATURES).values(_signature(row_id, row, head)).on_conflict_do_nothing()
                connection.execute(again)

    def open_transactions(self) -> list[Sent]:
        """What was signed and is not known to be mined, in the order of the nonces; of a former key as well."""
        columns, signed = TRANSACTIONS.c, SIGNATURES.c
        each = SIGNATURES.alias()
        of_it = each.c.transaction_id == columns.id
        by_age = func.array_agg(aggregate_order_by(each.c.hash, each.c.signed_at, each.c.hash))
        hashes = select(by_age).where(of_it).correlate(TRANSACTIONS).scalar_subquery()
        present = signed.hash == columns.hash
        query = (
            select(
                TRANSACTIONS,
                hashes.label("hashes"),
                func.coalesce(signed.head, 0).label("head"),
                _age(func.coalesce(columns.sent_at, columns.created_at)).label("sent_age_s"),
                _age(func.coalesce(signed.signed_at, columns.created_at)).label("signed_age_s"),
                _age(columns.contested_at).label("contested_age_s"),
            )
            .outerjoin(SIGNATURES, present)
            .where(columns.cluster == self._cluster, columns.chain_id == self._chain_id, columns.state.in_(OPEN))
            .order_by(columns.nonce)
        )
        with asking(self._engine) as connection:
            return [_sent(row) for row in connection.execute(query)]

    def broadcast(self, answers: Iterable[tuple[str, str | None]]) -> None:
        """Write down what the node said of signatures (by hash): None when it took them. A signature that was replaced
        meanwhile is left alone.
        """
        marks = [
            {
                "b_hash": tx_hash,
                "b_state": _state_after(words),
                "b_error": None if words is None else storable(words)[:SAID],
            }
            for tx_hash, words in answers
        ]
        signed = SIGNATURES.c.hash == bindparam("b_hash")
        its_id = (
            select(SIGNATURES.c.transaction_id).where(signed).scalar_subquery()
        )  # there is no index of present hashes
        present = TRANSACTIONS.c.hash == bindparam("b_hash"), TRANSACTIONS.c.done_at.is_(None)
        with self._engine.begin() as connection:
            connection.execute(
                update(TRANSACTIONS)
                .where(TRANSACTIONS.c.id == its_id, *present)
                .values(state=bindparam("b_state"), error=bindparam("b_error"), sent_at=func.now()),
                marks,
            )

    def close(self, connection: Connection, mined: Sequence[Mined], errors: dict[int, str]) -> None:
        """Write down, within a transaction of the ledger, where they were mined, and why those that reverted did."""
        marks = [
            {
                "b_id": result.sent.id,
                "b_state": "MINED" if result.success else "REVERTED",
                "b_block": result.block_number,
                "b_block_hash": result.block_hash,
                "b_hash": result.hash,
                "b_error": storable(errors[result.sent.id]) if result.sent.id in errors else None,
            }
            for result in mined
        ]
        signature = SIGNATURES.c.hash == bindparam("b_hash")
        present = {name: select(SIGNATURES.c[name]).where(signature).scalar_subquery() for name in PRESENT}
        connection.execute(
            update(TRANSACTIONS)
            .where(TRANSACTIONS.c.id == bindparam("b_id"))
            .values(
                state=bindparam("b_state"),
                block_number=bindparam("b_block"),
                block_hash=bindparam("b_block_hash"),
                hash=bindparam("b_hash"),
                error=bindparam("b_error"),
                contested_at=None,
                done_at=func.now(),
                **present,
            ),
            marks,
        )

    def contest(self, ids: Sequence[int]) -> None:
        """The nonces of these are mined, and it is not known with what."""
        self._mark_open(ids, contested_at=func.coalesce(TRANSACTIONS.c.contested_at, func.now()))

    def uncontest(self, ids: Sequence[int]) -> None:
        """The nonces of these are not mined after all."""
        self._mark_open(ids, contested_at=None)

    def foreign(self, ids: Sequence[int]) -> None:
        """The nonces of these are somebody else's: their intents are free."""
        self._mark_open(ids, state="FOREIGN", done_at=func.now(), error="somebody else's transaction has this nonce")

    def ours(self, hashes: Iterable[str]) -> set[str]:
        """Those of the hashes that this ledger has signed."""
        any_of = SIGNATURES.c.hash == func.any(bindparam("hashes", list(hashes)))
        with asking(self._engine) as connection:
            return set(connection.scalars(select(SIGNATURES.c.hash).where(any_of)))

    def _mark_open(self, ids: Sequence[int], **values: Any) -> None:
        if not ids:
            return
        any_of = TRANSACTIONS.c.id == func.any(bindparam("ids", list(ids)))
        with self._engine.begin() as connection:
            connection.execute(update(TRANSACTIONS).where(any_of, TRANSACTIONS.c.state.in_(OPEN)).values(values))

    def _of(self, address: str) -> tuple[Any, ...]:
        return TRANSACTIONS.c.chain_id == self._chain_id, TRANSACTIONS.c.address == address


def _fate(state: str, block: int | None) -> Fate:
    return Fate(open=True) if state in OPEN else Fate(mined_block=block)


PRESENT = ("raw", "max_fee_wei", "priority_fee_wei")  # what a row shows of its present signature, beside the hash


def _signature(row_id: int, row: dict[str, Any], head: int) -> dict[str, Any]:
    return {"transaction_id": row_id, "head": head, **{name: row[name] for name in ("hash", *PRESENT)}}


def _age(column: Any) -> Any:
    return func.extract("epoch", func.now() - column)


def _state_after(words: str | None) -> str:
    """What a node refuses is kept open: its receipt decides, and it is sent again."""
    return "SENT" if words is None or meaning(words) in NODE_HAS_IT else "SIGNED"


def _sent(row: Any) -> Sent:
    fees = Fees(int(row.max_fee_wei), int(row.priority_fee_wei), legacy=bytes(row.raw[:1]) >= b"\xc0")
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
        refusal=None if row.error is None else meaning(row.error),
        sent_age_s=float(row.sent_age_s),
        signed_age_s=float(row.signed_age_s),
        contested_age_s=None if row.contested_age_s is None else float(row.contested_age_s),
        head=row.head,
    )
