"""What a person may ask the pages for, and why there is no answer. Pure: Flower imports
the ledger when a page is opened.
"""

import re
from dataclasses import dataclass

from supervisor_tasks.errors import PermanentError, TransientError

SLURM_ID = re.compile(r"(?:(?:slurm)?:)?([0-9]{1,18})")
# an id has 64 digits
BEGINNING = re.compile(r"(?:(?:customer|job)?:)?(0x[0-9a-f]{1,77})")


class QueryRejectedError(TransientError):
    """The ledger's database rejected a query. The database's own message can contain
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
    """Read the words of a search. Raises QuestionError; a retry does not help."""
    if found := SLURM_ID.fullmatch(words.lower()):
        return Question(slurm_id=found[1])
    if found := BEGINNING.fullmatch(words.lower()):
        return Question(beginning=found[1])
    raise QuestionError(
        "found words that name no job; expected a SLURM id (123), or the beginning of a job's id or of a customer's"
        " address (0x12ab)"
    )
