"""When submissions that are cut off again and again are left to the operator."""

import pytest

from supervisor_tasks.errors import PermanentError
from supervisor_tasks.jobs.submission_rules import (
    MAX_CUT_OFF_TRIES,
    require_worth_trying,
)
from supervisor_tasks.ledger.journal import CutOff

REASONS = ["timed out"] * MAX_CUT_OFF_TRIES


@pytest.mark.parametrize(
    "cut_off",
    [
        pytest.param(CutOff([], 0, 0), id="the operator has it tried again"),
        pytest.param(CutOff(REASONS[1:], 9, 0), id="it may be chance"),
        pytest.param(CutOff(REASONS * 20, 0, 0), id="no other customer gets through"),
        pytest.param(CutOff(REASONS * 20, 3, 3), id="others do not get through either"),
    ],
)
def test_require_worth_trying__it_may_be_slurms_own_trouble__is_submitted_again(
    cut_off: CutOff,
) -> None:
    require_worth_trying(cut_off)


@pytest.mark.parametrize("cut_off", [CutOff(REASONS, 1, 0), CutOff(REASONS, 4, 3)])
def test_require_worth_trying__others_get_through__is_left_to_the_operator(
    cut_off: CutOff,
) -> None:
    with pytest.raises(
        PermanentError, match=f"cut off {MAX_CUT_OFF_TRIES} times.*timed out"
    ):
        require_worth_trying(cut_off)
