"""`python -m grpc_callbacks`: serves the plugins until it is asked to end."""

import signal
import sys
import threading

import grpc
import structlog

from grpc_callbacks.bell import Bell
from grpc_callbacks.inbox import Inbox
from grpc_callbacks.server import Server
from supervisor_tasks import logs
from supervisor_tasks.embedded import broker_url, database_url
from supervisor_tasks.settings import Need, Settings, load_or_exit, or_exit

log = structlog.get_logger()


def main() -> None:
    """Read the settings, listen, and serve until SIGTERM."""
    settings = load_or_exit(Need.SSH_PUBLIC)
    logs.configure(settings.effective_log_level, secrets=settings.secret_values())
    asked_to_end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # before it listens: who sees the port may already ask
        signal.signal(number, lambda *_: asked_to_end.set())
    credentials = _credentials(settings)
    with or_exit():
        database, broker = database_url(settings), broker_url(settings)
    inbox, bell = Inbox(database, settings.cluster_name), Bell(broker, settings.cluster_name)
    try:
        server = Server(settings.listen_address, credentials, inbox, bell, settings.slurm_ssh_public_key or "")
    except RuntimeError as error:  # all that grpcio says of a port that it cannot have
        print(f"LISTEN_ADDRESS: found {settings.listen_address!r}; expected a free one ({error})", file=sys.stderr)
        sys.exit(2)
    log.info("listening", address=settings.listen_address, port=server.port, tls=settings.tls_enable)
    server.run_until(asked_to_end)
    bell.close()
    inbox.close()
    log.info("ended")


def _credentials(settings: Settings) -> grpc.ServerCredentials | None:
    if not settings.tls_enable:
        return None
    pem, lines = [], []
    for name, file in (("TLS_KEY", settings.tls_key), ("TLS_CERT", settings.tls_cert)):
        try:
            pem.append(b"" if file is None else file.read_bytes())
            if file is None:
                lines.append(f"{name}: found nothing; expected a PEM file, because TLS_ENABLE is true")
        except OSError as error:
            lines.append(f"{name}: found {str(file)!r}; expected a file that can be read ({error})")
    if lines:
        print("\n".join(lines), file=sys.stderr)
        sys.exit(2)
    key, certificate = pem
    return grpc.ssl_server_credentials([(key, certificate)])


if __name__ == "__main__":
    main()
