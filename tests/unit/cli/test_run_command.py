"""`supervisor run`: which program becomes of it, without running it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devgrid import REPOSITORY
from supervisor_tasks.cli.run_command import (
    PROCESSES,
    command,
    missing_servers,
    take_embedded_flag,
)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ([], "west-worker@%h"),
        (["-Q", "west.chain"], "west-chain@%h"),
        (["--queues=west.slurm,west.benchmark"], "west-slurm-benchmark@%h"),
        (["-Qwest.chain"], "west-chain@%h"),
        (["-Q=west.chain"], "west-chain@%h"),
    ],
)
def test_command__a_worker__is_named_after_its_cluster_and_queues(
    monkeypatch: pytest.MonkeyPatch, options: list[str], name: str
) -> None:
    monkeypatch.setenv("CLUSTER_NAME", "west")
    argv = command("worker", options)
    assert argv[argv.index("--hostname") + 1] == name
    assert argv[-len(options) :] == options or not options


@pytest.mark.parametrize(
    "options",
    [
        ["-n", "mine@%h"],
        ["--hostname", "mine@%h"],
        ["--hostname=mine@%h"],
        ["-nmine@%h"],
    ],
)
def test_command__a_worker_with_a_name__keeps_it(options: list[str]) -> None:
    assert (
        sum(
            word.startswith(("-n", "--hostname")) for word in command("worker", options)
        )
        == 1
    )


def test_command__no_cluster_name__is_main(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLUSTER_NAME", raising=False)
    assert "main-worker@%h" in command("worker", [])


@pytest.mark.parametrize("process", ["beat", "callbacks", "flower"])
def test_command__other_processes__have_no_node_name(process: str) -> None:
    assert "--hostname" not in command(process, [])


DATABASE, BROKER = "DATABASE_URL", "BROKER_URL"
EXPECTED = {
    DATABASE: "DATABASE_URL: found nothing; expected postgresql+psycopg://..., or the flag --embedded",
    BROKER: "BROKER_URL: found nothing; expected redis://..., or the flag --embedded",
}


@pytest.mark.parametrize(
    ("process", "servers"),
    [
        ("worker", [DATABASE, BROKER]),
        ("beat", [DATABASE, BROKER]),
        ("callbacks", [DATABASE, BROKER]),
        ("flower", [BROKER]),
        ("metrics", [DATABASE]),
        ("migrate", [DATABASE]),
        ("reporter", []),
    ],
)
def test_missing_servers__of_a_process__is_a_line_for_each_that_it_needs(
    process: str, servers: list[str]
) -> None:
    expected = [EXPECTED[name] for name in servers]
    assert missing_servers(PROCESSES[process].servers, {"PATH": "/bin"}) == expected
    assert (
        missing_servers(
            PROCESSES[process].servers, {"DATABASE_URL_FILE": "/f", BROKER: "redis://r"}
        )
        == []
    )


@pytest.mark.parametrize(
    "process", ["worker", "beat", "callbacks", "flower", "metrics", "migrate", ""]
)
def test_run__no_server_and_no_flag__starts_none_and_ends_with_2(
    process: str, tmp_path: Path
) -> None:
    """Without a name it is the whole fleet."""
    given = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith((DATABASE, BROKER))
    }
    argv = [sys.executable, "-m", "supervisor_tasks.cli", "run", *process.split()]
    environment = given | {"STATE_DIR": str(tmp_path)}
    ended = subprocess.run(
        argv,
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    reasons = [json.loads(line)["reason"] for line in ended.stderr.splitlines()]
    servers = PROCESSES[process].servers if process else EXPECTED
    assert (ended.returncode, reasons) == (2, [EXPECTED[name] for name in servers])
    assert list(tmp_path.iterdir()) == []


def test_take_embedded_flag__of_a_process_with_servers__takes_the_flag_away() -> None:
    assert take_embedded_flag(
        PROCESSES["worker"], ["--embedded", "-Q", "main.chain"]
    ) == (["-Q", "main.chain"], True)
    assert take_embedded_flag(PROCESSES["worker"], ["-Q", "main.chain"]) == (
        ["-Q", "main.chain"],
        False,
    )
    assert take_embedded_flag(PROCESSES["reporter"], ["--embedded"]) == (
        ["--embedded"],
        False,
    )


def test_run__help_of_a_process__needs_no_server() -> None:
    given = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith((DATABASE, BROKER))
    }
    argv = [sys.executable, "-m", "supervisor_tasks.cli", "run", "metrics", "--help"]
    ended = subprocess.run(
        argv, env=given, cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "METRICS_ADDRESS" in ended.stdout
