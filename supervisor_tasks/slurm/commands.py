"""The command lines that SLURM is given. Pure: lists of words, quoted where they are sent."""

from collections.abc import Iterator, Sequence

from supervisor_tasks.job import Definition, JobId, SlurmId

UNIX_TIMES = ("env", "SLURM_TIME_FORMAT=%s")  # as the admin's time zone is nobody's business
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


def scancel(path: str, slurm_ids: Sequence[SlurmId], user: str) -> list[str]:
    """Cancel jobs as far as they are this user's: an id may be another's by now."""
    return [path, f"--user={user}", *map(str, slurm_ids)]


def set_time_limit(path: str, slurm_id: SlurmId, limit_min: int) -> list[str]:
    """Set the absolute time limit: twice is the same as once."""
    return [path, "update", f"JobId={slurm_id}", f"TimeLimit={limit_min}"]


def show_config(path: str) -> list[str]:
    """Ask slurmctld for its configuration, which tells whether it answers too, and since when it runs (Unix time)."""
    return [*UNIX_TIMES, path, "show", "config"]
