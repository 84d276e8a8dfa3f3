"""Questions to squeue, which also prints the texts that a job's owner can write: name,
comment, output path. Pure.

An owner may put line feeds into a name, and lines that look like other jobs. So every
field ends with a random delimiter that cannot be guessed, made for this one call.
squeue reads the delimiter from standard input, because the process list shows command
lines. squeue prints a field of width 0 whole and without padding. Samples:
tests/data/slurm/squeue-listing-slurm-22.05.8.txt.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache

from supervisor_tasks.jobs.model import SlurmId
from supervisor_tasks.slurm.parsers import (
    CommandAnswer,
    JobRecord,
    SlurmUnavailableError,
    elapsed_s,
    error_of_question,
    is_missing_answer,
    is_unknown_job,
    limit_min,
    split_records,
    wait_status,
)
from supervisor_tasks.slurm.size import (
    Size,
    is_whole_memory,
    request_of,
    size_of,
    tres_amounts,
    with_wanted_cpus,
)

KEPT_SIZES = 4096  # sizes that `_size` remembers

FIELDS = (
    *(
        "JobID",
        "UserName",
        "State",
        "TimeUsed",
        "exit_code",
        "Reason",
        "SubmitTime",
        "RestartCnt",
        "BatchFlag",
    ),
    *("TimeLimit", "Name", "Comment", "STDOUT", "StartTime"),
    *(
        "Partition",
        "QOS",
        "Account",
        "Reservation",
        "ArrayTaskID",
        "NumTasks",
        "tres-alloc",
    ),
    *("tres-per-job", "tres-per-node", "tres-per-task", "tres-per-socket"),
    *("Requeue", "Threads", "MinMemory", "cpus-per-task", "mincpus"),
)
_WITH_FORMAT = 'IFS= read -r SQUEUE_FORMAT2 && export SQUEUE_FORMAT2 SLURM_TIME_FORMAT=%s && exec "$@"'
_NOBODY = "nobody"
UNREADABLE = "INVALID"  # a time that ends before it begins
_SHOWN = 200  # characters of an unreadable record, in the error
# What squeue's library prints about itself and about slurmctld; start-up files print
# other lines. An unknown word of squeue's counts as an error.
_OF_SQUEUE = re.compile(r"\b(?:error|fatal|invalid|squeue|slurm_\w+)\b", re.IGNORECASE)
# about slurm.conf: squeue asks all the same (texts of 22.05 to 24.11)
_ABOUT_SLURM_CONF = re.compile(
    r"squeue: (?:error|warning): "
    r"(?:[^:]*\b(?:defunct|obsolete)\b[^:]*|Ignoring \w+ since SlurmctldHost is set\.)"
)


def resolved(user: str) -> str:
    """Return the user; empty for one whose name SLURM cannot resolve. It shows such a
    user as `nobody` (22.05), or by his number (24.11: `uid_to_string` of its library).
    """
    return "" if user == _NOBODY or user.isdecimal() else user


@dataclass(frozen=True, slots=True)
class SqueueRow:
    """A job as SLURM lists it. Its owner can write `name`, `comment` and `stdout` (a
    path). SLURM sets `submit_s` (seconds since the epoch, by slurmctld's clock),
    `record`, `has_script` (a batch script) and `limit_min`. The limit is None where it
    is no number of minutes: UNLIMITED, or the partition's.
    """

    slurm_id: SlurmId
    user: str
    name: str
    comment: str
    stdout: str
    submit_s: int
    record: JobRecord
    has_script: bool = True
    limit_min: int | None = None


def squeue_all(path: str, user: str | None = None) -> list[str]:
    """List all jobs, or those of one user, in all states. The command reads
    `squeue_format` from standard input.
    """
    whose = list[str]()
    if user is not None:
        whose.append(f"--user={user}")
    return [
        "/bin/sh",
        "-c",
        _WITH_FORMAT,
        "squeue",
        path,
        "--noheader",
        "--all",
        "--states=all",
        *whose,
    ]


def squeue_by_id(path: str, slurm_ids: str) -> list[str]:
    """List a batch of jobs, as `squeue_all` does."""
    return [*squeue_all(path), f"--jobs={slurm_ids}"]


def squeue_json(path: str, slurm_ids: str) -> list[str]:
    """Return the command that shows all that SLURM knows of some jobs; 22.05 prints all
    jobs even if the command names some.
    """
    return [path, "--all", "--json", f"--jobs={slurm_ids}"]


def squeue_format(delimiter: str) -> bytes:
    """Return the fields in the language of `squeue --Format`; `delimiter`, of letters
    and digits, ends each field.
    """
    return ",".join(f"{field}:0|{delimiter}" for field in FIELDS).encode() + b"\n"


def requested_sizes(
    answer: CommandAnswer, slurm_ids: Collection[SlurmId]
) -> dict[SlurmId, Size]:
    """Return what these jobs asked for, from `squeue --json`. For a running job,
    SLURM's lists show only what SLURM gave it, which SLURM may have rounded up. Raises
    SlurmUnavailableError for an answer that is incomplete; a retry helps.
    """
    if answer.status != 0:
        raise SlurmUnavailableError(
            f"squeue --json ended with status {answer.status}: {answer.stderr[:_SHOWN]!r}"
        )
    try:
        shown = json.loads(answer.stdout)["jobs"]
        jobs = [job for job in shown if job["job_id"] in slurm_ids]
        return {SlurmId(job["job_id"]): request_of(job) for job in jobs}
    except (ValueError, KeyError, TypeError) as error:
        raise SlurmUnavailableError(
            f"squeue --json printed {answer.stdout[:_SHOWN]!r}: {error!r}"
        ) from error


def listed_jobs(answer: CommandAnswer, delimiter: str) -> dict[SlurmId, SqueueRow]:
    """Return the jobs that squeue printed. squeue fails when the only job of the
    question is unknown; then this is empty. Raises SlurmUnavailableError when squeue
    could not ask (QuestionRejectedError where SLURM rejected), and for a record that is
    incomplete or has other fields. The worker must not conclude that a job is missing;
    a retry helps.
    """
    error_text = answer.stderr.strip()
    has_failed = answer.status != 0
    if not answer.stdout.strip():
        if has_failed and is_unknown_job(error_text):
            return {}
        has_failed = has_failed or means_no_answer(error_text)
    if has_failed:
        raise error_of_question(error_text)(
            f"squeue ended with status {answer.status}: {error_text[:_SHOWN]!r}"
        )
    records = split_records(answer.stdout, delimiter, len(FIELDS))
    if records is None:
        raise SlurmUnavailableError(
            f"squeue's list is incomplete; it ends with {answer.stdout[-_SHOWN:]!r}"
        )
    rows = dict[SlurmId, SqueueRow]()
    for record in records:
        row = _listed(record)
        rows[row.slurm_id] = row
    return rows


def means_no_answer(error_text: str) -> bool:
    """Whether standard error, of a squeue that ended with status 0 and listed no job,
    means that it could not ask. An empty list that is believed then would let a job be
    submitted twice. So each line of squeue's own counts, but not a remark on slurm.conf.
    """
    for line in error_text.splitlines():
        if _ABOUT_SLURM_CONF.fullmatch(line.strip()):
            continue
        if _OF_SQUEUE.search(line) or is_missing_answer(line.lower()):
            return True
    return False


@lru_cache(KEPT_SIZES)
def _size(
    limit: str, threads: str, memory: str, per_task: str, per_node: str, *shown: str
) -> Size:
    """Read the size. Most jobs of a site have one of few sizes, and reading it takes as
    long as all other fields. squeue does not show whether a job asks for its memory for
    each CPU, as the supervisor does, or for each node: it counts as memory for each
    CPU.
    """
    partition, qos, account, reservation, array_task, tasks, tres, *gpus_per = shown
    size = size_of(
        limit_min=limit_min(limit),
        partition=partition,
        qos=qos,
        account=account,
        reservation=reservation,
        array_task=array_task,
        tasks=tasks,
        tres=tres,
        gpus_per=gpus_per,
        per_cpu_mb=tres_amounts(f"mem={memory}").get("mem", 0),
        cpus_per_task=_count(per_task),
        cpus_per_node=_count(per_node),
    )
    return replace(size, threads=threads, whole_memory=is_whole_memory(memory))


def _count(shown: str) -> int:
    """Return a number of CPUs; 0 for `N/A`."""
    return int(shown) if shown.isdecimal() else 0


def _listed(record: list[str]) -> SqueueRow:
    (
        slurm_id,
        user,
        state,
        used,
        exit_code,
        reason,
        submitted,
        restarts,
        batch,
        *rest,
    ) = record
    limit, name, comment, stdout, start, *sizes, per_task, per_node = rest
    *sizes, requeue, threads, memory = sizes
    try:
        # The line feed that ends a record is at the start of the next record's first
        # field.
        number = SlurmId(int(slurm_id.removeprefix("\n")))
        # clocks disagree at the moment; the other jobs must not wait
        if used == UNREADABLE:
            state, used = f"{state} for {used}", "0:00"
        start_s: int | None = None
        if start.isdigit():
            start_s = int(start)
        size = _size(limit, threads, memory, per_task, per_node, *sizes)
        if state == "PENDING":
            size = with_wanted_cpus(size)
        seen = JobRecord(
            number,
            state,
            elapsed_s(used),
            wait_status(exit_code),
            reason,
            user=resolved(user),
            submit_s=int(submitted),
            restarts=int(restarts),
            start_s=start_s,
            size=size,
            may_requeue=requeue == "1",
        )
        # BatchFlag increases when slurmctld launches a job again.
        return SqueueRow(
            number,
            user,
            name,
            comment,
            stdout,
            int(submitted),
            seen,
            batch != "0",
            limit_min(limit),
        )
    except ValueError as error:
        shown = "|".join(record)[:_SHOWN]
        raise SlurmUnavailableError(
            f"squeue printed {shown!r}, which are not the expected fields"
        ) from error
