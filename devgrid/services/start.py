"""Starts the grid's own services, and the Postgres and Redis that the fleets share."""

import pwd
import sys

from devgrid import REPOSITORY
from devgrid.chain.chain import Chain
from devgrid.copied_ledger import POSTGRES, copy_ledger
from devgrid.faults.limited_disk import start_disk
from devgrid.ports import free_port
from devgrid.processes import Processes, answers
from devgrid.tls import Certificates
from supervisor_tasks.config import embedded_servers


def start_services(
    processes: Processes, chain: Chain, certificates: Certificates
) -> str:
    """Start the job definition service with the grid logger, and the meta-scheduler;
    returns the first one's address.
    """
    address = f"127.0.0.1:{free_port()}"
    options = {
        "--listen": address,
        "--cert": certificates.cert,
        "--key": certificates.key,
        "--scripts": processes.folder / "scripts",
        "--logs": processes.folder / "user-logs",
        "--rpc": chain.rpc_url,
        "--jobs": chain.addresses.jobs,
    }
    words = [str(word) for pair in options.items() for word in pair]
    port = int(address.rpartition(":")[2])
    processes.start(
        "services", [sys.executable, "-m", "devgrid.services", *words], cwd=REPOSITORY
    )
    argv = [
        sys.executable,
        "-m",
        "devgrid.services.metascheduler",
        "--folder",
        str(processes.folder),
    ]
    processes.start("metascheduler", argv, cwd=REPOSITORY, ready=lambda: answers(port))
    return address


def start_servers(processes: Processes, postgres_disk_mb: int | None) -> dict[str, str]:
    """Start Postgres and Redis; returns the settings that name them. A Postgres on a
    disk of its own begins with no copy of a ledger.
    """
    urls = {}
    for name, variable, describe, disk_mb in (
        (POSTGRES, "DATABASE_URL", embedded_servers.postgres, postgres_disk_mb),
        ("redis", "BROKER_URL", embedded_servers.redis, None),
    ):
        folder = processes.folder / name
        folder.mkdir()
        if name == POSTGRES and disk_mb is None:
            copy_ledger(folder)
        start_server(processes, name, describe(folder), disk_mb)
        urls[variable] = describe(folder).url
    return urls


def start_server(
    processes: Processes,
    name: str,
    server: embedded_servers.EmbeddedServer,
    disk_mb: int | None = None,
) -> None:
    """Start an embedded server as one of the grid's processes, on a disk of its own if
    its size is given.
    """
    argv, user = server.argv, None if server.user is None else _uid(server.user)
    if disk_mb is not None:
        argv, user = start_disk(processes, server, disk_mb), None
    processes.start(
        name,
        argv,
        env=server.environment,
        user=user,
        cwd=server.folder,
        ready=lambda: embedded_servers.answers(server),
    )


def _uid(name: str) -> int:
    return pwd.getpwnam(name).pw_uid
