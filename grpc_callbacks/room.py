"""How much is kept of what callers say, so that what they make up takes no room from what is true. Pure."""

from dataclasses import dataclass
from enum import StrEnum

OVER = ("SETTLED", "REFUSED")


class Kind(StrEnum):
    """Of what a callback speaks, as far as the ledger knows when it comes."""

    OURS = "a job of ours under its SLURM id"
    EARLY = "a job of ours that has no SLURM id yet"
    STRANGE = "no job of ours under that SLURM id"


# Callbacks that are kept: about one job under one SLURM id, about one job under all ids, and about all jobs together. Those of
# callers that proved themselves are counted apart from those of all others.
MOST = {Kind.OURS: 1000, Kind.EARLY: 100, Kind.STRANGE: 1000}


Scope = tuple[Kind, str, int, bool]  # what is counted together: kind, job, SLURM id, whether it was proven


@dataclass(frozen=True, slots=True)
class Known:
    """A job of the ledger."""

    slurm_id: int | None
    state: str


def kind_of(slurm_id: int, job: Known | None) -> Kind:
    """Of what a callback under that SLURM id speaks; `job` is the one whose name it has.

    A job is in the ledger before SLURM hears of it, so an unknown name is not ours, unless the ledger was restored: the sweep
    then finds the job on chain, and its end in SLURM.
    """
    if job is None:
        return Kind.STRANGE
    if job.slurm_id is None and job.state not in OVER:
        return Kind.EARLY
    return Kind.OURS if job.slurm_id == slurm_id else Kind.STRANGE


def scope_of(job_id: str, slurm_id: int, job: Known | None, *, proven: bool) -> Scope:
    """With what a callback is counted."""
    kind = kind_of(slurm_id, job)
    return kind, "" if kind is Kind.STRANGE else job_id, slurm_id if kind is Kind.OURS else 0, proven
