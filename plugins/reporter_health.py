"""What the reporter serves to an orchestrator: /livez, /readyz and /metrics."""

import platform
import sys
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from plugins import spool
from plugins.json_log import EventLog
from plugins.probes.dependencies import Dependencies, Dependency
from plugins.probes.http_server import Page, ProbeServer
from plugins.probes.pages import livez, readyz
from plugins.probes.progress import LOOP

Labels = Mapping[str, str]
log = EventLog("reporter")

CHECK_TIMEOUT_S = 3.0
ASK_EVERY_S = 5.0  # a site may have a reporter on each node
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
LOOP_MOMENT = "supervisor_loop_timestamp_seconds"
ANSWERS = "supervisor_dependency_up"
WAITING = "supervisor_reporter_waiting_events"
EVENTS = "supervisor_reporter_events_total"
BUILD = "supervisor_build_info"
METRICS = {
    BUILD: ("gauge", "The version of the supervisor and of Python."),
    LOOP_MOMENT: ("gauge", "When the main loop last came round."),
    ANSWERS: (
        "gauge",
        "Whether a service that the process needs answers: the spool, the supervisor.",
    ),
    WAITING: ("gauge", "The events that wait in the spool."),
    EVENTS: ("counter", "Events by what became of them; failed counts the tries."),
}
"""Each metric's kind and meaning."""


class SupervisorNotServingError(Exception):
    """The supervisor answers, and cannot store callbacks."""


class SpoolReadable:
    """Counts the events that wait in the spool."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.waiting = 0

    def __call__(self) -> None:
        """Run the check. Raises OSError."""
        self.waiting = len(spool.pending(self._folder))


class SupervisorAnswers:
    """Asks the supervisor for its own health, which is no heartbeat."""

    def __init__(self, health: HealthStub) -> None:
        self._health: Any = health  # its types do not have the methods

    def __call__(self) -> None:
        """Run the check. Raises RpcError, or SupervisorNotServingError."""
        answer = self._health.Check(HealthCheckRequest(), timeout=CHECK_TIMEOUT_S)
        if answer.status != HealthCheckResponse.SERVING:
            raise SupervisorNotServingError("its database does not answer")


def serve_health(
    address: str,
    cluster: str,
    folder: Path,
    figures: Mapping[str, int],
    health: HealthStub,
) -> ProbeServer:
    """Answer probes at host:port. Raises OSError if the address is not available, and
    ValueError if it is not host:port.
    """
    readable = SpoolReadable(folder)
    needs = Dependencies(
        Dependency("spool", readable),
        Dependency("supervisor", SupervisorAnswers(health), every_s=ASK_EVERY_S),
        log_failure=lambda name, error: log.warning(
            "dependency_not_answering", dependency=name, error=str(error)
        ),
    )
    pages = {
        "/livez": lambda: livez(LOOP, needs),
        "/readyz": lambda: readyz(LOOP, needs),
        "/metrics": lambda: Page(
            _metrics(cluster, figures, readable.waiting, needs).encode(),
            content_type=PROMETHEUS,
        ),
    }
    server = ProbeServer(address, pages, _log_failed_page)
    needs.start()
    server.start()
    log.info(
        "probes_served", process="reporter", address=address, port=server.server_port
    )
    return server


def _log_failed_page(peer: str) -> None:
    log.error("probe_not_answered", peer=peer, error=repr(sys.exception()))


def _metrics(
    cluster: str, figures: Mapping[str, int], waiting: int, needs: Dependencies
) -> str:
    """Return the metrics in Prometheus's text format."""
    about = {
        "process": "reporter",
        "version": version("grid-supervisor"),
        "python": platform.python_version(),
    }
    values: dict[str, list[tuple[Labels, float]]] = {
        BUILD: [(about, 1)],
        LOOP_MOMENT: [({}, time.time() - LOOP.age_s)],
        ANSWERS: [
            ({"dependency": name}, int(bool(state["ok"])))
            for name, state in needs.states().items()
        ],
        WAITING: [({}, waiting)],
        EVENTS: [({"outcome": name}, number) for name, number in figures.items()],
    }
    return "".join(
        _exposed(name, *METRICS[name], cluster, values[name]) for name in METRICS
    )


def _exposed(
    name: str,
    kind: str,
    about: str,
    cluster: str,
    values: Iterable[tuple[Labels, float]],
) -> str:
    lines = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
    for labels, value in values:
        named = ",".join(
            f'{label}="{_escaped(text)}"'
            for label, text in {"cluster": cluster, **labels}.items()
        )
        lines.append(f"{name}{{{named}}} {value}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
