"""The servers that the gRPC process needs: a database and a broker of its own, without
a grid.
"""

from sqlalchemy import Engine, create_engine

from devgrid.processes import Processes
from devgrid.services.start import start_server
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.ledger.tables import METADATA

PUBLIC_LINE = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti"
)


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
    engine = create_engine(urls["postgres"])
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
