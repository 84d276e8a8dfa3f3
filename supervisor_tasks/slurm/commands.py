"""Build the command lines of SLURM's tools. Pure: lists of words; the SSH client quotes
them.
"""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from supervisor_tasks.jobs.model import Definition, JobId, SlurmId

# so that the admin's time zone does not matter
UNIX_TIMES = ("env", "SLURM_TIME_FORMAT=%s")
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
)  # the shells in which `true` is a command
# of interpreters that look for the name of their script's file, which is gone. A
# variable would reach the programs that the script starts, too.
_OPTIONS = dict.fromkeys(("node", "nodejs"), "--preserve-symlinks-main")
# The shell reads line by line, so it never reads the text after `exec`. No environment
# has variables of these names.
_BECOME = """\
d=$(command -p mktemp -d "$PWD/.supervisor.XXXXXXXX") && command -p tail -c {size} "$0" >"$d/script" && exec 9<"$d/script"
r=$?; command -p rm -rf "$d"
[ "$r" -eq 0 ] || {{ echo "supervisor: the script could not be written to $PWD" >&2; exit 126; }}
exec {interpreter} "/proc/$$/fd/9"
exit 126
"""
_MOST_BYTES = 100_000  # of one word of a command line; Linux takes 128 KiB


def sbatch(
    path: str,
    job_id: JobId,
    definition: Definition,
    *,
    limit_min: int,
    partition: str,
    comment: str,
) -> list[str]:
    """Build the command that submits a job; the script goes to standard input.
    `--parsable` prints `id` or `id;cluster`. `comment` is the output of `comment()`,
    followed by a token where slurmctld asks for one. Without `--ignore-pbs`, sbatch
    obeys `#PBS` and `#BSUB` lines anywhere in a script, also behind commands.
    """
    gpus = list[str]()
    if definition.gpus:
        gpus.append(f"--gpus={definition.gpus}")
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
        "--ignore-pbs",
    ]


def comment(public_address: str) -> str:
    """Return the comment that identifies a job as ours. A plugin reads from it the address
    that it calls.
    """
    return f"supervisor {public_address}"


def batch_script(job_id: JobId, script: str) -> bytes:
    """Return the script as sbatch reads it. A line in it identifies the job even if its
    owner renames the job. A command before the body ends the search for #SBATCH lines,
    so that the customer's own #SBATCH lines do not change what he paid for.
    slurm/guarded_command.py removes the options in the environment.

    For a shell, that command is `true`. A script for another interpreter comes after a
    shell script that writes it to a file, opens the file, removes it, and becomes the
    interpreter. So process, signals and exit status are the script's own. The file is
    in a new folder of the customer's working directory, for two reasons. Python imports
    from the script's folder, and in /tmp another user could create the folder again.
    """
    if script.startswith("#!"):
        line, _, body = script.partition("\n")
    else:
        line, body = "#!/bin/bash", script
    # like the kernel: the rest of the line is one word
    interpreter = line.removeprefix("#!").strip().split(None, 1)
    program = _program(line)
    if program in _SHELLS:
        return f"{line}\n{script_header(job_id)}\ntrue\n{body}".encode()
    if program in _OPTIONS:
        interpreter.append(_OPTIONS[program])
    text = script.encode()
    become = _BECOME.format(size=len(text), interpreter=shlex.join(interpreter))
    return f"#!/bin/sh\n{script_header(job_id)}\n{become}".encode() + text


def _program(line: str) -> str:
    """Return the name of the program in the first line, also if `env` starts it; empty
    when the line names none.
    """
    for word in line.removeprefix("#!").split():
        if word.startswith("-") or "=" in word:
            continue  # an option or a variable of `env`
        name = PurePosixPath(word).name
        if name != "env":
            return name
    return ""


def script_header(job_id: JobId) -> str:
    """Return the line that identifies a job in our batch scripts."""
    return f"# supervisor job {job_id}"


def batches(words: Sequence[str]) -> Iterator[str]:
    """Join the words with commas, in as few texts as a command line can hold."""
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
    """Cancel jobs, but only those of this user: another user's job may have the id by
    now.
    """
    return [path, f"--user={user}", *map(str, slurm_ids)]


def set_time_limit(path: str, slurm_id: SlurmId, limit_min: int) -> list[str]:
    """Set the absolute time limit. A repeated call has the same effect as one call."""
    return [path, "update", f"JobId={slurm_id}", f"TimeLimit={limit_min}"]


def update_job(path: str, slurm_id: SlurmId, words: Sequence[str]) -> list[str]:
    """Change a job by words of `scontrol update`."""
    return [path, "update", f"JobId={slurm_id}", *words]


def hold_again(path: str, slurm_id: SlurmId) -> list[str]:
    """Make a job that has ended wait again, on hold: slurmctld changes nothing of a job
    that has ended.
    """
    return [path, "requeuehold", str(slurm_id)]


def show_partition(path: str, partition: str) -> list[str]:
    """Return the command that shows the partition of this name, also if the admin may
    not use it.
    """
    return [path, "--all", "show", "partition", partition]


def show_config(path: str) -> list[str]:
    """Return the command that shows slurmctld's configuration, which also shows if
    slurmctld runs and since when (Unix time).
    """
    return [*UNIX_TIMES, path, "show", "config"]
