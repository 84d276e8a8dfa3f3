"""`supervisor top` in a terminal."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from sqlalchemy import Engine, create_engine, make_url, text

from devgrid.machine import deadline
from supervisor_tasks.jobs.events import (
    ScriptFetched,
    SubmitStarted,
    Submitted,
    ToppedUp,
)
from supervisor_tasks.jobs.model import JobId, SlurmId
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.operator_log import OperatorLog
from supervisor_tasks.ledger.periodic_run_names import CHAIN_HEAD, QUEUE, SCANNED
from supervisor_tasks.ledger.switch_names import Switch
from tests.support.ledger import bring_to_queued, claim
from tests.support.operator_commands import Run, in_terminal, settled, target_of


@contextmanager
def database_away(environment: dict[str, str]) -> Iterator[None]:
    """The database ends its connections and takes no new ones."""
    url = make_url(environment["DATABASE_URL"])
    engine = create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
    with engine.connect() as connection:
        connection.execute(
            text(f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS false")
        )
        try:
            connection.execute(text(end), {"name": url.database})
            yield
        finally:
            connection.execute(
                text(f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS true")
            )
    engine.dispose()


def test_top__ledger_away__keeps_the_screen_and_goes_on(
    ledger: Ledger, migrated_ledger: tuple[Engine, dict[str, str]]
) -> None:
    bring_to_queued(ledger, 1)
    with in_terminal(("top", "--every", "0.3"), migrated_ledger[1]) as screen:
        screen.wait_for("QUEUED", "q quit")
        with database_away(migrated_ledger[1]):
            screen.shown = ""
            screen.wait_for("the ledger's database:")
        screen.shown = ""
        screen.wait_for("QUEUED", "q quit")
        os.write(screen.terminal, b"\x03")
        assert screen.process.wait(deadline(30)) == 130
        screen.wait_for("\x1b[?1049l")


def test_top__in_a_terminal__shows_jobs_opens_one_and_pauses_claims(
    ledger: Ledger, migrated_ledger: tuple[Engine, dict[str, str]]
) -> None:
    bring_to_queued(ledger, 1)
    settled(ledger, 2)
    ledger.periodic_runs.record(
        SCANNED,
        readings=lambda: {CHAIN_HEAD: 120045, f"{QUEUE}chain": 2, f"{QUEUE}slurm": 310},
    )
    with ledger.engine.begin() as connection:
        ledger.cursors.set(connection, "contract", 120042, "0x1")
    with in_terminal(("top", "--every", "0.3"), migrated_ledger[1]) as screen:
        wanted = [
            "1 job settled in the last 10m00s",
            "at the head",
            "SLURM",
            "does not answer",
            "unread callbacks",
        ]
        wanted += (
            target_of(migrated_ledger[1]),
            "block 120045",
            "block 120042, 3 blocks behind the head",
        )
        wanted += ("messages: chain 2, slurm 310", "0x00000000", "QUEUED", "q quit")
        screen.wait_for("jobs: all that are not settled", *wanted)
        screen.press(
            "\r",
            target_of(migrated_ledger[1]),
            "what happened",
            "submitted as 101",
            "what comes next",
        )
        screen.press("b", "jobs: all that are not settled")
        screen.press("f", "jobs: CLAIMED", "jobs: none")
        screen.press(
            "p", "no more jobs will be claimed; 1 job under way will go on: go on? y/n"
        )
        screen.press("y", "paused by an operator")
        os.write(screen.terminal, b"q")
        assert screen.process.wait(deadline(30)) == 0
    assert ledger.switches.is_set(Switch.CLAIMING_PAUSED)
    assert [
        entry["command"] for entry in OperatorLog(ledger.engine, "here").last(5)
    ] == ["claims pause"]


def test_top__in_a_terminal_of_24_lines__shows_the_marked_job_and_the_end_of_a_story(
    ledger: Ledger, migrated_ledger: tuple[Engine, dict[str, str]]
) -> None:
    ids = [JobId(f"0x{number:02x}{'0' * 62}") for number in range(1, 13)]
    for number, job in enumerate(ids):
        ledger.record(JobChange(job, replace(claim(number), job_id=job)))
        ledger.record(
            JobChange(job, ScriptFetched("echo", "")), JobChange(job, SubmitStarted(10))
        )
        ledger.record(JobChange(job, Submitted(SlurmId(100 + number))))
    oldest = ids[0][:10]
    ledger.record(
        *(
            JobChange(ids[0], ToppedUp(f"claim-top-up:{minutes}", minutes))
            for minutes in range(1, 9)
        )
    )
    with in_terminal(("top", "--every", "0.3"), migrated_ledger[1], lines=24) as screen:
        screen.wait_for(
            "12 QUEUED",
            "0 jobs settled in the last 10m00s",
            "jobs: all that are not settled",
            ids[-1][:10],
            "q quit",
        )
        assert oldest not in screen.shown
        screen.press("j" * len(ids[:-1]), oldest)
        screen.press("\r", ids[0], "what happened")
        assert "what comes next" not in screen.shown
        screen.press("\x1b[B", "what comes next")
        os.write(screen.terminal, b"q")
        assert screen.process.wait(deadline(30)) == 0


def test_top__without_a_terminal__is_refused(run: Run) -> None:
    assert "status --watch" in run("top", status=2).stderr
