"""The command lines that SLURM is given. Pure: lists of words, quoted where they are sent."""

from collections.abc import Iterator, Sequence

from supervisor_tasks.job import Definition, JobId, SlurmId

SEPARATOR = "|"
# Only fields that the job's owner cannot write: a job's name could hold a line that looks like another job's.
LOOK_FIELDS = ("JobID", "State", "TimeUsed", "exit_code", "Reason", "UserName", "SubmitTime", "RestartCnt")
ACCOUNTING_FIELDS = ("JobIDRaw", "State", "ElapsedRaw", "ExitCode", "User", "Submit", "End")
_UNIX_TIMES = ("env", "SLURM_TIME_FORMAT=%s")  # as the admin's time zone is nobody's business
_MOST_BYTES = 100_000  # of one word of a command line; Linux takes 128 KiB


def sbatch(
    path: str, job_id: JobId, definition: Definition, *, limit_min: int, partition: str, public_address: str
) -> list[str]:
    """Submit a job; its script goes to standard input. `--parsable` prints `id` or `id;cluster`."""
    gpus = [f"--gpus={definition.gpus}"] if definition.gpus else []
    return [
        path,
        "--parsable",
        f"--job-name={job_id}",
        f"--comment={comment(public_address)}",
        f"--partition={partition}",
        f"--ntasks={definition.ntasks}",
        f"--cpus-per-task={definition.cpus_per_task}",
        f"--mem-per-cpu={definition.mem_per_cpu_mb}M",
        *gpus,
        f"--time={limit_min}",
        f"--output={job_id}.log",
        "--no-requeue",
    ]


def comment(public_address: str) -> str:
    """What marks a job as ours; a plugin reads from it whom to call."""
    return f"supervisor {public_address}"


def batch_script(job_id: JobId, script: str) -> bytes:
    """The script as sbatch reads it: with a line by which the job is recognised whatever its owner calls it, and a command
    before the body, which ends the search for #SBATCH lines, so that the customer's own change nothing of what was paid for.
    Those of the environment are taken out by slurm/once.py.
    """
    interpreter, body = "#!/bin/bash", script
    if script.startswith("#!"):
        interpreter, _, body = script.partition("\n")
    return f"{interpreter}\n{script_mark(job_id)}\ntrue\n{body}".encode()


def script_mark(job_id: JobId) -> str:
    """The line of our batch scripts by which a job is recognised."""
    return f"# supervisor job {job_id}"


def batches(words: Sequence[str]) -> Iterator[str]:
    """The words with commas between, in as few pieces as a command line can hold."""
    batch, size = list[str](), 0
    for word in words:
        if size + len(word) >= _MOST_BYTES:
            yield ",".join(batch)
            batch, size = [], 0
        batch.append(word)
        size += len(word) + 1
    if batch:
        yield ",".join(batch)


def squeue_by_id(path: str, slurm_ids: str) -> list[str]:
    """Look at a batch of jobs in all states and all partitions, hidden ones too, in one command."""
    return [*_squeue(path), f"--jobs={slurm_ids}"]


def squeue_named(path: str, job_ids: str) -> list[str]:
    """Look for the jobs that have one of these names still: their owners may have given them others."""
    return [*_squeue(path), f"--name={job_ids}"]


def sacct_by_id(path: str, slurm_ids: str) -> list[str]:
    """Ask the accounting database for a batch of jobs that slurmctld has forgotten: all that ever had these ids, and each
    run of a job that was requeued.
    """
    return [*_sacct(path), f"--jobs={slurm_ids}"]


def sacct_named(path: str, job_ids: str, slurm_ids: str) -> list[str]:
    """Ask the accounting database for the jobs that have one of these names and one of these ids."""
    return [*_sacct(path), f"--name={job_ids}", f"--jobs={slurm_ids}"]


def sacct_since(path: str, name: str, user: str, minutes: int) -> list[str]:
    """Ask the accounting database for the jobs of a user that have this name, of the last minutes."""
    return [*_sacct(path), f"--name={name}", f"--user={user}", f"--starttime=now-{minutes}minutes"]


def scancel(path: str, slurm_ids: Sequence[SlurmId], user: str) -> list[str]:
    """Cancel jobs as far as they are this user's: an id may be another's by now."""
    return [path, f"--user={user}", *map(str, slurm_ids)]


def set_time_limit(path: str, slurm_id: SlurmId, limit_min: int) -> list[str]:
    """Set the absolute time limit: twice is the same as once."""
    return [path, "update", f"JobId={slurm_id}", f"TimeLimit={limit_min}"]


def show_config(path: str) -> list[str]:
    """Ask slurmctld for its configuration, which tells whether it answers too, and since when it runs (Unix time)."""
    return [*_UNIX_TIMES, path, "show", "config"]


def _squeue(path: str) -> list[str]:
    # A field of width 0 is printed whole and without padding.
    shown = ",".join(f"{field}:0{SEPARATOR}" for field in LOOK_FIELDS)
    return [*_UNIX_TIMES, path, "--noheader", "--all", "--states=all", f"--Format={shown}"]


def _sacct(path: str) -> list[str]:
    whole = ("--noheader", "--parsable2", "--allocations", "--duplicates")
    return [*_UNIX_TIMES, path, *whole, f"--format={','.join(ACCOUNTING_FIELDS)}"]
