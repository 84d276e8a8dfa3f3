"""The first half of `devgrid demo --benchmark`: a new cluster is measured, registered
and approved, shown live.
"""

from collections.abc import Callable
from typing import Any

from devgrid.chain.model import ChainError, Provider
from devgrid.demo.progress import ledger_of
from devgrid.grid import Grid
from devgrid.processes import wait_until
from supervisor_tasks.ledger.benchmark_queries import BenchmarkQueries
from supervisor_tasks.ledger.benchmarks import BenchmarkStore

TO_ASK_S = 120.0
TO_MEASURE_S = 900.0
TO_REGISTER_S = 120.0
CHECK_EVERY_S = 0.1

ShowStep = Callable[[str, str], None]


def measure_and_approve(grid: Grid, show: ShowStep) -> None:
    """Wait until the cluster is measured and registered, and approve it. Raises
    DemoError or TimeoutError.
    """
    address = grid.chain.account("provider").address
    show("unknown", f"the contract does not know {address}")
    with ledger_of(grid) as engine:
        cluster = grid.environment["CLUSTER_NAME"]
        _show_run(
            BenchmarkStore(engine, cluster), BenchmarkQueries(engine, cluster), show
        )
    wait_until(
        lambda: _waiting(grid, address) is not None,
        "the registration",
        TO_REGISTER_S,
        CHECK_EVERY_S,
    )
    waiting = grid.chain.providers.waiting(address)
    show(
        "registered",
        f"{len(waiting.nodes)} nodes and {len(waiting.labels)} labels wait for approval",
    )
    for key, value in waiting.labels:
        show("", f"{key} = {value}")
    grid.chain.admin.approve_provider(address)
    show("approved", "by the grid's operator: jobs may come")


def _show_run(
    benchmarks: BenchmarkStore, queries: BenchmarkQueries, show: ShowStep
) -> None:
    wait_until(
        lambda: queries.run() is not None, "a benchmark run", TO_ASK_S, CHECK_EVERY_S
    )
    run = queries.run()
    assert run is not None  # noqa: S101  just waited for
    show("to be measured", f"run {run['id']}: {run['why']}")
    shown: set[tuple[str, str]] = set()

    def ended() -> bool:
        # before the results are read, so that none is missed
        over = benchmarks.under_way() is None
        for result in queries.results(run["id"]):
            step = result["benchmark"], result["state"]
            if step not in shown and result["state"] in _STEPS:
                shown.add(step)
                show(_STEPS[result["state"]], _details(result))
        return over

    wait_until(ended, "the benchmarks to end", TO_MEASURE_S, CHECK_EVERY_S)


_STEPS = {
    "SUBMITTED": "measuring",
    "MEASURED": "measured",
    "FAILED": "failed",
    "LEFT_OUT": "left out",
    "CANCELLED": "cancelled",
}


def _details(result: dict[str, Any]) -> str:
    name = result["benchmark"]
    if result["state"] == "SUBMITTED":
        return f"{name} as SLURM job {result['slurm_id']}"
    if result["state"] != "MEASURED":
        return f"{name}: {result['reason']}"
    notes = "".join(f"; {note}" for note in result["notes"])
    values = ", ".join(
        f"{label} {_number(value)}" for label, value in sorted(result["labels"].items())
    )
    return f"{name}: {values}{notes}"


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.2f}"


def _waiting(grid: Grid, address: str) -> Provider | None:
    try:
        return grid.chain.providers.waiting(address)
    except ChainError:
        return None
