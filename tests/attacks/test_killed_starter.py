"""The program that started a grid is killed, or the command that it is part of: no
process or file of the grid is left.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from devgrid import REPOSITORY
from devgrid.cleanup import end_and_remove
from devgrid.processes import Processes, wait_until
from tests.support.live_processes import is_alive
from tests.support.marks import in_chaos

GONE_WITHIN_S = 60.0
MAKEFILE = REPOSITORY / "Makefile"

# Starts a process that ignores SIGTERM, and a daemon that has lost the mark of the grid
# and only names its folder.
STARTER = """
import psutil, signal, time
from devgrid.processes import wait_until
from devgrid.state_folder import private_processes
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in a shell's background
def sleeps():
    return sum(process.name() == "sleep" for process in psutil.Process().children(recursive=True))
with private_processes() as processes:
    folder = processes.folder
    processes.start("deaf", ["sh", "-c", "trap '' TERM; sleep 600; :"])
    processes.start("daemon", ["sh", "-c", f"env -i setsid sh -c 'sleep 600; : {folder}' & exec sleep 600"])
    wait_until(lambda: sleeps() == 3, "all to begin", 30.0)
    print(folder, flush=True)
    time.sleep(600)
"""
# Keeps the first of two folders.
KEEPER = """
import time
from devgrid.processes import Processes
from devgrid.state_folder import keep, new_state_folder
kept, other = new_state_folder(), new_state_folder()
Processes(kept).start("sleeper", ["sleep", "600"])
keep(kept)
print(kept, other, flush=True)
time.sleep(600)
"""
TEST_FILE = """
import time
from devgrid.state_folder import private_processes

def test_run__hangs__never_ends():
    with private_processes() as processes:
        processes.start("sleeper", ["sleep", "600"])
        with open({folder_file!r}, "w") as file:
            file.write(str(processes.folder))
        time.sleep(600)
"""


def left_of(folder: Path) -> list[str]:
    """The processes that name a folder in their environment or command line, and the
    folder itself.
    """
    found = [str(folder)] if folder.exists() else []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(folder) in word for word in words):
            found.append(str(process))
    return found


def state_folders_below(pid: int) -> set[Path]:
    folders = set()
    for process in psutil.Process(pid).children(recursive=True):
        try:
            folders.add(process.environ().get("DEVGRID_STATE"))
        except psutil.Error:
            continue
    return {Path(folder) for folder in folders if folder}


@pytest.fixture
def starter() -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", STARTER]
    with subprocess.Popen(
        argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        yield child
        child.kill()


@pytest.mark.parametrize(
    "sig", [signal.SIGKILL, in_chaos(signal.SIGTERM), in_chaos(signal.SIGINT)]
)
def test_program_is_ended__by_a_signal__its_processes_and_its_folder_are_gone(
    starter: subprocess.Popen[str], sig: signal.Signals
) -> None:
    assert starter.stdout is not None
    folder = Path(starter.stdout.readline().strip())
    family = psutil.Process(starter.pid).children(recursive=True)
    assert sum(process.name() == "sleep" for process in family) == 3
    os.killpg(starter.pid, sig)
    wait_until(
        lambda: not left_of(folder),
        f"nothing of {folder} to be left",
        GONE_WITHIN_S,
        0.1,
    )
    wait_until(
        lambda: not any(map(is_alive, family)),
        "its processes to end",
        GONE_WITHIN_S,
        0.1,
    )


def test_starter__killed_with_all_its_descendants__its_folder_is_gone(
    starter: subprocess.Popen[str],
) -> None:
    """The test kills it as a tool does that ends a process tree."""
    assert starter.stdout is not None
    folder = Path(starter.stdout.readline().strip())
    for member in [
        *psutil.Process(starter.pid).children(recursive=True),
        psutil.Process(starter.pid),
    ]:
        member.kill()
    wait_until(
        lambda: not left_of(folder),
        f"nothing of {folder} to be left",
        GONE_WITHIN_S,
        0.1,
    )


def test_starter__clone_removed_then_starter_killed__processes_and_folder_are_gone(
    tmp_path: Path,
) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(REPOSITORY / "devgrid", clone / "devgrid")
    argv = [sys.executable, "-c", STARTER]
    with subprocess.Popen(
        argv, cwd=clone, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        try:
            assert child.stdout is not None
            folder = Path(child.stdout.readline().strip())
            shutil.rmtree(clone)
        finally:
            child.kill()
    wait_until(
        lambda: not left_of(folder),
        f"nothing of {folder} to be left",
        GONE_WITHIN_S,
        0.1,
    )


def test_bystanders_that_name_the_folder__the_grid_is_cleaned_up__go_on(
    starter: subprocess.Popen[str],
) -> None:
    """The bystanders: a reader of the grid's log, its shell with another child, a
    process with a folder of a longer name.
    """
    assert starter.stdout is not None
    folder = Path(starter.stdout.readline().strip())
    log = folder / "log" / "deaf.log"
    argvs = [
        ["tail", "-f", str(log)],
        ["sh", "-c", f"sleep 600; : {folder}"],
        ["env", f"HOME={folder}-of-another", "sleep", "600"],
        ["env", f"OLDPWD={folder}", "sleep", "600"],
    ]
    with ExitStack() as stack:
        bystanders = [
            stack.enter_context(subprocess.Popen(argv, stderr=subprocess.DEVNULL))
            for argv in argvs
        ]
        for bystander in bystanders:
            stack.callback(bystander.kill)
        shell = psutil.Process(bystanders[1].pid)
        wait_until(
            lambda: bool(shell.children()), "the shell's child to begin", GONE_WITHIN_S
        )
        (child,) = shell.children()
        stack.callback(child.kill)
        os.killpg(starter.pid, signal.SIGKILL)
        wait_until(
            lambda: not folder.exists(), f"{folder} to be removed", GONE_WITHIN_S, 0.1
        )
        assert [bystander.poll() for bystander in bystanders] == [None] * len(
            bystanders
        )
        assert is_alive(child)


def test_pytest__killed__its_workers_grids_are_gone(tmp_path: Path) -> None:
    folder_file = tmp_path / "folder_file"
    file = tmp_path / "test_hangs.py"
    file.write_text(TEST_FILE.format(folder_file=str(folder_file)))
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        os.devnull,
        "-p",
        "no:cacheprovider",
        "-n",
        "1",
        str(file),
    ]
    with subprocess.Popen(
        argv, cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True
    ) as master:
        try:
            wait_until(
                lambda: folder_file.exists() and bool(folder_file.read_text()),
                "the test to begin",
                GONE_WITHIN_S,
                0.1,
            )
            folder = Path(folder_file.read_text())
            assert len(left_of(folder)) > 1
        finally:
            master.kill()
    wait_until(
        lambda: not left_of(folder),
        f"nothing of {folder} to be left",
        GONE_WITHIN_S,
        0.1,
    )


def start_make_test(there: Path, folder_file: Path, before: str = "") -> Path:
    """Start the target's own line of the Makefile, with a pytest that runs one test,
    which hangs; `before` is done before pytest. Returns the file that make reads.
    """
    pytest_there, file = there / "pytest", there / "Makefile"
    (there / "test_hangs.py").write_text(TEST_FILE.format(folder_file=str(folder_file)))
    options = f"-c {os.devnull} -p no:cacheprovider -n 1 {there}/test_hangs.py"
    pytest_there.write_text(
        f"#!/bin/sh\n{before}\nexec {sys.executable} -m pytest {options}\n"
    )
    pytest_there.chmod(0o755)
    line = next(
        line for line in MAKEFILE.read_text().splitlines() if "tests/run_all.sh" in line
    )
    file.write_text(f"test:\n{line.replace('$(BIN)/pytest', str(pytest_there))}\n")
    # The tests that run here are a command of their own: they must be no ancestor.
    argv = ["setsid", "--fork", "make", "--file", str(file), "test", "WORKERS=1"]
    # No grid starts here, so that no ledger needs a copy of the template: made first,
    # it would also want a python beside this pytest.
    environment = os.environ | {"DEVGRID_LEDGER_TEMPLATE": str(there / "unused")}
    subprocess.run(
        argv, cwd=REPOSITORY, env=environment, stdout=subprocess.DEVNULL, check=True
    )
    return file


@pytest.mark.parametrize(
    ("victim", "sig"),
    [
        ("make", signal.SIGKILL),
        in_chaos("make", signal.SIGTERM),
        in_chaos("bash", signal.SIGKILL),
        in_chaos("bash", signal.SIGTERM),
    ],
)
def test_make_test__a_process_of_it_is_ended__its_grids_are_gone(
    victim: str, sig: signal.Signals, tmp_path: Path
) -> None:
    """The target's own line of the Makefile, with a pytest that runs one test, which
    hangs.
    """
    folder_file = tmp_path / "folder_file"
    file = start_make_test(tmp_path, folder_file)
    family = list[psutil.Process]()
    try:
        wait_until(
            lambda: folder_file.exists() and bool(folder_file.read_text()),
            "the test to begin",
            GONE_WITHIN_S,
            0.1,
        )
        folder = Path(folder_file.read_text())
        family = with_children(file)
        assert len(left_of(folder)) > 1
        next(process for process in family if process.name() == victim).send_signal(sig)
        wait_until(
            lambda: not left_of(folder),
            f"nothing of {folder} to be left",
            GONE_WITHIN_S,
            0.1,
        )
        wait_until(
            lambda: not any(map(is_alive, family)),
            "all processes of it to end",
            GONE_WITHIN_S,
            0.1,
        )
    finally:
        for process in family or with_children(file):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def test_make_test__killed_before_pytest_works__pytest_ends_too(tmp_path: Path) -> None:
    """Python takes a second or two to import pytest; then make is no ancestor."""
    begun, goes_on, folder_file = (
        tmp_path / name for name in ("begun", "goes_on", "folder_file")
    )
    waits = f"touch {begun}; until [ -e {goes_on} ]; do sleep 0.1; done"
    file = start_make_test(tmp_path, folder_file, waits)
    family = list[psutil.Process]()
    try:
        wait_until(begun.exists, "pytest to be started", GONE_WITHIN_S, 0.1)
        family = with_children(file)
        family[0].kill()
        wait_until(lambda: not is_alive(family[0]), "make to end", GONE_WITHIN_S, 0.1)
        goes_on.touch()
        wait_until(
            lambda: not any(map(is_alive, family)),
            "all processes of it to end",
            GONE_WITHIN_S,
            0.1,
        )
        assert not folder_file.exists()
    finally:
        for process in family or with_children(file):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def with_children(makefile: Path) -> list[psutil.Process]:
    """The make that reads this file, and all processes below it."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.name() == "make" and str(makefile) in process.cmdline():
                return [process, *process.children(recursive=True)]
    return []


def test_kept_folder__its_program_is_killed__goes_on() -> None:
    argv = [sys.executable, "-c", KEEPER]
    with subprocess.Popen(
        argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        try:
            assert child.stdout is not None
            kept, other = map(Path, child.stdout.readline().split())
        finally:
            child.kill()
    try:
        # the cleaner's last work
        wait_until(
            lambda: not other.exists(), f"{other} to be removed", GONE_WITHIN_S, 0.1
        )
        assert kept.exists()
        assert [entry.name for entry in Processes(kept).running()] == ["sleeper"]
    finally:
        end_and_remove(kept)


@pytest.mark.chaos  # a whole demo
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_make_demo__killed_while_a_job_runs__no_process_of_grid_or_job_is_left(
    tmp_path: Path, number: signal.Signals
) -> None:
    argv = ["make", "demo", "WORKFLOW=devgrid/workflows/sleeper.yaml"]
    log = tmp_path / "log"
    with (
        log.open("w") as out,
        subprocess.Popen(
            argv, cwd=REPOSITORY, stdout=out, start_new_session=True
        ) as make,
    ):
        try:
            wait_until(
                lambda: "running" in log.read_text() or make.poll() is not None,
                "the job to run",
                120.0,
                0.1,
            )
            assert make.poll() is None, log.read_text()
            family = psutil.Process(make.pid).children(recursive=True)
            (folder,) = state_folders_below(make.pid)
            wait_until(
                lambda: any("name='sleep'" in process for process in left_of(folder)),
                "the job's own process",
                30.0,
                0.1,
            )
        finally:
            make.send_signal(number)
    wait_until(
        lambda: not left_of(folder),
        f"nothing of {folder} to be left",
        GONE_WITHIN_S,
        0.1,
    )
    assert not [process for process in family if is_alive(process)]
