"""Ends a program when the command that it is part of has ended: if `make test` is
killed, pytest and its workers end, too.

The command is the outermost ancestor that is `make` or a Python of this environment
(pytest; a worker of pytest-xdist belongs to pytest). The shell in which the command was
typed does not belong to it: a command in the background goes on when the shell ends.

make tells its process id in COMMAND_PID: it may be killed while Python still imports
this program's modules, and then is no ancestor any more.
"""

import os
import select
import signal
import sys
import threading
from pathlib import Path

import psutil

_followed: list[threading.Thread] = []


def end_with_command() -> None:
    """From now on, end this program by SIGKILL when its command, or a process between
    them, has ended; at once if make has ended already.
    """
    if _followed:
        return
    links = _links()
    # the processes that this program starts may outlive make
    make = os.environ.pop("COMMAND_PID", None)
    if make and int(make) not in (each.pid for each in psutil.Process().parents()):
        os.kill(os.getpid(), signal.SIGKILL)
    thread = threading.Thread(
        target=_follow, args=(links,), name="ancestors", daemon=True
    )
    _followed.append(thread)
    if links:
        thread.start()


def _links() -> list[int]:
    """Pidfds of the ancestors up to the command, parent first."""
    ancestors = psutil.Process().parents()
    ours = [place for place, ancestor in enumerate(ancestors) if _is_ours(ancestor)]
    links = []
    for ancestor in ancestors[: max(ours, default=-1) + 1]:
        descriptor = os.pidfd_open(ancestor.pid)
        if ancestor.is_running():  # else the number may be another process's by now
            links.append(descriptor)
    return links


def _is_ours(process: psutil.Process) -> bool:
    try:
        program = Path(process.cwd(), *process.cmdline()[:1])
        return process.name() == "make" or program.parent == Path(sys.executable).parent
    except psutil.Error:
        return False


def _follow(links: list[int]) -> None:
    poll = select.poll()
    for link in links:
        poll.register(link, select.POLLIN)
    ended = {descriptor for descriptor, _ in poll.poll()}
    for link in links[
        : max(place for place, link in enumerate(links) if link in ended)
    ]:
        try:
            # run_all.sh would begin the next part
            signal.pidfd_send_signal(link, signal.SIGTERM)
        except ProcessLookupError:
            continue
    os.kill(os.getpid(), signal.SIGKILL)
