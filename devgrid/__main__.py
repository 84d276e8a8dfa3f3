"""`python -m devgrid`: a grid to look at, and what a customer does with it."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from devgrid import REPOSITORY
from devgrid.chain.model import ChainError
from devgrid.cluster.cluster import GridCluster
from devgrid.demo.run import run_demo
from devgrid.demo.story import DemoError
from devgrid.grid import CREDIT, Grid
from devgrid.processes import StartError
from devgrid.services.workflow import WorkflowError
from supervisor_tasks.errors import SupervisorError

# A link to the state folder of the grid that runs for this clone.
CURRENT = Path(os.environ.get("DEVGRID_LINK") or REPOSITORY / ".devgrid")


class UsageError(Exception):
    """The command cannot be carried out as it was given."""


def main(argv: Sequence[str] | None = None) -> None:
    """Carry out one command; what goes wrong is said in one line, with status 1."""
    options = _parser().parse_args(argv)
    try:
        options.run(options)
    except (UsageError, WorkflowError, ChainError, StartError, SupervisorError, TimeoutError, DemoError) as error:
        sys.exit(f"devgrid: {error}")
    except KeyboardInterrupt:
        sys.exit("devgrid: interrupted")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m devgrid", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("demo", help="start a grid and the fleet, and run one workflow file to its end")
    command.add_argument("workflow", type=Path)
    command.add_argument("--keep", action="store_true", help="leave the grid up")
    command.add_argument("--benchmark", action="store_true", help="begin with a cluster that is not measured yet")
    command.add_argument("--clusters", type=int, default=1, help="run the file once on each of so many clusters (1)")
    command.set_defaults(run=_demo)
    command = commands.add_parser("submit", help="hand a workflow file in")
    command.add_argument("workflow", type=Path)
    command.add_argument("--minutes", type=int, default=60, help="credits for so many minutes (60)")
    command.add_argument("--cluster", help="the cluster that runs it; else the cheapest that fits")
    command.set_defaults(run=_submit)
    command = commands.add_parser("cancel", help="cancel a job")
    command.add_argument("job_id")
    command.set_defaults(run=_cancel)
    command = commands.add_parser("top-up", help="lock more credits for a job")
    command.add_argument("job_id")
    command.add_argument("credits", type=float)
    command.set_defaults(run=_top_up)
    command = commands.add_parser("jobs", help="list the customer's jobs")
    command.set_defaults(run=_jobs)
    command = commands.add_parser("output", help="what a job wrote")
    command.add_argument("job_id")
    command.set_defaults(run=_output)
    command = commands.add_parser("down", help="stop the grid and remove its files")
    command.set_defaults(run=_down)
    return parser


def _demo(options: argparse.Namespace) -> None:
    if options.clusters < 1 or (options.benchmark and options.clusters > 1):
        raise UsageError(f"--clusters: found {options.clusters}; expected 1 or more, and 1 with --benchmark")
    if options.keep and CURRENT.exists():
        raise UsageError(
            f"a grid runs for this clone already ({CURRENT.readlink()}); stop it with `.venv/bin/python -m devgrid down`"
        )
    run_demo(
        _read(options.workflow),
        keep_as=CURRENT if options.keep else None,
        benchmark=options.benchmark,
        clusters=options.clusters,
    )


def _submit(options: argparse.Namespace) -> None:
    grid = _grid()
    on = None if options.cluster is None else _cluster(grid, options.cluster)
    print(grid.submit(grid.chain.account("customer"), _read(options.workflow), options.minutes, on=on))


def _cluster(grid: Grid, name: str) -> GridCluster:
    known = {cluster.name: cluster for cluster in grid.clusters}
    if name not in known:
        raise UsageError(f"--cluster: found {name!r}; expected one of {', '.join(known)}")
    return known[name]


def _cancel(options: argparse.Namespace) -> None:
    grid = _grid()
    grid.chain.customers.cancel_job(grid.chain.account("customer"), options.job_id)


def _top_up(options: argparse.Namespace) -> None:
    grid = _grid()
    grid.chain.customers.top_up_job(grid.chain.account("customer"), options.job_id, int(options.credits * CREDIT))


def _jobs(_: argparse.Namespace) -> None:
    grid = _grid()
    for job_id in grid.chain.customers.jobs_of(grid.chain.account("customer").address):
        job = grid.chain.job(job_id)
        print(f"{job_id}  {job.status.name:<15} {job.final_cost_wei / CREDIT:>10.4f} credits  {job.last_error}")


def _output(options: argparse.Namespace) -> None:
    grid = _grid()
    sys.stdout.write(grid.output(grid.chain.account("customer").address, options.job_id))


def _down(_: argparse.Namespace) -> None:
    _grid().stop()
    CURRENT.unlink()


def _grid() -> Grid:
    if not CURRENT.exists():
        CURRENT.unlink(missing_ok=True)
        raise UsageError("no grid runs for this clone; start one with `make demo KEEP=1`")
    return Grid.load(CURRENT.resolve())


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: {error}; expected a workflow file, see devgrid/workflows") from error


if __name__ == "__main__":
    main()
