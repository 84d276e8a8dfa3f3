"""Questions and signals to processes that may end meanwhile."""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import psutil

Told = TypeVar("Told")


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs. A zombie does not: its parent has only not reaped
    it yet.
    """
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two questions
        return False


def children(process: psutil.Process) -> list[psutil.Process]:
    """Its children; none if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return process.children()
    return []


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """Its children and theirs; none if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def asked(
    processes: Iterable[psutil.Process], question: Callable[[psutil.Process], Told]
) -> dict[psutil.Process, Told]:
    """What each process tells, without those that end meanwhile."""
    told = {}
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            told[process] = question(process)
    return told


def signal_each(processes: Iterable[psutil.Process], sig: signal.Signals) -> None:
    """Send a signal to each process that still runs."""
    asked(processes, lambda process: process.send_signal(sig))


@contextmanager
def hung(process: psutil.Process) -> Iterator[None]:
    """The process, which must run, and those that it has started are stopped inside
    this: the kernel takes connections for them, no answer comes.
    """
    process.suspend()  # from now on it starts no other
    family = [process, *descendants(process)]
    signal_each(family, signal.SIGSTOP)
    try:
        yield
    finally:
        signal_each(family, signal.SIGCONT)
