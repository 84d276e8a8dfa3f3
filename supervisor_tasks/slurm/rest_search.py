"""The search for submissions, over slurmrestd: by names, output files and comments."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from supervisor_tasks.errors import SupervisorError, UndecidedError
from supervisor_tasks.jobs.model import Address, JobId, SlurmId
from supervisor_tasks.slurm import commands
from supervisor_tasks.slurm.interface import CLOCKS_DIFFER_S, FindOwners
from supervisor_tasks.slurm.parsers import (
    JobRecord,
    QuestionRejectedError,
    SlurmUnavailableError,
)
from supervisor_tasks.slurm.rest_clock import RestClock
from supervisor_tasks.slurm.rest_queries import RestJobQueries
from supervisor_tasks.slurm.script_matching import ScriptSearch, has_job_name
from supervisor_tasks.slurm.squeue import SqueueRow


@dataclass(frozen=True, slots=True, kw_only=True)
class RestSubmissionSearch:
    """The search for jobs that may have been submitted. `public_address` is in the
    comment of our jobs. Threads may share it.
    """

    queries: RestJobQueries
    clock: RestClock
    public_address: str

    def find(
        self, user: Address, begun_ago_s: Mapping[JobId, float], owners: FindOwners
    ) -> dict[JobId, list[JobRecord] | SupervisorError]:
        """Return all records of these jobs, found by their names or output files. An
        error is in the place of a job that is not found while SLURM has another job
        from that time. That other job has not our name, file and comment, and is no
        other job of ours. UndecidedError: the user may have renamed it.
        SlurmUnavailableError: slurmrestd shows no user for it, or for a job of this
        name, because a host cannot resolve the user now.
        """
        own, unnamed = list[SqueueRow](), list[SqueueRow]()
        for row in self.queries.list_all().values():
            if row.user == user:
                own.append(row)
            elif not row.user:
                unnamed.append(row)
        owned = owners({row.slurm_id: row.submit_s for row in (*own, *unnamed)})
        now_s = self.clock.now_s() - CLOCKS_DIFFER_S
        found = dict[JobId, list[JobRecord] | SupervisorError]()
        for job_id, ago_s in begun_ago_s.items():
            search = ScriptSearch(job_id, user, ago_s, owned)
            found[job_id] = self._find(search, own, unnamed, now_s)
        return found

    def _find(
        self,
        search: ScriptSearch,
        own: Collection[SqueueRow],
        unnamed: Collection[SqueueRow],
        now_s: float,
    ) -> list[JobRecord] | SupervisorError:
        ours = list[JobRecord]()
        for job in search.with_our_name(own):
            if job.has_script:
                ours.append(job.record)
        if ours:
            return ours
        unclear = self._unclear(search, unnamed, now_s)
        if unclear:
            return SlurmUnavailableError(
                f"it is not known whether SLURM has the job: slurmrestd does not show the users of the jobs {unclear}, and one"
                f" may be it; do the hosts of slurmctld and slurmrestd know the user {search.user}?"
            )
        unclear = self._unclear(search, own, now_s)
        if unclear:
            return UndecidedError(
                f"it is not known whether SLURM has the job: its submission was cut off {search.ago_s:.0f} s ago, and the"
                f" jobs {unclear} of {search.user}, which are no others of ours, may be renamed ones"
            )
        return []

    def _unclear(
        self, search: ScriptSearch, rows: Collection[SqueueRow], now_s: float
    ) -> list[SlurmId]:
        """Return the jobs that may be the one that is searched for: they have its name
        or output file, or may have been renamed.
        """
        unclear = list[SlurmId]()
        for job in search.suspects(rows, now_s):
            is_another = self._is_named_as_ours(job) and job.name != search.job_id
            if job.has_script and not is_another:
                unclear.append(job.slurm_id)
        return unclear

    def _is_named_as_ours(self, job: SqueueRow) -> bool:
        """Whether the job has the name, the output file and the comment of a job of
        ours: then it is the job of that name.
        """
        if not job.comment.startswith(commands.comment(self.public_address)):
            return False
        output_name = job.stdout.rpartition("/")[2].removesuffix(".log")
        return job.name == output_name

    def sacct_submissions_of(
        self,
        users: Mapping[JobId, Address],  # noqa: ARG002
        begun_ago_s: Mapping[JobId, float],  # noqa: ARG002
    ) -> dict[JobId, list[JobRecord] | QuestionRejectedError]:
        """Return nothing: the supervisor asks no accounting."""
        return {}

    def scripts(self, jobs: Sequence[SqueueRow]) -> dict[SlurmId, JobId]:  # noqa: ARG002
        """Return nothing: slurmrestd shows no batch script."""
        return {}

    def was_submitted(
        self, wanted: Sequence[ScriptSearch], listed: Mapping[SlurmId, SqueueRow]
    ) -> dict[JobId, bool | None]:
        """Return True for a job that is listed by its name or output file, and None for
        each other one. Without scripts and accounting, no record shows that SLURM never
        had it.
        """
        rows_of_user = dict[str, list[SqueueRow]]()
        for row in listed.values():
            rows_of_user.setdefault(row.user, []).append(row)
        results = dict[JobId, bool | None]()
        for search in wanted:
            results[search.job_id] = None
            for row in rows_of_user.get(search.user, ()):
                if row.has_script and has_job_name(row, search.job_id):
                    results[search.job_id] = True
                    break
        return results
