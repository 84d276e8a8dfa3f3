"""What plugins said of a job that SLURM has forgotten, and whether that can be true. Pure.

Whoever reaches the port can call. What was said counts only where nobody is left to ask, and only if it may be true and
nothing else that may be true contradicts it. Two ends of which each may be the true one are left to the operator.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from supervisor_tasks.billing import SECONDS_PER_MINUTE, billed_minutes
from supervisor_tasks.job import ChainStatus, Job, Outcome
from supervisor_tasks.slurm.output import said_of
from supervisor_tasks.slurm.states import OUT_OF_MEMORY_STATUS

# JobStatus of supervisor.v1alpha1, as the completion plugin sends it (interfaces.md, section 3).
RUNNING = 4
ENDED = {
    6: ChainStatus.CANCELLED,
    7: ChainStatus.FINISHED,
    8: ChainStatus.FAILED,
    9: ChainStatus.OUT_OF_CREDITS,
}
ENDED_BY_SLURM = (ChainStatus.CANCELLED, ChainStatus.OUT_OF_CREDITS)  # then the exit status is not the script's own
ENDED_BY_SLURM_ITSELF = "SLURM: NODE_FAIL, PREEMPTED, DEADLINE or BOOT_FAIL"
CLOCKS_APART_S = 5.0  # between the database's seconds and SLURM's whole ones
CONTRADICTED = (
    "SLURM has forgotten how the job ended, and what was said of it contradicts itself: `supervisor settle` it"
)
SUSPENDED = (
    "SLURM has forgotten how the job ended, and a plugin's seconds contain its suspension: `supervisor settle` it"
)


HINTS_AT_ONCE = 4  # of one job under one SLURM id; hook and SPANK plugin say two things
LONGEST_GAP_S = 30.0


def look_in_s(heard: int) -> float:
    """When to look because of a callback, if so many different ones came about the job: whoever makes them up drives no more
    than two questions a minute.
    """
    return 0.0 if heard <= HINTS_AT_ONCE else min(2.0 ** min(heard - HINTS_AT_ONCE - 1, 10), LONGEST_GAP_S)


@dataclass(frozen=True, slots=True)
class Said:
    """A callback: the figures of a plugin, and when they arrived (Unix time)."""

    status: int
    duration_s: int
    exit_code: int
    received_s: float


@dataclass(frozen=True, slots=True)
class Undecided:
    """Ends that a job may have had, and why an operator is to decide."""

    ends: tuple[Outcome, ...]
    why: str = CONTRADICTED

    def __str__(self) -> str:
        told = (f"{end.status.name} after {end.elapsed_s} s, exit status {end.exit_status}" for end in self.ends)
        return "; or ".join(told)


def believed(
    job: Job, called_s: float, heard: Iterable[Said], *, suspended: bool = False
) -> Outcome | Undecided | None:
    """How the job ended, if what was heard under its name and id leaves one possibility. `called_s` is when sbatch was
    called. Of a job that was seen `suspended` nothing is believed: a plugin's seconds go from its start to its end, and those
    in which it was suspended are not to be paid. (A suspension that no look fell into is not known.) Of a job that was
    requeued, an end that came before the last run was seen was the end of an earlier run, whose seconds the ledger has.
    """
    outcomes = [
        outcome
        for said in _of_the_last_run(job, heard)
        for outcome in [_outcome(job, called_s, said)]
        if outcome is not None
    ]
    different = {(outcome.status, outcome.minutes, outcome.exit_status): outcome for outcome in outcomes}
    if suspended and different:
        return Undecided(tuple(different.values()), SUSPENDED)
    return Undecided(tuple(different.values())) if len(different) > 1 else next(reversed(outcomes), None)


def _of_the_last_run(job: Job, heard: Iterable[Said]) -> list[Said]:
    since_s = job.runs[-1].seen_s - CLOCKS_APART_S if len(job.runs) > 1 else float("-inf")
    return [said for said in heard if said.received_s >= since_s]


def _elapsed_s(job: Job, called_s: float, said: Said, status: ChainStatus) -> int | None:
    """For how long the job ran, by what was said: for no more minutes than its limit has, which SLURM may let it overrun for
    as long as its administrator likes (KillWait, OverTimeLimit). None when it would have begun before it was submitted; but
    what was cancelled before it began has no start, and some plugin takes that for a number.
    """
    if said.duration_s <= said.received_s - called_s + CLOCKS_APART_S:
        paid_for = billed_minutes(job.earlier_s + said.duration_s) <= job.limit_min
        left_s = max(job.limit_min * SECONDS_PER_MINUTE - job.earlier_s, 0)
        return said.duration_s if paid_for else left_s
    return 0 if status is ChainStatus.CANCELLED else None


def _outcome(job: Job, called_s: float, said: Said) -> Outcome | None:
    status = ENDED.get(said.status)
    elapsed_s = None if status is None else _elapsed_s(job, called_s, said, status)
    if status is None or elapsed_s is None:
        return None
    if status is ChainStatus.FINISHED and said.exit_code != 0:
        status = ChainStatus.FAILED  # the field's plugin says FINISHED of node failures and their like too
    return Outcome(
        status=status,
        elapsed_s=elapsed_s,
        exit_status=0 if status in ENDED_BY_SLURM else said.exit_code,
        reason=_why(said.exit_code) if status is ChainStatus.FAILED else "",
    )


def _why(exit_status: int) -> str:
    """A callback has no room for SLURM's state. But a script that fails has an exit status, and nobody but SLURM has that of
    OUT_OF_MEMORY.
    """
    if exit_status == OUT_OF_MEMORY_STATUS:
        return "SLURM: OUT_OF_MEMORY"
    return said_of(exit_status) if exit_status else ENDED_BY_SLURM_ITSELF
