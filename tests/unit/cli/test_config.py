"""`supervisor config check`: a process whose settings it calls complete can start."""

import base64
from collections.abc import Mapping

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from supervisor_tasks.cli.config import NEEDS, ConfiguredProcess
from supervisor_tasks.worker import needs_of_command
from tests.support.commands import Result, supervisor

KEY_FILE = Ed25519PrivateKey.generate().private_bytes(
    Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
)
WORKERS = {"worker": "", "chain": " -Q here.chain", "slurm": " -Q here.slurm"}
ENVIRONMENT = {
    "CLUSTER_NAME": "here",
    "ETH_PRIVATE_KEY": "0x" + "1" * 64,
    "SLURM_SSH_PRIVATE_KEY": base64.b64encode(KEY_FILE).decode(),
    "SLURM_SSH_ADDRESS": "login:22",
    "SLURM_SSH_ADMIN_USER": "root",
    "NOTIFY_SMTP_ADDRESS": "mail.example.org:587",
    "NOTIFY_SMTP_USER": "fleet",
}


def checked(process: str, environment: Mapping[str, str]) -> Result:
    return supervisor("config", "check", process, "--form-only", env=environment)


@pytest.mark.parametrize("process", WORKERS)
def test_check__mail_user_without_a_password__workers_cannot_start(
    process: str,
) -> None:
    refused = checked(process, ENVIRONMENT)
    assert refused.exit_code == 2
    assert refused.stderr == (
        "Error: NOTIFY_SMTP_PASSWORD: found nothing; expected that user's password, as NOTIFY_SMTP_USER is set\n"
    )
    good = checked(process, {**ENVIRONMENT, "NOTIFY_SMTP_PASSWORD": "correct-horse"})
    assert good.exit_code == 0


@pytest.mark.parametrize("process", sorted(set(ConfiguredProcess) - set(WORKERS)))
def test_check__mail_user_without_a_password__others_can_start(process: str) -> None:
    assert checked(process, ENVIRONMENT).exit_code == 0


@pytest.mark.parametrize("process", WORKERS)
def test_needs__of_a_worker__are_those_that_it_starts_with(process: str) -> None:
    argv = f"celery worker{WORKERS[process]}".split()
    assert list(NEEDS[ConfiguredProcess(process)]) == needs_of_command(argv)
