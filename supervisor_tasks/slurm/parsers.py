"""Parse the output of SLURM's commands. Pure; the samples in tests/data/slurm name the
version that printed them.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from supervisor_tasks.errors import OutcomeUnknownError, PermanentError, TransientError
from supervisor_tasks.jobs.model import Outcome, SlurmId
from supervisor_tasks.jobs.runs import Sighting
from supervisor_tasks.slurm.job_states import Phase, end, never_begins, phase
from supervisor_tasks.slurm.size import SiteChoice, Size

# SLURM's own bound for MaxJobId; ids of a federation are above it, and a look finds
# them
MAX_SLURM_ID = 0x03FF_FFFF
MIN_JOB_AGE_S = 300  # SLURM's default
SIGNAL_BITS = 8  # wait(2): exit status in the high byte, signal in the low one
SIGNAL_MASK = 0x7F
# ESLURMD_IO_ERROR (slurm_errno.h), which squeue prints in the place of a wait status;
# sacct shows 0:53, as its lowest bits read like a signal
OUTPUT_NOT_OPENED = 4021

# The commands print these when slurmctld's answer was missing, late or incomplete.
# slurmctld may still have taken the request. They are SLURM_COMMUNICATIONS_*,
# SLURM_PROTOCOL_*, the authentication's errors and the network's errors.
_NO_ANSWER = (
    "socket timed out",
    "unable to contact slurm controller",
    "communication connection failure",
    "communication shutdown failure",
    "message send failure",
    "message receive failure",
    "unexpected message received",
    "unexpected missing socket",
    "insane message length",
    "incompatible versions",  # slurmctld about the request, or sbatch about the answer
    "protocol version has changed",
    "received zero length message",
    "received message length",
    "failed to send entire message",
    "header lengths are longer",
    "zero bytes were transmitted",
    "find an address, check slurm.conf",
    "connection refused",
    "connection reset",
    "connection timed out",
    "transport endpoint is not connected",
    "broken pipe",
    "no route to host",
    "is unreachable",
    "standby mode",
    "temporarily unavailable",
    "temporarily unable",
    "munge",
    "authentication credential",
    "authentication agent",
    "authentication public key",
    "authentication does not apply",
    "protocol authentication error",
    "cannot unpack credential",
    "sbatch: fatal:",
)
_UNKNOWN_ACCOUNT = "invalid account or account/partition combination"
# slurmctld took no job, and the reason is not in the job: it is the site's, or it goes
# away as jobs end.
_NOT_NOW = (
    # AssocMaxSubmitJobLimit, QOSGrpSubmitJobsLimit ...: the user, account or QOS has
    # too many queued jobs
    "submitjob",
    "required partition not available",  # inactive or drained
    "partition in down state",
    "required node not available",
    "system submissions disabled",
    "unable to create job record, try again",  # MaxJobCount
    "invalid user id",  # slurmctld does not know the customer yet
    "invalid group id",
    # the job names no account: accounting does not know the customer yet, or the
    # partition does not let his default account in
    _UNKNOWN_ACCOUNT,
    # AllowGroups of the partition: slurmctld reads a group's members again only each
    # GroupUpdateTime (10 min), and the account of a new customer is younger
    "group not permitted to use this partition",
    "writing script/environment to file",  # slurmctld's disk is full
    "configuration source",
)
# slurmctld prints these about a job that it will never take: texts of slurm_errno.c,
# 22.05.8.
_REJECTED = (
    "invalid partition name specified",
    "no partition specified",
    "access/permission denied",
    "requested nodes not in this partition",
    "more processors requested than permitted",
    "node count specification invalid",
    "job size specification needs to be provided",
    "job script not specified",
    "other parameter too long",
    "requested node configuration is not available",
    "requested partition configuration not available now",
    "task distribution specification invalid",
    "task count specification invalid",
    "invalid feature specification",
    "invalid preferred feature specification",
    "requested operation not supported on this system",
    "requested operation is presently disabled",
    "job dependency problem",
    "requested more tasks than available processors",
    "memory required by task is not available",
    "invalid license specification",
    "job violates accounting/qos policy",
    "requested time limit is invalid",
    "time limit specification required",
    "access denied to requested reservation",
    "requested reservation is invalid",
    "invalid wckey specification",
    "invalid qos specification",
    "breached requested qos usage threshold",
    "cpu count specification invalid",
    "invalid generic resource (gres) specification",
    "invalid gres specification",
    "invalid trackable resource (tres) specification",
    "requested gres option unsupported",
    "insufficient gres available",
    "invalid mcs_label specified",
    "threads per core than the job allocation",
    "multiple partition job request not supported",
)
# sbatch prints these about its options or the script, without asking slurmctld;
# cli_filter is the site's.
_REJECTED_BY_SBATCH = (
    "batch script is empty",
    "does not look like a batch script",
    "batch script contains dos line breaks",
    "controller does not allow scripts that",
    "invalid directive found in batch script",
    "sbatch: error: invalid",
    "sbatch: error: unrecognized",
    "cli_filter plugin terminated with error",
)
# sbatch prints these before it asks slurmctld, when a SPANK plugin on the login node
# cannot be loaded or fails, for example during its upgrade. Samples:
# tests/data/slurm/sbatch-spank-*.
_STACK_NOT_LOADED = (
    "failed to initialize plugin stack",
    "plugin stack post-option processing failed",
)
# plugins/supervisor_submit.lua prints these when it does not recognise a submission as
# ours. The site must repair this: a customer's own submission never comes through the
# worker. If the token was used, the job may be in SLURM: its customer may have read the
# token.
_TOKEN_REJECTED = (
    "supervisor: no token",
    "supervisor: wrong token",
    "supervisor: token expired",
    "supervisor: token does not cover",
    "supervisor: no key",
    "supervisor: no memory",
    "supervisor: unknown user",
)
_TOKEN_ADVICE = {
    "supervisor: no token": "; the worker has no key: give it the key of job_submit.lua",
    "supervisor: wrong token": "; the worker has another key: give it the key of job_submit.lua",
}
_TOKEN_USED = ("supervisor: token used",)
# the last line of an sbatch that has asked slurmctld begins so
_REJECTION_TEXT = "batch job submission failed:"
_NOT_RUN = (126, 127)
# sh's status of a command that ended by its time limit or a signal
_ENDED_FROM_OUTSIDE = (124, *range(128, 128 + 65))
# with these and no id, sbatch's text does not decide
_NO_DECISION = (0, *_ENDED_FROM_OUTSIDE)
# SLURM does not change the job at this moment. slurmctld changes it itself, or has no
# record in slurmdbd yet; or the login node does not know the user, as its directory is
# away.
_NOT_CHANGED_NOW = (
    "job can not be altered now, try again later",
    "the db index is being set, try again in a bit",
    "invalid user name",
    # its owner has just requeued it, so it needs no `requeuehold`
    "job is pending execution",
)
_UNKNOWN_JOB = (
    "invalid job id specified",
    "already completing or completed",
    "already finished",
)


class SlurmRejectedError(PermanentError):
    """SLURM answered that it will not do this; the message is SLURM's own. A retry does
    not help.
    """


class AnswerNotUnderstoodError(OutcomeUnknownError):
    """sbatch ended by itself with a text that is neither a rejection nor a missing
    answer.
    """


class SlurmUnavailableError(TransientError):
    """SLURM gives no answer that can be used; retry later."""


class UnknownAccountError(SlurmUnavailableError):
    """Accounting does not know the user, or the partition does not let his account in.
    A retry helps once the user has been added to an account that it lets in.
    """


class QuestionRejectedError(SlurmUnavailableError):
    """SLURM answers and rejects a whole question, such as one about an id that no job
    can have.

    The question has no answer now, so a caller treats it as unavailable. A retry helps
    once SLURM accepts the question: when the id is one that a job can have, or the
    login node knows the user.
    """


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """A command's exit status and output."""

    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as SLURM shows it. `user` is empty where the login node cannot resolve it.
    `submit_s`, `start_s` (for a waiting job, when it may begin) and `ended_s` are Unix
    times of slurmctld's clock. Only squeue shows `restarts` and `may_requeue`:
    whether its owner can make SLURM run it once more, even after its end. Only sacct
    shows `ended_s`, `earlier_s`, the seconds of the `earlier_runs` before the last
    requeue, and `earlier_sizes`, the sizes of these runs. `site` is what the site gave
    the job when it was submitted; where it is None, the first look's size counts as
    that.
    """

    slurm_id: SlurmId
    state: str
    elapsed_s: int
    exit_status: int
    reason: str = ""
    user: str = ""
    submit_s: int = 0
    restarts: int = 0
    ended_s: int | None = None
    start_s: int | None = None
    earlier_s: int = 0
    earlier_runs: int = 0
    earlier_sizes: tuple[Size, ...] = ()
    size: Size | None = None
    may_requeue: bool = False
    site: SiteChoice | None = None

    @property
    def phase(self) -> Phase:
        """How far the job is in SLURM."""
        return phase(self.state)

    @property
    def shown(self) -> str:
        """SLURM's name for the job's state, and for a waiting job the reason."""
        if self.phase is not Phase.WAITING:
            return self.state
        if self.reason in ("", "None"):
            return self.state
        return f"{self.state} ({self.reason})"

    @property
    def is_pending(self) -> bool:
        """Whether SLURM has given the job nothing yet. A CONFIGURING job waits for its
        prolog and has its nodes.
        """
        return self.phase is Phase.WAITING and self.state != "CONFIGURING"

    @property
    def never_begins(self) -> bool:
        """Whether the job waits until its owner or the site changes something."""
        return self.phase is Phase.WAITING and never_begins(self.reason)

    @property
    def is_stalled(self) -> bool:
        """Whether the job has not ended and its elapsed time stands still."""
        return self.phase is Phase.WAITING or self.state == "SUSPENDED"

    def sighting(self, now_s: int) -> Sighting:
        """Return what a look at this time shows of the present run."""
        start_s: int | None = None
        used_until_s = 0
        if self._has_begun:
            start_s = self.start_s
            used_until_s = (start_s or 0) + self.elapsed_s
        given = self.site or self.size
        account, qos, threads = "", "", ""
        if given is not None:
            account = given.account
            qos = given.qos
            threads = given.threads
        return Sighting(
            submit_s=self.submit_s,
            restarts=self.restarts,
            start_s=start_s,
            elapsed_s=self.elapsed_s,
            seen_s=max(now_s, used_until_s),
            suspended=self.state == "SUSPENDED",
            account=account,
            qos=qos,
            threads=threads,
        )

    @property
    def _has_begun(self) -> bool:
        """Whether the present run has begun. A job that ended after 0 seconds may never
        have begun.
        """
        if self.phase is Phase.WAITING:
            return False
        return self.phase is Phase.RUNNING or self.elapsed_s > 0

    def outcome(self) -> Outcome:
        """Return the result for the contract of a job that has ended."""
        meaning = end(self.state)
        exit_status = meaning.exit_status
        if meaning.by_itself:
            exit_status = self.exit_status
        if self.state == "FAILED":
            reason = describe_exit(self.exit_status)
        elif self.state in ("COMPLETED", "CANCELLED", "TIMEOUT"):
            reason = ""
        else:
            reason = f"SLURM: {self.state}"
        return Outcome(
            status=meaning.status,
            elapsed_s=self.elapsed_s,
            exit_status=exit_status,
            reason=reason,
        )


_NOT_TAKEN_NOW = "SLURM does not take the job now: {}"


def submitted_id(answer: CommandAnswer, max_id: int = MAX_SLURM_ID) -> SlurmId:
    """Return the id that `sbatch --parsable` printed. Raises SlurmRejectedError (a
    retry does not help), SlurmUnavailableError (SLURM did not take the job, and a retry
    helps) or OutcomeUnknownError (SLURM may have the job: search first). Only known
    texts count as a decision, because sbatch can fail in many ways after slurmctld took
    the job. docs/explanation/submission-exactly-once.md has the table.
    """
    found = re.search(r"^([0-9]{1,10})(;\S+)?$", answer.stdout, re.MULTILINE)
    if answer.status == 0 and found:
        return _possible(SlurmId(int(found[1])), max_id)
    error_text = _error_text(answer)
    if answer.status in _NOT_RUN:
        raise SlurmUnavailableError(
            f"sbatch could not be run (status {answer.status}): {error_text}"
        )
    unknown = f"sbatch ended with status {answer.status} and no job id: {error_text}"
    if answer.status in _NO_DECISION:
        raise OutcomeUnknownError(unknown)
    complaints = answer.stderr.lower()
    _, has_rejection, rejection = complaints.rpartition(_REJECTION_TEXT)
    if has_rejection:
        raise_for_rejection(complaints, rejection, error_text, unknown)
    else:
        _raise_without_rejection(complaints, error_text)
    if _has(complaints, _NO_ANSWER):
        raise OutcomeUnknownError(unknown)
    if "sbatch: error:" not in complaints:
        raise OutcomeUnknownError(unknown)
    raise AnswerNotUnderstoodError(unknown)


def raise_for_rejection(
    complaints: str, rejection: str, error_text: str, unknown: str
) -> None:
    """Raise the error for slurmctld's answer to a submission, if its meaning is known.
    `complaints` (the whole error output) and `rejection` (slurmctld's own text) are in
    lower case. `error_text` is for the messages of the errors, and `unknown` is the
    message of OutcomeUnknownError.
    """
    if _has(complaints, _TOKEN_USED):
        raise OutcomeUnknownError(unknown)
    if _has(complaints, _TOKEN_REJECTED):
        advice = ""
        for words, what_to_do in _TOKEN_ADVICE.items():
            if words in complaints:
                advice += what_to_do
        raise SlurmUnavailableError(
            f"job_submit.lua does not take the job for the supervisor's (SLURM_SUBMIT_KEY){advice}: {error_text}"
        )
    if _has(rejection, (_UNKNOWN_ACCOUNT,)):
        raise UnknownAccountError(_NOT_TAKEN_NOW.format(error_text))
    if _has(rejection, _NOT_NOW):
        raise SlurmUnavailableError(_NOT_TAKEN_NOW.format(error_text))
    if not _has(rejection, _REJECTED):
        return
    if _has(complaints, _NOT_NOW):
        raise SlurmUnavailableError(_NOT_TAKEN_NOW.format(error_text))
    raise SlurmRejectedError(error_text)


def _raise_without_rejection(complaints: str, error_text: str) -> None:
    """Raise the error for a text that sbatch printed without slurmctld's rejection, if
    its meaning is known.
    """
    if _has(complaints, (*_STACK_NOT_LOADED, *_NOT_NOW)):
        raise SlurmUnavailableError(_NOT_TAKEN_NOW.format(error_text))
    if _has(complaints, _REJECTED_BY_SBATCH):
        raise SlurmRejectedError(error_text)


def _possible(slurm_id: SlurmId, max_id: int) -> SlurmId:
    """Return the id if it is possible. The answer comes through the customer's login,
    and he can print any number.
    """
    if not can_be_given(slurm_id, max_id):
        raise AnswerNotUnderstoodError(
            f"sbatch named the job id {slurm_id}; expected 1 to {max_id} (MaxJobId)"
        )
    return slurm_id


def can_be_given(slurm_id: int, max_id: int = MAX_SLURM_ID) -> bool:
    """Whether slurmctld can give this id to a job."""
    return 1 <= slurm_id <= max_id


def error_of_question(error_text: str) -> type[SlurmUnavailableError]:
    """Return the error for a question that failed with this text."""
    if is_missing_answer(error_text.lower()):
        return SlurmUnavailableError
    return QuestionRejectedError


def is_missing_answer(error_text: str) -> bool:
    """Whether a text, in lower case, means that slurmctld's answer was missing, late or
    incomplete.
    """
    return _has(error_text, _NO_ANSWER)


def may_change_later(error_text: str) -> bool:
    """Whether a text, in lower case, means that SLURM has not changed a job for a
    reason that passes: a retry helps.
    """
    return is_missing_answer(error_text) or _has(error_text, _NOT_CHANGED_NOW)


def has_accounting(answer: CommandAnswer) -> bool:
    """Whether slurmctld's configuration names a slurmdbd. Raises SlurmUnavailableError
    when the configuration is missing; a retry helps.
    """
    storage = config_value(answer, "AccountingStorageType")
    return storage == "accounting_storage/slurmdbd"


def boot_time(answer: CommandAnswer) -> str:
    """Return slurmctld's start time in its own words. Raises SlurmUnavailableError when
    slurmctld does not answer; a retry helps.
    """
    booted = config_value(answer, "BOOT_TIME")
    if "is UP" not in answer.stdout:
        raise _config_missing(answer)
    return booted


def config_value(answer: CommandAnswer, key: str) -> str:
    """Return a word that `scontrol show config` shows. Raises SlurmUnavailableError
    when it is missing; a retry helps.
    """
    found = re.search(rf"^{key}\s*=\s*(\S+)", answer.stdout, re.MULTILINE)
    if answer.status != 0 or found is None:
        raise _config_missing(answer)
    return found[1]


def _config_missing(answer: CommandAnswer) -> SlurmUnavailableError:
    error_text = _error_text(answer)
    return SlurmUnavailableError(
        f"scontrol show config ended with status {answer.status}: {error_text}"
    )


def controller_time_s(answer: CommandAnswer) -> int | None:
    """Return the time (Unix time) on slurmctld's own clock at which it answered
    `scontrol show config`; None when the answer shows no Unix time.
    """
    found = re.search(
        r"^Configuration data as of (\d{1,18})$", answer.stdout, re.MULTILINE
    )
    if found is None:
        return None
    return int(found[1])


def next_id(answer: CommandAnswer) -> int:
    """Return the id of slurmctld's next job, from `scontrol show config`; 0 when it is
    not shown.
    """
    return _config_number(answer, "NEXT_JOB_ID", default=0)


def max_job_id(answer: CommandAnswer) -> int:
    """Return MaxJobId, from `scontrol show config`; SLURM's own bound when it is not
    shown.
    """
    return min(_config_number(answer, "MaxJobId", default=MAX_SLURM_ID), MAX_SLURM_ID)


def min_job_age_s(answer: CommandAnswer) -> int:
    """Return for how many seconds, at least, slurmctld remembers a job that has ended,
    from `scontrol show config`; 0 is for ever.
    """
    return _config_number(answer, "MinJobAge", default=MIN_JOB_AGE_S)


def _config_number(answer: CommandAnswer, key: str, *, default: int) -> int:
    """Return a number that `scontrol show config` shows, or the default."""
    found = re.search(rf"^{key}\s*=\s*(\d+)", answer.stdout, re.MULTILINE)
    if found is None:
        return default
    return int(found[1])


def require_success(answer: CommandAnswer, what: str) -> bool:
    """Return True when a command succeeded, False when SLURM knows no such job or the
    job has ended. Raises SlurmUnavailableError (a retry helps) or SlurmRejectedError (a
    retry does not).
    """
    if answer.status == 0:
        return True
    error_text = _error_text(answer)
    if is_unknown_job(error_text):
        return False
    message = f"{what} ended with status {answer.status}: {error_text}"
    if may_change_later(error_text.lower()):
        raise SlurmUnavailableError(message)
    raise SlurmRejectedError(message)


def not_cancelled(
    answer: CommandAnswer, slurm_ids: Collection[SlurmId]
) -> dict[SlurmId, str]:
    """Return the jobs that scancel could not cancel, and why. A job that SLURM does not
    know, or that has ended, is no error. All other jobs were cancelled. Raises
    SlurmUnavailableError (a retry helps) or SlurmRejectedError (a retry does not) when
    scancel failed and named no job.
    """
    named = re.findall(r"job id (\d+)[^:\n]*: (.*)$", answer.stderr, re.MULTILINE)
    errors = dict[SlurmId, str]()
    for number, why in named:
        slurm_id = SlurmId(int(number))
        if slurm_id in slurm_ids:
            errors[slurm_id] = why[:500]
    if not errors:
        require_success(answer, "scancel")
    rejected = dict[SlurmId, str]()
    for slurm_id, why in errors.items():
        if not is_unknown_job(why):
            rejected[slurm_id] = f"scancel said: {why}"
    return rejected


def split_records(
    printed: str, delimiter: str, field_count: int
) -> Iterator[list[str]] | None:
    """Return the records of a list, which have so many fields each; `|` and the
    delimiter end a field. None when the list is incomplete.
    """
    *fields, rest = printed.split(f"|{delimiter}")
    if rest.strip():
        return None
    if len(fields) % field_count != 0:
        return None
    starts = range(0, len(fields), field_count)
    return (fields[start : start + field_count] for start in starts)


@lru_cache(maxsize=4096)  # a list of 10,000 jobs has few different ones
def elapsed_s(shown: str) -> int:
    """Return the seconds of `[days-]hh:mm:ss`, `mm:ss` or `0:00`. Raises
    SlurmUnavailableError for any other text: squeue prints INVALID while clocks
    disagree, and a retry helps.
    """
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", shown)
    if found is None:
        raise SlurmUnavailableError(
            f"SLURM shows {shown!r} as elapsed time; expected [days-][hh:]mm:ss"
        )
    days, hours, minutes, seconds = map(int, found.groups("0"))
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def limit_min(shown: str) -> int | None:
    """Return the minutes of a time limit, which has the form of an elapsed time; None
    for no limit (UNLIMITED, NOT_SET).
    """
    if not shown[:1].isdecimal():
        return None
    return elapsed_s(shown) // 60


def describe_exit(exit_status: int) -> str:
    """Describe a raw wait(2) status, or what SLURM has in its place for a script that
    slurmstepd could not begin.
    """
    signal = exit_status & SIGNAL_MASK
    if signal == OUTPUT_NOT_OPENED & SIGNAL_MASK:
        return "SLURM could not open the output file: can the customer's home folder be written?"
    if signal:
        return f"killed by signal {signal}"
    exit_code = exit_status >> SIGNAL_BITS
    return f"exit code {exit_code}"


def wait_status(shown: str) -> int:
    """Return the raw wait(2) status of `exit:signal`, or of the single number that
    squeue prints.
    """
    exit_code, _, signal = shown.partition(":")
    if not signal:
        return int(exit_code)
    return (int(exit_code) << SIGNAL_BITS) + int(signal)


def _error_text(answer: CommandAnswer) -> str:
    """Return a command's error output, or else its output, as one line."""
    text = answer.stderr.strip() or answer.stdout.strip()
    return re.sub(r"[^\x20-\x7e]+", " ", text)[:500]


def is_unknown_job(error_text: str) -> bool:
    """Whether a command's text means that SLURM has no such job, or that the job has
    ended.
    """
    return _has(error_text.lower(), _UNKNOWN_JOB)


def _has(text: str, phrases: Iterable[str]) -> bool:
    return any(phrase in text for phrase in phrases)
