"""How long ago periodic work ended, by the database's clock."""

import pytest

from supervisor_tasks.ledger.periodic_run_names import (
    CLOCK_TOLERANCE_S,
    is_in_the_future,
    since_end_s,
)

NEVER = float("inf")


@pytest.mark.parametrize(
    ("ages_s", "seconds"),
    [
        ({"scan": 7.0}, 7.0),
        ({"beat": 7.0}, NEVER),
        ({"scan": -1.0}, -1.0),  # a statement that began before
        ({"scan": -3600.0}, NEVER),  # the clock was set back since
    ],
)
def test_since_end_s__run_recorded_or_not__is_its_age_unless_it_proves_nothing(
    ages_s: dict[str, float], seconds: float
) -> None:
    assert since_end_s(ages_s, "scan") == seconds


def test_is_in_the_future__within_the_tolerance_of_clocks__is_not() -> None:
    assert not is_in_the_future(-CLOCK_TOLERANCE_S)
    assert is_in_the_future(-CLOCK_TOLERANCE_S - 0.1)
