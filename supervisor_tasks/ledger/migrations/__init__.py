"""The ledger's migrations, and how they are applied: `supervisor db upgrade`.

A migration runs while a fleet works (docs/how-to/upgrade.md). It takes each lock on a
table that the fleet uses for an instant only, and waits at most 1.5 s for it.
`online.py` has the changes that are possible so. A new column gets a default, because
processes of the release before do not write it. What they still use is dropped a
release later. `old_processes_work` says of each migration whether processes of the
release before may run after it.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import OperationalError

from supervisor_tasks.errors import PermanentError, TransientError
from supervisor_tasks.ledger.driver import unavailable

LOCK_TIMEOUT = "55P03"  # SQLSTATE
# to get a lock; between two, the transactions that wait behind the migration go on
TRIES = 5
PAUSE_S = 1.0
_TABLES = text(
    """
    SELECT count(*), COALESCE(sum(n_live_tup), 0)::bigint, COALESCE(sum(pg_total_relation_size(relid)), 0)::bigint
    FROM pg_stat_user_tables"""
)


class UnknownRevisionError(PermanentError):
    """The tables have a revision that this version does not know. A retry does not
    help: the newer release's command is needed.
    """


class MigrationError(TransientError):
    """The database was away, or a lock on it was not to be had in time. The same again
    continues where it stopped.
    """


def upgrade(url: str, to: str = "head") -> tuple[str | None, str | None]:
    """Bring the tables of the database at `url` up to date; the revision before and
    after. Raises MigrationError, when the database does not answer or a lock is not to
    be had in time; a retry helps, and goes on where this call stopped.
    """
    before = revision(url)
    try:
        for left in reversed(range(TRIES)):
            if _is_done(url, to, is_last=not left):
                break
            time.sleep(PAUSE_S)
    except OperationalError as error:
        raise _translated(error) from error
    return before, revision(url)


@dataclass(frozen=True, slots=True)
class Tables:
    """How much the tables of the ledger hold: their number, their rows as Postgres
    estimates them, and bytes on disk.
    """

    number: int
    rows: int
    size_bytes: int


def tables(url: str) -> Tables:
    """How much a migration has to do with. Raises MigrationError, when the database
    does not answer; a retry helps.
    """
    engine = create_engine(url, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            return Tables(*connection.execute(_TABLES).one())
    except OperationalError as error:
        raise _translated(error) from error


def pending(after: str | None) -> list[str]:
    """The revisions that bring tables at the revision `after` up to date, in their
    order; None: there are no tables. Raises UnknownRevisionError, when the tables are
    those of a newer release; a retry does not help.
    """
    known = {
        script.revision
        for script in ScriptDirectory.from_config(_config()).walk_revisions()
    }
    if after not in (None, *known):
        raise UnknownRevisionError(
            f"found the ledger's tables at {after}; expected {newest_revision()} or an older revision: they are those of a"
            " newer release, so use its command"
        )
    return sorted(revision for revision in known if after is None or revision > after)


def stops_old_processes(after: str = "base") -> list[str]:
    """The revisions after that one which stop processes of the release before."""
    scripts = ScriptDirectory.from_config(_config()).iterate_revisions("head", after)
    return sorted(
        script.revision for script in scripts if not script.module.old_processes_work
    )


def revision(url: str) -> str | None:
    """The revision of the tables of the database at `url`; None if it has none. Raises
    MigrationError, when the database does not answer; a retry helps.
    """
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
    config.set_main_option(
        "script_location", str(Path(__file__).parent).replace("%", "%%")
    )
    return config


def _translated(error: OperationalError) -> MigrationError:
    away = unavailable(error.orig)
    assert away is not None  # noqa: S101  it is the driver's error for that
    translated = MigrationError(str(away))
    translated.mend = away.mend
    return translated
