"""A node whose SPANK plugin cannot be initialised: SLURM shows its jobs as completed,
and their scripts never ran.

The supervisor recognises such an end by its 0 seconds
(docs/explanation/slurm-end-states.md). SLURM counts the seconds between two readings of
a clock with whole seconds: a node that takes a tenth of a second to fail lets each
tenth job look as if it had run for a second, and a busy node more of them. Each test
needs a job that failed in the second of its start.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devgrid.cluster.slurm import Slurm
from devgrid.grid import Grid
from devgrid.machine import Deadline
from devgrid.options import GridOptions, Transport
from devgrid.processes import wait_until
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.model import ChainStatus, Job, JobId, State
from supervisor_tasks.ledger.alarms import AlarmName
from tests.support.submitting import PATIENCE_S, SubmissionEnv
from tests.support.transports import OnlySsh, only_ssh
from tests.support.watching import journal, rows, slurm_ids, slurm_of, wait_for_end

ENDS = {"LaunchFailed", "SlurmCompleted"}  # of the first submission
FAILING_ON_NODES = """
#include <slurm/spank.h>
SPANK_PLUGIN(failing, 1);
int slurm_spank_init(spank_t spank, int count, char **settings)
{
    (void)count, (void)settings;
    return spank_remote(spank) ? -1 : ESPANK_SUCCESS;
}
"""


@pytest.fixture(scope="module")
def world() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running(rest=True) as world:
        yield world


@pytest.fixture
def site(world: SubmissionEnv, transport: Transport) -> Iterator[WorkerContext]:
    cluster = world.cluster_over(transport)
    site = world.site(cluster)
    yield site
    cluster.close()
    site.ledger.holder.close()


@contextmanager
def nodes_that_start_nothing(slurm: Slurm, folder: Path) -> Iterator[None]:
    """Inside this, no node can start a job."""
    (folder / "failing.c").write_text(FAILING_ON_NODES)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", folder / "failing.so", folder / "failing.c"],
        check=True,
    )
    plugstack = slurm.layout.folder / "plugstack.conf"
    usual = plugstack.read_text() if plugstack.exists() else ""
    plugstack.write_text(f"{usual}required {folder}/failing.so\n")
    try:
        yield
    finally:
        plugstack.write_text(usual)
        resume(slurm)


def resume(slurm: Slurm) -> None:
    """Resume the nodes that are drained."""
    slurm.run("scontrol", "update", "NodeName=ALL", "State=RESUME")


def failed_late(slurm: Slurm, slurm_id: int, events: list[str]) -> bool:
    """Whether a look has seen a failed job run, or SLURM says that it ran for a second:
    its end is taken as it is.
    """

    def shown() -> list[str]:
        return slurm.run(
            "squeue",
            "--noheader",
            "--states=all",
            f"--jobs={slurm_id}",
            "--format=%T %M",
        ).stdout.split()

    wait_until(
        lambda: shown()[:1] == ["COMPLETED"], "SLURM to end the job", PATIENCE_S, 0.2
    )
    return "SlurmRunningObserved" in events or shown() != ["COMPLETED", "0:00"]


def test_node_cannot_start_a_job__job_is_submitted_again_and_the_operator_called(
    world: SubmissionEnv, site: WorkerContext
) -> None:
    with nodes_that_start_nothing(world.slurm, world.processes.folder):
        first = failed_at_once(world, site)
    job, again = first.job_id, site.ledger.jobs([first.job_id])[first.job_id]
    assert (again.state, again.slurm_id, again.outcome) == (State.READY, None, None)
    assert world.journal(job)[-1] == "LaunchFailed"
    (alarm,) = [
        alarm
        for alarm in site.ledger.alarms.all()
        if alarm.name is AlarmName.JOBS_NOT_STARTED
    ]
    assert alarm.details["jobs"][job].startswith("node")
    site.ledger.alarms.off(AlarmName.JOBS_NOT_STARTED)
    second = submitted_again(world, site, job)
    assert second.slurm_id != first.slurm_id
    world.slurm.run("scancel", str(second.slurm_id))


def failed_at_once(world: SubmissionEnv, site: WorkerContext) -> Job:
    """A job, as it was while it waited for the node that then failed to start it in the
    second of its start.
    """
    deadline = Deadline(PATIENCE_S)
    while True:
        job = world.new_job(site)
        first = world.until_queued(site, job)
        assert first.slurm_id is not None
        wait_until(
            lambda: world.look(site, job).state is not State.QUEUED,  # noqa: B023
            "the first end",
            PATIENCE_S,
            0.2,
        )
        if deadline.is_over() or not failed_late(
            world.slurm, first.slurm_id, world.journal(job)
        ):
            return first
        resume(world.slurm)


def submitted_again(world: SubmissionEnv, site: WorkerContext, job: JobId) -> Job:
    """Wait until SLURM has the job again and runs it."""
    world.a_minute_passes(job)
    world.until_queued(site, job)
    wait_until(
        lambda: world.look(site, job).state is State.RUNNING,
        "the job to run",
        PATIENCE_S,
        0.2,
    )
    return site.ledger.jobs([job])[job]


def test_script_that_does_nothing__has_ended_as_it_says(
    world: SubmissionEnv, site: WorkerContext
) -> None:
    job = world.new_job(site, "#!/bin/sh\nexit 0\n")
    world.until_queued(site, job)
    wait_until(
        lambda: world.look(site, job).state is State.ENDED, "its end", PATIENCE_S, 0.2
    )
    assert "LaunchFailed" not in world.journal(job)


@only_ssh(OnlySsh.NO_DIFFERENCE)
def test_node_cannot_start_a_job__of_a_whole_grid__job_runs_in_the_end(
    transport: Transport,
) -> None:
    grid = Grid.start(GridOptions(block_time_s=1.0, transport=transport))
    try:
        grid.fleet.start(flower=False)
        with nodes_that_start_nothing(slurm_of(grid), grid.folder):
            job_id = failed_at_once_in(grid)
            assert "LaunchFailed" in journal(grid, job_id), evidence(grid, job_id)
        wait_for_end(grid, job_id)
        assert grid.chain.job(job_id).status is ChainStatus.FINISHED
        assert journal(grid, job_id).count("Submitted") == 2
        (ended,) = rows(
            grid, "SELECT elapsed_s FROM jobs WHERE job_id = :id", id=job_id
        )
        assert ended.elapsed_s >= 2
    finally:
        grid.stop()


def failed_at_once_in(grid: Grid) -> str:
    """A job that its node failed to start in the second of its start."""
    slurm, customer, deadline = (
        slurm_of(grid),
        grid.new_customer(),
        Deadline(PATIENCE_S),
    )
    while True:
        job_id = grid.submit_script(customer, "#!/bin/bash\nsleep 2\n")
        try:
            wait_until(
                lambda: not ENDS.isdisjoint(journal(grid, job_id)),  # noqa: B023
                "the node to fail",
                PATIENCE_S,
                0.2,
            )
        except TimeoutError as error:
            raise AssertionError(f"{error}: {evidence(grid, job_id)}") from error
        events, (slurm_id, *_) = journal(grid, job_id), slurm_ids(grid, job_id)
        if (
            "LaunchFailed" in events
            or deadline.is_over()
            or not failed_late(slurm, slurm_id, events)
        ):
            return job_id
        resume(slurm)


def evidence(grid: Grid, job_id: str) -> str:
    """What the ledger and SLURM show of a job, and what the workers logged of it."""
    slurm, log = (
        slurm_of(grid),
        (grid.folder / "log" / "worker.log").read_text().splitlines(),
    )
    effects = rows(
        grid,
        "SELECT kind, due_at, parked_at, last_error FROM effects WHERE done_at IS NULL",
    )
    shown = [slurm.run("scontrol", "show", what).stdout for what in ("jobs", "nodes")]
    about = [
        line for line in log if job_id in line or "claim" in line or '"error"' in line
    ]
    return "\n".join((f"{journal(grid, job_id)} {effects}", *shown, *about[-30:]))
