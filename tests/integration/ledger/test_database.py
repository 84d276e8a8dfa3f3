"""The ledger's connections on a real Postgres."""

import time

import pytest
from sqlalchemy import Engine, StaticPool, create_engine, text

from devgrid.processes import wait_until
from supervisor_tasks.errors import LedgerUnavailableError
from supervisor_tasks.ledger import database
from supervisor_tasks.ledger.database import RESTED_S, open_engine, read_connection
from supervisor_tasks.ledger.doctor_queries import keeps_sessions


def test_connection__ended_while_idle__is_opened_again_without_an_error(
    engine: Engine,
) -> None:
    with read_connection(engine) as connection:
        rested = connection.scalar(text("SELECT pg_backend_pid()"))
    rests_since_s = time.monotonic()
    another = create_engine(engine.url)
    with another.connect() as connection:
        connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": rested})
    another.dispose()
    wait_until(
        lambda: time.monotonic() - rests_since_s > RESTED_S,
        "the connection to have rested",
        60.0,
    )
    with read_connection(engine) as connection:
        assert connection.scalar(text("SELECT pg_backend_pid()")) != rested


def test_asking__many_times__its_statement_stays_prepared(engine: Engine) -> None:
    for _ in range(20):
        with read_connection(engine) as connection:
            connection.execute(
                text("SELECT count(*) FROM jobs WHERE job_id = :job_id"),
                {"job_id": "0x"},
            )
    with read_connection(engine) as connection:
        prepared = connection.scalars(
            text("SELECT statement FROM pg_prepared_statements")
        ).all()
    assert any("count(*) FROM jobs" in statement for statement in prepared)


def test_connect__all_connections_hang__the_ledger_counts_as_unavailable(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WAIT_FOR_CONNECTION_S", 0.1)
    url = engine.url.render_as_string(hide_password=False)
    small = open_engine(url, connections=1)
    with (
        read_connection(small),
        pytest.raises(LedgerUnavailableError, match="each of 1 connections"),
    ):
        read_connection(small)
    with read_connection(small) as connection:
        assert connection.scalar(text("SELECT 1")) == 1
    small.dispose()


def test_keeps_sessions__connections_share_one_or_not__is_seen(engine: Engine) -> None:
    """A pooler of transactions gives two connections one session of Postgres."""
    assert keeps_sessions(engine)
    shared = create_engine(engine.url, poolclass=StaticPool)
    assert not keeps_sessions(shared)
    shared.dispose()
    assert keeps_sessions(engine)
