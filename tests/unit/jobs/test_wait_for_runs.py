"""How long the end of a job waits for the seconds of its earlier runs."""

import pytest

from supervisor_tasks.jobs.stalled import PATIENCE_S
from supervisor_tasks.jobs.wait_for_runs import (
    counts,
    waits_for_accounting,
    waits_for_answers,
)

FOUR = (1.0, 2.0, 6.0, 8.0)
AWAY = "sacct ended with status 1"


@pytest.mark.parametrize(
    ("looks", "waits"),
    [((), True), (FOUR[1:], True), (FOUR, False), ((9.0, *FOUR), False)],
)
def test_waits_for_answers__so_many_looks_before__each_case(
    looks: tuple[float, ...], waits: bool
) -> None:
    assert waits_for_answers(looks) == waits
    assert waits_for_accounting(looks, "") == waits


@pytest.mark.parametrize(
    ("looks", "waits"),
    [
        ((), True),
        ((PATIENCE_S - 1,), True),
        ((1.0, PATIENCE_S), False),
        ((*FOUR, 9.0), True),
    ],
)
def test_waits_for_accounting__it_does_not_answer__for_an_hour_at_most(
    looks: tuple[float, ...], waits: bool
) -> None:
    assert waits_for_accounting(looks, AWAY) == waits


@pytest.mark.parametrize(
    ("looks", "answered", "counted"),
    [((), True, True), (FOUR, True, True), ((), False, True), ((3.0,), False, False)],
)
def test_counts__look_that_waits__only_the_first_without_an_answer(
    looks: tuple[float, ...], answered: bool, counted: bool
) -> None:
    assert counts(looks, answered=answered) == counted
