"""What SLURM's commands print. Pure; the samples in tests/data/slurm name the version that printed them."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from supervisor_tasks.errors import OutcomeUnknownError, PermanentError, SupervisorError, TransientError
from supervisor_tasks.job import Outcome, SlurmId
from supervisor_tasks.jobs.runs import Sighting
from supervisor_tasks.slurm.size import Size
from supervisor_tasks.slurm.states import Phase, end, never_begins, phase

MAX_SLURM_ID = (
    0x03FF_FFFF  # SLURM's own bound for MaxJobId; a federation's ids, which lie above it, are found by a look
)
MIN_JOB_AGE_S = 300  # SLURM's default
SIGNAL_BITS = 8  # wait(2): exit status in the high byte, signal in the low one

# What the commands say when slurmctld's answer did not come, not in time, or not whole: it may have taken the request all the
# same. SLURM_COMMUNICATIONS_*, SLURM_PROTOCOL_*, the authentication's errors and those of the network.
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
    "incompatible versions",  # what slurmctld says of the request, or sbatch of the answer
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
# What says that nothing was taken, for a reason that is not the job's: the site's, or one that goes away as jobs end.
_NOT_NOW = (
    "submitjob",  # AssocMaxSubmitJobLimit, QOSGrpSubmitJobsLimit ...: so many jobs of the user, account or QOS are queued
    "required partition not available",  # inactive or drained
    "partition in down state",
    "required node not available",
    "system submissions disabled",
    "unable to create job record, try again",  # MaxJobCount
    "invalid user id",  # slurmctld does not know the customer yet
    "invalid group id",
    "writing script/environment to file",  # slurmctld's disk is full
    "configuration source",
)
# What slurmctld says of a job that it will never take: texts of slurm_errno.c, 22.05.8.
_REFUSED = (
    "invalid partition name specified",
    "no partition specified",
    "access/permission denied",
    "group not permitted to use this partition",
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
    "invalid account or account/partition combination",
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
# What sbatch says without asking slurmctld, of what it was called with or of the script; cli_filter is the site's.
_REFUSED_BY_SBATCH = (
    "batch script is empty",
    "does not look like a batch script",
    "batch script contains dos line breaks",
    "controller does not allow scripts that",
    "invalid directive found in batch script",
    "sbatch: error: invalid",
    "sbatch: error: unrecognized",
    "cli_filter plugin terminated with error",
)
# What sbatch says before it asks slurmctld, of a SPANK plugin of the login node's that cannot be loaded, or that fails: a
# plugin being upgraded. Samples: tests/data/slurm/sbatch-spank-*.
_STACK_NOT_LOADED = ("failed to initialize plugin stack", "plugin stack post-option processing failed")
# What plugins/supervisor_submit.lua says of a submission that it does not take for ours: the site's trouble, as a customer's
# own submission is none of ours. Of a token that was used, the job may be in SLURM: its customer can have read the token.
_TOKEN_REFUSED = (
    "supervisor: no token",
    "supervisor: wrong token",
    "supervisor: token expired",
    "supervisor: token does not cover",
    "supervisor: no key",
    "supervisor: no memory",
    "supervisor: unknown user",
)
_TOKEN_USED = ("supervisor: token used",)
_VERDICT = "batch job submission failed:"  # so begins the last line of an sbatch that has asked slurmctld
_NOT_RUN = (126, 127)
_ENDED_FROM_OUTSIDE = (124, *range(128, 128 + 65))  # by its time limit or a signal, as sh shows it
_UNKNOWN_JOB = ("invalid job id specified", "already completing or completed", "already finished")


class SlurmRejectedError(PermanentError):
    """SLURM answered that it will not do this; the message is SLURM's own."""


class AnswerNotUnderstoodError(OutcomeUnknownError):
    """sbatch ended by itself, with words that are neither a refusal nor the lack of an answer."""


class SlurmUnavailableError(TransientError):
    """SLURM does not answer; again later."""


class QuestionRefusedError(SlurmUnavailableError):
    """SLURM answers and refuses a question as a whole, such as one about an id that no job can have."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command ended with."""

    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Seen:
    """A job as SLURM shows it. `user` is empty where the login node cannot resolve it, `submit_s`, `start_s` (of a job that
    waits, when it may begin) and `ended_s` are Unix times of slurmctld's clock. Only squeue tells `restarts`, `size` and
    `may_requeue`: its owner can have SLURM run it once more, also after its end. Only sacct tells `ended_s`, and `earlier_s`:
    the seconds of the `earlier_runs`, before the job was requeued for the last time.
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
    size: Size | None = None
    may_requeue: bool = False

    @property
    def phase(self) -> Phase:
        """How far SLURM is with it."""
        return phase(self.state)

    @property
    def shown(self) -> str:
        """SLURM's word for where the job is, and why it waits."""
        waits = self.phase is Phase.WAITING and self.reason not in ("", "None")
        return f"{self.state} ({self.reason})" if waits else self.state

    @property
    def is_pending(self) -> bool:
        """Whether SLURM has given it nothing yet. A job that is being configured waits for its prolog, and has its nodes."""
        return self.phase is Phase.WAITING and self.state != "CONFIGURING"

    @property
    def never_begins(self) -> bool:
        """Whether it waits until somebody changes something."""
        return self.phase is Phase.WAITING and never_begins(self.reason)

    @property
    def stands_still(self) -> bool:
        """Whether it lives and its seconds do not pass."""
        return self.phase is Phase.WAITING or self.state == "SUSPENDED"

    def sighting(self, now_s: int) -> Sighting:
        """What a look at this time shows of the present run."""
        has_begun = self.phase is not Phase.WAITING and self.elapsed_s + (self.phase is Phase.RUNNING) > 0
        return Sighting(
            submit_s=self.submit_s,
            restarts=self.restarts,
            start_s=self.start_s if has_begun else None,
            elapsed_s=self.elapsed_s,
            seen_s=max(now_s, (self.start_s or 0) + self.elapsed_s if has_begun else 0),
            suspended=self.state == "SUSPENDED",
            account="" if self.size is None else self.size.account,
            qos="" if self.size is None else self.size.qos,
        )

    def outcome(self) -> Outcome:
        """What the contract shall say of a job that has ended."""
        reason = "" if self.state in ("COMPLETED", "CANCELLED", "TIMEOUT") else self._why()
        meant = end(self.state)
        return Outcome(
            status=meant.status,
            elapsed_s=self.elapsed_s,
            exit_status=self.exit_status if meant.by_itself else meant.exit_status,
            reason=reason,
        )

    def _why(self) -> str:
        return said_of(self.exit_status) if self.state == "FAILED" else f"SLURM: {self.state}"


def submitted_id(answer: Answer, max_id: int = MAX_SLURM_ID) -> SlurmId:
    """The id that `sbatch --parsable` printed. Raises SlurmRejectedError, SlurmUnavailableError (nothing was taken) or
    OutcomeUnknownError (SLURM may have the job). Only words that are known to be a decision are one: sbatch can fail in many
    ways after slurmctld took the job. docs/architecture.md has the table.
    """
    found = re.search(r"^([0-9]{1,10})(;\S+)?$", answer.stdout, re.MULTILINE)
    if answer.status == 0 and found:
        return _possible(SlurmId(int(found[1])), max_id)
    said = _said(answer)
    if answer.status in _NOT_RUN:
        raise SlurmUnavailableError(f"sbatch could not be run (status {answer.status}): {said}")
    unknown = f"sbatch ended with status {answer.status} and no job id: {said}"
    if answer.status == 0 or answer.status in _ENDED_FROM_OUTSIDE:
        raise OutcomeUnknownError(unknown)
    complaints = answer.stderr.lower()
    _, asked, verdict = complaints.rpartition(_VERDICT)
    if asked and _has(complaints, _TOKEN_USED):
        raise OutcomeUnknownError(unknown)
    if asked and _has(complaints, _TOKEN_REFUSED):
        raise SlurmUnavailableError(
            f"job_submit.lua does not take the job for the supervisor's (SLURM_SUBMIT_KEY): {said}"
        )
    refused = _has(verdict, _REFUSED) if asked else _has(complaints, _REFUSED_BY_SBATCH)
    not_asked = not asked and _has(complaints, _STACK_NOT_LOADED)
    if not_asked or _has(verdict, _NOT_NOW) or (refused and _has(complaints, _NOT_NOW)):
        raise SlurmUnavailableError(f"SLURM does not take the job now: {said}")
    if refused:
        raise SlurmRejectedError(said)
    if _has(complaints, _NO_ANSWER) or "sbatch: error:" not in complaints:
        raise OutcomeUnknownError(unknown)
    raise AnswerNotUnderstoodError(unknown)


def _possible(slurm_id: SlurmId, max_id: int) -> SlurmId:
    """The answer comes through the customer's login, who can print any number."""
    if not can_be_given(slurm_id, max_id):
        raise AnswerNotUnderstoodError(f"sbatch named the job id {slurm_id}; expected 1 to {max_id} (MaxJobId)")
    return slurm_id


def can_be_given(slurm_id: int, max_id: int = MAX_SLURM_ID) -> bool:
    """Whether slurmctld gives such an id to a job."""
    return 1 <= slurm_id <= max_id


def refusal(said: str) -> type[SlurmUnavailableError]:
    """What a question has come to that was not answered, by what the command said."""
    return SlurmUnavailableError if _has(said.lower(), _NO_ANSWER) else QuestionRefusedError


def has_accounting(answer: Answer) -> bool:
    """Whether slurmctld's configuration names a slurmdbd. Raises SlurmUnavailableError when it could not be asked."""
    found = re.search(r"^AccountingStorageType\s*=\s*(\S+)", answer.stdout, re.MULTILINE)
    if answer.status != 0 or found is None:
        raise SlurmUnavailableError(f"scontrol show config ended with status {answer.status}: {_said(answer)}")
    return found[1] == "accounting_storage/slurmdbd"


def boot_time(answer: Answer) -> str:
    """Since when slurmctld runs, in its own words. Raises SlurmUnavailableError when it does not answer."""
    found = re.search(r"^BOOT_TIME\s*=\s*(\S+)", answer.stdout, re.MULTILINE)
    if answer.status != 0 or found is None or "is UP" not in answer.stdout:
        raise SlurmUnavailableError(f"scontrol show config ended with status {answer.status}: {_said(answer)}")
    return found[1]


def next_id(answer: Answer) -> int:
    """The id that slurmctld gives to the next job, of `scontrol show config`; 0 when it does not show it."""
    found = re.search(r"^NEXT_JOB_ID\s*=\s*(\d+)", answer.stdout, re.MULTILINE)
    return int(found[1]) if found else 0


def max_job_id(answer: Answer) -> int:
    """MaxJobId, of `scontrol show config`; SLURM's bound for it when it does not show it."""
    found = re.search(r"^MaxJobId\s*=\s*(\d+)", answer.stdout, re.MULTILINE)
    return min(int(found[1]), MAX_SLURM_ID) if found else MAX_SLURM_ID


def min_job_age_s(answer: Answer) -> int:
    """How long slurmctld remembers a job that has ended, at least, of `scontrol show config`; 0 is for ever."""
    found = re.search(r"^MinJobAge\s*=\s*(\d+)", answer.stdout, re.MULTILINE)
    return int(found[1]) if found else MIN_JOB_AGE_S


def require_done(answer: Answer, what: str) -> bool:
    """True when a command succeeded, False when SLURM knows no such job or it has ended. Raises SlurmUnavailableError
    or SlurmRejectedError.
    """
    if answer.status == 0:
        return True
    said = _said(answer)
    if is_unknown_job(said):
        return False
    kind: type[SupervisorError] = SlurmUnavailableError if _has(said.lower(), _NO_ANSWER) else SlurmRejectedError
    raise kind(f"{what} ended with status {answer.status}: {said}")


def not_cancelled(answer: Answer, slurm_ids: Collection[SlurmId]) -> dict[SlurmId, str]:
    """Which of several jobs scancel could not cancel, and why; those that SLURM does not know, or that have ended, are fine.
    The others were cancelled. Raises SlurmUnavailableError or SlurmRejectedError when it does not say of which jobs it speaks.
    """
    named = re.findall(r"job id (\d+)[^:\n]*: (.*)$", answer.stderr, re.MULTILINE)
    said = {SlurmId(int(number)): why[:500] for number, why in named if int(number) in slurm_ids}
    if not said:
        require_done(answer, "scancel")
    return {slurm_id: f"scancel said: {why}" for slurm_id, why in said.items() if not is_unknown_job(why)}


def elapsed_s(shown: str) -> int:
    """Seconds of `[days-]hh:mm:ss`, `mm:ss` or `0:00`. Raises SlurmUnavailableError for anything else (squeue prints
    INVALID while clocks disagree).
    """
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", shown)
    if found is None:
        raise SlurmUnavailableError(f"SLURM shows {shown!r} as elapsed time; expected [days-][hh:]mm:ss")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def limit_min(shown: str) -> int | None:
    """Minutes of a time limit, which is printed like an elapsed time; None where it is none (UNLIMITED, NOT_SET)."""
    return elapsed_s(shown) // 60 if shown[:1].isdecimal() else None


def said_of(exit_status: int) -> str:
    """A raw wait(2) status in words."""
    exit_code, signal = exit_status >> SIGNAL_BITS, exit_status & 0x7F
    return f"killed by signal {signal}" if signal else f"exit code {exit_code}"


def wait_status(shown: str) -> int:
    """The raw wait(2) status of `exit:signal`, or of the one number that squeue prints."""
    exit_code, _, signal = shown.partition(":")
    if not signal:
        return int(exit_code)
    return (int(exit_code) << SIGNAL_BITS) + int(signal)


def _said(answer: Answer) -> str:
    text = answer.stderr.strip() or answer.stdout.strip()
    return re.sub(r"[^\x20-\x7e]+", " ", text)[:500]


def is_unknown_job(said: str) -> bool:
    """Whether a command said that SLURM has no such job, or that it has ended."""
    return _has(said.lower(), _UNKNOWN_JOB)


def _has(words: str, phrases: Iterable[str]) -> bool:
    return any(phrase in words for phrase in phrases)
