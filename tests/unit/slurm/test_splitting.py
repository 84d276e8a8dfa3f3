from collections.abc import Sequence

import pytest

from supervisor_tasks.slurm.parsers import QuestionRejectedError
from supervisor_tasks.slurm.splitting import MAX_REJECTIONS, ask_in_parts

IDS = [str(number) for number in range(1000)]


class Slurm:
    """It refuses each question that has one of these ids in it."""

    def __init__(self, *refused: str) -> None:
        self.refused = set(refused)
        self.asked = 0

    def ask(self, ids: Sequence[str]) -> list[str]:
        self.asked += 1
        if self.refused & {*ids}:
            raise QuestionRejectedError("refused")
        return list(ids)


def test_ask_in_parts__nothing_refused__is_one_question() -> None:
    slurm = Slurm()
    assert ask_in_parts(IDS, slurm.ask) == (IDS, {})
    assert slurm.asked == 1


@pytest.mark.parametrize("refused", [{"0"}, {"999"}, {"3", "4", "500"}])
def test_ask_in_parts__some_refused__tells_all_others_in_few_questions(
    refused: set[str],
) -> None:
    slurm = Slurm(*refused)
    told, never = ask_in_parts(IDS, slurm.ask)
    assert set(told) == {*IDS} - refused
    assert never == dict.fromkeys(refused, "refused")
    assert slurm.asked <= 2 * 11 * len(refused)


def test_ask_in_parts__everything_refused__is_an_error_after_few_questions() -> None:
    slurm = Slurm(*IDS)
    with pytest.raises(QuestionRejectedError):
        ask_in_parts(IDS, slurm.ask)
    assert slurm.asked <= 3 * MAX_REJECTIONS
