"""What machines ask: the probe, and Prometheus."""

import signal
import sys
import threading

import click

from supervisor_tasks.cli.desk import JSON, Desk
from supervisor_tasks.config.process_guard import guard_process
from supervisor_tasks.metrics import LedgerMetrics, serve


@click.command()
@JSON
@click.pass_obj
def health(desk: Desk, as_json: bool) -> None:
    """Whether all goes on: exit status 0, or 1 with what is wrong. For probes."""
    complaints = desk.complaints(desk.overview.snapshot())
    if as_json:
        desk.shown.json({"healthy": not complaints, "complaints": complaints})
    else:
        click.echo("\n".join(complaints) or "healthy")
    sys.exit(1 if complaints else 0)


@click.command()
@click.option("--listen", help="host:port instead of METRICS_ADDRESS; port 0 is any free one.")
@click.pass_obj
def metrics(desk: Desk, listen: str | None) -> None:
    """Serve the metrics to Prometheus until the process is ended."""
    host, _, port = (listen or desk.settings.metrics_address).rpartition(":")
    collected = LedgerMetrics(desk.overview.snapshot, lambda snapshot: not desk.complaints(snapshot))
    try:
        server, thread = serve(collected, host.strip("[]") or "0.0.0.0", int(port))  # noqa: S104  as :port says
    except (OSError, ValueError) as error:
        raise click.ClickException(
            f"found {listen or desk.settings.metrics_address!r}; expected host:port ({error})"
        ) from error
    ended = threading.Event()
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
    ):  # the first process of a container gets no signal that it does not await
        signal.signal(number, lambda *_: ended.set())
    guard_process()
    click.echo(f"metrics at http://{host or '0.0.0.0'}:{server.server_port}/metrics")  # noqa: S104
    ended.wait()
    server.shutdown()
    thread.join()


COMMANDS = (health, metrics)
