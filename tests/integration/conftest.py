"""A chain, a database, a ledger or a SLURM for each file of this folder that asks for
it.
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
from tests.support.submission_fixtures import submission_env

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
    "submission_env",
]
