"""A chain, a ledger's database and a ledger for each file of this folder that asks for
them.
"""

from tests.support.chain_fixtures import (
    chain,
    database,
    empty_database,
    harness,
    processes,
    provider,
)
from tests.support.ledger_fixtures import (
    dispatched,
    engine,
    ledger,
    migrated_ledger,
)

__all__ = [
    "chain",
    "database",
    "dispatched",
    "empty_database",
    "engine",
    "harness",
    "ledger",
    "migrated_ledger",
    "processes",
    "provider",
]
