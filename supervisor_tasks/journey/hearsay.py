"""What plugins said of a job that SLURM has forgotten, and whether that can be true. Pure.

Whoever reaches the port can call. What was said counts only where nobody is left to ask, and only if it may be true and
nothing else that may be true contradicts it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from supervisor_tasks.job import ChainStatus, Job, Outcome
from supervisor_tasks.slurm.output import said_of

# JobStatus of supervisor.v1alpha1, as the completion plugin sends it (interfaces.md, section 3).
ENDED = {
    6: ChainStatus.CANCELLED,
    7: ChainStatus.FINISHED,
    8: ChainStatus.FAILED,
    9: ChainStatus.OUT_OF_CREDITS,
}
ENDED_BY_SLURM = (ChainStatus.CANCELLED, ChainStatus.OUT_OF_CREDITS)  # then the exit status is not the script's own
KILL_DELAY_S = 120  # SLURM ends a job that late after its limit, at most
CLOCKS_APART_S = 5.0  # between the database's seconds and SLURM's whole ones


@dataclass(frozen=True, slots=True)
class Said:
    """A callback: the figures of a plugin, and when they arrived (Unix time)."""

    status: int
    duration_s: int
    exit_code: int
    received_s: float


def believed(job: Job, called_s: float, heard: Iterable[Said]) -> Outcome | None:
    """How the job ended, if what was heard under its name and id leaves one possibility. `called_s` is when sbatch was
    called.
    """
    outcomes = [outcome for said in heard for outcome in [_outcome(job, called_s, said)] if outcome is not None]
    different = {(outcome.status, outcome.minutes, outcome.exit_status) for outcome in outcomes}
    return outcomes[-1] if len(different) == 1 else None


def _outcome(job: Job, called_s: float, said: Said) -> Outcome | None:
    status = ENDED.get(said.status)
    if status is None or said.duration_s > job.limit_min * 60 + KILL_DELAY_S:
        return None
    if said.duration_s > said.received_s - called_s + CLOCKS_APART_S:
        return None
    if status is ChainStatus.FINISHED and said.exit_code != 0:
        status = ChainStatus.FAILED  # the completion plugin says FINISHED of node failures and their like too
    return Outcome(
        status=status,
        elapsed_s=said.duration_s,
        exit_status=0 if status in ENDED_BY_SLURM else said.exit_code,
        reason=said_of(said.exit_code) if status is ChainStatus.FAILED else "",
    )
