"""Processes that hold leases by a session of a real Postgres, and lose them with it."""

import signal
import subprocess
import sys

import pytest
from sqlalchemy import Engine, text

from devgrid import REPOSITORY
from devgrid.processes import wait_until
from supervisor_tasks.execution.exclusive_run import run_exclusive
from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.ledger import worker_sessions
from supervisor_tasks.ledger.advisory_locks import try_advisory_lock
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.lock_names import WORKER_SESSIONS, LockName
from supervisor_tasks.ledger.worker_sessions import ALIVE_SESSIONS, WorkerSession
from tests.support.recorded_jobs import CLAIM, JOB

STAND_STILL = """
import sys, time
from supervisor_tasks.ledger.database import open_engine
from supervisor_tasks.ledger.lock_names import LockName
from supervisor_tasks.ledger.advisory_locks import try_advisory_lock
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.config.embedded_servers import database_url
from supervisor_tasks.config.settings import load
ledger = Ledger(open_engine(database_url(load())), "here", lambda _: None)
with try_advisory_lock(ledger.engine, LockName("work")):
    print(len(ledger.effects.lease([EffectKind.FETCH])), flush=True)
    time.sleep(600)
"""


def test_process__stands_still__loses_its_leases_and_its_turn(
    ledger: Ledger, engine: Engine
) -> None:
    ledger.record(JobChange(JOB, CLAIM))
    environment = {
        "PATH": "/usr/bin:/bin",
        "DATABASE_URL": engine.url.render_as_string(hide_password=False),
    }
    argv = [sys.executable, "-c", STAND_STILL]
    with subprocess.Popen(
        argv, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "1\n"
            ledger.holder.number()  # which begins to watch
            ledger.effects.due_without_message()
            assert ledger.effects.lease([EffectKind.FETCH]) == []
            other.send_signal(signal.SIGSTOP)

            def is_free() -> bool:
                ledger.effects.due_without_message()
                return len(ledger.effects.lease([EffectKind.FETCH])) == 1

            wait_until(is_free, "the lease to be free", 60.0, 0.5)

            def has_turn() -> bool:  # its other connection may end a moment later
                with try_advisory_lock(engine, LockName("work")) as mine:
                    return mine

            wait_until(has_turn, "the turn to be free", 30.0, 0.05)
        finally:
            other.kill()


def test_sessions__process_with_a_lock__is_one_of_them(ledger: Ledger) -> None:
    def holders() -> int:
        with ledger.engine.connect() as connection:
            return len(list(connection.scalars(text(ALIVE_SESSIONS))))

    def alive() -> bool:
        seen.append(holders())
        return False

    seen: list[int] = []
    wait_until(
        lambda: holders() == 0,
        "Postgres to end the sessions of the tests before",
        30.0,
        0.05,
    )
    run_exclusive(ledger, "work", alive)  # without a lease before
    assert seen == [1]


def test_watcher__that_may_not_end_another_roles_process__keeps_its_own_connection(
    ledger: Ledger, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_sessions, "SESSION_TIMEOUT_S", 0.0)
    with engine.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS watcher"))
        connection.execute(text("CREATE ROLE watcher LOGIN IN ROLE pg_read_all_stats"))
    # A session of the tests' role that says nothing, as that of a holder would.
    with engine.connect() as silent:
        silent.execute(text(f"SELECT pg_advisory_lock({WORKER_SESSIONS}, 7)"))
        with engine.connect().execution_options(
            isolation_level="AUTOCOMMIT"
        ) as watcher:
            watcher.execute(text("SET ROLE watcher"))
            holder = WorkerSession(engine)
            assert holder._heartbeat(watcher)
            assert holder._heartbeat(watcher)
            assert watcher.scalar(text("SELECT current_user")) == "watcher"
            watcher.execute(text("RESET ROLE"))
        assert silent.scalar(text("SELECT 1")) == 1
    with engine.begin() as connection:
        connection.execute(text("DROP ROLE watcher"))
