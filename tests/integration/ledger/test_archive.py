"""The archive of old rows, on a real Postgres: what is in the file, and when there is
none.
"""

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zstandard
from sqlalchemy import Engine, event, text

from supervisor_tasks.errors import LedgerUnavailableError
from supervisor_tasks.ledger.archive import ArchiveError, archive
from supervisor_tasks.ledger.retention import RUNS_KEPT
from tests.support.old_rows import (
    CLUSTER,
    JOB,
    KEY,
    OLD_INCIDENTS,
    OLD_RESULTS,
    OLD_RUNS,
    OLD_SWEEPS,
    ROWS,
    deletable_rows,
    delete,
    execute,
    later_transaction,
    many_jobs,
    store_old_job,
    transaction,
)

NOW = datetime.now(UTC)


@pytest.fixture(autouse=True)
def old_job(engine: Engine) -> None:
    store_old_job(engine)


def lines(path: Path) -> list[dict[str, Any]]:
    with (
        path.open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file) as reader,
    ):
        return [json.loads(line) for line in io.TextIOWrapper(reader, encoding="utf-8")]


ANOTHER = """
    INSERT INTO jobs SELECT (jsonb_populate_record(jobs, '{"job_id"\\: "0xlive", "state"\\: "RUNNING"}')).*
    FROM jobs WHERE job_id = :job
"""
NONE = {"job": 0, "transaction": 0, "sweep": 0, "alarm_incident": 0, "benchmark_run": 0}
NAME = {
    "events": "name",
    "effects": "kind",
    "callbacks": "status",
    "transactions": "purpose",
}


def test_archive__job__is_a_line_with_all_its_rows(
    engine: Engine, tmp_path: Path
) -> None:
    with engine.begin() as connection:
        transaction(connection, 2, "claim")
        connection.execute(
            text("UPDATE jobs SET claim_key = '0xclaim2' || chr(58) || '0'")
        )
    many_jobs(engine, 3)
    execute(engine, ANOTHER)
    target = tmp_path / "2025.jsonl.zst"
    assert archive(engine, CLUSTER, NOW, target) == NONE | {"job": 4, "transaction": 1}
    found = {line["job_id"]: line for line in lines(target) if line["kind"] == "job"}
    assert found.keys() == {JOB, "0x1", "0x2", "0x3"}
    job = found[JOB]
    assert (job["script"], job["runs"], job["slurm_id"]) == ("echo", [{"run": 1}], 7)
    named = {}
    for table, name in NAME.items():
        named[table] = [row[name] for row in job[table]]
    assert named == {
        "events": ["SlurmCompleted"],
        "effects": ["report"],
        "callbacks": [7],
        "transactions": ["report", "claim"],
    }
    assert list(tmp_path.iterdir()) == [target]
    assert target.stat().st_mode & 0o077 == 0


def with_rows_of_no_job(engine: Engine) -> None:
    """Old ones of each kind; of some of them the ledger still needs the last."""
    with engine.begin() as connection:
        for nonce in (2, 3, 4, 5):
            transaction(connection, nonce, "claim")
        later_transaction(connection)
    execute(engine, OLD_SWEEPS)
    execute(engine, OLD_INCIDENTS)
    execute(engine, OLD_RUNS, runs=RUNS_KEPT + 2)
    execute(engine, OLD_RESULTS)


def test_archive__rows_of_no_job__are_lines_with_their_kind(
    engine: Engine, tmp_path: Path
) -> None:
    with_rows_of_no_job(engine)
    execute(engine, "UPDATE reconciliations SET report = '{\"found\"\\: []}'")
    execute(
        engine,
        "UPDATE benchmark_results SET labels = '{\"compute.gflops\"\\: \"9\"}', output = '\\x6f6b'",
    )
    archive(engine, CLUSTER, NOW, tmp_path / "all")
    found = lines(tmp_path / "all")
    claim = next(line for line in found if line["kind"] == "transaction")
    assert (
        claim["purpose"],
        claim["nonce"],
        [each["hash"] for each in claim["signatures"]],
    ) == (
        "claim",
        2,
        ["0xclaim2"],
    )
    sweep = next(line for line in found if line["kind"] == "sweep")
    assert (sweep["report"], sweep["previous_doubts"]) == ({"found": []}, {})
    run = next(line for line in found if line["kind"] == "benchmark_run")
    assert (run["state"], [effect["kind"] for effect in run["effects"]]) == (
        "ENDED",
        ["benchmark"],
    )
    (result,) = run["results"]
    assert (result["benchmark"], result["labels"], result["output"]) == (
        "hpl",
        {"compute.gflops": "9"},
        "\\x6f6b",
    )


TABLE = {"sweep": "reconciliations"}  # of a kind of line that has no table of its name


def rows_of(table: str, found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A row of the archive and each row within it."""
    yield table, str(found[KEY.get(table, "id")])
    for name, value in found.items():
        within = {
            "results": "benchmark_results",
            "messages": "alarm_messages",
        }.get(name, name)
        for row in value if within in ROWS else ():
            yield from rows_of(within, row)


def test_archive__all_that_retention_deletes__is_in_the_file(
    engine: Engine, tmp_path: Path
) -> None:
    many_jobs(engine, 3)
    with_rows_of_no_job(engine)
    before = deletable_rows(engine)
    archive(engine, CLUSTER, NOW, tmp_path / "all")
    written = {
        row
        for line in lines(tmp_path / "all")
        for row in rows_of(TABLE.get(line["kind"], f"{line['kind']}s"), line)
    }
    delete(engine)
    deleted = before - deletable_rows(engine)
    assert {table for table, _ in deleted} == set(ROWS)
    assert deleted - written == set()


def test_archive__before_a_time__has_no_younger_job(
    engine: Engine, tmp_path: Path
) -> None:
    assert (
        archive(
            engine,
            CLUSTER,
            datetime(2001, 1, 1, tzinfo=UTC),
            tmp_path / "none.jsonl.zst",
        )
        == NONE
    )
    assert lines(tmp_path / "none.jsonl.zst") == []


def test_archive__several_queries__has_each_line_once(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_jobs(engine, 7)
    with_rows_of_no_job(engine)
    monkeypatch.setattr("supervisor_tasks.ledger.archive.LINES_AT_ONCE", 3)
    written = archive(engine, CLUSTER, NOW, tmp_path / "all")
    assert written == {
        "job": 8,
        "transaction": 4,
        "sweep": 3,
        "alarm_incident": 3,
        "benchmark_run": RUNS_KEPT + 2,
    }
    found = [
        (line["kind"], line.get("job_id") or line["id"])
        for line in lines(tmp_path / "all")
    ]
    assert len(found) == len(set(found)) == sum(written.values())


def test_archive__file_exists__is_refused_and_untouched(
    engine: Engine, tmp_path: Path
) -> None:
    target = tmp_path / "old.jsonl.zst"
    target.write_text("precious")
    with pytest.raises(ArchiveError, match="never overwritten"):
        archive(engine, CLUSTER, NOW, target)
    assert target.read_text() == "precious"


@contextmanager
def at_each_statement(engine: Engine, act: Callable[[], object]) -> Iterator[None]:
    def listener(*_: object) -> None:
        act()

    event.listen(engine, "after_cursor_execute", listener)
    try:
        yield
    finally:
        event.remove(engine, "after_cursor_execute", listener)


def test_archive__file_appears_meanwhile__is_not_overwritten_and_nothing_is_left(
    engine: Engine, tmp_path: Path
) -> None:
    target = tmp_path / "old.jsonl.zst"
    appears = at_each_statement(engine, lambda: target.write_text("precious"))
    with appears, pytest.raises(ArchiveError, match="made meanwhile"):
        archive(engine, CLUSTER, NOW, target)
    assert (target.read_text(), list(tmp_path.iterdir())) == ("precious", [target])


def test_archive__database_ends_in_the_middle__leaves_no_file(
    engine: Engine, tmp_path: Path
) -> None:
    fails = iter([None, LedgerUnavailableError("gone")])

    def end() -> None:
        error = next(fails)
        if error is not None:
            raise error

    with at_each_statement(engine, end), pytest.raises(LedgerUnavailableError):
        archive(engine, CLUSTER, NOW, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_archive__no_folder__says_so(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="found no folder"):
        archive(engine, CLUSTER, NOW, tmp_path / "none" / "file")
