"""Ask again in halves when SLURM refuses a question about many jobs, until only the refused ids are left. Pure."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from supervisor_tasks.slurm.parsers import QuestionRefusedError

REFUSALS_AT_MOST = 64  # one refused id among 10,000 costs 15; with more refusals, SLURM refuses everything

Told = TypeVar("Told")


def ask_in_parts(ids: Sequence[str], ask: Callable[[Sequence[str]], list[Told]]) -> tuple[list[Told], dict[str, str]]:
    """Return the answers for the ids that SLURM accepts, and the error for each other id. Raises QuestionRefusedError
    when SLURM refuses every question.
    """
    told, refused = list[Told](), dict[str, str]()
    left, refusals, answers = [ids], 0, 0
    while left:
        part = left.pop()
        try:
            told += ask(part)
            answers += 1
        except QuestionRefusedError as error:
            refusals += 1
            middle = len(part) // 2 if refusals < REFUSALS_AT_MOST else 0
            if middle:
                left += [part[middle:], part[:middle]]
                continue
            refused |= dict.fromkeys(part, str(error))
            if not (left or answers):
                raise
    return told, refused
