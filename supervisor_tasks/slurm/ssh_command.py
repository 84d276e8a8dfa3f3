"""One command on a channel of a connection: its input, its output as it comes, and its
end.
"""

import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

import paramiko

# later than the command's own time-out, whose error names what it waited for
CLOSE_LATER_S = 1.0
# bytes of a command's standard output; a list of 10,000 jobs has 3 MB, and names may be
# long
MAX_OUTPUT_BYTES = 64 * 2**20
# the same where only a customer's start-up files print much
MAX_CUSTOMERS_OUTPUT_BYTES = 2**20
MAX_STDERR_BYTES = 64 * 2**10  # bytes of its standard error
CHUNK_BYTES = 2**18

# Gives a command so many bytes, and reads the rest: the channel stays open until all
# bytes have arrived.
_FED = 'n=$1; shift; command -p head -c "$n" | { "$@"; s=$?; command -p cat >/dev/null; exit "$s"; }'
_EXEC = 'exec "$@"'

BROKEN = (paramiko.SSHException, EOFError, OSError)


class TooMuchError(OSError):
    """A command printed more than the worker keeps."""


class OutputListener(Protocol):
    """The receiver of a command's output, piece by piece."""

    @property
    def waits_for_stderr(self) -> bool:
        """Whether it needs standard error next."""

    def stdout(self, piece: bytes) -> None:
        """Take a piece of standard output."""

    def stderr(self, piece: bytes) -> None:
        """Take a piece of standard error."""


@dataclass(slots=True)
class CommandOutput:
    """A listener that keeps all output, at most `most` bytes of standard output."""

    most: int = MAX_OUTPUT_BYTES
    out: bytearray = field(default_factory=bytearray)
    complaints: bytearray = field(default_factory=bytearray)
    waits_for_stderr: bool = False

    def stdout(self, piece: bytes) -> None:
        """Keep a piece. Raises TooMuchError; a retry does not help."""
        self.out += piece
        _require_at_most(self.most, self.out)

    def stderr(self, piece: bytes) -> None:
        """Keep a piece. Raises TooMuchError; a retry does not help."""
        self.complaints += piece
        _require_at_most(MAX_STDERR_BYTES, self.complaints)


def _require_at_most(most: int, kept: bytearray) -> None:
    if len(kept) > most:
        raise TooMuchError(f"the command printed more than {most} bytes")


@contextmanager
def close_after(channel: paramiko.Channel, after_s: float) -> Iterator[None]:
    """Close the channel after `after_s`, in any state. paramiko waits for the
    answer to `exec` without a time-out, and the other end may stand still at that
    point.
    """

    def cut() -> None:
        # paramiko marks it closed before it sends that to the other end
        with suppress(*BROKEN):
            channel.close()

    timer = threading.Timer(after_s, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def command_line(argv: Sequence[str], stdin_bytes: int, before: str = "") -> str:
    """Return the command, with the end of its input built in. We must not send the end,
    or more data, when the other end has just closed the channel. It would refer to a
    channel that no longer exists, and sshd then ends the whole connection with all its
    commands. A POSIX shell runs the text `before` first.
    """
    if stdin_bytes:
        script = f"{before}{_FED}"
        return shlex.join(["/bin/sh", "-c", script, "fed", str(stdin_bytes), *argv])
    if before:
        argv = ["/bin/sh", "-c", f"{before}{_EXEC}", "exec", *argv]
    return f"{shlex.join(argv)} </dev/null"


def run_command(
    channel: paramiko.Channel,
    command: str,
    stdin: bytes,
    timeout_s: float,
    listener: OutputListener,
) -> int:
    """Run a command on a fresh channel; return its status. Raises one of BROKEN, and
    the listener's exceptions; the command may have run, so the caller decides about a
    retry.
    """
    deadline_s = time.monotonic() + timeout_s
    channel.settimeout(timeout_s)
    channel.exec_command(command)
    _send(channel, stdin, listener)
    _listen(channel, listener, deadline_s)
    if not channel.status_event.wait(max(deadline_s - time.monotonic(), 0)):
        raise TimeoutError(f"the command did not end within {timeout_s:g} s")
    if channel.exit_status < 0:
        raise EOFError("the connection ended before the command's exit status arrived")
    return channel.exit_status


def _send(channel: paramiko.Channel, stdin: bytes, listener: OutputListener) -> None:
    """Send all of `stdin`, and pass on the output that arrives meanwhile."""
    sent = 0
    while sent < len(stdin):
        piece = channel.send(stdin[sent : sent + CHUNK_BYTES])
        if not piece:
            raise EOFError("the other end takes no more input")
        sent += piece
        if channel.recv_ready():
            listener.stdout(channel.recv(CHUNK_BYTES))


def _listen(
    channel: paramiko.Channel, listener: OutputListener, deadline_s: float
) -> None:
    """Pass on all output until the deadline. Output that is not read is not sent:
    errors that do not matter yet take no more memory than the channel's window.
    """
    while piece := _receive(channel, channel.recv, deadline_s):
        listener.stdout(piece)
        while listener.waits_for_stderr:
            complaint = _receive(channel, channel.recv_stderr, deadline_s)
            if not complaint:
                break
            listener.stderr(complaint)
    while piece := _receive(channel, channel.recv_stderr, deadline_s):
        listener.stderr(piece)


def _receive(
    channel: paramiko.Channel, receive: Callable[[int], bytes], deadline_s: float
) -> bytes:
    """Return a piece; it is empty when all output has arrived."""
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the command did not end in time")
    channel.settimeout(left_s)
    return receive(CHUNK_BYTES)
