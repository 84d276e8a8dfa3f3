"""`python -m grpc_callbacks`: serves the plugins until it is asked to end."""

import signal
import sys
import threading

import structlog

from grpc_callbacks.bell import Bell
from grpc_callbacks.inbox import Inbox
from grpc_callbacks.server import Server
from grpc_callbacks.tls import credentials
from supervisor_tasks import logs
from supervisor_tasks.embedded import broker_url, database_url
from supervisor_tasks.settings import Need, load_or_exit, or_exit

log = structlog.get_logger()


def main() -> None:
    """Read the settings, listen, and serve until SIGTERM."""
    settings = load_or_exit(Need.SSH_PUBLIC)
    logs.configure(settings.effective_log_level, secrets=settings.secret_values())
    asked_to_end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # before it listens: who sees the port may already ask
        signal.signal(number, lambda *_: asked_to_end.set())
    with or_exit():
        served_with = credentials(settings)
        database, broker = database_url(settings), broker_url(settings)
    inbox, bell = Inbox(database, settings.cluster_name), Bell(broker, settings.cluster_name)
    try:
        server = Server(settings.listen_address, served_with, inbox, bell, settings.slurm_ssh_public_key or "")
    except RuntimeError as error:  # all that grpcio says of a port that it cannot have
        found = f"LISTEN_ADDRESS: found {settings.listen_address!r}"
        print(f"{found}; expected a free one of this machine ({error})", file=sys.stderr)
        sys.exit(2)
    log.info("listening", address=settings.listen_address, port=server.port, tls=settings.tls_enable)
    server.run_until(asked_to_end)
    bell.close()
    inbox.close()
    log.info("ended")


if __name__ == "__main__":
    main()
