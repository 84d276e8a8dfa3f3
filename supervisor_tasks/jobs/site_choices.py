"""What the site gave the jobs that a look sees for the first time: account, QOS, threads of a core.

Their owners may have changed that already. Where no plugin of the site's SLURM chooses, accounting knows it. Elsewhere
the first look counts.
"""

from collections.abc import Mapping
from dataclasses import replace

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.model import Job, JobId
from supervisor_tasks.slurm.job_matching import MatchResult
from supervisor_tasks.slurm.size import SiteChoice


def with_site_choices(
    context: WorkerContext, jobs: Mapping[JobId, Job], sights: Mapping[JobId, MatchResult]
) -> dict[JobId, MatchResult]:
    """The sights of the jobs that are new, with what the site gave them; none where the first look counts."""
    cluster = context.slurm.cluster
    new = [
        (job, seen, seen.size)
        for job in jobs.values()
        if not job.runs and (seen := sights[job.job_id].seen) is not None and seen.size is not None
    ]
    if not new or not cluster.compares_sizes:
        return {}
    choices = cluster.site_choices([(job.customer, size) for job, _, size in new])
    if choices is None:
        return {}
    given = {job.job_id: choices.get(job.customer) or SiteChoice(size.account, size.qos) for job, _, size in new}
    return {job.job_id: MatchResult(replace(seen, site=given[job.job_id])) for job, seen, _ in new}
