"""A question about many jobs that SLURM refuses as a whole is asked in halves, until what it refuses stands alone. Pure."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from supervisor_tasks.slurm.output import QuestionRefusedError

REFUSALS_AT_MOST = 64  # one id among 10,000 costs 15; a SLURM that refuses more often refuses everything

Told = TypeVar("Told")


def ask_in_parts(ids: Sequence[str], ask: Callable[[Sequence[str]], list[Told]]) -> tuple[list[Told], dict[str, str]]:
    """All that is told of the ids that are not refused, and why each of the others is. Raises QuestionRefusedError when every
    question is refused.
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
