"""SLURM over slurmrestd (SLURM_TRANSPORT=rest): no login node, and no session as a
customer.

Exactly once works as over SSH: the worker writes SUBMITTING first, a submission can
arrive for SUBMIT_TIMEOUT_S only, and after a submission without an answer the worker
searches for the job. The token of the request bounds the time: slurmctld rejects it
after `exp`, by its own clock, which the worker reads beforehand. A job is identified by
its name, its output file and our comment, because slurmrestd 22.05 shows no batch
script. So a job that its owner has renamed counts as undecided. A site should have
job_submit.lua, which forbids that.

slurmrestd 22.05 does not show when slurmctld was started, its MinJobAge and
MaxMemPerCPU (the settings have them), the next job id, and the customers' homes. Where
one of these would be the proof, the operator decides.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from supervisor_tasks.crash_points import CrashPoint, after, before
from supervisor_tasks.errors import (
    OutcomeUnknownError,
    SupervisorError,
)
from supervisor_tasks.jobs.effect_timing import SUBMIT_TIMEOUT_S, submission_window_s
from supervisor_tasks.jobs.model import Address, JobId, SlurmId
from supervisor_tasks.slurm import commands, rest_answers, rest_requests
from supervisor_tasks.slurm.guarded_command import (
    ANSWERED_AFTER_S,
    LoginClock,
    TooLateError,
)
from supervisor_tasks.slurm.interface import (
    OnAnswer,
    Request,
    SlurmSettings,
)
from supervisor_tasks.slurm.parsers import (
    MIN_JOB_AGE_S,
    SlurmUnavailableError,
)
from supervisor_tasks.slurm.rest_access import RestAccess
from supervisor_tasks.slurm.rest_clock import RestClock
from supervisor_tasks.slurm.rest_control import RestControl
from supervisor_tasks.slurm.rest_homes import RestHomeCheck, RestJobLogs
from supervisor_tasks.slurm.rest_queries import RestJobQueries
from supervisor_tasks.slurm.rest_search import RestSubmissionSearch
from supervisor_tasks.slurm.rest_site import RestSiteQueries
from supervisor_tasks.slurm.ssh import our_clock_s
from supervisor_tasks.slurm.submit_token import expires_s, with_token

log = structlog.get_logger()

PATH = "/usr/local/bin:/usr/bin:/bin"  # of jobs, unless the settings have another one
Environment = Callable[[str], Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestCluster:
    """SLURM behind slurmrestd. Threads may share it."""

    access: RestAccess
    settings: SlurmSettings
    home: str
    environment: Mapping[str, str]
    clock: RestClock
    homes: RestHomeCheck
    search: RestSubmissionSearch
    logs: RestJobLogs
    queries: RestJobQueries
    site: RestSiteQueries
    control: RestControl

    @classmethod
    def of(
        cls,
        access: RestAccess,
        settings: SlurmSettings,
        *,
        home: str,
        environment: Mapping[str, str],
        min_job_age_s: int = MIN_JOB_AGE_S,
        max_memory_per_cpu_mb: int | None = None,
    ) -> "RestCluster":
        """Build the cluster's parts. `home` is the folder in which a customer's jobs
        begin, with {address} for the customer's; `environment` has their variables
        besides PATH, HOME, USER and LOGNAME. `min_job_age_s` and
        `max_memory_per_cpu_mb` (None: no limit) are those of slurm.conf.
        """
        clock = RestClock(access=access)
        queries = RestJobQueries(access=access, clock=clock)
        return cls(
            access=access,
            settings=settings,
            home=home,
            environment=environment,
            clock=clock,
            homes=RestHomeCheck(),
            search=RestSubmissionSearch(
                queries=queries, clock=clock, public_address=settings.public_address
            ),
            logs=RestJobLogs(min_job_age_s=min_job_age_s),
            queries=queries,
            site=RestSiteQueries(
                access=access,
                partition=settings.partition,
                min_job_age_s=min_job_age_s,
                max_memory_per_cpu_mb=max_memory_per_cpu_mb,
            ),
            control=RestControl(access=access, queries=queries),
        )

    @property
    def address(self) -> str:
        """The URL of slurmrestd."""
        return self.access.client.url

    @property
    def submission_window_s(self) -> float:
        """How many seconds after its beginning a submission can no longer change
        anything in SLURM.
        """
        return submission_window_s(self.settings.message_timeout_s)

    @property
    def token_window_s(self) -> float:
        """Return 0: over slurmrestd, no session of the customer's gets a token."""
        return 0.0

    def close(self) -> None:
        """Close the connections."""
        self.access.client.close()

    # --- submissions ------------------------------------------------------------------

    def submit_batch(
        self,
        user: Address,
        requests: Sequence[tuple[JobId, Request]],
        clock: LoginClock,
        begun_s: float,
        answered: OnAnswer,
    ) -> None:
        """Submit jobs of one customer, one request each; see SlurmCluster."""
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
            comment=self._comment(user, job_id, request, clock.at(begun_s)),
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
        """Look at a job that slurmctld just took, and end it if it is not the user's:
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
        except SupervisorError as error:  # also if SLURM rejects to end it
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

    def _comment(
        self, user: Address, job_id: JobId, request: Request, begun_slurm_s: int
    ) -> str:
        comment = commands.comment(self.settings.public_address)
        if not self.settings.submit_key:
            return comment
        until_s = expires_s(
            begun_slurm_s, SUBMIT_TIMEOUT_S, self.settings.message_timeout_s
        )
        submission = request.submission(
            user,
            job_id,
            partition=self.settings.partition,
            comment=comment,
            expires_s=until_s,
        )
        return with_token(submission, self.settings.submit_key)

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
