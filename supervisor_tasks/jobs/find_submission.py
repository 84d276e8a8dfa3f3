"""Find out whether SLURM has a job of which the ledger does not know it, and what follows.

A submission can be cut off, so that sbatch's answer is not known. A job can have been submitted before we gave it back
and claimed it again, or by another ledger.
"""

from collections.abc import Mapping, Sequence

import structlog

from supervisor_tasks.chain.blocks import seconds_since
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import PermanentError, TransientError
from supervisor_tasks.jobs.events import Event, SubmissionNotFound, SubmitRejected, SubmitStarted, Submitted
from supervisor_tasks.jobs.model import ChainStatus, Job, SlurmId
from supervisor_tasks.jobs.plausible_callbacks import plausible_ids
from supervisor_tasks.ledger.journal import CutOff, Past
from supervisor_tasks.ledger.outbox import OpenEffect
from supervisor_tasks.monitoring.cluster_guard import require_not_held
from supervisor_tasks.slurm.interface import UndecidedError
from supervisor_tasks.slurm.parsers import JobRecord
from supervisor_tasks.slurm.script_matching import was_rejected

log = structlog.get_logger()

# An answer of sbatch that the parser does not understand is no refusal: the job is searched for and submitted again.
# After this many such answers, if SLURM has nothing of the job, it counts as refused.
STRANGE_ANSWERS = 3
# A submission that is cut off is no refusal either. As long as SLURM itself may be the cause, the job is submitted
# again, without a limit (the effect counts as failing meanwhile, which calls the operator). An answer of slurmctld to
# our questions proves nothing: a slow slurmctld lists jobs and takes none. The proof is that SLURM took other
# customers' jobs in the same time. After this many cuts, and when SLURM took jobs of more other customers than had a
# submission cut off, the cause is the job or its customer (a start-up file, a script too long for a slow link), and
# another try would end the same way.
CUT_OFF_AT_MOST = 5


def find(context: WorkerContext, job: Job) -> list[JobRecord]:
    """All SLURM jobs that slurmctld has for a job whose SLURM id is not known; the oldest first."""
    ago_s = context.ledger.journal.seconds_since(job.job_id, SubmitStarted)
    return [] if ago_s is None else _listed(context, job, ago_s)


def _listed(context: WorkerContext, job: Job, ago_s: float) -> list[JobRecord]:
    def explained(submit_s: Mapping[SlurmId, int]) -> set[SlurmId]:
        return context.ledger.slurm_ids_of_others(job.job_id, submit_s)

    found = context.slurm.cluster.find(job.customer, job.job_id, ago_s, explained)
    return sorted(found, key=lambda seen: seen.slurm_id)


def _accounted(context: WorkerContext, job: Job) -> list[JobRecord]:
    """All SLURM jobs that accounting has for the job; the oldest first."""
    ago_s = context.ledger.journal.seconds_since(job.job_id, SubmitStarted)
    found = [] if ago_s is None else context.slurm.cluster.sacct_submissions(job.customer, job.job_id, ago_s)
    return sorted(found, key=lambda seen: seen.slurm_id)


def earlier_submission(context: WorkerContext, job: Job, past: Past) -> SlurmId | None:
    """The SLURM id of an earlier submission of the job; None if there was none.

    There can be one in two cases. We gave the job back after its submission had begun: the search goes back to that
    submission. Or the ledger does not remember that it wrote the last claim: the search goes back to that claim. Raises
    PermanentError when SLURM may have had the job and has forgotten it, and TransientError while the earlier submission
    may still arrive (a retry helps).
    """
    ago_s = past.earlier_s
    if ago_s is not None and ago_s < context.slurm.cluster.settled_after_s:
        raise TransientError(
            f"a submission that began {ago_s:.1f} s ago, before the job was given back, may still arrive"
        )
    if past.unknown_claim is not None:
        rpc = context.sweep.contract_of(job.provider).rpc
        ago_s = max(ago_s or 0.0, seconds_since(rpc, past.unknown_claim))
    return None if ago_s is None else _submitted_since(context, job, ago_s)


def _submitted_since(context: WorkerContext, job: Job, ago_s: float) -> SlurmId | None:
    cluster = context.slurm.cluster
    found = _listed(context, job, ago_s) or cluster.sacct_submissions(job.customer, job.job_id, ago_s)
    taken = [seen.slurm_id for seen in found if not was_rejected(seen)]
    if not taken and cluster.has_log_file(job.customer, job.job_id, ago_s):
        raise PermanentError(
            "the job was claimed before, and its log was written: SLURM had it, and has forgotten it; how it ended is not known"
        )
    return min(taken, default=None)


def require_never_ran(job: Job) -> None:
    """Raises TransientError when the contract knows that the job ran. The ledger was then restored from a backup, and
    the sweep searches for the job in SLURM. A retry helps after that sweep.
    """
    if job.chain_status is ChainStatus.RUNNING:
        raise TransientError("the job ran, as the contract knows: it is not submitted before a sweep has looked for it")


def require_settled(context: WorkerContext, job: Job) -> None:
    """Raises TransientError while a submission that has begun may still arrive. A retry helps after seconds."""
    ago_s = context.ledger.journal.seconds_since(job.job_id, SubmitStarted)
    if ago_s is not None and ago_s < context.slurm.cluster.settled_after_s:
        raise TransientError(f"a submission that began {ago_s:.1f} s ago may still arrive")


def look_for(context: WorkerContext, job: Job, effect: OpenEffect) -> Event:
    """Search for a job whose submission was cut off, and return what follows. The second search decides."""
    second = job.poll_count > 0
    if second:
        require_settled(context, job)
    listed = find(context, job)
    found = listed or _accounted(context, job)
    rejected = [seen for seen in found if was_rejected(seen)]
    taken = [seen for seen in found if seen not in rejected]
    if taken:
        _cancel_extras(context, job, taken[1:] if listed else [])  # what only accounting remembers has no id any more
        return Submitted(taken[0].slurm_id)
    if rejected:
        return SubmitRejected(f"SLURM rejected the job: {rejected[0].reason}")
    require_not_held(context.ledger)  # a SLURM that has lost its state finds nothing
    if not second:
        return SubmissionNotFound()
    _require_no_trace(context, job)
    strange = context.ledger.journal.unparsed_answers(job.job_id)
    if len(strange) >= STRANGE_ANSWERS:
        return SubmitRejected(strange[-1])
    require_worth_trying(context.ledger.journal.cut_off(job, effect.id))
    return SubmissionNotFound()


def _cancel_extras(context: WorkerContext, job: Job, extras: Sequence[JobRecord]) -> None:
    for extra in extras:
        log.error("extra_submission_cancelled", job_id=job.job_id, slurm_id=extra.slurm_id)
        context.slurm.cluster.cancel(extra.slurm_id, job.customer)


def only_submission(context: WorkerContext, job: Job, slurm_id: SlurmId) -> SlurmId:
    """The id of the job's one SLURM job, after a submission that was not its first.

    The customer can read the token of an earlier submission, and can submit the job with it until slurmctld has seen
    the token of this one. The oldest SLURM job stays; the others are cancelled. If the search fails now, the sweep
    makes up for it.
    """
    try:
        taken = [seen for seen in find(context, job) if not was_rejected(seen)]
        _cancel_extras(context, job, taken[1:])
    except (TransientError, UndecidedError) as error:
        log.warning("extra_submissions_not_searched", job_id=job.job_id, slurm_id=slurm_id, error=str(error))
        return slurm_id
    return taken[0].slurm_id if taken else slurm_id


def require_worth_trying(cut_off: CutOff) -> None:
    """Raises PermanentError when the job's submissions are cut off each time, and those of other customers are not."""
    times = len(cut_off.reasons)
    if times >= CUT_OFF_AT_MOST and cut_off.others_taken > cut_off.others_cut_off:
        raise PermanentError(
            f"its submission was cut off {times} times while SLURM took the jobs of {cut_off.others_taken} other customers,"
            f" and SLURM has nothing of it; the last time: {cut_off.reasons[-1]}"
        )


def _require_no_trace(context: WorkerContext, job: Job) -> None:
    """Raises PermanentError when the job left a trace outside SLURM.

    SLURM may have forgotten a job that has ended, and a site without accounting then has no record of it. A trace is no
    proof, because any user can make one. But a job with a trace is submitted again only when the operator decides so.
    """
    ago_s = context.ledger.journal.seconds_since(job.job_id, SubmitStarted) or 0.0
    traces = traces_since(context, job, ago_s)
    if traces:
        raise PermanentError(
            f"it is not known whether SLURM had the job: its submission was cut off {ago_s:.0f} s ago, SLURM lists it no more,"
            f" and {' and '.join(traces)}"
        )


def traces_since(context: WorkerContext, job: Job, ago_s: float) -> list[str]:
    """The traces that a job left outside SLURM in the last `ago_s` seconds, in words: callbacks and its log."""
    named = {row.slurm_id for row in context.ledger.inbox.of_last(job.job_id, ago_s)}
    called = plausible_ids(context, {job.job_id: named}, {job.job_id: ago_s}).get(job.job_id, set())
    logged = context.slurm.cluster.has_log_file(job.customer, job.job_id, ago_s)
    return [f"a plugin called with SLURM id {number}" for number in sorted(called)] + ["its log was written"] * logged
