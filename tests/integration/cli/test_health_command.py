"""`supervisor health`: what it finds, and that it imports little."""

import re
import subprocess
import sys
from pathlib import Path

from sqlalchemy import Engine, text

from plugins import reporter
from supervisor_tasks.cli import health_command
from supervisor_tasks.config.settings import Settings
from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from tests.support.commands import supervisor
from tests.support.ledger import claim, job_id
from tests.support.operator_commands import Run, record_all_runs, said


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


def test_health__many_effects_of_a_customer__wait_while_a_worker_takes_them(
    run: Run, ledger: Ledger
) -> None:
    """He has two groups under way; a slurmctld that needs a second for each of his jobs
    has the others wait for minutes.
    """
    record_all_runs(ledger)
    ledger.record(*(JobChange(job_id(number), claim(number)) for number in (1, 2)))
    with ledger.engine.begin() as connection:
        connection.execute(text("UPDATE effects SET due_at = now() - interval '5 min'"))
    (under_way,) = ledger.effects.lease([EffectKind.FETCH], 1)
    run("health")
    assert "everything periodic comes to an end" in run("status").stdout
    with ledger.engine.begin() as connection:
        expired = "UPDATE effects SET lease_until = now() WHERE lease IS NOT NULL"
        connection.execute(text(expired))
    assert "no worker takes it" in run("status").stdout, "its worker has died"
    run("health", status=1)
    ledger.effects.postpone([under_way], 0.0)
    run("health", status=1)


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
