"""A worker that cannot start says why, and ends."""

import json
import subprocess
import sys
from pathlib import Path

from devgrid import REPOSITORY
from devgrid.machine import deadline
from tests.support.refusals import reasons


def test_worker__everything_wrong__says_all_at_once_and_ends_with_2(
    tmp_path: Path,
) -> None:
    argv = [sys.executable, "-m", "celery", "-A", "supervisor_tasks", "worker"]
    environment = {
        "PATH": "/usr/bin:/bin",
        "STATE_DIR": str(tmp_path),
        "CHAIN_ID": "x",
        "TLS_ENABLE": "maybe",
    }
    ended = subprocess.run(
        argv,
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=deadline(60),
    )
    names = [reason.partition(":")[0] for reason in reasons(ended.stderr)]
    assert ended.returncode == 2
    assert names == [
        "CHAIN_ID",
        "ETH_PRIVATE_KEY",
        "SLURM_SSH_ADDRESS",
        "SLURM_SSH_ADMIN_USER",
        "SLURM_SSH_PRIVATE_KEY",
        "TLS_ENABLE",
    ]
    assert "Traceback" not in ended.stderr


def test_on_worker_init__unexpected_error__ends_the_worker_and_is_logged() -> None:
    program = "from supervisor_tasks.worker import on_worker_init; on_worker_init(sender=None)"
    argv, environment = [sys.executable, "-c", program], {"PATH": "/usr/bin:/bin"}
    ended = subprocess.run(
        argv,
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=deadline(60),
    )
    assert ended.returncode == 2
    entry = json.loads(ended.stderr)
    assert entry["event"] == "worker_startup_failed"
    assert "'NoneType' object has no attribute 'app'" in entry["exception"]
