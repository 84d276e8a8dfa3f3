"""Ask again in halves when SLURM refuses a question about many jobs, until only the
refused ids are left. Pure.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from supervisor_tasks.slurm.parsers import QuestionRefusedError

# one refused id among 10,000 costs 15; with more refusals, SLURM refuses everything
MAX_REFUSALS = 64

Answer = TypeVar("Answer")


def ask_in_parts(
    ids: Sequence[str], ask: Callable[[Sequence[str]], list[Answer]]
) -> tuple[list[Answer], dict[str, str]]:
    """Return the answers for the ids that SLURM accepts, and the error for each other
    id. Raises QuestionRefusedError when SLURM refuses every question.
    """
    answers, refused = list[Answer](), dict[str, str]()
    parts, refusals, has_answer = [ids], 0, False
    while parts:
        part = parts.pop()
        try:
            answers += ask(part)
            has_answer = True
        except QuestionRefusedError as error:
            refusals += 1
            middle = len(part) // 2
            if middle and refusals < MAX_REFUSALS:
                parts += [part[middle:], part[:middle]]
                continue
            refused |= dict.fromkeys(part, str(error))
            if not (parts or has_answer):
                raise
    return answers, refused
