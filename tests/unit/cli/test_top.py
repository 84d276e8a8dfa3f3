"""The keys of `supervisor top`."""

import pytest

from supervisor_tasks.cli.top import Screen, effect_of_pause, next_filter, pressed
from supervisor_tasks.jobs.model import State

JOBS = ["0x1", "0x2"]


@pytest.mark.parametrize(
    ("before", "key", "after"),
    [
        (Screen(), "j", Screen(selected=1)),
        (Screen(selected=1), "j", Screen(selected=1)),
        (Screen(), "k", Screen()),
        (Screen(selected=1), "\n", Screen(selected=1, opened="0x2")),
        (Screen(opened="0x1"), "b", Screen()),
        (Screen(opened="0x1", first_line=20), "b", Screen()),
        (Screen(opened="0x1"), "j", Screen(opened="0x1", first_line=10)),
        (Screen(opened="0x1", first_line=10), "k", Screen(opened="0x1")),
        (Screen(opened="0x1"), "k", Screen(opened="0x1")),
        (Screen(selected=1), "f", Screen(only=State.CLAIMED)),
        (Screen(), "p", Screen(asks=True)),
        (Screen(asks=True), "n", Screen()),
        (Screen(asks=True), "", Screen(asks=True)),
        (Screen(), "x", Screen()),
        (Screen(selected=9), "", Screen(selected=1)),
    ],
)
def test_key__on_each_screen__changes_what_is_shown(
    before: Screen, key: str, after: Screen
) -> None:
    assert pressed(before, key, JOBS) == after


def test_key__without_jobs__opens_nothing() -> None:
    assert pressed(Screen(selected=3), "\n", []) == Screen()


def test_next_filter__called_repeatedly__goes_through_all_states_and_back_to_all() -> (
    None
):
    only, seen = None, list[State | None]()
    for _ in range(len(State) + 1):
        only = next_filter(only)
        seen.append(only)
    assert seen == [*State, None]


@pytest.mark.parametrize(
    ("paused", "under_way", "told"),
    [
        (True, 2, "jobs will be claimed again, beside 2 jobs under way"),
        (False, 1, "no more jobs will be claimed; 1 job under way will go on"),
    ],
)
def test_effect_of_pause__of_a_switch__is_told_in_numbers(
    paused: bool, under_way: int, told: str
) -> None:
    assert effect_of_pause(paused=paused, under_way=under_way) == told
    assert len(f"{told}: go on? y/n") < 80
