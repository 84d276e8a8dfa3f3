"""The runs of one job in SLURM, and how many seconds they took together. Pure.

A requeue (by the owner, an administrator or a lost node) begins a new run: SLURM's elapsed time begins at 0 and the time limit
begins again. SLURM tells only the last run. A run is known by the time at which SLURM got it: for the first one that is the
submission, for each later one the requeue, which is also the end of the run before it. So two sources that tell of one run are
never counted twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from supervisor_tasks.billing import SECONDS_PER_MINUTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What a look shows of the present run. All times are Unix times of SLURM's clock. `start_s` is None before the run has
    started, `seen_s` is when SLURM was asked, `restarts` counts the requeues before this run. `account` and `qos` are empty
    where SLURM shows none.
    """

    submit_s: int
    restarts: int = 0
    start_s: int | None = None
    elapsed_s: int = 0
    seen_s: int = 0
    suspended: bool = False
    account: str = ""
    qos: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run. `elapsed_s` is what the last look showed, and the whole run once the next one is known. `exact` is False where
    the run was not seen from its start to its end, so that `elapsed_s` is the most that it can have been. `account`
    and `qos` are what the first look at the job has shown.
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


Runs = tuple[Run, ...]


def seen(runs: Runs, sighting: Sighting, since_s: int | None = None) -> Runs:
    """The runs after a look. Of a job that was requeued before the first look, nothing can have run before `since_s`, the time
    of its submission.
    """
    if not runs:
        return (*_unseen(sighting, since_s), _run(sighting))
    last = runs[-1]
    sighting = replace(sighting, account=last.account, qos=last.qos)
    if sighting.submit_s < last.submit_s:
        return runs  # an answer that was overtaken by a later one
    if sighting.submit_s == last.submit_s:
        return (*runs[:-1], _seen_again(last, sighting))
    return (*runs[:-1], _over(last, sighting), _run(sighting))


def with_ends(runs: Runs, ends_s: Sequence[int]) -> Runs:
    """The runs with the seconds of each earlier one as the hooks told them at its end (`ends_s`, in order). What looks saw
    whole stays; of what they did not, the hooks cannot tell more than the time that there was.
    """
    told = [
        _with_end(run, ends_s[run.restarts : following.restarts], following.restarts - run.restarts)
        for run, following in pairwise(runs)
    ]
    return (*told, *runs[-1:])


def _with_end(run: Run, ends_s: Sequence[int], requeues: int) -> Run:
    if run.exact or len(ends_s) != requeues:
        return run
    return replace(run, elapsed_s=min(sum(ends_s), run.elapsed_s), exact=True)


def earlier_s(runs: Runs) -> int:
    """The seconds of all runs before the present one."""
    return sum(run.elapsed_s for run in runs[:-1])


def used_s(runs: Runs) -> int:
    """The seconds of all runs, the present one up to the last look."""
    return sum(run.elapsed_s for run in runs)


def is_exact(runs: Runs) -> bool:
    """Whether every earlier run was seen well enough to know its seconds."""
    return all(run.exact for run in runs[:-1])


def left_min(limit_min: int, runs: Runs) -> int:
    """The time limit of the present run: what the earlier ones have left of the paid minutes. SLURM takes whole minutes, and 0
    means no limit to it, so a minute that was begun counts as a whole one.
    """
    left_s = limit_min * SECONDS_PER_MINUTE - earlier_s(runs)
    return max(-(-left_s // SECONDS_PER_MINUTE), 1)


def is_used_up(limit_min: int, runs: Runs) -> bool:
    """Whether a job that was requeued has had all of the paid time. A job with a single run is SLURM's own to end."""
    return len(runs) > 1 and used_s(runs) >= limit_min * SECONDS_PER_MINUTE


def billed_s(limit_min: int, earlier_runs_s: int, last_run_s: int) -> int:
    """The seconds to bill. More than the paid time of several runs together cannot be billed."""
    if earlier_runs_s == 0:
        return last_run_s
    return min(earlier_runs_s + last_run_s, max(limit_min * SECONDS_PER_MINUTE, last_run_s))


def _run(sighting: Sighting) -> Run:
    return Run(
        submit_s=sighting.submit_s,
        restarts=sighting.restarts,
        start_s=sighting.start_s,
        elapsed_s=sighting.elapsed_s,
        seen_s=sighting.seen_s,
        suspended=sighting.suspended,
        account=sighting.account,
        qos=sighting.qos,
    )


def _seen_again(run: Run, sighting: Sighting) -> Run:
    later = replace(_run(sighting), suspended=run.suspended or sighting.suspended)
    return later if sighting.start_s is not None else replace(later, start_s=run.start_s, elapsed_s=run.elapsed_s)


def _over(run: Run, following: Sighting) -> Run:
    """A run that ended when the next one was requeued. One that no look has shown running can have begun right after the last
    look; of one that was suspended only the time since the last look is uncertain.
    """
    if run.start_s is not None and not run.suspended:
        elapsed_s = following.submit_s - run.start_s
    else:
        elapsed_s = run.elapsed_s + following.submit_s - max(run.seen_s, run.submit_s)
    known = run.start_s is not None and not run.suspended and following.restarts <= run.restarts + 1
    return replace(run, elapsed_s=max(elapsed_s, run.elapsed_s, 0), exact=known)


def _unseen(sighting: Sighting, since_s: int | None) -> Runs:
    """What ran before the first look: all that is known is that it was between the submission and the requeue."""
    if sighting.restarts == 0 or since_s is None:
        return ()
    run = replace(_run(sighting), submit_s=since_s, restarts=0, start_s=None, seen_s=0, suspended=False)
    return (replace(run, elapsed_s=max(sighting.submit_s - since_s, 0), exact=False),)
