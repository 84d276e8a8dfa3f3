"""A chain, a database, a ledger, a SLURM or a receiver of messages for each file of this
folder that asks for it.
"""

from tests.support.certificate_fixtures import certificates
from tests.support.chain_fixtures import (
    chain,
    database,
    empty_database,
    harness,
    processes,
    provider,
)
from tests.support.ledger_fixtures import dispatched, engine, ledger, migrated_ledger
from tests.support.receiver_fixtures import webhook
from tests.support.submission_fixtures import login, submission_env

__all__ = [
    "certificates",
    "chain",
    "database",
    "dispatched",
    "empty_database",
    "engine",
    "harness",
    "ledger",
    "login",
    "migrated_ledger",
    "processes",
    "provider",
    "submission_env",
    "webhook",
]
