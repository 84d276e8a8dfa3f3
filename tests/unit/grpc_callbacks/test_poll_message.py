from typing import Any

from celery import Celery
from celery.worker.request import Request
from kombu.connection import Connection
from kombu.messaging import Producer

from devgrid.machine import deadline
from grpc_callbacks.notifier import poll_message

NAME = "supervisor_tasks.tasks.poll_jobs"
APART = ("id", "root_id", "origin")  # of each message, or of its sender


def test_poll_message__beside_what_celery_publishes__says_the_same() -> None:
    app = Celery(set_as_current=False)
    celerys = app.amqp.as_task_v2("of this one", NAME, ignore_result=True)
    ours = poll_message()
    assert ours["body"] == [
        list(part) if isinstance(part, tuple) else part for part in celerys.body
    ]
    for name, value in celerys.headers.items():
        if name not in APART:
            assert (ours["headers"].get(name) or None) == (value or None), name
    assert ours["headers"]["id"] == ours["headers"]["root_id"] == ours["correlation_id"]


def work() -> None:
    """Do nothing."""


def test_poll_message__published__is_a_request_of_a_celery_worker() -> None:
    app = Celery(set_as_current=False)
    task = app.task(name="of the test", shared=False)(work)
    connect: Any = Connection
    producer: Any = Producer
    with connect("memory://") as connection:
        queue = connection.SimpleQueue("of the test", no_ack=True)
        sent = poll_message()
        producer(connection).publish(**sent, exchange="", routing_key="of the test")
        request = Request(queue.get(timeout=deadline(5.0)), app=app, task=task)
    assert (request.name, request.id, request.args, request.kwargs) == (
        NAME,
        sent["correlation_id"],
        [],
        {},
    )
    assert request.ignore_result
