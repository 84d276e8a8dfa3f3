"""Questions about slurmctld and what the site has configured, over slurmrestd."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from supervisor_tasks.slurm import rest_answers
from supervisor_tasks.slurm.interface import CONTROLLER_TIMEOUT_S, Controller
from supervisor_tasks.slurm.rest_access import RestAccess
from supervisor_tasks.slurm.size import SiteChoice, Size


@dataclass(frozen=True, slots=True, kw_only=True)
class RestSiteQueries:
    """Questions about slurmctld and the site. `min_job_age_s` and
    `max_memory_per_cpu_mb` (None: no limit) are those of slurm.conf. Threads may share
    it.
    """

    access: RestAccess
    partition: str
    min_job_age_s: int
    max_memory_per_cpu_mb: int | None

    def site_choices(
        self,
        shown: Collection[tuple[str, Size]],  # noqa: ARG002
    ) -> Mapping[str, SiteChoice] | None:
        """Return None: slurmrestd shows neither plugins nor associations."""
        return None

    def memory_per_cpu_limit(self) -> int | None:
        """Return the partition's MaxMemPerCPU (MB), or else that of the settings."""
        shown = rest_answers.partition_memory_per_cpu(
            self.access.ask("partitions"), self.partition
        )
        return shown or self.max_memory_per_cpu_mb

    def controller(self) -> Controller:
        """Return slurmctld's state. Its start is a text and no time, because slurmctld
        may begin its statistics again without a restart.
        """
        identity = rest_answers.parse_identity(
            self.access.ask("ping", CONTROLLER_TIMEOUT_S)
        )
        since_s = rest_answers.counting_since_s(
            self.access.ask("diag", CONTROLLER_TIMEOUT_S)
        )
        return Controller(
            f"at or before {since_s}", False, identity, min_job_age_s=self.min_job_age_s
        )
