"""What all commands have in common: forms of output, which ledger, and how they refuse."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from sqlalchemy import Engine, make_url, text
from sqlalchemy.exc import DataError

from devgrid import REPOSITORY
from devgrid.machine import deadline
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.cli.app import database_error, status_of
from supervisor_tasks.cli.exit_codes import ExitCode
from supervisor_tasks.jobs.events import ScriptFetched, SubmitRejected, SubmitStarted
from supervisor_tasks.jobs.model import State
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.switch_names import Switch
from tests.support.commands import supervisor
from tests.support.ledger import (
    OF_ANOTHER_RELEASE,
    bring_to_queued,
    claim,
    job_id,
    park_one,
    raise_alarm_of_another_release,
)
from tests.support.operator_commands import (
    HOSTILE,
    Run,
    give_back,
    in_terminal,
    job_of,
    left_by_a_fleet,
    said,
    target_of,
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
    run("job", "retry", "--effect", str(parked.id), "--yes", status=1)
    assert said(run("job", "retry", "--all", "--yes", "-o", "json")) == []
    assert "other_kind" in run("effect", "list", "--state", "parked").stdout


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
