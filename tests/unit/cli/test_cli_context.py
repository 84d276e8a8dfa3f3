"""Who is recorded as the operator of a command."""

import os
import pwd
import socket

import pytest

from supervisor_tasks.cli.cli_context import MAX_OPERATOR_CHARS, operator

HERE = f"{pwd.getpwuid(os.getuid()).pw_name}@{socket.gethostname()}"


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        ("", HERE),
        ("alice", f"alice ({HERE})"),
        ("alice@site.example", f"alice@site.example ({HERE})"),
        ("a\x1b[2Jlice\n'--", f"a2Jlice-- ({HERE})"),
        ("\n", HERE),
        ("x" * 1000, f"{'x' * MAX_OPERATOR_CHARS} ({HERE})"),
    ],
)
def test_operator__name_given_or_not__is_recorded_before_user_and_host(
    monkeypatch: pytest.MonkeyPatch, given: str, recorded: str
) -> None:
    monkeypatch.delenv("SUDO_USER", raising=False)
    monkeypatch.setenv("SUPERVISOR_OPERATOR", given)
    assert operator() == recorded


def test_operator__under_sudo_as_root__is_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SUPERVISOR_OPERATOR", raising=False)
    monkeypatch.setenv("SUDO_USER", "alice")
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert operator() == f"alice@{socket.gethostname()}"
