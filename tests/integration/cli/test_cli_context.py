"""A command that changes something asks, and is in the operators' log."""

import os
import pty
import subprocess
import sys

import pytest
from sqlalchemy import Engine

from devgrid import REPOSITORY
from supervisor_tasks.cli.cli_context import CliContext, operator
from supervisor_tasks.config.settings import load
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.operator_log import OperatorLog
from supervisor_tasks.ledger.switch_names import Switch
from tests.support.ledger import bring_to_queued, job_id
from tests.support.operator_commands import Run, said

END_OF_INPUT = "\x04"  # Ctrl-D at a terminal


def test_change__confirmed__is_in_the_log_with_operator_reason_and_outcome(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    run("claims", "pause", "--reason", "maintenance", "--yes")
    run("claims", "resume", status=4)
    run(
        "job",
        "settle",
        job_id(1),
        "--status",
        "FAILED",
        "--minutes",
        "3",
        "--reason",
        "burnt",
        "--yes",
    )
    settled, paused = said(run("log", "-o", "json"))
    assert (paused["command"], paused["reason"], paused["outcome"]) == (
        "claims pause",
        "maintenance",
        "done",
    )
    assert paused["operator"] == operator()
    assert "1 job under way" in paused["change"]
    assert (settled["command"], settled["subject"], settled["reason"]) == (
        "job settle",
        job_id(1),
        "burnt",
    )
    assert "the customer pays 3 minutes" in settled["change"]
    assert len(said(run("log", "--since", "1h", "--limit", "1", "-o", "json"))) == 1
    assert said(run("log", "--command", "claims", "-o", "json")) == [paused]
    assert said(
        run("log", "--subject", job_id(1)[:60], "--operator", operator(), "-o", "json")
    ) == [settled]
    assert said(run("log", "--operator", "another@", "-o", "json")) == []
    assert said(run("log", "--subject", "0x%", "-o", "json")) == []
    assert "expected an age" in run("log", "--since", "yesterday", status=2).stderr


def test_change__that_fails__is_in_the_log_with_the_error(
    ledger: Ledger, migrated_ledger: tuple[Engine, dict[str, str]]
) -> None:
    cli = CliContext()
    cli.__dict__["settings"] = load(environment=migrated_ledger[1])
    with (
        pytest.raises(RuntimeError),
        cli.change("claims pause", "claims", "nothing", yes=True),
    ):
        raise RuntimeError("a reason")
    cli.close()
    (entry,) = OperatorLog(ledger.engine, "here").last(10)
    assert entry["outcome"] == "RuntimeError: a reason"


@pytest.mark.parametrize(
    ("typed", "status", "paused"),
    [("n\n", 4, False), (END_OF_INPUT, 4, False), ("y\n", 0, True)],
)
def test_change__at_a_terminal__is_asked_about(
    ledger: Ledger,
    migrated_ledger: tuple[Engine, dict[str, str]],
    typed: str,
    status: int,
    paused: bool,
) -> None:
    bring_to_queued(ledger, 1)
    argv = [sys.executable, "-m", "supervisor_tasks.cli", "claims", "pause"]
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "wb", buffering=0) as terminal:
        terminal.write(typed.encode())
        done = subprocess.run(
            argv,
            cwd=REPOSITORY,
            env=migrated_ledger[1],
            stdin=theirs,
            capture_output=True,
            text=True,
        )
    os.close(theirs)
    assert done.returncode == status, done.stderr
    assert "1 job under way will go on." in done.stderr
    assert "Go on? [y/N]" in done.stderr
    assert ledger.switches.is_set(Switch.CLAIMING_PAUSED) is paused
