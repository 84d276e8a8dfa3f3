"""The ledger's migrations, and how they are applied: `supervisor db upgrade`.

A migration runs while a fleet works (docs/how-to/upgrade.md). It takes each lock on a table that the fleet uses for an
instant only, and waits at most a second for it: `online.py` has the changes that are possible so. It expands the tables:
what processes of the release before do not need gets a default, and what they still use is dropped a release later.
`old_processes_work` says of each migration whether processes of the release before may run after it.
"""

import time
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import NullPool, create_engine
from sqlalchemy.exc import OperationalError

from supervisor_tasks.errors import TransientError

LOCK_TIMEOUT = "55P03"  # SQLSTATE
TRIES = 5  # to get a lock; between two, the transactions that wait behind the migration go on
PAUSE_S = 1.0


class MigrationError(TransientError):
    """The database was away, or a lock on it was not to be had in time. The same again continues where it stopped."""


def upgrade(url: str, to: str = "head") -> tuple[str | None, str | None]:
    """Bring the tables of the database at `url` up to date; the revision before and after. Raises MigrationError."""
    before = revision(url)
    try:
        for left in reversed(range(TRIES)):
            if _is_done(url, to, is_last=not left):
                break
            time.sleep(PAUSE_S)
    except OperationalError as error:
        raise _translated(error) from error
    return before, revision(url)


def stops_old_processes(after: str = "base") -> list[str]:
    """The revisions after that one which stop processes of the release before."""
    scripts = ScriptDirectory.from_config(_config()).iterate_revisions("head", after)
    return sorted(script.revision for script in scripts if not script.module.old_processes_work)


def revision(url: str) -> str | None:
    """The revision of the tables of the database at `url`; None if it has none. Raises MigrationError."""
    engine = create_engine(url, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    except OperationalError as error:
        raise _translated(error) from error


def newest_revision() -> str | None:
    """The revision that this version works with."""
    return ScriptDirectory.from_config(_config()).get_current_head()


def _is_done(url: str, to: str, *, is_last: bool) -> bool:
    """Upgrade; False if a lock was not to be had and there is another try."""
    try:
        command.upgrade(_config(url=url), to)
    except OperationalError as error:
        if is_last or getattr(error.orig, "sqlstate", None) != LOCK_TIMEOUT:
            raise
        return False
    return True


def _config(**attributes: str) -> Config:
    config = Config(attributes=attributes)
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config


def _translated(error: OperationalError) -> MigrationError:
    said = str(error.orig).partition("\n")[0]
    return MigrationError(f"the ledger's database: {said}")
