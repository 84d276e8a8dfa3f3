"""A receiver of traces: OTLP over HTTP, parsed with OpenTelemetry's own messages."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from tests.support.http_servers import served

NS = 1_000_000_000
Value = str | int | bool


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A received span. Ids are hex; `parent` is empty for a root. Times are Unix
    times.
    """

    service: str
    trace: str
    id: str
    parent: str
    name: str
    begun_s: float
    ended_s: float
    attributes: dict[str, Value]


class TraceReceiver(ThreadingHTTPServer):
    """Keeps each span that it accepts, and answers with `status`. While `let_go` is not
    set, it does not answer.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.spans: list[ReceivedSpan] = []
        self.paths: set[str] = set()
        self.status = 200
        self.refused = 0
        self.asked = threading.Event()
        self.let_go = threading.Event()
        self.let_go.set()

    @property
    def url(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def of(self, job_id: str) -> list[ReceivedSpan]:
        """The spans about a job."""
        return [span for span in self.spans if span.attributes.get("job_id") == job_id]


class _Handler(BaseHTTPRequestHandler):
    server: TraceReceiver

    def do_POST(self) -> None:
        """Store the spans, and answer with the receiver's status."""
        request = ExportTraceServiceRequest.FromString(
            self.rfile.read(int(self.headers["Content-Length"]))
        )
        self.server.asked.set()
        self.server.let_go.wait()
        self.server.paths.add(self.path)
        if self.server.status == 200:
            self.server.spans += _spans(request)
        else:
            self.server.refused += 1
        body = ExportTraceServiceResponse().SerializeToString()
        with suppress(ConnectionError):  # the sender has ended meanwhile
            self.send_response(self.server.status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def _spans(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for resource in request.resource_spans:
        service = str(_values(resource.resource.attributes)["service.name"])
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    service,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.name,
                    span.start_time_unix_nano / NS,
                    span.end_time_unix_nano / NS,
                    _values(span.attributes),
                )


def _values(attributes: Iterable[KeyValue]) -> dict[str, Value]:
    return {pair.key: _value(pair.value) for pair in attributes}


def _value(value: AnyValue) -> Value:
    kinds: dict[str | None, Value] = {
        "string_value": value.string_value,
        "int_value": value.int_value,
        "bool_value": value.bool_value,
    }
    return kinds[value.WhichOneof("value")]


@contextmanager
def trace_receiver(port: int = 0) -> Iterator[TraceReceiver]:
    """A running receiver."""
    server = TraceReceiver(port)
    with served(server, server.let_go):
        yield server
