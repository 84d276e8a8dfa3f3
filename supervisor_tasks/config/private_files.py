"""Folders and files that no other Linux user can prepare or replace.

A process of root that follows a link which another user has planted writes to that user's choice of file. So the folder, and
every folder above it, belongs to root or to this process's user, other users cannot write there, and links are not followed.
"""

import os
import pwd
import stat
from pathlib import Path

from supervisor_tasks.errors import PermanentError

ROOT = 0
OWN = 0o700
OPEN_TO_POSTGRES = 0o711  # which runs as another user then, and must reach its folder


class StateFolderError(PermanentError):
    """STATE_DIR cannot hold the servers."""


def private_folder(folder: Path) -> None:
    """Make the folder, or make sure that an existing one is safe. Raises StateFolderError."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    _require_safe(there, is_parent=there != folder)
    for each in (*reversed(folder.parents), folder):
        each.mkdir(mode=OPEN_TO_POSTGRES if os.geteuid() == ROOT else OWN, exist_ok=True)
    _require_safe(folder, is_parent=False)


def open_private(path: Path, flags: int, mode: int = 0o600) -> int:
    """A descriptor of a file that this user owns, which is made if it is missing. Raises OSError for a link and for a file of
    another user.
    """
    descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise PermissionError(f"{path} belongs to {_name(found.st_uid)!r} or is no plain file")
    return descriptor


def write_private(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace the content of such a file."""
    with open(open_private(path, os.O_WRONLY | os.O_TRUNC, mode), "w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)


def _require_safe(folder: Path, *, is_parent: bool) -> None:
    resolved = folder.resolve()
    for each in (resolved, *resolved.parents):
        found = each.stat()
        if found.st_uid not in (ROOT, os.geteuid()):
            raise StateFolderError(
                f"STATE_DIR: {each} belongs to {_name(found.st_uid)!r}, who can replace what is in it; expected a folder of"
                f" {_name(os.geteuid())!r} or root: chown it, or choose another folder"
            )
        sticky = bool(found.st_mode & stat.S_ISVTX) and (is_parent or each != resolved)  # as /tmp: each keeps its own
        if found.st_mode & _others_bits() and not sticky:
            raise StateFolderError(
                f"STATE_DIR: {each} can be written by others, who can replace what is in it; expected a folder that only"
                f" {_name(os.geteuid())!r} writes: chmod go-w {each} (of a Kubernetes volume: in an initContainer), or"
                f" choose a subfolder, not made yet, of one with the sticky bit (chmod +t {each}): this process makes it"
            )


def _others_bits() -> int:
    """A user's own home may be open to the user's own group; root has no such group."""
    return stat.S_IWOTH | (stat.S_IWGRP if os.geteuid() == ROOT else 0)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
