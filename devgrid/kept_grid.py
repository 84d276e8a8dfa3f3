"""The grid that runs for this clone: its folder, its state, and the settings by which
other programs reach it.
"""

import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil

from devgrid import REPOSITORY
from devgrid.chain.chain import CHAIN_FILE
from devgrid.chain.deployment import ANVIL_PROCESS
from devgrid.cleanup import end_and_remove
from devgrid.cluster.cluster import GridCluster
from devgrid.cluster.slurm import cluster_folders
from devgrid.grid import Grid
from devgrid.processes import Processes, Running
from devgrid.state_files import StateFileError
from supervisor_tasks.config import needs


def _shown(file: Path) -> str:
    """The path of a file, relative to the clone if it is in the clone."""
    return str(
        file.relative_to(REPOSITORY) if file.is_relative_to(REPOSITORY) else file
    )


# A link to the state folder of the grid that runs for this clone.
CURRENT = Path(os.environ.get("DEVGRID_LINK") or REPOSITORY / ".devgrid")
COMMAND = f"{_shown(Path(sys.executable))} -m devgrid"
START = f"`make demo KEEP=1` or `{COMMAND} up`"
NOT_EXPORTED = ("HOME", "LC_ALL", "PATH")  # a shell keeps its own


class NoGridError(Exception):
    """No grid runs for this clone, or the one that ran is dead."""


def kept_folder() -> Path:
    """The state folder of the grid, which need not run. Raises NoGridError."""
    if not CURRENT.exists():
        CURRENT.unlink(missing_ok=True)
        raise NoGridError(f"no grid runs for this clone; start one with {START}")
    return CURRENT.resolve()


def kept_grid() -> Grid:
    """The grid, if its chain runs. Raises NoGridError or StateFileError."""
    folder = kept_folder()
    if not _lives(folder):
        raise NoGridError(
            f"the grid in {folder} is dead: its chain has ended, as after a restart of the machine; remove it with"
            f" `{COMMAND} down`, then start one with {START}"
        )
    return Grid.load(folder)


def remove_kept_grid() -> None:
    """Stop the grid, even a dead or damaged one, and remove its files. Raises
    NoGridError.
    """
    folder = kept_folder()
    grid = _whole_grid(folder)
    if grid is None:
        end_and_remove(folder)
    else:
        grid.stop()
    CURRENT.unlink()


def _whole_grid(folder: Path) -> Grid | None:
    """The grid in a folder; None when it is dead or damaged."""
    try:
        return Grid.load(folder) if _lives(folder) else None
    except StateFileError:
        return None


def _lives(folder: Path) -> bool:
    running = {entry.name for entry in Processes(folder).running()}
    return ANVIL_PROCESS in running and (folder / CHAIN_FILE).exists()


def exports(cluster: GridCluster, flower: str) -> str:
    """The lines by which a shell reaches the ledger, the chain and SLURM of a cluster
    with `supervisor`; no key is among them. The commands of this clone come first in
    its PATH, and `devgrid` is one of them. `flower` is the URL of Flower.
    """
    keys = {name.upper() for name in needs.KEYS}
    exported = {
        name: value
        for name, value in cluster.environment.items()
        if name not in keys and name not in NOT_EXPORTED
    }
    exported["FLOWER_URL"] = flower
    lines = [
        f"export {name}={shlex.quote(value)}"
        for name, value in sorted(exported.items())
        if value
    ]
    lines.append(f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"')
    lines.append(f'devgrid() {{ {shlex.quote(sys.executable)} -m devgrid "$@"; }}')
    return "\n".join(lines)


def logs(folder: Path) -> dict[str, Path]:
    """The log of each process by its name; the name of a process of another cluster
    begins with the cluster's.
    """
    return {
        f"{_prefix(folder, own)}{log.stem}": log
        for own in cluster_folders(folder)
        for log in sorted((own / "log").glob("*.log"))
    }


def started(folder: Path) -> Iterator[tuple[str, Running]]:
    """All processes that were started, with their names as `logs` has them; some may
    have ended.
    """
    for own in cluster_folders(folder):
        for entry in Processes(own).started():
            yield f"{_prefix(folder, own)}{entry.name}", entry


def ended(folder: Path) -> list[str]:
    """The names of the processes that were started and have ended."""
    return [name for name, entry in started(folder) if entry.process() is None]


def status(grid: Grid) -> str:
    """The state of the grid: its addresses, its processes, the customer's jobs."""
    entries = list(started(grid.folder))
    head = {
        "grid": str(grid.folder),
        "chain": f"{grid.chain.rpc_url} at block {grid.chain.block_number():,}",
        "clusters": ", ".join(cluster.name for cluster in grid.clusters),
        "Flower": flower_url(entries) or "is not running",
        "jobs": _jobs(grid) or "none yet",
    }
    lines = [f"{name:<10}{value}" for name, value in head.items()]
    lines += [
        f"{'ended' if entry.process() is None else 'runs':<10}{name} (pid {entry.pid})"
        for name, entry in entries
    ]
    return "\n".join(lines)


def flower_url(entries: list[tuple[str, Running]]) -> str:
    """The URL of Flower, from its command line; empty when it does not run."""
    processes = (entry.process() for _, entry in entries if entry.name == "flower")
    for process in filter(None, processes):
        for word in _words(process):
            if word.startswith("--port="):
                return f"http://127.0.0.1:{word.removeprefix('--port=')}"
    return ""


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []  # it ends at this moment


def _jobs(grid: Grid) -> str:
    job_ids = grid.chain.customers.jobs_of(grid.chain.account("customer").address)
    states = Counter(job.status.name for job in grid.chain.jobs(job_ids))
    return ", ".join(f"{number} {name}" for name, number in sorted(states.items()))


def _prefix(folder: Path, own: Path) -> str:
    return "" if own == folder else f"{own.name}/"
