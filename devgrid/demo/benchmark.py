"""The first half of `devgrid demo --benchmark`: a new cluster is measured, offered and approved, told live."""

from collections.abc import Callable
from typing import Any

from devgrid.chain.model import ChainError, Provider
from devgrid.demo.story import ledger_of
from devgrid.grid import Grid
from devgrid.processes import wait_until
from supervisor_tasks.ledger.benchmarks import BenchmarkStore

TO_ASK_S = 120.0
TO_MEASURE_S = 900.0
TO_REGISTER_S = 120.0
LOOK_EVERY_S = 0.1

Tell = Callable[[str, str], None]


def measure_and_approve(grid: Grid, tell: Tell) -> None:
    """Until the grid has approved the cluster with its labels. Raises DemoError or TimeoutError."""
    address = grid.chain.account("provider").address
    tell("unknown", f"the contract does not know {address}")
    with ledger_of(grid) as engine:
        _tell_run(BenchmarkStore(engine, grid.environment["CLUSTER_NAME"]), tell)
    wait_until(lambda: _waiting(grid, address) is not None, "the registration", TO_REGISTER_S, LOOK_EVERY_S)
    waiting = grid.chain.providers.waiting(address)
    tell("registered", f"{len(waiting.nodes)} nodes and {len(waiting.labels)} labels wait for approval")
    for key, value in waiting.labels:
        tell("", f"{key} = {value}")
    grid.chain.admin.approve_provider(address)
    tell("approved", "by the grid's operator: jobs may come")


def _tell_run(benchmarks: BenchmarkStore, tell: Tell) -> None:
    wait_until(lambda: benchmarks.run() is not None, "a benchmark run", TO_ASK_S, LOOK_EVERY_S)
    run = benchmarks.run()
    assert run is not None  # noqa: S101  it was just there
    tell("to be measured", f"run {run['id']}: {run['why']}")
    told: set[tuple[str, str]] = set()

    def ended() -> bool:
        over = benchmarks.under_way() is None  # before the results are read, so that none is missed
        for result in benchmarks.results(run["id"]):
            step = result["benchmark"], result["stage"]
            if step not in told and result["stage"] in _STORY:
                told.add(step)
                tell(_STORY[result["stage"]], _about(result))
        return over

    wait_until(ended, "the benchmarks to end", TO_MEASURE_S, LOOK_EVERY_S)


_STORY = {
    "SUBMITTED": "measuring",
    "MEASURED": "measured",
    "FAILED": "failed",
    "LEFT_OUT": "left out",
    "CANCELLED": "cancelled",
}


def _about(result: dict[str, Any]) -> str:
    name = result["benchmark"]
    if result["stage"] == "SUBMITTED":
        return f"{name} as SLURM job {result['slurm_id']}"
    if result["stage"] != "MEASURED":
        return f"{name}: {result['reason']}"
    notes = "".join(f"; {note}" for note in result["notes"])
    shown = ", ".join(f"{label} {_number(value)}" for label, value in sorted(result["labels"].items()))
    return f"{name}: {shown}{notes}"


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.2f}"


def _waiting(grid: Grid, address: str) -> Provider | None:
    try:
        return grid.chain.providers.waiting(address)
    except ChainError:
        return None
