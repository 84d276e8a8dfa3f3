"""The command that serves the metrics to Prometheus."""

import signal
import threading
from typing import Annotated

import typer

from supervisor_tasks.cli import options
from supervisor_tasks.cli.context import cli_context
from supervisor_tasks.cli.exit_codes import UnusableError
from supervisor_tasks.config.process_guard import guard_process
from supervisor_tasks.ledger.figures import read_figures
from supervisor_tasks.ledger.status_queries import Overview
from supervisor_tasks.monitoring.metrics import CachedReading, LedgerMetrics, LedgerReading, serve

app = options.single()


@app.command()
def metrics(
    context: typer.Context,
    listen: Annotated[
        str | None, typer.Option(help="host:port instead of METRICS_ADDRESS; port 0 is any free one.")
    ] = None,
) -> None:
    """Serve the ledger's metrics to Prometheus until the process is ended.

    Example: supervisor metrics --listen 127.0.0.1:9464
    """
    cli = cli_context(context)
    address = listen or cli.settings.metrics_address
    host, _, port = address.rpartition(":")
    cluster, database = cli.settings.cluster_name, cli.database
    overview = Overview(database, cluster)  # also before the fleet has begun to work

    def read() -> LedgerReading:
        summary = overview.snapshot()
        return LedgerReading(summary, read_figures(database, cluster), not cli.complaints(summary))

    collected = LedgerMetrics(cluster, CachedReading(read))
    try:
        server, thread = serve(collected, cluster, host.strip("[]") or "0.0.0.0", int(port))  # noqa: S104  as :port says
    except (OSError, ValueError) as error:
        raise UnusableError(f"found {address!r}; expected host:port ({error})") from error
    ended = threading.Event()
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
    ):  # the kernel drops signals without a handler for the first process of a container
        signal.signal(number, lambda *_: ended.set())
    guard_process()
    typer.echo(f"metrics at http://{host or '0.0.0.0'}:{server.server_port}/metrics")  # noqa: S104
    ended.wait()
    server.shutdown()
    thread.join()


COMMANDS = {"metrics": app}
