"""A ledger for the operator's commands, and how they are run on it."""

import pytest
from sqlalchemy import Engine

from supervisor_tasks.ledger import status_queries
from supervisor_tasks.ledger.ledger import Ledger
from tests.support.commands import Result, supervisor
from tests.support.operator_commands import Run


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


@pytest.fixture
def lists_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list has one row, so that the second row stands for number 1001."""
    monkeypatch.setattr(status_queries, "MAX_ROWS", 1)
