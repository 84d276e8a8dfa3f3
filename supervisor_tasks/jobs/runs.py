"""The runs of one job in SLURM, and how many seconds they took together. Pure.

A requeue (by the owner, an administrator or a lost node) begins a new run: SLURM's
elapsed time begins at 0, and the time limit begins again. SLURM shows only the last
run. A run is identified by the time at which SLURM got it: the submission for the first
run. For each later run it is the moment at which the nodes had ended the run before, up
to minutes after the requeue. So a run that two sources report is never counted twice,
and looks know only the most that a run before a requeue can have taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from supervisor_tasks.jobs.billing import SECONDS_PER_MINUTE

UNKNOWN_S = 0  # `submit_s` of runs that the ledger knows no time of
# the most by which the clocks of the database, the login node and slurmctld differ,
# SLURM's whole seconds included
CLOCKS_APART_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What a look shows of the present run. All times are Unix times of SLURM's clock.
    `start_s` is None before the run has started. `seen_s` is the time of the look.
    `restarts` counts the requeues before this run. `account`, `qos` and `threads` are
    what the site gave the job, as far as this look knows; empty if SLURM shows none.
    """

    submit_s: int
    restarts: int = 0
    start_s: int | None = None
    elapsed_s: int = 0
    seen_s: int = 0
    suspended: bool = False
    account: str = ""
    qos: str = ""
    threads: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One run. `elapsed_s` is what the last look showed; once the next run is known, it
    is the whole run. `exact` is then False until the hooks have reported the run:
    `elapsed_s` is the most that it can have been, or 0 if `submit_s` is UNKNOWN_S.
    `seen_s` is the time of the last look that saw the run; once it has started, of the
    last look that saw it running.
    `account`, `qos` and `threads` (of each core) are what the site gave the job, as the
    first look knew it.
    """

    submit_s: int
    restarts: int = 0
    start_s: int | None = None
    elapsed_s: int = 0
    seen_s: int = 0
    suspended: bool = False
    exact: bool = True
    account: str = ""
    qos: str = ""
    threads: str = ""


Runs = tuple[JobRun, ...]


class RunEnd(NamedTuple):
    """The seconds of a run, as the hooks reported them at its end, and when the report
    arrived (Unix time of the database's clock).
    """

    elapsed_s: int
    received_s: int


def runs_after_look(runs: Runs, sighting: Sighting, since_s: int | None = None) -> Runs:
    """The runs after a look. `since_s` is the time of the submission by SLURM's clock:
    a job that was requeued before the first look cannot have run before it. It is None
    if the ledger has no submission of the job.
    """
    if not runs:
        return (*_unseen(sighting, since_s), _run(sighting))
    last = runs[-1]
    sighting = replace(
        sighting, account=last.account, qos=last.qos, threads=last.threads
    )
    if sighting.submit_s < last.submit_s:
        return runs  # an old answer: a later one arrived first
    if sighting.submit_s == last.submit_s:
        return (*runs[:-1], _seen_again(last, sighting))
    return (*runs[:-1], _ended_by_requeue(last, sighting), _run(sighting))


def with_ends(runs: Runs, ends: Sequence[RunEnd]) -> Runs:
    """The runs with the seconds that the hooks reported at the end of each earlier one
    (`ends`, in order). A run that they have reported before stays as it is. No more
    seconds count than there was time for.

    SLURM may report one run twice, and a run's owner can keep its end from the hooks.
    So if one of the ends cannot be that of its run, none of them counts.
    """
    earlier = [
        _with_ends(run, following, ends[run.restarts : following.restarts])
        for run, following in pairwise(runs)
    ]
    reported_runs = (*earlier, *runs[-1:])
    return reported_runs if is_exact(reported_runs) else runs


def _with_ends(run: JobRun, following: JobRun, ends: Sequence[RunEnd]) -> JobRun:
    """The run with these ends. It stays as it is if an end is missing, if an end
    arrived before the last look that saw the run, or if a look has seen more seconds.
    """
    if run.exact or len(ends) != following.restarts - run.restarts:
        return run
    elapsed_s = sum(end.elapsed_s for end in ends)
    since_the_look_s = max(following.submit_s - run.seen_s, 0)
    is_too_short = elapsed_s < run.elapsed_s - since_the_look_s
    first_s = min((end.received_s for end in ends), default=run.seen_s)
    if is_too_short or first_s < run.seen_s - CLOCKS_APART_S:
        return run
    if run.submit_s != UNKNOWN_S:
        elapsed_s = min(elapsed_s, run.elapsed_s)
    return replace(run, elapsed_s=elapsed_s, exact=True)


def earlier_s(runs: Runs) -> int:
    """The seconds of all runs before the present one."""
    return used_s(runs[:-1])


def used_s(runs: Runs) -> int:
    """The seconds of all runs, the present one up to the last look."""
    return sum(run.elapsed_s for run in runs)


def is_exact(runs: Runs) -> bool:
    """Whether the seconds of every earlier run are known."""
    return all(run.exact for run in runs[:-1])


def left_min(limit_min: int, runs: Runs) -> int:
    """The time limit of the present run in minutes: the paid minutes less the earlier
    runs. SLURM takes whole minutes, and reads 0 as no limit. So the rest is rounded up,
    and is at least 1.
    """
    left_s = limit_min * SECONDS_PER_MINUTE - earlier_s(runs)
    return max(-(-left_s // SECONDS_PER_MINUTE), 1)


def is_used_up(limit_min: int, runs: Runs) -> bool:
    """Whether a requeued job has used all of the paid time. SLURM itself ends a job
    with a single run.
    """
    return len(runs) > 1 and used_s(runs) >= limit_min * SECONDS_PER_MINUTE


def billed_s(limit_min: int, earlier_runs_s: int, last_run_s: int) -> int:
    """The seconds to bill. For several runs together these are at most the paid time,
    or the last run's seconds where that run alone was longer.
    """
    if earlier_runs_s == 0:
        return last_run_s
    return min(
        earlier_runs_s + last_run_s, max(limit_min * SECONDS_PER_MINUTE, last_run_s)
    )


def _run(sighting: Sighting) -> JobRun:
    """The run that a look shows. SLURM's clock is asked after SLURM has shown the job:
    where the job runs, its start and its seconds are closer to the time of the look.
    """
    seen_s = sighting.seen_s
    if sighting.start_s is not None and not sighting.suspended:
        seen_s = sighting.start_s + sighting.elapsed_s
    return JobRun(
        submit_s=sighting.submit_s,
        restarts=sighting.restarts,
        start_s=sighting.start_s,
        elapsed_s=sighting.elapsed_s,
        seen_s=seen_s,
        suspended=sighting.suspended,
        account=sighting.account,
        qos=sighting.qos,
        threads=sighting.threads,
    )


def _seen_again(run: JobRun, sighting: Sighting) -> JobRun:
    """A run that a later look saw. From a requeue until the nodes have ended the run,
    SLURM shows it as waiting, soon with the count of the next run, and with the time of
    this one.
    """
    has_ended = sighting.restarts > run.restarts or run.start_s is not None
    if sighting.start_s is None and has_ended:
        return run
    later = replace(
        sighting,
        restarts=min(run.restarts, sighting.restarts),
        suspended=run.suspended or sighting.suspended,
    )
    return _run(later)


def _ended_by_requeue(run: JobRun, following: Sighting) -> JobRun:
    """A run that a requeue ended, with the most that it can have taken: what the last
    look saw, and the time from then until the nodes had ended it.
    """
    restarts = max(min(run.restarts, following.restarts - 1), 0)
    since_s = run.submit_s
    if restarts == run.restarts:  # else all looks at the run came after its requeue
        since_s = max(run.seen_s, run.submit_s)
    return replace(
        run,
        restarts=restarts,
        elapsed_s=run.elapsed_s + max(following.submit_s - since_s, 0),
        seen_s=since_s,
        exact=False,
    )


def _unseen(sighting: Sighting, since_s: int | None) -> Runs:
    """The runs before the first look, as one run. They lie between the submission and
    the requeue; nothing else is known of them. Without a submission (SLURM had the job
    before the ledger knew) not even that is known: no second is billed, unless
    accounting or the hooks have the runs.
    """
    if sighting.restarts == 0:
        return ()
    elapsed_s = 0
    if since_s is not None:
        elapsed_s = max(sighting.submit_s - since_s, 0)
    run = replace(
        _run(sighting),
        submit_s=UNKNOWN_S if since_s is None else since_s,
        restarts=0,
        start_s=None,
        elapsed_s=elapsed_s,
        seen_s=0,
        suspended=False,
        exact=False,
    )
    return (run,)
