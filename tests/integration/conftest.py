"""A chain and a ledger's database for each file of this folder that asks for them."""

from tests.support.chain_fixtures import (
    chain,
    database,
    empty_database,
    harness,
    processes,
    provider,
)

__all__ = ["chain", "database", "empty_database", "harness", "processes", "provider"]
