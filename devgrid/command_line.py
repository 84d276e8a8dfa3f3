"""The command `devgrid`: starts a grid to try, and does what a customer does on it."""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from devgrid import kept_grid
from devgrid.chain.model import ChainError
from devgrid.cluster.cluster import GridCluster
from devgrid.demo.progress import DemoError
from devgrid.demo.run import run_demo, start_grid
from devgrid.grid import Grid
from devgrid.hand_in import (
    MAX_CLUSTERS,
    MAX_FILE_BYTES,
    MAX_LINES,
    MAX_MINUTES,
    HandInError,
    check_balance,
    check_file_size,
    check_not_cancelled,
    check_open,
    credits_text,
    job_named,
    wei_of,
    whole_number,
)
from devgrid.kept_grid import COMMAND, CURRENT, NoGridError
from devgrid.processes import StartError
from devgrid.services.workflow import WorkflowError
from supervisor_tasks.errors import SupervisorError

DEBUG = "DEVGRID_DEBUG"  # a variable: a bug's traceback is shown
INTERRUPTED = 130  # the status that a shell has for a program that SIGINT ended
CUSTOMER = "customer"
LINES = "40"


class UsageError(Exception):
    """The command has wrong arguments, or cannot run in the present state of the
    grid.
    """


EXPECTED_ERRORS = (  # shown in one line; any other is a bug of devgrid
    UsageError,
    NoGridError,
    HandInError,
    WorkflowError,
    ChainError,
    StartError,
    SupervisorError,
    TimeoutError,
    DemoError,
    OSError,
    RuntimeError,
    subprocess.SubprocessError,
)


class _Parser(argparse.ArgumentParser):
    """Prints an error in one line."""

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        self.exit(2, f"devgrid: {message}; see `{COMMAND} --help`\n")


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command. An error is printed in one line, with status 1. Ctrl-C ends the
    command with status 130. DEVGRID_DEBUG=1 shows the traceback of a bug.
    """
    options = _parser().parse_args(argv)
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # `devgrid logs worker | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except EXPECTED_ERRORS as error:
        sys.exit(f"devgrid: {error}")
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        found = " ".join(f"{type(error).__name__}: {error}".split())
        sys.exit(f"devgrid: a bug of devgrid: found {found}; {DEBUG}=1 shows where")
    except KeyboardInterrupt:
        print("devgrid: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="devgrid", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser(
        "demo", help="start a grid and the fleet, and run one workflow file to its end"
    )
    command.add_argument("workflow", type=Path)
    command.add_argument("--keep", action="store_true", help="leave the grid up")
    command.add_argument(
        "--benchmark",
        action="store_true",
        help="begin with a cluster that is not measured yet",
    )
    command.add_argument(
        "--clusters",
        default="1",
        help="run the file once on each of so many clusters (1)",
    )
    _add_without_job_submit(command)
    command.set_defaults(run=_demo)

    command = commands.add_parser(
        "up", help="start a grid with its fleet, which stays up"
    )
    command.add_argument("--clusters", default="1", help="with so many clusters (1)")
    _add_without_job_submit(command)
    command.set_defaults(run=_up)

    commands.add_parser(
        "status",
        help="which processes of the grid run, and where; status 1 if one has ended",
    ).set_defaults(run=_status)
    command = commands.add_parser(
        "env", help="lines for a shell, by which `supervisor` works on the grid"
    )
    command.add_argument("--cluster", help="on this cluster; else on the first")
    command.set_defaults(run=_env)

    command = commands.add_parser(
        "logs", help="the log of a process, or the names of all logs"
    )
    command.add_argument("name", nargs="?")
    command.add_argument(
        "-n", "--lines", default=LINES, help=f"so many lines of its end ({LINES})"
    )
    command.add_argument(
        "-f", "--follow", action="store_true", help="and each new line, until Ctrl-C"
    )
    command.set_defaults(run=_logs)

    command = commands.add_parser("submit", help="submit a workflow file")
    command.add_argument("workflow", type=Path)
    command.add_argument(
        "--minutes", default="60", help="credits for so many minutes (60)"
    )
    command.add_argument(
        "--cluster", help="the cluster that runs it; else the cheapest that fits"
    )
    command.set_defaults(run=_submit)

    commands.add_parser("jobs", help="list the customer's jobs").set_defaults(run=_jobs)
    for name, about, run in (
        ("output", "what a job wrote", _output),
        ("cancel", "cancel a job", _cancel),
        ("top-up", "lock more credits for a job", _top_up),
    ):
        command = commands.add_parser(name, help=about)
        command.add_argument("job", help="the beginning of its id")
        command.set_defaults(run=run)
    command.add_argument("credits")

    commands.add_parser("down", help="stop the grid and remove its files").set_defaults(
        run=_down
    )
    return parser


def _add_without_job_submit(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--without-job-submit",
        action="store_true",
        help="as at a site without job_submit.lua: customers submit and change jobs themselves",
    )


# --- the grid -------------------------------------------------------------------------


def _demo(options: argparse.Namespace) -> None:
    clusters = whole_number("--clusters", options.clusters, MAX_CLUSTERS)
    if options.benchmark and clusters > 1:
        raise UsageError(f"--clusters: found {clusters}; expected 1 with --benchmark")
    text = _read(options.workflow)
    if options.keep:
        _refuse_a_second()
    run_demo(
        text,
        keep_as=CURRENT if options.keep else None,
        benchmark=options.benchmark,
        clusters=clusters,
        job_submit=not options.without_job_submit,
    )


def _up(options: argparse.Namespace) -> None:
    clusters = whole_number("--clusters", options.clusters, MAX_CLUSTERS)
    _refuse_a_second()
    start_grid(CURRENT, clusters, job_submit=not options.without_job_submit)


def _refuse_a_second() -> None:
    if CURRENT.exists():
        raise UsageError(
            f"a grid is there for this clone already ({CURRENT.readlink()}); stop it with `{COMMAND} down`"
        )
    CURRENT.unlink(missing_ok=True)  # its folder is gone


def _status(_: argparse.Namespace) -> None:
    grid = kept_grid.kept_grid()
    print(kept_grid.status(grid))
    if ended := kept_grid.ended(grid.folder):
        raise UsageError(f"{', '.join(ended)} ended; `{COMMAND} logs NAME` shows why")


def _env(options: argparse.Namespace) -> None:
    grid = kept_grid.kept_grid()
    if options.cluster is None:
        cluster = grid.cluster
    else:
        cluster = _cluster(grid, options.cluster)
    print(
        kept_grid.exports(
            cluster, kept_grid.flower_url(list(kept_grid.started(grid.folder)))
        )
    )


def _logs(options: argparse.Namespace) -> None:
    """Show a log with `tail`, which Ctrl-C ends without a message."""
    lines = whole_number("--lines", options.lines, MAX_LINES)
    files = kept_grid.logs(kept_grid.kept_folder())
    if options.name is None:
        print("\n".join(files))
        return
    if options.name not in files:
        raise UsageError(
            f"logs: found {options.name!r}; expected one of {', '.join(files)}"
        )
    follow = ["--follow"] if options.follow else []
    os.execvp("tail", ["tail", f"--lines={lines}", *follow, str(files[options.name])])  # noqa: S606  no shell is wanted


def _down(_: argparse.Namespace) -> None:
    kept_grid.remove_kept_grid()


# --- what a customer does -------------------------------------------------------------


def _submit(options: argparse.Namespace) -> None:
    minutes = whole_number("--minutes", options.minutes, MAX_MINUTES)
    text, grid = _read(options.workflow), kept_grid.kept_grid()
    on = None if options.cluster is None else _cluster(grid, options.cluster)
    customer = grid.chain.account(CUSTOMER)
    grid.check_hand_in(customer, text, minutes, on=on)
    print(grid.submit(customer, text, minutes, on=on))


def _cluster(grid: Grid, name: str) -> GridCluster:
    clusters = {cluster.name: cluster for cluster in grid.clusters}
    if name not in clusters:
        raise UsageError(
            f"--cluster: found {name!r}; expected one of {', '.join(clusters)}"
        )
    return clusters[name]


def _cancel(options: argparse.Namespace) -> None:
    grid = kept_grid.kept_grid()
    job_id = _job(grid, options.job)
    check_not_cancelled(grid.chain.job(job_id))
    grid.chain.customers.cancel_job(grid.chain.account(CUSTOMER), job_id)


def _top_up(options: argparse.Namespace) -> None:
    wei = wei_of(options.credits)
    grid = kept_grid.kept_grid()
    job_id, customer = _job(grid, options.job), grid.chain.account(CUSTOMER)
    check_open(grid.chain.job(job_id))
    check_balance(wei, grid.chain.credit_balance(customer.address), "the top-up")
    grid.chain.customers.top_up_job(customer, job_id, wei)


def _jobs(_: argparse.Namespace) -> None:
    grid = kept_grid.kept_grid()
    for job_id in grid.chain.customers.jobs_of(grid.chain.account(CUSTOMER).address):
        job = grid.chain.job(job_id)
        print(
            f"{job_id}  {job.status.name:<15} {credits_text(job.final_cost_wei):>18}  {job.last_error}"
        )


def _output(options: argparse.Namespace) -> None:
    grid = kept_grid.kept_grid()
    sys.stdout.write(
        grid.output(grid.chain.account(CUSTOMER).address, _job(grid, options.job))
    )


def _job(grid: Grid, name: str) -> str:
    return job_named(
        name, grid.chain.customers.jobs_of(grid.chain.account(CUSTOMER).address)
    )


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
        check_file_size(str(file), len(content))
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(
            f"{file}: {why}; expected a workflow file, see devgrid/workflows"
        ) from error
