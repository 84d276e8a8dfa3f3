"""Sends spans to a receiver of OpenTelemetry, by OTLP over HTTP, from threads of its
own.

Queues are bounded: when the receiver is slow or away, spans are dropped and the work
goes on.
"""

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from queue import Full, Queue

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from supervisor_tasks.errors import SupervisorError
from supervisor_tasks.jobs.model import Job, JobId
from supervisor_tasks.jobs.trace import Span, Value, span_id, spans_of, trace_id
from supervisor_tasks.observability.traces import History

log = structlog.get_logger()

PATH = "/v1/traces"
SEND_S = 3.0  # for one batch, with the tries
SEND_EVERY_MS = 1000
BATCH_SPANS = 256
MAX_SPANS = 4096
MAX_ENDED_JOBS = 1000  # jobs whose history is still to be read
CLOSE_S = 3.0
SPAN_BITS = 64
NS_PER_S = 1_000_000_000
SCOPE = InstrumentationScope("grid-supervisor", version("grid-supervisor"))


class OtlpTracer:
    """Sends the spans of one process. Threads may share it."""

    def __init__(
        self, endpoint: str, cluster: str, process: str, history: History | None = None
    ) -> None:
        # _Exporter logs a failure in one line
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
        self._cluster = cluster
        self._history = history
        self._resource = Resource.create(
            {
                "service.name": f"supervisor-{process}",
                "service.version": version("grid-supervisor"),
                "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
            }
        )
        exporter = OTLPSpanExporter(
            endpoint=endpoint.rstrip("/") + PATH, timeout=SEND_S
        )
        self._processor = BatchSpanProcessor(
            _Exporter(exporter),
            max_queue_size=MAX_SPANS,
            schedule_delay_millis=SEND_EVERY_MS,
            max_export_batch_size=BATCH_SPANS,
        )
        self._ends: Queue[Job | None] = Queue(MAX_ENDED_JOBS)
        self._reader = threading.Thread(
            target=self._read_on, name="traces", daemon=True
        )
        self._reader.start()

    def span(
        self,
        job_id: JobId,
        name: str,
        begun_s: float,
        ended_s: float,
        **attributes: Value,
    ) -> None:
        """Send a span, as Tracer.span."""
        span = Span(
            trace_id=trace_id(self._cluster, job_id),
            span_id=secrets.randbits(SPAN_BITS) or 1,
            parent_id=span_id(self._cluster, job_id),
            name=name,
            begun_s=begun_s,
            ended_s=ended_s,
            attributes={"job_id": job_id, "cluster": self._cluster, **attributes},
        )
        self._processor.on_end(self._readable(span))

    def ended(self, jobs: Sequence[Job]) -> None:
        """Send the spans of ended jobs, as Tracer.ended. A thread reads the history:
        the database may be slow.
        """
        for job in jobs:
            with suppress(Full):
                self._ends.put_nowait(job)

    def close(self) -> None:
        """Send what is left, within CLOSE_S."""
        until_s = time.monotonic() + CLOSE_S
        with suppress(Full):
            self._ends.put_nowait(None)
        self._reader.join(CLOSE_S / 2)
        sending = threading.Thread(
            target=self._processor.shutdown, name="last traces", daemon=True
        )
        sending.start()
        sending.join(max(0.0, until_s - time.monotonic()))

    def _read_on(self) -> None:
        while (job := self._ends.get()) is not None:
            self._send_end(job)

    def _send_end(self, job: Job) -> None:
        if self._history is None:
            return
        try:
            spans = spans_of(self._cluster, job, *self._history(job))
        except SupervisorError as error:
            log.warning("trace_not_read", job_id=job.job_id, error=str(error))
            return
        for span in spans:
            self._processor.on_end(self._readable(span))

    def _readable(self, span: Span) -> ReadableSpan:
        """Return a span in the SDK's form. The SDK's own tracer makes no spans of the
        past and gives random ids.
        """
        parent: SpanContext | None = None
        if span.parent_id is not None:
            parent = _context(span.trace_id, span.parent_id)
        return ReadableSpan(
            span.name,
            context=_context(span.trace_id, span.span_id),
            parent=parent,
            resource=self._resource,
            attributes=dict(span.attributes),
            start_time=int(span.begun_s * NS_PER_S),
            end_time=int(span.ended_s * NS_PER_S),
            instrumentation_scope=SCOPE,
        )


def _context(trace: int, span: int) -> SpanContext:
    return SpanContext(
        trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)
    )


class _Exporter(SpanExporter):
    """Hands batches to another exporter, and logs once that it fails, and once that it
    works again.
    """

    def __init__(self, exporter: OTLPSpanExporter) -> None:
        self._exporter = exporter
        self._fails = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch. A batch that was not taken is dropped."""
        result = self._exporter.export(spans)
        fails = result is not SpanExportResult.SUCCESS
        if fails == self._fails:
            return result
        self._fails = fails
        if fails:
            log.warning(
                "traces_not_sent",
                advice="see whether OTEL_EXPORTER_OTLP_ENDPOINT answers; the work goes on",
            )
        else:
            log.info("traces_sent_again")
        return result

    def shutdown(self) -> None:
        """End the tries that are under way."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the exporter has no types there
