"""Record the answers of this machine's SLURM to commands, its accounting and its hooks'
environment, as test data: python -m tests.support.record_slurm_answers

It writes tests/data/slurm/VERSION/: answers.json (command, status and outputs),
sacct.txt and hooks.json (the environment of each hook). The jobs are those of
record_slurm; a job that sbatch accepts here gets a later id. The folder of the cluster,
the host and the kernel are replaced.
"""

import json
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from devgrid.cluster.linux_users import Users
from devgrid.cluster.slurm import Slurm, slurm_version
from devgrid.processes import wait_until
from devgrid.state_folder import private_processes
from supervisor_tasks.jobs.model import Definition, JobId, SlurmId
from supervisor_tasks.slurm import commands
from supervisor_tasks.slurm.sacct import sacct_by_id
from tests.support.record_slurm import (
    BODIES,
    DATA,
    DELIMITER,
    ENDED,
    RUNS_WITH_A_GPU,
    states,
    submit,
)

UNKNOWN = SlurmId(999_999)
DONE = SlurmId(1)
ORDERED = JobId(f"0x{20:064x}")  # the job of each sbatch here
DEFINITION = Definition(
    gpus=0, mem_per_cpu_mb=100, cpus_per_task=2, ntasks=1, batch_location_hash="h"
)
# The extra options of each sbatch. If an option comes twice, the last one counts. The
# nodes have 8 CPUs, 16000 MB and 2 GPUs.
SUBMITTED = {
    "sbatch": (),
    "sbatch-partition": ("--partition=nowhere",),
    "sbatch-cpus": ("--cpus-per-task=999",),
    "sbatch-many-cpus": ("--cpus-per-task=5000",),
    "sbatch-memory": ("--mem-per-cpu=9000000M",),
    "sbatch-gpus": ("--gpus=99",),
    "sbatch-nodes": ("--nodes=99",),
    "sbatch-tasks": ("--ntasks=9999",),
    "sbatch-time": ("--time=tomorrow",),
    "sbatch-feature": ("--constraint=none",),
    "sbatch-reservation": ("--reservation=none",),
}
SCRIPTS = {"sbatch-empty": b"", "sbatch-no-interpreter": b"true\n"}
# slurmctld's hooks write their environment to files, and so does a SPANK plugin on the
# node.
HOOK = """#!/bin/sh
name="{folder}/{kind}-${{JOBID:-$SLURM_JOB_ID}}"
/usr/bin/env -0 >"$name.draft" && /bin/mv "$name.draft" "$name"
"""
SPANK = """
#define _GNU_SOURCE
#include <slurm/spank.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
SPANK_PLUGIN(recorder, 1);
int slurm_spank_job_prolog(spank_t spank, int count, char **settings)
{
    char draft[4096], name[4096];
    uint32_t job = 0;
    if (count < 1 || spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS)
        return 0;
    snprintf(name, sizeof name, "%s/node-%u", settings[0], job);
    snprintf(draft, sizeof draft, "%s/node-%u.draft", settings[0], job);
    FILE *file = fopen(draft, "we");
    for (char **variable = environ; file != NULL && *variable != NULL; variable++)
        fwrite(*variable, strlen(*variable) + 1, 1, file);
    if (file != NULL && fclose(file) == 0)
        rename(draft, name);
    return 0;
}
"""
HOOKS = ("started-4", "node-4", "ended-1", "ended-2", "ended-3")


@dataclass(frozen=True, slots=True)
class Recorder:
    """Runs commands on a cluster whose hooks write into the folder `hooks`."""

    slurm: Slurm
    hooks: Path

    def neutral(self, text: str) -> str:
        """Return the text with this machine's own names replaced."""
        machine = os.uname()
        ours = {
            str(self.slurm.processes.folder): "/srv/grid",
            machine.nodename: "login1",
        }
        for word, theirs in {
            **ours,
            machine.release: "6.1.0",
            machine.version: "#1 SMP",
        }.items():
            text = text.replace(word, theirs)
        return text

    def ask(self, argv: Sequence[str]) -> dict[str, str | int]:
        """Run a command as the admin."""
        done = self.slurm.run(*argv)
        texts = {
            "stdout": self.neutral(done.stdout),
            "stderr": self.neutral(done.stderr),
        }
        return {
            "command": self.neutral(shlex.join(argv)),
            "status": done.returncode,
            **texts,
        }

    def sbatch(self, script: Path, *options: str) -> list[str]:
        """The worker's sbatch command, with more options."""
        comment = commands.comment("h:1")
        argv = commands.sbatch(
            "sbatch",
            ORDERED,
            DEFINITION,
            limit_min=60,
            partition="main",
            comment=comment,
        )
        return [*argv, f"--chdir={self.hooks}", *options, str(script)]

    def submissions(self) -> dict[str, list[str]]:
        """All sbatch commands, by name."""
        script = self.hooks / "script.sh"
        script.write_bytes(commands.batch_script(ORDERED, "#!/bin/sh\ntrue\n"))
        submissions = {
            name: self.sbatch(script, *options) for name, options in SUBMITTED.items()
        }
        for name, text in SCRIPTS.items():
            (self.hooks / name).write_bytes(text)
            submissions[name] = self.sbatch(self.hooks / name)
        return submissions

    def environment(self, name: str) -> Mapping[str, str]:
        """The environment of a hook, without the variables with which SLURM's daemons
        were started.
        """
        variables = dict(
            pair.split("=", 1)
            for pair in (self.hooks / name).read_text().split("\0")
            if pair
        )
        own = {**os.environ, **self.slurm.env()}
        return {
            name: self.neutral(value)
            for name, value in sorted(variables.items())
            if name not in own
        }

    def sacct(self) -> list[str]:
        """The worker's sacct command for the first jobs."""
        return sacct_by_id(
            "sacct",
            ",".join(str(number) for number, _ in enumerate(BODIES, start=1)),
            DELIMITER,
        )


def orders() -> dict[str, list[str]]:
    """The commands about jobs, by name."""
    listed = ["squeue", "--noheader", "--all", "--states=all", "--format=%A"]
    return {
        "scancel-ended": commands.scancel("scancel", [DONE], "root"),
        "scancel-unknown": commands.scancel("scancel", [UNKNOWN], "root"),
        "update": commands.set_time_limit("scontrol", SlurmId(RUNS_WITH_A_GPU), 90),
        "update-ended": commands.set_time_limit("scontrol", DONE, 90),
        "update-unknown": commands.set_time_limit("scontrol", UNKNOWN, 90),
        "squeue-unknown": [*listed, f"--jobs={UNKNOWN}"],
        "squeue-one-unknown": [*listed, f"--jobs={DONE},{UNKNOWN}"],
        "squeue-user-unknown": [*listed, f"--user=0x{'e' * 40}"],
        "sacct-unknown": sacct_by_id("sacct", str(UNKNOWN), DELIMITER),
    }


def orders_without_slurmctld() -> dict[str, list[str]]:
    """The commands that run while slurmctld is down, by name."""
    return {
        "scancel-down": commands.scancel("scancel", [SlurmId(RUNS_WITH_A_GPU)], "root"),
        "update-down": commands.set_time_limit(
            "scontrol", SlurmId(RUNS_WITH_A_GPU), 90
        ),
        "squeue-down": ["squeue", "--noheader", "--jobs=1"],
        "show-config-down": commands.show_config("scontrol"),
    }


def prepared_hooks(folder: Path) -> tuple[str, ...]:
    """Write the recording hooks, and return their lines of slurm.conf."""
    for kind in ("started", "ended"):
        (folder / kind).write_text(HOOK.format(folder=folder, kind=kind))
        (folder / kind).chmod(0o755)
    (folder / "recorder.c").write_text(SPANK)
    subprocess.run(
        [
            "gcc",
            "-shared",
            "-fPIC",
            "-o",
            folder / "recorder.so",
            folder / "recorder.c",
        ],
        check=True,
    )
    (folder / "plugstack.conf").write_text(f"required {folder}/recorder.so {folder}\n")
    return (
        f"PrologSlurmctld={folder}/started",
        f"JobCompLoc={folder}/ended",
        f"PlugStackConfig={folder}/plugstack.conf",
        "MessageTimeout=2",
    )


def record(recorder: Recorder, folder: Path) -> None:
    """Write all files. slurmctld and slurmdbd are stopped for the last answers."""
    slurm, submissions = recorder.slurm, recorder.submissions()
    sacct = recorder.sacct()
    wait_until(
        lambda: slurm.run(*sacct).stdout.count("\n") == len(BODIES),
        "accounting to have all jobs",
        60.0,
        0.5,
    )
    wait_until(
        lambda: all((recorder.hooks / name).exists() for name in HOOKS),
        "the hooks' files",
        60.0,
        0.5,
    )
    wait_until(
        lambda: "|RUNNING|" in slurm.run(*sacct, "--delimiter=|").stdout,
        "the running job",
        60.0,
        0.5,
    )
    (folder / "sacct.txt").write_text(recorder.neutral(slurm.run(*sacct).stdout))
    write(folder / "hooks.json", {name: recorder.environment(name) for name in HOOKS})
    answers = {
        name: recorder.ask(argv) for name, argv in {**submissions, **orders()}.items()
    }
    slurm.stop()
    for daemon in ("slurmctld", "slurmdbd"):
        slurm.processes.stop(slurm.processes.find(daemon))
    without_slurmctld = {
        "sbatch-down": submissions["sbatch"],
        **orders_without_slurmctld(),
        "sacct-down": sacct,
    }
    write(
        folder / "answers.json",
        answers
        | {name: recorder.ask(argv) for name, argv in without_slurmctld.items()},
    )


def write(file: Path, content: object) -> None:
    """Write indented JSON."""
    file.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    """Record one version. Raises TimeoutError when the jobs do not come to their
    states.
    """
    folder = DATA / slurm_version()
    folder.mkdir(exist_ok=True)
    with private_processes() as processes:
        spool, hooks = processes.folder / "spool", processes.folder / "recorded"
        spool.mkdir()
        hooks.mkdir()
        also, users = prepared_hooks(hooks), Users(processes.folder)
        slurm = Slurm.start(
            processes, users, spool=spool, nodes=2, accounting=True, also=also
        )
        for number, body in enumerate(BODIES, start=1):
            submit(slurm, number, body)
        wait_until(
            lambda: states(slurm) == [*ENDED, "RUNNING", "PENDING"],
            "the jobs' states",
            60.0,
            0.2,
        )
        record(Recorder(slurm, hooks), folder)


if __name__ == "__main__":
    main()
