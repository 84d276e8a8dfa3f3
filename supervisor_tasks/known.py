"""What a comparison of many jobs needs to know of each. Pure."""

from dataclasses import dataclass

from supervisor_tasks.job import Address, ChainStatus, JobId, Kind, SlurmId, State, decided


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A job of the ledger without its script and definition. `chain_block` is the block of the contract's last word, `open` are
    the kinds of its open effects, `parked` those of them that were left to the operator; `heard` says that the inbox holds
    something about it that nobody has read, `id_is_anothers` that SLURM gave its id again to a later job of ours.
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
    open: frozenset[Kind] = frozenset()
    parked: frozenset[Kind] = frozenset()
    heard: bool = False
    id_is_anothers: bool = False

    @property
    def finished(self) -> bool:
        """Whether nothing more is to be decided: the contract is cold, or the job is not ours any more."""
        return decided(self.state, self.chain_status)


@dataclass(frozen=True, slots=True)
class OnChain:
    """A job as the contract has it."""

    status: ChainStatus
    customer: Address
    provider: Address
