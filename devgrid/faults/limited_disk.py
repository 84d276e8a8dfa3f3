"""Small separate disks for Postgres and for the spool, which a test can fill.

Each is a tmpfs in a mount namespace that one process holds. No other process sees it,
and it ends with that process, so no mount can be left behind. Postgres enters the
namespace. The spool, which several processes use, is a link into it.
"""

import errno
import os
from pathlib import Path

from devgrid.processes import Processes
from supervisor_tasks.config.embedded_servers import EmbeddedServer

HOLDER = "postgres-disk"
SPOOL_HOLDER = "spool-disk"
FILLER = "filler"
STEP_BYTES = 4096
SMALL_WAL = "max_wal_size = 64MB\nmin_wal_size = 32MB\n"
HOLD = """
set -e
mkdir "$2"
mount -t tmpfs -o size="$3",mode=755 tmpfs "$2"
cp -a "$1" "$2/data"
mount --bind "$2/data" "$1"
touch "$4"
exec sleep infinity
"""
HOLD_EMPTY = """
set -e
mkdir "$1"
mount -t tmpfs -o size="$2",mode=700 tmpfs "$1"
touch "$1/../$0-ready"
exec sleep infinity
"""


def start_disk(processes: Processes, server: EmbeddedServer, size_mb: int) -> list[str]:
    """Move the data of a stopped Postgres to a disk of that size. Returns the command
    that starts it there, for root.
    """
    with (server.folder / "data" / "postgresql.auto.conf").open("a") as conf:
        conf.write(SMALL_WAL)  # else Postgres keeps more WAL than fits on the disk
    ready = server.folder / "disk-ready"
    hold = (
        "/bin/sh",
        "-c",
        HOLD,
        HOLDER,
        server.folder / "data",
        server.folder / "disk",
        f"{size_mb}m",
        ready,
    )
    holder = processes.start(HOLDER, ["unshare", "--mount", *hold], ready=ready.exists)
    enter = ["nsenter", "--mount", f"--target={holder.pid}", "--"]
    drop = (
        []
        if server.user is None
        else [
            "setpriv",
            f"--reuid={server.user}",
            f"--regid={server.user}",
            "--clear-groups",
            "--",
        ]
    )
    return [*enter, *drop, *server.argv]


def start_spool_disk(processes: Processes, spool: Path, size_mb: int) -> None:
    """Make the spool a disk of that size."""
    folder, ready = (
        spool.with_name(SPOOL_HOLDER),
        spool.with_name(f"{SPOOL_HOLDER}-ready"),
    )
    hold = (
        "unshare",
        "--mount",
        "/bin/sh",
        "-c",
        HOLD_EMPTY,
        SPOOL_HOLDER,
        folder,
        f"{size_mb}m",
    )
    holder = processes.start(SPOOL_HOLDER, hold, ready=ready.exists)
    spool.symlink_to(f"/proc/{holder.pid}/root{folder}")


def data_of(processes: Processes) -> Path:
    """The data of the grid's Postgres, on its own disk if it has one."""
    data = processes.folder / "postgres" / "data"
    try:
        holder = processes.find(HOLDER)
    except KeyError:
        return data
    return Path(f"/proc/{holder.pid}/root{data}")


def fill(folder: Path) -> None:
    """Fill the disk of a folder."""
    filler = os.open(folder / FILLER, os.O_CREAT | os.O_WRONLY)
    try:
        space = os.fstatvfs(filler)
        taken, step = os.fstat(filler).st_size, space.f_bfree * space.f_bsize
        while step >= STEP_BYTES:
            try:
                os.posix_fallocate(filler, taken, step)
                taken += step
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                step //= 2
    finally:
        os.close(filler)


def make_room(folder: Path) -> None:
    """Free the room that `fill` took."""
    (folder / FILLER).unlink()
