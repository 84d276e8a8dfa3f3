"""How long the end of a job waits for the seconds of its earlier runs."""

import pytest

from supervisor_tasks.jobs.stalled import PATIENCE_S
from supervisor_tasks.jobs.wait_for_runs import (
    ACCOUNTING_PATIENCE_S,
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


@pytest.mark.parametrize(
    ("unclear", "patience_s"), [(AWAY, PATIENCE_S), ("", ACCOUNTING_PATIENCE_S)]
)
def test_waits_for_accounting__no_answer_or_not_all_runs__for_its_time_at_most(
    unclear: str, patience_s: float
) -> None:
    assert waits_for_accounting((), unclear)
    assert waits_for_accounting((patience_s - 1,), unclear)
    assert waits_for_accounting((*FOUR, 9.0), unclear)
    assert not waits_for_accounting((1.0, patience_s, patience_s), unclear)


def test_waits_for_accounting__answers_after_an_outage__has_its_minute_from_then() -> (
    None
):
    assert waits_for_accounting((300.0,), "")
    assert waits_for_accounting((1.0, 300.0), "")
    assert not waits_for_accounting((ACCOUNTING_PATIENCE_S, 300.0), "")


@pytest.mark.parametrize(
    ("looks", "answered", "counted"),
    [
        ((), True, True),
        (FOUR[1:], True, True),
        (FOUR, True, False),
        ((), False, True),
        ((3.0,), False, False),
    ],
)
def test_counts__look_that_waits__the_first_without_an_answer_and_four(
    looks: tuple[float, ...], answered: bool, counted: bool
) -> None:
    assert counts(looks, answered=answered) == counted
