"""Witness: SLURM says what became of the jobs. A callback is only a hint to look."""

from collections.abc import Sequence

import structlog

from supervisor_tasks.events import CalledBack, Event, SlurmEnded, SlurmStarted, SlurmWaiting
from supervisor_tasks.job import ChainStatus, Job, Kind, Outcome, SlurmId
from supervisor_tasks.journey.drain import drain, given_back_on_failure
from supervisor_tasks.ledger.store import CallbackSeen, Change, OpenEffect
from supervisor_tasks.site import Site
from supervisor_tasks.slurm.output import Seen
from supervisor_tasks.slurm.states import Phase

log = structlog.get_logger()

# JobStatus of supervisor.v1alpha1, as the completion plugin sends it (interfaces.md, section 3).
CALLBACK_ENDED = {
    6: ChainStatus.CANCELLED,
    7: ChainStatus.FINISHED,
    8: ChainStatus.FAILED,
    9: ChainStatus.OUT_OF_CREDITS,
}
KILL_DELAY_S = 120  # SLURM ends a job that late after its limit, at most


def witness(site: Site) -> None:
    """Read the inbox, then look at all jobs that are due, in one question to SLURM."""
    drain(site.ledger, "witness", lambda: _witness(site))


def _witness(site: Site) -> bool:
    read = _read_inbox(site)
    return _look(site) or read


def _read_inbox(site: Site) -> bool:
    callbacks = site.ledger.unread_callbacks()
    if not callbacks:
        return False
    jobs = site.ledger.jobs({callback.job_id for callback in callbacks})
    hints = []
    for callback in callbacks:
        job = jobs.get(callback.job_id)
        if job is not None and job.slurm_id == callback.slurm_id:
            hints.append(Change(callback.job_id, CalledBack()))
        elif job is None or job.slurm_id is not None:
            log.warning("callback_of_no_job_of_ours", job_id=callback.job_id, slurm_id=callback.slurm_id)
    site.ledger.read_callbacks(callbacks, hints)
    return True


def _look(site: Site) -> bool:
    effects = site.ledger.lease([Kind.WITNESS])
    if not effects:
        return False
    with given_back_on_failure(site.ledger, effects):
        _see(site, effects)
    return True


def _see(site: Site, effects: Sequence[OpenEffect]) -> None:
    jobs = site.ledger.jobs({effect.job_id for effect in effects})
    seen = site.slurm.cluster.look(_slurm_ids(list(jobs.values())))
    changes = [Change(effect.job_id, _what(site, jobs[effect.job_id], seen), done=effect) for effect in effects]
    site.ledger.record(*changes)
    for change in changes:
        if isinstance(change.event, SlurmEnded | SlurmStarted):
            log.info("slurm_said", job_id=change.job_id, said=type(change.event).__name__)


def _slurm_ids(jobs: Sequence[Job]) -> list[SlurmId]:
    return sorted(job.slurm_id for job in jobs if job.slurm_id is not None)


def _what(site: Site, job: Job, seen: dict[SlurmId, Seen]) -> Event:
    found = None if job.slurm_id is None else seen.get(job.slurm_id)
    if found is None:
        return _forgotten(site, job)
    if found.phase is Phase.ENDED:
        return SlurmEnded(found.outcome())
    return SlurmStarted() if found.phase is Phase.RUNNING else SlurmWaiting(found.state)


def _forgotten(site: Site, job: Job) -> Event:
    """SLURM does not know the job any more. If a plugin said how it ended, and that can be true, it counts."""
    if site.slurm.trust_callbacks and job.slurm_id is not None:
        for callback in reversed(site.ledger.callbacks_of(job.job_id, job.slurm_id)):
            outcome = _plausible_outcome(job, callback)
            if outcome is not None:
                log.warning("callback_believed", job_id=job.job_id, slurm_id=job.slurm_id, elapsed_s=outcome.elapsed_s)
                return SlurmEnded(outcome)
    return SlurmWaiting("not listed")


def _plausible_outcome(job: Job, callback: CallbackSeen) -> Outcome | None:
    status = CALLBACK_ENDED.get(callback.status)
    if status is None or callback.duration_s > job.limit_min * 60 + KILL_DELAY_S:
        return None
    return Outcome(status=status, elapsed_s=callback.duration_s, exit_status=callback.exit_code)
