"""What a person may ask the pages for, and why there is no answer. Pure: Flower imports
the ledger when a page is opened.
"""

import re
from dataclasses import dataclass

from supervisor_tasks.errors import PermanentError, TransientError

MAX_QUESTION = 80  # characters; an id has 66


class QueryRefusedError(TransientError):
    """The ledger's database refused a query. The database's own message can contain
    values, and only the log gets it.
    """


class UnknownJobError(PermanentError):
    """The ledger has no such job."""


class QuestionError(PermanentError):
    """The words of a search are no id, SLURM id or customer."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a search is for: a SLURM id, or the beginning of a job's id or of a
    customer's address.
    """

    slurm_id: str = ""
    beginning: str = ""


def parsed(words: str) -> Question:
    """Read the words of a search. Raises QuestionError."""
    kind, _, value = words.lower().rpartition(":")
    is_slurm_id = re.fullmatch("[0-9]{1,18}", value) is not None
    is_beginning = (
        len(value) < MAX_QUESTION and re.fullmatch("0x[0-9a-f]+", value) is not None
    )
    if is_slurm_id and kind in ("", "slurm"):
        return Question(slurm_id=value)
    if is_beginning and kind in ("", "customer", "job"):
        return Question(beginning=value)
    raise QuestionError(
        "found words that name no job; expected a SLURM id (123), or the beginning of a job's id or of a customer's"
        " address (0x12ab)"
    )
