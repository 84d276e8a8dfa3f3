"""Scripts of any interpreter run as they are, on real SLURM, and their #SBATCH lines have no effect."""

from collections.abc import Iterator

import pytest

from devgrid.processes import wait_until
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.model import JobId, State
from tests.support.submitting import CUSTOMER, PATIENCE_S, SubmissionEnv

ASKS = "#SBATCH --ntasks=7\n#SBATCH --array=1-3\n#SBATCH --time=99\n#SBATCH --hold\n"
PYTHON = (
    "from __future__ import annotations\nimport os, sys, random\n"
    "print('ran', __file__ == sys.argv[0], os.path.exists(sys.path[0]), open(__file__).read().count('\u00e4'), '\u00e4')\n"
    "sys.stdout.flush()\n"
)
SCRIPTS = {
    "python3": ("#!/usr/bin/python3\n", f"{PYTHON}sys.exit(3)\n", "ran True False 2 \u00e4", "3:0"),
    "env": ("#!/usr/bin/env python3\n", f"{PYTHON}os.kill(os.getpid(), 9)\n", "ran True False 2 \u00e4", "0:9"),
    "env -S": ("#!/usr/bin/env -S python3 -u -B\n", f"{PYTHON}print(sys.dont_write_bytecode)\n", "True", "0:0"),
    "perl": ("#! /usr/bin/perl -w\n", "while (<DATA>) { print $_, $^W }\nexit 4;\n__DATA__\nthe data\n", "the data\n1", "4:0"),
    "awk -f": ("#!/usr/bin/awk -f\n", 'BEGIN { print "ran"; exit 5 }\n', "ran", "5:0"),
    "bash -e": ("#!/bin/bash -e\n", "echo ran $0; false; echo on\n", "slurm_script", "1:0"),
    "sh": ("#!/bin/sh\n", "echo ran $0; exit 6\n", "slurm_script", "6:0"),
    "bash": ("#!/usr/bin/env bash\n", 'echo "${BASH_SOURCE[0]}"; kill -TERM $$\n', "slurm_script", "0:15"),
    "no first line": ("", "echo ran ${BASH_VERSION:+bash}\n", "ran bash", "0:0"),
    "no such program": ("#!/usr/bin/no-such-program\n", "x\n", "", "127:0"),
    "shell words": ("#!/usr/bin/awk -f;touch$IFS/tmp/x\n", "BEGIN {}\n", "", None),
}  # fmt: skip


@pytest.fixture(scope="module")
def world() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running() as running:
        yield running


@pytest.fixture(scope="module")
def site(world: SubmissionEnv) -> WorkerContext:
    return world.site(world.cluster())


def run(world: SubmissionEnv, site: WorkerContext, script: str) -> int:
    job = world.new_job(site, script)
    return ended(world, site, job)


def ended(world: SubmissionEnv, site: WorkerContext, job: JobId) -> int:
    assert world.carry_out(site, job).state is State.QUEUED
    slurm_id = site.ledger.jobs([job])[job].slurm_id
    assert slurm_id is not None
    wait_until(lambda: world.field(slurm_id, "State") in ("COMPLETED", "FAILED"), "the job to end", PATIENCE_S, 0.1)
    return slurm_id


@pytest.mark.parametrize(("first", "body", "printed", "status"), SCRIPTS.values(), ids=SCRIPTS)
def test_script__runs_as_it_is_and_asks_for_nothing(
    world: SubmissionEnv, site: WorkerContext, first: str, body: str, printed: str, status: str | None
) -> None:
    job = world.new_job(site, first + ASKS + body)
    slurm_id = ended(world, site, job)
    home = world.slurm.users.home(CUSTOMER)
    assert printed in (home / f"{job}.log").read_text()
    shown = world.slurm.run("scontrol", "show", "job", str(slurm_id), "--oneliner").stdout
    assert status is None or f"ExitCode={status} " in shown, shown
    assert "NumTasks=1 " in shown
    assert "ArrayJobId" not in shown
    assert list(home.glob(".supervisor*")) == []
    assert world.in_slurm(job) == [slurm_id]


WAITS = """#!/usr/bin/python3
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
print("waits", flush=True)
time.sleep(600)
"""


def test_signal__reaches_the_script_itself(world: SubmissionEnv, site: WorkerContext) -> None:
    job = world.new_job(site, WAITS)
    assert world.carry_out(site, job).state is State.QUEUED
    log, slurm_id = world.slurm.users.home(CUSTOMER) / f"{job}.log", site.ledger.jobs([job])[job].slurm_id
    assert slurm_id is not None
    wait_until(lambda: log.exists() and "waits" in log.read_text(), "the script", PATIENCE_S, 0.1)
    world.slurm.run("scancel", "--batch", "--signal=USR1", str(slurm_id))
    wait_until(lambda: world.field(slurm_id, "State") == "FAILED", "the job to end", PATIENCE_S, 0.1)
    assert "ExitCode=7:0 " in world.slurm.run("scontrol", "show", "job", str(slurm_id), "--oneliner").stdout


def test_long_script__arrives_whole(world: SubmissionEnv, site: WorkerContext) -> None:
    filler = "# \u00e4\u00f6\u00fc supervisor EOF ' \" $(exit 1) `exit 1`\n" * 60_000
    job = world.new_job(site, f"#!/usr/bin/python3\n{filler}print('the end', len(open(__file__).read()))\n")
    slurm_id = ended(world, site, job)
    assert world.field(slurm_id, "State") == "COMPLETED"
    assert "the end" in (world.slurm.users.home(CUSTOMER) / f"{job}.log").read_text()
