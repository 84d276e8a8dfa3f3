"""What can go wrong, sorted by what to do about it."""


class SupervisorError(Exception):
    """Base of all errors of the supervisor."""


class TransientError(SupervisorError):
    """The other side does not answer or is busy; the same again later may work."""


class PermanentError(SupervisorError):
    """The other side answered, and its answer will not change; doing the same again is useless."""


class OutcomeUnknownError(SupervisorError):
    """The request may or may not have been carried out; look before doing anything."""


class DirectoryUnavailableError(TransientError):
    """The directory does not answer, or not now; again later."""


class DirectoryRefusedError(PermanentError):
    """The directory says no: its own words, and what was asked. Somebody has to change its settings or ours."""
