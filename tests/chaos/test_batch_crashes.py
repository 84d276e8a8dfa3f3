"""A death where a submission changes the world, with 1, 2 and 50 jobs that are
submitted together; then an audit. Redis is flushed while 50 jobs are ready.
"""

import random
from collections.abc import Iterator

import pytest
from redis import Redis

from supervisor_tasks.crash_points import CrashPoint
from tests.chaos.crashes import CrashTestGrid
from tests.support import chaos_jobs
from tests.support.chaos_report import Run

pytestmark = pytest.mark.chaos

SIZES = (1, 2, 50)
POINTS = (CrashPoint.LEASE, CrashPoint.COMMIT, CrashPoint.SBATCH, CrashPoint.ID_STORED)
PLACES = tuple(f"{side}-{point}" for point in POINTS for side in ("before", "after"))
SEED = 1126


@pytest.fixture(scope="module")
def crash_grid() -> Iterator[CrashTestGrid]:
    with CrashTestGrid.start(workers=2) as running:
        # No worker claims a job before SLURM has answered, and sshd must not stand
        # still before that.
        first = chaos_jobs.finishing(running.grid, running.grid.new_customer())
        chaos_jobs.wait_for_end(running.grid, [first])
        yield running


def passes(place: str, size: int, chance: random.Random) -> int:
    """At which pass of the place the process dies. The first two commands have the jobs
    that were there first, so the third one of a large batch has many.
    """
    if place == f"after-{CrashPoint.SBATCH}":
        return chance.randint(1, size)  # each answer passes it
    if place == f"before-{CrashPoint.SBATCH}" and size > 2:
        return 3
    return 1


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", SIZES)
def test_worker__killed_while_it_submits__each_job_of_the_batch_runs_once(
    crash_grid: CrashTestGrid, size: int
) -> None:
    chance = random.Random(SEED + size)
    for place in PLACES:
        run = Run(SEED, place, passes(place, size, chance), (f"{size} finishing",))
        outcome = crash_grid.kill_in_batch(run, size)
        print(outcome)
        assert outcome.reached, str(outcome)
        assert crash_grid.check() == []


@pytest.mark.timeout(300)
def test_redis_flushed__50_jobs_are_ready__each_runs_once(
    crash_grid: CrashTestGrid,
) -> None:
    broker = crash_grid.grid.environment["BROKER_URL"].removeprefix("redis+socket://")

    def flush() -> None:
        with Redis(unix_socket_path=broker) as redis:
            redis.flushall()

    crash_grid.submit_together(max(SIZES), flush)
    assert crash_grid.check() == []
