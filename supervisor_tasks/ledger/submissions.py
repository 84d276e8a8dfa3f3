"""What the ledger knows of submissions: when sbatch was called and answered, and who was given an id last."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, text

from supervisor_tasks.job import JobId, SlurmId

# All jobs that were ever given one of these ids: more than one where slurmctld has given it again.
_SUBMISSIONS = text(
    """
    SELECT jobs.job_id, jobs.slurm_id, heard.called_s, heard.answered_s, heard.place
    FROM jobs, LATERAL (
        SELECT EXTRACT(EPOCH FROM max(at) FILTER (WHERE name = 'SubmitStarted'))::float8 AS called_s,
            EXTRACT(EPOCH FROM max(at) FILTER (WHERE name = 'Submitted'))::float8 AS answered_s,
            max(id) FILTER (WHERE name = 'Submitted') AS place
        FROM events WHERE events.cluster = jobs.cluster AND events.job_id = jobs.job_id
    ) AS heard
    WHERE jobs.cluster = :cluster AND jobs.slurm_id = ANY(:slurm_ids) AND heard.place IS NOT NULL
    ORDER BY heard.place
    """
)


@dataclass(frozen=True, slots=True)
class Submission:
    """A job's last submission, in Unix times of the database's clock. `id_is_anothers`: a job that was submitted later was
    given the same id, so that SLURM has lost this one.
    """

    called_s: float
    answered_s: float
    id_is_anothers: bool


def submissions(connection: Connection, cluster: str, slurm_ids: Collection[SlurmId]) -> dict[JobId, Submission]:
    """The last submissions of the jobs that were given these ids."""
    rows = list(connection.execute(_SUBMISSIONS, {"cluster": cluster, "slurm_ids": list(slurm_ids)}))
    holders = {row.slurm_id: row.job_id for row in rows}  # the last one stays
    return {
        JobId(row.job_id): Submission(
            row.called_s if row.called_s is not None else row.answered_s,
            row.answered_s,
            holders[row.slurm_id] != row.job_id,
        )
        for row in rows
    }
