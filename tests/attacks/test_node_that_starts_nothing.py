"""A node whose SPANK plugin cannot be initialised: SLURM shows its jobs as completed.
A node whose Prolog fails: SLURM cancels its jobs. Their scripts never ran.

The supervisor recognises these ends by the drain of the job's node
(docs/explanation/slurm-end-states.md). A look that sees a job running for two seconds
or more takes it for a run: where a node is slow, the look comes after the end.
"""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from devgrid.cluster.slurm import Slurm
from devgrid.grid import Grid
from devgrid.options import GridOptions, Transport
from devgrid.processes import wait_until
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.model import ChainStatus, Job, JobId, State
from tests.support import faults
from tests.support.end_states import id_of, wait_for_state
from tests.support.grid_assertions import journal, rows, slurm_of, wait_for_end
from tests.support.submission_env import PATHS, PATIENCE_S, SubmissionEnv
from tests.support.transports import OnlySsh, only_ssh

FAILING_ON_NODES = """
#include <slurm/spank.h>
SPANK_PLUGIN(failing, 1);
#include <stdlib.h>
#include <unistd.h>
#include <sys/time.h>
int slurm_spank_init(spank_t spank, int count, char **settings)
{
    struct timeval now;
    if (!spank_remote(spank))
        return ESPANK_SUCCESS;
    gettimeofday(&now, NULL);
    if (count) /* fail only after so many more seconds have begun */
        usleep(1000000 * atoi(settings[0]) + 50000 - now.tv_usec);
    return -1;
}
"""


# A job that SLURM shows as completed after more seconds counts as run
# (slurm/not_started.py).
FAILS_WITHIN_S = 10


@pytest.fixture(scope="module")
def submission_env() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running(rest=True) as submission_env:
        yield submission_env


@pytest.fixture
def site(
    submission_env: SubmissionEnv, transport: Transport
) -> Iterator[WorkerContext]:
    cluster = submission_env.cluster_over(transport)
    site = submission_env.site(cluster)
    yield site
    cluster.close()
    site.ledger.holder.close()


@contextmanager
def nodes_that_start_nothing(
    slurm: Slurm, folder: Path, setting: str = ""
) -> Iterator[None]:
    """Inside this, no node can start a job. With a setting, each fails only after so
    many more seconds have begun.
    """
    (folder / "failing.c").write_text(FAILING_ON_NODES)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", folder / "failing.so", folder / "failing.c"],
        check=True,
    )
    plugstack = slurm.layout.folder / "plugstack.conf"
    usual = plugstack.read_text() if plugstack.exists() else ""
    plugstack.write_text(f"{usual}required {folder}/failing.so {setting}\n")
    try:
        yield
    finally:
        plugstack.write_text(usual)
        slurm.run("scontrol", "update", "NodeName=ALL", "State=RESUME")


@pytest.mark.parametrize("setting", ["", "1", "3"])
def test_job__node_cannot_start_it__is_submitted_again_with_an_alarm(
    submission_env: SubmissionEnv, site: WorkerContext, setting: str
) -> None:
    with nodes_that_start_nothing(
        submission_env.slurm, submission_env.processes.folder, setting
    ):
        first = failed_soon(submission_env, site)
        job = first.job_id
        again = submission_env.look(site, job)
    assert (again.state, again.slurm_id, again.outcome) == (State.READY, None, None)
    assert submission_env.journal(job)[-1] == "LaunchFailed"
    (alarm,) = [
        alarm
        for alarm in site.ledger.alarms.all()
        if alarm.name == AlarmName.JOBS_NOT_STARTED
    ]
    assert alarm.details["jobs"][job].startswith("node")
    site.ledger.alarms.off(AlarmName.JOBS_NOT_STARTED)
    second = submitted_again(submission_env, site, job)
    assert second.slurm_id != first.slurm_id
    submission_env.slurm.run("scancel", str(second.slurm_id))


def failed_soon(submission_env: SubmissionEnv, site: WorkerContext) -> Job:
    """A job whose node could not start it, and needed no more seconds for that than
    count. A machine that is busy may need more.
    """
    tried: list[Job] = []

    def failed() -> bool:
        submission_env.slurm.run("scontrol", "update", "NodeName=ALL", "State=RESUME")
        job = submission_env.until_queued(site, submission_env.new_job(site))
        tried.append(job)
        wait_for_end_in_slurm(submission_env, job, "COMPLETED")
        return submission_env.seconds_run(job.slurm_id or 0) <= FAILS_WITHIN_S

    wait_until(failed, "a node to fail in time", 3 * PATIENCE_S, 0.2)
    return tried[-1]


def wait_for_end_in_slurm(submission_env: SubmissionEnv, job: Job, state: str) -> None:
    """Wait until SLURM shows the job in that state."""
    assert job.slurm_id is not None
    slurm_id = job.slurm_id
    wait_until(
        lambda: submission_env.field(slurm_id, "State") == state,
        f"{slurm_id} to be {state} in SLURM",
        PATIENCE_S,
        0.2,
    )


@pytest.mark.chaos  # slurmctld looks for old jobs once a minute
def test_job__slurmctld_has_forgotten_it__its_node_and_its_end_come_from_accounting() -> (
    None
):
    with SubmissionEnv.running(accounting=True, min_job_age_s=2) as submission_env:
        cluster = submission_env.cluster(paths=replace(PATHS, sacct="/usr/bin/sacct"))
        site = submission_env.site(cluster)
        try:
            with nodes_that_start_nothing(
                submission_env.slurm, submission_env.processes.folder
            ):
                first = submission_env.until_queued(site, submission_env.new_job(site))
                assert first.slurm_id is not None
                slurm_id = first.slurm_id
                wait_until(
                    lambda: not submission_env.field(slurm_id, "State"),
                    "slurmctld to forget the job",
                    3 * PATIENCE_S,
                    1.0,
                )
                again = ended(submission_env, site, first.job_id)
        finally:
            cluster.close()
            site.ledger.holder.close()
        assert (again.state, again.outcome) == (State.READY, None)
        assert submission_env.journal(first.job_id)[-1] == "LaunchFailed"


@contextmanager
def failing_prolog(slurm: Slurm, folder: Path) -> Iterator[None]:
    """Inside this, the Prolog of each node fails."""
    prolog = folder / "prolog.sh"
    prolog.write_text("#!/bin/sh\nexit 1\n")
    prolog.chmod(0o755)
    conf = slurm.layout.folder / "slurm.conf"
    usual = conf.read_text()
    conf.write_text(f"{usual}\nProlog={prolog}\n")
    slurm.run("scontrol", "reconfigure")
    try:
        yield
    finally:
        conf.write_text(usual)
        slurm.run("scontrol", "reconfigure")
        slurm.run("scontrol", "update", "NodeName=ALL", "State=RESUME")


def test_job__prolog_fails__is_submitted_again_with_an_alarm(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    with failing_prolog(submission_env.slurm, submission_env.processes.folder):
        job_id = submission_env.new_job(site)
        wait_for_end_in_slurm(
            submission_env, submission_env.until_queued(site, job_id), "CANCELLED"
        )
        job = ended(submission_env, site, job_id)
    assert (job.state, job.slurm_id, job.outcome) == (State.READY, None, None)
    assert submission_env.journal(job_id)[-1] == "LaunchFailed"
    assert AlarmName.JOBS_NOT_STARTED in {
        alarm.name for alarm in site.ledger.alarms.all()
    }
    site.ledger.alarms.off(AlarmName.JOBS_NOT_STARTED)
    second = submitted_again(submission_env, site, job_id)
    submission_env.slurm.run("scancel", str(second.slurm_id))


def ended(submission_env: SubmissionEnv, site: WorkerContext, job_id: JobId) -> Job:
    """The job after looks that have seen its end in SLURM."""
    wait_until(
        lambda: (
            submission_env.look(site, job_id).state not in (State.QUEUED, State.RUNNING)
        ),
        "the end",
        PATIENCE_S,
        0.2,
    )
    return site.ledger.jobs([job_id])[job_id]


def submitted_again(
    submission_env: SubmissionEnv, site: WorkerContext, job: JobId
) -> Job:
    """Wait until SLURM has the job again and runs it."""
    submission_env.a_minute_passes(job)
    submission_env.until_queued(site, job)
    wait_until(
        lambda: submission_env.look(site, job).state is State.RUNNING,
        "the job to run",
        PATIENCE_S,
        0.2,
    )
    return site.ledger.jobs([job])[job]


def test_job__script_does_nothing__ends_and_is_no_failed_launch(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job = submission_env.new_job(site, "#!/bin/sh\nexit 0\n")
    submission_env.until_queued(site, job)
    wait_until(
        lambda: submission_env.look(site, job).state is State.ENDED,
        "its end",
        PATIENCE_S,
        0.2,
    )
    assert "LaunchFailed" not in submission_env.journal(job)


@pytest.mark.extended
@only_ssh(OnlySsh.NO_DIFFERENCE)
def test_node_cannot_start_a_job__of_a_whole_grid__job_runs_in_the_end(
    transport: Transport,
) -> None:
    grid = Grid.start(GridOptions(block_time_s=1.0, transport=transport))
    try:
        grid.fleet.start(flower=False)
        with nodes_that_start_nothing(slurm_of(grid), grid.folder):
            job_id = grid.submit_script(grid.new_customer(), "#!/bin/bash\nsleep 3\n")
            slurm_id = id_of(grid, job_id)
            faults.signal_part(grid, "worker", signal.SIGSTOP)
            try:
                wait_for_state(grid, slurm_id, "COMPLETED")
            finally:
                faults.signal_part(grid, "worker", signal.SIGCONT)
            try:
                wait_until(
                    lambda: "LaunchFailed" in journal(grid, job_id),
                    "the node to fail",
                    PATIENCE_S,
                    0.2,
                )
            except TimeoutError as error:
                raise AssertionError(f"{error}: {evidence(grid, job_id)}") from error
        wait_for_end(grid, job_id)
        assert grid.chain.job(job_id).status is ChainStatus.FINISHED
        story = journal(grid, job_id)
        # no node may work yet when it is submitted again
        assert story.count("Submitted") == 1 + story.count("LaunchFailed")
        (ended,) = rows(
            grid, "SELECT elapsed_s FROM jobs WHERE job_id = :id", id=job_id
        )
        assert ended.elapsed_s >= 3
    finally:
        grid.stop()


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
