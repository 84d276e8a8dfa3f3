"""Which of a customer's jobs in SLURM is the one that we submitted. Pure.

A job's owner can rename it, change its comment, and while it waits also where its output goes. What nobody but the submitter
ever writes is the batch script: ours has a line with the job's id right behind the interpreter, and the admin can read it
back (`scontrol write batch_script`). Where there is accounting, the line that sbatch was called with is as good.
Tried with SLURM 22.05.8; samples: tests/data/slurm/*batch-script*, sacct-submit-lines*.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from supervisor_tasks.job import Address, JobId, SlurmId
from supervisor_tasks.slurm.commands import script_mark
from supervisor_tasks.slurm.listing import Listed
from supervisor_tasks.slurm.output import Answer, Seen, SlurmUnavailableError

MOST_SCRIPTS = 500  # in one command; and of one customer, where one of them may be the job that is looked for
_HEADS = (
    'IFS= read -r m; c=$1; shift; for i; do printf "%s %s " "$m" "$i";'
    ' "$c" write batch_script "$i" - 2>/dev/null | sed -n 1,2p | cut -c1-120; done; echo "$m end"'
)


@dataclass(frozen=True, slots=True)
class Sought:
    """A job of ours that SLURM may have under another name or id. `ago_s` is how long ago its submission began, `owners` are
    the jobs of ours that SLURM's jobs are known to be.
    """

    job_id: JobId
    user: Address
    ago_s: float
    owners: Mapping[SlurmId, Collection[JobId]]

    def suspects(self, users: Iterable[Listed], now_s: float) -> list[Listed]:
        """The user's jobs that may be this one: what calls itself so, and what SLURM got since then."""
        theirs = [job for job in users if {*self.owners.get(job.slurm_id, ())} <= {self.job_id}]
        young = {job.slurm_id for job in worth_reading(theirs, now_s - self.ago_s)}
        return [job for job in theirs if job.slurm_id in young or calls_itself(job, self.job_id)]


def calls_itself(job: Listed, job_id: JobId) -> bool:
    """Whether a job's name or output has our job's id: what its owner can write, and so a hint."""
    return job.name == job_id or job.stdout.rpartition("/")[2] == f"{job_id}.log"


def read_scripts(path: str, slurm_ids: Sequence[SlurmId]) -> list[str]:
    """The beginnings of batch scripts, in one command. It reads a mark from standard input."""
    return ["/bin/sh", "-c", _HEADS, "scripts", path, *map(str, slurm_ids)]


def script_heads(answer: Answer, mark: str) -> dict[SlurmId, str]:
    """The second line of each script; one that SLURM does not have is left out. Raises SlurmUnavailableError."""
    *scripts, end = answer.stdout.split(mark)
    if answer.status != 0 or end != " end\n":
        raise SlurmUnavailableError(f"scripts could not be read (status {answer.status}): {answer.stderr[:200]!r}")
    heads = {}
    for script in scripts[1:]:
        number, _, text = script.removeprefix(" ").partition(" ")
        first, line_feed, rest = text.partition("\n")
        if first or line_feed:
            heads[SlurmId(int(number))] = rest.partition("\n")[0]
    return heads


def marked_job(line: str) -> JobId | None:
    """The job that the second line of a batch script of ours names."""
    job_id = JobId(line.rpartition(" ")[2])
    return job_id if line == script_mark(job_id) else None


def worth_reading(listed: Iterable[Listed], since_s: float) -> list[Listed]:
    """The batch jobs that SLURM got since then; rejected ones never ran."""
    return [job for job in listed if job.batch and job.submit_s >= since_s and not was_rejected(job.seen)]


def last_writes(files: Iterable[str]) -> list[str]:
    """When files in the home folder were last written: prints `written <Unix time> <file>` for those that are there."""
    written = 'for i; do test -e "$i" && echo "written $(stat -c %Y -- "$i") $i"; done; true'
    return ["/bin/sh", "-c", written, "logs", *files]


def written_at(answer: Answer, file: str) -> int | None:
    """The time that `last_writes` printed for one of the files; what start-up files print besides is not looked at."""
    found = re.findall(rf"written ([0-9]{{1,12}}) {re.escape(file)}$", answer.stdout, re.MULTILINE)
    return int(found[-1]) if found else None


def recognised(
    job_id: JobId, suspects: Sequence[Listed], marks: Mapping[SlurmId, str], unread: Collection[SlurmId]
) -> bool | None:
    """Whether one of the suspects is our job, by the marks of their scripts; None when one may be: `unread` are the jobs whose
    scripts SLURM does not show. A rejected job has no script; of one whose script cannot be read, its word is taken.
    """
    words = {job.slurm_id: marks.get(job.slurm_id) for job in suspects}
    hinted = {job.slurm_id for job in suspects if calls_itself(job, job_id)}
    if any(mark == script_mark(job_id) or (mark is None and slurm_id in hinted) for slurm_id, mark in words.items()):
        return True
    return None if len(suspects) > MOST_SCRIPTS or words.keys() & unread else False


def was_rejected(seen: Seen) -> bool:
    """slurmctld keeps a record of what it rejected."""
    return seen.state == "FAILED" and seen.reason == "BadConstraints" and seen.elapsed_s == 0
