"""What other ledgers claimed with our key: left alone, until the operator says that the ledger which made a mark is lost."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, bindparam, delete, func, select
from sqlalchemy.dialects.postgresql import insert

from supervisor_tasks.events import Claimed
from supervisor_tasks.job import Definition, JobId
from supervisor_tasks.ledger.database import asking
from supervisor_tasks.ledger.models import OthersClaimRow, TakenMarkRow
from supervisor_tasks.ledger.rows import details

CLAIMS = OthersClaimRow.metadata.tables["others_claims"]
TAKEN = TakenMarkRow.metadata.tables["taken_marks"]


@dataclass(frozen=True, slots=True)
class OthersClaim:
    """A claim, and the mark of the ledger that made it."""

    mark: bytes
    claim: Claimed


class Others:
    """The other ledgers, as one cluster sees them."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    def keep(self, claims: Collection[OthersClaim]) -> None:
        """Remember claims; the last one of a job counts."""
        rows = [
            {"cluster": self._cluster, "job_id": entry.claim.job_id, "mark": entry.mark, "claim": details(entry.claim)}
            for entry in claims
        ]
        if not rows:
            return
        new = insert(CLAIMS)
        last = {name: new.excluded[name] for name in ("mark", "claim")}
        with self._engine.begin() as connection:
            connection.execute(new.on_conflict_do_update(index_elements=["cluster", "job_id"], set_=last), rows)

    def all(self) -> dict[JobId, OthersClaim]:
        """All that are remembered."""
        with asking(self._engine) as connection:
            rows = connection.execute(select(CLAIMS).where(CLAIMS.c.cluster == self._cluster))
            return {JobId(row.job_id): OthersClaim(bytes(row.mark), _claim(row.claim)) for row in rows}

    def count(self) -> Counter[bytes]:
        """The claims of each mark that is not ours."""
        query = select(CLAIMS.c.mark).where(CLAIMS.c.cluster == self._cluster)
        taken = self.taken()
        with asking(self._engine) as connection:
            return Counter(mark for row in connection.scalars(query) if (mark := bytes(row)) not in taken)

    def forget(self, job_ids: Sequence[JobId]) -> None:
        """These are over."""
        any_of = CLAIMS.c.job_id == func.any(bindparam("job_ids", list(job_ids)))
        with self._engine.begin() as connection:
            connection.execute(delete(CLAIMS).where(CLAIMS.c.cluster == self._cluster, any_of))

    def taken(self) -> set[bytes]:
        """The marks that are ours by the operator's word."""
        with asking(self._engine) as connection:
            return {
                bytes(mark) for mark in connection.scalars(select(TAKEN.c.mark).where(TAKEN.c.cluster == self._cluster))
            }

    def take_over(self, mark: bytes) -> None:
        """Make ours what bears the mark, also what is claimed with it from now on."""
        with self._engine.begin() as connection:
            connection.execute(insert(TAKEN).values(cluster=self._cluster, mark=mark).on_conflict_do_nothing())


def _claim(stored: Mapping[str, Any]) -> Claimed:
    about = dict(stored) | {"definition": Definition(**stored["definition"]), "at": tuple(stored["at"])}
    return Claimed(**about)
