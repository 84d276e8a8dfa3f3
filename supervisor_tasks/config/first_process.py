"""SIGTERM for the first process of a container.

The kernel drops a signal for which process 1 has no handler. So, without a handler, a container that still imports its
program does not end, and the container runtime kills it after the grace period.

`python -m supervisor_tasks.config.first_process MODULE ...` installs the handlers and then runs MODULE, which replaces
them by its own. It imports the standard library only.
"""

import os
import runpy
import signal
import sys

SIGNALS = (signal.SIGTERM, signal.SIGINT)
OF_A_SIGNAL = 128  # the exit status is this plus the signal's number, as in shells


def end_when_asked() -> None:
    """Let these signals end this process at once, as they end any process that is not the first.

    A signal that came after `hold_signals` ends the process now.
    """
    if os.getpid() != 1:
        return
    for number in SIGNALS:
        signal.signal(number, _end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def hold_signals() -> None:
    """Block the signals before execve, so that they wait for the handlers of the next program.

    execve removes handlers and keeps the signal mask.
    """
    if os.getpid() == 1:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _end(number: int, _: object) -> None:
    os._exit(OF_A_SIGNAL + number)


def main() -> None:
    """Run the module that the first argument names, with the other arguments."""
    end_when_asked()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
