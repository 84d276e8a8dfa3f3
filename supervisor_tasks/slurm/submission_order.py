"""The order in which a submission begins: steps 1 to 3 of slurm/submit_once.py. Customers'
jobs and benchmarks are handed over here, and nowhere else.
"""

from collections.abc import Callable
from typing import TypeVar

from supervisor_tasks.slurm.guarded_command import LoginClock
from supervisor_tasks.slurm.ssh import our_clock_s

Begun = TypeVar("Begun")


def hand_over_in_order(
    read_clock: Callable[[], LoginClock],
    commit: Callable[[], Begun | None],
    hand_over: Callable[[Begun, LoginClock, float], None],
) -> None:
    """Read the login node's clock, commit that the submission has begun, and then hand
    it over with that clock and with our clock's time (`our_clock_s`) before the commit.
    If `commit` returns None, nothing has begun, and nothing is handed over.

    Raises what the three raise. After an error of `read_clock` or `commit` nothing was
    handed over, and a retry is safe. After an error of `hand_over` SLURM may have the
    jobs, and the caller must search for them.
    """
    clock = read_clock()
    begun_s = our_clock_s()
    begun = commit()
    if begun is None:
        return
    # from now on SLURM may have the jobs
    hand_over(begun, clock, begun_s)
