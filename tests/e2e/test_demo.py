"""The demo and the `devgrid` command, as a person runs them."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from devgrid import REPOSITORY, cleanup
from devgrid.grid import Grid
from devgrid.machine import deadline
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus

WORKFLOWS = REPOSITORY / "devgrid" / "workflows"


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "current"


def devgrid(link: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DEVGRID_LINK": str(link), "COLUMNS": "200"}
    argv = [sys.executable, "-m", "devgrid", *map(str, words)]
    return subprocess.run(argv, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=deadline(180))


@pytest.fixture(scope="module")
def kept(link: Path) -> Iterator[str]:
    """A demo that leaves its grid up; what it printed."""
    ended = devgrid(link, "demo", WORKFLOWS / "hello-world.yaml", "--keep")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    folder = link.resolve()
    cleanup.clean_up(folder)  # it ends with the tests, also when these are killed
    yield ended.stdout
    down = devgrid(link, "down")
    cleanup.leave(folder)
    assert down.returncode == 0, down.stderr
    assert not link.is_symlink()
    assert not folder.exists()
    left = [process for process in psutil.process_iter() if str(folder) in " ".join(command_line(process))]
    assert left == []


def command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def test_demo__tells_every_step_with_its_time_and_the_bill(kept: str) -> None:
    steps = ["requested", "meta-scheduled", "claimed", "script fetched", "submitted", "running", "ended", "settled"]
    times = [re.search(rf"^ *([\d.]+) s +{step} ", kept, re.MULTILINE) for step in steps]
    seconds = [float(found[1]) for found in times if found]
    assert len(seconds) == len(steps), kept
    assert seconds == sorted(seconds)
    assert "SLURM id 1" in kept
    assert "hello world, from 0x" in kept
    for line in ("elapsed", "raw wait status", "minutes on chain", "the customer paid", "the provider earned"):
        assert line in kept


def test_devgrid__jobs_submit_top_up_cancel_output__do_what_they_say(kept: str, link: Path) -> None:
    assert "FINISHED" in devgrid(link, "jobs").stdout
    job_id = devgrid(link, "submit", WORKFLOWS / "sleeper.yaml").stdout.strip()
    assert re.fullmatch("0x[0-9a-f]{64}", job_id)
    chain = Grid.load(link.resolve()).chain
    wait_until(lambda: chain.job(job_id).status is ChainStatus.RUNNING, "the job to run", 60.0, 0.5)
    assert f"{job_id}  RUNNING" in devgrid(link, "jobs").stdout
    assert devgrid(link, "top-up", job_id, "10").returncode == 0
    wait_until(lambda: "--- sleep" in devgrid(link, "output", job_id).stdout, "its output", 20.0, 0.5)
    assert devgrid(link, "cancel", job_id).returncode == 0
    wait_until(lambda: chain.job(job_id).status is ChainStatus.CANCELLED, "the job to be cancelled", 60.0, 0.5)
    refused = devgrid(link, "cancel", job_id)
    assert refused.returncode == 1
    assert "JobHotStatusOnly" in refused.stderr


def test_devgrid__bad_workflow__is_refused_with_the_field(link: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("resources: {tasks: none}\nsteps: [{run: {command: true-ish}}]\n")
    ended = devgrid(link, "demo", file)
    assert ended.returncode == 1
    assert "resources.tasks: found 'none'" in ended.stderr


@pytest.mark.chaos
def test_demo__job_that_fails__ends_with_status_1_and_the_reason(tmp_path: Path) -> None:
    ended = devgrid(tmp_path / "none", "demo", WORKFLOWS / "fails.yaml")
    assert ended.returncode == 1
    assert "the job ended FAILED: exit code 3" in ended.stderr
    assert "cleaned up" in ended.stdout
