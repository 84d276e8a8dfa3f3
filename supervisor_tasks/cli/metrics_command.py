"""The command that serves the metrics to Prometheus."""

import signal
import threading
from typing import Annotated

import structlog
import typer

from plugins.probes.progress import LOOP, PROGRESS_EVERY_S
from supervisor_tasks.cli import options
from supervisor_tasks.cli.cli_context import cli_context
from supervisor_tasks.cli.exit_codes import UnusableError
from supervisor_tasks.cli.target import target
from supervisor_tasks.config import logging as logs
from supervisor_tasks.config.embedded_servers import running_database_url
from supervisor_tasks.config.process_protection import protect_memory
from supervisor_tasks.config.variables import warn_of_mistyped
from supervisor_tasks.ledger.database import open_engine
from supervisor_tasks.ledger.figures import read_figures
from supervisor_tasks.ledger.status_queries import Overview
from supervisor_tasks.observability.metrics import (
    CachedReading,
    LedgerMetrics,
    LedgerReading,
)
from supervisor_tasks.observability.probes import (
    database,
    serve_metrics,
    services,
)

log = structlog.get_logger()
app = options.single()


@app.command()
def metrics(
    context: typer.Context,
    listen: Annotated[
        str | None,
        typer.Option(
            help="host:port instead of METRICS_ADDRESS; port 0 is any free one."
        ),
    ] = None,
) -> None:
    """Serve the ledger's metrics to Prometheus, and /livez and /readyz, until the
    process is ended.

    Example: supervisor metrics --listen 127.0.0.1:9464
    """
    cli = cli_context(context)
    settings, cluster = cli.settings, cli.settings.cluster_name
    logs.configure(settings.effective_log_level, settings.secret_values(), cluster)
    logs.log_crashes()
    warn_of_mistyped()
    address, url = listen or settings.metrics_address, running_database_url(settings)
    engine = open_engine(url, connections=3)
    overview = Overview(
        engine, cluster
    )  # and not cli.overview, which refuses a cluster before its fleet has begun to work

    def read() -> LedgerReading:
        summary = overview.snapshot()
        return LedgerReading(
            summary, read_figures(engine, cluster), not cli.problems(summary)
        )

    collected = LedgerMetrics(cluster, CachedReading(read))
    try:
        server = serve_metrics(address, cluster, collected, services(database(url)))
    except (OSError, ValueError) as error:
        raise UnusableError(
            f"found {address!r}; expected host:port ({error})"
        ) from error
    ended = threading.Event()
    # The kernel drops signals without a handler for the first process of a container.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    protect_memory("metrics")
    host = address.rpartition(":")[0] or "0.0.0.0"  # noqa: S104
    log.info(
        "metrics_served",
        url=f"http://{host}:{server.server_port}/metrics",
        ledger=target(cluster, url),
    )
    while not ended.wait(PROGRESS_EVERY_S):
        LOOP.completed()
    server.stop()
    engine.dispose()
    log.info("ended")


COMMANDS = {"metrics": app}
