"""Questions to the accounting database (slurmdbd), and its records: each job's Linux
user, its size, and sbatch's command line. Pure.

Only the submitter decides that command line. A job's owner can change its name, in
accounting too. He may also write any text into a command line of his own, so every
field ends with a delimiter that is made for this one call. Samples:
tests/data/slurm/sacct-*.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from supervisor_tasks.jobs.model import Address, JobId, SlurmId
from supervisor_tasks.slurm.commands import UNIX_TIMES
from supervisor_tasks.slurm.parsers import (
    CommandAnswer,
    JobRecord,
    SlurmUnavailableError,
    error_of_question,
    split_records,
    wait_status,
)
from supervisor_tasks.slurm.size import accounted_size

FIELDS = (
    "JobIDRaw",
    "State",
    "ElapsedRaw",
    "ExitCode",
    "User",
    "Submit",
    "End",
    "SubmitLine",
    "ReqTRES",
    "AllocTRES",
    "Partition",
    "QOS",
    "Account",
)
_UNKNOWN_USER = "Invalid user id: "  # sacct's words, SLURM 22.05 to 24.11; status 1
_UNKNOWN = "unknown "
_OF_USERS = (
    "IFS= read -r m; users=$1; shift; exec 3>&1; for each in $users; do user=${each%%:*};"
    ' echo "$m $user"; error=$("$@" "--user=$user" "--starttime=now-${each#*:}minutes"'
    ' 2>&1 >&3 3>&-); status=$?; [ -z "$error" ] || printf "%s\\n" "$error" >&2;'
    ' case "$status:$error" in 0:*) ;;'
    f' 1:*"{_UNKNOWN_USER}$user"*) echo "$m {_UNKNOWN}$user" ;;'
    ' *) exit "$status" ;; esac; done; echo "$m end"'
)
_SHOWN = 300  # characters of an unreadable text, in an error


@dataclass(frozen=True, slots=True)
class SacctRow:
    """A record of accounting; `submit_line` is the command line of sbatch."""

    record: JobRecord
    submit_line: str

    @property
    def job_id(self) -> JobId | None:
        """The job of ours that sbatch was called for, if any."""
        words = self.submit_line.split(" ")
        for word in words:
            if not word.startswith("--job-name="):
                continue
            name = word.removeprefix("--job-name=")
            if f"--output={name}.log" in words:
                return JobId(name)
        return None


def sacct_by_id(path: str, slurm_ids: str, delimiter: str) -> list[str]:
    """Return the command that shows a batch of jobs that slurmctld has forgotten: all
    jobs that ever had these ids, and each run of a job that was requeued.
    """
    return [*_sacct(path, delimiter), f"--jobs={slurm_ids}"]


def sacct_named(
    path: str, name: str, user: str, minutes: int, delimiter: str
) -> list[str]:
    """Return the command that shows the jobs of a user with this name, of the last
    `minutes`.
    """
    return [
        *_sacct(path, delimiter),
        f"--name={name}",
        f"--user={user}",
        f"--starttime=now-{minutes}minutes",
    ]


def sacct_histories(
    path: str, minutes: Mapping[Address, int], delimiter: str
) -> list[str]:
    """Return one command that shows the histories of several users, each of its own last
    minutes. The command prints each user's name after a delimiter that it reads from
    standard input, because other users can read a command line and submit a job
    meanwhile. It goes on after a user whom the login node does not know, and ends at
    any other failure.
    """
    users = " ".join(f"{user}:{number}" for user, number in sorted(minutes.items()))
    return ["/bin/sh", "-c", _OF_USERS, "histories", users, *_sacct(path, delimiter)]


def submissions_by_user(
    answer: CommandAnswer, user_delimiter: str
) -> dict[str, CommandAnswer]:
    """Return each user's history. That of a user whom the login node does not know is
    sacct's rejection, which `accounted_jobs` raises. SLURM may have jobs of a user
    whose account is gone, or whose directory is away for a moment. Raises
    SlurmUnavailableError when a question failed in another way, or when the answer is
    incomplete; a retry helps.
    """
    *parts, end = answer.stdout.split(user_delimiter)
    if (answer.status, end) != (0, " end\n"):
        raise SlurmUnavailableError(
            f"sacct ended with status {answer.status}: {answer.stderr[:_SHOWN]!r}"
        )
    histories = dict[str, CommandAnswer]()
    for part in parts[1:]:
        heading, _, printed = part.removeprefix(" ").partition("\n")
        user = heading.removeprefix(_UNKNOWN)
        history = CommandAnswer(0, printed, "")
        if user != heading:
            history = CommandAnswer(1, "", _UNKNOWN_USER + user)
        histories[user] = history
    return histories


def accounted_jobs(answer: CommandAnswer, delimiter: str) -> list[SacctRow]:
    """Return sacct's records, by id and submission time: a requeue begins a new record,
    and so does another job with the same id. Raises SlurmUnavailableError when sacct
    could not ask, or when its output is incomplete; a retry helps.
    """
    message = f"sacct ended with status {answer.status}: {answer.stderr[:_SHOWN]!r}"
    if answer.status != 0:
        if answer.stderr.strip():
            raise error_of_question(answer.stderr)(message)
        raise SlurmUnavailableError(message)
    records = split_records(answer.stdout, delimiter, len(FIELDS))
    if records is None:
        raise SlurmUnavailableError(message)
    rows = [_accounted(record) for record in records]
    return sorted(rows, key=lambda row: (row.record.slurm_id, row.record.submit_s))


def submitted_as(
    answer: CommandAnswer, delimiter: str, job_id: JobId
) -> list[JobRecord]:
    """Return the jobs whose sbatch was called for this job, each by its last run.
    Raises QuestionRejectedError when sacct does not know the user, and
    SlurmUnavailableError when it could not ask. A retry helps.
    """
    last_runs = dict[SlurmId, JobRecord]()
    for row in accounted_jobs(answer, delimiter):
        if row.job_id == job_id:
            last_runs[row.record.slurm_id] = row.record
    return list(last_runs.values())


def _sacct(path: str, delimiter: str) -> list[str]:
    shape = [
        "--noheader",
        "--parsable",
        "--allocations",
        "--duplicates",
        f"--delimiter=|{delimiter}",
    ]
    return [*UNIX_TIMES, path, *shape, f"--format={','.join(FIELDS)}"]


def _accounted(record: list[str]) -> SacctRow:
    slurm_id, state, used, exit_code, user, submitted, ended, *rest = record
    submit_line, requested, allocated, partition, qos, account = rest
    try:
        ended_s: int | None = None
        if ended.isdigit():
            ended_s = int(ended)
        seen = JobRecord(
            # the line feed that ends a record is at the start of the next record's
            # first field
            SlurmId(int(slurm_id)),
            state.split(" ")[0],  # sacct prints "CANCELLED by 1000"
            int(used),
            wait_status(exit_code),
            user=user,
            submit_s=int(submitted),
            ended_s=ended_s,
            size=accounted_size(
                requested=requested,
                allocated=allocated,
                partition=partition,
                qos=qos,
                account=account,
            ),
        )
    except ValueError as error:
        raise SlurmUnavailableError(
            f"sacct printed {record!r:.{_SHOWN}}, which are not the expected fields"
        ) from error
    return SacctRow(seen, submit_line)
