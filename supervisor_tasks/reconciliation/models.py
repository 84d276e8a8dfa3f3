"""What a comparison of many jobs needs to know about each job. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from supervisor_tasks.jobs.billing import SECONDS_PER_MINUTE
from supervisor_tasks.jobs.model import (
    Address,
    ChainStatus,
    EffectKind,
    JobId,
    SlurmId,
    State,
    is_final_status,
)
from supervisor_tasks.jobs.paid_size import Paid
from supervisor_tasks.jobs.runs import Runs, earlier_s, left_min


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """A job of the ledger without its script and definition. `chain_block` is the block
    of the newest status from the contract. `open` has the kinds of its open effects,
    and `parked` those of them that are left to the operator. `has_unread_callback`
    means that the ledger holds an unread callback about it. `earlier_limits_min` are the
    time limits that it had before SLURM was given the last one. `may_run_again`: it has
    ended, and SLURM does not reject a requeue of it yet. `paid` is what it may have in
    SLURM.
    """

    job_id: JobId
    customer: Address
    provider: Address
    state: State
    chain_status: ChainStatus
    chain_block: int = 0
    slurm_id: SlurmId | None = None
    slurm_submit_s: int | None = None
    cancel_requested: bool = False
    open: frozenset[EffectKind] = frozenset()
    parked: frozenset[EffectKind] = frozenset()
    has_unread_callback: bool = False
    earlier_limits_min: frozenset[int] = frozenset()
    stopped: bool = False
    may_run_again: bool = False
    paid: Paid | None = None

    @property
    def is_final(self) -> bool:
        """Whether nothing is left to decide: the contract has a final status, or the
        job is not ours any more.
        """
        return is_final_status(self.state, self.chain_status)


def earlier_limits(
    claimed_min: int, added_min: Iterable[int], applied_min: int | None, runs: Runs = ()
) -> frozenset[int]:
    """Return the limits that a job had from top-up to top-up, below the limit that
    SLURM has been given.
    """
    if not applied_min:
        return frozenset()
    spent_s = earlier_s(runs)
    earlier_min = set[int]()
    for limit_min in accumulate(added_min, initial=claimed_min):
        if limit_min * SECONDS_PER_MINUTE <= spent_s:
            continue
        given_min = left_min(limit_min, runs)
        if given_min < applied_min:
            earlier_min.add(given_min)
    return frozenset(earlier_min)


@dataclass(frozen=True, slots=True)
class OnChainJob:
    """A job as the contract has it. Its status last changed in `changed_block`."""

    status: ChainStatus
    customer: Address
    provider: Address
    changed_block: int = 0
