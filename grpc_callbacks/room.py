"""How many callbacks the ledger keeps: invented callbacks must take no room from true ones. Pure."""

from dataclasses import dataclass
from enum import StrEnum

OVER = ("SETTLED", "REFUSED")


class CallbackOrigin(StrEnum):
    """What a callback is about, as far as the ledger knows when the callback arrives."""

    OURS = "a job of ours under its SLURM id"
    EARLY = "a job of ours that has no SLURM id yet"
    STRANGE = "no job of ours under that SLURM id"


# Callbacks that the ledger keeps: about one job under one SLURM id, about one job under all ids, and about all jobs
# together. Callbacks with a proof are counted apart from all others.
MAX_CALLBACKS = {CallbackOrigin.OURS: 1000, CallbackOrigin.EARLY: 100, CallbackOrigin.STRANGE: 1000}


Scope = tuple[
    CallbackOrigin, str, int, bool
]  # callbacks with the same scope are counted together: kind, job, SLURM id, proven


@dataclass(frozen=True, slots=True)
class Known:
    """A job in the ledger."""

    slurm_id: int | None
    state: str


def kind_of(slurm_id: int, job: Known | None) -> CallbackOrigin:
    """Return what a callback with that SLURM id is about; `job` is the ledger's job with the callback's name.

    The ledger has a job before SLURM gets it, so an unknown name is not ours. The exception is a ledger that was
    restored: there the sweep finds the job on the chain, and its end in SLURM.
    """
    if job is None:
        return CallbackOrigin.STRANGE
    if job.slurm_id is None and job.state not in OVER:
        return CallbackOrigin.EARLY
    return CallbackOrigin.OURS if job.slurm_id == slurm_id else CallbackOrigin.STRANGE


def scope_of(job_id: str, slurm_id: int, job: Known | None, *, proven: bool) -> Scope:
    """Return the scope in which a callback is counted."""
    kind = kind_of(slurm_id, job)
    return (
        kind,
        "" if kind is CallbackOrigin.STRANGE else job_id,
        slurm_id if kind is CallbackOrigin.OURS else 0,
        proven,
    )
