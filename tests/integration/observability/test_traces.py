"""Traces: a receiver that is away or slow holds nothing up, strangers' callbacks make
none, and off means off.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from devgrid import REPOSITORY
from devgrid.machine import deadline
from devgrid.ports import free_port
from devgrid.processes import wait_until
from grpc_callbacks.callback_writer import CallbackNotStoredError, CallbackWriter
from grpc_callbacks.validation import CallbackPayload
from supervisor_tasks.errors import TransientError
from supervisor_tasks.jobs.model import Job
from supervisor_tasks.jobs.trace import Recorded
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.observability.otlp import (
    BATCH_SPANS,
    CLOSE_S,
    MAX_SPANS,
    OtlpTracer,
)
from tests.support.callback_servers import TRIES
from tests.support.ledger import bring_to_queued, job_id, migrated
from tests.support.traces import TraceReceiver, trace_receiver

MANY = 3 * MAX_SPANS
SLACK_S = 4.0  # for a slow machine
# What a fleet's processes import, and what they get with and without the setting. The
# parts that redis imports by itself, if they are there, are those of metrics.
PROBE = """
import json, sys
if "blocked" in sys.argv:
    sys.modules["opentelemetry"] = None
import supervisor_tasks.bootstrap, supervisor_tasks.tasks, grpc_callbacks.__main__
from supervisor_tasks.config.settings import load
from supervisor_tasks.observability.traces import tracer_of
on = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"} if "on" in sys.argv else {}
tracer = tracer_of(load(environment=on), "worker")
names = [name for name in sys.modules if name.startswith("opentelemetry.")]
print(json.dumps({"tracer": type(tracer).__name__, "modules": names}))
"""


@pytest.fixture
def receiver() -> Iterator[TraceReceiver]:
    with trace_receiver() as server:
        yield server


def probe(*words: str) -> tuple[str, list[str], str]:
    """The tracer that a process gets, the modules of OpenTelemetry that it has
    imported, and what it logged.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=deadline(60),
    )
    assert done.returncode == 0, done.stderr
    *logged, last = done.stdout.splitlines()
    found = json.loads(last)
    return found["tracer"], found["modules"], "\n".join(logged) + done.stderr


def tell(tracer: OtlpTracer, number: int) -> float:
    """Tell of so many spans; returns how long that took."""
    begun_s = time.monotonic()
    for _ in range(number):
        tracer.span(job_id(1), "callback", time.time(), time.time())
    return time.monotonic() - begun_s


def store(writer: CallbackWriter, callback: CallbackPayload) -> None:
    """Store a callback; again, as a plugin does, if it could not be stored in time."""
    for left in reversed(range(TRIES)):
        try:
            asyncio.run(writer.store(callback, "test"))
        except CallbackNotStoredError:
            if not left:
                raise
        else:
            return


def events(logs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [entry["event"] for entry in logs]


def closed_within_s(tracer: OtlpTracer) -> float:
    begun_s = time.monotonic()
    tracer.close()
    return time.monotonic() - begun_s


def test_off__no_process_imports__what_sends_spans() -> None:
    tracer, modules, _ = probe()
    assert tracer == "NoTraces"
    assert [
        name
        for name in modules
        if name.startswith(("opentelemetry.exporter", "opentelemetry.sdk.trace"))
    ] == []


def test_off__without_the_packages__every_process_works() -> None:
    tracer, modules, _ = probe("blocked")
    assert (tracer, modules) == ("NoTraces", [])


def test_on__without_the_packages__is_a_warning_and_the_process_works() -> None:
    tracer, modules, logged = probe("blocked", "on")
    assert (tracer, modules) == ("NoTraces", [])
    assert logged.count("traces_unavailable") == 1


def test_on__with_the_packages__sends() -> None:
    tracer, modules, _ = probe("on")
    assert tracer == "OtlpTracer"
    assert "opentelemetry.exporter.otlp.proto.http.trace_exporter" in modules


def test_tracer__receiver_is_away__work_goes_on_and_spans_arrive_once_it_is_there() -> (
    None
):
    port = free_port()
    tracer = OtlpTracer(f"http://127.0.0.1:{port}/", "here", "worker")
    with capture_logs() as logs:
        assert tell(tracer, MANY) < deadline(5.0)
        wait_until(lambda: "traces_not_sent" in events(logs), "the warning", 30.0, 0.05)
        with trace_receiver(port) as receiver:

            def has_come() -> bool:
                tell(tracer, 1)
                return bool(receiver.spans)

            wait_until(has_come, "spans to arrive", 60.0, 0.2)
            wait_until(
                lambda: "traces_sent_again" in events(logs), "the news", 30.0, 0.05
            )
            tracer.close()


def test_receiver_refuses__many_batches__are_one_warning(
    receiver: TraceReceiver,
) -> None:
    receiver.status = 400
    tracer = OtlpTracer(receiver.url, "here", "worker")
    with capture_logs() as logs:
        tell(tracer, 4 * BATCH_SPANS)
        wait_until(lambda: receiver.refused >= 4, "batches to be refused", 30.0, 0.05)
        tracer.close()
    assert events(logs) == ["traces_not_sent"]


def test_tracer__receiver_is_away__closes_in_time() -> None:
    tracer = OtlpTracer(f"http://127.0.0.1:{free_port()}", "here", "worker")
    tell(tracer, MANY)
    assert closed_within_s(tracer) < deadline(CLOSE_S + SLACK_S)


def test_tracer__receiver_is_slow__work_goes_on_and_it_closes_in_time(
    receiver: TraceReceiver,
) -> None:
    receiver.let_go.clear()
    tracer = OtlpTracer(receiver.url, "here", "worker")
    tell(tracer, BATCH_SPANS)
    assert receiver.asked.wait(deadline(30.0))
    assert tell(tracer, MANY) < deadline(5.0)
    assert closed_within_s(tracer) < deadline(CLOSE_S + SLACK_S)


def test_tracer__receiver_is_slow__its_queue_is_bounded(
    receiver: TraceReceiver,
) -> None:
    receiver.let_go.clear()
    tracer = OtlpTracer(receiver.url, "here", "worker")
    tell(tracer, BATCH_SPANS)
    assert receiver.asked.wait(deadline(30.0))
    tell(tracer, MANY)
    receiver.let_go.set()
    wait_until(
        lambda: len(receiver.spans) >= MAX_SPANS - BATCH_SPANS,
        "what waits to arrive",
        60.0,
        0.05,
    )
    tracer.close()
    assert len(receiver.spans) <= MAX_SPANS + 2 * BATCH_SPANS


def test_close__spans_that_wait__are_sent(receiver: TraceReceiver) -> None:
    tracer = OtlpTracer(receiver.url, "here", "worker")
    tell(tracer, 3)
    if closed_within_s(tracer) >= CLOSE_S:  # on a slow machine it goes on sending
        wait_until(lambda: bool(receiver.spans), "the spans", 30.0, 0.05)
    assert len(receiver.of(job_id(1))) == 3


def test_ended__the_ledger_is_away__is_a_warning_and_the_next_end_is_told(
    receiver: TraceReceiver,
) -> None:
    with migrated() as (engine, _):
        ledger = Ledger(engine, "here", lambda _: None)
        job = ledger.jobs([bring_to_queued(ledger, 1)])[job_id(1)]
        answers = iter((TransientError("away"), ledger.journal.history(job)))

        def history(_: Job) -> tuple[list[Recorded], float | None]:
            answer = next(answers)
            if isinstance(answer, TransientError):
                raise answer
            return answer

        with capture_logs() as logs:
            tracer = OtlpTracer(receiver.url, "here", "worker", history)
            tracer.ended([job, job])
            tracer.close()
        ledger.holder.close()
    assert events(logs) == ["trace_not_read"]
    assert next(answers, None) is None


def test_callbacks__of_jobs_that_the_ledger_does_not_have__make_no_spans(
    receiver: TraceReceiver,
) -> None:
    with migrated() as (engine, environment):
        ledger = Ledger(engine, "here", lambda _: None)
        known = bring_to_queued(ledger, 1)
        tracer = OtlpTracer(receiver.url, "here", "callbacks")
        writer = CallbackWriter(environment["DATABASE_URL"], "here", tracer=tracer)
        for name in (job_id(2), known):
            store(writer, CallbackPayload(name, 101, 7, 60, 0))
        wait_until(lambda: bool(receiver.spans), "the span", 60.0, 0.05)
        writer.close()
        tracer.close()
        ledger.holder.close()
    # a callback that was sent again may have two
    assert {(span.service, span.name) for span in receiver.spans} == {
        ("supervisor-callbacks", "callback")
    }
    for span in receiver.spans:
        assert span.attributes["job_id"] == known
        assert (span.attributes["status"], span.attributes["slurm_id"]) == (7, 101)
