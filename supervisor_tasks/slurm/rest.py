"""SLURM over slurmrestd (SLURM_TRANSPORT=rest): no login node, and no session as a
customer.

Exactly once works as over SSH. The worker writes SUBMITTING first, and a submission can
arrive for SUBMIT_TIMEOUT_S only. After a submission without an answer the worker
searches for the job. The token of the request bounds the time: slurmctld rejects it
after `exp`, by its own clock, which the worker reads beforehand. A job is identified by
its name, its output file and our comment, because slurmrestd 22.05 shows no batch
script. So a job that its owner has renamed counts as undecided. A site should have
job_submit.lua, which forbids that.

slurmrestd 22.05 does not show when slurmctld was started, its MinJobAge and
MaxMemPerCPU (the settings have them), the next job id, and the customers' homes. Where
one of these would be the proof, the operator decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from supervisor_tasks.slurm.interface import SlurmSettings
from supervisor_tasks.slurm.parsers import MIN_JOB_AGE_S
from supervisor_tasks.slurm.rest_access import RestAccess
from supervisor_tasks.slurm.rest_clock import RestClock
from supervisor_tasks.slurm.rest_control import RestControl
from supervisor_tasks.slurm.rest_homes import RestHomeCheck, RestJobLogs
from supervisor_tasks.slurm.rest_queries import RestJobQueries
from supervisor_tasks.slurm.rest_search import RestSubmissionSearch
from supervisor_tasks.slurm.rest_site import RestSiteQueries
from supervisor_tasks.slurm.rest_submissions import RestSubmissions


@dataclass(frozen=True, slots=True, kw_only=True)
class RestCluster:
    """SLURM behind slurmrestd. Threads may share it."""

    access: RestAccess
    settings: SlurmSettings
    clock: RestClock
    homes: RestHomeCheck
    submissions: RestSubmissions
    search: RestSubmissionSearch
    logs: RestJobLogs
    queries: RestJobQueries
    site: RestSiteQueries
    control: RestControl

    @classmethod
    def of(
        cls,
        access: RestAccess,
        settings: SlurmSettings,
        *,
        home: str,
        environment: Mapping[str, str],
        min_job_age_s: int = MIN_JOB_AGE_S,
        max_memory_per_cpu_mb: int | None = None,
    ) -> "RestCluster":
        """Build the cluster's parts. `home` is the folder in which a customer's jobs
        begin, with {address} for the customer's; `environment` has their variables
        besides PATH, HOME, USER and LOGNAME. `min_job_age_s` and
        `max_memory_per_cpu_mb` (None: no limit) are those of slurm.conf.
        """
        clock = RestClock(access=access)
        queries = RestJobQueries(access=access, clock=clock)
        return cls(
            access=access,
            settings=settings,
            clock=clock,
            homes=RestHomeCheck(),
            submissions=RestSubmissions(
                access=access, settings=settings, home=home, environment=environment
            ),
            search=RestSubmissionSearch(
                queries=queries, clock=clock, public_address=settings.public_address
            ),
            logs=RestJobLogs(min_job_age_s=min_job_age_s),
            queries=queries,
            site=RestSiteQueries(
                access=access,
                partition=settings.partition,
                min_job_age_s=min_job_age_s,
                max_memory_per_cpu_mb=max_memory_per_cpu_mb,
            ),
            control=RestControl(access=access, queries=queries),
        )

    @property
    def address(self) -> str:
        """The URL of slurmrestd."""
        return self.access.client.url

    def close(self) -> None:
        """Close the connections."""
        self.access.client.close()
