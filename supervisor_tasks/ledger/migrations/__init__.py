"""The ledger's migrations, and how they are applied: `supervisor db upgrade`."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import NullPool, create_engine
from sqlalchemy.exc import OperationalError

from supervisor_tasks.errors import TransientError


class MigrationError(TransientError):
    """The database was away, or a lock on it was not to be had in time. Nothing of the migration that failed is stored."""


def upgrade(url: str) -> tuple[str | None, str | None]:
    """Bring the tables of the database at `url` up to date; the revision before and after. Raises MigrationError."""
    config = Config(attributes={"url": url})
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    try:
        before = _revision(url)
        command.upgrade(config, "head")
        return before, _revision(url)
    except OperationalError as error:
        said = str(error.orig).partition("\n")[0]
        raise MigrationError(f"the ledger's database: {said}") from error


def _revision(url: str) -> str | None:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()
