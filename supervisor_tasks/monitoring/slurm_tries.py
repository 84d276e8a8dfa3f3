"""When SLURM is asked whether it answers: now and then while it does, and ever again while it does not."""

from supervisor_tasks.ledger.facts import FLAG, INT, Fact, Stored

ANSWERED = "slurm"  # the tick that is there while SLURM answers
FAILED_TRIES = Fact("slurm.failed_tries", INT)  # in a row since the last answer, or since a start
SEEN = Fact("slurm.answered_since_start", FLAG)
CHECK_EVERY_S = 40.0  # while it answers; two checks come before an answer is too old (slurm_health.KNOWN_FOR_S)
TRIES = 10  # at a start, SLURM_TRY_EVERY_S apart; then the operator is called
SLOWLY = 3  # so much longer are the intervals from then on


def next_try_s(tries: int, seen: bool, every_s: float) -> float:
    """How long after a try in vain, of so many, the next one is made. A SLURM that was `seen` since the start has work of ours
    and is back any moment: it is tried whenever the clock says so.
    """
    if not tries or seen:
        return 0.0
    return every_s if tries < TRIES else SLOWLY * every_s


def check_is_due(answered_s: float | None, seen: bool, failed: Stored[int] | None, every_s: float) -> bool:
    """Whether SLURM is to be asked now: how long ago it answered, if nothing has failed since, whether it was `seen` since the
    start, and how many tries have failed; `every_s` lies between two tries.
    """
    if answered_s is not None and seen:
        return answered_s >= CHECK_EVERY_S
    tries = failed or Stored(0, 0.0)
    return tries.age_s >= next_try_s(tries.value, seen, every_s)
