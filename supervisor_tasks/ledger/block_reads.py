"""The blocks that were read, by number and hash, and how the ledger takes back what it
read in lost blocks.
"""

from collections.abc import Mapping

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    delete,
    func,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from supervisor_tasks.jobs.model import JobId
from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.tables import BLOCKS, CURSORS, JOBS, TRANSACTIONS

# extra blocks that are kept: receipts may be committed when the scan has long passed
# their blocks
MARGIN_BLOCKS = 64

# Opens the transactions again whose blocks were lost: they are sent again, and may have
# another result. If one had reverted and a newer one has its idempotency key, the older
# one keeps its nonce, under a key of its own.
REOPEN = text(
    """
    UPDATE transactions SET state = 'SIGNED', block_number = NULL, block_hash = NULL, error = NULL, done_at = NULL,
        nonce_conflict_at = NULL,
        idempotency_key = CASE WHEN state = 'REVERTED' AND EXISTS (
            SELECT FROM transactions AS newer
            WHERE newer.cluster = transactions.cluster AND newer.idempotency_key = transactions.idempotency_key
                AND newer.id > transactions.id
        ) THEN idempotency_key || '#' || nonce ELSE idempotency_key END
    WHERE cluster = :cluster AND block_number > :fork AND state IN ('MINED', 'REVERTED')
    """
)


class Blocks:
    """The last blocks of one cluster's chain, with the hashes that they had when they
    were read. Its methods raise LedgerUnavailableError, when the database does not
    answer; a retry helps.
    """

    def __init__(self, engine: Engine, cluster: str, depth: int) -> None:
        self._engine = engine
        self._cluster = cluster
        self.kept = depth + 1 + MARGIN_BLOCKS

    def kept_hashes(self) -> dict[int, str]:
        """The hash of each block that is kept."""
        query = select(BLOCKS.c.number, BLOCKS.c.hash).where(
            BLOCKS.c.cluster == self._cluster
        )
        with read_connection(self._engine) as connection:
            return dict(connection.execute(query).all())

    def rewind_obstacle(self, block: int) -> str | None:
        """Why the ledger cannot go back to that block, or None if it can. It cannot go
        beyond the blocks that are kept: below them it has no hashes to compare with the
        node's, and above them it has read nothing.
        """
        ends = select(func.min(BLOCKS.c.number), func.max(BLOCKS.c.number)).where(
            BLOCKS.c.cluster == self._cluster
        )
        with read_connection(self._engine) as connection:
            lowest, highest = connection.execute(ends).one()
        if lowest is not None and lowest <= block <= highest:
            return None
        kept = "none is kept yet"
        if lowest is not None:
            kept = f"{lowest} is the first that is kept, {highest} the last"
        return f"found block {block}; expected one whose hash the ledger knows: {kept}"

    def store(self, connection: Connection, hashes: Mapping[int, str]) -> None:
        """Store blocks that were read, in the given transaction. Blocks far below them
        are deleted.
        """
        rows = [
            {"cluster": self._cluster, "number": number, "hash": block_hash}
            for number, block_hash in hashes.items()
        ]
        new = insert(BLOCKS)
        upsert = new.on_conflict_do_update(
            index_elements=["cluster", "number"], set_={"hash": new.excluded.hash}
        )
        connection.execute(upsert, rows)
        far_below = (
            BLOCKS.c.cluster == self._cluster,
            BLOCKS.c.number <= max(hashes) - self.kept,
        )
        connection.execute(delete(BLOCKS).where(*far_below))

    def mined_in(self, above: int, up_to: int) -> set[tuple[int, str]]:
        """The blocks of this range in which transactions of the ledger were mined, with
        their hashes. A number can have two hashes if a block was lost.
        """
        number = TRANSACTIONS.c.block_number
        return self._mined_in(
            select(number, TRANSACTIONS.c.block_hash).where(
                number > above, number <= up_to
            )
        )

    def last_mined_in(self) -> set[tuple[int, str]]:
        """The blocks in which the last 1000 transactions of the ledger were mined, with
        their hashes.
        """
        number = TRANSACTIONS.c.block_number
        mined = select(number, TRANSACTIONS.c.block_hash).where(number.is_not(None))
        return self._mined_in(mined.order_by(number.desc()).limit(1000))

    def _mined_in(self, query: Select[tuple[int, str]]) -> set[tuple[int, str]]:
        with read_connection(self._engine) as connection:
            rows = connection.execute(
                query.where(TRANSACTIONS.c.cluster == self._cluster)
            )
            return {(row.block_number, row.block_hash) for row in rows}

    def jobs_with_events_above(self, fork: int) -> list[JobId]:
        """The jobs with events above the block `fork`, and those that an earlier fork
        left in doubt.
        """
        return self._jobs(
            or_(
                JOBS.c.last_event_block > fork, JOBS.c.reorg_deadline_block.is_not(None)
            )
        )

    def jobs_whose_doubt_is_over(self, block: int) -> list[JobId]:
        """The jobs whose doubt, which a reorganisation left, ends at this block or
        before it.
        """
        return self._jobs(JOBS.c.reorg_deadline_block <= block)

    def take_back(self, connection: Connection, fork: int) -> None:
        """Go back to the block `fork`, in the given transaction. Transactions mined
        above it are open again, and all streams must read the blocks above it again.
        """
        above = {"cluster": self._cluster, "fork": fork}
        connection.execute(REOPEN, above)
        connection.execute(
            delete(BLOCKS).where(
                BLOCKS.c.cluster == self._cluster, BLOCKS.c.number > fork
            )
        )
        ahead = CURSORS.c.cluster == self._cluster, CURSORS.c.block_number > fork
        connection.execute(
            update(CURSORS)
            .where(*ahead)
            .values(block_number=fork, block_hash=self._hash(fork))
        )

    def _hash(self, number: int) -> ColumnElement[str]:
        here = BLOCKS.c.cluster == self._cluster, BLOCKS.c.number == number
        return func.coalesce(select(BLOCKS.c.hash).where(*here).scalar_subquery(), "")

    def _jobs(self, condition: ColumnElement[bool]) -> list[JobId]:
        query = (
            select(JOBS.c.job_id)
            .where(JOBS.c.cluster == self._cluster, condition)
            .order_by(JOBS.c.job_id)
        )
        with read_connection(self._engine) as connection:
            return list(connection.scalars(query))


class Cursors:
    """How far each stream of one cluster's chain was read. Its methods raise
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    def of(self, stream: str) -> tuple[int, str] | None:
        """The last block of a stream that was read, and its hash; None when none was
        read.
        """
        here = CURSORS.c.cluster == self._cluster, CURSORS.c.stream == stream
        with read_connection(self._engine) as connection:
            row = connection.execute(
                select(CURSORS.c.block_number, CURSORS.c.block_hash).where(*here)
            ).first()
        return None if row is None else (row.block_number, row.block_hash)

    def set(
        self, connection: Connection, stream: str, block_number: int, block_hash: str
    ) -> None:
        """Store how far a stream was read, in the given transaction."""
        place = {"block_number": block_number, "block_hash": block_hash}
        row = insert(CURSORS).values(cluster=self._cluster, stream=stream, **place)
        connection.execute(
            row.on_conflict_do_update(index_elements=["cluster", "stream"], set_=place)
        )
