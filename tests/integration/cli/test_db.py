"""The commands for the ledger's tables, on databases of several revisions."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from devgrid.machine import deadline
from devgrid.processes import wait_until
from supervisor_tasks.cli.cli_context import operator
from supervisor_tasks.cli.target import target
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.migrations import newest_revision, revision, upgrade
from supervisor_tasks.ledger.operator_log import OperatorLog
from tests.support.commands import Result, supervisor
from tests.support.operator_commands import Run


@pytest.fixture
def other_database(migrated_ledger: tuple[Engine, dict[str, str]]) -> Iterator[str]:
    """The URL of an empty database beside the ledger's."""
    url = make_url(migrated_ledger[1]["DATABASE_URL"]).set(
        database=f"other_{os.getpid()}"
    )
    with (
        migrated_ledger[0]
        .connect()
        .execution_options(isolation_level="AUTOCOMMIT") as connection
    ):
        connection.execute(text(f"CREATE DATABASE {url.database}"))
        yield url.render_as_string(hide_password=False)
        connection.execute(text(f"DROP DATABASE {url.database} WITH (FORCE)"))


def as_at_revision(found: str | None, url: str) -> None:
    """Give an empty database the revision alone, without any table."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num text)"))
        if found is not None:
            connection.execute(
                text("INSERT INTO alembic_version VALUES (:found)"), {"found": found}
            )
    engine.dispose()


def test_db_upgrade__over_a_revision_that_stops_old_processes__says_so(
    migrated_ledger: tuple[Engine, dict[str, str]], other_database: str
) -> None:
    environment = migrated_ledger[1] | {"DATABASE_URL": other_database}
    upgrade(other_database, "0014")
    unasked = supervisor("db", "upgrade", env=environment)
    still = revision(other_database)
    first = supervisor(
        "db", "upgrade", "--yes", "--reason", "a new release", env=environment
    )
    second = supervisor("db", "upgrade", env=environment)
    engine = create_engine(other_database)
    (entry,) = OperatorLog(engine, "here").last(10)
    engine.dispose()
    refused = upgraded_from("9999", other_database, environment)
    assert (unasked.exit_code, still) == (4, "0014")
    assert unasked.stderr.startswith(f"{target('here', other_database)}\n")
    steps = int(newest_revision() or 0) - 14
    assert (
        f"from 0014 to {newest_revision()} by {steps} migrations, for all clusters; its 2"
        in unasked.stderr
    )
    assert (first.exit_code, second.exit_code) == (0, 0), (first.output, second.output)
    assert (entry["command"], entry["reason"], entry["outcome"]) == (
        "db upgrade",
        "a new release",
        "done",
    )
    assert entry["operator"] == operator()
    assert "from 0014 to" in entry["change"]
    assert (refused.exit_code, "of a newer release" in refused.stderr) == (1, True)
    assert (
        "after 0015, 0019, 0020, 0021, 0022, 0030, 0031, 0032, 0033, 0034, 0035, 0037,"
        " processes of the release before do not work" in first.stderr
    )
    assert "stop them" not in second.stderr


def test_db_upgrade__fails_and_is_repeated__is_in_the_log_of_each_cluster(
    migrated_ledger: tuple[Engine, dict[str, str]], other_database: str
) -> None:
    environment = migrated_ledger[1] | {"DATABASE_URL": other_database}
    upgrade(other_database, "0028")
    engine = create_engine(other_database)
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO instance_tags (cluster, tag) VALUES ('there', '\\x01')")
        )
        connection.execute(
            text(
                "CREATE FUNCTION account_effect() RETURNS int LANGUAGE sql AS 'SELECT 1'"
            )
        )
    failed = supervisor("db", "upgrade", "--yes", env=environment)
    with engine.begin() as connection:
        connection.execute(text("DROP FUNCTION account_effect()"))
    supervisor("db", "upgrade", "--yes", env=environment)
    logs = [OperatorLog(engine, cluster).last(10) for cluster in ("here", "there")]
    engine.dispose()
    assert failed.exit_code == 1, failed.output
    for done, before in logs:
        assert (done["command"], done["outcome"]) == ("db upgrade", "done")
        assert "account_effect" in before["outcome"]


def test_db_upgrade__as_a_process_of_the_fleet__tells_it_in_lines_of_the_log(
    migrated_ledger: tuple[Engine, dict[str, str]], other_database: str
) -> None:
    environment = migrated_ledger[1] | {"DATABASE_URL": other_database}
    migrate = [sys.executable, "-m", "supervisor_tasks.cli", "run", "migrate"]
    ended = subprocess.run(
        migrate,
        env=environment,
        capture_output=True,
        text=True,
        timeout=deadline(90),
        check=True,
    )
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    events = ["tables_checked", "tables_upgrade_begins", "tables_upgraded"]
    assert (ended.stdout, [line["event"] for line in lines]) == ("", events)
    first, begins, done = lines
    assert (first["ledger"], first["cluster"]) == (
        target("here", other_database),
        "here",
    )
    assert f"up to {newest_revision()}" in begins["change"]
    assert (done["before"], done["after"]) == (None, newest_revision())
    assert supervisor("db", "upgrade", "--log", env=environment).exit_code == 2


def test_db_upgrade__tables_of_a_newer_release__stay_and_a_fleet_may_start(
    migrated_ledger: tuple[Engine, dict[str, str]], other_database: str
) -> None:
    """A process of the release before starts again after an upgrade."""
    environment = migrated_ledger[1] | {"DATABASE_URL": other_database}
    as_at_revision("9999", other_database)
    ended = subprocess.run(
        [sys.executable, "-m", "supervisor_tasks.cli", "run", "migrate"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=deadline(90),
        check=True,
    )
    events = [json.loads(line)["event"] for line in ended.stderr.splitlines()]
    assert events == ["tables_checked", "tables_newer"]
    assert revision(other_database) == "9999"


def upgraded_from(revision: str, url: str, environment: dict[str, str]) -> Result:
    """The answer to an upgrade of tables at this revision."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE alembic_version SET version_num = :revision"),
            {"revision": revision},
        )
    engine.dispose()
    return supervisor("db", "upgrade", "--yes", env=environment)


def test_db_upgrade__waits_for_a_database__and_not_for_ever(
    migrated_ledger: tuple[Engine, dict[str, str]],
) -> None:
    begun_s = time.monotonic()
    gone = {"DATABASE_URL": "postgresql://user@127.0.0.1:1/none"}
    result = supervisor("db", "upgrade", "--wait-s", "1.5", env=gone)
    assert (result.exit_code, time.monotonic() - begun_s > 1.5) == (3, True)
    assert "the ledger's database" in result.stderr
    assert (
        supervisor("db", "upgrade", "--wait-s", "600", env=migrated_ledger[1]).exit_code
        == 0
    )


def test_db_status__as_expected_or_older__tells_the_revisions(
    run: Run, ledger: Ledger, migrated_ledger: tuple[Engine, dict[str, str]]
) -> None:
    assert "as this version expects" in run("db", "status").stdout
    with ledger.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0016'"))
    try:
        assert (
            "found the ledger's tables at 0016; expected"
            in run("db", "status", status=1).stderr
        )
    finally:
        with ledger.engine.begin() as connection:
            connection.execute(
                text("UPDATE alembic_version SET version_num = :newest"),
                {"newest": newest_revision()},
            )


def test_db_wait__before_the_upgrade__ends_after_it(
    migrated_ledger: tuple[Engine, dict[str, str]], other_database: str, tmp_path: Path
) -> None:
    argv = [
        sys.executable,
        "-m",
        "supervisor_tasks.cli",
        "db",
        "wait",
        "--wait-s",
        "60",
        "--log",
    ]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            argv,
            env=migrated_ledger[1] | {"DATABASE_URL": other_database},
            stderr=log,
            stdout=log,
        ) as process,
    ):
        wait_until(
            lambda: "tables at none" in (tmp_path / "log").read_text(),
            "the command to tell what it waits for",
            30.0,
        )
        assert process.poll() is None
        upgrade(other_database)
        assert process.wait(deadline(30)) == 0
    events = [
        json.loads(line)["event"]
        for line in (tmp_path / "log").read_text().splitlines()
    ]
    assert (*events[:2], events[-1]) == (
        "tables_checked",
        "tables_awaited",
        "tables_found",
    )


@pytest.mark.parametrize(("found", "status"), [(None, 1), ("0016", 1), ("9999", 0)])
def test_db_wait__by_the_revision__is_content_with_newer_tables_only(
    found: str | None,
    status: int,
    migrated_ledger: tuple[Engine, dict[str, str]],
    other_database: str,
) -> None:
    as_at_revision(found, other_database)
    result = supervisor(
        "db",
        "wait",
        "--wait-s",
        "0.1",
        env=migrated_ledger[1] | {"DATABASE_URL": other_database},
    )
    assert result.exit_code == status, result.output
    expected = (
        f"found the ledger's tables at {found or 'none'}; expected {newest_revision()}"
    )
    assert (expected in result.stderr) == bool(status)


def test_db_wait__for_a_database_that_is_away__tells_it(
    migrated_ledger: tuple[Engine, dict[str, str]],
) -> None:
    away = {"DATABASE_URL": "postgresql://127.0.0.1:1/none"}
    result = supervisor("db", "wait", "--wait-s", "0.1", env=migrated_ledger[1] | away)
    assert result.exit_code == 1
    assert "the ledger's database: " in result.stderr
