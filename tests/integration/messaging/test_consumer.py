"""The broker goes away and comes back: the fleet consumes again by itself, and its log
stays calm meanwhile.
"""

import json
import math
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from redis import Redis
from sqlalchemy import Engine, create_engine, text

from devgrid.fleet import Fleet
from devgrid.machine import deadline
from devgrid.processes import Processes, wait_until
from devgrid.services.start import start_server
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.jobs.model import EffectKind, JobId
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.outbox import OpenEffect
from supervisor_tasks.ledger.status_queries import Overview
from supervisor_tasks.messaging.dispatcher import TaskDispatcher
from supervisor_tasks.messaging.queues import TASKS, Queue
from tests.support import long_task, not_receiving
from tests.support.ledger import claim, job_id

STOPPED_S = 20.0  # longer than any patience of kombu's that was seen
# longer than a connection that only looks alive is kept (celeryconfig.py: 10 s)
WATCHDOG_TIMEOUT_S = 15
TRIES_S = 5.0  # during which a client tries each second to connect
LOST = "consumer: Connection to broker lost"
AWAY = "broker_disconnected"
LOST_MESSAGE = "task_publish_failed"
CONNECTED = "Connected to [redacted]"
WITHIN_S = 60.0  # figures are the benchmark's; a loaded machine is slow
pytestmark = pytest.mark.slow  # outages that last


def impatience_s() -> int:
    """The time-out of the watchdog of a worker that a test ends. Until then, a busy
    machine may leave the worker without a core.
    """
    return max(math.ceil(deadline(3.0)), 10)


@pytest.fixture(scope="module")
def redis_server(processes: Processes) -> embedded_servers.EmbeddedServer:
    folder = processes.folder / "redis"
    folder.mkdir()
    return embedded_servers.redis(folder)


@pytest.fixture(scope="module")
def fleet(processes: Processes, redis_server: embedded_servers.EmbeddedServer) -> Fleet:
    """A worker of the default queue, which needs no key, and beat."""
    folder = processes.folder / "postgres"
    folder.mkdir()
    database = embedded_servers.postgres(folder)
    start_server(processes, "postgres", database)
    start_server(processes, "redis", redis_server)
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(processes.folder),
        "STATE_DIR": str(processes.folder),
        "DATABASE_URL": database.url,
        "BROKER_URL": redis_server.url,
        "WORKER_WATCHDOG_TIMEOUT_S": str(WATCHDOG_TIMEOUT_S),
    }
    fleet = Fleet(processes, environment)
    fleet.migrate()
    fleet.start_worker("worker", "-Q", "main.default")
    fleet.start_beat()
    return fleet


@pytest.fixture(scope="module")
def engine(fleet: Fleet) -> Iterator[Engine]:
    """The ledger of a fleet with a job that no worker here takes: its effect is
    dispatched as often as it counts as not dispatched.
    """
    engine = create_engine(fleet.environment["DATABASE_URL"])
    ledger = Ledger(engine, "main", lambda _: None)
    ledger.record(JobChange(job_id(1), claim(1)))
    yield engine
    ledger.holder.close()
    engine.dispose()


def consumed(engine: Engine) -> float:
    """When the worker last finished a dispatch_due_effects, in seconds since the
    epoch.
    """
    query = text(
        "SELECT extract(epoch FROM succeeded_at)::float8 FROM periodic_runs WHERE name = 'dispatch_due_effects'"
    )
    with engine.connect() as connection:
        return float(connection.scalar(query) or 0)


def now(engine: Engine) -> float:
    with engine.connect() as connection:
        return float(
            connection.scalar(
                text("SELECT extract(epoch FROM clock_timestamp())::float8")
            )
            or 0
        )


def wait_for_dispatch(engine: Engine) -> None:
    since = now(engine)
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE effects SET notified_at = NULL, due_at = now()")
        )
    wait_until(
        lambda: consumed(engine) > since, "a dispatch_due_effects", WITHIN_S, 0.1
    )


def entries(processes: Processes, name: str) -> list[dict[str, Any]]:
    """What a process has logged."""
    lines = (processes.logs / f"{name}.log").read_text().splitlines()
    return [
        json.loads(line)
        for line in lines
        if line.startswith("{") and line.endswith("}")
    ]


def said(processes: Processes, name: str) -> list[str]:
    """All of it, in words."""
    return [entry["event"].partition(".")[0] for entry in entries(processes, name)]


def loud(processes: Processes, name: str) -> list[str]:
    """What an operator would have to read of a process: all that is no information.
    Celery's warning at the start that root runs it is left out.
    """
    read = [
        entry["event"] for entry in entries(processes, name) if entry["level"] != "info"
    ]
    return [
        event.partition(".")[0]
        for event in read
        if "with superuser privileges" not in event
    ]


def pass_s(engine: Engine, seconds: float) -> None:
    began = now(engine)
    wait_until(lambda: now(engine) > began + seconds, "time to pass", 60.0, 0.2)


def test_queues__a_queue_without_a_worker__its_length_is_in_the_ledger(
    fleet: Fleet, engine: Engine, redis_server: embedded_servers.EmbeddedServer
) -> None:
    """Beat counts all queues with each of its runs."""

    def told() -> dict[str, int]:
        queues = Overview(engine, "main").snapshot().queues
        return {name: reading.number for name, reading in queues.items()}

    with Redis(unix_socket_path=str(redis_server.socket)) as redis:
        wait_until(
            lambda: redis.llen("main.chain") > 0,
            "a message that no worker takes",
            WITHIN_S,
            0.1,
        )
        wait_until(
            lambda: told().get("chain") == redis.llen("main.chain"),
            "its length to be told",
            WITHIN_S,
            0.1,
        )
    assert set(told()) == {queue.value for queue in Queue}


def test_worker__redis_killed_and_started_again__consumes_and_logs_few_lines(
    fleet: Fleet,
    engine: Engine,
    processes: Processes,
    redis_server: embedded_servers.EmbeddedServer,
) -> None:
    """However often the connection breaks: each time is told once, and once that it is
    over. A task that was sending may also tell once that its message is lost.
    """
    wait_for_dispatch(engine)
    lost = said(processes, "worker").count(LOST)
    processes.kill(fleet.find("redis"))
    try:
        wait_until(
            lambda: said(processes, "worker").count(LOST) > lost,
            "the worker to lose the broker",
            WITHIN_S,
            0.1,
        )
    finally:
        start_server(processes, "redis", redis_server)
    wait_for_dispatch(engine)
    wait_until_connected(processes)
    before = {name: len(loud(processes, name)) for name in ("worker", "beat")}
    processes.kill(fleet.find("redis"))

    def noticed() -> bool:
        own = {name: loud(processes, name)[lines:] for name, lines in before.items()}
        return LOST in own["worker"] and all(AWAY in lines for lines in own.values())

    try:
        wait_until(noticed, "worker and beat to notice", WITHIN_S, 0.1)
        pass_s(engine, TRIES_S)
        # The consumer and what sends messages notice it in threads of their own: either
        # may be first.
        told = loud(processes, "worker")[before["worker"] :]
        assert sorted(without_one(told, LOST_MESSAGE)) == sorted([LOST, AWAY])
        assert loud(processes, "beat")[before["beat"] :] == [AWAY]
    except TimeoutError as error:
        for name in before:
            error.add_note(f"{name}: {entries(processes, name)[-20:]}")
        raise
    finally:  # the other tests of the file need it
        start_server(processes, "redis", redis_server)
    wait_for_dispatch(engine)
    wait_until_connected(processes)
    outages = loud(processes, "worker").count(AWAY)
    assert set(loud(processes, "worker")) - {LOST_MESSAGE} == {LOST, AWAY}
    assert loud(processes, "worker").count(LOST_MESSAGE) <= outages
    assert set(loud(processes, "beat")) == {AWAY}


def without_one(words: list[str], word: str) -> list[str]:
    """The words without the first occurrence of one of them."""
    place = words.index(word) if word in words else len(words)
    return words[:place] + words[place + 1 :]


def wait_until_connected(processes: Processes) -> None:
    """Wait until worker and beat have told the end of each outage that they told of. A
    dispatch is no sign of it: the worker may have received its message before.
    """

    def over() -> bool:
        heard = said(processes, "worker")
        return (
            alternate(heard, AWAY, "broker_reconnected")
            and alternate(said(processes, "beat"), AWAY, "broker_reconnected")
            and alternate(heard[heard.index(CONNECTED) + 1 :], LOST, CONNECTED)
        )

    wait_until(over, "worker and beat to tell the end of each outage", WITHIN_S, 0.1)


def alternate(words: list[str], first: str, second: str) -> bool:
    """Whether the one and the other come in turns, the second one last."""
    turns = [word for word in words if word in (first, second)]
    return turns == [first, second] * (len(turns) // 2)


def test_worker__answers_pings_and_receives_nothing__ends(
    fleet: Fleet, engine: Engine, processes: Processes
) -> None:
    processes.kill(fleet.find("worker"))
    worker = fleet.start_worker(
        "worker", "-Q", not_receiving.QUEUE, "-I", not_receiving.__name__
    )
    wait_for_dispatch(engine)
    stops = processes.folder / not_receiving.FILE
    stops.touch()
    wait_until(lambda: worker.process() is None, "the worker to end", 60.0, 0.1)
    stops.unlink()
    processes.kill(worker)  # which reaps it
    assert "worker_not_receiving" in loud(processes, "worker")
    fleet.start_worker("worker", "-Q", "main.default")
    wait_for_dispatch(engine)


@pytest.mark.extended
def test_worker__its_loop_stands_in_the_log__ends_all_the_same(
    fleet: Fleet, engine: Engine, processes: Processes
) -> None:
    impatient = {"WORKER_WATCHDOG_TIMEOUT_S": str(impatience_s())}
    standing = Fleet(processes, fleet.environment | impatient, "standing-")
    processes.kill(fleet.find("worker"))
    worker = standing.start_worker(
        "worker", "-Q", not_receiving.QUEUE, "-I", not_receiving.__name__
    )
    wait_for_dispatch(engine)
    (processes.folder / not_receiving.FILE_OF_LOG).touch()
    wait_until(lambda: worker.process() is None, "the worker to end", 60.0, 0.1)
    processes.kill(worker)  # which reaps it
    fleet.start_worker("worker", "-Q", "main.default")
    wait_for_dispatch(engine)


@pytest.mark.extended
def test_worker__asked_to_end__its_watchdog_lets_a_running_task_end(
    fleet: Fleet,
    engine: Engine,
    processes: Processes,
    redis_server: embedded_servers.EmbeddedServer,
) -> None:
    timeout_s = impatience_s()
    impatient = {"WORKER_WATCHDOG_TIMEOUT_S": str(timeout_s)}
    ending = Fleet(processes, fleet.environment | impatient, "ending-")
    processes.kill(fleet.find("worker"))  # it does not know the task
    worker = ending.start_worker(
        "worker", "-Q", "main.default", "-I", long_task.__name__
    )
    begun, may_end, ended = (
        processes.folder / name
        for name in (long_task.BEGUN, long_task.MAY_END, long_task.ENDED)
    )
    app = Celery(broker=redis_server.url)
    app.send_task(long_task.NAME, queue="main.default")
    app.close()
    wait_until(begun.exists, "the task to begin", WITHIN_S, 0.1)
    processes.kill(worker, signal.SIGTERM, wait=False)
    with Redis(unix_socket_path=str(redis_server.socket)) as redis:
        wait_until(
            lambda: redis.llen("main.default") > 0,
            "a message that the worker does not take any more",
            WITHIN_S,
            0.1,
        )
    pass_s(engine, 2.0 * timeout_s)
    assert worker.process() is not None
    may_end.touch()
    wait_until(lambda: worker.process() is None, "the worker to end", WITHIN_S, 0.1)
    processes.kill(worker)  # which reaps it
    assert ended.exists()
    assert "worker_not_receiving" not in loud(processes, "ending-worker")
    fleet.start_worker("worker", "-Q", "main.default")
    wait_for_dispatch(engine)


def test_worker__redis_stopped_and_continued__consumes(
    fleet: Fleet, engine: Engine, processes: Processes
) -> None:
    wait_for_dispatch(engine)
    redis = fleet.find("redis")
    processes.kill(redis, signal.SIGSTOP, wait=False)
    pass_s(engine, STOPPED_S)
    processes.kill(redis, signal.SIGCONT, wait=False)
    wait_for_dispatch(engine)


def test_logs__database_away__one_warning_a_task_no_traceback_beat_tells_it_once(
    fleet: Fleet,
    engine: Engine,
    processes: Processes,
    redis_server: embedded_servers.EmbeddedServer,
) -> None:
    wait_for_dispatch(engine)
    before = {name: len(loud(processes, name)) for name in ("worker", "beat")}
    processes.kill(fleet.find("postgres"))

    def since(name: str) -> list[str]:
        return loud(processes, name)[before[name] :]

    try:
        wait_until(
            lambda: "ledger_disconnected" in since("beat"),
            "beat to notice",
            WITHIN_S,
            0.1,
        )
        app = Celery(broker=redis_server.url)
        for _ in range(3):  # beat sends nothing meanwhile
            app.send_task(f"{TASKS}.dispatch_due_effects", queue="main.default")
        app.close()
        wait_until(
            lambda: since("worker").count("task_failed_transient") >= 3,
            "warnings of the outage",
            WITHIN_S,
            0.2,
        )
    finally:
        database = embedded_servers.postgres(processes.folder / "postgres")
        start_server(processes, "postgres", database)
    engine.dispose()
    wait_for_dispatch(engine)
    wait_until(
        lambda: alternate(
            said(processes, "beat"), "ledger_disconnected", "ledger_reconnected"
        ),
        "beat to tell the end of the outage",
        WITHIN_S,
        0.1,
    )
    # a task may have been giving back what it had leased
    told = without_one(since("worker"), "lease_release_deferred")
    assert set(told) == {"task_failed_transient"}
    assert since("beat") == ["ledger_disconnected"]
    assert "Traceback" not in (processes.logs / "worker.log").read_text()


def test_worker__redis_flushed__consumes(
    fleet: Fleet, engine: Engine, redis_server: embedded_servers.EmbeddedServer
) -> None:
    wait_for_dispatch(engine)
    with Redis(unix_socket_path=str(redis_server.socket)) as redis:
        redis.flushall()
    wait_for_dispatch(engine)


def test_queue__no_worker_takes_messages__stops_growing_until_one_does(
    fleet: Fleet, engine: Engine, redis_server: embedded_servers.EmbeddedServer
) -> None:
    wait_for_dispatch(engine)
    app = Celery(broker=redis_server.url)
    app.conf.update(task_default_queue="no-worker", task_publish_retry=False)
    dispatcher = TaskDispatcher(app, most_waiting=20)
    effects = [
        OpenEffect(number, JobId(f"0x{number:064x}"), EffectKind.SUBMIT, 1, 0)
        for number in range(50)
    ]
    with Redis(unix_socket_path=str(redis_server.socket)) as redis:
        for effect in effects:
            dispatcher.dispatch_effects([effect])
            dispatcher.dispatch("poll_jobs")
        assert redis.llen("no-worker") == 20
        redis.delete("no-worker")

        def sent() -> bool:
            dispatcher.dispatch("collect_receipts")
            return bool(redis.llen("no-worker"))

        wait_until(sent, "messages to be sent again", 60.0, 0.1)
    app.close()
