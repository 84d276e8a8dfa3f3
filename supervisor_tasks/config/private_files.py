"""Folders and files that no other Linux user can prepare or replace.

If a process of root follows a link that another user has made, it writes to a file that
the other user chose. So the folder, and every folder above it, must belong to root or
to this process's user, and other users must not be able to write there. The functions
that open files follow no links.
"""

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from supervisor_tasks.errors import PermanentError

ROOT = 0
OWNER_ONLY_MODE = 0o700
# for root: Postgres then runs as another user, and must reach its folder
OPEN_TO_POSTGRES = 0o711


class StateFolderError(PermanentError):
    """STATE_DIR is unusable or unsafe for the servers; the message names what to
    change.
    """


def private_folder(folder: Path) -> None:
    """Make the folder, or check that an existing one is safe. Raises StateFolderError;
    a retry does not help.
    """
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    _require_safe(nearest, is_parent=nearest != folder)
    mode = OWNER_ONLY_MODE
    if os.geteuid() == ROOT:
        mode = OPEN_TO_POSTGRES
    for path in (*reversed(folder.parents), folder):
        path.mkdir(mode=mode, exist_ok=True)
    _require_safe(folder, is_parent=False)


def open_private(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a file of this user, or make it; returns a descriptor.

    Raises OSError for a link and for a file of another user; a retry does not help.
    """
    descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise PermissionError(
            f"{path} belongs to {_name(status.st_uid)!r} or is no plain file"
        )
    return descriptor


def write_private(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace the content of a file that `open_private` opens. Raises OSError as it
    does.
    """
    with open(open_private(path, os.O_WRONLY | os.O_TRUNC, mode), "w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)


def _require_safe(folder: Path, *, is_parent: bool) -> None:
    resolved = folder.resolve()
    _require_closed(resolved, is_above=is_parent)
    for path in resolved.parents:
        _require_closed(path, is_above=True)
    for link in _links(folder):
        _require_owned(link, link.lstat())
        for path in link.parents:
            _require_closed(path, is_above=True)


def _links(folder: Path) -> Iterator[Path]:
    """The symbolic links through which a path leads, each in the folder that really
    holds it. The path must not lead in a circle.
    """
    at, left = Path("/"), list(folder.absolute().parts[1:])
    while left:
        step = at.parent if left[0] == ".." else at / left[0]
        del left[0]
        if not step.is_symlink():
            at = step
            continue
        yield step
        target = step.readlink()
        if target.is_absolute():
            at = Path("/")
        left = [part for part in target.parts if part != "/"] + left


def _require_closed(path: Path, *, is_above: bool) -> None:
    """Require that no other user can replace what is in a folder.

    In a sticky folder such as /tmp, a user can replace only the user's own files. The
    folder itself must be closed to others even so.
    """
    status = path.stat()
    _require_owned(path, status)
    is_sticky = bool(status.st_mode & stat.S_ISVTX)
    if status.st_mode & _others_bits() and not (is_sticky and is_above):
        raise StateFolderError(
            f"STATE_DIR: {path} can be written by others, who can replace what is in it; expected a folder that only"
            f" {_name(os.geteuid())!r} writes: chmod go-w {path} (of a Kubernetes volume: in an initContainer), or"
            f" choose a subfolder, not made yet, of one with the sticky bit (chmod +t {path}): this process makes it"
        )


def _require_owned(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (ROOT, os.geteuid()):
        raise StateFolderError(
            f"STATE_DIR: {path} belongs to {_name(status.st_uid)!r}, who can replace what is in it; expected a folder of"
            f" {_name(os.geteuid())!r} or root: chown it, or choose another folder"
        )


def _others_bits() -> int:
    """Return the mode bits that make a folder unsafe.

    The group of a user's folder may write there, because a home can be open to the
    user's own group. Root has no such group.
    """
    if os.geteuid() == ROOT:
        return stat.S_IWOTH | stat.S_IWGRP
    return stat.S_IWOTH


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
