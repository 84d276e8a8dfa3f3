"""gRPC processes with what they need: a database and a broker of their own, without a
grid.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from sqlalchemy import Engine, create_engine

from devgrid import REPOSITORY
from devgrid.ports import free_port
from devgrid.processes import Processes, Running, answers
from devgrid.services.start import start_server
from devgrid.state_folder import private_processes
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.ledger.tables import METADATA
from tests.support.live_processes import hung

PUBLIC_LINE = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti"
)
# of a callback, as a plugin repeats it
TRIES = 5
NOT_STORED = "the callback could not be stored"


def until_stored(call: Callable[[], object], tries: int = TRIES) -> None:
    """Make a call, and make it again, as a plugin does, while the callback could not be
    stored in time: one stall of the disk is enough for that, and a repeat makes no
    second row. Other refusals are raised at once.
    """
    for left in reversed(range(tries)):
        try:
            call()
        except grpc.RpcError as error:
            if not left or NOT_STORED not in (error.details() or ""):
                raise
        else:
            return


def start_servers(processes: Processes) -> tuple[Engine, dict[str, str]]:
    """Start a Postgres with the ledger's tables, and a Redis. Returns the engine, and
    the settings of a gRPC process.
    """
    urls = {}
    for name, describe in (
        ("postgres", embedded_servers.postgres),
        ("redis", embedded_servers.redis),
    ):
        folder = processes.folder / name
        folder.mkdir()
        server = describe(folder)
        start_server(processes, name, server)
        urls[name] = server.url
    engine = create_engine(urls["postgres"], pool_pre_ping=True)
    METADATA.create_all(engine)
    environment = {
        "PATH": "/usr/bin:/bin",
        "CLUSTER_NAME": "here",
        "STATE_DIR": str(processes.folder / "state"),
        "SLURM_SSH_PUBLIC_KEY": PUBLIC_LINE,
        "DATABASE_URL": urls["postgres"],
        "BROKER_URL": urls["redis"],
    }
    return engine, environment


@dataclass
class CallbackServer:
    """A database and a broker, and the gRPC processes in front of them."""

    processes: Processes
    engine: Engine
    environment: dict[str, str]

    @property
    def postgres(self) -> Running:
        """The database's process."""
        return self.processes.find("postgres")

    @contextmanager
    def database_hung(self) -> Iterator[None]:
        """Postgres and its children stopped, not ended: connections stay open without
        an answer.
        """
        process = self.postgres.process()
        assert process is not None
        with hung(process):
            yield

    def start(self, name: str, **settings: str) -> tuple[Running, str]:
        """Start a gRPC process with these settings beside the others. Returns it, and
        its address.
        """
        port = free_port()
        address = f"127.0.0.1:{port}"
        argv = [sys.executable, "-m", "grpc_callbacks"]
        environment = {**self.environment, "LISTEN_ADDRESS": address, **settings}
        return self.processes.start(
            name, argv, env=environment, cwd=REPOSITORY, ready=lambda: answers(port)
        ), address


@contextmanager
def callback_server() -> Iterator[CallbackServer]:
    """A database and a broker, which end with the block; no gRPC process yet."""
    with private_processes() as processes:
        engine, environment = start_servers(processes)
        try:
            yield CallbackServer(processes, engine, environment)
        finally:
            engine.dispose()
