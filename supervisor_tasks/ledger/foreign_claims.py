"""Claims that other ledgers made with the key of this provider.

This ledger leaves them alone until the operator states that the ledger behind a tag is
lost.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, bindparam, delete, func, select
from sqlalchemy.dialects.postgresql import insert

from supervisor_tasks.jobs.events import Claimed
from supervisor_tasks.jobs.model import Definition, JobId
from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.mapping import event_to_json
from supervisor_tasks.ledger.tables import ADOPTED_TAGS, FOREIGN_CLAIMS


@dataclass(frozen=True, slots=True)
class ForeignClaim:
    """A claim, and the tag of the ledger that made it."""

    tag: bytes
    claim: Claimed


class ForeignClaims:
    """The claims of other ledgers that one cluster has seen. Its methods raise
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    def store(self, claims: Collection[ForeignClaim]) -> None:
        """Store claims. The last claim of a job replaces the ones before."""
        rows = [
            {
                "cluster": self._cluster,
                "job_id": entry.claim.job_id,
                "tag": entry.tag,
                "claim": event_to_json(entry.claim),
            }
            for entry in claims
        ]
        if not rows:
            return
        new = insert(FOREIGN_CLAIMS)
        last = {"tag": new.excluded.tag, "claim": new.excluded.claim}
        with self._engine.begin() as connection:
            connection.execute(
                new.on_conflict_do_update(
                    index_elements=["cluster", "job_id"], set_=last
                ),
                rows,
            )

    def all(self) -> dict[JobId, ForeignClaim]:
        """All stored claims."""
        with read_connection(self._engine) as connection:
            rows = connection.execute(
                select(FOREIGN_CLAIMS).where(FOREIGN_CLAIMS.c.cluster == self._cluster)
            )
            return {
                JobId(row.job_id): ForeignClaim(bytes(row.tag), _claim(row.claim))
                for row in rows
            }

    def count(self) -> Counter[bytes]:
        """How many claims each tag has. Adopted tags are left out."""
        query = select(FOREIGN_CLAIMS.c.tag).where(
            FOREIGN_CLAIMS.c.cluster == self._cluster
        )
        adopted = self.adopted_tags()
        with read_connection(self._engine) as connection:
            numbers = Counter(map(bytes, connection.scalars(query)))
        for tag in adopted:
            del numbers[tag]  # a Counter accepts a tag that it does not have
        return numbers

    def delete(self, job_ids: Sequence[JobId]) -> None:
        """Delete the claims of these jobs: they are over."""
        any_of = FOREIGN_CLAIMS.c.job_id == func.any(
            bindparam("job_ids", list(job_ids))
        )
        with self._engine.begin() as connection:
            connection.execute(
                delete(FOREIGN_CLAIMS).where(
                    FOREIGN_CLAIMS.c.cluster == self._cluster, any_of
                )
            )

    def adopted_tags(self) -> set[bytes]:
        """The tags that the operator has made this ledger's own."""
        return self.adopted_tags_of([self._cluster])

    def adopted_tags_of(self, clusters: Collection[str]) -> set[bytes]:
        """The tags that the operator has made the own ones of these clusters."""
        query = select(ADOPTED_TAGS.c.tag).where(ADOPTED_TAGS.c.cluster.in_(clusters))
        with read_connection(self._engine) as connection:
            return set(map(bytes, connection.scalars(query)))

    def adopt_tag(self, tag: bytes) -> None:
        """Make the claims with this tag this ledger's own, also those that are made
        with it from now on.
        """
        with self._engine.begin() as connection:
            connection.execute(
                insert(ADOPTED_TAGS)
                .values(cluster=self._cluster, tag=tag)
                .on_conflict_do_nothing()
            )


def _claim(stored: Mapping[str, Any]) -> Claimed:
    changed = {
        "definition": Definition(**stored["definition"]),
        "at": tuple(stored["at"]),
    }
    return Claimed(**(dict(stored) | changed))
