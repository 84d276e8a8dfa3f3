"""From SLURM's seconds to the contract's minutes and credits."""

from dataclasses import dataclass

SECONDS_PER_MINUTE = 60


@dataclass(frozen=True, slots=True)
class Prices:
    """What one unit costs a minute, in credits x 1e18."""

    gpu_wei_per_min: int
    cpu_wei_per_min: int
    memory_mb_wei_per_min: int


def billed_minutes(elapsed_s: int) -> int:
    """Whole minutes of SLURM's elapsed time; a minute that was begun is not billed."""
    return max(elapsed_s, 0) // SECONDS_PER_MINUTE


def cost_wei(minutes: int, gpus: int, cpus: int, memory_mb: int, prices: Prices) -> int:
    """What a job of that size costs, as the contract reckons it (interfaces.md, life of a job)."""
    per_minute = (
        gpus * prices.gpu_wei_per_min + cpus * prices.cpu_wei_per_min + memory_mb * prices.memory_mb_wei_per_min
    )
    return minutes * per_minute
