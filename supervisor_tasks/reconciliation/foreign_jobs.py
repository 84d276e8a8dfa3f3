"""What customers' jobs in SLURM show about job_submit.lua. A sweep sees these jobs,
because it lists all jobs that SLURM remembers. Which of them are not ours: `foreign` in snapshot.py.

If slurmctld runs job_submit.lua, a customer has only the supervisor's jobs, and no
comment shows a token.
"""

import re
from collections.abc import Collection, Sequence

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.model import SlurmId
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.reconciliation.models import JobSummary
from supervisor_tasks.reconciliation.snapshot import is_live_row, is_row_of
from supervisor_tasks.slurm import submit_token
from supervisor_tasks.slurm.commands import comment
from supervisor_tasks.slurm.size import Size
from supervisor_tasks.slurm.squeue import SqueueRow

LOG_SAMPLE_SIZE = 10
FOREIGN = (
    "customers submit jobs themselves: install job_submit.lua (plugins/README.md); where the site allows it, or another ledger"
    " uses this SLURM, set FOREIGN_JOBS_ALLOWED"
)
NOT_ASKED = (
    "slurmctld does not run job_submit.lua: it leaves the token in the comment, and the upstream plugins read an address there."
    " Set JobSubmitPlugins=lua in slurm.conf (plugins/README.md), or remove SLURM_SUBMIT_KEY from the workers"
)


def without_settled(ledger: Ledger, jobs: Sequence[SqueueRow]) -> list[SqueueRow]:
    """These SLURM jobs without those that have ended and are settled jobs of the ledger.
    The sweep does not read all settled jobs. Raises LedgerUnavailableError, when the
    database does not answer; a retry helps.
    """
    ended = {job.slurm_id for job in jobs if not is_live_row(job)}
    known = ledger.reconciliations.named((), ended)
    of_id = dict[SlurmId | None, list[JobSummary]]()
    for job in known.values():
        of_id.setdefault(job.slurm_id, []).append(job)
    unknown = list[SqueueRow]()
    for row in jobs:
        may_be = of_id.get(row.slurm_id, ()) if row.slurm_id in ended else ()
        if not any(_may_be_settled_as(row, job) for job in may_be):
            unknown.append(row)
    return unknown


def _may_be_settled_as(row: SqueueRow, job: JobSummary) -> bool:
    """Whether the row may be this job: it is, or no look has seen the job, and the
    owner may have renamed it.
    """
    if job.slurm_submit_s is None:
        return row.user == job.customer
    return is_row_of(row, job)


def update_foreign_job_alarm(context: WorkerContext, jobs: Sequence[SqueueRow]) -> None:
    """Switch on one alarm for all these jobs, with the first few of them. Switch it off
    if there are none, or if the site allows them. Raises LedgerUnavailableError, when
    the database does not answer; a retry helps.
    """
    if not jobs or context.sweep.foreign_jobs_allowed:
        context.ledger.alarms.off(AlarmName.FOREIGN_CUSTOMER_JOBS)
        return
    some = dict[str, str]()
    for job in sorted(jobs, key=lambda job: job.slurm_id)[:LOG_SAMPLE_SIZE]:
        size = _size_text(job.record.size)
        some[str(job.slurm_id)] = f"{job.user}, {job.record.state}, {size}"
    context.ledger.alarms.on(
        AlarmName.FOREIGN_CUSTOMER_JOBS, jobs=len(jobs), some=some, advice=FOREIGN
    )


def update_unchecked_token_alarm(
    context: WorkerContext, jobs: Collection[SqueueRow]
) -> None:
    """Raise the alarm while the comment of a live job shows one of this supervisor's
    tokens: slurmctld has not checked that token. Raises LedgerUnavailableError, when
    the database does not answer; a retry helps.
    """
    settings = context.slurm.cluster.settings
    shows_token = re.compile(
        re.escape(comment(settings.public_address)) + submit_token.TOKEN_PATTERN
    )
    found = list[SlurmId]()
    for job in jobs:
        if is_live_row(job) and shows_token.fullmatch(job.comment):
            found.append(job.slurm_id)
    if not found or not settings.submit_key:
        context.ledger.alarms.off(AlarmName.SUBMIT_TOKENS_UNCHECKED)
        return
    first = sorted(found)[:LOG_SAMPLE_SIZE]
    context.ledger.alarms.on(
        AlarmName.SUBMIT_TOKENS_UNCHECKED,
        jobs=len(found),
        first=first,
        advice=NOT_ASKED,
    )


def _size_text(size: Size | None) -> str:
    if size is None:
        return "size unknown"
    limit = "no time limit of its own"
    if size.limit_min is not None:
        limit = f"limit {size.limit_min} minutes"
    return f"{size.cpus} CPUs, {size.nodes} nodes, {size.counted_mb} MB, {size.gpus} GPUs, {limit}"
