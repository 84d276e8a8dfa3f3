"""A death at each crash point, one after another, while the jobs of the earlier ones
still run; then an audit.
"""

from collections import Counter
from collections.abc import Iterator

import pytest

from devgrid.options import Transport
from supervisor_tasks.crash_points import CrashPoint
from tests.chaos.crashes import CrashTestGrid, plan
from tests.support.chaos_report import PLACES
from tests.support.transports import rest_in_chaos

# Each point once: before the first, after the second, before the third ... Then the
# moment between the commit of a signed transaction and its broadcast.
SEEDS = (
    *(2 * number + number % 2 for number in range(len(CrashPoint))),
    PLACES.index(f"after-{CrashPoint.TRANSACTION_COMMIT}"),
)


@pytest.fixture(scope="module")
def transport(request: pytest.FixtureRequest) -> Transport:
    chosen: Transport = request.param
    return chosen


@pytest.fixture(scope="module")
def crash_grid(transport: Transport) -> Iterator[CrashTestGrid]:
    with CrashTestGrid.start(workers=2, transport=transport) as running:
        yield running


@rest_in_chaos
@pytest.mark.timeout(600)
def test_process__killed_at_each_crash_point__jobs_end_right_and_nothing_is_lost(
    crash_grid: CrashTestGrid,
) -> None:
    crash_grid.submit_long_jobs()
    outcomes = [crash_grid.kill(plan(seed)) for seed in SEEDS]
    print(*outcomes, sep="\n")
    assert [str(outcome) for outcome in outcomes if not outcome.reached] == []
    assert crash_grid.check() == []
    assert crash_grid.finish() == []


def test_plan__of_all_seeds__kills_at_every_crash_point() -> None:
    assert {CrashPoint(plan(seed).place.partition("-")[2]) for seed in SEEDS} == set(
        CrashPoint
    )


def test_plan__as_many_seeds_as_places__go_through_all() -> None:
    planned = Counter(plan(seed).place for seed in range(len(PLACES)))
    assert planned == Counter(PLACES)
    assert {CrashPoint(place.partition("-")[2]) for place in planned} == set(CrashPoint)


def test_plan__same_seed__same_run() -> None:
    assert plan(12) == plan(12)
