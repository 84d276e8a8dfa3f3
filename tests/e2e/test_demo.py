"""The demo and the `devgrid` command, as a person runs them."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests

from devgrid import REPOSITORY, cleanup
from devgrid.chain.model import ChainPrices, JobDefinition
from devgrid.grid import Grid
from devgrid.machine import deadline
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus

# a tool of the tests: the product is elsewhere
pytestmark = pytest.mark.extended

WORKFLOWS = REPOSITORY / "devgrid" / "workflows"
# SIGINT is ignored where the tests run in a shell's background.
INTERRUPTIBLE = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("devgrid", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "current"


def devgrid(link: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DEVGRID_LINK": str(link), "COLUMNS": "200"}
    argv = [sys.executable, "-m", "devgrid", *map(str, words)]
    return subprocess.run(
        argv,
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=deadline(180),
    )


@pytest.fixture(scope="module")
def kept(link: Path) -> Iterator[str]:
    """A demo that leaves its grid up; what it printed."""
    ended = devgrid(link, "demo", WORKFLOWS / "one-minute.yaml", "--keep")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    folder = link.resolve()
    cleanup.clean_up(folder)  # it ends with the tests, also when these are killed
    yield ended.stdout
    down = devgrid(link, "down")
    cleanup.leave(folder)
    assert down.returncode == 0, down.stderr
    assert not link.is_symlink()
    assert not folder.exists()

    def left() -> list[psutil.Process]:
        return [
            process
            for process in psutil.process_iter()
            if str(folder) in " ".join(command_line(process))
        ]

    wait_until(lambda: left() == [], f"what was killed in {folder} to be gone", 30.0)


def command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def test_demo__one_job__tells_every_step_with_its_time_and_the_bill(kept: str) -> None:
    steps = [
        "requested",
        "meta-scheduled",
        "claimed",
        "script fetched",
        "submitted",
        "running",
        "ended",
        "settled",
    ]
    times = [
        re.search(rf"^ *([\d.]+) s +{step} ", kept, re.MULTILINE) for step in steps
    ]
    seconds = [float(found[1]) for found in times if found]
    assert len(seconds) == len(steps), kept
    assert seconds == sorted(seconds)
    assert "SLURM id 1" in kept
    assert "hello world, from 0x" in kept
    for line in (
        "elapsed",
        "raw wait status",
        "minutes on chain",
        "the customer paid",
        "the provider earned",
    ):
        assert line in kept


def test_demo__default_workflow__earns_its_minute(kept: str, link: Path) -> None:
    assert re.search(r"minutes on chain    1 \(at 1\.0319 credits each\)", kept)
    assert "the customer paid   1.0319 credits" in kept
    assert "the provider earned 1.0319 credits" in kept
    assert (
        "WORKFLOW ?= devgrid/workflows/one-minute.yaml"
        in (REPOSITORY / "Makefile").read_text()
    )
    chain = Grid.load(link.resolve()).chain
    price_wei = ChainPrices().of(JobDefinition(mem_per_cpu_mb=1024))
    assert chain.credit_balance(chain.account("provider").address) == price_wei


def test_demo__kept__prints_lines_that_work_when_pasted(kept: str, link: Path) -> None:
    section = kept.partition("The grid is up")[2]
    lines = [
        line.partition(" #")[0].strip()
        for line in section.splitlines()
        if line.startswith("  ")
    ]
    pasted = [
        line
        for line in lines
        if line.startswith(("eval", "supervisor")) or line.endswith(" status")
    ]
    assert len(pasted) == 4, section
    script = "\n".join(["set -e", *pasted, "devgrid jobs", "type -P supervisor"])
    environment = {**os.environ, "DEVGRID_LINK": str(link), "COLUMNS": "200"}
    argv = ["bash", "-c", script]
    ended = subprocess.run(
        argv,
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=deadline(60),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "SETTLED" in ended.stdout
    assert "FINISHED" in ended.stdout
    assert "devgrid@" in ended.stderr  # the command says which ledger it reads
    assert ended.stdout.rstrip().endswith(f"{Path(sys.executable).parent}/supervisor")


def test_devgrid_env__running_grid__exports_its_settings_without_keys(
    kept: str, link: Path
) -> None:
    exported = devgrid(link, "env").stdout
    environment = Grid.load(link.resolve()).environment
    assert f"export CLUSTER_NAME={environment['CLUSTER_NAME']}\n" in exported
    (flower,) = re.findall(r"^export FLOWER_URL=(.*)$", exported, re.MULTILINE)
    assert requests.get(f"{flower}/healthcheck", timeout=deadline(10)).ok
    for key in (
        "ETH_PRIVATE_KEY",
        "SLURM_SSH_PRIVATE_KEY",
        "SLURM_SUBMIT_KEY",
        "CALLBACK_KEY",
    ):
        assert environment[key] not in exported


@pytest.fixture(scope="module")
def first_job(kept: str, link: Path) -> str:
    """The job of the demo itself."""
    return devgrid(link, "jobs").stdout.split()[0]


BAD_HAND_INS = {
    ("submit", "WORKFLOW", "--minutes", "500000"): (
        "minutes: 500,000 minutes of this job take 515,960.0000 credits"
    ),
    ("submit", "LARGE"): (
        "resources: found 1 tasks with 1,000 CPUs and 1,024 MB a CPU"
    ),
    ("submit", "WORKFLOW", "--cluster", "other"): (
        "--cluster: found 'other'; expected one of devgrid"
    ),
    ("cancel", "0x123456"): "job: found '0x123456', the id of no job of this customer",
    ("top-up", "0x", "1"): "job: found '0x'",
    ("top-up", "FIRST", "200000"): "has ended (FINISHED)",
    ("cancel", "FIRST"): "has ended (FINISHED)",
    ("output", "../../etc"): "job: found '../../etc'",
}
# Each line of the standard input is the JSON array of a command's words; the answers
# are its status, what it printed, and its errors. One process loads devgrid once.
COMMANDS = """
import contextlib, io, json, sys
from devgrid.command_line import main
for line in sys.stdin:
    output, status = io.StringIO(), 0
    with contextlib.redirect_stdout(output):
        try:
            main(json.loads(line))
        except SystemExit as ended:
            status = ended.code
    print(json.dumps([status, output.getvalue()]), flush=True)
"""


@pytest.fixture(scope="module")
def answers(
    link: Path, first_job: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, ...], tuple[str | int, str]]:
    """What ends each of the commands, an error's line or a status, and what it
    printed.
    """
    large = tmp_path_factory.mktemp("workflow") / "large.yaml"
    large.write_text(
        "resources: {cpusPerTask: 1000}\nsteps: [{run: {command: 'true'}}]\n"
    )
    known = {
        "WORKFLOW": str(WORKFLOWS / "hello-world.yaml"),
        "LARGE": str(large),
        "FIRST": first_job,
    }
    given = []
    for words in BAD_HAND_INS:
        filled_in = [known.get(word, word) for word in words]
        given.append(json.dumps(filled_in))
    ended = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        input="\n".join(given),
        cwd=REPOSITORY,
        env={**os.environ, "DEVGRID_LINK": str(link)},
        capture_output=True,
        text=True,
        timeout=deadline(180),
        check=True,
    )
    lines = ended.stdout.splitlines()
    return {
        words: tuple(json.loads(line))
        for words, line in zip(BAD_HAND_INS, lines, strict=True)
    }


@pytest.mark.parametrize(("words", "says"), BAD_HAND_INS.items())
def test_devgrid__bad_hand_in__is_refused_in_one_line(
    words: tuple[str, ...],
    says: str,
    answers: dict[tuple[str, ...], tuple[str | int, str]],
) -> None:
    error, output = answers[words]
    assert isinstance(error, str)  # sys.exit prints it, and ends with status 1
    assert error.startswith("devgrid: ")
    assert says in error
    assert "\n" not in error
    assert output == ""


def test_devgrid__jobs_submit_top_up_cancel_output__do_what_they_say(
    kept: str, link: Path
) -> None:
    assert "FINISHED" in devgrid(link, "jobs").stdout
    job_id = devgrid(link, "submit", WORKFLOWS / "sleeper.yaml").stdout.strip()
    assert re.fullmatch("0x[0-9a-f]{64}", job_id)
    chain = Grid.load(link.resolve()).chain
    wait_until(
        lambda: chain.job(job_id).status is ChainStatus.RUNNING,
        "the job to run",
        60.0,
        0.5,
    )
    assert f"{job_id}  RUNNING" in devgrid(link, "jobs").stdout
    assert devgrid(link, "top-up", job_id, "10").returncode == 0
    wait_until(
        lambda: "--- sleep" in devgrid(link, "output", job_id).stdout,
        "its output",
        20.0,
        0.5,
    )
    assert devgrid(link, "cancel", job_id).returncode == 0
    wait_until(
        lambda: chain.job(job_id).status is ChainStatus.CANCELLED,
        "the job to be cancelled",
        60.0,
        0.5,
    )
    assert (
        devgrid(link, "cancel", job_id[:10]).stderr
        == f"devgrid: job {job_id[:12]} has ended (CANCELLED); expected one that waits or runs\n"
    )


def test_devgrid__status_and_logs__show_what_runs_and_what_has_ended(
    kept: str, link: Path
) -> None:
    grid = Grid.load(link.resolve())
    well = devgrid(link, "status")
    assert well.returncode == 0, well.stderr
    for line in (
        "1 FINISHED",
        "runs      worker",
        "runs      anvil",
        "Flower    http://127.0.0.1:",
    ):
        assert line in well.stdout
    assert {"worker", "beat", "anvil", "slurmctld"} <= set(
        devgrid(link, "logs").stdout.split()
    )
    assert len(devgrid(link, "logs", "worker", "-n", "3").stdout.splitlines()) == 3
    beat = grid.processes.find("beat")
    grid.processes.kill(beat)
    ill = devgrid(link, "status")
    assert ill.returncode == 1
    assert f"ended     beat (pid {beat.pid})" in ill.stdout
    assert "beat ended; `" in ill.stderr


def test_devgrid__chain_has_ended__says_that_the_grid_is_dead(
    kept: str, link: Path
) -> None:
    """The last test of the grid: it is removed dead."""
    grid = Grid.load(link.resolve())
    grid.processes.kill(grid.processes.find("anvil"))
    for words in (("status",), ("jobs",), ("submit", str(WORKFLOWS / "sleeper.yaml"))):
        ended = devgrid(link, *words)
        assert ended.returncode == 1
        assert "is dead" in ended.stderr
        assert ended.stderr.count("\n") == 1


def test_demo__interrupted__stops_quietly(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "DEVGRID_LINK": str(tmp_path / "none"),
        "PYTHONUNBUFFERED": "1",
    }
    argv = [
        sys.executable,
        "-c",
        INTERRUPTIBLE,
        "demo",
        str(WORKFLOWS / "sleeper.yaml"),
    ]
    with subprocess.Popen(
        argv,
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        told = next(
            line
            for line in demo.stdout
            if "starting the job definition service" in line
        )
        demo.send_signal(signal.SIGINT)
        rest, errors = demo.communicate(timeout=deadline(60))
    assert demo.returncode == 130, told + rest
    assert errors == "devgrid: interrupted\n"


def test_demo__postgres_ends__is_told_in_one_line_and_everything_stops(
    tmp_path: Path,
) -> None:
    environment = {
        **os.environ,
        "DEVGRID_LINK": str(tmp_path / "none"),
        "PYTHONUNBUFFERED": "1",
    }
    argv = [sys.executable, "-m", "devgrid", "demo", str(WORKFLOWS / "sleeper.yaml")]
    with subprocess.Popen(
        argv,
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        told = next(line for line in demo.stdout if "claimed" in line)
        begun = psutil.Process(demo.pid).children(recursive=True)
        # Its children write a title, but not in their first moment; each of them comes
        # behind it.
        next(
            one for one in begun if Path(*command_line(one)[:1]).name == "postgres"
        ).kill()
        rest, errors = demo.communicate(timeout=deadline(120))
    assert demo.returncode == 1, told + rest + errors
    assert re.fullmatch(
        r"devgrid: the ledger's Postgres: .*: run the demo again\n", errors
    ), errors
    assert "stopping everything" in rest

    def left() -> list[psutil.Process]:
        # a zombie has none
        return [
            process
            for process in begun
            if process.is_running() and command_line(process)
        ]

    wait_until(lambda: left() == [], "what was killed to be gone", 30.0)


@pytest.mark.chaos
def test_demo__two_clusters__each_runs_the_file_and_one_flower_shows_both(
    tmp_path: Path,
) -> None:
    ended = devgrid(
        tmp_path / "none", "demo", WORKFLOWS / "hello-world.yaml", "--clusters", "2"
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    steps, _, workers = ended.stdout.partition(
        "One Flower shows the workers of all clusters"
    )
    assert len(re.findall(r" s  .*settled +.*FINISHED in block", steps)) == 2
    for name in ("devgrid", "devgrid-2"):
        assert f"The job's own output ({name})" in steps
        assert f"{name}-worker@" in workers
    assert len(set(re.findall(r"meta-scheduled +.*to (0x[0-9a-f]{40})", steps))) == 2


def test_devgrid_up__an_empty_grid__is_told_pointed_at_and_taken_down(
    tmp_path: Path,
) -> None:
    link = tmp_path / "current"
    up = devgrid(link, "up")
    assert up.returncode == 0, up.stdout + up.stderr
    folder = link.resolve()
    cleanup.clean_up(folder)
    try:
        assert "slurmctld" in devgrid(link, "status").stdout
        pointed = f'eval "$({sys.executable} -m devgrid env)"; {sys.executable} -m supervisor_tasks.cli job list'
        environment = {**os.environ, "DEVGRID_LINK": str(link)}
        jobs = subprocess.run(
            ["sh", "-c", pointed],
            cwd=REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert jobs.returncode == 0, jobs.stderr
    finally:
        down = devgrid(link, "down")
        cleanup.leave(folder)
    assert down.returncode == 0, down.stderr
    assert not folder.exists()
    assert devgrid(link, "status").returncode != 0


def test_devgrid__bad_workflow__is_refused_with_the_field(
    link: Path, tmp_path: Path
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("resources: {tasks: none}\nsteps: [{run: {command: true-ish}}]\n")
    ended = devgrid(link, "demo", file)
    assert ended.returncode == 1
    assert "resources.tasks: found 'none'" in ended.stderr


@pytest.mark.chaos
def test_demo__job_that_fails__ends_with_status_1_and_the_reason(
    tmp_path: Path,
) -> None:
    ended = devgrid(tmp_path / "none", "demo", WORKFLOWS / "fails.yaml")
    assert ended.returncode == 1
    assert "the job ended FAILED: exit code 3" in ended.stderr
    assert "cleaned up" in ended.stdout
