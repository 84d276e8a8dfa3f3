"""What a process of the fleet needs before its first import: handlers of SIGTERM, and
less to import.

The kernel drops a signal for which process 1 has no handler. Without a handler, a
container that still imports its program does not end, and the container runtime kills
it after the grace period.

`python -m supervisor_tasks.config.first_process MODULE ...` installs the handlers and
then runs MODULE, which replaces them by its own. This module imports the standard
library only.

Celery's command line imports the commands of all packages that have one, Flower with
its web server among them, a shell with completion, and packages that colour its output.
structlog imports rich for tracebacks with local variables, which our logs must not
show. redis imports OpenTelemetry where it is installed. A process imports of these only
what it uses: a worker is 16 MB smaller.
"""

import ctypes
import os
import runpy
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

STARTED_S = time.monotonic()  # of this process: its other imports come later
SIGNALS = (signal.SIGTERM, signal.SIGINT)
M_ARENA_MAX = -8  # malloc.h
MALLOC_ARENAS = 2
TRACES = "OTEL_EXPORTER_OTLP_ENDPOINT"
# the exit status is this plus the signal's number, as in shells
SIGNAL_STATUS_BASE = 128


def end_on_signal() -> None:
    """Let SIGNALS end this process at once, as they end any process that is not the
    first.

    A signal that came after `hold_signals` ends the process now.
    """
    if os.getpid() != 1:
        return
    for number in SIGNALS:
        signal.signal(number, _end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def hold_signals() -> None:
    """Block the signals before execve, so that they wait for the handlers of the next
    program.

    execve removes handlers and keeps the signal mask.
    """
    if os.getpid() == 1:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def leave_out_unused(module: str, arguments: Sequence[str]) -> None:
    """Let later imports not find what the process never uses. The operator's command
    uses rich itself.
    """
    if module not in ("celery", "grpc_callbacks"):
        return
    unused = ["rich", "pygments", "yaml"]
    if not _sends_traces():
        unused.append("opentelemetry")
    if "flower" not in arguments:
        unused.append("flower")
    sys.modules.update(dict.fromkeys(unused))  # type: ignore[arg-type]
    no_shell = ModuleType("click_repl")
    no_shell.register_repl = lambda *_, **__: None  # type: ignore[attr-defined]  # Celery calls it for `celery amqp`
    sys.modules["click_repl"] = no_shell


def _sends_traces() -> bool:
    """Whether the endpoint for traces is given. An empty value or file counts as not
    given; the settings report a file that is unreadable.
    """
    if os.environ.get(TRACES):
        return True
    file = os.environ.get(f"{TRACES}_FILE")
    try:
        return bool(file and Path(file).stat().st_size)
    except OSError:
        return False


def limit_arenas() -> None:
    """Let the C library's malloc keep at most MALLOC_ARENAS heaps.

    By default each thread may get a heap of its own, up to eight for each core. No
    other thread uses the memory that a thread frees in its heap.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # only glibc has it
    if mallopt is not None:
        mallopt(M_ARENA_MAX, MALLOC_ARENAS)


def _end(number: int, _: object) -> None:
    os._exit(SIGNAL_STATUS_BASE + number)


def main() -> None:
    """Run the module that the first argument names, with the other arguments."""
    end_on_signal()
    limit_arenas()
    del sys.argv[0]
    leave_out_unused(sys.argv[0], sys.argv[1:])
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
