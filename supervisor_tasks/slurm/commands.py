"""The command lines that SLURM is given. Pure: lists of words, quoted where they are sent."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from supervisor_tasks.job import Definition, JobId, SlurmId

UNIX_TIMES = ("env", "SLURM_TIME_FORMAT=%s")  # as the admin's time zone is nobody's business
_SHELLS = (
    "",
    "sh",
    "bash",
    "dash",
    "ash",
    "ksh",
    "mksh",
    "zsh",
    "fish",
    "csh",
    "tcsh",
)  # for which `true` is a command
# The shell reads line by line and does not come to what is behind `exec`. Its own words are in no environment.
_BECOME = """\
d=$(command -p mktemp -d "$PWD/.supervisor.XXXXXXXX") && command -p tail -c {size} "$0" >"$d/script" && exec 9<"$d/script"
r=$?; command -p rm -rf "$d"
[ "$r" -eq 0 ] || {{ echo "supervisor: the script could not be written to $PWD" >&2; exit 126; }}
exec {interpreter} "/proc/$$/fd/9"
exit 126
"""
_MOST_BYTES = 100_000  # of one word of a command line; Linux takes 128 KiB


def sbatch(
    path: str, job_id: JobId, definition: Definition, *, limit_min: int, partition: str, comment: str
) -> list[str]:
    """Submit a job; its script goes to standard input. `--parsable` prints `id` or `id;cluster`. The comment is
    `comment()`, with a token behind it where slurmctld asks for one.
    """
    gpus = [f"--gpus={definition.gpus}"] if definition.gpus else []
    return [
        path,
        "--parsable",
        f"--job-name={job_id}",
        f"--comment={comment}",
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
    Those of the environment are taken out by slurm/guarded_command.py.

    A shell takes the command `true`. A script for another interpreter stands behind a shell script that writes it to a file,
    opens that, removes it, and becomes the interpreter: process, signals and exit status are the script's own. The file is in
    a new folder of the customer's working directory: Python imports from the folder where its script was, and in /tmp another
    user could make it again.
    """
    line, _, body = script.partition("\n") if script.startswith("#!") else ("#!/bin/bash", "", script)
    interpreter = line.removeprefix("#!").strip().split(None, 1)  # as the kernel: what follows the program is one word
    if _program(line) in _SHELLS:
        return f"{line}\n{script_mark(job_id)}\ntrue\n{body}".encode()
    text = script.encode()
    become = _BECOME.format(size=len(text), interpreter=shlex.join(interpreter))
    return f"#!/bin/sh\n{script_mark(job_id)}\n{become}".encode() + text


def _program(line: str) -> str:
    """The name of the program that a first line asks for, also by way of `env`; empty when it names none."""
    names = [PurePosixPath(word).name for word in line.removeprefix("#!").split() if word[0] != "-" and "=" not in word]
    return next((name for name in names if name != "env"), "")


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


def put_back(path: str, slurm_id: SlurmId, words: Sequence[str]) -> list[str]:
    """Give a job that waits the size that was paid for."""
    return [path, "update", f"JobId={slurm_id}", *words]


def hold_again(path: str, slurm_id: SlurmId) -> list[str]:
    """Have a job that has ended wait again, for ever: slurmctld changes nothing of one that has ended."""
    return [path, "requeuehold", str(slurm_id)]


def show_partition(path: str, partition: str) -> list[str]:
    """Ask slurmctld for a partition of that name, whoever may use it."""
    return [path, "--all", "show", "partition", partition]


def show_config(path: str) -> list[str]:
    """Ask slurmctld for its configuration, which tells whether it answers too, and since when it runs (Unix time)."""
    return [*UNIX_TIMES, path, "show", "config"]
