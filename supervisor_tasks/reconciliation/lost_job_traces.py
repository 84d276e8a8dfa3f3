"""Whether anything was ever seen of jobs that SLURM has lost while they waited."""

import math
import random
from collections.abc import Mapping

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import TransientError
from supervisor_tasks.jobs.events import SubmissionLostBySlurm, SubmitStarted, Submitted
from supervisor_tasks.jobs.model import Address, Job, JobId, SlurmId
from supervisor_tasks.jobs.runs import CLOCKS_APART_S
from supervisor_tasks.reconciliation.snapshot import (
    Snapshot,
    Trace,
    pending_and_missing,
)
from supervisor_tasks.reconciliation.sweep_report import (
    MAX_TEXT_CHARS,
    MAX_UNANSWERED_QUESTIONS,
    ReconciliationReport,
)
from supervisor_tasks.slurm.script_matching import ScriptSearch
from supervisor_tasks.slurm_lookup.plausible_callbacks import plausible_ids

JOBS_TRACED_AT_ONCE = 50
# whose homes one sweep looks at: each needs a login and a command
CUSTOMERS_AT_ONCE = 10
# how often a job is submitted again because slurmctld forgot it
MAX_FORGOTTEN_TIMES = 3


def find_traces(
    context: WorkerContext,
    snapshot: Snapshot,
    booted: str,
    report: ReconciliationReport,
) -> dict[JobId, Trace]:
    """Whether anything was ever seen of jobs that waited and that SLURM has lost. If
    they are too many for one sweep, it searches for a random choice of them. Raises
    TransientError when SLURM does not answer; a retry helps.
    """
    lost = [job.job_id for job in pending_and_missing(snapshot)]
    chosen = random.sample(lost, min(len(lost), JOBS_TRACED_AT_ONCE))
    if not chosen or not booted.isdecimal():
        return {}
    if context.slurm.cluster.site.controller().booted != booted:
        return {}  # slurmctld has just restarted: a later sweep looks
    jobs = context.ledger.jobs(chosen)
    traces = _traces_by_time(context, snapshot, jobs, int(booted))
    undecided = {job_id: job for job_id, job in jobs.items() if job_id not in traces}
    return traces | _remaining_traces(context, snapshot, undecided, report)


def _traces_by_time(
    context: WorkerContext, snapshot: Snapshot, jobs: Mapping[JobId, Job], booted_s: int
) -> dict[JobId, Trace]:
    """The traces that follow from when SLURM took the jobs, and from how often it has
    forgotten them. A job for which nothing follows is left out.
    """
    # before the ages: a slow answer makes no job younger
    now_s = context.slurm.cluster.clock.now_s()
    answered_ago_s = context.ledger.journal.last_ages_s(jobs, Submitted)
    losses_ago_s = context.ledger.journal.ages_s(jobs, SubmissionLostBySlurm)
    persisted = set(snapshot.persisted_by_slurm or ())
    traces = dict[JobId, Trace]()
    for job_id, job in jobs.items():
        accepted_at_s = _accepted_at_s(job, now_s, answered_ago_s.get(job_id))
        if job_id in persisted:
            traces[job_id] = Trace.UNSURE
        elif accepted_at_s > booted_s:
            # slurmctld forgets a waiting job only when it is killed: then it restarted
            # after it had accepted the job.
            traces[job_id] = Trace.SOME
        elif len(losses_ago_s.get(job_id, ())) >= MAX_FORGOTTEN_TIMES:
            traces[job_id] = Trace.UNSURE
    return traces


def _remaining_traces(
    context: WorkerContext,
    snapshot: Snapshot,
    jobs: Mapping[JobId, Job],
    report: ReconciliationReport,
) -> dict[JobId, Trace]:
    """What is left of these jobs in SLURM's list, in accounting, in the stored callbacks and in
    their customers' homes. A job is left out if the sweep has not looked everywhere for
    it.
    """
    if not jobs:
        return {}
    begun_ago_s = context.ledger.journal.last_ages_s(jobs, SubmitStarted)
    called = _callback_traces(context, jobs, begun_ago_s)
    submitted_s = {row.slurm_id: row.submit_s for row in snapshot.rows.values()}
    owners = context.ledger.owners(submitted_s)
    searches = list[ScriptSearch]()
    for job_id, ago_s in begun_ago_s.items():
        if called.get(job_id) is not Trace.SOME:
            customer = jobs[job_id].customer
            searches.append(ScriptSearch(job_id, customer, ago_s, owners))
    submitted = context.slurm.cluster.search.was_submitted(searches, snapshot.rows)
    traces = dict.fromkeys(jobs, Trace.SOME)  # also if the journal has no submission
    customers = dict[JobId, Address]()
    for job_id, is_submitted in submitted.items():
        if is_submitted is None:
            traces[job_id] = Trace.UNSURE
        elif not is_submitted:
            del traces[job_id]
            customers[job_id] = jobs[job_id].customer
    traces |= _log_traces(context, customers, begun_ago_s, report)
    for job_id, trace in called.items():
        if traces.get(job_id) is Trace.NONE:
            traces[job_id] = trace
    return traces


def _callback_traces(
    context: WorkerContext,
    jobs: Mapping[JobId, Job],
    begun_ago_s: Mapping[JobId, float],
) -> dict[JobId, Trace]:
    """The traces that callbacks are of the jobs about which they came since their
    submission began, under the job's own SLURM id or another one that it may have had.
    At a site with a key, any caller can make up a callback without a proof, and an
    upstream plugin sends a true one: no worker can decide by it.
    """
    called = _traces_by_slurm_id(context, begun_ago_s)
    other_ids = {
        job_id: traces.keys() - {jobs[job_id].slurm_id}
        for job_id, traces in called.items()
    }
    plausible = plausible_ids(context, other_ids, begun_ago_s)
    found = dict[JobId, Trace]()
    for job_id, traces in called.items():
        slurm_ids = {jobs[job_id].slurm_id, *plausible.get(job_id, ())}
        of_its_ids = {traces[slurm_id] for slurm_id in traces.keys() & slurm_ids}
        if of_its_ids:
            is_sure = Trace.SOME in of_its_ids
            found[job_id] = Trace.SOME if is_sure else Trace.UNSURE
    return found


def _traces_by_slurm_id(
    context: WorkerContext, begun_ago_s: Mapping[JobId, float]
) -> dict[JobId, dict[SlurmId, Trace]]:
    """What the callbacks since the submission of each job are, by the SLURM id that
    they name.
    """
    called = dict[JobId, dict[SlurmId, Trace]]()
    for last in context.ledger.callbacks.last_callbacks(begun_ago_s):
        if last.age_s <= begun_ago_s[last.job_id]:
            traces = called.setdefault(last.job_id, {})
            if last.is_evidence:
                traces[last.slurm_id] = Trace.SOME
            else:
                traces.setdefault(last.slurm_id, Trace.UNSURE)
    return called


def _log_traces(
    context: WorkerContext,
    customers: Mapping[JobId, Address],
    begun_ago_s: Mapping[JobId, float],
    report: ReconciliationReport,
) -> dict[JobId, Trace]:
    """Whether each job has written its log. A customer whose logs the sweep has not
    seen is left out. Each customer needs a separate question, so the sweep makes a
    random choice of them.
    """
    asked_of = dict[Address, dict[JobId, float]]()
    for job_id, customer in customers.items():
        asked_of.setdefault(customer, {})[job_id] = begun_ago_s[job_id]
    users = sorted(asked_of)
    traces = dict[JobId, Trace]()
    failures = 0
    for user in random.sample(users, min(len(users), CUSTOMERS_AT_ONCE)):
        try:
            written = context.slurm.cluster.logs.jobs_with_logs(user, asked_of[user])
        except TransientError as error:
            # a broken account must not stop the search for the others
            report.unseen["logs"] = str(error)[:MAX_TEXT_CHARS]
            failures += 1
            if failures >= MAX_UNANSWERED_QUESTIONS:
                break
            continue
        traces |= dict.fromkeys(asked_of[user], Trace.NONE)
        traces |= dict.fromkeys(written, Trace.SOME)
    return traces


def _accepted_at_s(job: Job, now_s: float, answered_ago_s: float | None) -> float:
    """When SLURM took the job, by the site's clocks. If no look has shown that time,
    SLURM had accepted the job before it answered. Infinite if the journal does not have
    the answer.
    """
    if answered_ago_s is None:
        return math.inf
    if job.slurm_submit_s is None:
        return now_s - answered_ago_s - CLOCKS_APART_S
    return job.slurm_submit_s
