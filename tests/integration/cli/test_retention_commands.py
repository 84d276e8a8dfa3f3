"""The commands that keep and archive old rows."""

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from sqlalchemy import Engine, text

from supervisor_tasks.jobs.events import ChainStatusObserved
from supervisor_tasks.jobs.model import ChainStatus
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.switch_names import Switch
from tests.support.ledger import bring_to_queued, job_id
from tests.support.operator_commands import Run, settled


def test_retention__paused_and_resumed__sets_the_switch(
    run: Run, ledger: Ledger
) -> None:
    assert "nothing to resume" in run("retention", "resume", "--yes", status=1).stderr
    run("retention", "pause", "--yes", status=2)  # without a reason
    run("retention", "pause", "--reason", "audit of 2025", "--yes")
    assert ledger.switches.reason(Switch.RETENTION_PAUSED) == "audit of 2025"
    settled(ledger, 1)
    with ledger.engine.begin() as connection:
        connection.execute(
            text("UPDATE jobs SET updated_at = now() - interval '401 days'")
        )
    said_then = run("retention", "resume", "--yes").stderr
    assert "more than 7 days ago (now 1)" in said_then
    assert "more than 400 days ago (now 1), will be deleted" in said_then
    assert "audit of 2025" in said_then
    assert ledger.switches.reason(Switch.RETENTION_PAUSED) is None


def test_archive__what_has_ended__is_in_the_file_and_no_file_is_overwritten(
    run: Run, ledger: Ledger, tmp_path: Path
) -> None:
    bring_to_queued(ledger, 1)
    ledger.record(
        JobChange(job_id(1), ChainStatusObserved(ChainStatus.CANCELLED, (9, 0)))
    )
    words = (
        "archive",
        "--before",
        "2100-01-01",
        "--to",
        str(tmp_path / "all.jsonl.zst"),
    )
    ledger.reconciliations.store(ledger.reconciliations.begin("asked"), {}, {})
    assert run(*words).stdout == f"1 job, 1 sweep in {tmp_path / 'all.jsonl.zst'}\n"
    with zstandard.open(tmp_path / "all.jsonl.zst", "rt") as file:
        assert [json.loads(line)["kind"] for line in file] == ["job", "sweep"]
    earlier = str(tmp_path / "none.jsonl.zst")
    assert (
        run("archive", "--before", "2001-01-01", "--to", earlier).stdout
        == f"0 jobs in {earlier}\n"
    )
    assert "never overwritten" in run(*words, status=1).stderr
    assert (
        "expected a day such as"
        in run("archive", "--before", "soon", "--to", "x", status=2).stderr
    )


def test_archive__to_a_dash__is_on_standard_output_and_the_report_is_not(
    run: Run, ledger: Ledger
) -> None:
    settled(ledger, 1)
    result = run("archive", "--before", "2100-01-01", "--to", "-")
    with zstandard.open(io.BytesIO(result.stdout_bytes), "rt") as file:
        assert [json.loads(line)["kind"] for line in file] == ["job"]
    assert "1 job on standard output" in result.stderr


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize(
    ("target", "status", "message"),
    [
        ("/dev/full", 1, "No space left on device); delete what it has"),
        ("terminal", 2, "found a terminal on standard output"),
    ],
)
def test_archive__standard_output_that_takes_no_archive__says_so(
    migrated_ledger: tuple[Engine, dict[str, str]],
    target: str,
    status: int,
    message: str,
) -> None:
    ours, theirs = pty.openpty()
    with (
        os.fdopen(ours),
        os.fdopen(theirs, "wb") as terminal,
        Path("/dev/full").open("wb") as full,
    ):
        result = subprocess.run(
            [
                sys.executable,
                "-m",
                "supervisor_tasks.cli",
                *["archive", "--before", "2100-01-01", "--to", "-"],
            ],
            # with the variable, Python has no buffer whose rest it would write at its end
            env=os.environ | migrated_ledger[1] | {"PYTHONUNBUFFERED": ""},
            stdout=full if target == "/dev/full" else terminal,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (result.returncode, message in result.stderr) == (status, True), (
        result.stderr
    )
