"""Logins at a real Postgres by passwords with characters that separate the parts of a
URL: each part of the fleet, with SQLAlchemy or without, reads DATABASE_URL alike.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql
from psycopg.errors import UndefinedTable
from sqlalchemy import text

from devgrid.services.start import start_server
from devgrid.state_folder import private_processes
from grpc_callbacks.callback_store import CallbackStore
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.config.embedded_servers import database_url
from supervisor_tasks.config.running_postgres import SOCKET, running_postgres
from supervisor_tasks.config.settings import Settings, load
from supervisor_tasks.ledger.database import open_engine
from supervisor_tasks.ledger.driver import DriverConnection
from supervisor_tasks.ledger.fleet_heartbeats import read_fleet_heartbeats
from supervisor_tasks.observability.checks import DatabaseAnswers

ROLE = "a role@site"
LOGINS = "local all postgres peer map=fleet\nlocal all all scram-sha-256\n"


@pytest.fixture(scope="module")
def state() -> Iterator[Path]:
    """A STATE_DIR whose Postgres asks all but its superuser for a password."""
    with private_processes() as processes:
        state = processes.folder / "a&b %41"
        folder = state / "postgres"
        folder.mkdir(parents=True)
        server = embedded_servers.postgres(folder)
        (folder / "pg_hba.conf").write_text(LOGINS)
        start_server(processes, "postgres", server)
        with psycopg.connect(host=str(socket_folder(state)), user="postgres") as admin:
            admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(ROLE)))
        yield state


def socket_folder(state: Path) -> Path:
    return (state / SOCKET).parent


def by_engine(settings: Settings) -> None:
    engine = open_engine(database_url(settings))
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
    engine.dispose()


def by_beat(settings: Settings) -> None:
    connection = DriverConnection(database_url(settings))
    connection.execute("SELECT 1 AS one", {})
    connection.close()


def by_readiness(settings: Settings) -> None:
    check = DatabaseAnswers(database_url(settings))
    check()
    check._connection.close()


def by_health(settings: Settings) -> None:
    with pytest.raises(UndefinedTable):  # the login works, and there is no ledger
        read_fleet_heartbeats(database_url(settings), "here")


def by_callbacks(settings: Settings) -> None:
    store = CallbackStore(database_url(settings), "here", {})
    with pytest.raises(UndefinedTable):
        store.store([])
    store.close()


@pytest.mark.parametrize(
    "password", ["50%off", "one/two#three?", "one@two:three four", "100%", "a&b+c=d"]
)
@pytest.mark.parametrize(
    "log_in", [by_engine, by_beat, by_readiness, by_health, by_callbacks]
)
def test_database_url__password_with_separators__logs_in(
    state: Path, log_in: Callable[[Settings], None], password: str
) -> None:
    folder = str(socket_folder(state))
    with psycopg.connect(host=folder, user="postgres") as admin:
        role = sql.Identifier(ROLE)
        admin.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(role, password))
    login = f"{quote(ROLE)}:{quote(password, safe='')}"
    url = f"postgresql://{login}@/postgres?host={quote(folder)}"
    log_in(load(environment={"DATABASE_URL": url}))


def test_running_postgres__folder_with_separators__is_reached(state: Path) -> None:
    url = running_postgres(state)
    assert url is not None
    psycopg.connect(url).close()
    by_engine(load(environment={"DATABASE_URL": url}))
