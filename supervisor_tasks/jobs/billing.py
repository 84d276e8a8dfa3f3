"""From SLURM's seconds to the contract's minutes. Pure. The seconds of a job with
several runs: `runs.billed_s`.
"""

SECONDS_PER_MINUTE = 60


def billed_minutes(elapsed_s: int) -> int:
    """Whole minutes of SLURM's elapsed time; a minute that was begun is not billed."""
    return max(elapsed_s, 0) // SECONDS_PER_MINUTE
