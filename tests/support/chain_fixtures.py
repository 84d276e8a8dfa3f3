"""Fixtures of files that start a chain and a ledger's database, and no grid: a conftest.py
imports those that its folder uses.
"""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from devgrid.chain.chain import Chain
from devgrid.chain.deployment import start_chain
from devgrid.chain.model import Account
from devgrid.processes import Processes
from devgrid.state_folder import private_processes
from tests.support.wallet_harness import ChainHarness, databases, empty, registered


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    """What starts a file's servers, and ends them after its last test."""
    with private_processes() as running:
        yield running


@pytest.fixture(scope="module")
def chain(processes: Processes) -> Chain:
    """A chain with the contracts, for all tests of a file."""
    return start_chain(processes)


@pytest.fixture(scope="module")
def database(processes: Processes) -> Iterator[Engine]:
    """A database with the ledger's tables, for all tests of a file. It has what the
    earlier ones wrote.
    """
    with databases(processes, "one") as (engine,):
        yield engine


@pytest.fixture
def empty_database(database: Engine) -> Engine:
    """The file's database, without the rows of earlier tests."""
    empty(database)
    return database


@pytest.fixture
def provider(chain: Chain) -> Account:
    """A new provider of a test, accepted, with one node."""
    return registered(chain)


@pytest.fixture
def harness(chain: Chain, provider: Account, empty_database: Engine) -> ChainHarness:
    """The chain services of the provider's fleet, with an empty ledger."""
    return ChainHarness.of(chain, provider, empty_database)
