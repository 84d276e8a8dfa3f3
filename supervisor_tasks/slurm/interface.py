"""The supervisor's questions and orders to SLURM, one protocol for each subject. By
SLURM_TRANSPORT, slurm/cluster.py builds the parts that send them over SSH, or
slurm/rest.py those that send them to slurmrestd. The workflows know only these types,
and each is given the parts that it uses. Pure.

Threads may share each part. Each method may raise a TransientError when SLURM does not
answer: SlurmUnavailableError, or over SSH SshUnavailableError. A retry helps later.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from supervisor_tasks.errors import SupervisorError, UndecidedError
from supervisor_tasks.jobs.effect_timing import SUBMIT_TIMEOUT_S
from supervisor_tasks.jobs.model import Address, Definition, JobId, SlurmId
from supervisor_tasks.slurm import commands
from supervisor_tasks.slurm.cluster_identity import ClusterIdentity
from supervisor_tasks.slurm.guarded_command import LoginClock
from supervisor_tasks.slurm.hardware import PartitionHardware
from supervisor_tasks.slurm.job_matching import MatchRequest, MatchResult
from supervisor_tasks.slurm.parsers import (
    MAX_SLURM_ID,
    MIN_JOB_AGE_S,
    JobRecord,
    QuestionRejectedError,
)
from supervisor_tasks.slurm.script_matching import ScriptSearch
from supervisor_tasks.slurm.size import SiteChoice, Size
from supervisor_tasks.slurm.squeue import SqueueRow
from supervisor_tasks.slurm.submit_token import Submission, expires_s, with_token

CLOCKS_DIFFER_S = 600.0  # slurmctld's and the login node's: munge allows 300 s
# with a longer wait, the worker learns late that slurmctld is back
CONTROLLER_TIMEOUT_S = 15.0

FindOwners = Callable[[Mapping[SlurmId, int]], Mapping[SlurmId, Collection[JobId]]]
OnAnswer = Callable[[JobId, SlurmId | Exception], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The job that the worker submits to SLURM."""

    definition: Definition
    limit_min: int
    script: str = field(repr=False)
    number: int  # which submission of the job this is, from 1

    def comment(
        self, user: str, job_id: JobId, settings: "SlurmSettings", begun_s: int
    ) -> str:
        """Return the job's comment; at a site with job_submit.lua, with the token that
        it checks. The submission began at `begun_s` (Unix time, the site's clock).
        """
        comment = commands.comment(settings.public_address)
        if not settings.submit_key:
            return comment
        submission = Submission(
            job_id=job_id,
            user=user,
            definition=self.definition,
            limit_min=self.limit_min,
            partition=settings.partition,
            comment=comment,
            number=self.number,
            expires_s=expires_s(begun_s, SUBMIT_TIMEOUT_S, settings.message_timeout_s),
        )
        return with_token(submission, settings.submit_key)


@dataclass(frozen=True, slots=True)
class Controller:
    """A slurmctld that answers. `booted` is its start time in its own words (seconds
    since the epoch where it can print them); each restart changes it.
    `accounting_unused`: slurmctld keeps an accounting database that the supervisor does
    not ask. `identity` is its cluster. `next_id` is the id of the next job, 0 where
    slurmctld does not show it. `min_job_age_s` is how long it remembers a job that has
    ended, 0 for ever. `max_id` is MaxJobId. `plugins_choose`: a plugin of the site may
    choose a job's account, QOS or threads.
    """

    booted: str
    accounting_unused: bool
    identity: ClusterIdentity
    next_id: int = 0
    min_job_age_s: int = MIN_JOB_AGE_S
    max_id: int = MAX_SLURM_ID
    plugins_choose: bool = True

    def runs_for_s(self, now_s: int) -> int:
        """Return for how many seconds slurmctld has run, by its own clock; 0 if its
        start is not shown as a time.
        """
        if not self.booted.isdecimal():
            return 0
        return now_s - int(self.booted)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """What the operator has set about SLURM, for both transports. Jobs are submitted to
    the partition, and their comment carries `public_address` for the plugins.
    `compares_sizes`: SLURM gives a job exactly the CPUs, memory and nodes that the job
    asks for, so that a larger size comes from its owner. `submit_key` is that of
    job_submit.lua, and empty at a site without it. `customer_account` is the account of
    the accounting database that customers are added to; empty: the site adds them.
    """

    partition: str
    public_address: str
    message_timeout_s: float = 10.0  # MessageTimeout of slurm.conf
    compares_sizes: bool = True
    submit_key: str = field(default="", repr=False)
    customer_account: str = ""


class SiteClock(Protocol):
    """The site's clock."""

    def of(self, user: str) -> LoginClock:
        """Return the clock that a submission of this user is timed by."""

    def now_s(self) -> int:
        """Return the site's time (Unix time)."""


class HomeCheck(Protocol):
    """The check of the customers' homes."""

    def require_own(self, user: Address) -> None:
        """Check the customer's home before a session begins as the customer. Raises
        UnsafeHomeError; a retry helps once the operator has repaired the home.
        """


class Submissions(Protocol):
    """Submissions as customers."""

    @property
    def window_s(self) -> float:
        """How many seconds after its beginning a submission can no longer change
        anything in SLURM.
        """

    @property
    def token_window_s(self) -> float:
        """How many seconds after the beginning of a submission slurmctld may still take
        the token that the customer's login session got; 0 where no session gets one.
        """

    def submit_batch(
        self,
        user: Address,
        requests: Sequence[tuple[JobId, Request]],
        clock: LoginClock,
        begun_s: float,
        answered: OnAnswer,
    ) -> None:
        """Submit jobs of one customer to SLURM, one after the other, within
        SUBMIT_TIMEOUT_S of `begun_s` (`our_clock_s`) or not at all. Calls `answered`
        once for each job, in this thread, as soon as its answer is there
        (`submit_once.submission_outcome`). Raises only exceptions of `answered`: then
        the other jobs get no call, and SLURM may have them, so the caller searches for
        them first.
        """


class SubmissionSearch(Protocol):
    """The search for jobs that may have been submitted."""

    def find(
        self, user: Address, begun_ago_s: Mapping[JobId, float], owners: FindOwners
    ) -> Mapping[JobId, list[JobRecord] | SupervisorError]:
        """Return all records that slurmctld has of each of these jobs of one customer,
        whose submissions began so many seconds ago. `owners` takes SLURM ids with their
        submission times and returns the ids that are jobs of ours, with these jobs. An
        error is in the place of a job when a SLURM job may or may not be this one. It
        is UndecidedError, or a TransientError if a later answer can show it.
        """

    def sacct_submissions_of(
        self, users: Mapping[JobId, Address], begun_ago_s: Mapping[JobId, float]
    ) -> dict[JobId, list[JobRecord] | QuestionRejectedError]:
        """Return accounting's records of the submissions of these jobs since they
        began. The error is in the place of a job whose customer the login node does not
        know. Empty without accounting.
        """

    def scripts(self, jobs: Sequence[SqueueRow]) -> dict[SlurmId, JobId]:
        """Return the job of ours that each SLURM job's batch script names; the others
        are left out.
        """

    def was_submitted(
        self, wanted: Sequence[ScriptSearch], listed: Mapping[SlurmId, SqueueRow]
    ) -> dict[JobId, bool | None]:
        """Return for each job whether SLURM or accounting has, or had, what `find`
        searches for; None when the records cannot decide it.
        """


class JobLogs(Protocol):
    """The output files of jobs in their customers' homes."""

    def log_files(
        self, user: Address, begun_ago_s: Mapping[JobId, float]
    ) -> dict[JobId, bool | UndecidedError]:
        """Return whether each of these jobs of one customer has written its output file
        since its submission began. The error is in the place of a job when the worker
        cannot see it and SLURM may have forgotten the job.
        """

    def jobs_with_logs(
        self, user: Address, begun_ago_s: Mapping[JobId, float]
    ) -> set[JobId]:
        """Return the jobs of one customer that have written their output files since
        their submissions began. Raises a TransientError where the worker cannot see
        that; a retry helps.
        """


class JobQueries(Protocol):
    """Questions about jobs."""

    @property
    def has_accounting(self) -> bool:
        """Whether the supervisor asks an accounting database about jobs that have
        ended.
        """

    def list_all(self, user: str | None = None) -> dict[SlurmId, SqueueRow]:
        """Return all jobs (of one user) that slurmctld remembers."""

    def look(
        self,
        wanted: Sequence[MatchRequest],
        listed: Mapping[SlurmId, SqueueRow] | None = None,
        *,
        accounting: bool = True,
    ) -> dict[JobId, MatchResult]:
        """Return what SLURM shows of each of these jobs. `listed` is slurmctld's whole
        list, if the caller has it. Unless `accounting` is False, accounting is asked
        about the jobs that slurmctld does not know.
        """

    def known_ids(self, slurm_ids: Collection[SlurmId]) -> set[SlurmId]:
        """Return the ids that slurmctld or accounting knows as jobs of any user."""

    def requests(self, slurm_ids: Collection[SlurmId]) -> dict[SlurmId, Size]:
        """Return the sizes that running jobs were submitted for, with their owners'
        later changes. Jobs that SLURM does not know are left out.
        """

    def not_started(self, slurm_ids: Collection[SlurmId]) -> dict[SlurmId, str]:
        """Return those of these jobs, which SLURM shows as completed, that a node could
        not start; with the node.
        """


class SiteQueries(Protocol):
    """Questions about slurmctld, and about what the site has configured."""

    def controller(self) -> Controller:
        """Return slurmctld's state."""

    def memory_per_cpu_limit(self) -> int | None:
        """Return the site's MaxMemPerCPU (MB), None where it has none."""

    def site_choices(
        self, shown: Collection[tuple[str, Size]]
    ) -> Mapping[str, SiteChoice] | None:
        """Return what the site gives the jobs of these users, who have jobs of these
        sizes. A user is left out if SLURM does not show what the site gives him. None
        where a plugin of the site may choose.
        """


class Control(Protocol):
    """Orders about jobs that SLURM has."""

    def cancel(self, slurm_id: SlurmId, user: str) -> None:
        """Ask SLURM to end a job, only if it is this user's. A job that has ended is no
        error.
        """

    def cancel_all(self, slurm_ids: Sequence[SlurmId], user: str) -> dict[SlurmId, str]:
        """Ask SLURM to end several jobs of this user. Returns the jobs that SLURM
        did not end, and why.
        """

    def set_time_limit(self, slurm_id: SlurmId, limit_min: int) -> None:
        """Give a job an absolute time limit. A job that has ended is no error. Raises
        SlurmRejectedError where SLURM rejects the limit; a retry does not help.
        """

    def update_job(self, slurm_id: SlurmId, words: Sequence[str]) -> None:
        """Change a job by words of `scontrol update`. A job that has ended
        is no error. Raises SlurmRejectedError where SLURM rejects the change; a retry
        does not help.
        """

    def forbid_requeue(self, slurm_id: SlurmId) -> None:
        """Forbid SLURM to run a job once more. Raises SlurmRejectedError; a retry does
        not help.
        """

    def hold_again(self, slurm_id: SlurmId) -> None:
        """Make a job that has ended wait again, on hold. Raises SlurmRejectedError; a
        retry does not help.
        """


class SlurmCluster(Protocol):
    """One SLURM: its parts, and the connections that they share."""

    @property
    def settings(self) -> SlurmSettings:
        """What the operator has set."""

    @property
    def clock(self) -> SiteClock:
        """The site's clock."""

    @property
    def homes(self) -> HomeCheck:
        """The check of the customers' homes."""

    @property
    def submissions(self) -> Submissions:
        """The submissions."""

    @property
    def search(self) -> SubmissionSearch:
        """The search for jobs that may have been submitted."""

    @property
    def logs(self) -> JobLogs:
        """The output files of jobs."""

    @property
    def queries(self) -> JobQueries:
        """The questions about jobs."""

    @property
    def site(self) -> SiteQueries:
        """The questions about slurmctld and the site."""

    @property
    def control(self) -> Control:
        """The orders about jobs."""

    @property
    def address(self) -> str:
        """The address of the login node or slurmrestd, for messages."""

    def close(self) -> None:
        """Close the connections."""


class NodeQuery(Protocol):
    """The question about the partition's nodes. Threads may share it."""

    @property
    def partition(self) -> str:
        """The partition."""

    def hardware(self) -> PartitionHardware:
        """Return the hardware that counts. Raises a TransientError; retry later."""
