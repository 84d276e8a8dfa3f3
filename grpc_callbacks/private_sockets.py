"""A folder for the Unix sockets between the acceptor and gRPC. It is in STATE_DIR, and
no other user can enter it.
"""

import fcntl
import os
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

from supervisor_tasks.config.private_files import StateFolderError, private_folder
from supervisor_tasks.config.settings import SettingsError

PREFIX = "callbacks-"
LOCK = "lock"  # held as long as the process lives


class SocketFolder:
    """A folder of this process. If the process is killed, the next one removes the
    folder.
    """

    def __init__(self, state_dir: Path) -> None:
        """Make the folder, and remove those of killed processes. Raises
        SettingsError.
        """
        try:
            private_folder(state_dir)
            _remove_those_of_the_dead(state_dir)
            self._make(state_dir)
        except (OSError, StateFolderError) as error:
            found = f"STATE_DIR: found {str(state_dir)!r}"
            raise SettingsError(
                [
                    f"{found}; expected a folder in which this user can make Unix sockets ({error})"
                ]
            ) from error

    def path(self, name: str) -> str:
        """Return a socket's path that only this process can use.

        A Unix socket's path has 107 bytes at most, and STATE_DIR can be longer, so the
        path goes through /proc/self/fd.
        """
        return f"/proc/self/fd/{self._descriptor}/{name}"

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._descriptor)
        os.close(self._lock)

    def _make(self, state_dir: Path) -> None:
        """Make and lock the folder, then rename it: other processes remove a folder
        with that name and no lock.
        """
        made = Path(tempfile.mkdtemp(prefix=f"new-{PREFIX}", dir=state_dir))
        self._lock = os.open(made / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._folder = made.rename(state_dir / made.name.removeprefix("new-"))
        self._descriptor = os.open(
            self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        )
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(self.path("probe"))


def _remove_those_of_the_dead(state_dir: Path) -> None:
    for folder in state_dir.glob(f"{PREFIX}*"):
        # OSError: in use, or another process removes it
        with suppress(OSError), (folder / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
