"""The statuses with which the command ends, and the errors that lead to them."""

from enum import IntEnum

from supervisor_tasks.errors import SupervisorError


class ExitCode(IntEnum):
    """The status of the process."""

    DONE = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_CONFIRMED = 4
    INTERRUPTED = 130  # as a shell reports a program that SIGINT ended


MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.REFUSED: "refused: the message shows what was found and what was expected (health, doctor, config check:"
    " something is wrong)",
    ExitCode.USAGE: "wrong usage, or settings that are wrong or missing",
    ExitCode.UNREACHABLE: "the ledger's database does not answer: try again",
    ExitCode.NOT_CONFIRMED: "not confirmed: nothing was changed",
    ExitCode.INTERRUPTED: "ended by Ctrl-C",
}


class CommandError(SupervisorError):
    """The command cannot do what the operator asks for."""

    status = ExitCode.REFUSED


class UnusableError(CommandError):
    """The command line, or a setting, is wrong."""

    status = ExitCode.USAGE


class NotConfirmedError(CommandError):
    """The operator did not confirm the change."""

    status = ExitCode.NOT_CONFIRMED
