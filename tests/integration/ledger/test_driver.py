"""The ledger without SQLAlchemy, as beat asks it: errors, a lost connection, and the
question itself.
"""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text

from devgrid.ports import free_port
from supervisor_tasks.errors import LedgerUnavailableError
from supervisor_tasks.ledger.driver import PROCESS, DriverConnection
from supervisor_tasks.ledger.due import Due
from supervisor_tasks.ledger.periodic_run_names import BEAT
from supervisor_tasks.ledger.periodic_runs import PeriodicRuns
from supervisor_tasks.messaging.due_rules import EXCLUSIVE_TASKS, FACTS


@pytest.fixture
def connection(engine: Engine) -> Iterator[DriverConnection]:
    connection = DriverConnection(engine.url.render_as_string(hide_password=False))
    yield connection
    connection.close()


def test_due__over_the_driver_alone__asks_and_records_a_run_of_the_clock(
    engine: Engine, connection: DriverConnection
) -> None:
    found = Due(connection.execute, "here", EXCLUSIVE_TASKS, FACTS).ask(
        lambda: {"queue chain": 3}
    )
    assert (found.sweep, found.busy, found.alarms) == (True, frozenset(), frozenset())
    assert PeriodicRuns(engine, "here").ages_s().keys() == {BEAT, "queue chain"}


def test_execute__connection_was_ended__is_done_over_another(
    engine: Engine, connection: DriverConnection
) -> None:
    (before,) = connection.execute("SELECT pg_backend_pid() AS pid", {})
    with engine.begin() as other:
        # and wait until it has ended
        other.execute(text("SELECT pg_terminate_backend(:pid, 60000)"), before)
    (after,) = connection.execute(
        "SELECT pg_backend_pid() AS pid, current_setting('application_name') AS name",
        {},
    )
    assert after["pid"] != before["pid"]
    assert after["name"].startswith(f"{PROCESS} ")


def test_execute__no_server__is_unavailable() -> None:
    connection = DriverConnection(
        f"postgresql+psycopg://user@127.0.0.1:{free_port()}/none"
    )
    with pytest.raises(
        LedgerUnavailableError, match=r"^the ledger's database: [^\n]+$"
    ):
        connection.execute("SELECT 1 AS one", {})
