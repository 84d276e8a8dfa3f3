"""When a worker checks whether SLURM answers: every CHECK_EVERY_S while it does, and
again after each failed try. Pure.
"""

from supervisor_tasks.ledger.facts import FLAG, INT, Fact, Stored
from supervisor_tasks.ledger.periodic_run_names import is_in_the_future

SLURM_ANSWERED = "slurm"  # the periodic run that exists while SLURM answers
# in a row since the last answer, or since a start
FAILED_TRIES = Fact("slurm.failed_tries", INT)
ANSWERED_SINCE_START = Fact("slurm.answered_since_start", FLAG)
# while it answers; two checks come before an answer is too old (KNOWN_FOR_S)
CHECK_EVERY_S = 40.0
KNOWN_FOR_S = 90.0  # SLURM counts as working for so long after an answer
MAX_TRIES_AT_START = 10  # SLURM_RETRY_INTERVAL_S apart; then an alarm is raised
SLOW_FACTOR = 3  # after the alarm the intervals are so many times longer


def answered_recently(answered_s: float | None) -> bool:
    """Return whether SLURM, which answered so long ago, counts as working. None: a try
    has failed since, or there was no answer yet. An answer in the future does not
    count: the database's clock was set back.
    """
    if answered_s is None or is_in_the_future(answered_s):
        return False
    return answered_s <= KNOWN_FOR_S


def next_try_s(tries: int, answered_since_start: bool, every_s: float) -> float:
    """Return how long after the last of these failed `tries` the worker makes the next
    one.

    A SLURM that has answered since the start (`answered_since_start`) has our jobs and
    may be back at any moment: each check tries it.
    """
    if not tries or answered_since_start:
        return 0.0
    if tries < MAX_TRIES_AT_START:
        return every_s
    return SLOW_FACTOR * every_s


def check_is_due(
    answered_s: float | None,
    answered_since_start: bool,
    failed: Stored[int] | None,
    every_s: float,
) -> bool:
    """Return whether the worker checks SLURM now.

    `answered_s` is how long ago SLURM answered, if nothing has failed since.
    `answered_since_start` means that it has answered since the start. `failed` counts
    the failed tries, and `every_s` is the time between two tries. SLURM is checked, too,
    if the last answer or try lies in the future.
    """
    if answered_s is not None and answered_since_start:
        return answered_s >= CHECK_EVERY_S or is_in_the_future(answered_s)
    tries = failed or Stored(0, 0.0)
    if is_in_the_future(tries.age_s):
        return True
    return tries.age_s >= next_try_s(tries.value, answered_since_start, every_s)
