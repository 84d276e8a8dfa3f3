"""Orders about jobs that SLURM has, over slurmrestd."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from supervisor_tasks.crash_points import CrashPoint, crash_point
from supervisor_tasks.jobs.model import SlurmId
from supervisor_tasks.slurm import rest_answers, rest_requests
from supervisor_tasks.slurm.parsers import SlurmRejectedError, SlurmUnavailableError
from supervisor_tasks.slurm.rest_access import RestAccess
from supervisor_tasks.slurm.rest_queries import RestJobQueries


@dataclass(frozen=True, slots=True, kw_only=True)
class RestControl:
    """Orders to slurmctld by the admin user. Threads may share it."""

    access: RestAccess
    queries: RestJobQueries

    def cancel(self, slurm_id: SlurmId, user: str) -> None:
        """End a job, if SLURM shows it as this user's. The admin ends it: slurmctld may
        not know the user, and slurmctld 24.11.5 hangs after it has rejected an order.
        Raises SlurmUnavailableError while SLURM does not show whose job it is; a retry
        helps.
        """
        row = self.queries.rows([slurm_id]).get(slurm_id)
        if row is None or row.user not in ("", user):
            return
        if not row.user:
            raise SlurmUnavailableError(
                f"SLURM does not show whose job {slurm_id} is; it is cancelled when slurmctld's host knows {user}"
            )
        with crash_point(CrashPoint.SCANCEL):
            rest_answers.require_success(
                self.access.order("DELETE", f"job/{slurm_id}"), "cancel"
            )

    def cancel_all(self, slurm_ids: Sequence[SlurmId], user: str) -> dict[SlurmId, str]:
        """End several jobs of this user, one request each."""
        rejected = dict[SlurmId, str]()
        for slurm_id in slurm_ids:
            try:
                self.cancel(slurm_id, user)
            except SlurmRejectedError as error:
                rejected[slurm_id] = str(error)
        return rejected

    def set_time_limit(self, slurm_id: SlurmId, limit_min: int) -> None:
        """Give a job an absolute time limit."""
        with crash_point(CrashPoint.TIME_LIMIT):
            self._change(slurm_id, {"time_limit": limit_min})

    def update_job(self, slurm_id: SlurmId, words: Sequence[str]) -> None:
        """Change a job by words of `scontrol update`. Raises SlurmRejectedError also
        where slurmrestd has no word for the change; a retry does not help.
        """
        body = rest_requests.change(words)
        if body is None:
            raise SlurmRejectedError(
                f"slurmrestd 22.05 cannot do `scontrol update JobId={slurm_id} {' '.join(words)}`"
            )
        self._change(slurm_id, body)

    def forbid_requeue(self, slurm_id: SlurmId) -> None:
        """Forbid SLURM to run a job once more."""
        self._change(slurm_id, {"no_requeue": True})

    def hold_again(self, slurm_id: SlurmId) -> None:
        """Raise SlurmRejectedError: slurmrestd requeues nothing, and a retry does not
        help.
        """
        raise SlurmRejectedError(
            f"slurmrestd 22.05 cannot forbid the requeue of an ended job: run `scontrol requeuehold {slurm_id}` and"
            f" `scontrol update JobId={slurm_id} Requeue=0`, then cancel it"
        )

    def _change(self, slurm_id: SlurmId, body: Mapping[str, Any]) -> None:
        rest_answers.require_success(
            self.access.order("POST", f"job/{slurm_id}", body), "update"
        )
