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

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import structlog

from supervisor_tasks.crash_points import CrashPoint, after, before
from supervisor_tasks.errors import (
    OutcomeUnknownError,
    SupervisorError,
    UndecidedError,
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
    CLOCKS_DIFFER_S,
    FindOwners,
    OnAnswer,
    Request,
    SlurmSettings,
)
from supervisor_tasks.slurm.parsers import (
    MIN_JOB_AGE_S,
    JobRecord,
    QuestionRejectedError,
    SlurmUnavailableError,
)
from supervisor_tasks.slurm.rest_access import RestAccess
from supervisor_tasks.slurm.rest_clock import RestClock
from supervisor_tasks.slurm.rest_control import RestControl
from supervisor_tasks.slurm.rest_homes import RestHomeCheck, RestJobLogs
from supervisor_tasks.slurm.rest_queries import RestJobQueries
from supervisor_tasks.slurm.rest_site import RestSiteQueries
from supervisor_tasks.slurm.script_matching import ScriptSearch, has_job_name
from supervisor_tasks.slurm.squeue import SqueueRow
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

    # --- questions --------------------------------------------------------------------

    def find(
        self, user: Address, begun_s_ago: Mapping[JobId, float], owners: FindOwners
    ) -> dict[JobId, list[JobRecord] | SupervisorError]:
        """Return all records of these jobs, found by their names or output files. An
        error is in the place of a job that is not found while SLURM has a job from that
        time that has not our name, file and comment, and is no other job of ours.
        UndecidedError: the user may have renamed it. SlurmUnavailableError: slurmrestd shows no user for
        it, or for a job of this name, because a host cannot resolve the user now.
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
        for job_id, ago_s in begun_s_ago.items():
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
        if not job.comment.startswith(commands.comment(self.settings.public_address)):
            return False
        output_name = job.stdout.rpartition("/")[2].removesuffix(".log")
        return job.name == output_name

    def sacct_submissions_of(
        self,
        users: Mapping[JobId, Address],  # noqa: ARG002
        begun_s_ago: Mapping[JobId, float],  # noqa: ARG002
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
        each other one: without scripts and accounting, no record shows that SLURM never
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
