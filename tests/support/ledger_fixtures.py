"""Fixtures of files that work on a ledger without a grid: a conftest.py imports those that
its folder uses.
"""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from supervisor_tasks.ledger.ledger import Ledger
from tests.support.ledger import emptied, migrated
from tests.support.recorded_jobs import Dispatched


@pytest.fixture(scope="module")
def migrated_ledger() -> Iterator[tuple[Engine, dict[str, str]]]:
    """The engine of a file's ledger, and the environment of a process that uses it. The
    ledger has what earlier tests wrote.
    """
    with migrated() as both:
        yield both


@pytest.fixture(scope="module")
def engine(migrated_ledger: tuple[Engine, dict[str, str]]) -> Engine:
    """The engine of the file's ledger."""
    return migrated_ledger[0]


@pytest.fixture
def dispatched() -> Dispatched:
    """Which effects `ledger` dispatched."""
    return Dispatched()


@pytest.fixture
def ledger(engine: Engine, dispatched: Dispatched) -> Iterator[Ledger]:
    """The file's ledger as the cluster `here` has it, without the rows of earlier
    tests.
    """
    emptied(engine)
    ledger = Ledger(engine, "here", dispatched)
    yield ledger
    ledger.holder.close()
