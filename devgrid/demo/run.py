"""The demo: one job from the chain to SLURM and back, shown live; or one on each of
several clusters.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Engine

from devgrid.chain.model import ChainPrices
from devgrid.demo.benchmark import measure_and_approve
from devgrid.demo.benchmark_site import GPUS_PER_NODE, NODES, prepare
from devgrid.demo.progress import DemoReporter, JobProgress, ledger_of
from devgrid.fleet import Fleet
from devgrid.grid import Grid
from devgrid.hand_in import check_script_size
from devgrid.kept_grid import COMMAND, flower_url, started
from devgrid.options import ClusterOptions, GridOptions
from devgrid.processes import wait_until
from devgrid.services.workflow import load, render

MAX_WAIT_S = 3600.0  # for the job to run; the steps before that have shorter limits
TO_CLAIM_S = 60.0
TO_BE_SHOWN_S = 30.0
BLOCK_TIME_S = 0.25


def run_demo(
    workflow_text: str,
    keep_as: Path | None,
    benchmark: bool = False,
    clusters: int = 1,
    job_submit: bool = True,
) -> None:
    """Run a workflow file to its end on a new grid, once on each of its clusters. With
    `keep_as`, the grid stays up, with a link of that name to it. With `benchmark`, the
    cluster must be measured before the grid accepts it. Without `job_submit`, SLURM
    does not use job_submit.lua. Raises WorkflowError, HandInError, StartError,
    DemoError or TimeoutError.
    """
    check_script_size(len(render(load(workflow_text)).encode()))
    options = _options(clusters, benchmark, job_submit)
    with _new_grid(options, keep_as) as (grid, reporter):
        if benchmark:
            prepare(grid)
        flower = _start_fleets(grid, reporter)
        if benchmark:
            measure_and_approve(grid, reporter.step)
        with ledger_of(grid) as engine:
            _show_jobs(grid, workflow_text, engine, reporter)
        if clusters > 1:
            _show_workers(grid, flower, reporter)
        if keep_as is not None:
            flower.wait_for_flower()


def start_grid(keep_as: Path, clusters: int = 1, job_submit: bool = True) -> None:
    """Start a grid with its fleets and customers, which stays up, with a link of that
    name to it. Without `job_submit`, SLURM does not use job_submit.lua. Raises
    StartError or TimeoutError.
    """
    options = _options(clusters, benchmark=False, job_submit=job_submit)
    with _new_grid(options, keep_as) as (grid, reporter):
        flower = _start_fleets(grid, reporter)
        for role in _customers(grid):
            grid.new_customer(role=role)
        flower.wait_for_flower()


@contextmanager
def _new_grid(
    options: GridOptions, keep_as: Path | None
) -> Iterator[tuple[Grid, DemoReporter]]:
    """A grid that is stopped at the end, or stays up with a link to it if all went
    well.
    """
    reporter = DemoReporter()
    grid = Grid.start(replace(options, report=reporter.note))
    kept = False
    try:
        yield grid, reporter
        if keep_as is not None:
            keep_as.symlink_to(grid.folder)
            grid.keep()
            kept = True
            reporter.section("The grid is up", _how_to_go_on(grid))
    finally:
        if not kept:
            reporter.note("stopping everything")
            grid.stop()


def _options(clusters: int, benchmark: bool, job_submit: bool) -> GridOptions:
    """A cluster of four nodes, and others of two, each cheaper than the one before."""
    if benchmark:
        return GridOptions(
            block_time_s=BLOCK_TIME_S,
            registered=False,
            nodes=NODES,
            gpus_per_node=GPUS_PER_NODE,
            job_submit=job_submit,
        )
    others = [
        ClusterOptions(
            name=f"devgrid-{number}",
            nodes=2,
            gpus_per_node=1,
            prices=_cheaper(number),
            job_submit=job_submit,
        )
        for number in range(2, clusters + 1)
    ]
    return GridOptions(
        block_time_s=BLOCK_TIME_S, job_submit=job_submit, others=tuple(others)
    )


def _cheaper(number: int) -> ChainPrices:
    usual = ChainPrices()
    return ChainPrices(
        usual.gpu_wei_per_min // number,
        usual.cpu_wei_per_min // number,
        usual.mem_wei_per_min // number,
    )


def _start_fleets(grid: Grid, reporter: DemoReporter) -> Fleet:
    """Start a fleet for each cluster, and one Flower. Returns the fleet that has it."""
    reporter.note("starting the fleet: worker, beat, gRPC process, Flower")
    grid.fleet.migrate()
    fleets = [cluster.fleet for cluster in grid.clusters]
    for fleet in fleets:
        fleet.start_callbacks(wait=False)
        fleet.start_worker()
        fleet.start_beat()
    fleets[0].start_flower()
    for fleet in fleets:
        fleet.wait_for_callbacks()
    return fleets[0]


def _show_jobs(
    grid: Grid, workflow_text: str, engine: Engine, reporter: DemoReporter
) -> None:
    """Run the workflow file once on each cluster, all at the same time. Raises
    DemoError, TimeoutError.
    """
    jobs = [
        JobProgress(grid, cluster, grid.new_customer(role=role), engine, reporter)
        for cluster, role in zip(grid.clusters, _customers(grid), strict=True)
    ]
    for job in jobs:
        job.begin(workflow_text)

    wait_until(
        lambda: _all(jobs, JobProgress.claimed),
        "the job to be claimed",
        TO_CLAIM_S,
        every_s=0.05,
    )
    wait_until(
        lambda: _all(jobs, JobProgress.settled),
        "the job to be settled",
        MAX_WAIT_S,
        every_s=0.05,
    )
    for job in jobs:
        job.conclude()


def _customers(grid: Grid) -> list[str]:
    """The role of the customer of each cluster."""
    return ["customer", *(f"customer-{cluster.name}" for cluster in grid.others)]


def _all(jobs: Sequence[JobProgress], state: Callable[[JobProgress], bool]) -> bool:
    """Whether all jobs are in that state. Calls `state` for each of them, as it also
    shows the job's new steps.
    """
    reached = [state(job) for job in jobs]
    return all(reached)


def _show_workers(grid: Grid, flower: Fleet, reporter: DemoReporter) -> None:
    """Wait until the one Flower shows a worker of each cluster. Raises TimeoutError."""
    flower.wait_for_flower()

    expected = {f"{cluster.name}-worker" for cluster in grid.clusters}

    def all_shown() -> bool:
        shown = {name.partition("@")[0] for name in flower.shown_workers()}
        return expected <= shown

    wait_until(
        all_shown, "Flower to show a worker of each cluster", TO_BE_SHOWN_S, every_s=0.5
    )
    reporter.section(
        "One Flower shows the workers of all clusters",
        "\n".join(sorted(flower.shown_workers())),
    )


def _how_to_go_on(grid: Grid) -> str:
    """Commands to paste into a shell in this clone."""
    head = f"Flower          {flower_url(list(started(grid.folder)))}\nstate and logs  {grid.folder}\n"
    others = [
        f"{COMMAND} submit FILE --cluster {cluster.name}" for cluster in grid.others
    ]
    lines = [
        f'eval "$({COMMAND} env)"   # then this shell has `devgrid`, and `supervisor` works on this grid:',
        "supervisor status",
        "supervisor job list --state SETTLED",
        f"{COMMAND} status",
        f"{COMMAND} submit devgrid/workflows/sleeper.yaml",
        *others,
        f"{COMMAND} jobs",
        f"{COMMAND} output ID",
        f"{COMMAND} top-up ID CREDITS",
        f"{COMMAND} cancel ID",
        f"{COMMAND} logs worker -f",
        f"{COMMAND} down   # stops it and removes its files",
    ]
    return "\n".join([head, *(f"  {line}" for line in lines)])
