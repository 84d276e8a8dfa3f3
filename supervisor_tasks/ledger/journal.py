"""The journal: the events of jobs, and when they happened."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Engine,
    and_,
    bindparam,
    cast,
    func,
    or_,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import distinct_on

from supervisor_tasks.jobs.events import (
    Claimed,
    Event,
    FalseSlurmId,
    LaunchFailed,
    SlurmPendingObserved,
    SlurmRunningObserved,
    SubmitOutcomeUnknown,
    stored_name,
)
from supervisor_tasks.jobs.model import Job, JobId, SlurmId, State
from supervisor_tasks.jobs.trace import Recorded
from supervisor_tasks.ledger.bulk import as_rows, insert_rows
from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.mapping import event_to_json, optional_float
from supervisor_tasks.ledger.tables import EFFECTS, EVENTS, SIGNATURES, TRANSACTIONS

_WRITE = insert_rows("events", ("cluster", "job_id", "name", "details", "state"))

# All jobs that ever got one of these SLURM ids. An id has several jobs if slurmctld
# gave it again.
_SUBMISSIONS = text(
    """
    SELECT jobs.job_id, jobs.slurm_id, submission.called_s, submission.answered_s, submission.place
    FROM jobs, LATERAL (
        SELECT EXTRACT(EPOCH FROM max(at) FILTER (WHERE name = 'SubmitStarted'))::float8 AS called_s,
            EXTRACT(EPOCH FROM max(at) FILTER (WHERE name = 'Submitted'))::float8 AS answered_s,
            max(id) FILTER (WHERE name = 'Submitted') AS place
        FROM events WHERE events.cluster = jobs.cluster AND events.job_id = jobs.job_id
    ) AS submission
    WHERE jobs.cluster = :cluster AND jobs.slurm_id = ANY(:slurm_ids) AND submission.place IS NOT NULL
    ORDER BY submission.place
    """
)

# The submissions of other customers between two events. `cut_off` counts the customers
# with a submission that was cut off. `accepted` counts the other customers whose jobs
# SLURM took, if these submissions also began in that time.
_OTHERS = text(
    """
    SELECT count(*) FILTER (WHERE NOT cut_off) AS accepted, count(*) FILTER (WHERE cut_off) AS cut_off FROM (
        SELECT bool_or(events.name = 'SubmitOutcomeUnknown') AS cut_off
        FROM events JOIN jobs ON jobs.cluster = events.cluster AND jobs.job_id = events.job_id
        WHERE events.cluster = :cluster AND events.id BETWEEN :first_id AND :last_id AND jobs.customer <> :customer
            AND (events.name = 'SubmitOutcomeUnknown' OR events.name = 'Submitted' AND EXISTS (
                SELECT FROM events AS begun
                WHERE begun.cluster = :cluster AND begun.job_id = events.job_id AND begun.name = 'SubmitStarted'
                    AND begun.id BETWEEN :first_id AND events.id
            ))
        GROUP BY jobs.customer
    ) AS customers
    """
)

# The past of each of these jobs before its next submission: see Past.
_BEFORE_SUBMISSION = text(
    """
    WITH claims_and_submissions AS (
        SELECT job_id, id, at, name, details FROM events
        WHERE cluster = :cluster AND job_id = ANY(:job_ids) AND name IN ('Claimed', 'SubmitStarted')
    ), claimed AS (
        SELECT DISTINCT ON (job_id) job_id, id, (details -> 'at' ->> 0)::bigint AS block,
            (details ->> 'claim_known_to_ledger')::boolean AS claim_known_to_ledger
        FROM claims_and_submissions WHERE name = 'Claimed' ORDER BY job_id, id DESC
    )
    SELECT past.job_id, count(*) FILTER (WHERE name = 'SubmitStarted') AS begun,
        EXTRACT(EPOCH FROM clock_timestamp() - min(at) FILTER (WHERE name = 'SubmitStarted'))::float8 AS first_s,
        EXTRACT(EPOCH FROM clock_timestamp()
            - max(at) FILTER (WHERE name = 'SubmitStarted' AND past.id < claimed.id))::float8 AS earlier_s,
        max(block) FILTER (WHERE claim_known_to_ledger IS FALSE) AS unknown_claim
    FROM claims_and_submissions AS past JOIN claimed USING (job_id) GROUP BY past.job_id
    """
)

_WAITING = text(
    """
    SELECT customer, seen, count(*) AS number
    FROM jobs LEFT JOIN LATERAL (
        SELECT details ->> 'seen' AS seen FROM events
        WHERE events.cluster = jobs.cluster AND events.job_id = jobs.job_id AND jobs.state = 'QUEUED'
            AND events.name = 'SlurmPendingObserved'
        ORDER BY id DESC LIMIT 1
    ) AS last_look ON true
    WHERE jobs.cluster = :cluster AND jobs.state = ANY(:states)
    GROUP BY customer, seen
    """
)


@dataclass(frozen=True, slots=True)
class CutOff:
    """The submissions of a job that were cut off since its effect began to fail.

    `reasons` has one reason for each, the latest last. `others_accepted` is the number of
    other customers whose jobs SLURM took meanwhile, `others_cut_off` the number of
    other customers whose submissions were cut off, too.
    """

    reasons: Sequence[str]
    others_accepted: int
    others_cut_off: int


@dataclass(frozen=True, slots=True)
class Past:
    """What happened to a job before a submission.

    `begun` is how many submissions began before it, and `first_s` how many seconds ago
    the first one began, None if there was none. `earlier_s` is the same of the last one
    under an earlier claim. `unknown_claim` is the block of the last claim if the ledger
    has no record of writing it.
    """

    begun: int = 0
    first_s: float | None = None
    earlier_s: float | None = None
    unknown_claim: int | None = None

    @property
    def has_earlier_claim(self) -> bool:
        """Whether SLURM may have the job from an earlier claim, or from another
        ledger.
        """
        return self.earlier_s is not None or self.unknown_claim is not None


@dataclass(frozen=True, slots=True)
class SubmissionTimes:
    """A job's last submission, in Unix times of the database's clock. `id_belongs_to_other`:
    a later job got the same SLURM id, so SLURM has lost this job.
    """

    called_s: float
    answered_s: float
    id_belongs_to_other: bool


class Journal:
    """The journal of one cluster. Its methods raise LedgerUnavailableError, when the
    database does not answer; a retry helps.
    """

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    def write(
        self, connection: Connection, events: Sequence[tuple[Job, Event]]
    ) -> None:
        """Store events in the transaction that changes their jobs, each with the state
        of its job after it.
        """
        if events:
            rows = [
                {"cluster": self._cluster, **_row(job, event)} for job, event in events
            ]
            connection.execute(_WRITE, as_rows(rows))

    def first_claim(self, job_ids: Collection[str]) -> int | None:
        """The lowest block with a claim of one of these jobs, no matter when it was
        read; None if there is none.
        """
        block = func.min(EVENTS.c.details["at"][0].as_integer())
        about = (
            EVENTS.c.cluster == self._cluster,
            EVENTS.c.job_id == func.any(bindparam("job_ids", list(job_ids))),
        )
        with read_connection(self._engine) as connection:
            found: int | None = connection.scalar(
                select(block).where(*about, EVENTS.c.name == stored_name(Claimed))
            )
        return found

    def before_submission(self, job_ids: Collection[str]) -> dict[JobId, Past]:
        """The past of jobs that are about to be submitted, in one query."""
        with read_connection(self._engine) as connection:
            rows = connection.execute(
                _BEFORE_SUBMISSION, {"cluster": self._cluster, "job_ids": list(job_ids)}
            )
            return {
                JobId(row.job_id): Past(
                    begun=row.begun,
                    first_s=row.first_s,
                    earlier_s=row.earlier_s,
                    unknown_claim=row.unknown_claim,
                )
                for row in rows
            }

    def last_ages_s(
        self, job_ids: Collection[JobId], event: type[Event]
    ) -> dict[JobId, float]:
        """How many seconds ago the last event of this kind came for each job. Jobs
        without one are left out.
        """
        return {
            job_id: ages_s[0] for job_id, ages_s in self.ages_s(job_ids, event).items()
        }

    def ages_s(
        self, job_ids: Collection[str], event: type[Event]
    ) -> dict[JobId, list[float]]:
        """How many seconds ago this event happened to each of these jobs: all times,
        the latest first.
        """
        age = func.extract("epoch", func.clock_timestamp() - EVENTS.c.at).label("age_s")
        about = (
            EVENTS.c.cluster == self._cluster,
            EVENTS.c.job_id == func.any(bindparam("job_ids", list(job_ids))),
        )
        query = (
            select(EVENTS.c.job_id, age)
            .where(*about, EVENTS.c.name == stored_name(event))
            .order_by(EVENTS.c.id.desc())
        )
        found = dict[JobId, list[float]]()
        with read_connection(self._engine) as connection:
            for row in connection.execute(query):
                found.setdefault(JobId(row.job_id), []).append(float(row.age_s))
        return found

    def claimed_above(self, job_ids: Collection[str], block: int) -> set[JobId]:
        """The jobs, out of these, whose last claim was read in a block above this
        one.
        """
        claim_block = cast(EVENTS.c.details["at"][0].astext, BigInteger)
        last = (
            select(EVENTS.c.job_id, claim_block.label("block"))
            .ext(distinct_on(EVENTS.c.job_id))
            .where(
                EVENTS.c.cluster == self._cluster,
                EVENTS.c.job_id == func.any(bindparam("job_ids", list(job_ids))),
                EVENTS.c.name == stored_name(Claimed),
            )
            .order_by(EVENTS.c.job_id, EVENTS.c.id.desc())
            .subquery()
        )
        query = select(last.c.job_id).where(last.c.block > block)
        with read_connection(self._engine) as connection:
            return set(map(JobId, connection.scalars(query)))

    def failed_launches(self, job_ids: Collection[str]) -> dict[JobId, set[SlurmId]]:
        """The SLURM jobs that a node could not start, for each of these jobs. Jobs
        without one are left out.
        """
        about = (
            EVENTS.c.cluster == self._cluster,
            EVENTS.c.job_id == func.any(bindparam("job_ids", list(job_ids))),
        )
        slurm_id = EVENTS.c.details["slurm_id"].as_integer().label("slurm_id")
        query = select(EVENTS.c.job_id, slurm_id).where(
            *about, EVENTS.c.name == stored_name(LaunchFailed)
        )
        found = dict[JobId, set[SlurmId]]()
        with read_connection(self._engine) as connection:
            for row in connection.execute(query):
                found.setdefault(JobId(row.job_id), set()).add(SlurmId(row.slurm_id))
        return found

    def unparsed_answers(self, job_id: JobId) -> list[str]:
        """The answers of sbatch since the job's last claim that the parser does not
        know, or that SLURM contradicts. The latest is last.
        """
        unparsed = and_(
            EVENTS.c.name == stored_name(SubmitOutcomeUnknown),
            EVENTS.c.details["unparsed"].as_boolean(),
        )
        unclear = or_(unparsed, EVENTS.c.name == stored_name(FalseSlurmId))
        query = select(EVENTS.c.details["reason"].astext).where(
            *self._since_claim(job_id), unclear
        )
        with read_connection(self._engine) as connection:
            return list(connection.scalars(query.order_by(EVENTS.c.id)))

    def cut_off(self, job: Job, effect_id: int) -> CutOff:
        """The job's submissions that were cut off since this effect began to fail
        without a break.
        """
        failing = (
            select(EFFECTS.c.failing_since)
            .where(EFFECTS.c.id == effect_id)
            .scalar_subquery()
        )
        cut_off = (
            EVENTS.c.name == stored_name(SubmitOutcomeUnknown),
            EVENTS.c.at >= failing,
        )
        query = select(EVENTS.c.id, EVENTS.c.details["reason"].astext.label("reason"))
        query = query.where(*self._since_claim(job.job_id), *cut_off).order_by(
            EVENTS.c.id
        )
        with read_connection(self._engine) as connection:
            rows = list(connection.execute(query))
            if not rows:
                return CutOff([], 0, 0)
            between = {"first_id": rows[0].id, "last_id": rows[-1].id}
            others = connection.execute(
                _OTHERS, {"cluster": self._cluster, "customer": job.customer, **between}
            ).one()
        return CutOff([row.reason for row in rows], others.accepted, others.cut_off)

    def _since_claim(self, job_id: JobId) -> tuple[Any, ...]:
        about = EVENTS.c.cluster == self._cluster, EVENTS.c.job_id == job_id
        claimed = (
            select(func.max(EVENTS.c.id))
            .where(*about, EVENTS.c.name == stored_name(Claimed))
            .scalar_subquery()
        )
        return *about, EVENTS.c.id > claimed

    def history(self, job: Job) -> tuple[list[Recorded], float | None]:
        """All events of a job in order, and when its claim was signed (Unix time); None
        if another ledger did that.
        """
        at_s = func.extract("epoch", EVENTS.c.at).label("at_s")
        about = EVENTS.c.cluster == self._cluster, EVENTS.c.job_id == job.job_id
        query = (
            select(EVENTS.c.id, at_s, EVENTS.c.name, EVENTS.c.state)
            .where(*about)
            .order_by(EVENTS.c.id)
        )
        claim = select(SIGNATURES.c.transaction_id).where(
            SIGNATURES.c.hash == job.claim_key.rpartition(":")[0]
        )
        signed_s = func.extract("epoch", func.min(TRANSACTIONS.c.created_at))
        mine = TRANSACTIONS.c.cluster == self._cluster, TRANSACTIONS.c.id.in_(claim)
        with read_connection(self._engine) as connection:
            events = [
                Recorded(row.id, float(row.at_s), row.name, State(row.state))
                for row in connection.execute(query)
            ]
            signed = connection.scalar(select(signed_s).where(*mine))
        return events, optional_float(signed)

    def looks(
        self, job_ids: Iterable[str], within_s: float
    ) -> dict[JobId, list[tuple[str, float]]]:
        """The states that SLURM showed of these jobs in the last `within_s`, and how
        many seconds ago; latest first.
        """
        about = (
            EVENTS.c.cluster == self._cluster,
            EVENTS.c.job_id == func.any(bindparam("job_ids", list(job_ids))),
        )
        seen = EVENTS.c.details["seen"].astext
        ago_s = func.extract("epoch", func.clock_timestamp() - EVENTS.c.at)
        query = select(
            EVENTS.c.job_id, seen.label("seen"), ago_s.label("ago_s")
        ).order_by(EVENTS.c.id.desc())
        query = query.where(
            *about,
            EVENTS.c.name.in_(
                [stored_name(SlurmRunningObserved), stored_name(SlurmPendingObserved)]
            ),
            ago_s < within_s,
        )
        found = dict[JobId, list[tuple[str, float]]]()
        with read_connection(self._engine) as connection:
            for row in connection.execute(query):
                found.setdefault(JobId(row.job_id), []).append(
                    (row.seen, float(row.ago_s))
                )
        return found

    def last_shown(self, job_ids: Iterable[str], but: str) -> dict[JobId, str]:
        """The state that SLURM showed of each of these jobs at the last look that did
        not show `but`.
        """
        seen = EVENTS.c.details["seen"].astext
        looks = [stored_name(SlurmRunningObserved), stored_name(SlurmPendingObserved)]
        query = (
            select(EVENTS.c.job_id, seen.label("seen"))
            .ext(distinct_on(EVENTS.c.job_id))
            .where(
                EVENTS.c.cluster == self._cluster,
                EVENTS.c.job_id == func.any(bindparam("job_ids", list(job_ids))),
                EVENTS.c.name.in_(looks),
                seen != but,
            )
            .order_by(EVENTS.c.job_id, EVENTS.c.id.desc())
        )
        with read_connection(self._engine) as connection:
            return {JobId(row.job_id): row.seen for row in connection.execute(query)}

    def waiting(self, states: Collection[str]) -> list[tuple[str, str | None, int]]:
        """How many jobs are in these states, by customer and by the state that the last
        look at SLURM showed.
        """
        with read_connection(self._engine) as connection:
            rows = connection.execute(
                _WAITING, {"cluster": self._cluster, "states": list(states)}
            )
            return [(row.customer, row.seen, row.number) for row in rows]

    def ever_suspended(self, job_ids: Iterable[str]) -> set[JobId]:
        """The jobs, out of these, that SLURM has ever shown as SUSPENDED."""
        about = (
            EVENTS.c.cluster == self._cluster,
            EVENTS.c.job_id == func.any(bindparam("job_ids", list(job_ids))),
        )
        seen = (
            EVENTS.c.name == stored_name(SlurmRunningObserved),
            EVENTS.c.details["seen"].astext == "SUSPENDED",
        )
        with read_connection(self._engine) as connection:
            return set(
                connection.scalars(
                    select(EVENTS.c.job_id).where(*about, *seen).distinct()
                )
            )

    def submissions(
        self, slurm_ids: Collection[SlurmId]
    ) -> dict[JobId, SubmissionTimes]:
        """The last submissions of all jobs that ever got one of these SLURM ids."""
        with read_connection(self._engine) as connection:
            rows = list(
                connection.execute(
                    _SUBMISSIONS,
                    {"cluster": self._cluster, "slurm_ids": list(slurm_ids)},
                )
            )
        # the job with the last submission remains
        holders = {row.slurm_id: row.job_id for row in rows}
        return {
            JobId(row.job_id): SubmissionTimes(
                row.called_s if row.called_s is not None else row.answered_s,
                row.answered_s,
                holders[row.slurm_id] != row.job_id,
            )
            for row in rows
        }


def _row(job: Job, event: Event) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "name": stored_name(event),
        "details": event_to_json(event),
        "state": job.state.value,
    }
