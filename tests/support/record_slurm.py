"""Record what the SLURM of this machine prints, as test data: python -m
tests.support.record_slurm

It writes tests/data/slurm/VERSION/ with the commands of the product. The jobs: 1
`true`, 2 `exit 3`, 3 `kill -9 $$`, 4 runs with a GPU, 5 is held. The folder of the
cluster, the host and the kernel are replaced.
"""

import os
from pathlib import Path

from devgrid.cluster.linux_users import Users
from devgrid.cluster.slurm import Slurm, slurm_version
from devgrid.processes import wait_until
from devgrid.state_folder import private_processes
from supervisor_tasks.jobs.model import Definition, JobId
from supervisor_tasks.slurm import commands
from supervisor_tasks.slurm.squeue import FIELDS

DATA = Path(__file__).parents[1] / "data" / "slurm"
DELIMITER = "4f1d0c9ab3"
BODIES = ("true", "exit 3", "kill -9 $$", "sleep 600", "sleep 600")
RUNS_WITH_A_GPU, HELD = 4, 5
ENDED = ("COMPLETED", "FAILED", "FAILED")


def submit(slurm: Slurm, number: int, body: str) -> None:
    """Submit a job with the supervisor's command, as root."""
    wanted = Definition(
        gpus=int(number == RUNS_WITH_A_GPU),
        mem_per_cpu_mb=100,
        cpus_per_task=2,
        ntasks=1,
        batch_location_hash="h",
    )
    job_id = JobId(f"0x{number:064x}")
    argv = commands.sbatch(
        "sbatch",
        job_id,
        wanted,
        limit_min=60,
        partition="main",
        comment=commands.comment("h:1"),
    )
    script = slurm.layout.folder / f"{number}.sh"
    script.write_bytes(commands.batch_script(job_id, f"#!/bin/sh\n{body}\n"))
    hold = ["--hold"] if number == HELD else []
    done = slurm.run(*argv, *hold, f"--chdir={slurm.layout.folder}", str(script))
    if done.returncode != 0:
        raise SystemExit(f"sbatch: {done.stderr}")


def states(slurm: Slurm) -> list[str]:
    """The states of all jobs, in the order of their ids."""
    return slurm.run(
        "squeue", "--noheader", "--states=all", "--sort=i", "--format=%T"
    ).stdout.split()


def record(slurm: Slurm, folder: Path) -> None:
    """Write what each command prints."""
    fields = ",".join(f"{field}:0|{DELIMITER}" for field in FIELDS)
    commands_by_name = {
        "squeue-listing": (
            "squeue",
            "--noheader",
            "--all",
            "--states=all",
            "--sort=i",
            f"--Format={fields}",
        ),
        "squeue-json": ("squeue", "--all", "--json", f"--jobs={RUNS_WITH_A_GPU}"),
        "scontrol-show-config": commands.show_config("scontrol"),
        "scontrol-show-partition": commands.show_partition("scontrol", "main"),
        "scontrol-show-nodes": ("scontrol", "show", "nodes", "--oneliner"),
        "scontrol-show-job": (
            "scontrol",
            "show",
            "job",
            str(RUNS_WITH_A_GPU),
            "--oneliner",
        ),
        "scontrol-ping": ("scontrol", "ping"),
        "sinfo": ("sinfo", "--noheader", "--Node", "--format=%n %t %c %m %G"),
    }
    machine = os.uname()
    kernel = {machine.release: "6.1.0", machine.version: "#1 SMP"}
    replaced = {
        str(slurm.layout.folder): "/srv/grid/slurm",
        machine.nodename: "login1",
        **kernel,
    }
    for name, argv in commands_by_name.items():
        printed = slurm.run(*commands.UNIX_TIMES, *argv).stdout
        for ours, theirs in replaced.items():
            printed = printed.replace(ours, theirs)
        (folder / f"{name}.txt").write_text(printed)


def main() -> None:
    """Record one version. Raises TimeoutError when the jobs do not come to their
    states.
    """
    folder = DATA / slurm_version()
    folder.mkdir(exist_ok=True)
    with private_processes() as processes:
        spool = processes.folder / "spool"
        spool.mkdir()
        slurm = Slurm.start(processes, Users(processes.folder), spool=spool, nodes=2)
        for number, body in enumerate(BODIES, start=1):
            submit(slurm, number, body)
        wait_until(
            lambda: states(slurm) == [*ENDED, "RUNNING", "PENDING"],
            "the jobs' states",
            60.0,
            0.2,
        )
        record(slurm, folder)
        slurm.stop()


if __name__ == "__main__":
    main()
