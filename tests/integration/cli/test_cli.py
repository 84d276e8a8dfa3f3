"""The operator's command, on a real ledger."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import statistics
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
import zstandard
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.exc import DataError

from devgrid import REPOSITORY
from devgrid.machine import deadline, slowness
from devgrid.processes import wait_until
from plugins import reporter
from supervisor_tasks.cli import health_command
from supervisor_tasks.cli.app import database_error, status_of
from supervisor_tasks.cli.cli_context import CliContext, operator
from supervisor_tasks.cli.exit_codes import ExitCode
from supervisor_tasks.cli.target import target
from supervisor_tasks.config.settings import Settings, load
from supervisor_tasks.execution.effect_failures import park
from supervisor_tasks.jobs.events import (
    CancelRequested,
    ChainStatusObserved,
    Event,
    OperatorCancelled,
    ScriptFetched,
    SlurmCompleted,
    SlurmRunningObserved,
    SubmitRejected,
    SubmitStarted,
    Submitted,
    ToppedUp,
)
from supervisor_tasks.jobs.model import (
    ChainStatus,
    EffectKind,
    JobId,
    Outcome,
    SlurmId,
    State,
)
from supervisor_tasks.ledger import status_queries
from supervisor_tasks.ledger.alarms import AlarmName
from supervisor_tasks.ledger.block_reads import Blocks
from supervisor_tasks.ledger.fact_store import Facts
from supervisor_tasks.ledger.facts import (
    REWIND,
    SLURM_ACCEPTED,
    SLURM_CLUSTER,
    SWEEP_REQUESTED,
    TRANSACTION_REQUESTS,
    UNEXPECTED_CLUSTER,
)
from supervisor_tasks.ledger.foreign_claims import ForeignClaim
from supervisor_tasks.ledger.heartbeats import (
    REPORTER,
    missing_sources,
    record_heartbeats,
)
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.migrations import newest_revision, revision, upgrade
from supervisor_tasks.ledger.operator_log import OperatorLog
from supervisor_tasks.ledger.periodic_run_names import (
    CALLBACKS,
    CHAIN_HEAD,
    QUEUE,
    SCANNED,
)
from supervisor_tasks.ledger.reconciliations import Begun, Reconciliations
from supervisor_tasks.ledger.registrations import Registrations
from supervisor_tasks.ledger.status_queries import Overview
from supervisor_tasks.ledger.switch_names import STATE_LOST, Switch
from supervisor_tasks.observability.health import periodic_work
from supervisor_tasks.provider.registration_rules import RegistrationStatus
from tests.support.commands import Result, supervisor
from tests.support.ledger import (
    OF_ANOTHER_RELEASE,
    bring_to_queued,
    claim,
    job_id,
    park_one,
    raise_alarm_of_another_release,
)

HOSTILE = "no\x1b[2J\x07\nforged line [red]not markup[/red]"
END_OF_INPUT = "\x04"  # Ctrl-D at a terminal
HEALTH_S = 0.5  # what orchestrators may count on
HEALTHS = 11
Run = Callable[..., Result]


@pytest.fixture
def ledger(ledger: Ledger) -> Ledger:
    """A ledger for whose cluster a fleet has worked."""
    ledger.periodic_runs.record("claim")
    return ledger


@pytest.fixture
def run(migrated_ledger: tuple[Engine, dict[str, str]], ledger: Ledger) -> Run:
    _, environment = migrated_ledger
    environment = environment | {"METASCHEDULER_ENDPOINT_RPC": "http://127.0.0.1:1"}

    def command(*words: str, status: int = 0) -> Result:
        result = supervisor(*words, env=environment)
        assert result.exit_code == status, (result.output, result.exception)
        return result

    return command


def said(result: Result) -> Any:
    return json.loads(result.stdout)


def job_of(ledger: Ledger, number: int) -> Any:
    return ledger.jobs([job_id(number)])[job_id(number)]


def open_kinds(ledger: Ledger, number: int) -> set[str]:
    with ledger.engine.connect() as connection:
        query = text(
            "SELECT kind FROM effects WHERE job_id = :id AND done_at IS NULL AND parked_at IS NULL"
        )
        return set(connection.scalars(query, {"id": job_id(number)}))


def record_all_runs(ledger: Ledger) -> None:
    ledger.periodic_runs.record(
        *(work.run_name for work in periodic_work(1.0, accounts=False)), CALLBACKS
    )


def commands_with_json() -> Sequence[Sequence[str]]:
    return [
        ["status"],
        ["job", "list"],
        ["job", "show", "0x0"],
        ["effect", "list"],
        ["alarm", "list"],
        ["alarm", "show", "effect_overdue"],
        ["tx", "list"],
        ["tx", "list", "--open"],
        ["sweep", "list"],
        ["cluster", "list"],
        ["cluster", "show"],
        ["log"],
        ["earnings"],
        ["earnings", "--per", "job"],
    ]


@pytest.mark.parametrize("words", commands_with_json(), ids=" ".join)
def test_every_question__in_each_form__gives_a_table_a_document_or_names(
    run: Run, ledger: Ledger, words: Sequence[str]
) -> None:
    bring_to_queued(ledger, 1)
    park_one(ledger)
    ledger.alarms.on(AlarmName.EFFECT_OVERDUE, last_error="no")
    run("claims", "pause", "--yes")
    for form in ("table", "wide"):
        assert run(*words, "-o", form).stdout.strip()
    document = said(run(*words, "-o", "json"))
    assert document is not None
    assert (
        yaml.safe_load(run(*words, "-o", "yaml").stdout).__class__ is document.__class__
    )
    names = run(*words, "-o", "name").stdout.split()
    assert len(names) == (len(document) if isinstance(document, list) else 1)


@pytest.mark.parametrize("words", commands_with_json(), ids=" ".join)
def test_every_question__text_of_strangers__is_shown_and_not_obeyed(
    run: Run, ledger: Ledger, words: Sequence[str]
) -> None:
    bring_to_queued(ledger, 1)
    park_one(ledger, reason=HOSTILE)
    ledger.alarms.on(AlarmName.EFFECT_OVERDUE, last_error=HOSTILE)
    for form in ("table", "wide", "json", "yaml"):
        shown = run(*words, "-o", form).stdout
        assert shown.replace("\n", "").isprintable()
        assert "\nforged" not in shown
    if words[0] in ("effect", "alarm") or words[:2] == ["job", "show"]:
        assert "\\x1b[2J" in run(*words).stdout
        assert "[red]" in run(*words).stdout


def test_status__claims_are_paused__tells_of_jobs_effects_alarms_and_the_switch(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    ledger.record(JobChange(job_id(2), claim(2)))
    park_one(ledger)
    run("claims", "pause", "--reason", "maintenance", "--yes")
    document = said(run("status", "-o", "json"))
    assert document["jobs"] == {"CLAIMED": 1, "QUEUED": 1}
    assert {
        count["kind"]: (count["due"], count["parked"]) for count in document["effects"]
    } == {
        "fetch": (1, 0),
        "poll_slurm": (0, 1),
    }
    assert [alarm["name"] for alarm in document["alarms"]] == ["effect_parked"]
    assert document["claiming_paused"] is True
    assert document["claims"] is False
    assert document["why_no_claims"][0] == "paused by an operator"
    assert (document["head"], document["lag_blocks"], document["queues"]) == (
        None,
        None,
        {},
    )
    assert "paused by an operator" in run("status").stdout


def test_claims__paused_and_resumed__sets_the_switch(run: Run, ledger: Ledger) -> None:
    assert "nothing to resume" in run("claims", "resume", "--yes", status=1).stderr
    run("claims", "pause", "--yes")
    assert ledger.switches.is_set(Switch.CLAIMING_PAUSED)
    run("claims", "resume", "--yes")
    assert not ledger.switches.is_set(Switch.CLAIMING_PAUSED)


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
        "after 0015, 0019, 0020, 0021, 0022, 0030, 0031, 0032, 0033, 0034, processes of the release before do not work"
        in first.stderr
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


def test_jobs__by_state__only_those(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    ledger.record(JobChange(job_id(2), claim(2)))
    ledger.record(
        JobChange(job_id(1), ChainStatusObserved(ChainStatus.CANCELLED, (9, 0)))
    )
    assert [row["job_id"] for row in said(run("job", "list", "-o", "json"))] == [
        job_id(2)
    ]
    assert [
        row["job_id"]
        for row in said(run("job", "list", "--state", "settled", "-o", "json"))
    ] == [job_id(1)]
    assert "SEATTLED" in run("job", "list", "--state", "SEATTLED", status=2).stderr


def test_job_show__job_with_a_callback__tells_all_in_the_order_of_time(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    with ledger.engine.begin() as connection:
        insert = (
            "INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer)"
            " VALUES ('here', :job, 101, 7, 61, 0, 'test')"
        )
        connection.execute(text(insert), {"job": job_id(1)})
    document = said(run("job", "show", job_id(1), "-o", "json"))
    assert document["job"]["slurm_id"] == 101
    assert document["job"]["chain_status"] == "SCHEDULED"
    journal = [
        entry["what"] for entry in document["timeline"] if entry["source"] == "journal"
    ]
    assert journal == ["Claimed", "ScriptFetched", "SubmitStarted", "Submitted"]
    assert {entry["source"] for entry in document["timeline"]} == {
        "journal",
        "effect",
        "callback",
    }
    assert [entry["at"] for entry in document["timeline"]] == sorted(
        entry["at"] for entry in document["timeline"]
    )


def test_job__unknown_ambiguous_or_no_id__is_told(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 0x1A)
    bring_to_queued(ledger, 0x1B)
    several = run("job", "show", "0x00", status=1).stderr
    assert "found several jobs" in several
    assert job_id(0x1A) in several
    assert "found no job" in run("job", "show", "0xff", status=1).stderr
    assert (
        "expected one, by the beginning of its id"
        in run("job", "show", "0x%", status=1).stderr
    )
    assert said(run("job", "show", job_id(0x1A), "-o", "json"))["job"][
        "job_id"
    ] == job_id(0x1A)


def test_retry__one_effect__starts_again_from_its_first_attempt(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    effect = park_one(ledger)
    assert [
        row["effect"]
        for row in said(run("effect", "list", "--state", "parked", "-o", "json"))
    ] == [effect.id]
    assert [
        row["id"]
        for row in said(
            run("job", "retry", "--effect", str(effect.id), "--yes", "-o", "json")
        )
    ] == [effect.id]
    assert [
        again.attempts for again in ledger.effects.lease([EffectKind.POLL_SLURM])
    ] == [1]
    assert said(run("effect", "list", "--state", "parked", "-o", "json")) == []
    assert (
        f"{operator()} gives the command job retry"
        in run("job", "show", job_id(1)).stdout
    )


def test_retry__of_a_job_or_all__retries_what_is_parked(
    run: Run, ledger: Ledger
) -> None:
    for number in (1, 2, 3):
        bring_to_queued(ledger, number)
    for _ in range(3):
        with ledger.engine.begin() as connection:
            connection.execute(
                text(
                    "UPDATE effects SET due_at = now() - interval '1 s' WHERE done_at IS NULL"
                )
            )
        effect = ledger.effects.lease([EffectKind.POLL_SLURM], most=1)[0]
        park(ledger, effect, "no")
    assert [
        row["subject"]
        for row in said(run("job", "retry", job_id(2), "--yes", "-o", "json"))
    ] == [job_id(2)]
    assert (
        f"{operator()} gives the command job retry"
        in run("job", "show", job_id(2)).stdout
    )
    assert len(said(run("job", "retry", "--all", "--yes", "-o", "json"))) == 2
    assert (
        "found nothing parked"
        in run("job", "retry", job_id(2), "--yes", status=1).stderr
    )
    assert "found 0 of JOB" in run("job", "retry", status=2).stderr


def test_cancel__in_slurm__slurm_ends_it_and_its_minutes_are_billed(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    ledger.record(JobChange(job_id(1), SlurmRunningObserved()))
    run("job", "cancel", "slurm:101", "--reason", "the node is taken out", "--yes")
    assert "cancel" in open_kinds(ledger, 1)
    assert (
        "cancelled already"
        in run("job", "cancel", job_id(1), "--reason", "x", "--yes", status=1).stderr
    )
    ledger.record(
        JobChange(
            job_id(1),
            SlurmCompleted(Outcome(status=ChainStatus.CANCELLED, elapsed_s=125)),
        )
    )
    outcome = Outcome(
        status=ChainStatus.CANCELLED, elapsed_s=125, reason="the node is taken out"
    )
    assert (job_of(ledger, 1).state, job_of(ledger, 1).outcome) == (
        State.ENDED,
        outcome,
    )
    assert {"report", "notify_customer"} <= open_kinds(ledger, 1)
    assert (
        "expected CLAIMED"
        in run("job", "cancel", job_id(1), "--reason", "x", "--yes", status=1).stderr
    )
    told = run("job", "show", job_id(1)).stdout
    assert f"{operator()} gives the command job cancel" in told
    assert "cancels the job: the node is taken out" in told


def test_cancel__before_its_submission__ends_and_costs_nothing(
    run: Run, ledger: Ledger
) -> None:
    from supervisor_tasks.jobs.events import ScriptFetched, SubmitStarted

    ledger.record(JobChange(job_id(1), claim(1)))
    ledger.record(
        *(
            JobChange(job_id(2), event)
            for event in (claim(2), ScriptFetched("echo", ""), SubmitStarted(10))
        )
    )
    run("job", "cancel", job_id(1), "--reason", "broken site", "--yes")
    assert job_of(ledger, 1).outcome == Outcome(
        status=ChainStatus.CANCELLED, reason="broken site"
    )
    assert (
        "found SUBMITTING"
        in run("job", "cancel", job_id(2), "--reason", "x", "--yes", status=1).stderr
    )


def test_settle__parked_job__is_reported_and_cancelled_as_the_operator_says(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    park_one(ledger)
    run(
        "job",
        "settle",
        job_id(1),
        "--status",
        "failed",
        "--minutes",
        "7",
        "--reason",
        "node burnt down",
        "--yes",
    )
    job = job_of(ledger, 1)
    assert (job.state, job.settled_by_operator) == (State.ENDED, True)
    assert job.outcome == Outcome(
        status=ChainStatus.FAILED, elapsed_s=420, reason="node burnt down"
    )
    assert open_kinds(ledger, 1) == {"report", "cancel", "notify_customer"}
    story = said(run("job", "show", job_id(1), "-o", "json"))["timeline"]
    (word,) = [entry for entry in story if entry["what"] == "OperatorClosedJob"]
    assert word["details"]["outcome"]["reason"] == "node burnt down"
    ledger.record(JobChange(job_id(1), ChainStatusObserved(ChainStatus.FAILED, (9, 0))))
    assert open_kinds(ledger, 1) == {"cancel", "notify_customer"}


def test_settle__slurm_took_it_after_all__is_cancelled(
    run: Run, ledger: Ledger
) -> None:
    from supervisor_tasks.jobs.events import ScriptFetched, SubmitStarted

    events = (claim(1), ScriptFetched("echo", ""), SubmitStarted(10))
    ledger.record(*(JobChange(job_id(1), event) for event in events))
    run(
        "job",
        "settle",
        job_id(1),
        "--status",
        "CANCELLED",
        "--minutes",
        "0",
        "--reason",
        "stuck",
        "--yes",
    )
    ledger.record(JobChange(job_id(1), Submitted(SlurmId(9))))
    assert job_of(ledger, 1).slurm_id == 9
    assert "cancel" in open_kinds(ledger, 1)


def test_settle__not_confirmed__changes_nothing(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    before = job_of(ledger, 1)
    words = (
        "job",
        "settle",
        job_id(1),
        "--status",
        "FAILED",
        "--minutes",
        "0",
        "--reason",
        "x",
    )
    assert "--yes" in run(*words, status=4).stderr
    assert job_of(ledger, 1) == before
    run(*words, "--yes")
    assert job_of(ledger, 1).state is State.ENDED


def test_settle__panicked_with_minutes__is_refused_as_the_contract_bills_none(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    settle = ("job", "settle", job_id(1), "--reason", "x", "--yes", "--minutes")
    refused = run(*settle, "7", "--status", "panicked", status=2)
    assert "found 7 with PANICKED; expected 0" in refused.stderr
    assert job_of(ledger, 1).state is State.QUEUED
    run(*settle, "0", "--status", "PANICKED")
    assert job_of(ledger, 1).state is State.ENDED


def test_settle__absurd__is_refused(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    ledger.record(JobChange(job_id(2), claim(2)))
    settle = ("job", "settle", job_id(1), "--reason", "x", "--yes", "--status")
    assert (
        "expected at most 10"
        in run(*settle, "FINISHED", "--minutes", "11", status=1).stderr
    )
    run(*settle, "RUNNING", "--minutes", "1", status=2)
    run(*settle, "FINISHED", "--minutes", "-1", status=2)
    never = run(
        "job",
        "settle",
        job_id(2),
        "--reason",
        "x",
        "--yes",
        "--status",
        "FAILED",
        "--minutes",
        "1",
        status=1,
    )
    assert "without a known SLURM id" in never.stderr
    assert job_of(ledger, 1).state is State.QUEUED
    run(*settle, "FINISHED", "--minutes", "11", "--force")
    ledger.record(
        JobChange(job_id(1), ChainStatusObserved(ChainStatus.FINISHED, (9, 0)))
    )
    assert (
        "cannot be settled"
        in run(*settle, "FAILED", "--minutes", "0", "--force", status=1).stderr
    )


def open_report(ledger: Ledger, job: JobId, nonce: int = 4) -> str:
    """A transaction that reports the job's end, and is not mined; returns its
    number.
    """
    insert = (
        "INSERT INTO transactions (cluster, chain_id, address, nonce, purpose, job_id, idempotency_key, gas, max_fee_wei,"
        " priority_fee_wei, raw, hash, state)"
        " VALUES ('here', 1, '0x1', :nonce, 'report FINISHED', :job, :hash, 1, 1, 1, '\\x00', :hash, 'SENT') RETURNING id"
    )
    with ledger.engine.begin() as connection:
        row = {"job": job, "nonce": nonce, "hash": f"0xabc{nonce}"}
        return str(connection.scalar(text(insert), row))


def test_settle__report_under_way__is_refused(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    ended = Outcome(status=ChainStatus.FINISHED, elapsed_s=60)
    ledger.record(
        JobChange(job_id(1), SlurmRunningObserved()),
        JobChange(job_id(1), SlurmCompleted(ended)),
    )
    open_report(ledger, job_id(1))
    refused = run(
        "job",
        "settle",
        job_id(1),
        "--status",
        "FAILED",
        "--minutes",
        "0",
        "--reason",
        "x",
        "--yes",
        status=1,
    )
    assert "0xabc" in refused.stderr
    (transaction,) = said(run("tx", "list", "--open", "-o", "json"))
    assert (transaction["nonce"], transaction["purpose"]) == (4, "report FINISHED")
    assert said(run("status", "-o", "json"))["wallet"] == {
        "address": "0x1",
        "chain_id": 1,
        "next_nonce": 5,
    }


@pytest.fixture
def lists_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list has one row, so that the second row stands for number 1001."""
    monkeypatch.setattr(status_queries, "MAX_ROWS", 1)


@pytest.mark.usefixtures("lists_of_one")
def test_settle__report_that_a_full_list_leaves_out__is_refused(
    run: Run, ledger: Ledger
) -> None:
    """The report was looked for among the first 1000 open transactions, and the job was
    settled beside it.
    """
    bring_to_queued(ledger, 1)
    open_report(ledger, job_id(2), nonce=4)
    open_report(ledger, job_id(1), nonce=5)
    words = ("--status", "CANCELLED", "--minutes", "0", "--reason", "x", "--yes")
    refused = run("job", "settle", job_id(1), *words, status=1)
    assert "found the open transaction 0xabc5 (report FINISHED)" in refused.stderr
    assert job_of(ledger, 1).state is State.QUEUED


@pytest.mark.usefixtures("lists_of_one")
def test_abandon__effect_that_a_full_list_leaves_out__is_given_up(
    run: Run, ledger: Ledger
) -> None:
    parked = []
    for number in (1, 2):
        bring_to_queued(ledger, number)
        failed = Outcome(status=ChainStatus.FAILED, reason="exit code 1")
        ledger.record(JobChange(job_id(number), SlurmCompleted(failed)))
        parked.append(park_one(ledger, EffectKind.NOTIFY_CUSTOMER))
    words = ("effect", "abandon", str(parked[1].id), "--reason", "x", "--yes")
    assert run(*words).stdout == "abandoned\n"
    assert "found no parked effect" in run(*words, status=1).stderr


@pytest.mark.usefixtures("lists_of_one")
def test_resubmit__submission_that_a_full_list_leaves_out__is_made_again(
    run: Run, ledger: Ledger
) -> None:
    for number in (1, 2):
        events = (claim(number), ScriptFetched("echo", ""), SubmitStarted(10))
        ledger.record(*(JobChange(job_id(number), event) for event in events))
        park_one(ledger, EffectKind.SUBMIT)
    run("job", "resubmit", job_id(2), "--reason", "slurmctld.log", "--yes")
    states = (job_of(ledger, 1).state, job_of(ledger, 2).state)
    assert states == (State.SUBMITTING, State.READY)


@pytest.mark.usefixtures("lists_of_one")
def test_retry__more_effects_than_a_list_has__says_how_many(
    run: Run, ledger: Ledger
) -> None:
    for number in (1, 2):
        bring_to_queued(ledger, number)
        park_one(ledger)
    ledger.record(JobChange(job_id(3), claim(3)))
    park_one(ledger, EffectKind.FETCH)
    announced = run("job", "retry", "--all", "--yes", "-o", "json")
    assert "3 effects (fetch, poll_slurm) will be tried again" in announced.stderr
    assert len(said(announced)) == 3


def give_back(ledger: Ledger, number: int) -> None:
    """SLURM rejects the job, and the contract has it pending again."""
    before = (claim(number), ScriptFetched("echo", ""), SubmitStarted(10))
    rejected = SubmitRejected("no such partition")
    pending = ChainStatusObserved(ChainStatus.PENDING, (9, number))
    for event in (*before, rejected, pending):
        ledger.record(JobChange(job_id(number), event))
    assert job_of(ledger, number).chain_status is ChainStatus.PENDING


@pytest.mark.parametrize(
    ("words", "announced"),
    [
        ("claims pause", "2 jobs under way will go on"),
        ("sweep run --wait-s 0", "2 open jobs will be compared"),
        ("benchmark run", "2 open jobs"),
        ("cluster release-wallet", "2 jobs of 'here' not settled"),
    ],
)
def test_change__jobs_were_given_back__counts_those_that_are_not_over(
    run: Run, ledger: Ledger, words: str, announced: str
) -> None:
    bring_to_queued(ledger, 1)
    refused = (claim(2), ScriptFetched("echo", ""), SubmitStarted(10))
    ledger.record(*(JobChange(job_id(2), event) for event in refused))
    ledger.record(JobChange(job_id(2), SubmitRejected("no such partition")))
    for number in (3, 4, 5):
        give_back(ledger, number)
    ledger.wallets.hold(1, "0x" + "a" * 40, shared=False)
    left_by_a_fleet(ledger, seconds_ago=120)
    assert announced in run(*words.split(), status=4).stderr
    assert said(run("status", "-o", "json"))["jobs"] == {"QUEUED": 1, "REFUSED": 1}
    (cluster,) = said(run("cluster", "list", "-o", "json"))
    assert cluster["open_jobs"] == 2


@pytest.mark.usefixtures("lists_of_one")
def test_job_list__jobs_were_given_back__has_room_for_those_that_are_not_over(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    give_back(ledger, 2)
    assert run("job", "list", "-o", "name").stdout.split() == [job_id(1)]
    of_state = run("job", "list", "--state", "refused", "-o", "name").stdout
    assert of_state.split() == [job_id(2)]
    overview = Overview(ledger.engine, "here")
    assert [row["state"] for row in overview.by_state()] == ["QUEUED"]
    assert [row["job_id"] for row in overview.lately_over(5)] == [job_id(2)]
    assert overview.named(f"customer:{claim(1).customer}") == [job_id(1)]


@pytest.mark.usefixtures("lists_of_one")
def test_tx_cancel__more_open_ones_than_a_list_has__says_how_many_wait(
    run: Run, ledger: Ledger
) -> None:
    first, *_ = [open_report(ledger, job_id(nonce), nonce) for nonce in (4, 5, 6)]
    announced = run("tx", "cancel", first, "--yes").stderr
    assert "2 later ones wait behind it" in announced


def test_not_in_slurm__parked_submission__is_made_again(
    run: Run, ledger: Ledger
) -> None:
    from supervisor_tasks.jobs.events import ScriptFetched, SubmitStarted

    ledger.record(
        *(
            JobChange(job_id(1), event)
            for event in (claim(1), ScriptFetched("echo", ""), SubmitStarted(10))
        )
    )
    words = ("job", "resubmit", job_id(1), "--reason", "slurmctld.log")
    assert "0 parked submissions" in run(*words, "--yes", status=1).stderr
    park_one(ledger, EffectKind.SUBMIT, "its log was written")
    run(*words, status=4)
    assert job_of(ledger, 1).state is State.SUBMITTING
    run(*words, "--yes")
    assert job_of(ledger, 1).state is State.READY
    assert open_kinds(ledger, 1) == {"submit"}
    assert "expected SUBMITTING" in run(*words, "--yes", status=1).stderr


def ends_meanwhile(ledger: Ledger) -> None:
    observed = ChainStatusObserved(ChainStatus.CANCELLED, (9, 0))
    ledger.record(JobChange(job_id(1), observed))


def is_submitted_meanwhile(ledger: Ledger) -> None:
    ledger.record(JobChange(job_id(1), SubmitStarted(10)))


def is_tried_and_parked_meanwhile(ledger: Ledger) -> None:
    (effect,) = ledger.effects.retry()
    park_one(ledger, EffectKind.SUBMIT, "SLURM may have it")
    assert effect.kind is EffectKind.SUBMIT


@pytest.mark.parametrize(
    ("begun", "words", "meanwhile", "refusal"),
    [
        ([], ["cancel"], is_submitted_meanwhile, "found SUBMITTING; expected CLAIMED"),
        (
            [],
            ["settle", "--status", "FAILED", "--minutes", "0"],
            ends_meanwhile,
            "found SETTLED, CANCELLED on chain",
        ),
        (
            [SubmitStarted(10)],
            ["resubmit"],
            is_tried_and_parked_meanwhile,
            "tried again meanwhile",
        ),
    ],
    ids=["cancel", "settle", "resubmit"],
)
def test_job__changes_while_the_command_asks__is_left_as_it_is(
    ledger: Ledger,
    run: Run,
    migrated_ledger: tuple[Engine, dict[str, str]],
    begun: list[SubmitStarted],
    words: list[str],
    meanwhile: Callable[[Ledger], None],
    refusal: str,
) -> None:
    """A decision that came too late was logged as done, and nothing followed."""
    events: list[Event] = [claim(1), ScriptFetched("echo", ""), *begun]
    ledger.record(*(JobChange(job_id(1), event) for event in events))
    if begun:
        park_one(ledger, EffectKind.SUBMIT, "SLURM may have it")
    verb, *more = words
    with in_terminal(
        ("job", verb, job_id(1), *more, "--reason", "x"), migrated_ledger[1]
    ) as screen:
        screen.wait_for("Go on? [y/N]")
        meanwhile(ledger)
        before = job_of(ledger, 1)
        screen.press("y\n", refusal)
        assert screen.process.wait(deadline(30)) == 1
    assert job_of(ledger, 1) == before
    (entry,) = said(run("log", "--command", f"job {verb}", "-o", "json"))
    assert refusal in entry["outcome"]


def test_abandon__parked_effect__is_given_up_only_if_its_job_does_not_need_it(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    needed = park_one(ledger)
    refused = run(
        "effect", "abandon", str(needed.id), "--reason", "x", "--yes", status=1
    )
    assert "stands still" in refused.stderr
    ledger.record(
        JobChange(
            job_id(1),
            SlurmCompleted(Outcome(status=ChainStatus.FAILED, reason="exit code 1")),
        )
    )
    tell = park_one(ledger, EffectKind.NOTIFY_CUSTOMER)
    run("effect", "abandon", str(tell.id), "--reason", "logger is gone", "--yes")
    assert open_kinds(ledger, 1) == {"report"}
    assert said(run("effect", "list", "--state", "parked", "-o", "json")) == []
    whats = [
        entry["what"]
        for entry in said(run("job", "show", job_id(1), "-o", "json"))["timeline"]
    ]
    assert "OperatorAbandonedEffect" in whats


def test_abandon__what_the_next_sweep_would_ask_for_again__is_refused(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    ledger.record(
        JobChange(job_id(1), ChainStatusObserved(ChainStatus.CANCELLED, (9, 0)))
    )
    cancel = park_one(ledger, EffectKind.CANCEL)
    refused = run(
        "effect", "abandon", str(cancel.id), "--reason", "x", "--yes", status=1
    )
    assert "SETTLED; expected QUEUED or RUNNING" in refused.stderr
    assert [
        row["kind"]
        for row in said(run("effect", "list", "--state", "parked", "-o", "json"))
    ] == ["cancel"]


def test_abandon__cancellation_of_what_slurm_may_not_have__is_done(
    run: Run, ledger: Ledger
) -> None:
    from supervisor_tasks.jobs.events import ScriptFetched, SubmitStarted

    ledger.record(
        *(
            JobChange(job_id(1), event)
            for event in (claim(1), ScriptFetched("echo", ""), SubmitStarted(10))
        )
    )
    ledger.record(
        JobChange(job_id(1), ChainStatusObserved(ChainStatus.CANCELLED, (9, 0)))
    )
    cancel = park_one(ledger, EffectKind.CANCEL)
    run("effect", "abandon", str(cancel.id), "--reason", "x", "--yes")
    assert said(run("effect", "list", "--state", "parked", "-o", "json")) == []


@pytest.mark.parametrize("parked_again", [False, True])
def test_abandon__customer_cancels_while_it_asks__cancellation_stays(
    run: Run,
    ledger: Ledger,
    migrated_ledger: tuple[Engine, dict[str, str]],
    parked_again: bool,
) -> None:
    bring_to_queued(ledger, 1)
    ledger.record(JobChange(job_id(1), OperatorCancelled("the node goes")))
    cancel = park_one(ledger, EffectKind.CANCEL)
    words = ("effect", "abandon", str(cancel.id), "--reason", "x")
    with in_terminal(words, migrated_ledger[1]) as screen:
        screen.wait_for("Go on? [y/N]")
        ledger.record(JobChange(job_id(1), CancelRequested((9, 0))))
        if parked_again:
            park_one(ledger, EffectKind.CANCEL)
        screen.press("y\n", "changed meanwhile", "supervisor effect list")
        assert screen.process.wait(deadline(30)) == 1
    assert job_of(ledger, 1).cancel_requested
    left = said(run("effect", "list", "--kind", "cancel", "-o", "json"))
    assert [row["effect"] for row in left] == [cancel.id]
    story = said(run("job", "show", job_id(1), "-o", "json"))["timeline"]
    assert "OperatorAbandonedEffect" not in [entry["what"] for entry in story]
    (entry,) = said(run("log", "--command", "effect abandon", "-o", "json"))
    assert "changed meanwhile" in entry["outcome"]


def test_health__periodic_runs__name_the_task_without_progress(
    run: Run, ledger: Ledger
) -> None:
    assert "nothing periodic comes to an end" in run("health", status=1).stdout
    record_all_runs(ledger)
    assert run("health").stdout == "healthy\n"
    with ledger.engine.begin() as connection:
        query = "UPDATE periodic_runs SET succeeded_at = now() - interval '1 h' WHERE name LIKE 'claim%'"
        connection.execute(text(query))
    (complaint,) = said(run("health", "--json", status=1))["problems"]
    # the command takes its time
    assert re.search(r"claim: last ended 36\d\d s ago", complaint)
    assert "queue chain" in complaint


def test_health__an_effect_that_no_worker_takes__is_shown(
    run: Run, ledger: Ledger
) -> None:
    record_all_runs(ledger)
    ledger.record(JobChange(job_id(1), claim(1)))
    run("health")
    with ledger.engine.begin() as connection:
        connection.execute(text("UPDATE effects SET due_at = now() - interval '5 min'"))
    # the command takes its time
    assert re.search(r"has been due for 3\d\d s", run("health", status=1).stdout)


def test_health__as_a_process__imports_nothing_that_takes_long(
    migrated_ledger: tuple[Engine, dict[str, str]], ledger: Ledger
) -> None:
    """Each of these takes longer to import than the question takes."""
    record_all_runs(ledger)
    code = (
        "import sys\nfrom supervisor_tasks.cli import main\n"
        "try:\n    main(['health'])\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=migrated_ledger[1],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "healthy\n")
    assert not {
        "sqlalchemy",
        "pydantic",
        "celery",
        "structlog",
        "web3",
        "typer",
        "rich",
    } & set(done.stderr.split())


@pytest.mark.quiet_machine
def test_health__from_its_start_to_its_end__takes_half_a_second(
    migrated_ledger: tuple[Engine, dict[str, str]], ledger: Ledger
) -> None:
    record_all_runs(ledger)
    taken_s = []
    for _ in range(HEALTHS):
        begun_s = time.monotonic()
        argv = [sys.executable, "-m", "supervisor_tasks.cli", "health"]
        done = subprocess.run(
            argv,
            cwd=REPOSITORY,
            env=os.environ | migrated_ledger[1],
            capture_output=True,
            text=True,
        )
        taken_s.append(time.monotonic() - begun_s)
        assert (done.returncode, done.stdout) == (0, "healthy\n")
    assert statistics.median(taken_s) < HEALTH_S * slowness()


def test_health_and_reporter__their_defaults__are_those_of_the_settings() -> None:
    defaults = (
        Settings.model_fields["cluster_name"].default,
        Settings.model_fields["chain_poll_s"].default,
    )
    assert defaults == (health_command.CLUSTER_NAME, health_command.CHAIN_POLL_S)
    assert reporter.CLUSTER_NAME == health_command.CLUSTER_NAME


def test_health__url_in_a_file__is_read(
    migrated_ledger: tuple[Engine, dict[str, str]], ledger: Ledger, tmp_path: Path
) -> None:
    record_all_runs(ledger)
    (tmp_path / "url").write_text(migrated_ledger[1]["DATABASE_URL"] + "\n")
    environment = {
        "CLUSTER_NAME": "here",
        "DATABASE_URL": None,
        "DATABASE_URL_FILE": str(tmp_path / "url"),
    }
    assert supervisor("health", env=environment).stdout == "healthy\n"
    environment["DATABASE_URL_FILE"] = str(tmp_path / "none")
    assert (
        "DATABASE_URL_FILE: expected a file"
        in supervisor("health", env=environment).stderr
    )


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


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("status",), 3),
        (("health",), 1),
        (("db", "upgrade", "--wait-s", "1.5"), 3),
        (("db", "wait", "--wait-s", "1.5"), 1),
    ],
)
def test_database__refuses_the_login__is_told_with_what_mends_it(
    migrated_ledger: tuple[Engine, dict[str, str]], words: tuple[str, ...], status: int
) -> None:
    url = make_url(migrated_ledger[1]["DATABASE_URL"]).set(username="stranger")
    refused = {"DATABASE_URL": url.render_as_string(hide_password=False)}
    result = supervisor(*words, env=refused | {"CLUSTER_NAME": "here"})
    assert result.exit_code == status
    assert 'role "stranger" does not exist' in result.stderr
    assert result.stderr.endswith(
        ": correct DATABASE_URL, or the user and the password in Postgres\n"
    )
    waits = words[0] == "db"
    assert result.stderr.count("waiting: the ledger's database:") == int(waits)


def test_database__does_not_answer__is_told_in_a_line() -> None:
    gone = {
        "DATABASE_URL": "postgresql://user:sesame-open@127.0.0.1:1/none",
        "CLUSTER_NAME": "here",
    }
    where = "here@127.0.0.1:1/none\n"
    cases = {
        ("status",): (3, where),
        ("effect", "list", "-o", "json"): (3, where),
        ("health",): (1, where),
    }
    for words, (status, told_first) in cases.items():
        result = supervisor(*words, env=gone)
        assert result.exit_code == status
        assert result.stderr.startswith(f"{told_first}Error: the ledger's database:")
        assert "try again" in result.stderr
        assert "sesame" not in result.output


def test_database__without_tables_or_rights__says_which(
    migrated_ledger: tuple[Engine, dict[str, str]], ledger: Ledger
) -> None:
    _, environment = migrated_ledger
    with ledger.engine.connect().execution_options(
        isolation_level="AUTOCOMMIT"
    ) as connection:
        for statement in (
            "DROP DATABASE IF EXISTS bare",
            "CREATE DATABASE bare",
            "DROP ROLE IF EXISTS stranger",
        ):
            connection.execute(text(statement))
        connection.execute(text("CREATE ROLE stranger LOGIN"))
    url = environment["DATABASE_URL"]
    bare_url = make_url(url).set(database="bare").render_as_string(hide_password=False)
    bare = supervisor("job", "list", env=environment | {"DATABASE_URL": bare_url})
    stranger = supervisor(
        "job",
        "list",
        env=environment | {"DATABASE_URL": url.replace("//postgres@", "//stranger@")},
    )
    assert (bare.exit_code, stranger.exit_code) == (1, 1)
    assert bare.stderr.partition("\n")[2] == (
        'Error: found other tables than expected (relation "jobs" does not exist): `supervisor db upgrade` first\n'
    )
    assert (
        stranger.stderr.partition("\n")[2]
        == "Error: the ledger's database: permission denied for table periodic_runs\n"
    )


def test_help__without_any_setting__is_shown() -> None:
    assert "--effect" in supervisor("job", "retry", "--help", env={}).output


def test_metrics__as_a_process__answer_a_scrape(
    run: Run, ledger: Ledger, migrated_ledger: tuple[Engine, dict[str, str]]
) -> None:
    bring_to_queued(ledger, 1)
    park_one(ledger)
    raise_alarm_of_another_release(ledger.engine)
    record_all_runs(ledger)
    Registrations(ledger.facts).store_status(RegistrationStatus.WAITING)
    begun = ledger.reconciliations.begin("unreachable")
    ledger.reconciliations.store(
        begun, {"unreachable_since_s": {"slurm": begun.at.timestamp() - 90}}, {}
    )
    _, environment = migrated_ledger
    argv = [
        sys.executable,
        "-m",
        "supervisor_tasks.cli",
        "metrics",
        "--listen",
        "127.0.0.1:0",
    ]
    with subprocess.Popen(
        argv, cwd=REPOSITORY, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            url = next(
                said["url"]
                for said in map(json.loads, process.stderr)
                if said["event"] == "metrics_served"
            )
            with urllib.request.urlopen(url, timeout=deadline(30)) as answer:  # noqa: S310
                lines = answer.read().decode().splitlines()
        finally:
            process.terminate()
    for line in (
        'supervisor_ledger_up{cluster="here"} 1.0',
        'supervisor_healthy{cluster="here"} 1.0',
        'supervisor_claims_paused{cluster="here"} 0.0',
        'supervisor_registration_status{cluster="here",status="waiting"} 1.0',
        'supervisor_registration_status{cluster="here",status="approved"} 0.0',
        'supervisor_jobs{cluster="here",state="QUEUED"} 1.0',
        'supervisor_jobs{cluster="here",state="RUNNING"} 0.0',
        'supervisor_jobs_claimed_total{cluster="here"} 1.0',
        'supervisor_effects{cluster="here",kind="poll_slurm",state="parked"} 1.0',
        'supervisor_alarm{alarm="effect_parked",cluster="here"} 1.0',
        'supervisor_alarm{alarm="slurm_not_answering",cluster="here"} 0.0',
        f'supervisor_alarm{{alarm="{OF_ANOTHER_RELEASE}",cluster="here"}} 1.0',
    ):
        assert line in lines
    unseen = next(
        line
        for line in lines
        if line.startswith("supervisor_sweep_unseen_timestamp_seconds{")
    )
    assert float(unseen.split()[-1]) == pytest.approx(begun.at.timestamp() - 90)
    assert any(
        line.startswith("supervisor_build_info{") and 'process="metrics"' in line
        for line in lines
    )


def test_job_list_and_show__job_of_another_cluster__is_not_seen(
    run: Run, ledger: Ledger
) -> None:
    other = Ledger(ledger.engine, "there", lambda _: None)
    other.record(JobChange(JobId(job_id(5)), claim(5)))
    assert said(run("job", "list", "-o", "json")) == []
    assert "found no job" in run("job", "show", job_id(5), status=1).stderr


def test_sweep__asked_for__shows_the_report(run: Run, ledger: Ledger) -> None:
    reconciliations, facts = (
        Reconciliations(ledger.engine, "here"),
        Facts(ledger.engine, "here"),
    )
    assert (
        "expected one" in run("sweep", "run", "--yes", "--wait-s", "0", status=1).stderr
    )
    with ThreadPoolExecutor(1) as pool:

        def sweep_when_asked() -> None:
            wait_until(
                lambda: facts.get(SWEEP_REQUESTED) is not None,
                "the command to request it",
                60.0,
            )
            reconciliations.store(
                reconciliations.begin(""), {"lost_completions": 3, "why": HOSTILE}, {}
            )

        facts.clear(SWEEP_REQUESTED)  # what the first command asked for
        swept = pool.submit(sweep_when_asked)
        report = said(run("sweep", "run", "--yes", "-o", "json"))["report"]
        swept.result()
    assert report["lost_completions"] == 3
    assert len(said(run("sweep", "list", "-o", "json"))) == 1
    assert "\\x1b[2J" in run("sweep", "show").stdout
    assert "ended" in run("status").stdout


def test_sweep_run__a_sweep_had_begun_before__waits_for_the_next_one(
    run: Run, ledger: Ledger
) -> None:
    """The command showed the report of a sweep that had not seen what it asked for."""
    reconciliations, facts = ledger.reconciliations, ledger.facts

    def sweep(begun: Begun | None) -> None:
        wait_until(
            lambda: facts.get(SWEEP_REQUESTED) is not None,
            "the command to request it",
            60.0,
        )
        reconciliations.store(begun or reconciliations.begin(""), {}, {})

    with ThreadPoolExecutor(1) as pool:
        early = reconciliations.begin("beat")
        kept = pool.submit(sweep, early)
        words = ("sweep", "run", "--yes", "-o", "json")
        unseen = run(*words, "--wait-s", "2", status=1)
        kept.result()
        assert "found no report of a sweep that began after" in unseen.stderr
        assert len(reconciliations.last(2)) == 1
        facts.clear(SWEEP_REQUESTED)
        kept = pool.submit(sweep, None)
        shown = said(run(*words))
        kept.result()
    assert shown["id"] == reconciliations.last()[0].id
    assert len(reconciliations.last(3)) == 2


def test_disable_reporter__known_reporter__its_heartbeat_is_no_longer_awaited(
    run: Run, ledger: Ledger
) -> None:
    with ledger.engine.begin() as connection:
        record_heartbeats(connection.exec_driver_sql, "here", [CALLBACKS, REPORTER])
        connection.execute(
            text(
                "UPDATE periodic_runs SET succeeded_at = now() - interval '1 h' WHERE name LIKE 'reporter%'"
            )
        )
    assert set(missing_sources(ledger.periodic_runs.ages_s())) == {REPORTER}
    run("reporter", "disable", status=4)
    run("reporter", "disable", "--yes")
    assert missing_sources(ledger.periodic_runs.ages_s()) == {}


def test_confirm_lost__a_job_that_needs_a_decision__is_panicked_and_no_other(
    run: Run, ledger: Ledger
) -> None:
    assert (
        "expected one that needs your decision"
        in run("job", "mark-lost", "--yes", status=1).stderr
    )
    lost, other = bring_to_queued(ledger, 1), bring_to_queued(ledger, 2)
    ledger.reconciliations.store(
        ledger.reconciliations.begin(""),
        {"needs_operator": {lost: 101, other: 102}, "again_s": 900.0},
        {},
    )
    run("job", "mark-lost", lost, status=4)
    assert job_of(ledger, 1).state is State.QUEUED
    assert lost in run("job", "mark-lost", lost, "--yes").stdout
    assert (
        f"{operator()} gives the command job mark-lost"
        in run("job", "show", lost).stdout
    )
    assert (job_of(ledger, 1).outcome.status, job_of(ledger, 2).state) == (
        ChainStatus.PANICKED,
        State.QUEUED,
    )
    run("job", "mark-lost", lost, "--yes", status=1)


def test_rewind__to_a_block_that_is_kept__is_a_fact_and_to_any_other_refused(
    run: Run, ledger: Ledger
) -> None:
    assert (
        "none is kept yet"
        in run("chain", "rewind", "--to-block", "0", "--yes", status=1).stderr
    )
    with ledger.engine.begin() as connection:
        Blocks(ledger.engine, ledger.cluster, 0).store(
            connection, {70: "0x70", 71: "0x71"}
        )
    assert (
        "70 is the first that is kept"
        in run("chain", "rewind", "--to-block", "69", "--yes", status=1).stderr
    )
    assert (
        "71 the last"
        in run("chain", "rewind", "--to-block", "72", "--yes", status=1).stderr
    )
    assert ledger.facts.read(REWIND) is None
    run("chain", "rewind", "--to-block", "70", "--yes")
    asked = ledger.facts.read(REWIND)
    assert asked is not None
    assert asked.value == 70


def test_adopt__known_tag__its_jobs_become_ours_and_a_sweep_is_requested(
    run: Run, ledger: Ledger
) -> None:
    tag = b"\x0a" * 8
    ledger.foreign_claims.store(
        [ForeignClaim(tag, claim(1)), ForeignClaim(b"\x0b" * 8, claim(2))]
    )
    assert (
        "0a0a0a0a0a0a0a0a (1 jobs)"
        in run("job", "adopt", "00", "--yes", status=1).stderr
    )
    # the chain of these settings is nowhere
    refused = run("job", "adopt", tag.hex(), "--yes", status=1)
    assert "the chain cannot be looked at" in refused.stderr
    assert "expected no activity" in refused.stderr
    run("job", "adopt", tag.hex(), "--yes-it-is-dead", status=4)
    assert (
        ledger.foreign_claims.adopted_tags(),
        ledger.facts.get(SWEEP_REQUESTED),
    ) == (
        set(),
        None,
    )
    run("job", "adopt", f"0x{tag.hex().upper()}", "--yes", "--yes-it-is-dead")
    assert (
        ledger.foreign_claims.adopted_tags(),
        ledger.facts.get(SWEEP_REQUESTED) is not None,
    ) == ({tag}, True)
    run("job", "adopt", tag.hex(), "--yes", status=1)


def test_alarm_list__since_sort_and_limit__narrow_and_order_it(
    run: Run, ledger: Ledger
) -> None:
    def names(*words: str) -> list[str]:
        return run("alarm", "list", *words, "-o", "name").stdout.split()

    for name in (AlarmName.WALLET_EMPTY, AlarmName.CLAIMS_FULL):
        ledger.alarms.on(name)
    with ledger.engine.begin() as connection:
        older = "UPDATE alarms SET raised_at = now() - interval '2 hours' WHERE name = 'wallet_empty'"
        connection.execute(text(older))
    assert names() == names("--sort", "age") == ["wallet_empty", "claims_full"]
    assert names("--sort", "name") == ["claims_full", "wallet_empty"]
    assert names("--since", "1h") == ["claims_full"]
    assert names("--limit", "1") == ["wallet_empty"]


# --- which ledger, and who changed it -------------------------------------------------


TELL_THE_LEDGER = (
    ["status"],
    ["health"],
    ["doctor", "--within-s", "1"],
    ["log"],
    ["earnings"],
    ["config", "check", "beat"],
    ["db", "status"],
    ["job", "list", "-o", "json"],
    ["tx", "list"],
    ["effect", "list"],
    ["alarm", "list"],
    ["sweep", "list"],
    ["cluster", "list"],
    ["provider", "show"],
    ["benchmark", "history"],
    ["claims", "pause", "--yes"],
    ["submissions", "pause", "--yes"],
    ["sweep", "run", "--yes", "--wait-s", "0"],
)


def test_every_command__with_a_ledger__says_first_which_one_it_speaks_to(
    run: Run, ledger: Ledger, migrated_ledger: tuple[Engine, dict[str, str]]
) -> None:
    url = make_url(migrated_ledger[1]["DATABASE_URL"])
    for words in TELL_THE_LEDGER:
        done = supervisor(*words, env=migrated_ledger[1])
        assert (
            done.stderr.splitlines()[0] == f"here@{url.query['host']}/{url.database}"
        ), words


def test_commands__unknown_cluster__are_refused_with_those_that_are_known(
    ledger: Ledger, migrated_ledger: tuple[Engine, dict[str, str]]
) -> None:
    bring_to_queued(Ledger(ledger.engine, "there", lambda _: None), 1)
    mistyped = migrated_ledger[1] | {"CLUSTER_NAME": "her"}
    for words in (["status"], ["claims", "pause", "--yes"], ["job", "list"], ["log"]):
        refused = supervisor(*words, env=mistyped)
        assert refused.exit_code == 1
        assert (
            "found 'her'; expected a cluster that this ledger knows (here, there)"
            in refused.stderr
        )
    assert not Ledger(ledger.engine, "her", lambda _: None).switches.is_set(
        Switch.CLAIMING_PAUSED
    )
    asked = supervisor("health", env=mistyped)
    assert (asked.exit_code, asked.stdout) == (1, "")
    assert (
        "found 'her'; expected a cluster that this ledger knows (here, there)"
        in asked.stderr
    )
    listed = supervisor("cluster", "list", "-o", "name", env=mistyped)
    assert (listed.exit_code, listed.stdout.split()) == (0, ["here", "there"])


def test_commands__no_database_url__start_nothing_and_make_no_folder(
    tmp_path: Path,
) -> None:
    nowhere = {
        "DATABASE_URL": None,
        "DATABASE_URL_FILE": None,
        "STATE_DIR": str(tmp_path / "state"),
    }
    for words, status in (
        (["status"], 2),
        (["claims", "pause", "--yes"], 2),
        (["db", "upgrade"], 2),
        (["health"], 1),
    ):
        result = supervisor(*words, env=nowhere)
        assert (result.exit_code, "DATABASE_URL: found nothing" in result.stderr) == (
            status,
            True,
        )
    assert list(tmp_path.iterdir()) == []


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


def test_job__by_slurm_id_or_customer__is_found(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    for name in ("slurm:101", f"customer:0x{'2' * 40}", "customer:0x22", job_id(1)):
        assert run("job", "show", name, "-o", "name").stdout.split() == [job_id(1)]
    for name in (
        "slurm:102",
        "slurm:",
        "slurm:0x1",
        "customer:0x23",
        "witness:1",
        "slurm:99999999999999999999",
    ):
        assert "found no job" in run("job", "show", name, status=1).stderr
    bring_to_queued(ledger, 2)
    assert "found several jobs" in run("job", "show", "customer:0x22", status=1).stderr


def test_job_list__state_customer_since_sort_and_limit__narrow_and_order_it(
    run: Run, ledger: Ledger
) -> None:
    for number in (1, 2, 3):
        bring_to_queued(ledger, number)
    ledger.record(JobChange(job_id(4), claim(4)))
    with ledger.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE jobs SET created_at = now() - interval '3 h' WHERE slurm_id = 102"
            )
        )
        connection.execute(
            text("UPDATE jobs SET customer = '0x55' WHERE slurm_id = 103")
        )

    def listed(*words: str) -> list[str]:
        return run("job", "list", "-o", "name", *words).stdout.split()

    assert set(listed()) == {job_id(number) for number in (1, 2, 3, 4)}
    assert listed("--sort", "slurm")[:3] == [job_id(3), job_id(2), job_id(1)]
    assert set(listed("--since", "1h")) == {job_id(1), job_id(3), job_id(4)}
    assert listed("--customer", "0x55") == [job_id(3)]
    assert listed("--state", "CLAIMED", "--state", "settled") == [job_id(4)]
    assert len(listed("--limit", "2")) == 2
    assert (
        run("job", "list", "--customer", "0x99").stdout
        == "jobs that are not settled: none\n"
    )
    assert (
        run("job", "list", "--customer", "0x99", "--state", "settled").stdout
        == "jobs: none\n"
    )
    assert (
        "expected an address"
        in run("job", "list", "--customer", "0x%", status=2).stderr
    )


@pytest.mark.parametrize(
    "words",
    [
        ["alarm", "list"],
        ["alarm", "show", OF_ANOTHER_RELEASE],
        ["status"],
    ],
)
def test_command__alarm_of_another_release__says_that_it_is(
    words: list[str], run: Run, ledger: Ledger
) -> None:
    raise_alarm_of_another_release(ledger.engine)
    shown = " ".join(run(*words).stdout.split())
    assert OF_ANOTHER_RELEASE in shown
    assert "Another version of the supervisor" in shown
    assert OF_ANOTHER_RELEASE in run(*words, "-o", "json").stdout


def test_commands__effect_of_another_release__show_it_by_its_name(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    parked = park_one(ledger)
    with ledger.engine.begin() as connection:
        connection.execute(
            text("UPDATE effects SET kind = 'other_kind' WHERE id = :id"),
            {"id": parked.id},
        )
    assert "other_kind is parked and waits for you" in " ".join(
        run("job", "show", parked.subject).stdout.split()
    )
    refused = run(
        "effect", "abandon", str(parked.id), "--reason", "x", "--yes", status=1
    )
    assert "found an effect of the kind other_kind, which another release" in " ".join(
        refused.stderr.split()
    )


def test_commands__alarm_of_another_release__work(run: Run, ledger: Ledger) -> None:
    raise_alarm_of_another_release(ledger.engine)
    assert OF_ANOTHER_RELEASE in run("alarm", "list", "--sort", "name").stdout
    assert OF_ANOTHER_RELEASE in run("cluster", "show").stdout
    silence = ("--for", "2h", "--reason", "known", "--yes")
    run("alarm", "silence", OF_ANOTHER_RELEASE, *silence)
    assert set(ledger.incidents.silences()) == {OF_ANOTHER_RELEASE}
    with ledger.engine.begin() as connection:
        connection.execute(text("DELETE FROM alarms"))
    run("alarm", "unsilence", OF_ANOTHER_RELEASE, "--yes")
    assert not ledger.incidents.silences()
    run("alarm", "silence", OF_ANOTHER_RELEASE, *silence, status=2)


def test_resume__paused_by_operator_or_by_fleet__only_the_operators_pause_ends(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    assert (
        "1 job in SLURM will go on"
        in run("submissions", "pause", "--reason", "upgrade", "--yes").stderr
    )
    assert ledger.switches.reason(Switch.SUBMISSIONS_PAUSED) == "upgrade"
    run("submissions", "resume", "--yes")
    assert not ledger.switches.is_set(Switch.SUBMISSIONS_PAUSED)
    ledger.switches.set(Switch.SUBMISSIONS_PAUSED, f"{STATE_LOST} 2 jobs")
    ledger.alarms.on(AlarmName.SLURM_STATE_LOST)
    assert "cluster accept" in run("submissions", "resume", "--yes", status=1).stderr
    run("cluster", "accept", "--yes")
    assert not ledger.switches.is_set(Switch.SUBMISSIONS_PAUSED)


def test_accept__operator_has_paused_submissions__leaves_that_pause(
    run: Run, ledger: Ledger
) -> None:
    run("submissions", "pause", "--reason", "upgrade", "--yes")
    assert "submissions resume" in run("cluster", "accept", "--yes", status=1).stderr
    assert ledger.switches.reason(Switch.SUBMISSIONS_PAUSED) == "upgrade"
    ledger.alarms.on(AlarmName.SLURM_STATE_LOST)  # SLURM loses its state meanwhile
    run("cluster", "accept", "--yes")
    assert AlarmName.SLURM_STATE_LOST not in {
        alarm.name for alarm in ledger.alarms.all()
    }
    assert ledger.switches.reason(Switch.SUBMISSIONS_PAUSED) == "upgrade"


def sees_another(cluster: str) -> Callable[[Ledger], None]:
    def see(ledger: Ledger) -> None:
        ledger.facts.set(UNEXPECTED_CLUSTER, cluster)

    return see


def sees_the_right_one_again(ledger: Ledger) -> None:
    ledger.facts.clear(UNEXPECTED_CLUSTER)


def loses_its_state(ledger: Ledger) -> None:
    ledger.alarms.on(AlarmName.SLURM_STATE_LOST)


def knows_its_jobs_again(ledger: Ledger) -> None:
    ledger.alarms.off(AlarmName.SLURM_STATE_LOST)


@pytest.mark.parametrize(
    ("before", "meanwhile", "refusal"),
    [
        (
            sees_another("bern 2"),
            sees_another("zug 3"),
            "found zug 3; expected bern 2, which the command has shown",
        ),
        (
            sees_another("bern 2"),
            sees_the_right_one_again,
            "found no other SLURM, and none that has lost its state",
        ),
        (
            loses_its_state,
            sees_another("zug 3"),
            "found zug 3; expected no other SLURM, which the command has shown",
        ),
        (
            loses_its_state,
            knows_its_jobs_again,
            "found no other SLURM, and none that has lost its state",
        ),
    ],
    ids=["another", "the right one", "another after a loss", "no loss"],
)
def test_accept__slurm_is_another_while_the_command_asks__is_refused(
    ledger: Ledger,
    migrated_ledger: tuple[Engine, dict[str, str]],
    before: Callable[[Ledger], None],
    meanwhile: Callable[[Ledger], None],
    refusal: str,
) -> None:
    """The command accepted what a worker had found meanwhile, and had shown another."""
    ledger.facts.set(SLURM_CLUSTER, "geneva 1")
    before(ledger)
    with in_terminal(("cluster", "accept"), migrated_ledger[1]) as screen:
        screen.wait_for("Go on? [y/N]")
        meanwhile(ledger)
        seen = ledger.facts.get(UNEXPECTED_CLUSTER)
        screen.press("y\n", refusal)
        assert screen.process.wait(deadline(30)) == 1
    assert ledger.facts.get(SLURM_CLUSTER) == "geneva 1"
    assert ledger.facts.get(UNEXPECTED_CLUSTER) == seen
    assert ledger.facts.get(SLURM_ACCEPTED) is None


def test_accept__slurm_is_as_shown__becomes_the_expected_one(
    run: Run, ledger: Ledger
) -> None:
    ledger.facts.set(SLURM_CLUSTER, "geneva 1")
    ledger.facts.set(UNEXPECTED_CLUSTER, "bern 2")
    ledger.alarms.on(AlarmName.SLURM_CLUSTER_MISMATCH)
    run("cluster", "accept", "--yes")
    assert ledger.facts.get(SLURM_CLUSTER) == "bern 2"
    assert ledger.facts.get(UNEXPECTED_CLUSTER) is None
    assert ledger.facts.get(SLURM_ACCEPTED) is not None
    assert ledger.alarms.all() == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("log --since 999999d", "expected an age of 36500d at most"),
        ("job list --since 999999w", "expected an age of 36500d at most"),
        (f"job retry --effect {2**63} --yes", "should be less than or equal to"),
        (f"benchmark show --run {2**63}", "should be less than or equal to"),
        (f"effect abandon {2**63} --reason x --yes", "should be less than or equal to"),
        (f"earnings --limit {2**63}", "should be less than or equal to"),
        (
            f"job settle {job_id(1)} --minutes {10**18}",
            "should be less than or equal to",
        ),
        (
            f"job settle {job_id(1)} --exit-status {2**63}",
            "should be less than or equal to",
        ),
    ],
)
def test_command__number_that_is_too_large__is_wrong_usage(
    run: Run, ledger: Ledger, words: str, told: str
) -> None:
    """Each of them ended in a traceback."""
    bring_to_queued(ledger, 1)
    rest = []
    if "settle" in words:
        rest = ["--status", "FAILED", "--reason", "x", "--yes", "--force"]
    if "exit-status" in words:
        rest += ["--minutes", "1"]
    assert told in " ".join(run(*words.split(), *rest, status=2).stderr.split())
    assert job_of(ledger, 1).state is State.QUEUED


def test_list__largest_age__shows_all(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    run("claims", "pause", "--yes")
    for words in (["log"], ["job", "list"]):
        shown = run(*words, "--since", "36500d", "-o", "name").stdout
        assert len(shown.split()) == 1


def test_database_error__value_that_postgres_refuses__is_wrong_usage(
    ledger: Ledger,
) -> None:
    with pytest.raises(DataError) as refused, ledger.engine.connect() as connection:
        connection.execute(text("SELECT CAST(:n AS bigint)"), {"n": 2**63})
    assert database_error(refused.value) == (
        "found a value that the ledger's database cannot hold (bigint out of range); expected a smaller one"
    )
    assert status_of(refused.value) is ExitCode.USAGE


def test_tx_show__by_number_or_hash__has_all_signatures(
    run: Run, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ledger.engine.begin() as connection:
        row = connection.scalar(
            text(
                "INSERT INTO transactions (cluster, chain_id, address, nonce, purpose, idempotency_key, gas, max_fee_wei,"
                " priority_fee_wei, raw, hash, state) VALUES ('here', 1, '0x1', 4, 'claim', 'i', 1, 1, 1, '\\x00', '0xbeef',"
                " 'SENT') RETURNING id"
            )
        )
        for tx_hash in ("0xabcd", "0xbeef"):
            insert = (
                "INSERT INTO signatures (hash, transaction_id, raw, max_fee_wei, priority_fee_wei, head)"
                " VALUES (:hash, :row, '\\x00', 1, 1, 1)"
            )
            connection.execute(text(insert), {"hash": tx_hash, "row": row})
    for name in ("0xab", "0xbeef", str(row)):
        found = said(run("tx", "show", name, "-o", "json"))
        assert {one["hash"] for one in found["signatures"]} == {"0xabcd", "0xbeef"}
    assert "0xabcd" in run("tx", "show", "0xbe").stdout
    for name in ("0x", "0xcc", "nonsense", "9" * 30):
        assert "found no transaction" in run("tx", "show", name, status=1).stderr
    monkeypatch.setenv("EXPLORER_URL", "https://explorer.example.org/tx/{hash}")
    assert "https://explorer.example.org/tx/0xbeef" in run("tx", "show", "0xbe").stdout


def test_effect_list__kind_customer_since_sort_and_limit__narrow_and_order_it(
    run: Run, ledger: Ledger
) -> None:
    for number in (1, 2):
        bring_to_queued(ledger, number)
    ledger.record(JobChange(job_id(3), claim(3)))
    with ledger.engine.begin() as connection:
        connection.execute(
            text("UPDATE jobs SET customer = '0x55' WHERE slurm_id = 102")
        )
        connection.execute(
            text("UPDATE effects SET attempts = 7 WHERE job_id = :job"),
            {"job": job_id(1)},
        )
        connection.execute(
            text(
                "UPDATE effects SET created_at = now() - interval '3 h' WHERE job_id = :job"
            ),
            {"job": job_id(1)},
        )

    def listed(*words: str) -> list[str]:
        return [
            row["subject"] for row in said(run("effect", "list", "-o", "json", *words))
        ]

    assert set(listed()) == {job_id(1), job_id(2), job_id(3)}
    assert listed("--customer", "0x55") == [job_id(2)]
    assert set(listed("--since", "1h")) == {job_id(2), job_id(3)}
    assert listed("--sort", "tries")[0] == job_id(1)
    assert listed("--kind", "fetch", "--sort", "age") == [job_id(3)]
    assert len(listed("--limit", "2")) == 2


def test_tx_list__by_state_and_age__only_those(run: Run, ledger: Ledger) -> None:
    query = """
        INSERT INTO transactions (cluster, chain_id, address, nonce, purpose, idempotency_key, gas, max_fee_wei,
            priority_fee_wei, raw, hash, state, created_at)
        VALUES ('here', 1, '0x1', :n, 'claim', :key, 1, :fee, 1, '', :key, :state, now() - CAST(:age AS interval))"""
    rows = [(1, "MINED", "3 hours"), (2, "MINED", "1 minute"), (3, "SENT", "1 minute")]
    with ledger.engine.begin() as connection:
        for n, state, age in rows:
            values = {
                "n": n,
                "key": f"claim:{n}",
                "state": state,
                "age": age,
                "fee": 30 - n if n != 2 else 1,
            }
            connection.execute(text(query), values)
        bring_to_queued(ledger, 1)
        connection.execute(text("UPDATE jobs SET customer = '0x55'"))
        connection.execute(
            text("UPDATE transactions SET job_id = :job WHERE nonce = 2"),
            {"job": job_id(1)},
        )
    for words, nonces in (
        ((), [3, 2, 1]),
        (("--state", "mined"), [2, 1]),
        (("--since", "1h"), [3, 2]),
        (("--open", "--since", "1h"), [3]),
        (("--sort", "state"), [2, 1, 3]),
        (("--sort", "fee"), [1, 3, 2]),
        (("--customer", "0x55"), [2]),
        (("--limit", "1", "--sort", "nonce"), [3]),
    ):
        assert [
            row["nonce"] for row in said(run("tx", "list", *words, "-o", "json"))
        ] == nonces, words


def test_tx_bump_and_cancel__open_transaction__ask_the_worker_that_has_the_key(
    run: Run, ledger: Ledger
) -> None:
    with ledger.engine.begin() as connection:
        insert = (
            "INSERT INTO transactions (cluster, chain_id, address, nonce, purpose, idempotency_key, gas, max_fee_wei,"
            " priority_fee_wei, raw, hash, state) VALUES ('here', 1, '0x1', :nonce, 'claim', :hash, 1, 1, 1, '\\x00',"
            " :hash, :state) RETURNING id"
        )
        rows = [("SENT", 4), ("SIGNED", 5), ("MINED", 3)]
        sent, signed, mined = (
            connection.scalar(
                text(insert), {"nonce": nonce, "hash": f"0x{nonce}", "state": state}
            )
            for state, nonce in rows
        )
    assert (
        "a higher fee than 0.000000001 gwei per gas"
        in run("tx", "bump", str(sent), "--yes").stderr
    )
    assert (
        "1 later ones wait behind it" in run("tx", "cancel", str(sent), "--yes").stderr
    )
    run("tx", "bump", str(signed), "--yes")
    run("tx", "bump", str(signed), status=4)
    assert ledger.facts.get(TRANSACTION_REQUESTS) == {
        str(sent): "cancel",
        str(signed): "bump",
    }
    assert (
        "found MINED; expected SIGNED or SENT"
        in run("tx", "cancel", str(mined), "--yes", status=1).stderr
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
    engine = create_engine(other_database)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num text)"))
        if found is not None:
            connection.execute(
                text("INSERT INTO alembic_version VALUES (:found)"), {"found": found}
            )
    engine.dispose()
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


def test_list__watched__shows_what_has_changed_until_it_is_interrupted(
    ledger: Ledger, migrated_ledger: tuple[Engine, dict[str, str]]
) -> None:
    argv = [
        sys.executable,
        "-m",
        "supervisor_tasks.cli",
        "job",
        "list",
        "--watch",
        "0.2",
        "-o",
        "name",
    ]
    with subprocess.Popen(
        argv, cwd=REPOSITORY, env=migrated_ledger[1], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        bring_to_queued(ledger, 1)
        assert process.stdout.readline() == f"{job_id(1)}\n"
        assert process.stdout.readline() == f"{job_id(1)}\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(deadline(30)) == ExitCode.INTERRUPTED


def test_by_state__job_that_is_looked_at__is_as_old_as_its_first_event_there(
    ledger: Ledger,
) -> None:
    job = bring_to_queued(ledger, 1)
    ledger.record(JobChange(job, SlurmRunningObserved("RUNNING")))
    with ledger.engine.begin() as connection:
        connection.execute(
            text("UPDATE events SET at = at - interval '2 h' WHERE state = 'RUNNING'")
        )
    ledger.record(JobChange(job, SlurmRunningObserved("RUNNING")))
    overview = Overview(ledger.engine, "here")
    (row,) = overview.by_state()
    assert (row["state"], row["jobs"]) == ("RUNNING", 1)
    assert overview.now() - row["oldest_at"] >= timedelta(hours=2)


def target_of(environment: dict[str, str]) -> str:
    return target(environment["CLUSTER_NAME"], environment["DATABASE_URL"])


@contextmanager
def in_terminal(
    words: Sequence[str], environment: dict[str, str], lines: int = 40
) -> Iterator["Screen"]:
    """The command in a terminal of 80 columns; in the end it is killed, if the test has
    not ended it.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, 80, 0, 0))
    argv = [sys.executable, "-m", "supervisor_tasks.cli", *words]
    with subprocess.Popen(
        argv,
        cwd=REPOSITORY,
        env=environment | {"TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        # Ctrl-C in the terminal reaches the command
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as process:
        os.close(theirs)
        try:
            yield Screen(ours, process)
        finally:
            process.kill()
            os.close(ours)


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


def test_watched__in_a_terminal__tells_the_ledger_each_time(
    ledger: Ledger, migrated_ledger: tuple[Engine, dict[str, str]]
) -> None:
    bring_to_queued(ledger, 1)
    with in_terminal(("job", "list", "--watch", "0.2"), migrated_ledger[1]) as screen:
        screen.wait_for(target_of(migrated_ledger[1]), "QUEUED")
        for _ in range(2):
            screen.shown = ""
            screen.wait_for("\x1b[2J", f"{target_of(migrated_ledger[1])}\r\n", "QUEUED")
        os.write(screen.terminal, b"\x03")
        assert screen.process.wait(deadline(30)) == 130


def test_job_show__in_a_terminal__its_transactions_are_links(
    ledger: Ledger, migrated_ledger: tuple[Engine, dict[str, str]]
) -> None:
    open_report(ledger, bring_to_queued(ledger, 1))
    environment = migrated_ledger[1] | {"EXPLORER_URL": "https://x.example/tx/{hash}"}
    with in_terminal(("job", "show", job_id(1)), environment) as screen:
        screen.wait_for("what comes next", "report FINISHED")
        assert screen.process.wait(deadline(30)) == 0
    assert re.search(
        r"\x1b\]8;[^;]*;https://x\.example/tx/0xabc4\x1b\\[^\r]*nonce 4, 0xabc4\x1b\]8;;\x1b",
        screen.shown,
    )
    shown = supervisor("job", "show", job_id(1), env=environment).stdout
    assert "nonce 4, 0xabc4 https://x.example/tx/0xabc4" in shown


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


def settled(ledger: Ledger, number: int) -> None:
    job = bring_to_queued(ledger, number)
    outcome = Outcome(status=ChainStatus.FINISHED, elapsed_s=60)
    for event in (
        SlurmCompleted(outcome),
        ChainStatusObserved(ChainStatus.FINISHED, (9, 0)),
    ):
        ledger.record(JobChange(job, event))


def test_top__without_a_terminal__is_refused(run: Run) -> None:
    assert "status --watch" in run("top", status=2).stderr


class Screen:
    """What a program has written to its terminal since the last key."""

    def __init__(self, terminal: int, process: "subprocess.Popen[bytes]") -> None:
        self.terminal = terminal
        self.process = process
        self.shown = ""

    def press(self, key: str, *expected: str) -> None:
        self.shown = ""
        os.write(self.terminal, key.encode())
        self.wait_for(*expected)

    def wait_for(self, *expected: str) -> None:
        until_s = time.monotonic() + deadline(30)
        while not all(words in self.shown for words in expected):
            assert time.monotonic() < until_s, self.shown[-3000:]
            if select.select([self.terminal], [], [], 0.5)[0]:
                self.shown += os.read(self.terminal, 65536).decode(errors="replace")


WALLET = "0x" + "a" * 40


def left_by_a_fleet(ledger: Ledger, seconds_ago: int) -> None:
    ledger.wallets.hold(1, WALLET, shared=False)
    with ledger.engine.begin() as connection:
        aged = "UPDATE periodic_runs SET succeeded_at = now() - :seconds * interval '1 second'"
        connection.execute(text(aged), {"seconds": seconds_ago})


def test_cluster_release_wallet__its_fleet_is_gone__another_cluster_may_have_it(
    run: Run, ledger: Ledger
) -> None:
    left_by_a_fleet(ledger, 61)
    assert WALLET in run("cluster", "show").stdout
    run("cluster", "release-wallet", "--yes", "--reason", "renamed")
    assert ledger.wallets.held() is None
    Ledger(ledger.engine, "there", lambda _: None).wallets.hold(1, WALLET, shared=False)


def test_cluster_release_wallet__its_fleet_is_at_work__is_refused(
    run: Run, ledger: Ledger
) -> None:
    left_by_a_fleet(ledger, 5)
    refused = run("cluster", "release-wallet", "--yes", status=1)
    told = r"at work \d+ s ago; expected none for 60 s: stop its workers and beat first"
    assert re.search(told, refused.output)  # the command takes its time
    assert ledger.wallets.held() is not None


def test_cluster_release_wallet__it_holds_none__is_told(run: Run) -> None:
    assert (
        "there is nothing to release"
        in run("cluster", "release-wallet", "--yes", status=1).output
    )


STATUS_KEYS = {
    "alarms",
    "balance_wei",
    "claimable",
    "claimable_jobs",
    "claiming_paused",
    "claims",
    "cluster",
    "cursors",
    "earned_today_wei",
    "effects",
    "endpoints",
    "head",
    "jobs",
    "lag_blocks",
    "last_sweep",
    "oldest_transaction_s",
    "oldest_unread_s",
    "problems",
    "queues",
    "since_sweep_s",
    "registration_status",
    "submissions_paused",
    "periodic_run_ages_s",
    "transactions",
    "unread_callbacks",
    "wallet",
    "why_no_claims",
}


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (
            ("cluster", "list"),
            {"cluster", "open_jobs", "alarms", "last_run_at", "switches"},
        ),
        (("status",), STATUS_KEYS),
    ],
)
def test_document__its_keys__do_not_change_with_the_code(
    run: Run, words: Sequence[str], keys: set[str]
) -> None:
    document = said(run(*words, "-o", "json"))
    assert set(document[0] if isinstance(document, list) else document) == keys
