"""What the site gave the jobs that a look sees for the first time: account, QOS,
threads of a core.

Their owners may have changed that already. Where no plugin of the site's SLURM chooses,
accounting has the site's choice. Elsewhere the first look counts.
"""

from collections.abc import Mapping
from dataclasses import replace

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.model import Job, JobId
from supervisor_tasks.slurm.job_matching import MatchResult, records_by_job
from supervisor_tasks.slurm.parsers import JobRecord
from supervisor_tasks.slurm.size import SiteChoice, Size


def with_site_choices(
    context: WorkerContext,
    jobs: Mapping[JobId, Job],
    matches: Mapping[JobId, MatchResult],
) -> dict[JobId, MatchResult]:
    """The matches of the jobs that are new, with what the site gave them; none where
    the first look counts.
    """
    cluster = context.slurm.cluster
    new = _seen_first(jobs, matches)
    if not new or not cluster.settings.compares_sizes:
        return {}
    choices = cluster.site.site_choices([(job.customer, size) for job, _, size in new])
    if choices is None:
        return {}
    chosen = dict[JobId, MatchResult]()
    for job, seen, size in new:
        choice = choices.get(job.customer) or SiteChoice(size.account, size.qos)
        chosen[job.job_id] = MatchResult(replace(seen, site=choice))
    return chosen


def _seen_first(
    jobs: Mapping[JobId, Job], matches: Mapping[JobId, MatchResult]
) -> list[tuple[Job, JobRecord, Size]]:
    """The jobs that this look sees for the first time, with their sizes."""
    new = list[tuple[Job, JobRecord, Size]]()
    for job_id, seen in records_by_job(matches).items():
        if seen.size is not None and not jobs[job_id].runs:
            new.append((jobs[job_id], seen, seen.size))
    return new
