"""The command that serves the metrics to Prometheus."""

import signal
import threading
from typing import Annotated

import typer

from plugins.probes.progress import LOOP
from supervisor_tasks.cli import options
from supervisor_tasks.cli.context import cli_context
from supervisor_tasks.cli.exit_codes import UnusableError
from supervisor_tasks.config.embedded_servers import running_database_url
from supervisor_tasks.config.process_guard import guard_process
from supervisor_tasks.ledger.figures import read_figures
from supervisor_tasks.ledger.status_queries import Overview
from supervisor_tasks.monitoring.metrics import CachedReading, LedgerMetrics, LedgerReading
from supervisor_tasks.monitoring.probes import MARK_EVERY_S, database, serve_metrics, services

app = options.single()


@app.command()
def metrics(
    context: typer.Context,
    listen: Annotated[
        str | None, typer.Option(help="host:port instead of METRICS_ADDRESS; port 0 is any free one.")
    ] = None,
) -> None:
    """Serve the ledger's metrics to Prometheus, and /livez and /readyz, until the process is ended.

    Example: supervisor metrics --listen 127.0.0.1:9464
    """
    cli = cli_context(context)
    address = listen or cli.settings.metrics_address
    cluster, engine = cli.settings.cluster_name, cli.database
    overview = Overview(engine, cluster)  # also before the fleet has begun to work

    def read() -> LedgerReading:
        summary = overview.snapshot()
        return LedgerReading(summary, read_figures(engine, cluster), not cli.complaints(summary))

    collected = LedgerMetrics(cluster, CachedReading(read))
    try:
        server = serve_metrics(address, cluster, collected, services(database(running_database_url(cli.settings))))
    except (OSError, ValueError) as error:
        raise UnusableError(f"found {address!r}; expected host:port ({error})") from error
    ended = threading.Event()
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
    ):  # the kernel drops signals without a handler for the first process of a container
        signal.signal(number, lambda *_: ended.set())
    guard_process()
    host = address.rpartition(":")[0]
    typer.echo(f"metrics at http://{host or '0.0.0.0'}:{server.server_port}/metrics")  # noqa: S104
    while not ended.wait(MARK_EVERY_S):
        LOOP.mark()
    server.stop()


COMMANDS = {"metrics": app}
