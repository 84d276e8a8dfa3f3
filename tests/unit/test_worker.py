"""Which secrets a command line of Celery will work with."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor_tasks.config.needs import Need
from supervisor_tasks.worker import needs_of_command
from tests.support.refusals import reasons

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        ("celery -A supervisor_tasks beat", []),
        ("celery -A supervisor_tasks flower", []),
        ("celery -A supervisor_tasks worker", [Need.WALLET, Need.SLURM, Need.NOTIFY]),
        ("celery -A supervisor_tasks worker -Q main.chain", [Need.WALLET, Need.NOTIFY]),
        (
            "celery -A supervisor_tasks worker --queues=main.slurm,main.default",
            [Need.SLURM, Need.NOTIFY],
        ),
        ("celery -A supervisor_tasks worker -Q main.default", [Need.NOTIFY]),
    ],
)
def test_needs_of_command__queues__tell_which_secrets(
    command: str, needs: list[Need]
) -> None:
    assert needs_of_command(command.split()) == needs


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
        timeout=60,
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
        timeout=60,
    )
    assert ended.returncode == 2
    entry = json.loads(ended.stderr)
    assert entry["event"] == "worker_startup_failed"
    assert "'NoneType' object has no attribute 'app'" in entry["exception"]
