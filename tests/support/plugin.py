"""A pytest plugin for this project: scales time-outs by the machine's speed, orders the
tests, marks those that start SLURM, parametrises those that run over both transports,
and reports failures at once and the slowest files.

Registered by tests/conftest.py; works with and without pytest-xdist.
"""

import gc
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Generator
from functools import cache
from operator import itemgetter
from types import ModuleType
from typing import Any

import pytest
import pytest_timeout

from devgrid.machine import deadline, slowness
from devgrid.options import Transport
from tests.support import transports
from tests.support.marks import leave_out

STARTS_SLURM = {
    ("devgrid.grid", "Grid"),
    ("devgrid.cluster.slurm", "Slurm"),
    ("tests.support.submission_env", "SubmissionEnv"),
}
# Files that take long begin first, or the last worker would have one to itself. Unit
# tests fill the gaps at the end.
MAX_FIRST = (
    "tests/chaos/test_crashes.py",
    "tests/e2e/test_sweep.py",
    "tests/integration/jobs/test_submit.py",
    "tests/integration/benchmarking/test_benchmark_limits.py",
    "tests/integration/benchmarking/test_benchmark_runs.py",
    "tests/integration/accounts/test_sync.py",
    "tests/chaos",
    "tests/e2e",
    "tests/attacks",
    "tests/integration",
    "tests/unit",
)
# Extended by themselves, as those over slurmrestd, which repeat those over SSH. With
# them, `make test` would take more than its 20 minutes.
EXTENDED = "tests/chaos/"
NOT_EXTENDED = "tests/chaos/test_forged_callbacks.py"  # it waits for most of its time
# a test is stopped after so many times its time-out; its own waits end before that,
# with the reason
HANGS = 2.0
MAX_RED = 1000  # characters of an error in the last lines

_seconds_of_file: defaultdict[str, float] = defaultdict(float)
_cpu_seconds_of_file: defaultdict[str, float] = defaultdict(float)
_cpu_s_before = 0.0
_running: set[str] = set()
_config: pytest.Config | None = None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this plugin."""
    parser.addoption(
        "--slowest-files",
        type=int,
        default=0,
        metavar="N",
        help="print the N files that took longest",
    )
    parser.addoption(
        "--extended",
        choices=("with", "without", "only"),
        default="with",
        help="run the tests marked extended, too (with), or not (without), or no others (only)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers, and let SIGINT end the tests."""
    global _config  # the hooks of reports get no config
    _config = config
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # in a shell's background; the tests' programs would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line(
        "markers", "slurm: a SLURM runs for it; set at the collection"
    )
    config.addinivalue_line("markers", "slow: `make test-fast` leaves it out")
    config.addinivalue_line(
        "markers",
        "quiet_machine: has a bound that holds where nothing else runs; `make test` runs it after the others, alone",
    )
    config.addinivalue_line(
        "markers",
        f"{transports.MARKER}: the ways to SLURM that it runs over (transports.py)",
    )
    config.addinivalue_line(
        "markers",
        "rest_in_chaos: takes long; over slurmrestd it is left out unless --chaos is given",
    )
    config.addinivalue_line(
        "markers",
        "extended: `make test` leaves it to `make test-extended`; tests/chaos and tests over slurmrestd have it by themselves",
    )


def pytest_report_header() -> str:
    """Say how slow the machine is."""
    return f"machine: {slowness():.1f} times as slow as a quiet one; waits may last that much longer"


# --- which tests come first -----------------------------------------------------------


def _rank(item: pytest.Item) -> int:
    """The position of the test's file in MAX_FIRST."""
    places = (
        place for place, begin in enumerate(MAX_FIRST) if item.nodeid.startswith(begin)
    )
    return next(places, len(MAX_FIRST))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without collections of garbage, which take a fifth of that time, and
    leave the tests and what they import out of all later ones.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        _cpu_s_since_last_call()  # the first test has not used that of the collection


# --- which tests run over both ways to SLURM ------------------------------------------


@pytest.fixture
def transport(request: pytest.FixtureRequest) -> Transport:
    """SLURM_TRANSPORT. A folder whose fixtures live longer than a test has its own
    fixture of this name.
    """
    chosen: Transport = request.param
    return chosen


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that has the fixture `transport` over each way to SLURM."""
    if transports.TRANSPORT in metafunc.fixturenames:
        metafunc.parametrize(transports.TRANSPORT, transports.TRANSPORTS, indirect=True)


# --- which tests need SLURM -----------------------------------------------------------


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave out the ways to SLURM that a test does not run over, sort the tests, mark
    those that start SLURM or take long, and leave out what --extended does not choose.
    """
    items[:] = [item for item in items if transports.runs(item)]
    items.sort(key=_rank)
    for item in items:
        if transports.is_for_chaos(item):
            item.add_marker("chaos")
        if isinstance(item, pytest.Function) and any(
            _starts_slurm(module) for module in _modules_of(item)
        ):
            item.add_marker("slurm")
        if _is_extended(item):
            item.add_marker("extended")
    _choose_extended(config, items)


def _is_extended(item: pytest.Item) -> bool:
    """Whether a test is extended without the marker."""
    if transports.transport_of(item) == transports.REST:
        return True
    return item.nodeid.startswith(EXTENDED) and not item.nodeid.startswith(NOT_EXTENDED)


def _choose_extended(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the option --extended does not choose."""
    choice = config.getoption("--extended")
    if choice == "with":
        return
    leave_out(
        config,
        items,
        lambda item: (
            (item.get_closest_marker("extended") is None) == (choice == "only")
        ),
    )


def _modules_of(item: pytest.Function) -> set[ModuleType]:
    """The test's own file and those that its fixtures come from."""
    fixtures = [
        fixture
        for found in item._fixtureinfo.name2fixturedefs.values()
        for fixture in found
    ]
    return {
        item.module,
        *(sys.modules[fixture.func.__module__] for fixture in fixtures),
    }


@cache
def _starts_slurm(module: ModuleType) -> bool:
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    return any((one.__module__, one.__qualname__) in STARTS_SLURM for one in classes)


# --- tests that hang ------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """Give a test more time on a slow machine."""
    longer = settings._replace(timeout=deadline(settings.timeout * HANGS))
    done: bool = pytest_timeout.pytest_timeout_set_timer(item, longer)
    return done


# --- what failed, and what runs -------------------------------------------------------


def _cpu_s_since_last_call() -> float:
    """The CPU time since the last call, with that of processes that have ended."""
    global _cpu_s_before
    before_s, _cpu_s_before = _cpu_s_before, sum(os.times()[:4])
    return _cpu_s_before - before_s


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[
    None, pytest.TestReport, pytest.TestReport
]:
    """Add the CPU time: six files run on two cores, so a file that uses much of it
    makes others slow.
    """
    report = yield
    vars(report)["cpu_s"] = _cpu_s_since_last_call()
    return report


@pytest.hookimpl(trylast=True)  # after the dot or the letter
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count the seconds of the test's file, and print a failure at once."""
    file = report.nodeid.partition("::")[0]
    _seconds_of_file[file] += report.duration
    # xdist itself reports a test whose worker crashed
    _cpu_seconds_of_file[file] += vars(report).get("cpu_s", 0.0)
    # a run that is cut off before its end must show it, too
    if report.failed and (terminal := _terminal()):
        place = f"failed at its {report.when}: {report.nodeid}"
        terminal.write_line(f"\n{place}: {_beginning(report)}")


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note that the test runs."""
    _running.add(nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Note that the test has ended."""
    _running.discard(nodeid)


def pytest_keyboard_interrupt() -> None:
    """Print the tests that ran when the operator stopped the run."""
    if terminal := _terminal():
        terminal.write_line(f"\nstopped while these ran: {', '.join(sorted(_running))}")


def red_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    """One line with the test and the beginning of its error. tests/run_all.sh repeats
    these lines at its end.
    """
    return f"red: {report.nodeid} at its {report.when}: {_beginning(report)}"


def _beginning(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The beginning of the error, on one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    error = report.longreprtext if crash is None else crash.message
    return " ".join(error.split())[:MAX_RED]


def _terminal() -> pytest.TerminalReporter | None:
    """The reporter that prints the results; None in xdist's workers."""
    return (
        None
        if _config is None
        else _config.pluginmanager.get_plugin("terminalreporter")
    )


# --- what the last lines say ----------------------------------------------------------


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print a line for each failure, and the slowest files."""
    for report in [
        *terminalreporter.getreports("failed"),
        *terminalreporter.getreports("error"),
    ]:
        terminalreporter.line(red_line(report))
    number = config.getoption("--slowest-files")
    if number:
        terminalreporter.section(f"the {number} slowest files")
        for file, seconds in sorted(
            _seconds_of_file.items(), key=itemgetter(1), reverse=True
        )[:number]:
            cpu_s = _cpu_seconds_of_file[file]
            terminalreporter.line(f"{seconds:7.1f} s, {cpu_s:6.1f} of CPU  {file}")
