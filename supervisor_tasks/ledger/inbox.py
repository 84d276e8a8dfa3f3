"""The inbox: what plugins said. The process that they call writes it (grpc_callbacks/inbox.py), the witness reads it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, exists, func, or_, select, text, tuple_, update
from sqlalchemy.dialects.postgresql import insert

from supervisor_tasks.job import JobId, SlurmId
from supervisor_tasks.ledger.database import asking
from supervisor_tasks.ledger.facts import FACTS, INT, Fact
from supervisor_tasks.ledger.models import Callback
from supervisor_tasks.ledger.ticks import Ticks

CALLBACKS = Callback.metadata.tables["callbacks"]

STRANGE_FORGOTTEN = "strange callbacks forgotten"  # the tick
STRANGE_LOOKED_AT = Fact("callbacks.strange_looked_at", INT)  # up to this id
FORGET_EVERY_S = 600.0
STRANGE_KEPT_S = 2700.0  # with the time between two looks, less than an hour
MOST = 1000  # that are read at a time

# The first one, behind those that were looked at before, that was not read long enough ago.
_FIRST_YOUNG = text(
    """
    SELECT id FROM callbacks WHERE cluster = :cluster AND id > :behind
        AND (read_at IS NULL OR read_at >= now() - :kept_s * interval '1 second')
    ORDER BY id LIMIT 1
    """
)
_LAST = text("SELECT id FROM callbacks WHERE id > :behind ORDER BY id DESC LIMIT 1")
# The first that is kept for a job of which nobody knows yet what SLURM will call it: it is looked at again.
_FIRST_UNDECIDED = text(
    """
    SELECT min(callbacks.id) FROM callbacks JOIN jobs USING (cluster, job_id)
    WHERE cluster = :cluster AND callbacks.id > :behind AND callbacks.id < :young
        AND jobs.slurm_id IS NULL AND jobs.state NOT IN ('SETTLED', 'REFUSED')
    """
)
_STRANGE = text(
    """
    DELETE FROM callbacks WHERE cluster = :cluster AND id > :behind AND id < :young
        AND NOT EXISTS (
            SELECT FROM jobs WHERE jobs.cluster = callbacks.cluster AND jobs.job_id = callbacks.job_id
                AND (jobs.slurm_id = callbacks.slurm_id
                    OR (jobs.slurm_id IS NULL AND jobs.state NOT IN ('SETTLED', 'REFUSED')))
        )
    """
)
# What was about no job when it came may be about one that a sweep has found on chain since then.
_NO_LONGER_STRANGE = text(
    """
    UPDATE callbacks SET strange = false WHERE cluster = :cluster AND strange
        AND EXISTS (
            SELECT FROM jobs WHERE jobs.cluster = callbacks.cluster AND jobs.job_id = callbacks.job_id
                AND jobs.slurm_id = callbacks.slurm_id
        )
    """
)


@dataclass(frozen=True, slots=True)
class CallbackSeen:
    """A row of the inbox."""

    id: int
    job_id: JobId
    slurm_id: int
    status: int
    duration_s: int
    exit_code: int
    received_s: float = 0.0  # Unix time
    proof: str = "no key"  # proven, unproven: by the site's key, which the caller had, or had not

    @property
    def proven(self) -> bool:
        """Whether a program that has the site's key said it."""
        return self.proof == "proven"

    @property
    def is_evidence(self) -> bool:
        """Whether a job may be billed by it. At a site that has a key, what was said without it is only a hint to look."""
        return self.proof != "unproven"


class Inbox:
    """The inbox of one cluster."""

    def __init__(self, engine: Engine, cluster: str, ticks: Ticks) -> None:
        self._engine = engine
        self._cluster = cluster
        self._ticks = ticks

    def unread(self) -> list[CallbackSeen]:
        """What plugins said and nobody has read, oldest first."""
        query = (
            select(CALLBACKS)
            .where(CALLBACKS.c.cluster == self._cluster, CALLBACKS.c.read_at.is_(None))
            .order_by(CALLBACKS.c.id)
            .limit(MOST)
        )
        with asking(self._engine) as connection:
            return [_callback(row) for row in connection.execute(query)]

    def has_unread(self) -> bool:
        """Whether the inbox holds something that nobody has read."""
        unread = CALLBACKS.c.cluster == self._cluster, CALLBACKS.c.read_at.is_(None)
        with asking(self._engine) as connection:
            return bool(connection.scalar(select(exists().where(*unread))))

    def heard(self, about: Collection[tuple[JobId, int]]) -> dict[tuple[JobId, int], int]:
        """How many different callbacks came of each of these jobs under these SLURM ids."""
        mine = CALLBACKS.c.cluster == self._cluster, tuple_(CALLBACKS.c.job_id, CALLBACKS.c.slurm_id).in_(list(about))
        query = select(CALLBACKS.c.job_id, CALLBACKS.c.slurm_id, func.count().label("number")).where(*mine)
        with asking(self._engine) as connection:
            rows = connection.execute(query.group_by(CALLBACKS.c.job_id, CALLBACKS.c.slurm_id))
            return {(JobId(row.job_id), row.slurm_id): row.number for row in rows}

    def forget_strange(self) -> int:
        """Every ten minutes: what was read 45 minutes ago and is about no job of ours under its SLURM id was a stranger's. Each
        callback is looked at once, up to the first that is younger, or again while nobody knows yet. Returns how many went.
        """
        ago_s = self._ticks.age_s(STRANGE_FORGOTTEN)
        if ago_s is not None and ago_s < FORGET_EVERY_S:
            return 0
        with self._engine.begin() as connection:
            looked_at = FACTS.c.cluster == self._cluster, FACTS.c.name == STRANGE_LOOKED_AT.name
            behind = int(connection.scalar(select(FACTS.c.value).where(*looked_at)) or 0)
            where = {"cluster": self._cluster, "behind": behind, "kept_s": STRANGE_KEPT_S}
            young = connection.scalar(_FIRST_YOUNG, where) or (connection.scalar(_LAST, where) or behind) + 1
            gone = connection.execute(_STRANGE, where | {"young": young}).rowcount
            connection.execute(_NO_LONGER_STRANGE, where)
            last_id = (connection.scalar(_FIRST_UNDECIDED, where | {"young": young}) or young) - 1
            known = insert(FACTS).values(cluster=self._cluster, name=STRANGE_LOOKED_AT.name, value=str(last_id))
            value = {"value": known.excluded.value}
            connection.execute(known.on_conflict_do_update(index_elements=["cluster", "name"], set_=value))
        self._ticks.leave(STRANGE_FORGOTTEN)
        return gone

    def about(self, slurm_ids: Mapping[JobId, SlurmId]) -> dict[JobId, list[CallbackSeen]]:
        """All that plugins said of these jobs under these SLURM ids, oldest first."""
        about = tuple_(CALLBACKS.c.job_id, CALLBACKS.c.slurm_id).in_(list(slurm_ids.items()))
        query = select(CALLBACKS).where(CALLBACKS.c.cluster == self._cluster, about).order_by(CALLBACKS.c.id)
        found: dict[JobId, list[CallbackSeen]] = {job_id: [] for job_id in slurm_ids}
        with asking(self._engine) as connection:
            for row in connection.execute(query):
                found[JobId(row.job_id)].append(_callback(row))
        return found

    def last_heard_s(self, job_ids: Collection[str]) -> dict[JobId, dict[SlurmId, float]]:
        """How many seconds ago the last callback about each of these jobs came, under each SLURM id that one named."""
        age = func.extract("epoch", func.now() - func.max(CALLBACKS.c.received_at)).label("age_s")
        mine = CALLBACKS.c.cluster == self._cluster, CALLBACKS.c.job_id == func.any(bindparam("job_ids", list(job_ids)))
        query = select(CALLBACKS.c.job_id, CALLBACKS.c.slurm_id, age).where(*mine)
        heard = dict[JobId, dict[SlurmId, float]]()
        with asking(self._engine) as connection:
            for row in connection.execute(query.group_by(CALLBACKS.c.job_id, CALLBACKS.c.slurm_id)):
                heard.setdefault(JobId(row.job_id), {})[SlurmId(row.slurm_id)] = float(row.age_s)
        return heard

    def told_of(self, slurm_ids: Mapping[JobId, SlurmId], statuses: Collection[int], seconds: float) -> set[JobId]:
        """Of which of these jobs, under these SLURM ids, a plugin has said one of the statuses that nobody has read, or that
        came in the last seconds.
        """
        about = (
            CALLBACKS.c.cluster == self._cluster,
            tuple_(CALLBACKS.c.job_id, CALLBACKS.c.slurm_id).in_(list(slurm_ids.items())),
        )
        young = CALLBACKS.c.received_at > func.now() - func.make_interval(0, 0, 0, 0, 0, 0, seconds)
        fresh = CALLBACKS.c.status.in_(list(statuses)), or_(CALLBACKS.c.read_at.is_(None), young)
        with asking(self._engine) as connection:
            return {JobId(name) for name in connection.scalars(select(CALLBACKS.c.job_id).where(*about, *fresh))}

    def of_last(self, job_id: JobId, seconds: float) -> list[CallbackSeen]:
        """All that plugins said of a job in the last seconds, under whatever SLURM id."""
        young = CALLBACKS.c.received_at > func.now() - func.make_interval(0, 0, 0, 0, 0, 0, seconds)
        about = CALLBACKS.c.cluster == self._cluster, CALLBACKS.c.job_id == job_id
        with asking(self._engine) as connection:
            rows = connection.execute(select(CALLBACKS).where(*about, young).order_by(CALLBACKS.c.id))
            return [_callback(row) for row in rows]

    def mark_read(self, connection: Connection, seen: Sequence[CallbackSeen]) -> None:
        """Within the transaction of what callbacks make of their jobs: they were read."""
        ids = func.any(bindparam("ids", [row.id for row in seen]))
        connection.execute(update(CALLBACKS).where(CALLBACKS.c.id == ids).values(read_at=func.now()))


def _callback(row: Any) -> CallbackSeen:
    about = row.id, JobId(row.job_id), row.slurm_id
    said = row.status, row.duration_s, row.exit_code
    return CallbackSeen(*about, *said, row.received_at.timestamp(), row.proof)
