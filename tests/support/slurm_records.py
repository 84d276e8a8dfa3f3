"""Reads SLURM's own records of its jobs: slurmctld, accounting, the lines of devgrid's
completion hook, the daemons' logs.
"""

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from devgrid.cluster.linux_users import Users
from devgrid.machine import deadline

GRID_JOB = re.compile("0x[0-9a-f]{64}")


@dataclass(frozen=True)
class SlurmJob:
    """A job in SLURM's records. `job_id` is the grid's, from the name of the job's log
    file or from its own name. `live` means that slurmctld has the job and it has not
    ended.
    """

    slurm_id: int
    job_id: str
    state: str
    elapsed_s: int
    exit_status: int
    live: bool = False


def records(
    folder: Path, completed: list[SlurmJob], *, accounting: bool
) -> dict[int, SlurmJob]:
    """The records by SLURM id: accounting's, else slurmctld's, else the one of the
    completion hook.
    """
    jobs = {job.slurm_id: job for job in completed}
    jobs |= {job.slurm_id: job for job in _remembered(folder)}
    if accounting:
        for job in _accounted(folder):
            other = jobs.get(job.slurm_id)
            named = (
                job
                if GRID_JOB.fullmatch(job.job_id) or other is None
                else _renamed(job, other.job_id)
            )
            jobs[job.slurm_id] = other if other and other.live else named
    return {slurm_id: job for slurm_id, job in sorted(jobs.items()) if job.job_id}


def purged(folder: Path) -> Counter[int]:
    """Counts, by SLURM id, the batch jobs whose files slurmctld found at a start and
    which it did not know (SLURM 22.05).
    """
    return Counter(
        int(number)
        for number in re.findall(
            r"Purged files for defunct batch JobId=(\d+)", slurmctld_log(folder)
        )
    )


def unlaunched(folder: Path) -> set[int]:
    """The SLURM ids of jobs that a slurmd could not launch and had cancelled. A slurmd
    that stood still gets the order to launch late, when slurmctld has given the launch
    up; SLURM does not requeue a job with --no-requeue (SLURM 22.05).
    """
    words = re.compile(
        r"Could not launch job (\d+) and not able to requeue it, cancelling job"
    )
    logs = (folder / "slurm").glob("slurmd-*.log")
    return {
        int(number)
        for log in logs
        for number in words.findall(log.read_text(errors="replace"))
    }


def kill_requested(folder: Path) -> set[int]:
    """The SLURM ids of jobs that slurmctld was asked to cancel, by scancel or by a
    slurmd.
    """
    return {
        int(number)
        for number in re.findall(
            r"REQUEST_KILL_JOB JobId=(\d+) ", slurmctld_log(folder)
        )
    }


def slurmctld_log(folder: Path) -> str:
    """The log of slurmctld since the start of the grid."""
    return (folder / "slurm" / "slurmctld.log").read_text(errors="replace")


def _renamed(job: SlurmJob, job_id: str) -> SlurmJob:
    return SlurmJob(
        job.slurm_id, job_id, job.state, job.elapsed_s, job.exit_status, job.live
    )


def _remembered(folder: Path) -> Iterator[SlurmJob]:
    for line in _run(folder, "scontrol", "--oneliner", "show", "job").splitlines():
        found = re.match(r"JobId=(\d+) JobName=(\S*)", line)
        if found is None:
            continue
        fields = dict(re.findall(r" (JobState|RunTime|ExitCode|StdOut)=(\S+)", line))
        exit_code, _, signal = fields["ExitCode"].partition(":")
        live = fields["JobState"] in (
            "PENDING",
            "RUNNING",
            "SUSPENDED",
            "CONFIGURING",
            "COMPLETING",
            "STOPPED",
        )
        yield SlurmJob(
            int(found[1]),
            _grid_job(fields.get("StdOut", ""), found[2]),
            fields["JobState"],
            seconds_of(fields["RunTime"]),
            int(exit_code) * 256 + int(signal),
            live,
        )


def _accounted(folder: Path) -> Iterator[SlurmJob]:
    options = (
        "--allusers",
        "--allocations",
        "--noheader",
        "--parsable2",
        "--duplicates",
        "--starttime=2000-01-01",
    )
    fields = "--format=JobIDRaw,State,ElapsedRaw,ExitCode,JobName%80"
    for line in _run(folder, "sacct", *options, fields).splitlines():
        slurm_id, state, elapsed_s, exit_status, name = line.split("|", 4)
        exit_code, _, signal = exit_status.partition(":")
        yield SlurmJob(
            int(slurm_id),
            _grid_job("", name),
            state.split()[0],
            int(elapsed_s),
            int(exit_code) * 256 + int(signal),
        )


def completed(folder: Path, file: str = "completed") -> Iterator[SlurmJob]:
    """The lines of devgrid's completion hook (devgrid/cluster/slurm.py). The file
    `reported_ends` has those whose call of our hook has returned.
    """
    for line in _lines_of(folder, file):
        slurm_id, state, exit_status, start_s, end_s, log, name = line.split("|", 6)
        exit_code, _, signal = exit_status.partition(":")
        began, ended = int(start_s), int(end_s)
        elapsed_s = ended - began if 0 < began < ended else 0
        yield SlurmJob(
            int(slurm_id),
            _grid_job(log, name),
            state,
            elapsed_s,
            int(exit_code) * 256 + int(signal or 0),
        )


def hook_unfinished(folder: Path) -> list[int]:
    """The SLURM ids of jobs for whose end our hook was called and did not finish,
    although slurmctld lived on.
    """
    # read before `reported_ends`: the hook writes each line here first
    called = _lines_of(folder, "completed")
    starts = re.findall(
        r"^\[([^]]+)\] slurmctld version ", slurmctld_log(folder), re.MULTILINE
    )
    last_start_s = datetime.fromisoformat(starts[-1]).timestamp() if starts else 0.0
    finished = set(_lines_of(folder, "reported_ends"))
    lines = [line.split("|", 6) for line in called if line not in finished]
    return [int(line[0]) for line in lines if int(line[4]) > last_start_s]


def _lines_of(folder: Path, file: str) -> list[str]:
    record = folder / "slurm" / file
    return record.read_text(errors="replace").splitlines() if record.exists() else []


def _grid_job(log: str, name: str) -> str:
    """The grid's id, from the log's name if that has one: an owner easily changes the
    name of a job, and hardly its log's.
    """
    stem = Path(log).name.removesuffix(".log")
    return next((found for found in (stem, name) if GRID_JOB.fullmatch(found)), "")


def seconds_of(duration: str) -> int:
    """Parse a duration as scontrol and squeue print it: days-hours:minutes:seconds.
    squeue leaves out days and hours that are none.
    """
    days, _, clock = duration.rpartition("-")
    hours, minutes, seconds = ("0:" + clock).split(":")[-3:]
    return int(days or 0) * 86400 + int(hours) * 3600 + int(minutes) * 60 + int(seconds)


def _run(folder: Path, *argv: str) -> str:
    conf = {"SLURM_CONF": str(folder / "slurm" / "slurm.conf")}
    environment = {**os.environ, **conf, **Users(folder).environment()}
    done = subprocess.run(
        argv,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=deadline(60),
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{argv[0]} ended with status {done.returncode}: {done.stderr.strip()}"
        )
    return done.stdout
