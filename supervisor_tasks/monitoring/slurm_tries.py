"""When to ask SLURM whether it answers: every CHECK_EVERY_S while it does, and again after each failed try while it
does not.
"""

from supervisor_tasks.ledger.facts import FLAG, INT, Fact, Stored

SLURM_ANSWERED = "slurm"  # the tick that exists while SLURM answers
FAILED_TRIES = Fact("slurm.failed_tries", INT)  # in a row since the last answer, or since a start
SEEN = Fact("slurm.answered_since_start", FLAG)
CHECK_EVERY_S = 40.0  # while it answers; two checks come before an answer is too old (KNOWN_FOR_S)
KNOWN_FOR_S = 90.0  # an answer shows for so long that SLURM works
TRIES = 10  # at a start, SLURM_RETRY_INTERVAL_S apart; then an alarm is raised
SLOWLY = 3  # from then on the intervals are so many times longer


def next_try_s(tries: int, seen: bool, every_s: float) -> float:
    """Return how long after the last failed try the next one is made; so many `tries` have failed. A SLURM that was
    `seen` since the start has our jobs and may be back at any moment: it is tried whenever the clock runs the check.
    """
    if not tries or seen:
        return 0.0
    return every_s if tries < TRIES else SLOWLY * every_s


def check_is_due(answered_s: float | None, seen: bool, failed: Stored[int] | None, every_s: float) -> bool:
    """Whether to ask SLURM now. `answered_s` is how long ago it answered, if nothing has failed since. `seen` means
    that it has answered since the start. `failed` counts the failed tries, and `every_s` is the time between two tries.
    """
    if answered_s is not None and seen:
        return answered_s >= CHECK_EVERY_S
    tries = failed or Stored(0, 0.0)
    return tries.age_s >= next_try_s(tries.value, seen, every_s)
