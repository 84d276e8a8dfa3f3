"""Wake-ups on a real Redis: no second message for what still waits, and one for all who want a drain at about the same time."""

from collections.abc import Iterator

import pytest
from celery import Celery
from redis import Redis

from devgrid.grid import start_server
from devgrid.state import private_processes
from supervisor_tasks import embedded
from supervisor_tasks.brim import BUSY
from supervisor_tasks.job import JobId, Kind
from supervisor_tasks.ledger.effects import OpenEffect
from supervisor_tasks.wake import WakeUps

QUEUE = "nobody"


@pytest.fixture(scope="module")
def server() -> Iterator[embedded.Server]:
    with private_processes() as processes:
        folder = processes.folder / "redis"
        folder.mkdir()
        redis = embedded.redis(folder)
        start_server(processes, "redis", redis)
        yield redis


@pytest.fixture
def redis(server: embedded.Server) -> Iterator[Redis]:
    with Redis(unix_socket_path=str(server.socket)) as redis:
        redis.flushall()
        yield redis


@pytest.fixture
def wake_ups(server: embedded.Server) -> Iterator[WakeUps]:
    app = Celery(broker=server.url)
    app.conf.update(task_default_queue=QUEUE, task_publish_retry=False)
    yield WakeUps(app)
    app.close()


def effects(number: int, kind: Kind = Kind.SUBMIT, *, woken: bool = False, due_in_s: float = 0.0) -> list[OpenEffect]:
    job_ids = [JobId(f"0x{n:064x}") for n in range(number)]
    return [OpenEffect(n, job_id, kind, 1, 0, due_in_s, woken=woken) for n, job_id in enumerate(job_ids)]


def test_effects__woken_while_the_queue_is_busy__no_second_message(wake_ups: WakeUps, redis: Redis) -> None:
    wake_ups.effects(effects(BUSY + 1))
    wake_ups.effects(effects(BUSY + 1, woken=True))
    assert redis.llen(QUEUE) == BUSY + 1
    wake_ups.effects(effects(3))
    assert redis.llen(QUEUE) == BUSY + 4


def test_effects__woken_and_their_messages_are_lost__all_are_sent_again(wake_ups: WakeUps, redis: Redis) -> None:
    wake_ups.effects(effects(5 * BUSY))
    redis.flushall()
    wake_ups.effects(effects(5 * BUSY, woken=True))
    assert redis.llen(QUEUE) == 5 * BUSY


def test_effects__a_drain_is_wanted_in_a_while_by_many__one_message_or_two(wake_ups: WakeUps, redis: Redis) -> None:
    for effect in effects(30, Kind.WITNESS, due_in_s=1.0):
        wake_ups.effects([effect])
    assert 1 <= int(redis.llen(QUEUE)) < 10


def test_effects__a_drain_is_wanted_now__is_woken_at_once(wake_ups: WakeUps, redis: Redis) -> None:
    wake_ups.effects(effects(2, Kind.WITNESS, due_in_s=1.0))
    wake_ups.effects(effects(2, Kind.WITNESS))
    wake_ups.effects(effects(2, Kind.WITNESS))
    assert redis.llen(QUEUE) == 3
