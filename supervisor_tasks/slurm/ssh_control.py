"""Orders about jobs that SLURM has, over SSH. Each is one command."""

from collections.abc import Sequence
from dataclasses import dataclass

from supervisor_tasks.crash_points import CrashPoint, crash_point
from supervisor_tasks.jobs.model import SlurmId
from supervisor_tasks.slurm import commands
from supervisor_tasks.slurm.login_node import LoginNode
from supervisor_tasks.slurm.parsers import not_cancelled, require_success


@dataclass(frozen=True, slots=True, kw_only=True)
class SshControl:
    """Orders to scancel and scontrol by the admin user. Threads may share it."""

    login_node: LoginNode

    def cancel(self, slurm_id: SlurmId, user: str) -> None:
        """Ask SLURM to end a job, only if it is this user's. A job that has ended is no
        error.
        """
        argv = commands.scancel(self.login_node.paths.scancel, [slurm_id], user)
        with crash_point(CrashPoint.SCANCEL):
            require_success(self.login_node.ask(argv), "scancel")

    def cancel_all(self, slurm_ids: Sequence[SlurmId], user: str) -> dict[SlurmId, str]:
        """Ask SLURM to end several jobs of this user, in one command. Returns the jobs
        that SLURM did not end, and why.
        """
        argv = commands.scancel(self.login_node.paths.scancel, slurm_ids, user)
        with crash_point(CrashPoint.SCANCEL):
            return not_cancelled(self.login_node.ask(argv), slurm_ids)

    def set_time_limit(self, slurm_id: SlurmId, limit_min: int) -> None:
        """Give a job an absolute time limit. A job that has ended is no error. Raises
        SlurmRejectedError where SLURM rejects the limit; a retry does not help.
        """
        argv = commands.set_time_limit(
            self.login_node.paths.scontrol, slurm_id, limit_min
        )
        with crash_point(CrashPoint.TIME_LIMIT):
            require_success(self.login_node.ask(argv), "scontrol update")

    def update_job(self, slurm_id: SlurmId, words: Sequence[str]) -> None:
        """Change a job by words of `scontrol update`. A job that has ended is no error.
        Raises SlurmRejectedError where SLURM rejects the change; a retry does not help.
        """
        argv = commands.update_job(self.login_node.paths.scontrol, slurm_id, words)
        require_success(self.login_node.ask(argv), "scontrol update")

    def forbid_requeue(self, slurm_id: SlurmId) -> None:
        """Forbid SLURM to run a job once more. Its owner could ask for that even after
        the job's end. The call changes nothing on a job that has ended. Raises
        SlurmRejectedError; a retry does not help.
        """
        self.update_job(slurm_id, ["Requeue=0"])

    def hold_again(self, slurm_id: SlurmId) -> None:
        """Make a job that has ended wait again, on hold: SLURM forbids the requeue only
        of a job that has not ended. Raises SlurmRejectedError; a retry does not help.
        """
        argv = commands.hold_again(self.login_node.paths.scontrol, slurm_id)
        require_success(self.login_node.ask(argv), "scontrol requeuehold")
