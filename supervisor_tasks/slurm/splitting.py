"""Ask again in halves when SLURM rejects a question about many jobs, until only the
rejected ids are left. Pure.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from supervisor_tasks.slurm.parsers import QuestionRejectedError

# one rejected id among 10,000 costs 15; with more rejections, SLURM rejects everything
MAX_REJECTIONS = 64

Answer = TypeVar("Answer")


def ask_in_parts(
    ids: Sequence[str], ask: Callable[[Sequence[str]], list[Answer]]
) -> tuple[list[Answer], dict[str, str]]:
    """Return the answers for the ids that SLURM accepts, and the error for each other
    id. Raises QuestionRejectedError when SLURM rejects every question; a later retry
    can help.
    """
    answers, rejected = list[Answer](), dict[str, str]()
    parts, rejections, has_answer = [ids], 0, False
    while parts:
        part = parts.pop()
        try:
            answers += ask(part)
            has_answer = True
        except QuestionRejectedError as error:
            rejections += 1
            middle = len(part) // 2
            if middle and rejections < MAX_REJECTIONS:
                parts += [part[middle:], part[:middle]]
                continue
            rejected |= dict.fromkeys(part, str(error))
            if not (parts or has_answer):
                raise
    return answers, rejected
