"""The supervisor's errors, sorted by what the caller must do. Pure."""


class SupervisorError(Exception):
    """Base of all errors of the supervisor."""


class TransientError(SupervisorError):
    """The other side does not answer or is busy; a later retry can succeed."""

    mend = "try again when it answers"


class PermanentError(SupervisorError):
    """The other side answered, and its answer will not change; a retry is useless."""


class UndecidedError(PermanentError):
    """A SLURM job that was found may or may not be the grid's job. The operator must
    decide.
    """


class OutcomeUnknownError(SupervisorError):
    """The other side may have carried out the request or not; the caller must find out
    before it acts.
    """


class ProviderUnknownError(TransientError):
    """No worker has stored the provider's address yet. A retry helps once a worker of
    the chain queue has stored it.
    """

    def __init__(self) -> None:
        super().__init__(
            "found no address of this provider in the ledger; expected one: start a worker of the chain queue, which stores it"
        )


class DirectoryUnavailableError(TransientError):
    """The directory does not answer, or is busy; a later retry can succeed."""


class DirectoryBusyError(DirectoryUnavailableError):
    """The directory answered that it cannot carry out this request now. It may carry
    out others.
    """


class DirectoryRejectedError(PermanentError):
    """The directory rejected a request. The message has its answer and the request.

    A retry is useless: the operator must change the directory's settings or the
    supervisor's.
    """


class LedgerUnavailableError(TransientError):
    """The ledger's database does not answer, or cannot write now. Retry later: open
    work is still stored.
    """


class LedgerLoginRejectedError(LedgerUnavailableError):
    """The ledger's database answers and rejects our login. A retry helps when the
    operator has corrected DATABASE_URL, or the user or database in Postgres.
    """

    mend = "correct DATABASE_URL, or the user and the password in Postgres"
