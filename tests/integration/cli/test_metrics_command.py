"""`supervisor metrics` as a process."""

import json
import subprocess
import sys
import urllib.request

import pytest
from sqlalchemy import Engine

from devgrid import REPOSITORY
from devgrid.machine import deadline
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.registrations import Registrations
from supervisor_tasks.provider.registration_rules import RegistrationStatus
from tests.support.ledger import (
    OF_ANOTHER_RELEASE,
    bring_to_queued,
    park_one,
    raise_alarm_of_another_release,
)
from tests.support.operator_commands import Run, record_all_runs


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
