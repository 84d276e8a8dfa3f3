"""Each process warns of a variable that was probably meant to be a setting."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devgrid import REPOSITORY
from devgrid.machine import deadline

NOT_OURS = "203.0.113.1:1"  # an address that no machine has

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDjSUH0Q9GdDQmXNTKnGDCDfE2PVuTgZvdHL5LkW5F0g test"


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--chain-poll-s=often"],
        ["run", "metrics", "--listen", "nowhere"],
        ["run", "flower", "--address=0.0.0.0"],
        ["run", "worker", "-Q", "main.default"],
        ["run", "beat"],
        ["run", "callbacks"],
    ],
)
def test_run__unknown_variable__is_a_warning_of_each_process(
    words: list[str], tmp_path: Path
) -> None:
    """Each of these processes ends with status 2 afterwards, as a setting or an option
    is wrong.
    """
    servers = {
        "DATABASE_URL": "postgresql://127.0.0.1:1/none",
        "BROKER_URL": "redis://127.0.0.1:1",
    }
    servers |= {
        "HEALTH_ADDRESS": NOT_OURS,
        "LISTEN_ADDRESS": "127.0.0.1:0",
        "SLURM_SSH_PUBLIC_KEY": PUBLIC_KEY,
    }
    servers |= {"STATE_DIR": str(tmp_path / "state")}
    argv = [sys.executable, "-m", "supervisor_tasks.cli", *words]
    given = {
        name: value for name, value in os.environ.items() if name != "FLOWER_BASIC_AUTH"
    }
    environment = given | servers | {"CLAIM_LIMIT": "5"}
    ended = subprocess.run(
        argv,
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=deadline(60),
    )
    lines = [
        json.loads(line)
        for line in (ended.stdout + ended.stderr).splitlines()
        if line.startswith("{")
    ]
    told = [
        line["variable"]
        for line in lines
        if line["event"] == "variable_not_known" and "process" not in line
    ]
    assert (ended.returncode, told) == (2, ["CLAIM_LIMIT"])
