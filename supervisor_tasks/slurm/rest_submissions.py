"""Submissions to SLURM, over slurmrestd: as the customer, by a token that ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from supervisor_tasks.crash_points import CrashPoint, after, before
from supervisor_tasks.errors import OutcomeUnknownError, SupervisorError
from supervisor_tasks.jobs.effect_timing import SUBMIT_TIMEOUT_S, submission_window_s
from supervisor_tasks.jobs.model import Address, JobId, SlurmId
from supervisor_tasks.slurm import rest_answers, rest_requests
from supervisor_tasks.slurm.guarded_command import (
    ANSWERED_AFTER_S,
    LoginClock,
    TooLateError,
)
from supervisor_tasks.slurm.interface import OnAnswer, Request, SlurmSettings
from supervisor_tasks.slurm.parsers import SlurmUnavailableError
from supervisor_tasks.slurm.rest_access import RestAccess
from supervisor_tasks.slurm.ssh import our_clock_s

PATH = "/usr/local/bin:/usr/bin:/bin"  # of jobs, unless the settings have another one


@dataclass(frozen=True, slots=True, kw_only=True)
class RestSubmissions:
    """Submissions as customers. `home` is the folder in which a customer's jobs begin,
    with {address} for the customer's; `environment` has their variables besides PATH,
    HOME, USER and LOGNAME. Threads may share it.
    """

    access: RestAccess
    settings: SlurmSettings
    home: str
    environment: Mapping[str, str]

    @property
    def window_s(self) -> float:
        """How many seconds after its beginning a submission can no longer change
        anything in SLURM.
        """
        return submission_window_s(self.settings.message_timeout_s)

    @property
    def token_window_s(self) -> float:
        """Return 0: over slurmrestd, no session of the customer's gets a token."""
        return 0.0

    def submit_batch(
        self,
        user: Address,
        requests: Sequence[tuple[JobId, Request]],
        clock: LoginClock,
        begun_s: float,
        answered: OnAnswer,
    ) -> None:
        """Submit jobs of one customer, one request each; see Submissions."""
        for job_id, request in requests:
            outcome = self._submitted(user, job_id, request, clock, begun_s)
            after(CrashPoint.SBATCH)
            answered(job_id, outcome)

    def _submitted(
        self,
        user: Address,
        job_id: JobId,
        request: Request,
        clock: LoginClock,
        begun_s: float,
    ) -> SlurmId | Exception:
        left_s = begun_s + ANSWERED_AFTER_S - our_clock_s()
        if left_s <= ANSWERED_AFTER_S - SUBMIT_TIMEOUT_S:
            return TooLateError(
                f"its turn came more than {SUBMIT_TIMEOUT_S:g} s after the submission began; nothing was sent"
            )
        body = rest_requests.submission(
            job_id,
            request.definition,
            request.script,
            limit_min=request.limit_min,
            partition=self.settings.partition,
            comment=request.comment(user, job_id, self.settings, clock.at(begun_s)),
            folder=self._home_of(user),
            environment=self._environment_of(user),
        )
        token = self.access.mint.token(
            user, clock.at(our_clock_s()), clock.at(begun_s + SUBMIT_TIMEOUT_S)
        )
        before(CrashPoint.SBATCH)
        try:
            answer = self.access.client.request(
                "POST", "job/submit", user, token, body=body, timeout_s=left_s
            )
            slurm_id = rest_answers.submitted(
                answer, has_submit_key=bool(self.settings.submit_key)
            )
            self._require_known_user(user, slurm_id)
        except SupervisorError as error:
            return error
        return slurm_id

    def _require_known_user(self, user: str, slurm_id: SlurmId) -> None:
        """Look at a job that slurmctld just took, and end it if it is not the user's.
        slurmctld takes a job of a user whom it does not know, and gives it to the user
        with the number 99. An earlier job proves nothing, because slurmctld resolves
        the user each time. Raises SlurmUnavailableError when the job was ended, and
        OutcomeUnknownError when SLURM does not show whose job it is.
        """
        try:
            owner = rest_answers.owner(
                self.access.order("GET", f"job/{slurm_id}"), slurm_id
            )
            if owner not in ("", user):
                rest_answers.require_success(
                    self.access.order("DELETE", f"job/{slurm_id}"), "cancel"
                )
        except SupervisorError as error:  # also if SLURM does not end it
            raise OutcomeUnknownError(
                f"SLURM took the job as {slurm_id}, and its owner is not known: {error}"
            ) from error
        if not owner:
            raise OutcomeUnknownError(
                f"SLURM took the job as {slurm_id}, and does not show whose job it is"
            )
        if owner != user:
            raise SlurmUnavailableError(
                f"slurmctld's host does not know the user {user}: job {slurm_id} was ended; make the account there"
            )

    def _home_of(self, user: str) -> str:
        return self.home.replace("{address}", user)

    def _environment_of(self, user: str) -> dict[str, str]:
        return {
            "PATH": PATH,
            **self.environment,
            "HOME": self._home_of(user),
            "USER": user,
            "LOGNAME": user,
        }
