"""25 deaths, one after another while the work of the last one goes on; then everything is compared."""

from collections import Counter
from collections.abc import Iterator

import pytest

from supervisor_tasks.crash import Point
from tests.chaos.crashes import ELSEWHERE, PLACES, Battlefield, plan

DEATHS = 25
FIRST_SEED = 2


@pytest.fixture(scope="module")
def field() -> Iterator[Battlefield]:
    with Battlefield.made(workers=2) as running:
        yield running


@pytest.mark.timeout(600)
def test_killed_where_the_world_changes__every_job_ends_right_and_nothing_is_lost(field: Battlefield) -> None:
    field.ask_for_long_jobs()
    outcomes = [field.kill(plan(seed)) for seed in range(FIRST_SEED, FIRST_SEED + DEATHS)]
    print(*outcomes, sep="\n")
    assert [str(outcome) for outcome in outcomes if not outcome.reached] == []
    assert field.check() == []
    assert field.finish() == []


def test_plan__as_many_seeds_as_places__go_through_all() -> None:
    planned = Counter(plan(seed).place for seed in range(len(PLACES)))
    assert planned == Counter(PLACES)
    assert {Point(place.partition("-")[2]) for place in planned} == set(Point) - ELSEWHERE


def test_plan__same_seed__same_run() -> None:
    assert plan(12) == plan(12)
