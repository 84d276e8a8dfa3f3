"""Questions to squeue, which also prints what a job's owner can write: its name, its comment, where its output goes. Pure.

An owner may put line feeds into a name, and lines that look like other jobs'. So every field ends with a mark that nobody can
guess, made for this one call; and squeue is told the mark on standard input, because a command line shows in the process list.
A field of width 0 is printed whole and without padding. Samples: tests/data/slurm/squeue-listing-slurm-22.05.8.txt.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from supervisor_tasks.job import SlurmId
from supervisor_tasks.slurm.output import (
    Answer,
    Seen,
    SlurmUnavailableError,
    elapsed_s,
    is_unknown_job,
    limit_min,
    refusal,
    wait_status,
)
from supervisor_tasks.slurm.size import Size, request_of, size_of

FIELDS = (
    *("JobID", "UserName", "State", "TimeUsed", "exit_code", "Reason", "SubmitTime", "RestartCnt", "BatchFlag"),
    *("TimeLimit", "Name", "Comment", "STDOUT", "StartTime"),
    *("Partition", "QOS", "Account", "Reservation", "ArrayTaskID", "NumTasks", "tres-alloc"),
    *("tres-per-job", "tres-per-node", "tres-per-task", "tres-per-socket"),
    "Requeue",
)
_WITH_FORMAT = 'IFS= read -r SQUEUE_FORMAT2 && export SQUEUE_FORMAT2 SLURM_TIME_FORMAT=%s && exec "$@"'
_NOBODY = "nobody"  # what squeue calls a user whose name cannot be found
UNREADABLE = "INVALID"  # a time that ends before it begins
_SHOWN = 200  # characters of a record that cannot be read, in the error


@dataclass(frozen=True, slots=True)
class Listed:
    """A job as SLURM lists it. `name`, `comment` and `stdout` (a path) are its owner's words, `submit_s` (seconds since the
    epoch, by slurmctld's clock), `seen`, `batch` (whether it has a batch script) and `limit_min` are SLURM's. The limit is
    None where it is no number of minutes: UNLIMITED, or the partition's.
    """

    slurm_id: SlurmId
    user: str
    name: str
    comment: str
    stdout: str
    submit_s: int
    seen: Seen
    batch: bool = True
    limit_min: int | None = None


def squeue_all(path: str, user: str | None = None) -> list[str]:
    """List all jobs, or those of one user, in all states. It reads `squeue_format` from standard input."""
    whose = [] if user is None else [f"--user={user}"]
    return ["/bin/sh", "-c", _WITH_FORMAT, "squeue", path, "--noheader", "--all", "--states=all", *whose]


def squeue_by_id(path: str, slurm_ids: str) -> list[str]:
    """List a batch of jobs, as `squeue_all` does."""
    return [*squeue_all(path), f"--jobs={slurm_ids}"]


def squeue_json(path: str, slurm_ids: str) -> list[str]:
    """All that SLURM tells of some jobs; 22.05 prints all jobs whatever was asked for."""
    return [path, "--all", "--json", f"--jobs={slurm_ids}"]


def squeue_format(mark: str) -> bytes:
    """The fields in the language of `squeue --Format`; `mark`, of letters and digits, ends each."""
    return ",".join(f"{field}:0|{mark}" for field in FIELDS).encode() + b"\n"


def requests(answer: Answer, slurm_ids: Collection[SlurmId]) -> dict[SlurmId, Size]:
    """What was asked for, of `squeue --json`: SLURM's lists show of a job that runs what it was given, which SLURM may have
    rounded up. Raises SlurmUnavailableError.
    """
    try:
        jobs = json.loads(answer.stdout)["jobs"] if answer.status == 0 else None
        wanted = [job for job in jobs or () if job["job_id"] in slurm_ids]
        found = {SlurmId(job["job_id"]): request_of(job) for job in wanted}
    except (ValueError, KeyError, TypeError) as error:
        raise SlurmUnavailableError(f"squeue --json printed {answer.stdout[:_SHOWN]!r}: {error!r}") from error
    if jobs is None:
        raise SlurmUnavailableError(f"squeue --json ended with status {answer.status}: {answer.stderr[:_SHOWN]!r}")
    return found


def listed_jobs(answer: Answer, mark: str) -> dict[SlurmId, Listed]:
    """The jobs that squeue printed; it fails when the only one that was asked for is unknown. Raises SlurmUnavailableError when
    it could not ask (QuestionRefusedError where SLURM would not answer), and for a record that is not whole or not what was
    asked for: nobody shall take a job for one that is not there.
    """
    said = answer.stderr.strip()
    if answer.status != 0 and not answer.stdout.strip() and is_unknown_job(said):
        return {}
    if answer.status != 0 or (said and not answer.stdout.strip()):
        raise refusal(said)(f"squeue ended with status {answer.status}: {said[:_SHOWN]!r}")
    return {job.slurm_id: job for job in map(_listed, _records(answer.stdout, mark))}


def _records(printed: str, mark: str) -> Iterator[list[str]]:
    *fields, rest = printed.split(f"|{mark}")
    if rest.strip() or len(fields) % len(FIELDS):
        raise SlurmUnavailableError(f"squeue's list is not whole; it ends with {printed[-_SHOWN:]!r}")
    for first in range(0, len(fields), len(FIELDS)):
        yield fields[first : first + len(FIELDS)]


def _listed(record: list[str]) -> Listed:
    slurm_id, user, state, used, exit_code, reason, submitted, restarts, batch, *rest = record
    limit, name, comment, stdout, start, *size, requeue = rest
    try:
        # The line feed that ends a record is found before the next one's first field.
        number = SlurmId(int(slurm_id.removeprefix("\n")))
        if used == UNREADABLE:  # clocks disagree at the moment; the other jobs do not wait for that
            state, used = f"{state} for {used}", "0:00"
        seen = Seen(
            number,
            state,
            elapsed_s(used),
            wait_status(exit_code),
            reason,
            user="" if user == _NOBODY else user,
            submit_s=int(submitted),
            restarts=int(restarts),
            start_s=int(start) if start.isdigit() else None,
            size=size_of(limit_min(limit), *size),
            may_requeue=requeue == "1",
        )
        # BatchFlag counts up when slurmctld launches a job again.
        return Listed(number, user, name, comment, stdout, int(submitted), seen, batch != "0", limit_min(limit))
    except ValueError as error:
        shown = "|".join(record)[:_SHOWN]
        raise SlurmUnavailableError(f"squeue printed {shown!r}, which has not the fields asked for") from error
