"""What runs beside SLURM: its hooks write a spool, the reporter delivers it, sshd asks
for the key.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from devgrid.cluster.linux_users import Users
from devgrid.cluster.slurm import Slurm
from devgrid.ports import free_port
from devgrid.processes import wait_until
from devgrid.state_folder import private_processes
from plugins.spool import SpooledEvent, read
from protos.supervisor.v1alpha1.supervisor_pb2 import (
    JOB_STATUS_CANCELLED,
    JOB_STATUS_FAILED,
    JOB_STATUS_FINISHED,
    JOB_STATUS_RUNNING,
)
from tests.support.sbatch import submit_as
from tests.support.spool_env import events, name_of, new_spool, serving, start_reporter

CUSTOMER = "0x" + "ab" * 20
REPOSITORY = Path(__file__).resolve().parents[3]


# --- from a job to the supervisor -----------------------------------------------------


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with private_processes() as processes:
        users = Users(processes.folder)
        users.add(CUSTOMER)
        node_spool = processes.folder / "node-spool"
        node_spool.mkdir()
        running = Slurm.start(
            processes, users, spool=new_spool(processes), nodes=1, node_spool=node_spool
        )
        try:
            yield running
        finally:
            running.stop()


def test_jobs_of_slurm__supervisor_down_at_first__learns_all_in_each_jobs_order(
    slurm: Slurm,
) -> None:
    port, spool = free_port(), slurm.processes.folder / "spool"
    start_reporter(slurm.processes, spool, port)
    done = _submit(slurm, name_of(1), "sleep 2")
    failed = _submit(slurm, name_of(2), "exit 3")
    killed = _submit(slurm, name_of(3), "kill -9 $$")
    waiting = _submit(slurm, name_of(4), "true", "--hold")
    stranger = _submit(slurm, name_of(5), "true", "--comment=benchmark 127.0.0.1:1")
    named = _submit(slurm, f"{name_of(6)}\nevent=ended\nstate=COMPLETED", "true")
    renamed = _submit(slurm, name_of(7), "true", "--hold", f"--output={name_of(7)}.log")
    slurm.run("scontrol", "update", f"JobId={renamed}", "JobName=its-owners-word")
    slurm.run("scontrol", "release", str(renamed))
    slurm.run("scancel", str(waiting))
    for job in (done, failed, killed, waiting, stranger, named, renamed):
        wait_until(partial(_has_ended, slurm, job), f"job {job} to end", 60.0)
    wait_until(
        lambda: len(events(spool)) == 10,
        f"the hooks to have written 10 events: {events(spool)}",
        60.0,
    )
    with serving(port) as (supervisor, _):
        wait_until(lambda: not events(spool), "the spool to be empty", 60.0)
    assert supervisor.received(done) == [
        (JOB_STATUS_RUNNING, 0),
        (JOB_STATUS_FINISHED, 0),
    ]
    assert supervisor.received(failed) == [
        (JOB_STATUS_RUNNING, 0),
        (JOB_STATUS_FAILED, 3 * 256),
    ]
    assert supervisor.received(killed) == [
        (JOB_STATUS_RUNNING, 0),
        (JOB_STATUS_FAILED, 9),
    ]
    assert supervisor.received(waiting) == [(JOB_STATUS_CANCELLED, 0)]
    # the completion hook is not told the comment
    assert supervisor.received(stranger) == [(JOB_STATUS_FINISHED, 0)]
    assert supervisor.received(named) == []
    assert supervisor.received(renamed) == [
        (JOB_STATUS_RUNNING, 0),
        (JOB_STATUS_FINISHED, 0),
    ]
    durations = [call.duration for _, call in supervisor.calls if call.id == done]
    assert durations == [0, _elapsed_s(slurm, done)]
    assert durations[1] >= 2
    assert {call.name for _, call in supervisor.calls if call.id == done} == {
        name_of(1)
    }


def test_spank_plugin__job_of_the_grid__its_node_tells_the_start_and_the_job_runs(
    slurm: Slurm,
) -> None:
    spool = slurm.processes.folder / "node-spool"
    for file in spool.glob("*-start"):
        file.unlink()
    ours = _submit(slurm, name_of(11), "echo ran")
    stranger = _submit(slurm, name_of(12), "true", "--comment=benchmark 127.0.0.1:1")
    unnamed = _submit(slurm, "0xabc", "true")
    for job in (ours, stranger, unnamed):
        wait_until(partial(_has_ended, slurm, job), f"job {job} to end", 60.0)
    wait_until(lambda: bool(list(spool.glob("*-start"))), "the node's event", 60.0)
    [file] = spool.glob("*-start")
    assert read(file) == SpooledEvent(name_of(11), ours, JOB_STATUS_RUNNING)
    assert (slurm.users.home(CUSTOMER) / f"slurm-{ours}.out").read_text() == "ran\n"


@contextmanager
def _away(folder: Path) -> Iterator[None]:
    hidden = folder.rename(folder.with_name(f"{folder.name}-away"))
    try:
        yield
    finally:
        hidden.rename(folder)


def test_hooks__spools_of_controller_and_node_missing__the_job_runs_all_the_same(
    slurm: Slurm,
) -> None:
    folder = slurm.processes.folder
    with _away(folder / "spool"), _away(folder / "node-spool"):
        job = _submit(slurm, name_of(13), "echo ran")
        wait_until(partial(_has_ended, slurm, job), "the job to end", 60.0)
        assert (slurm.users.home(CUSTOMER) / f"slurm-{job}.out").read_text() == "ran\n"
        shown = slurm.run("scontrol", "show", "job", str(job)).stdout
        assert "Restarts=0" in shown
        assert "JobState=COMPLETED" in shown
    log = (slurm.layout.folder / "slurmd-node1.log").read_text()
    assert f"supervisor: the start of SLURM's job {job} is not in" in log


# --- acting ---------------------------------------------------------------------------


def _submit(slurm: Slurm, name: str, script: str, *options: str) -> int:
    ours = (f"--job-name={name}", "--comment=supervisor here:1")
    return submit_as(slurm, CUSTOMER, script, *ours, *options)


def _elapsed_s(slurm: Slurm, job: int) -> int:
    """As SLURM itself shows it."""
    shown = slurm.run(
        "squeue", "--noheader", "--states=all", f"--jobs={job}", "--Format=TimeUsed:20"
    ).stdout
    minutes, _, seconds = shown.strip().rpartition(":")
    return int(minutes) * 60 + int(seconds)


def _has_ended(slurm: Slurm, job: int) -> bool:
    shown = slurm.run(
        "squeue", "--noheader", "--states=all", f"--jobs={job}", "--Format=State:40"
    ).stdout.strip()
    return shown in ("COMPLETED", "FAILED", "CANCELLED")
