"""The callbacks that plugins sent. grpc_callbacks/callback_writer.py writes them,
jobs/callback_hints.py reads them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    bindparam,
    exists,
    func,
    or_,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from supervisor_tasks.jobs.model import JobId, SlurmId, State
from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.facts import INT, Fact
from supervisor_tasks.ledger.periodic_runs import PeriodicRuns
from supervisor_tasks.ledger.tables import CALLBACKS, FACTS, JOBS

UNKNOWN_CALLBACKS_PURGED = "unknown callbacks purged"  # the periodic run
# the last id that was checked
UNKNOWN_CHECKED_TO = Fact("callbacks.unknown_checked_to", INT)
DELETE_EVERY_S = 600.0
UNKNOWN_KEPT_S = 2700.0  # less than an hour, even with DELETE_EVERY_S added
MAX_CALLBACKS = 1000  # callbacks that are read at a time
# grpc_callbacks/callers.py writes them
PROVEN = "proven"
UNPROVEN = "unproven"

# Each reading of callbacks asks this. A condition on a list of pairs takes longer to
# build and to plan.
_COUNTS = text(
    """
    SELECT given.job_id, given.slurm_id, (
        SELECT count(*) FROM callbacks
        WHERE cluster = :cluster AND callbacks.job_id = given.job_id AND callbacks.slurm_id = given.slurm_id
    ) AS number
    FROM unnest(CAST(:job_ids AS text[]), CAST(:slurm_ids AS bigint[])) AS given(job_id, slurm_id)
    """
)
_LAST = text("SELECT id FROM callbacks WHERE id > :behind ORDER BY id DESC LIMIT 1")
# The first callback, after those that were checked, that came too short a time ago and
# was not read before. Callbacks beside it may not be committed yet. A repeat does not
# make a callback young: it would keep those behind it.
_FIRST_YOUNG = text(
    """
    SELECT id FROM callbacks WHERE cluster = :cluster AND id > :behind
        AND LEAST(received_at, read_at) >= now() - :kept_s * interval '1 second'
    ORDER BY id LIMIT 1
    """
)
# The first older callback that must be checked again: it matches no job, and was read a
# short time ago or may match one later.
_FIRST_LEFT = text(
    """
    SELECT callbacks.id FROM callbacks LEFT JOIN jobs USING (cluster, job_id)
    WHERE cluster = :cluster AND callbacks.id > :behind AND callbacks.id < :young
        AND jobs.slurm_id IS DISTINCT FROM callbacks.slurm_id
    ORDER BY callbacks.id LIMIT 1
    """
)
_DELETE_UNKNOWN = text(
    """
    DELETE FROM callbacks WHERE cluster = :cluster AND id > :behind AND id < :young
        AND read_at < now() - :kept_s * interval '1 second'
        AND NOT EXISTS (
            SELECT FROM jobs WHERE jobs.cluster = callbacks.cluster AND jobs.job_id = callbacks.job_id
                AND (jobs.slurm_id = callbacks.slurm_id
                    OR (jobs.slurm_id IS NULL AND jobs.state NOT IN ('SETTLED', 'REFUSED')))
        )
    """
)
# A callback that was about no job when it came may be about a job that a sweep has
# found on chain since then.
_NO_LONGER_UNKNOWN = text(
    """
    UPDATE callbacks SET unknown_job = false WHERE cluster = :cluster AND unknown_job
        AND EXISTS (
            SELECT FROM jobs WHERE jobs.cluster = callbacks.cluster AND jobs.job_id = callbacks.job_id
                AND jobs.slurm_id = callbacks.slurm_id
        )
    """
)


@dataclass(frozen=True, slots=True)
class CallbackSeen:
    """A stored callback: a row of the table `callbacks`."""

    id: int
    job_id: JobId
    slurm_id: int
    status: int
    duration_s: int
    exit_code: int
    received_s: float = 0.0  # Unix time
    # "proven" or "unproven": whether the caller had the site's key; "no key": the site
    # has none
    proof: str = "no key"

    @property
    def proven(self) -> bool:
        """Whether the caller had the site's key."""
        return self.proof == PROVEN

    @property
    def is_evidence(self) -> bool:
        """Whether a job may be billed by it. At a site with a key, a callback without
        it is only a hint to look.
        """
        return self.proof != UNPROVEN


@dataclass(frozen=True, slots=True)
class LastCallback:
    """When the last callback about a job came under a SLURM id: of those that are
    evidence (CallbackSeen), or of the others.
    """

    job_id: JobId
    slurm_id: SlurmId
    is_evidence: bool
    age_s: float


class CallbackReader:
    """The stored callbacks of one cluster. Its methods raise
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """

    def __init__(
        self, engine: Engine, cluster: str, periodic_runs: PeriodicRuns
    ) -> None:
        self._engine = engine
        self._cluster = cluster
        self._periodic_runs = periodic_runs

    def unread(self) -> list[CallbackSeen]:
        """Callbacks that were not read yet, oldest first, at most MAX_CALLBACKS."""
        query = (
            select(CALLBACKS)
            .where(CALLBACKS.c.cluster == self._cluster, CALLBACKS.c.read_at.is_(None))
            .order_by(CALLBACKS.c.id)
            .limit(MAX_CALLBACKS)
        )
        with read_connection(self._engine) as connection:
            return list(map(_callback, connection.execute(query)))

    def has_unread(self) -> bool:
        """Whether there are stored callbacks that were not read yet."""
        unread = CALLBACKS.c.cluster == self._cluster, CALLBACKS.c.read_at.is_(None)
        with read_connection(self._engine) as connection:
            return bool(connection.scalar(select(exists().where(*unread))))

    def counts(
        self, about: Collection[tuple[JobId, int]]
    ) -> dict[tuple[JobId, int], int]:
        """How many different callbacks came for each pair of job and SLURM id. Pairs
        without one are left out.
        """
        job_ids = [job_id for job_id, _ in about]
        slurm_ids = [slurm_id for _, slurm_id in about]
        parameters = {
            "cluster": self._cluster,
            "job_ids": job_ids,
            "slurm_ids": slurm_ids,
        }
        with read_connection(self._engine) as connection:
            rows = connection.execute(_COUNTS, parameters)
            return {
                (JobId(row.job_id), row.slurm_id): row.number
                for row in rows
                if row.number
            }

    def purge_unknown(self) -> int:
        """Delete callbacks that were read 45 minutes ago and match no job of the ledger
        under its SLURM id.

        It works at most every ten minutes. It checks again what came in the last 45
        minutes, and what is behind a callback that matches no job and is kept. Returns
        how many callbacks it deleted.
        """
        ago_s = self._periodic_runs.age_s(UNKNOWN_CALLBACKS_PURGED)
        if ago_s is not None and ago_s < DELETE_EVERY_S:
            return 0
        with self._engine.begin() as connection:
            checked_to = (
                FACTS.c.cluster == self._cluster,
                FACTS.c.name == UNKNOWN_CHECKED_TO.name,
            )
            behind = int(
                connection.scalar(select(FACTS.c.value).where(*checked_to)) or 0
            )
            where = {
                "cluster": self._cluster,
                "behind": behind,
                "kept_s": UNKNOWN_KEPT_S,
            }
            young = (
                connection.scalar(_FIRST_YOUNG, where)
                or (connection.scalar(_LAST, where) or behind) + 1
            )
            older = where | {"young": young}
            deleted = connection.execute(_DELETE_UNKNOWN, older).rowcount
            connection.execute(_NO_LONGER_UNKNOWN, where)
            first_left = connection.scalar(_FIRST_LEFT, older) or young
            fact = insert(FACTS).values(
                cluster=self._cluster,
                name=UNKNOWN_CHECKED_TO.name,
                value=str(first_left - 1),
            )
            value = {"value": fact.excluded.value}
            connection.execute(
                fact.on_conflict_do_update(
                    index_elements=["cluster", "name"], set_=value
                )
            )
        self._periodic_runs.record(UNKNOWN_CALLBACKS_PURGED)
        return deleted

    def about(
        self, slurm_ids: Mapping[JobId, SlurmId]
    ) -> dict[JobId, list[CallbackSeen]]:
        """All callbacks about these jobs under these SLURM ids, oldest first."""
        about = tuple_(CALLBACKS.c.job_id, CALLBACKS.c.slurm_id).in_(
            list(slurm_ids.items())
        )
        query = (
            select(CALLBACKS)
            .where(CALLBACKS.c.cluster == self._cluster, about)
            .order_by(CALLBACKS.c.received_at, CALLBACKS.c.id)
        )
        found: dict[JobId, list[CallbackSeen]] = {job_id: [] for job_id in slurm_ids}
        with read_connection(self._engine) as connection:
            for row in connection.execute(query):
                found[JobId(row.job_id)].append(_callback(row))
        return found

    def last_callbacks(self, job_ids: Collection[str]) -> list[LastCallback]:
        """The last callbacks about these jobs, under each SLURM id that callbacks
        name: one that is evidence, and one that is not.
        """
        is_evidence = (CALLBACKS.c.proof != UNPROVEN).label("is_evidence")
        age = func.extract(
            "epoch", func.now() - func.max(CALLBACKS.c.received_at)
        ).label("age_s")
        each = (CALLBACKS.c.job_id, CALLBACKS.c.slurm_id, is_evidence)
        query = select(*each, age).where(
            CALLBACKS.c.cluster == self._cluster,
            CALLBACKS.c.job_id == func.any(bindparam("job_ids", list(job_ids))),
        )
        with read_connection(self._engine) as connection:
            return [
                LastCallback(
                    JobId(row.job_id),
                    SlurmId(row.slurm_id),
                    row.is_evidence,
                    float(row.age_s),
                )
                for row in connection.execute(
                    query.group_by(
                        CALLBACKS.c.job_id, CALLBACKS.c.slurm_id, is_evidence
                    )
                )
            ]

    def jobs_reported_as(
        self,
        slurm_ids: Mapping[JobId, SlurmId],
        statuses: Collection[int],
        within_s: float,
    ) -> set[JobId]:
        """The jobs for which a plugin reported one of the statuses, out of these jobs
        under these SLURM ids. Only callbacks count that were not read yet, or that came
        in the last `within_s`.
        """
        young = CALLBACKS.c.received_at > func.now() - func.make_interval(
            0, 0, 0, 0, 0, 0, within_s
        )
        fresh = or_(CALLBACKS.c.read_at.is_(None), young)
        return self._jobs_reported(slurm_ids, statuses, fresh)

    def jobs_proven_as(
        self, slurm_ids: Mapping[JobId, SlurmId], statuses: Collection[int]
    ) -> set[JobId]:
        """The jobs for which a caller that proved itself reported one of the statuses,
        out of these jobs under these SLURM ids.
        """
        return self._jobs_reported(slurm_ids, statuses, CALLBACKS.c.proof == PROVEN)

    def jobs_proven_under_any_id(
        self, job_ids: Collection[JobId], statuses: Collection[int]
    ) -> set[JobId]:
        """As `jobs_proven_as`, for jobs whose SLURM ids are not known."""
        if not job_ids:
            return set()
        query = select(CALLBACKS.c.job_id).where(
            CALLBACKS.c.cluster == self._cluster,
            CALLBACKS.c.job_id == func.any(bindparam("job_ids", list(job_ids))),
            CALLBACKS.c.status.in_(list(statuses)),
            CALLBACKS.c.proof == PROVEN,
        )
        with read_connection(self._engine) as connection:
            return set(connection.scalars(query))

    def _jobs_reported(
        self,
        slurm_ids: Mapping[JobId, SlurmId],
        statuses: Collection[int],
        which: ColumnElement[bool],
    ) -> set[JobId]:
        if not slurm_ids:
            return set()
        pairs = tuple_(CALLBACKS.c.job_id, CALLBACKS.c.slurm_id)
        query = select(CALLBACKS.c.job_id).where(
            CALLBACKS.c.cluster == self._cluster,
            pairs.in_(list(slurm_ids.items())),
            CALLBACKS.c.status.in_(list(statuses)),
            which,
        )
        with read_connection(self._engine) as connection:
            return set(connection.scalars(query))

    def settled_for(self, job_ids: Collection[JobId], for_s: float) -> set[JobId]:
        """The jobs, out of these, that are settled and have not changed for `for_s`."""
        unchanged_since = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, for_s)
        query = select(JOBS.c.job_id).where(
            JOBS.c.cluster == self._cluster,
            JOBS.c.job_id == func.any(bindparam("job_ids", list(job_ids))),
            JOBS.c.state == State.SETTLED.value,
            JOBS.c.updated_at < unchanged_since,
        )
        with read_connection(self._engine) as connection:
            return set(map(JobId, connection.scalars(query)))

    def of_last(self, job_id: JobId, within_s: float) -> list[CallbackSeen]:
        """All callbacks about a job in the last `within_s`, under any SLURM id, oldest
        first.
        """
        young = CALLBACKS.c.received_at > func.now() - func.make_interval(
            0, 0, 0, 0, 0, 0, within_s
        )
        about = CALLBACKS.c.cluster == self._cluster, CALLBACKS.c.job_id == job_id
        with read_connection(self._engine) as connection:
            rows = connection.execute(
                select(CALLBACKS).where(*about, young).order_by(CALLBACKS.c.id)
            )
            return list(map(_callback, rows))

    def mark_read(
        self, connection: Connection, seen: Sequence[CallbackSeen]
    ) -> list[int]:
        """Mark callbacks as read, in the transaction that applies them to their jobs.
        Returns the ids of those that no other worker has marked before.
        """
        unread = (
            CALLBACKS.c.id == func.any(bindparam("ids", [row.id for row in seen])),
            CALLBACKS.c.read_at.is_(None),
        )
        marked = (
            update(CALLBACKS)
            .where(*unread)
            .values(read_at=func.now())
            .returning(CALLBACKS.c.id)
        )
        return list(connection.scalars(marked))


def _callback(row: Any) -> CallbackSeen:
    return CallbackSeen(
        id=row.id,
        job_id=JobId(row.job_id),
        slurm_id=row.slurm_id,
        status=row.status,
        duration_s=row.duration_s,
        exit_code=row.exit_code,
        received_s=row.received_at.timestamp(),
        proof=row.proof,
    )
