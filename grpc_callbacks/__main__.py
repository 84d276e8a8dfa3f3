"""`python -m grpc_callbacks`: serves the plugins until SIGTERM or SIGINT."""

import asyncio
import gc
import signal
import sys

import structlog

from grpc_callbacks.callback_writer import CallbackWriter
from grpc_callbacks.callers import Callers
from grpc_callbacks.notifier import PollNotifier
from grpc_callbacks.private_sockets import SocketFolder
from grpc_callbacks.server import CallbackServer, Services
from grpc_callbacks.tls import credentials
from plugins.probes.http_server import ProbeServer
from plugins.probes.progress import LOOP
from supervisor_tasks.config import logging as logs
from supervisor_tasks.config.embedded_servers import (
    broker_tls,
    broker_url,
    database_url,
)
from supervisor_tasks.config.needs import Need
from supervisor_tasks.config.process_protection import protect_memory
from supervisor_tasks.config.settings import (
    Settings,
    SettingsError,
    load_or_exit,
    or_exit,
)
from supervisor_tasks.config.validators import is_loopback
from supervisor_tasks.config.variables import warn_of_mistyped
from supervisor_tasks.observability.probes import serve_callbacks, show_progress
from supervisor_tasks.observability.traces import tracer_of

log = structlog.get_logger()


def main() -> None:
    """Read the settings, listen, and serve until SIGTERM."""
    settings = load_or_exit(Need.SSH_PUBLIC)
    protect_memory("callbacks")
    logs.configure(
        settings.effective_log_level, settings.secret_values(), settings.cluster_name
    )
    logs.log_crashes()
    warn_of_mistyped()
    asyncio.run(_serve(settings))
    log.info("ended")


async def _serve(settings: Settings) -> None:
    asked_to_end = asyncio.Event()
    # before it listens: a caller that sees the port may send one
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked_to_end.set)
    with or_exit():
        callers = _callers(settings)
        tls_credentials = credentials(settings)
        database, broker = database_url(settings), broker_url(settings)
        sockets = SocketFolder(settings.state_dir)
    _warn_of_readers(settings)
    tracer = tracer_of(settings, "callbacks")
    writer = CallbackWriter(database, settings.cluster_name, tracer=tracer)
    notifier = PollNotifier(broker, settings.cluster_name, tls=broker_tls(settings))
    services = Services(writer, notifier, callers, settings.slurm_ssh_public_key or "")
    server = CallbackServer(
        settings.listen_address,
        settings.public_address,
        tls_credentials,
        services,
        sockets,
    )
    try:
        await server.start()
    except OSError as error:
        await server.stop()
        found = f"LISTEN_ADDRESS: found {settings.listen_address!r}"
        logs.log_refusal(
            f"{found}; expected a free one of this machine ({error})",
            settings.cluster_name,
        )
        sys.exit(2)
    about = {
        "tls": settings.tls_enable,
        "proof": settings.callback_proof,
        "key": settings.callback_key is not None,
    }
    with or_exit():
        probes = await _probes(settings, server)
    # a full collection of what the imports made would keep all callers waiting for 28
    # ms
    gc.freeze()
    progress = asyncio.create_task(show_progress())
    log.info("listening", address=settings.listen_address, port=server.port, **about)
    await server.run_until(asked_to_end)
    LOOP.end()
    await server.stop()
    progress.cancel()
    if probes is not None:
        probes.stop()
    notifier.close()
    writer.close()
    tracer.close()


async def _probes(settings: Settings, server: CallbackServer) -> ProbeServer | None:
    """Serve the probes. Stops the server and raises SettingsError where their address
    is not free.
    """
    try:
        return serve_callbacks(settings)
    except SettingsError:
        # gRPC's threads can crash the process if it ends while they serve
        await server.stop()
        raise


def _callers(settings: Settings) -> Callers:
    """Return the rules for callers. Raises SettingsError."""
    if settings.callback_key is None:
        key = None
    else:
        key = settings.callback_key.get_secret_value().encode()
    required = settings.callback_proof == "required"
    if required and key is None:
        raise SettingsError(
            [
                "CALLBACK_KEY: found nothing; expected the site's key, because CALLBACK_PROOF is required"
            ]
        )
    return Callers(key, required=required, networks=settings.callback_networks)


def _warn_of_readers(settings: Settings) -> None:
    """Warn of callbacks in plain text. The process starts all the same, because a proxy
    in front may end TLS.
    """
    if not settings.tls_enable and not is_loopback(settings.listen_address):
        log.warning(
            "callbacks_in_plain_text",
            listen_address=settings.listen_address,
            help="TLS_ENABLE is false: every machine between SLURM's and this one can read what plugins say (job ids, SLURM "
            "ids, run times, exit codes) and change a callback that has no proof. Set TLS_ENABLE, TLS_CERT and TLS_KEY, or "
            "listen on 127.0.0.1 behind a proxy that ends TLS",
        )


if __name__ == "__main__":
    main()
