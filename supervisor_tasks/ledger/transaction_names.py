"""The purposes and open states of transactions, as they are stored. Pure."""

from enum import StrEnum

from supervisor_tasks.jobs.model import ChainStatus

OPEN_STATES = ("SIGNED", "SENT")  # of a transaction that is not known to be mined


class Purpose(StrEnum):
    """What a transaction is for, as it is stored. `report_purpose` has those that
    report a status.
    """

    CLAIM = "claim"
    CLAIM_CANCELLING = "claim-cancelling"
    CLAIM_TOP_UP = "claim-top-up"
    RETURN_JOB = "return-job"
    REGISTER = "register"
    FILL_NONCE = "fill-nonce"  # it only uses up a nonce


def report_purpose(status: ChainStatus) -> str:
    """The purpose of a transaction that reports this status."""
    return f"report {status.name}"
