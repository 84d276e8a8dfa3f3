"""Which cluster of the ledger works with a wallet.

Two clusters with one wallet take each other's jobs from the contract, so a second one
is a mistake unless both allow it. A cluster holds its wallet until it starts with
another one, or an operator releases it: a fleet that is down for a while keeps it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, delete, func, select, text
from sqlalchemy.dialects.postgresql import insert

from supervisor_tasks.errors import PermanentError
from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.tables import JOBS, WALLET_HOLDERS

# two clusters may start at once
_ONE_AT_A_TIME = text("LOCK TABLE wallet_holders IN SHARE ROW EXCLUSIVE MODE")
# the chain of the blocks that the cluster has read; no row before it has read any. A
# released wallet leaves the transactions.
_CHAIN_READ = text(
    """
    SELECT COALESCE(
        (SELECT chain_id FROM wallet_holders WHERE cluster = :cluster),
        (SELECT chain_id FROM transactions WHERE cluster = :cluster ORDER BY id DESC LIMIT 1)
    ) WHERE EXISTS (SELECT FROM cursors WHERE cluster = :cluster)
    """
)


class WalletTakenError(PermanentError):
    """Another cluster of the ledger works with the wallet. A retry is useless until the
    operator acts.
    """

    def __init__(
        self,
        cluster: str,
        chain_id: int,
        address: str,
        other: str,
        *,
        asked_to_share: bool,
    ) -> None:
        wallet = f"the wallet {address} of chain {chain_id}, with which the cluster {other!r} of this ledger works"
        where = "on both"
        if asked_to_share:
            where = f"on the cluster {other!r} too, and start its workers again"
        super().__init__(
            f"ETH_PRIVATE_KEY: found {wallet}; expected a wallet of its own for the cluster {cluster!r}. Give it the key of"
            f" another wallet. If both may claim jobs with one wallet, set ALLOW_CLUSTERS_TO_SHARE_A_WALLET=true {where}."
            f" If {other!r} is gone for good: CLUSTER_NAME={other} supervisor cluster release-wallet"
        )


class OtherChainError(PermanentError):
    """The ledger has read another chain for this cluster. Its blocks, jobs and
    transactions are not on the chain of the settings. A retry is useless until the
    operator acts.
    """

    def __init__(self, cluster: str, chain_id: int, read: int) -> None:
        super().__init__(
            f"CHAIN_ID: found {chain_id}; expected {read}, the chain that the ledger has read for the cluster {cluster!r}."
            f" If CHAIN_ID is wrong, set CHAIN_ID={read}. If the cluster moves to chain {chain_id}, let its jobs end with"
            f" CHAIN_ID={read} first, then give the fleet another CLUSTER_NAME: docs/how-to/change-keys.md"
        )


@dataclass(frozen=True, slots=True)
class HeldWallet:
    """A wallet that a cluster works with, and when a worker with its key last started.
    `shared`: the cluster's settings let other clusters work with it too.
    """

    chain_id: int
    address: str
    shared: bool
    started_at: datetime


class WalletHolders:
    """The wallet of one cluster, and those of the ledger's other clusters. Its methods
    raise LedgerUnavailableError, when the database does not answer; a retry helps.
    """

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    def hold(self, chain_id: int, address: str, *, shared: bool) -> None:
        """Store that the cluster works with this wallet, and with no other one. Safe to
        repeat. Raises WalletTakenError, when another cluster has the wallet and not
        both share it, or OtherChainError, when the ledger has read another chain for
        this cluster; a retry does not help until the operator acts.
        """
        columns = WALLET_HOLDERS.c
        this = (
            columns.chain_id == chain_id,
            columns.address == address,
            columns.cluster != self._cluster,
        )
        others = (
            select(columns.cluster, columns.shared)
            .where(*this)
            .order_by(columns.cluster)
        )
        row = insert(WALLET_HOLDERS).values(
            cluster=self._cluster, chain_id=chain_id, address=address, shared=shared
        )
        new = {
            "chain_id": row.excluded.chain_id,
            "address": row.excluded.address,
            "shared": row.excluded.shared,
            "started_at": func.now(),
        }
        with self._engine.begin() as connection:
            connection.execute(_ONE_AT_A_TIME)
            read = connection.scalar(_CHAIN_READ, {"cluster": self._cluster})
            if read not in (None, chain_id):
                raise OtherChainError(self._cluster, chain_id, read)
            for other in connection.execute(others):
                if not (shared and other.shared):
                    raise WalletTakenError(
                        self._cluster,
                        chain_id,
                        address,
                        other.cluster,
                        asked_to_share=shared,
                    )
            connection.execute(
                row.on_conflict_do_update(index_elements=["cluster"], set_=new)
            )

    def held(self) -> HeldWallet | None:
        """The wallet that the cluster works with; None before its first start."""
        query = select(
            WALLET_HOLDERS.c.chain_id,
            WALLET_HOLDERS.c.address,
            WALLET_HOLDERS.c.shared,
            WALLET_HOLDERS.c.started_at,
        )
        with read_connection(self._engine) as connection:
            row = connection.execute(
                query.where(WALLET_HOLDERS.c.cluster == self._cluster)
            ).one_or_none()
        return None if row is None else HeldWallet(*row)

    def partners(self, chain_id: int, address: str) -> set[str]:
        """The other clusters of the ledger that work with this wallet."""
        columns = WALLET_HOLDERS.c
        query = select(columns.cluster).where(
            columns.chain_id == chain_id,
            columns.address == address,
            columns.cluster != self._cluster,
        )
        with read_connection(self._engine) as connection:
            return set(connection.scalars(query))

    def claims_elsewhere(self, job_ids: Collection[str]) -> set[str]:
        """The claims of these jobs, by their claim keys, that another cluster with a
        wallet has in the ledger. A cluster that has released its wallet is gone.
        """
        holds = WALLET_HOLDERS.c.cluster == JOBS.c.cluster
        query = select(JOBS.c.claim_key).where(
            holds, WALLET_HOLDERS.c.cluster != self._cluster, JOBS.c.job_id.in_(job_ids)
        )
        with read_connection(self._engine) as connection:
            return set(connection.scalars(query))

    def release(self) -> None:
        """Let another cluster work with the wallet. The cluster takes it again when its
        fleet starts.
        """
        with self._engine.begin() as connection:
            connection.execute(
                delete(WALLET_HOLDERS).where(WALLET_HOLDERS.c.cluster == self._cluster)
            )
