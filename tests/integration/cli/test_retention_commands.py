"""The commands that keep and archive old rows."""

import json
from pathlib import Path

import zstandard
from sqlalchemy import text

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
