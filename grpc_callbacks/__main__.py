"""`python -m grpc_callbacks`: serves the plugins until it is asked to end."""

import signal
import sys

import grpc
import structlog

from grpc_callbacks.bell import Bell
from grpc_callbacks.inbox import Inbox
from grpc_callbacks.server import Server, server_credentials
from supervisor_tasks import logs
from supervisor_tasks.embedded import broker_url, database_url
from supervisor_tasks.settings import Need, Settings, load_or_exit

log = structlog.get_logger()


def main() -> None:
    """Read the settings, listen, and serve until SIGTERM."""
    settings = load_or_exit(Need.SSH_PUBLIC)
    logs.configure(settings.log_level, secrets=settings.secret_values())
    inbox = Inbox(database_url(settings), settings.cluster_name)
    bell = Bell(broker_url(settings), settings.cluster_name)
    server = Server(settings.listen_address, _credentials(settings), inbox, bell, settings.slurm_ssh_public_key or "")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    log.info("listening", address=settings.listen_address, port=server.port, tls=settings.tls_enable)
    server.run()
    bell.close()
    inbox.close()
    log.info("ended")


def _credentials(settings: Settings) -> grpc.ServerCredentials | None:
    if not settings.tls_enable:
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        print("TLS_CERT and TLS_KEY: found nothing; expected files, because TLS_ENABLE is true", file=sys.stderr)
        sys.exit(2)
    return server_credentials(settings.tls_cert, settings.tls_key)


if __name__ == "__main__":
    main()
