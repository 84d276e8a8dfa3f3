"""What each process reports to an orchestrator over HTTP at HEALTH_ADDRESS.

/livez: whether its main loop completes rounds; if not, the process must be restarted.
/readyz: whether the services that it needs answer, with the state of each as JSON.
/metrics: the same and the process's own figures, for Prometheus. `supervisor metrics`
has the ledger's metrics there, too, and answers at METRICS_ADDRESS.
"""

import asyncio
import time
from collections.abc import Collection, Iterator
from typing import Any

import structlog
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from plugins.probes.dependencies import Dependencies, Dependency
from plugins.probes.http_server import Page, Pages, ProbeServer
from plugins.probes.pages import livez, readyz
from plugins.probes.progress import LOOP, PROGRESS_EVERY_S, Progress
from supervisor_tasks import instruments
from supervisor_tasks.config.embedded_servers import (
    broker_tls,
    broker_url,
    database_url,
)
from supervisor_tasks.config.settings import (
    Settings,
    SettingsError,
    load_or_exit,
    or_exit,
)
from supervisor_tasks.messaging.queues import Queue
from supervisor_tasks.observability.checks import (
    BrokerAnswers,
    ChainAnswers,
    DatabaseAnswers,
    LoginNodeAnswers,
    RestAnswers,
)
from supervisor_tasks.observability.loop_watchdog import start_loop_watchdog

log = structlog.get_logger()


def serve(
    settings: Settings, process: str, dependencies: Dependencies
) -> ProbeServer | None:
    """Answer at HEALTH_ADDRESS, if it is set. Raises SettingsError if the address is
    not available; a retry does not help.
    """
    if settings.health_address is None:
        return None
    registry = CollectorRegistry()
    try:
        server = ProbeServer(
            settings.health_address,
            pages(LOOP, dependencies, registry),
            log_failed_page,
        )
    except OSError as error:
        line = f"HEALTH_ADDRESS: found {settings.health_address!r}; expected a free one of this machine ({error})"
        raise SettingsError([line]) from error
    register_process(registry, settings.cluster_name, process, LOOP, dependencies)
    dependencies.start()
    server.start()
    log.info(
        "probes_served",
        process=process,
        address=settings.health_address,
        port=server.server_port,
    )
    return server


def serve_metrics(
    address: str,
    cluster: str,
    ledger: Collector,
    dependencies: Dependencies,
    loop: Progress = LOOP,
) -> ProbeServer:
    """Answer at host:port, with the ledger's metrics beside those of the process.

    Raises OSError if the address is not available, and ValueError if it is malformed.
    """
    registry = CollectorRegistry()
    server = ProbeServer(address, pages(loop, dependencies, registry), log_failed_page)
    register_process(registry, cluster, "metrics", loop, dependencies)
    registry.register(ledger)
    dependencies.start()
    start_loop_watchdog(loop, dependencies, "metrics")
    server.start()
    return server


def pages(
    loop: Progress, dependencies: Dependencies, registry: CollectorRegistry
) -> Pages:
    """Return the three pages."""
    return {
        "/livez": lambda: livez(loop, dependencies),
        "/readyz": lambda: readyz(loop, dependencies),
        "/metrics": lambda: Page(
            generate_latest(registry), content_type=CONTENT_TYPE_LATEST
        ),
    }


def register_process(
    registry: CollectorRegistry,
    cluster: str,
    process: str,
    loop: Progress,
    dependencies: Dependencies,
) -> None:
    """Register the metrics that every process has at /metrics."""
    own = CollectorRegistry()
    ProcessCollector(registry=own)
    GCCollector(registry=own)
    instruments.zero(process)
    collectors = (
        ProcessMetrics(loop, dependencies),
        instruments.BuildInfo(process),
        own,
        instruments.REGISTRY,
    )
    registry.register(instruments.ClusterLabel(cluster, *collectors))


class ProcessMetrics(Collector):
    """A process's loop and the services that it needs."""

    def __init__(self, loop: Progress, dependencies: Dependencies) -> None:
        self._loop = loop
        self._dependencies = dependencies

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of one scrape."""
        yield GaugeMetricFamily(
            "supervisor_loop_timestamp_seconds",
            "When the main loop last came round.",
            value=time.time() - self._loop.age_s,
        )
        answers = GaugeMetricFamily(
            "supervisor_dependency_up",
            "Whether a service that the process needs answers.",
            labels=["dependency"],
        )
        for name, state in self._dependencies.states().items():
            answers.add_metric([name], int(bool(state["ok"])))
        yield answers


# --- which services which process needs -----------------------------------------------


def serve_worker(sender: Any, **_: object) -> None:
    """Serve the probes when a worker has started and its queues are set."""
    settings = load_or_exit()
    served = {
        queue
        for queue in Queue
        if queue.of(settings.cluster_name) in sender.app.amqp.queues.consume_from
    }
    with or_exit():
        serve(settings, "worker", services(*needs_of_worker(settings, served)))


def needs_of_worker(settings: Settings, served: Collection[Queue]) -> list[Dependency]:
    """Return the services without which a worker of these queues cannot work."""
    needs = [database(database_url(settings)), _broker(settings)]
    if Queue.CHAIN in served:
        needs.append(Dependency("chain", ChainAnswers(settings.rpc_urls)))
    if {Queue.SLURM, Queue.BENCHMARK} & set(served):
        needs += _slurm(settings)
    return needs


def _slurm(settings: Settings) -> list[Dependency]:
    """Return the service through which the worker reaches SLURM. A worker without one
    ends at its start.
    """
    if settings.slurm_transport == "rest" and settings.slurmrestd_url is not None:
        return [
            Dependency(
                "slurmrestd",
                RestAnswers(settings.slurmrestd_url, settings.slurmrestd_ca),
            )
        ]
    if settings.slurm_ssh_address is not None:
        return [Dependency("login node", LoginNodeAnswers(settings.slurm_ssh_address))]
    return []


def serve_beat(**_: object) -> None:
    """Serve the probes when beat starts."""
    settings = load_or_exit()
    with or_exit():
        needed = services(
            database(database_url(settings), holds_loop=True),
            _broker(settings),
            quiet=settings.health_address is None,
        )
        serve(settings, "beat", needed)
    _watch_loop(settings, "beat", needed)


def serve_flower(settings: Settings) -> None:
    """Serve the probes before Flower starts. Its loop is tornado's, of this thread."""
    from tornado.ioloop import IOLoop, PeriodicCallback

    PeriodicCallback(LOOP.completed, PROGRESS_EVERY_S * 1000).start()
    needed = services(_broker(settings), quiet=settings.health_address is None)
    serve(settings, "flower", needed)
    # in the loop: a program that only reads this configuration runs none
    IOLoop.current().add_callback(_watch_loop, settings, "flower", needed)


def _watch_loop(settings: Settings, process: str, needed: Dependencies) -> None:
    """End the process when its loop stands, also where no HEALTH_ADDRESS is set."""
    if settings.health_address is None:
        needed.start()
    start_loop_watchdog(LOOP, needed, process)


def serve_callbacks(settings: Settings) -> ProbeServer | None:
    """Serve the probes of the gRPC process, which acknowledges a callback once the
    database has stored it.

    It does not require the broker: without the broker, workers only read the callbacks
    later.
    """
    return serve(
        settings,
        "callbacks",
        services(database(database_url(settings)), _broker(settings, required=False)),
    )


async def show_progress() -> None:
    """Show that asyncio's loop completes rounds, until this task is cancelled."""
    while True:
        LOOP.completed()
        await asyncio.sleep(PROGRESS_EVERY_S)


def note_ending(**_: object) -> None:
    """Note that the loop is ending, when Celery shuts the worker down: its last work
    may take longer than a round may.
    """
    LOOP.end()


def database(url: str, *, holds_loop: bool = False) -> Dependency:
    """Return the ledger's database as a service that a process needs. `url` has
    SQLAlchemy's form.
    """
    return Dependency("database", DatabaseAnswers(url), holds_loop=holds_loop)


def _broker(settings: Settings, *, required: bool = True) -> Dependency:
    """Return the broker. The loop of a process that requires the broker waits for it,
    up to 10 s for each answer.
    """
    return Dependency(
        "broker",
        BrokerAnswers(broker_url(settings), broker_tls(settings)),
        required,
        holds_loop=required,
    )


def services(*needed: Dependency, quiet: bool = False) -> Dependencies:
    """Return the services that a process needs. The process logs when one stops
    answering; with `quiet` only its work does, when it meets the outage.
    """
    return Dependencies(*needed, log_failure=_ignore if quiet else _log_failure)


def _ignore(dependency: str, error: Exception) -> None:
    """The work itself logs the outage."""


def _log_failure(dependency: str, error: Exception) -> None:
    log.warning("dependency_not_answering", dependency=dependency, error=str(error))


def log_failed_page(peer: str) -> None:
    """Log the error of a page. Call it in the error's `except` clause."""
    log.exception("probe_not_answered", peer=peer)
