"""How many callbacks the ledger keeps: invented callbacks must not take the room of
true ones. Pure.
"""

from dataclasses import dataclass
from enum import StrEnum

OVER = ("SETTLED", "REFUSED")


class CallbackOrigin(StrEnum):
    """What a callback is about, as far as the ledger knows when the callback
    arrives.
    """

    OURS = "a job of ours under its SLURM id"
    EARLY = "a job of ours that has no SLURM id yet"
    UNKNOWN_JOB = "no job of ours under that SLURM id"


# Callbacks that the ledger keeps: about one job under one SLURM id, about one job under
# all ids, and about all jobs together. Callbacks with a proof are counted apart from
# all others.
MAX_CALLBACKS = {
    CallbackOrigin.OURS: 1000,
    CallbackOrigin.EARLY: 100,
    CallbackOrigin.UNKNOWN_JOB: 1000,
}

# Callbacks without a proof that the ledger keeps about one job of ours that is over. They
# change nothing but that SLURM is asked to cancel a job that still runs.
MAX_CALLBACKS_WHEN_OVER = 10

# Callbacks with the same scope are counted together: origin, job, SLURM id, proven.
Scope = tuple[CallbackOrigin, str, int, bool]


@dataclass(frozen=True, slots=True)
class LedgerJob:
    """A job in the ledger."""

    slurm_id: int | None
    state: str


def origin_of(slurm_id: int, job: LedgerJob | None) -> CallbackOrigin:
    """Return what a callback with that SLURM id is about; `job` is the ledger's job
    with the callback's name.

    The ledger has a job before SLURM gets it, so an unknown name is not ours. The
    exception is a ledger that was restored: there the sweep finds the job on the chain,
    and its end in SLURM.
    """
    if job is None:
        return CallbackOrigin.UNKNOWN_JOB
    if job.slurm_id is None and job.state not in OVER:
        return CallbackOrigin.EARLY
    if job.slurm_id == slurm_id:
        return CallbackOrigin.OURS
    return CallbackOrigin.UNKNOWN_JOB


def scope_of(
    job_id: str, slurm_id: int, job: LedgerJob | None, *, proven: bool
) -> Scope:
    """Return the scope in which a callback is counted."""
    origin = origin_of(slurm_id, job)
    if origin is CallbackOrigin.OURS:
        return origin, job_id, slurm_id, proven
    if origin is CallbackOrigin.EARLY:
        return origin, job_id, 0, proven
    return origin, "", 0, proven


def most_of_ours(job: LedgerJob, most: int, *, proven: bool) -> int:
    """Return how many callbacks the ledger keeps about that job of ours under its SLURM
    id, if it keeps `most` about a job that is not over.
    """
    if job.state in OVER and not proven:
        return min(most, MAX_CALLBACKS_WHEN_OVER)
    return most
