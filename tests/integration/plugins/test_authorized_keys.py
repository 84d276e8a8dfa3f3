"""The authorized-keys command and a gRPC server: what it prints for which user, and the
line that says why it prints nothing.

sshd starts it with -I -S (tests/attacks); here its branches are counted.
"""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devgrid import REPOSITORY
from devgrid.machine import deadline
from devgrid.processes import wait_until
from devgrid.tls import Certificates
from tests.support.spool_env import KEY, Supervisor, serving

CUSTOMER = "0x" + "a1" * 20
PROGRAM = (sys.executable, str(REPOSITORY / "plugins" / "authorized_keys.py"))


@pytest.fixture(scope="module")
def served(certificates: Certificates) -> Iterator[tuple[Supervisor, str]]:
    with serving(certificates=certificates) as (service, port):
        yield service, f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    with serving() as (_, port):
        yield f"127.0.0.1:{port}"


def run(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*PROGRAM, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=deadline(60),
    )


def answered(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    """As `run`. On a busy machine the server may answer later than the program waits
    for it, which is then repeated.
    """
    done = list[subprocess.CompletedProcess[str]]()

    def is_in_time() -> bool:
        done.append(run(*words))
        late = ("in time", "timed out")
        return not any(words in done[-1].stderr for words in late)

    wait_until(is_in_time, "an answer in time", 60.0)
    return done[-1]


@pytest.mark.parametrize(
    ("user", "printed"),
    [(CUSTOMER, KEY), ("slurmadmin", KEY), ("root", ""), (f"{CUSTOMER}0", "")],
)
def test_main__user__is_given_the_key_as_a_customer_or_by_name(
    served: tuple[Supervisor, str], certificates: Certificates, user: str, printed: str
) -> None:
    options = ("--supervisor", served[1], "--ca", certificates.ca)
    done = answered(*options, "--allow", "slurmadmin", user)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


def test_main__supervisor_without_a_key__prints_nothing_and_is_no_error(
    served: tuple[Supervisor, str], certificates: Certificates
) -> None:
    service, address = served
    service.authorized_keys = ""
    try:
        done = answered("--supervisor", address, "--ca", certificates.ca, CUSTOMER)
    finally:
        service.authorized_keys = KEY
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_main__any_certificate_allowed__prints_the_key(
    served: tuple[Supervisor, str],
) -> None:
    done = answered("--supervisor", served[1], "--tls-insecure", CUSTOMER)
    assert (done.returncode, done.stdout, done.stderr) == (0, KEY, "")


def test_main__authority_of_the_system__does_not_know_the_certificate(
    served: tuple[Supervisor, str],
) -> None:
    done = answered("--supervisor", served[1], CUSTOMER)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"authorized_keys: {served[1]}: ")
    assert "certificate verify failed" in done.stderr


def test_main__plain_text_and_a_key_file__prints_the_key(
    plain: str, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.touch(mode=0o600)
    file.write_text("0123456789abcdef" * 2 + "\n")
    done = answered("--supervisor", plain, "--plain-text", "--key", file, CUSTOMER)
    assert (done.returncode, done.stdout, done.stderr) == (0, KEY, "")


def test_main__key_file_that_others_can_read__says_so_and_fails(
    plain: str, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("0123456789abcdef" * 2 + "\n")
    file.chmod(0o604)
    done = run("--supervisor", plain, "--plain-text", "--key", file, CUSTOMER)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{file}: found mode 604; expected a file that others" in done.stderr


def test_main__server_that_does_not_answer__fails_in_time_with_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts no connection
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        done = run("--supervisor", address, "--plain-text", CUSTOMER)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"authorized_keys: {address}")
    assert done.stderr.count("\n") == 1
