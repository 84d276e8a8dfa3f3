"""The grid logger: appends the lines that supervisors send to files that customers
read.
"""

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import grpc

from protos.logger.v1alpha1.logger_pb2 import WriteRequest, WriteResponse
from protos.logger.v1alpha1.logger_pb2_grpc import LoggerAPIServicer

LOG_NAME_BYTES = 200  # file systems end at 255, and a prefix is added


class GridLogger(LoggerAPIServicer):
    """Appends lines to one file per user and log."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def Write(
        self, request_iterator: Iterator[WriteRequest], context: grpc.ServicerContext
    ) -> WriteResponse:
        """Append a line for each message."""
        for request in request_iterator:
            file = _log_file(self._folder, request.user, request.log_name)
            with self._lock:
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("ab") as lines:
                    lines.write(request.data.replace(b"\n", b" ") + b"\n")
        return WriteResponse()


def logged_lines(folder: Path, user: str, log_name: str) -> list[str]:
    """The lines that were logged for a user under a name."""
    file = _log_file(folder, user, log_name)
    return (
        file.read_bytes().decode(errors="replace").split("\n")[:-1]
        if file.exists()
        else []
    )


def _log_file(folder: Path, user: str, log_name: str) -> Path:
    """The file of a log. Names come from customers: each has a file of its own, and
    none leads out of the folder.
    """
    return folder / f"user-{_file_name(user)}" / f"log-{_file_name(log_name)}"


def _file_name(name: str) -> str:
    """The name percent-encoded, or its hash if that would be too long for a file
    system.
    """
    safe = quote(name, safe="")
    return (
        safe
        if len(safe) <= LOG_NAME_BYTES
        else "sha256=" + hashlib.sha256(name.encode()).hexdigest()
    )
