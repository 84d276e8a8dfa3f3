"""Submit: SLURM has the job, exactly once.

Before sbatch is called, SUBMITTING is committed, by who holds the effect and by nobody else. From that moment the login node
has a few seconds to run sbatch; later it will not (guarded_command.py). Whoever finds a job in that state does not know
whether SLURM took it, and looks before doing anything: among all jobs of that user, twice, the second time when nothing that
was sent can arrive any more. What the ledger does not know to have claimed (journey/ours.py), another one may have submitted,
or it has forgotten that it did; and what we gave back and claim again, we may have: it is looked for first.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import structlog

from supervisor_tasks.chain.blocks import seconds_since
from supervisor_tasks.errors import OutcomeUnknownError, PermanentError, TransientError
from supervisor_tasks.events import (
    Adopted,
    Event,
    SubmitNotFound,
    SubmitNotRun,
    SubmitRejected,
    SubmitStarted,
    Submitted,
    SubmitUnclear,
)
from supervisor_tasks.job import ChainStatus, Job, JobId, SlurmId, State
from supervisor_tasks.jobs.group import Group, Outcome
from supervisor_tasks.journey.known_slurm import require_known, require_not_held
from supervisor_tasks.journey.plausible_callbacks import plausible_ids
from supervisor_tasks.ledger.effects import OpenEffect
from supervisor_tasks.ledger.journal import CutOff, Past
from supervisor_tasks.site import Site
from supervisor_tasks.slurm.cluster import Request, UndecidedError
from supervisor_tasks.slurm.guarded_command import LoginClock
from supervisor_tasks.slurm.output import AnswerNotUnderstoodError, Seen, SlurmRejectedError
from supervisor_tasks.slurm.recognise import was_rejected
from supervisor_tasks.slurm.ssh import our_clock_s

log = structlog.get_logger()

# An answer of sbatch that nobody understands is no refusal: the job is looked for, and submitted again. After so many of them,
# and SLURM has nothing of the job, it was refused.
STRANGE_ANSWERS = 3
# One that is cut off is no refusal either, and as long as it may be SLURM's own trouble the job is submitted again, however
# often (the effect counts as failing meanwhile, which calls the operator). That slurmctld answers our questions does not tell:
# one that is slow lists jobs and takes none. What tells is that other customers' jobs were taken in the same time: after so
# many times, and when more of these customers fared well than had a submission cut off, it is the job's or its customer's own
# trouble (a start-up file, a script too long for a slow link), and would go on for ever.
CUT_OFF_AT_MOST = 5


def submit(group: Group) -> None:
    """Submit the jobs that are ready, in one command; then look for those of which it is not known whether SLURM has them."""
    require_known(group.site)
    ready = [member for member in group.members if member[0].state is not State.SUBMITTING]
    sought = [member for member in group.members if member[0].state is State.SUBMITTING]
    if ready:
        try:
            _submit_ready(group, ready)
        except Exception as error:  # noqa: BLE001  told of those that have no answer; the others are looked for all the same
            group.failed(error, ready)
    for place, (job, effect) in enumerate(sought):
        if place:
            group.site.ledger.effects.extend([effect for _, effect in sought[place:]])  # a search may take minutes
        group.answered(_outcome(effect, partial(_look_for, group.site, job, effect)))


def _outcome(effect: OpenEffect, work: Callable[[], Event]) -> Outcome:
    try:
        return Outcome(effect, work())
    except Exception as error:  # noqa: BLE001  told of this effect, and the next is carried out
        return Outcome(effect, error=error)


def _submit_ready(group: Group, members: Sequence[tuple[Job, OpenEffect]]) -> None:
    site, cluster = group.site, group.site.slurm.cluster
    require_not_held(site.ledger)
    cluster.require_own_home(group.customer)  # before any session of the customer's
    past = site.ledger.journal.before_submission([job.job_id for job, _ in members])
    new = [member for member in members if _is_new(group, member, past)]
    if not new:
        return
    scripts = site.ledger.scripts([job.job_id for job, _ in new])
    clock = cluster.clock(group.customer)  # nothing begins before the login node lets us in
    begun_s = our_clock_s()
    started = group.start({effect: SubmitStarted(job.limit_min) for job, effect in new})
    effects, requests = dict[JobId, OpenEffect](), list[tuple[JobId, Request]]()
    for job, effect in ((started[job.job_id], effect) for job, effect in new if job.job_id in started):
        if job.state is not State.SUBMITTING or job.job_id not in scripts:
            stopped = SubmitUnclear("the job is not to be submitted any more")  # cancelled meanwhile; changes nothing
            group.answered(Outcome(effect, stopped))
            continue
        limit_min = job.applied_limit_min or job.limit_min
        script, number = scripts[job.job_id], 1 + past[job.job_id].begun
        request = Request(definition=job.definition, limit_min=limit_min, script=script, number=number)
        effects[job.job_id] = effect
        requests.append((job.job_id, request))
    if requests:
        again = _hand_over(group, effects, requests, clock, begun_s)
        for job_id, slurm_id in again.items():
            job = started[job_id]
            group.answered(_outcome(effects[job_id], lambda: Submitted(_only(site, job, slurm_id))))  # noqa: B023  at once


def _is_new(group: Group, member: tuple[Job, OpenEffect], past: Mapping[JobId, Past]) -> bool:
    """Whether SLURM has not heard of the job before; what it has is adopted."""
    job, effect = member
    try:
        require_never_ran(job)
        known = _earlier_submission(group.site, job, past[job.job_id])
    except Exception as error:  # noqa: BLE001  the others of the group are submitted
        group.answered(Outcome(effect, error=error))
        return False
    if known is not None:
        group.answered(Outcome(effect, Adopted(known)))
    return known is None


def _hand_over(
    group: Group,
    effects: Mapping[JobId, OpenEffect],
    requests: Sequence[tuple[JobId, Request]],
    clock: LoginClock,
    begun_s: float,
) -> dict[JobId, SlurmId]:
    """Have sbatch run for each. Returns what SLURM took of jobs that it may have twice: they are answered after a look."""
    cluster, to_look_at = group.site.slurm.cluster, dict[JobId, SlurmId]()
    again = {job_id for job_id, request in requests if request.number > 1 and cluster.submit_key}

    def answered(job_id: JobId, answer: SlurmId | Exception) -> None:
        if isinstance(answer, int) and job_id in again:
            to_look_at[job_id] = answer
        else:
            group.answered(_heard(effects[job_id], answer))

    cluster.submit_batch(group.customer, requests, clock, begun_s, answered)
    return to_look_at


def _heard(effect: OpenEffect, answer: SlurmId | Exception) -> Outcome:
    """What sbatch's answer is for the job. An error that is no answer leaves it to be looked for."""
    match answer:
        case SlurmRejectedError():
            return Outcome(effect, SubmitRejected(str(answer)))
        case OutcomeUnknownError():
            log.warning("submission_unclear", job_id=effect.job_id, error=str(answer))
            return Outcome(effect, SubmitUnclear(str(answer), strange=isinstance(answer, AnswerNotUnderstoodError)))
        case TransientError():
            return Outcome(effect, SubmitNotRun(str(answer)), answer)
        case Exception():
            return Outcome(effect, error=answer)
    return Outcome(effect, Submitted(answer))


def find(site: Site, job: Job) -> list[Seen]:
    """All that slurmctld has of a job whose SLURM id is not known; the oldest first."""
    ago_s = site.ledger.journal.seconds_since(job.job_id, SubmitStarted)
    return [] if ago_s is None else _listed(site, job, ago_s)


def _listed(site: Site, job: Job, ago_s: float) -> list[Seen]:
    def explained(submit_s: Mapping[SlurmId, int]) -> set[SlurmId]:
        return site.ledger.slurm_ids_of_others(job.job_id, submit_s)

    found = site.slurm.cluster.find(job.customer, job.job_id, ago_s, explained)
    return sorted(found, key=lambda seen: seen.slurm_id)


def _accounted(site: Site, job: Job) -> list[Seen]:
    """What accounting has of it; the oldest first."""
    ago_s = site.ledger.journal.seconds_since(job.job_id, SubmitStarted)
    found = [] if ago_s is None else site.slurm.cluster.history(job.customer, job.job_id, ago_s)
    return sorted(found, key=lambda seen: seen.slurm_id)


def _earlier_submission(site: Site, job: Job, past: Past) -> SlurmId | None:
    """What SLURM has, or had, of the job from before the ledger heard of its claim: where it does not know that claim for its
    own, nothing before it; from us, when we gave the job back after its submission had begun. Raises PermanentError when
    SLURM may have had it and has forgotten it, and TransientError while it may still arrive.
    """
    ago_s = past.earlier_s
    if ago_s is not None and ago_s < site.slurm.cluster.settled_after_s:
        raise TransientError(
            f"a submission that began {ago_s:.1f} s ago, before the job was given back, may still arrive"
        )
    if past.unknown_claim is not None:
        rpc = site.sweep.contract_of(job.provider).rpc
        ago_s = max(ago_s or 0.0, seconds_since(rpc, past.unknown_claim))
    return None if ago_s is None else _submitted_since(site, job, ago_s)


def _submitted_since(site: Site, job: Job, ago_s: float) -> SlurmId | None:
    cluster = site.slurm.cluster
    found = _listed(site, job, ago_s) or cluster.history(job.customer, job.job_id, ago_s)
    taken = [seen.slurm_id for seen in found if not was_rejected(seen)]
    if not taken and cluster.left_a_log(job.customer, job.job_id, ago_s):
        raise PermanentError(
            "the job was claimed before, and its log was written: SLURM had it, and has forgotten it; nobody knows how it ended"
        )
    return min(taken, default=None)


def require_never_ran(job: Job) -> None:
    """Raises TransientError when the contract knows that the job ran: the ledger was restored from a backup, and the sweep
    looks for what SLURM has, or had, of it.
    """
    if job.chain_status is ChainStatus.RUNNING:
        raise TransientError("the job ran, as the contract knows: it is not submitted before a sweep has looked for it")


def require_settled(site: Site, job: Job) -> None:
    """Raises TransientError as long as a submission that has begun may still arrive."""
    ago_s = site.ledger.journal.seconds_since(job.job_id, SubmitStarted)
    if ago_s is not None and ago_s < site.slurm.cluster.settled_after_s:
        raise TransientError(f"a submission that began {ago_s:.1f} s ago may still arrive")


def _look_for(site: Site, job: Job, effect: OpenEffect) -> Event:
    second = job.looks > 0
    if second:
        require_settled(site, job)
    listed = find(site, job)
    found = listed or _accounted(site, job)
    rejected = [seen for seen in found if was_rejected(seen)]
    taken = [seen for seen in found if seen not in rejected]
    if taken:
        _cancel_extras(site, job, taken[1:] if listed else [])  # what only accounting remembers has no id any more
        return Submitted(taken[0].slurm_id)
    if rejected:
        return SubmitRejected(f"SLURM rejected the job: {rejected[0].reason}")
    require_not_held(site.ledger)  # a SLURM that has lost its memory finds nothing
    if not second:
        return SubmitNotFound()
    _require_no_trace(site, job)
    strange = site.ledger.journal.strange_answers(job.job_id)
    if len(strange) >= STRANGE_ANSWERS:
        return SubmitRejected(strange[-1])
    require_worth_trying(site.ledger.journal.cut_off(job, effect.id))
    return SubmitNotFound()


def _cancel_extras(site: Site, job: Job, extras: Sequence[Seen]) -> None:
    for extra in extras:
        log.error("extra_submission_cancelled", job_id=job.job_id, slurm_id=extra.slurm_id)
        site.slurm.cluster.cancel(extra.slurm_id, job.customer)


def _only(site: Site, job: Job, slurm_id: SlurmId) -> SlurmId:
    """The job's one SLURM job, after a submission that was not its first: the customer can have submitted the job with the
    token of an earlier one, that he read, until slurmctld saw the token of this one. The oldest stays. What cannot be seen
    now, the sweep sees.
    """
    try:
        taken = [seen for seen in find(site, job) if not was_rejected(seen)]
        _cancel_extras(site, job, taken[1:])
    except (TransientError, UndecidedError) as error:
        log.warning("extra_submissions_not_looked_for", job_id=job.job_id, slurm_id=slurm_id, error=str(error))
        return slurm_id
    return taken[0].slurm_id if taken else slurm_id


def require_worth_trying(cut_off: CutOff) -> None:
    """Raises PermanentError when the job's submissions are cut off again and again, and others' are not."""
    times = len(cut_off.reasons)
    if times >= CUT_OFF_AT_MOST and cut_off.others_taken > cut_off.others_cut_off:
        raise PermanentError(
            f"its submission was cut off {times} times while SLURM took the jobs of {cut_off.others_taken} other customers,"
            f" and SLURM has nothing of it; the last time: {cut_off.reasons[-1]}"
        )


def _require_no_trace(site: Site, job: Job) -> None:
    """SLURM may have forgotten a job that has ended, and without accounting says nothing then. What it left elsewhere is no
    proof, since anybody can write it, but it is not submitted again on its own. Raises PermanentError.
    """
    ago_s = site.ledger.journal.seconds_since(job.job_id, SubmitStarted) or 0.0
    traces = traces_since(site, job, ago_s)
    if traces:
        raise PermanentError(
            f"nobody knows whether SLURM had the job: its submission was cut off {ago_s:.0f} s ago, SLURM lists it no more,"
            f" and {' and '.join(traces)}"
        )


def traces_since(site: Site, job: Job, ago_s: float) -> list[str]:
    """What a job left in the last seconds elsewhere than with SLURM, in words."""
    named = {row.slurm_id for row in site.ledger.inbox.of_last(job.job_id, ago_s)}
    called = plausible_ids(site, {job.job_id: named}, {job.job_id: ago_s}).get(job.job_id, set())
    logged = site.slurm.cluster.left_a_log(job.customer, job.job_id, ago_s)
    return [f"a plugin called with SLURM id {number}" for number in sorted(called)] + ["its log was written"] * logged
