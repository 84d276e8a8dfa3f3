"""Witness: SLURM says what became of the jobs. A callback is only a hint to look."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import structlog

from supervisor_tasks.events import CalledBack, Event, MoreThanPaid, Recognised, SlurmEnded, SlurmStarted, SlurmWaiting
from supervisor_tasks.job import Job, JobId, Kind, Outcome, SlurmId
from supervisor_tasks.jobs.oversize import call_operator, oversized
from supervisor_tasks.jobs.run_callbacks import runs_told
from supervisor_tasks.jobs.runs import is_exact
from supervisor_tasks.jobs.runs import seen as runs_after
from supervisor_tasks.journey.denied import deny
from supervisor_tasks.journey.drain import drain, given_back_on_failure, park
from supervisor_tasks.journey.hearsay import RUNNING, Said, Undecided, believed, look_in_s
from supervisor_tasks.journey.known_slurm import require_known
from supervisor_tasks.journey.puzzling import NOT_LISTED, PATIENCE_S, for_the_operator, is_odd
from supervisor_tasks.journey.waiting import wait_s
from supervisor_tasks.ledger.effects import OpenEffect
from supervisor_tasks.ledger.inbox import CallbackSeen
from supervisor_tasks.ledger.store import Change
from supervisor_tasks.site import Site
from supervisor_tasks.slurm.identity import UNKNOWN, Sight, Wanted
from supervisor_tasks.slurm.listing import Listed
from supervisor_tasks.slurm.output import Seen, SlurmUnavailableError
from supervisor_tasks.slurm.states import Phase

log = structlog.get_logger()

ASKED_FOR_RUNS = 5  # looks at a job whose runs accounting is asked for: then what looks have shown counts
LOOKED_BACK_S = 2 * PATIENCE_S
SHOWN = 3  # of what nobody asked for, in a line of the log


def witness(site: Site) -> None:
    """Read the inbox, then look at all jobs that are due, in one question to SLURM."""
    drain(site.ledger, "witness", lambda: _witness(site))


def _witness(site: Site) -> bool:
    read = _read_inbox(site)
    return _look(site) or read


def _read_inbox(site: Site) -> bool:
    callbacks = site.ledger.inbox.unread()
    if not callbacks:
        return False
    jobs = site.ledger.jobs({callback.job_id for callback in callbacks})
    heard = site.ledger.inbox.heard({(callback.job_id, callback.slurm_id) for callback in callbacks})
    hinted, strange = dict[JobId, CalledBack](), list[CallbackSeen]()
    for callback in callbacks:
        job = jobs.get(callback.job_id)
        if job is not None and job.slurm_id == callback.slurm_id:
            hinted[job.job_id] = _hint(hinted.get(job.job_id), callback, heard[job.job_id, callback.slurm_id])
        elif job is None or job.slurm_id is not None:
            strange.append(callback)
        # Else it came before sbatch's answer: the first look follows that in a moment, and what was said stays in the inbox.
    if strange:
        shown = [f"{callback.job_id} as {callback.slurm_id}" for callback in islice(strange, SHOWN)]
        log.warning("callbacks_of_no_job_of_ours", callbacks=len(strange), first=shown)
    read = partial(site.ledger.inbox.mark_read, seen=callbacks)
    site.ledger.record(*(Change(job_id, event) for job_id, event in hinted.items()), also=read)
    return True


def _hint(so_far: CalledBack | None, callback: CallbackSeen, heard: int) -> CalledBack:
    """What a job's callbacks come to. What others make up does not delay the look that is for what is proven."""
    in_s = 0.0 if callback.proven else look_in_s(heard)
    if so_far is None:
        return CalledBack(in_s, callback.status == RUNNING)
    return CalledBack(min(in_s, so_far.look_in_s), so_far.running or callback.status == RUNNING)


def _look(site: Site) -> bool:
    effects = site.ledger.effects.lease([Kind.WITNESS])
    if not effects:
        return False
    with given_back_on_failure(site.ledger, effects):
        _see(site, effects)
    return True


def _see(site: Site, effects: Sequence[OpenEffect]) -> None:
    jobs = site.ledger.jobs({effect.job_id for effect in effects})
    sights = look_at(site, jobs.values())
    denied = deny(site, jobs, sights)
    said = _believed(site, [job for job_id, job in jobs.items() if sights[job_id].unknown and job_id not in denied])
    puzzles = _puzzles(site, sights)
    now_s = _now_s(site, sights.values())
    recognised = _recognised(site, jobs.values(), sights, now_s)
    attempts = {effect.job_id: effect.attempts for effect in effects}
    sights |= _runs_asked(site, jobs, sights, attempts)
    told, untold = runs_told(site, jobs, sights, attempts)
    sights |= untold
    unclear = dict[str, list[OpenEffect]]()
    bigger = oversized(site, jobs.values(), sights)
    changes = [change for change in bigger if isinstance(change.event, MoreThanPaid) and change.event.ended]
    bigger = [change for change in bigger if change not in changes]
    for effect in effects:
        job, sight = jobs[effect.job_id], sights[effect.job_id]
        if sight.unclear:
            unclear.setdefault(sight.unclear, []).append(effect)
            continue
        if job.job_id in denied:
            changes.append(Change(job.job_id, denied[job.job_id], done=effect))
            continue
        changes += [known[job.job_id] for known in (recognised, told) if job.job_id in known]
        if (why := puzzles.get(job.job_id)) is not None and sight.seen is not None:
            park(site.ledger, effect, why, state=job.state, slurm_id=job.slurm_id, slurm_says=str(sight.seen))
            continue
        heard = said.get(job.job_id)
        if isinstance(heard, Undecided):
            park(site.ledger, effect, heard.why, state=job.state, slurm_id=job.slurm_id, ends=str(heard))
            continue
        changes.append(Change(job.job_id, _what(sight.seen, heard, now_s), done=effect))
    changes += bigger
    call_operator(site, changes, jobs, site.ledger.record(*changes))
    for change in changes:
        if isinstance(change.event, SlurmEnded | SlurmStarted):
            log.info("slurm_said", job_id=change.job_id, said=type(change.event).__name__)
    for why, waiting in unclear.items():
        log.warning("look_postponed", jobs=len(waiting), error=why)
        site.ledger.effects.postpone(waiting, wait_s(max(effect.attempts for effect in waiting)), why)


def look_at(
    site: Site, jobs: Iterable[Job], listed: Mapping[SlurmId, Listed] | None = None, *, accounting: bool = True
) -> dict[JobId, Sight]:
    """What SLURM says of each job, or that it does not know it, or why that cannot be told; one question to the ledger, and
    those of `Cluster.look`, whatever the number of jobs. A job that has no SLURM id is unknown to SLURM. Raises
    SlurmUnavailableError, SshUnavailableError or AnotherSlurmError when nothing can be said of any job.
    """
    require_known(site)
    jobs = list(jobs)
    given = {job.job_id: job.slurm_id for job in jobs if job.slurm_id is not None}
    submissions = site.ledger.journal.submissions(set(given.values()))
    wanted = [
        Wanted(
            job_id=job.job_id,
            slurm_id=given[job.job_id],
            user=job.customer,
            submit_s=job.slurm_submit_s,
            id_is_anothers=job.job_id in submissions and submissions[job.job_id].id_is_anothers,
        )
        for job in jobs
        if job.job_id in given
    ]
    sights = site.slurm.cluster.look(wanted, listed, accounting=accounting) if wanted else {}
    return {job.job_id: sights.get(job.job_id, UNKNOWN) for job in jobs}


def record_of(site: Site, job: Job) -> Seen | None:
    """slurmctld's record of one job that it is to do something with, or None when it does not know it, and may have given its
    id to another one. Raises SlurmUnavailableError or SshUnavailableError also when that cannot be told at the moment.
    """
    sight = look_at(site, [job], accounting=False)[job.job_id]
    if sight.unclear:
        raise SlurmUnavailableError(sight.unclear)
    return sight.seen


def _now_s(site: Site, sights: Iterable[Sight]) -> int:
    """The site's time, where a job shows none: it has not begun, or is suspended. One that runs tells it by its start and its
    seconds.
    """
    stand_still = any(sight.seen is not None and sight.seen.stands_still for sight in sights)
    return site.slurm.cluster.now_s() if stand_still else 0


def _recognised(site: Site, jobs: Iterable[Job], sights: Mapping[JobId, Sight], now_s: int) -> dict[JobId, Change]:
    """The jobs of which SLURM shows a run that the ledger does not know: the first one, or one after a requeue."""
    pairs = [(job, sights[job.job_id].seen) for job in jobs]
    new = [(job, seen) for job, seen in pairs if seen is not None and seen.submit_s != job.slurm_submit_s]
    unseen = {seen.slurm_id for job, seen in new if seen.restarts and not job.runs}
    submissions = site.ledger.journal.submissions(unseen) if unseen else {}
    found = dict[JobId, Change]()
    for job, seen in new:
        if job.slurm_submit_s is not None:
            log.warning("slurm_runs_it_again", job_id=job.job_id, slurm_id=job.slurm_id, restarts=seen.restarts)
        known = submissions.get(job.job_id)
        since_s = None if known is None else int(known.called_s)
        event = Recognised(seen.slurm_id, seen.submit_s, seen.sighting(now_s), since_s)
        found[job.job_id] = Change(job.job_id, event)
    return found


def _runs_asked(
    site: Site, jobs: Mapping[JobId, Job], sights: Mapping[JobId, Sight], attempts: Mapping[JobId, int]
) -> dict[JobId, Sight]:
    """Accounting's word on jobs that have ended, of which looks did not see every run from its start to its end. It may hear of
    a run some seconds after slurmctld has ended it.
    """
    if not site.slurm.cluster.paths.sacct:
        return {}
    ended = [
        job
        for job in jobs.values()
        if (seen := sights[job.job_id].seen)
        and seen.phase is Phase.ENDED
        and not is_exact(runs_after(job.runs, seen.sighting(0), 0))
    ]
    told = look_at(site, ended, {}) if ended else {}
    found = dict[JobId, Sight]()
    for job in ended:
        seen, sight = sights[job.job_id].seen, told[job.job_id]
        if seen is None:
            continue
        if sight.seen is not None and sight.seen.earlier_runs >= seen.restarts:
            known = replace(seen, earlier_s=sight.seen.earlier_s, earlier_runs=sight.seen.earlier_runs)
            found[job.job_id] = Sight(known)
        elif attempts[job.job_id] < ASKED_FOR_RUNS:
            found[job.job_id] = Sight(unclear=sight.unclear or "accounting has not all runs of the job yet")
    return found


def _what(seen: Seen | None, said: Outcome | None, now_s: int) -> Event:
    if seen is None:
        return SlurmWaiting(NOT_LISTED) if said is None else SlurmEnded(said)
    if seen.phase is Phase.ENDED:
        before_s = seen.earlier_s if seen.earlier_runs else None
        return SlurmEnded(seen.outcome(), before_s, seen.earlier_runs, may_requeue=seen.may_requeue)
    run = seen.sighting(now_s)
    return SlurmStarted(seen.state, run) if seen.phase is Phase.RUNNING else SlurmWaiting(seen.shown, run)


def _puzzles(site: Site, sights: Mapping[JobId, Sight]) -> dict[JobId, str]:
    """The jobs of which SLURM says for too long what leads to no end, and why an operator is to look."""
    odd = {job_id: sight.seen for job_id, sight in sights.items() if sight.seen and is_odd(sight.seen)}
    looks = site.ledger.journal.looks(odd, LOOKED_BACK_S) if odd else {}
    found = {job_id: for_the_operator(seen, looks.get(job_id, ())) for job_id, seen in odd.items()}
    return {job_id: why for job_id, why in found.items() if why is not None}


def _believed(site: Site, forgotten: Sequence[Job]) -> Mapping[JobId, Outcome | Undecided]:
    """How jobs ended that nobody knows any more, where a plugin said so and that can be true. A site with accounting has its
    word, or none.
    """
    slurm, asked = site.slurm, {job.job_id: job.slurm_id for job in forgotten if job.slurm_id is not None}
    if not asked or not slurm.trust_callbacks or slurm.cluster.paths.sacct:
        return {}
    heard = site.ledger.inbox.about(asked)
    submissions = site.ledger.journal.submissions(set(asked.values()))
    suspended = site.ledger.journal.ever_suspended(asked)
    found = dict[JobId, Outcome | Undecided]()
    for job in forgotten:
        called_s = submissions[job.job_id].called_s if job.job_id in submissions else 0.0
        evidence = [row for row in heard.get(job.job_id, ()) if row.is_evidence]
        said = [Said(row.status, row.duration_s, row.exit_code, row.received_s) for row in evidence]
        outcome = believed(job, called_s, said, suspended=job.job_id in suspended)
        if isinstance(outcome, Outcome):
            log.warning("callback_believed", job_id=job.job_id, slurm_id=job.slurm_id, elapsed_s=outcome.elapsed_s)
        if outcome is not None:
            found[job.job_id] = outcome
    return found
