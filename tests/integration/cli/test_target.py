"""The first line of each command names the ledger. It shows no part of a password, also
if the password has characters that separate the parts of a URL.
"""

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from devgrid import REPOSITORY
from devgrid.ports import free_port

HEALTH, STATUS = ("health",), ("db", "status")
SECRETS = ("hunter", "secret")


def output_of(command: Sequence[str], url: str) -> tuple[int, str]:
    """Run a command as an operator does; returns its status, and all that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "supervisor_tasks.cli", *command],
        cwd=REPOSITORY,
        env={"PATH": os.environ["PATH"], "DATABASE_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("command", [HEALTH, STATUS], ids=" ".join)
@pytest.mark.parametrize(
    "password",
    ["hunter2%2Fsecret", "hunter2%25secret", "hunter2%40secret", "hunter2:secret"],
)
def test_command__password_with_separators__shows_only_host_and_database(
    command: Sequence[str], password: str
) -> None:
    address = f"127.0.0.1:{free_port()}"
    _, output = output_of(command, f"postgresql://u:{password}@{address}/db")
    assert not [secret for secret in SECRETS if secret in output]
    first, error = output.splitlines()
    assert first == f"main@{address}/db"
    assert error.startswith("Error: the ledger's database: connection failed")


@pytest.mark.parametrize(("command", "status"), [(HEALTH, 1), (STATUS, 2)])
@pytest.mark.parametrize(
    "url",
    [
        "postgre://u:hunter2secret@h/db",
        "postgresql://u:hunter2secret@h:port/db",
        "postgresql://u:hunter2@secret@h/db",
        "postgresql://u:hunter2%zzsecret@h/db",
        "postgresql://u:hunter2/secret@h/db",
        "postgresql://u:hunter2#secret?@h/db",
        "postgresql://u:hunter2secret@h/db?no_option=1",
        "postgresql://u:hunter2%00secret@h/db",
    ],
)
def test_command__database_url_is_malformed__says_so_and_shows_none_of_it(
    command: Sequence[str], status: int, url: str
) -> None:
    found, output = output_of(command, url)
    assert not [secret for secret in SECRETS if secret in output]
    (line,) = output.splitlines()
    assert found == status
    assert "DATABASE_URL: found a value that is not shown; expected a URL" in line
