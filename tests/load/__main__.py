"""`make bench`: measures what the project promises, with all parts on this machine.

Prints a table, with the recorded figures of docs/performance.json in it, and one JSON
object. `--record` replaces the recorded figures. With `--only "redis stopped"`, only
measures with these words in their names run, and no other figure is replaced.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import psutil

from devgrid.grid import Grid
from devgrid.options import GridOptions
from tests.load import burst, parsing, probes, specs, upgrade
from tests.load.callbacks import callbacks
from tests.load.cores import Share
from tests.load.flat import flat
from tests.load.latency import claim_latency, completion, polled_claim_latency
from tests.load.operator_commands import operator_commands
from tests.load.recovery import recovery
from tests.load.registration import price_on_chain
from tests.load.usage import FLEET, cpu_s_of, memory_mb
from tests.support import load_sweep
from tests.support.load_figures import Figure, show
from tests.support.load_record import by_name, recorded, write

Measure = Callable[[Grid], list[Figure]]

IDLE_S = 30.0
NO_LISTENER = "ws://127.0.0.1:9"
OTHERS = {
    "parsers of benchmarks": parsing.figures,
    "sweep and monitor": load_sweep.figures,
    "specs": specs.figures,
    "probes": probes.figures,
    "upgrade": upgrade.figures,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument(
        "--record",
        action="store_true",
        help="write the figures to docs/performance.json and .md",
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="WORDS",
        help="run only the measures with these words in their names: burst, sweep, redis stopped",
    )
    options = parser.parse_args()
    figures = list[Figure]()
    whole = False
    try:
        for measures in (fleet_figures, other_figures, recovery):
            figures += measures(options.only)
        whole = not options.only
    finally:  # a measure that fails loses no figures of those before it
        report(figures)
        if options.record:
            write(machine(), figures, whole=whole)
    sys.exit(0 if figures and all(figure.kept for figure in figures) else 1)


def fleet_figures(only: str) -> list[Figure]:
    """Run the measures on grids with a fleet whose names have the words `only` in
    them.
    """
    figures: list[Figure] = []
    for title, block_time_s, settings, measures in GRIDS:
        chosen = [measure for measure in measures if only in name_of(measure)]
        if not chosen:
            continue
        show(f"a grid with {title}")
        grid = Grid.start(GridOptions(block_time_s=block_time_s, overrides=settings))
        try:
            grid.fleet.start()
            grid.processes.stop(
                grid.processes.find("metascheduler")
            )  # the measures give jobs to the provider themselves
            burst.one_job(grid)
            for measure in chosen:
                figures += measured(grid, measure)
        finally:
            grid.stop()
    return figures


def measured(grid: Grid, measure: Measure) -> list[Figure]:
    """Run one measure, and print its figures at once."""
    show(f"measuring: {name_of(measure)}")
    share = Share(grid)
    figures = measure(grid)
    for figure in figures:
        show(f"    {figure.name}: {figure.value:.3g} {figure.unit}")
    show(f"    the grid had {share.describe()}; load average {os.getloadavg()[0]:.1f}")
    return figures


def other_figures(only: str) -> list[Figure]:
    """Run the measures without a fleet whose names have the words `only` in them."""
    figures: list[Figure] = []
    for name, measure in OTHERS.items():
        if only in name:
            show(f"measuring: {name}")
            figures += measure()
    return figures


def name_of(measure: Measure) -> str:
    """The name of a measure, which `--only` is compared with."""
    return f"{measure.__module__.rpartition('.')[2]} {measure.__name__}".replace(
        "_", " "
    )


def idle_cpu(grid: Grid) -> list[Figure]:
    """The CPU that the whole fleet takes while there is nothing to do."""
    time.sleep(10.0)  # until the work of the start is done
    before_s = sum(cpu_s_of(grid, name) for name in FLEET)
    time.sleep(IDLE_S)  # the measurement itself
    used_s = sum(cpu_s_of(grid, name) for name in FLEET) - before_s
    return [
        Figure("idle CPU of the fleet", 100 * used_s / IDLE_S, "% of one core", 2.0)
    ]


def memory(grid: Grid) -> list[Figure]:
    """The resident memory of the fleet after the other measures."""
    used_mb = {name: memory_mb(grid, name) for name in FLEET}
    show("    " + ", ".join(f"{name} {used:.0f} MB" for name, used in used_mb.items()))
    return [Figure("resident memory of the fleet", sum(used_mb.values()), "MB", 400.0)]


# For each grid: a title, the block time in seconds (None: each transaction is mined at
# once), settings, measures.
GRIDS: tuple[tuple[str, float | None, dict[str, str], tuple[Measure, ...]], ...] = (
    (
        "1 s blocks",
        1.0,
        {},
        (
            idle_cpu,
            burst.short_jobs,
            completion,
            callbacks,
            memory,
            price_on_chain,
            operator_commands,
        ),
    ),
    (
        "1 s blocks for bursts that wait",
        1.0,
        {"CLAIM_MAX_WAITING": burst.ENOUGH_WAITING},
        (burst.waiting_jobs, burst.many_logins, burst.two_workers),
    ),
    ("automine", None, {}, (claim_latency, flat)),
    (
        "automine and no WebSocket",
        None,
        {"METASCHEDULER_ENDPOINT_WS": NO_LISTENER},
        (polled_claim_latency,),
    ),
)


def machine() -> dict[str, object]:
    """The machine on which the figures are measured."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "processor": processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def report(figures: list[Figure]) -> None:
    """Print the figures beside those that were recorded."""
    before = by_name(recorded())
    print(f"\n{'':<52}{'measured':>10}{'recorded':>10}{'bound':>10}")
    for figure in figures:
        old = f"{before[figure.name].value:.3g}" if figure.name in before else "-"
        sign = ">=" if figure.at_least else "<="
        mark = "" if figure.kept else "   MISSED"
        bound = f"{sign} {figure.bound:g}"
        print(
            f"{figure.name:<52}{figure.value:>10.3g}{old:>10}{bound:>10} {figure.unit}{mark}"
        )
    print(
        "\n"
        + json.dumps(
            {"machine": machine(), "figures": [asdict(figure) for figure in figures]}
        )
    )


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [
        line.partition(":")[2].strip()
        for line in lines
        if line.startswith("model name")
    ]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
