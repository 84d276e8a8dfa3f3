"""The seconds of all runs of a job that SLURM ran more than once, by what looks have
shown.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_tasks.jobs.runs import (
    JobRun,
    RunEnd,
    Runs,
    Sighting,
    billed_s,
    earlier_s,
    is_exact,
    is_used_up,
    left_min,
    runs_after_look,
    used_s,
    with_ends,
)

T = 1_000_000


def waiting(submit_s: int, seen_s: int, restarts: int = 0) -> Sighting:
    return Sighting(submit_s=submit_s, restarts=restarts, seen_s=seen_s)


def running(
    submit_s: int,
    start_s: int,
    seen_s: int,
    restarts: int = 0,
    *,
    suspended: bool = False,
) -> Sighting:
    return Sighting(
        submit_s=submit_s,
        restarts=restarts,
        start_s=start_s,
        elapsed_s=seen_s - start_s,
        seen_s=seen_s,
        suspended=suspended,
    )


def told(*seconds: int, received_s: int = T + 10_000) -> list[RunEnd]:
    """Ends that the hooks reported after all looks of these tests."""
    return [RunEnd(elapsed_s, received_s) for elapsed_s in seconds]


def looked(*sightings: Sighting, since_s: int | None = None) -> Runs:
    runs: Runs = ()
    for sighting in sightings:
        runs = runs_after_look(runs, sighting, since_s)
    return runs


@pytest.mark.parametrize(
    ("sightings", "earlier", "used", "exact"),
    [
        pytest.param([waiting(T, T + 1)], 0, 0, True, id="waits"),
        pytest.param(
            [waiting(T, T + 1), running(T, T + 5, T + 65)], 0, 60, True, id="one run"
        ),
        pytest.param(
            [running(T, T, T + 9), waiting(T + 75, T + 76, 1)],
            75,
            75,
            False,
            id="requeued",
        ),
        pytest.param(
            [running(T, T, T + 9), running(T + 75, T + 80, T + 90, 1)],
            75,
            85,
            False,
            id="runs again",
        ),
        pytest.param(
            [
                running(T, T, T + 9),
                running(T + 75, T + 80, T + 90, 1),
                waiting(T + 100, T + 101, 2),
            ],
            *(95, 95, False),
            id="a third time",
        ),
        pytest.param(
            [waiting(T, T + 10), waiting(T + 75, T + 76, 1)],
            65,
            65,
            False,
            id="ran between two looks at a waiting job",
        ),
        pytest.param(
            [running(T, T, T + 9), waiting(T + 75, T + 76, 2)],
            75,
            75,
            False,
            id="a run that no look saw",
        ),
        pytest.param(
            [
                running(T, T, T + 9),
                running(T + 75, T + 80, T + 90, 1),
                running(T, T, T + 20),
            ],
            *(75, 85, False),
            id="an answer that was overtaken",
        ),
        pytest.param(
            [running(T, T, T + 10, suspended=True), waiting(T + 75, T + 76, 1)],
            75,
            75,
            False,
            id="was suspended",
        ),
        pytest.param(
            [
                running(T, T, T + 10, suspended=True),
                running(T, T + 80, T + 100),
                waiting(T + 110, T + 111, 1),
            ],
            *(30, 30, False),
            id="was suspended at an earlier look",
        ),
        pytest.param(
            [waiting(T, T + 10), waiting(T, T + 62, 1), waiting(T + 90, T + 91, 1)],
            *(80, 80, False),
            id="ran unseen, and was seen COMPLETING after its requeue",
        ),
        pytest.param(
            [running(T, T, T + 60), waiting(T, T + 70)],
            *(0, 60, True),
            id="ran, and waits before its requeue is known",
        ),
        pytest.param(
            [running(T, T, T + 80), waiting(T + 75, T + 76, 1)],
            *(80, 80, False),
            id="a clock that was set back",
        ),
    ],
)
def test_runs_after_look__looks__come_to_these_seconds(
    sightings: list[Sighting], earlier: int, used: int, exact: bool
) -> None:
    runs = looked(*sightings)
    assert (earlier_s(runs), used_s(runs), is_exact(runs)) == (earlier, used, exact)


def test_runs_after_look__same_run_twice__is_counted_once() -> None:
    again = running(T + 75, T + 80, T + 90, 1)
    assert looked(running(T, T, T + 9), again, again, again) == looked(
        running(T, T, T + 9), again
    )


def test_runs_after_look__requeued_before_the_first__may_have_run_since_submission() -> (
    None
):
    runs = looked(running(T + 75, T + 80, T + 90, 1), since_s=T)
    assert (earlier_s(runs), is_exact(runs)) == (75, False)
    assert looked(running(T, T, T + 9), since_s=T - 50) == (
        JobRun(submit_s=T, start_s=T, elapsed_s=9, seen_s=T + 9),
    )


def test_runs_after_look__requeued_of_unknown_submission__is_free_until_reported() -> (
    None
):
    runs = looked(waiting(T + 75, T + 76, 1), running(T + 75, T + 80, T + 90, 1))
    assert (len(runs), earlier_s(runs), is_exact(runs)) == (2, 0, False)
    reported = with_ends(runs, told(70))
    assert (earlier_s(reported), is_exact(reported)) == (70, True)


def test_runs_after_look__suspended_for_long__is_billed_since_the_last_look_at_most() -> (
    None
):
    suspended = Sighting(
        submit_s=T, start_s=T, elapsed_s=10, seen_s=T + 1000, suspended=True
    )
    assert earlier_s(looked(suspended, waiting(T + 1003, T + 1004, 1))) == 13


@pytest.mark.parametrize(
    ("limit_min", "earlier", "left"),
    [(60, 0, 60), (60, 1, 60), (60, 60, 59), (2, 75, 1), (2, 120, 1), (2, 500, 1)],
)
def test_left_min__paid_minutes__less_what_earlier_runs_had(
    limit_min: int, earlier: int, left: int
) -> None:
    assert (
        left_min(
            limit_min,
            (JobRun(submit_s=T, elapsed_s=earlier), JobRun(submit_s=T + earlier)),
        )
        == left
    )


@pytest.mark.parametrize(
    ("first", "second", "used_up"),
    [(75, 0, False), (75, 44, False), (75, 45, True), (120, 0, True)],
)
def test_is_used_up__two_runs_of_two_paid_minutes__is_true_from_120_s_on(
    first: int, second: int, used_up: bool
) -> None:
    runs = (
        JobRun(submit_s=T, elapsed_s=first),
        JobRun(submit_s=T + first, elapsed_s=second),
    )
    assert is_used_up(2, runs) is used_up
    assert not is_used_up(2, (JobRun(submit_s=T, elapsed_s=500),))


@pytest.mark.parametrize(
    ("earlier", "last", "billed"),
    [
        (0, 75, 75),
        (75, 30, 105),
        (75, 75, 120),
        (500, 0, 120),
        (0, 140, 140),
        (60, 140, 140),
    ],
)
def test_billed_s__two_paid_minutes__are_not_exceeded_by_a_requeue(
    earlier: int, last: int, billed: int
) -> None:
    assert billed_s(2, earlier, last) == billed


@pytest.mark.parametrize(
    ("sightings", "ends_s", "earlier", "exact"),
    [
        pytest.param(
            [waiting(T, T + 10), waiting(T + 75, T + 76, 1)],
            [20],
            20,
            True,
            id="a run that no look saw",
        ),
        pytest.param(
            [waiting(T + 75, T + 76, 2)],
            [20, 30],
            50,
            True,
            id="two runs before the first look",
        ),
        pytest.param(
            [waiting(T, T + 10), waiting(T + 75, T + 76, 1)],
            [90],
            65,
            True,
            id="longer than there was time",
        ),
        pytest.param(
            [waiting(T, T + 10), waiting(T + 75, T + 76, 2)],
            [20],
            65,
            False,
            id="an end is missing",
        ),
        pytest.param(
            [waiting(T, T + 10), waiting(T + 75, T + 76, 1)],
            [],
            65,
            False,
            id="nothing was told",
        ),
        pytest.param(
            [running(T, T, T + 9), waiting(T + 75, T + 76, 1)],
            [60],
            60,
            True,
            id="a run that looks saw, with the time of COMPLETING",
        ),
        pytest.param(
            [
                running(T, T, T + 9),
                waiting(T, T + 62, 1),
                waiting(T + 90, T + 91, 1),
            ],
            [60],
            60,
            True,
            id="seen COMPLETING after its requeue",
        ),
        pytest.param(
            [
                running(T, T, T + 9),
                waiting(T, T + 62, 1),
                waiting(T + 200, T + 201, 2),
            ],
            *([60, 70], 130, True),
            id="seen COMPLETING, and requeued once more",
        ),
        pytest.param(
            [waiting(T, T + 62, 1), waiting(T + 90, T + 91, 1)],
            *([60], 60, True),
            id="first seen COMPLETING after its requeue",
        ),
        pytest.param(
            [
                running(T, T, T + 9),
                waiting(T + 75, T + 80, 1),
                waiting(T + 175, T + 176, 2),
            ],
            *([75, 40], 115, True),
            id="the second of two",
        ),
    ],
)
def test_with_ends__what_hooks_told__counts_for_runs_before_a_requeue(
    sightings: list[Sighting], ends_s: list[int], earlier: int, exact: bool
) -> None:
    runs = with_ends(looked(*sightings, since_s=T), told(*ends_s))
    assert (earlier_s(runs), is_exact(runs)) == (earlier, exact)
    assert runs[-1] == looked(*sightings, since_s=T)[-1]


SHORT = running(T, T, T + 4)
SHORT_ENDED_S = T + 6
LONG = running(T + 7, T + 20, T + 5_720, restarts=1)
WAITS_AGAIN = waiting(T + 5_721, T + 5_722, restarts=2)


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(told(5, 6, received_s=SHORT_ENDED_S), id="at once"),
        pytest.param(told(5, 6), id="both late"),
        pytest.param(told(5, 5_699), id="less than a look saw"),
        pytest.param(
            told(5, 5_701, received_s=SHORT_ENDED_S), id="arrived before it was seen"
        ),
        pytest.param(told(3, 5_701), id="less than a look saw of the first"),
    ],
)
def test_with_ends__short_run_was_told_twice__does_not_pay_for_a_silent_one(
    ends: list[RunEnd],
) -> None:
    """The owner keeps the long run's end from the hooks, and has them report the short
    run twice: the count of ends is right.
    """
    runs = looked(SHORT, waiting(T + 7, T + 8, 1), LONG, WAITS_AGAIN)
    assert with_ends(runs, ends) == runs
    assert (is_exact(runs), earlier_s(runs)) == (False, 7 + 5_701)
    assert is_exact(with_ends(runs, told(5, 5_701)))


def test_with_ends__silent_run_seen_only_as_waiting__is_not_paid_by_an_earlier_end() -> (
    None
):
    looks = SHORT, waiting(T + 7, T + 15, 1), waiting(T + 900, T + 901, 2)
    runs = looked(*looks)
    assert with_ends(runs, told(5, 6, received_s=T + 7)) == runs
    assert is_exact(with_ends(runs, told(5, 6, received_s=T + 800)))


def test_with_ends__clocks_are_seconds_apart__end_after_the_look_counts() -> None:
    runs = looked(SHORT, waiting(T + 7, T + 8, 1))
    assert is_exact(with_ends(runs, told(5, received_s=T)))
    assert not is_exact(with_ends(runs, told(5, received_s=T - 2)))


def test_with_ends__slurms_clock_was_asked_late__look_at_the_run_is_no_later() -> None:
    asked_late = replace(SHORT, seen_s=T + 60)
    runs = looked(asked_late, waiting(T + 7, T + 61, 1))
    assert earlier_s(with_ends(runs, told(5, received_s=SHORT_ENDED_S))) == 5


def test_with_ends__waiting_again_before_its_requeue_is_known__end_counts() -> None:
    runs = looked(SHORT, waiting(T, T + 60), waiting(T + 65, T + 66, 1))
    assert earlier_s(with_ends(runs, told(5, received_s=SHORT_ENDED_S))) == 5


def test_with_ends__suspended_run__is_no_shorter_than_a_look_saw() -> None:
    suspended = Sighting(
        submit_s=T, start_s=T, elapsed_s=40, seen_s=T + 1000, suspended=True
    )
    runs = looked(suspended, waiting(T + 1003, T + 1004, 1))
    assert with_ends(runs, told(39)) == runs
    assert earlier_s(with_ends(runs, told(40))) == 40


SECONDS = st.integers(1, 600)


@given(
    lasted=st.lists(st.tuples(SECONDS, SECONDS, st.booleans()), min_size=2, max_size=5),
    ends=st.lists(st.tuples(SECONDS, st.integers(0, 8_000)), max_size=6),
)
def test_with_ends__any_ends__bill_no_run_below_what_a_look_saw(
    lasted: list[tuple[int, int, bool]], ends: list[tuple[int, int]]
) -> None:
    runs: Runs = ()
    submit_s, seen = T, []
    for restarts, (waits_s, runs_s, is_seen) in enumerate(lasted):
        start_s = submit_s + waits_s
        runs = runs_after_look(runs, waiting(submit_s, submit_s + 1, restarts))
        if is_seen:
            look = running(submit_s, start_s, start_s + runs_s, restarts)
            runs = runs_after_look(runs, look)
        seen.append(runs_s if is_seen else 0)
        submit_s = start_s + runs_s + 1
    billed = with_ends(runs, [RunEnd(end, T + at) for end, at in ends])
    assert all(run.elapsed_s >= s for run, s in zip(billed, seen, strict=True))
    assert earlier_s(billed) <= earlier_s(runs)


def test_runs_after_look__account_qos_and_threads__stay_those_of_the_first_look() -> (
    None
):
    first = replace(waiting(T, T + 1), account="grid", qos="normal", threads="*")
    later = replace(running(T, T + 5, T + 65), account="vip", qos="high", threads="1")
    again = replace(waiting(T + 75, T + 76, 1), account="vip", qos="high")
    shown = {(run.account, run.qos, run.threads) for run in looked(first, later, again)}
    assert shown == {("grid", "normal", "*")}
    unseen = looked(replace(again, account="grid", qos="normal"), later, since_s=T)
    assert {(run.account, run.qos) for run in unseen} == {("grid", "normal")}
