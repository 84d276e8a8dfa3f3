"""Stops the main thread of a process while its other threads go on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from devgrid.processes import Processes, Running, wait_until


@contextmanager
def main_thread_held(
    processes: Processes, name: str, answers: Callable[[], bool]
) -> Iterator[None]:
    """Inside this, strace holds the main thread in a system call, and the other threads
    go on.

    A call that the main thread makes while it holds the GIL would stop all threads, so
    that the process does not answer. Then this releases the main thread, and holds it
    in another call.
    """
    main_thread = processes.find(name).pid
    hold = [
        "strace",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "inject=all:delay_enter=600000000",
        "-p",
        str(main_thread),
    ]
    status = Path(f"/proc/{main_thread}/status")
    holding: list[Running] = []

    def is_traced() -> bool:
        return "\nState:\tt " in status.read_text()

    def held() -> bool:
        holding.append(processes.start(f"holding-{name}", hold))
        wait_until(is_traced, f"strace to hold {name}", 30.0)
        # it is also stopped for a moment when strace attaches
        if answers() and is_traced():
            return True
        processes.kill(holding.pop())
        return False

    try:
        wait_until(held, f"the main thread of {name} alone to be held", 60.0)
        yield
    finally:
        for each in holding:
            processes.kill(each)
