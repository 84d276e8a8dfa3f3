"""Questions about jobs, over slurmrestd."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from supervisor_tasks.jobs.model import JobId, SlurmId
from supervisor_tasks.slurm import rest_answers
from supervisor_tasks.slurm.job_matching import (
    MatchRequest,
    MatchResult,
    listed_record,
    match_jobs,
)
from supervisor_tasks.slurm.not_started import not_started
from supervisor_tasks.slurm.rest_access import RestAccess
from supervisor_tasks.slurm.rest_clock import RestClock
from supervisor_tasks.slurm.size import Size
from supervisor_tasks.slurm.squeue import SqueueRow

# jobs that are asked for one by one; for more, the whole list is smaller work
ASKED_ALONE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RestJobQueries:
    """Questions about jobs. Threads may share it."""

    access: RestAccess
    clock: RestClock

    @property
    def has_accounting(self) -> bool:
        """Return False: over slurmrestd, the supervisor asks no accounting."""
        return False

    def list_all(self, user: str | None = None) -> dict[SlurmId, SqueueRow]:
        """Return all jobs (of one user) that slurmctld remembers, in one request."""
        now_s = self.clock.now_s()
        rows = rest_answers.jobs_listed(self.access.ask("jobs"), now_s)
        if user is None:
            return rows
        users_rows = dict[SlurmId, SqueueRow]()
        for slurm_id, row in rows.items():
            if row.user == user:
                users_rows[slurm_id] = row
        return users_rows

    def rows(self, slurm_ids: Collection[SlurmId]) -> dict[SlurmId, SqueueRow]:
        """Return the rows of these jobs. For few jobs, slurmrestd is asked about each
        of them and not for the whole list.
        """
        if len(slurm_ids) > ASKED_ALONE:
            rows = self.list_all()
        else:
            rows, now_s = {}, self.clock.now_s()
            for slurm_id in slurm_ids:
                path = f"job/{slurm_id}"
                answer = self.access.order("GET", path)
                if not answer.is_unknown_job:
                    body = rest_answers.require_answer(answer, f"GET {path}")
                    rows |= rest_answers.jobs_listed(body, now_s)
        asked = dict[SlurmId, SqueueRow]()
        for slurm_id, row in rows.items():
            if slurm_id in slurm_ids:
                asked[slurm_id] = row
        return asked

    def look(
        self,
        wanted: Sequence[MatchRequest],
        listed: Mapping[SlurmId, SqueueRow] | None = None,
        *,
        accounting: bool = True,  # noqa: ARG002
    ) -> dict[JobId, MatchResult]:
        """Return what slurmctld shows of each of these jobs; see JobQueries. A job of
        another name is unclear until its time of submission is known.
        """
        rows = listed
        if rows is None:
            rows = self.rows({job.slurm_id for job in wanted})
        return match_jobs(wanted, map(listed_record, rows.values()), lambda _: {})

    def known_ids(self, slurm_ids: Collection[SlurmId]) -> set[SlurmId]:
        """Return the ids that slurmctld knows as jobs of any user."""
        if not slurm_ids:
            return set()
        return set(self.rows(slurm_ids))

    def requests(self, slurm_ids: Collection[SlurmId]) -> dict[SlurmId, Size]:
        """Return what running jobs were submitted for."""
        return rest_answers.requests_listed(self.access.ask("jobs"), list(slurm_ids))

    def not_started(self, slurm_ids: Collection[SlurmId]) -> dict[SlurmId, str]:
        """Return those of these jobs that a node could not start, in two requests."""
        ended = rest_answers.ended_on(self.access.ask("jobs"), slurm_ids)
        return not_started(ended, rest_answers.drained_s(self.access.ask("nodes")))
