"""`supervisor run` as a process: without servers, and its help."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from devgrid import REPOSITORY
from devgrid.machine import deadline
from supervisor_tasks.cli.run_command import PROCESSES

DATABASE, BROKER = "DATABASE_URL", "BROKER_URL"
EXPECTED = {
    DATABASE: "DATABASE_URL: found nothing; expected postgresql+psycopg://..., or the flag --embedded",
    BROKER: "BROKER_URL: found nothing; expected redis://..., or the flag --embedded",
}


def run(
    environment: Mapping[str, str], *words: str
) -> "subprocess.CompletedProcess[str]":
    """`supervisor run` with these words, in this environment, until it ends."""
    return subprocess.run(
        [sys.executable, "-m", "supervisor_tasks.cli", "run", *words],
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=deadline(60),
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
    ended = run(given | {"STATE_DIR": str(tmp_path)}, *process.split())
    reasons = [json.loads(line)["reason"] for line in ended.stderr.splitlines()]
    servers = PROCESSES[process].servers if process else EXPECTED
    assert (ended.returncode, reasons) == (2, [EXPECTED[name] for name in servers])
    assert list(tmp_path.iterdir()) == []


def test_run__key_file_cannot_be_read__starts_none_and_tells_it(tmp_path: Path) -> None:
    """The callbacks process ended the fleet, as it had found no SLURM_SSH_PUBLIC_KEY."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "STATE_DIR": str(tmp_path),
        DATABASE: "postgresql+psycopg://127.0.0.1:1/ledger",
        BROKER: "redis://127.0.0.1:1",
        "SLURM_SSH_PRIVATE_KEY_FILE": "~/key",
    }
    ended = run(environment)
    (line,) = ended.stderr.splitlines()
    expected = "SLURM_SSH_PRIVATE_KEY_FILE: found '~/key'; expected a file that can be read (No such file or directory)"
    assert (ended.returncode, json.loads(line)["reason"]) == (2, expected)
    assert list(tmp_path.iterdir()) == []


def test_run__help_of_a_process__needs_no_server() -> None:
    given = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith((DATABASE, BROKER))
    }
    ended = run(given, "metrics", "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "METRICS_ADDRESS" in ended.stdout
