"""What the words of a search mean."""

import pytest

from supervisor_tasks.dashboard.questions import Question, QuestionError, parsed


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("123", Question(slurm_id="123")),
        ("slurm:123", Question(slurm_id="123")),
        ("0xABC", Question(beginning="0xabc")),
        ("customer:0xabc", Question(beginning="0xabc")),
        ("job:0x" + "a" * 64, Question(beginning="0x" + "a" * 64)),
    ],
)
def test_parsed__id_slurm_id_or_customer__is_understood(
    words: str, wanted: Question
) -> None:
    assert parsed(words) == wanted


@pytest.mark.parametrize(
    "words",
    ["<script>", "0x", "0x%", "9" * 30, "0x" + "a" * 500, "slurm:0x1", "' OR 1=1"],
)
def test_parsed__other_words__are_refused(words: str) -> None:
    with pytest.raises(QuestionError, match="expected a SLURM id"):
        parsed(words)
