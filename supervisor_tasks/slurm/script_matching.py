"""Find out which of a customer's jobs in SLURM is the one that we submitted. Pure.

A job's owner can rename it, change its comment, and, while it waits, also change its
output path. Only the submitter writes the batch script: ours has a line with the job's
id right after the interpreter line, and the admin can read it back (`scontrol write
batch_script`). Where there is accounting, sbatch's command line serves as well. Tried
with SLURM 22.05.8; samples: tests/data/slurm/*batch-script*, sacct-submit-lines*.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from supervisor_tasks.errors import UndecidedError
from supervisor_tasks.jobs.model import Address, JobId, SlurmId
from supervisor_tasks.slurm.commands import script_header
from supervisor_tasks.slurm.parsers import (
    CommandAnswer,
    JobRecord,
    SlurmUnavailableError,
)
from supervisor_tasks.slurm.squeue import SqueueRow

# in one command; also for one customer, when one of his jobs may be the job
MAX_SCRIPTS = 500
_HEADS = (
    'IFS= read -r m; c=$1; shift; for i; do printf "%s %s " "$m" "$i";'
    ' "$c" write batch_script "$i" - 2>/dev/null | sed -n 1,2p | cut -c1-120; done; echo "$m end"'
)


@dataclass(frozen=True, slots=True)
class ScriptSearch:
    """A job of ours that SLURM may have under another name or id. `ago_s` is the
    seconds since its submission began. `owners` has the SLURM ids that are known to be
    ours, each with the jobs of ours that have it.
    """

    job_id: JobId
    user: Address
    ago_s: float
    owners: Mapping[SlurmId, Collection[JobId]]

    def with_our_name(self, rows: Iterable[SqueueRow]) -> list[SqueueRow]:
        """Return, of the user's jobs, those with the job's name or output that are no
        others of ours.
        """
        named = list[SqueueRow]()
        for row in self._free(rows):
            if has_job_name(row, self.job_id):
                named.append(row)
        return named

    def submitted_since_start(
        self, rows: Iterable[SqueueRow], now_s: float
    ) -> list[SqueueRow]:
        """Return, of the user's jobs, those that SLURM got since the submission began
        and that are no others of ours.
        """
        return batch_jobs_since(self._free(rows), now_s - self.ago_s)

    def suspects(self, rows: Collection[SqueueRow], now_s: float) -> list[SqueueRow]:
        """Return, of the user's jobs, those that may be this one: with its name or
        output, or got by SLURM since.
        """
        suspects = dict[SlurmId, SqueueRow]()
        for row in self.with_our_name(rows):
            suspects[row.slurm_id] = row
        for row in self.submitted_since_start(rows, now_s):
            suspects[row.slurm_id] = row
        return list(suspects.values())

    def _free(self, rows: Iterable[SqueueRow]) -> list[SqueueRow]:
        """Return the rows without those of other jobs of ours."""
        free = list[SqueueRow]()
        for row in rows:
            other_jobs = set(self.owners.get(row.slurm_id, ())) - {self.job_id}
            if not other_jobs:
                free.append(row)
        return free


def has_job_name(job: SqueueRow, job_id: JobId) -> bool:
    """Whether a job's name or output path has our job's id. Its owner can write both,
    so this is only a hint.
    """
    return job.name == job_id or job.stdout.rpartition("/")[2] == f"{job_id}.log"


def read_scripts(path: str, slurm_ids: Sequence[SlurmId]) -> list[str]:
    """Build the one command that prints the first lines of batch scripts. It reads a
    delimiter from standard input.
    """
    return ["/bin/sh", "-c", _HEADS, "scripts", path, *map(str, slurm_ids)]


def script_heads(answer: CommandAnswer, delimiter: str) -> dict[SlurmId, str]:
    """Return each script's second line; scripts that SLURM does not have are left out.
    Raises SlurmUnavailableError for an answer that is incomplete; a retry helps.
    """
    *scripts, end = answer.stdout.split(delimiter)
    if (answer.status, end) != (0, " end\n"):
        raise SlurmUnavailableError(
            f"scripts could not be read (status {answer.status}): {answer.stderr[:200]!r}"
        )
    heads = {}
    for script in scripts[1:]:
        number, _, text = script.removeprefix(" ").partition(" ")
        first, line_feed, rest = text.partition("\n")
        if first or line_feed:
            heads[SlurmId(int(number))] = rest.partition("\n")[0]
    return heads


def job_id_in_header(line: str) -> JobId | None:
    """Return the job that the second line of our batch script names."""
    job_id = JobId(line.rpartition(" ")[2])
    if line != script_header(job_id):
        return None
    return job_id


def batch_jobs_since(listed: Iterable[SqueueRow], since_s: float) -> list[SqueueRow]:
    """Return the batch jobs that SLURM got since this time, without rejected jobs,
    which never ran.
    """
    jobs = list[SqueueRow]()
    for job in listed:
        is_recent = job.has_script and job.submit_s >= since_s
        if is_recent and not was_rejected(job.record):
            jobs.append(job)
    return jobs


def last_writes(files: Iterable[str]) -> list[str]:
    """Build the command that prints `written <Unix time> <file>` for each of these
    files that exists in the home folder.
    """
    written = (
        'for i; do test -e "$i" && echo "written $(stat -c %Y -- "$i") $i"; done; true'
    )
    return ["/bin/sh", "-c", written, "logs", *files]


def written_at(answer: CommandAnswer, file: str) -> int | None:
    """Return the time that `last_writes` printed for this file. Output of start-up
    files is ignored.
    """
    found = re.findall(
        rf"written ([0-9]{{1,12}}) {re.escape(file)}$", answer.stdout, re.MULTILINE
    )
    if not found:
        return None
    return int(found[-1])


def matches_script(
    job_id: JobId,
    suspects: Sequence[SqueueRow],
    headers: Mapping[SlurmId, str],
    unread: Collection[SlurmId],
) -> bool | None:
    """Whether one of the suspects is our job, by the headers of their scripts; None
    when one may be. `unread` are the jobs whose scripts SLURM does not show. A rejected
    job has no script. A job whose script cannot be read counts as ours by its name.
    """
    ours = script_header(job_id)
    for job in suspects:
        header = headers.get(job.slurm_id)
        if header == ours:
            return True
        if header is None and has_job_name(job, job_id):
            return True
    if len(suspects) > MAX_SCRIPTS:
        return None
    for job in suspects:
        if job.slurm_id in unread:
            return None
    return False


def found_by_name(
    job_id: JobId, named: Sequence[SqueueRow], headers: Mapping[SlurmId, str]
) -> list[JobRecord] | UndecidedError:
    """Return the records of our job out of those with its name or output. A rejected
    job has no script. A job whose script cannot be read counts as ours by its name.
    """
    too_many = _too_many(named)
    if too_many is not None:
        return too_many
    header = script_header(job_id)
    ours = list[JobRecord]()
    for job in named:
        if headers.get(job.slurm_id, header) == header:
            ours.append(job.record)
    return ours


def found_by_script(
    search: ScriptSearch,
    recent: Sequence[SqueueRow],
    headers: Mapping[SlurmId, str],
    unread: Collection[SlurmId],
) -> list[JobRecord] | UndecidedError:
    """Return the records of our job, which has another name, out of the jobs that SLURM
    got since the submission began. `unread` are the jobs whose scripts SLURM does not
    show.
    """
    header = script_header(search.job_id)
    ours = list[JobRecord]()
    unclear = list[SlurmId]()
    for job in recent:
        if headers.get(job.slurm_id) == header:
            ours.append(job.record)
        if job.slurm_id in unread and not has_job_name(job, search.job_id):
            unclear.append(job.slurm_id)
    if unclear and not ours:
        return UndecidedError(
            f"it is not known whether SLURM has the job: its submission was cut off {search.ago_s:.0f} s ago, and of the"
            f" jobs {unclear} of {search.user}, which are no others of ours, the scripts cannot be read"
        )
    return _too_many(recent) or ours


def _too_many(jobs: Sequence[SqueueRow]) -> UndecidedError | None:
    if len(jobs) <= MAX_SCRIPTS:
        return None
    return UndecidedError(
        f"{len(jobs)} jobs in SLURM may be this one; {MAX_SCRIPTS} at most are looked at"
    )


def was_rejected(seen: JobRecord) -> bool:
    """Whether this is slurmctld's record of a job that it rejected."""
    is_rejection = (seen.state, seen.reason) == ("FAILED", "BadConstraints")
    return is_rejection and seen.elapsed_s == 0
