"""The customers' homes, which slurmrestd does not show."""

from collections.abc import Mapping
from dataclasses import dataclass

from supervisor_tasks.errors import UndecidedError
from supervisor_tasks.jobs.model import Address, JobId
from supervisor_tasks.slurm.parsers import SlurmUnavailableError
from supervisor_tasks.slurm.rest_clock import CLOCK_KNOWN_FOR_S

NO_LOGS = "SLURM_TRANSPORT=rest: the worker cannot look into the customers' homes"


class RestHomeCheck:
    """No check: no session begins as a customer."""

    def require_own(self, user: Address) -> None:
        """Return: no session begins as the customer, so none reads start-up files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestJobLogs:
    """The output files of jobs, which the worker cannot see. `min_job_age_s` is that of
    slurm.conf. Threads may share it.
    """

    min_job_age_s: int

    def log_files(
        self,
        user: Address,  # noqa: ARG002
        begun_ago_s: Mapping[JobId, float],
    ) -> dict[JobId, bool | UndecidedError]:
        """Return False for a job while slurmctld must still know a job that began then.
        Later, only the log could show that SLURM had the job, and the worker cannot see
        the log: then the error is in the place of the job.
        """
        logs = dict[JobId, bool | UndecidedError]()
        for job_id, ago_s in begun_ago_s.items():
            logs[job_id] = self._forgotten(ago_s) or False
        return logs

    def _forgotten(self, begun_ago_s: float) -> UndecidedError | None:
        if not self.min_job_age_s:
            return None  # SLURM forgets no job
        if begun_ago_s + CLOCK_KNOWN_FOR_S < self.min_job_age_s:
            return None
        return UndecidedError(
            f"it is not known whether SLURM had the job: its submission began {begun_ago_s:.0f} s ago, SLURM forgets a"
            f" job {self.min_job_age_s} s after its end, and {NO_LOGS}"
        )

    def jobs_with_logs(
        self,
        user: Address,  # noqa: ARG002
        begun_ago_s: Mapping[JobId, float],  # noqa: ARG002
    ) -> set[JobId]:
        """Raise SlurmUnavailableError: the homes cannot be seen. A retry helps only
        over SSH.
        """
        raise SlurmUnavailableError(NO_LOGS)
