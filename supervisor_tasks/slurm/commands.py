"""The command lines that SLURM is given. Pure: lists of words, quoted where they are sent."""

from collections.abc import Sequence

from supervisor_tasks.job import Definition, JobId, SlurmId

SEPARATOR = "|"
# Only fields that the job's owner cannot write: a job's name could hold a line that looks like another job's.
LOOK_FIELDS = ("JobID", "State", "TimeUsed", "exit_code", "Reason")
ACCOUNTING_FIELDS = ("JobIDRaw", "State", "ElapsedRaw", "ExitCode")


def sbatch(
    path: str, job_id: JobId, definition: Definition, *, limit_min: int, partition: str, public_address: str
) -> list[str]:
    """Submit a job; its script goes to standard input. `--parsable` prints `id` or `id;cluster`."""
    gpus = [f"--gpus={definition.gpus}"] if definition.gpus else []
    return [
        path,
        "--parsable",
        f"--job-name={job_id}",
        f"--comment=supervisor {public_address}",
        f"--partition={partition}",
        f"--ntasks={definition.ntasks}",
        f"--cpus-per-task={definition.cpus_per_task}",
        f"--mem-per-cpu={definition.mem_per_cpu_mb}M",
        *gpus,
        f"--time={limit_min}",
        f"--output={job_id}.log",
        "--no-requeue",
    ]


def batch_script(script: str) -> bytes:
    """The script as sbatch reads it: a command before the body ends the search for #SBATCH lines, so that the customer's
    own change nothing of what was paid for.
    """
    interpreter, body = "#!/bin/bash", script
    if script.startswith("#!"):
        interpreter, _, body = script.partition("\n")
    return f"{interpreter}\ntrue\n{body}".encode()


def squeue_by_id(path: str, slurm_ids: Sequence[SlurmId]) -> list[str]:
    """Look at jobs in all states, in one command."""
    ids = ",".join(map(str, slurm_ids))
    return [path, "--noheader", "--states=all", f"--jobs={ids}", f"--Format={_format()}"]


def squeue_by_name(path: str, user: str, job_id: JobId) -> list[str]:
    """Look for the jobs of that name and user, in all states."""
    return [path, "--noheader", "--states=all", f"--name={job_id}", f"--user={user}", f"--Format={_format()}"]


def sacct_by_id(path: str, slurm_ids: Sequence[SlurmId]) -> list[str]:
    """Ask the accounting database for jobs that slurmctld has forgotten."""
    return [*_sacct(path), f"--jobs={','.join(map(str, slurm_ids))}"]


def sacct_by_name(path: str, user: str, job_id: JobId) -> list[str]:
    """Ask the accounting database for the jobs of that name and user since yesterday."""
    return [*_sacct(path), f"--name={job_id}", f"--user={user}", "--starttime=now-1days"]


def scancel(path: str, slurm_id: SlurmId) -> list[str]:
    """Cancel one job."""
    return [path, str(slurm_id)]


def set_time_limit(path: str, slurm_id: SlurmId, limit_min: int) -> list[str]:
    """Set the absolute time limit: twice is the same as once."""
    return [path, "update", f"JobId={slurm_id}", f"TimeLimit={limit_min}"]


def ping(path: str) -> list[str]:
    """Ask whether slurmctld answers."""
    return [path, "ping"]


def _format() -> str:
    return ",".join(f"{field}:40{SEPARATOR}" for field in LOOK_FIELDS)


def _sacct(path: str) -> list[str]:
    return [path, "--noheader", "--parsable2", "--allocations", f"--format={','.join(ACCOUNTING_FIELDS)}"]
