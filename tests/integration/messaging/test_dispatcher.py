"""Messages on a real Redis: no second message for what still waits, and one for all
callers that want a task at about the same time.
"""

import json
from collections.abc import Iterator

import pytest
from celery import Celery
from redis import Redis

from devgrid.services.start import start_server
from devgrid.state_folder import private_processes
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.jobs.model import EffectKind, JobId
from supervisor_tasks.ledger.outbox import OpenEffect
from supervisor_tasks.messaging.backpressure import BACKLOG_MESSAGES
from supervisor_tasks.messaging.dispatcher import TaskDispatcher

QUEUE = "no-worker"


@pytest.fixture(scope="module")
def server() -> Iterator[embedded_servers.EmbeddedServer]:
    with private_processes() as processes:
        folder = processes.folder / "redis"
        folder.mkdir()
        redis = embedded_servers.redis(folder)
        start_server(processes, "redis", redis)
        yield redis


@pytest.fixture
def redis(server: embedded_servers.EmbeddedServer) -> Iterator[Redis]:
    with Redis(unix_socket_path=str(server.socket)) as redis:
        redis.flushall()
        yield redis


@pytest.fixture
def dispatcher(server: embedded_servers.EmbeddedServer) -> Iterator[TaskDispatcher]:
    app = Celery(broker=server.url)
    app.conf.update(task_default_queue=QUEUE, task_publish_retry=False)
    yield TaskDispatcher(app)
    app.close()


def effects(
    number: int,
    kind: EffectKind = EffectKind.SUBMIT,
    *,
    notified: bool = False,
    due_in_s: float = 0.0,
) -> list[OpenEffect]:
    job_ids = [JobId(f"0x{n:064x}") for n in range(number)]
    return [
        OpenEffect(n, job_id, kind, 1, 0, due_in_s, notified=notified)
        for n, job_id in enumerate(job_ids)
    ]


def fill(redis: Redis, messages: int) -> None:
    for _ in range(messages):
        redis.rpush(QUEUE, "another's")


def test_effects__many_of_a_kind__one_message_that_names_their_jobs(
    dispatcher: TaskDispatcher, redis: Redis
) -> None:
    dispatcher.dispatch_effects([*effects(50), *effects(3, EffectKind.FETCH)])
    messages = [json.loads(message) for message in redis.lrange(QUEUE, 0, -1)]
    assert {message["headers"]["task"].rpartition(".")[2] for message in messages} == {
        "submit",
        "fetch",
    }
    assert len(messages) == 2
    (submit,) = (
        message for message in messages if message["headers"]["task"].endswith("submit")
    )
    assert all(effect.job_id in submit["headers"]["argsrepr"] for effect in effects(50))


def test_effects__dispatched_while_the_queue_is_busy__no_second_message(
    dispatcher: TaskDispatcher, redis: Redis
) -> None:
    fill(redis, BACKLOG_MESSAGES)
    dispatcher.dispatch_effects(effects(3))
    dispatcher.dispatch_effects(effects(3, notified=True))
    assert redis.llen(QUEUE) == BACKLOG_MESSAGES + 1
    dispatcher.dispatch_effects(effects(3))
    assert redis.llen(QUEUE) == BACKLOG_MESSAGES + 2


def test_effects__dispatched_and_their_messages_are_lost__are_sent_again(
    dispatcher: TaskDispatcher, redis: Redis
) -> None:
    fill(redis, BACKLOG_MESSAGES)
    dispatcher.dispatch_effects(effects(5))
    redis.flushall()
    dispatcher.dispatch_effects(effects(5, notified=True))
    assert redis.llen(QUEUE) == 1


def test_effects__many_request_a_later_batch__one_message_or_two(
    dispatcher: TaskDispatcher, redis: Redis
) -> None:
    for effect in effects(30, EffectKind.POLL_SLURM, due_in_s=1.0):
        dispatcher.dispatch_effects([effect])
    assert 1 <= int(redis.llen(QUEUE)) < 10


def test_effects__a_batch_is_requested_now__is_dispatched_at_once(
    dispatcher: TaskDispatcher, redis: Redis
) -> None:
    dispatcher.dispatch_effects(effects(2, EffectKind.POLL_SLURM, due_in_s=1.0))
    dispatcher.dispatch_effects(effects(2, EffectKind.POLL_SLURM))
    dispatcher.dispatch_effects(effects(2, EffectKind.POLL_SLURM))
    assert redis.llen(QUEUE) == 3
