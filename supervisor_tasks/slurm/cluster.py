"""SLURM behind a login node (SLURM_TRANSPORT=ssh): its parts, one class with one
subject each.
"""

from dataclasses import dataclass

from supervisor_tasks.slurm.associations import Associations
from supervisor_tasks.slurm.homes import Homes
from supervisor_tasks.slurm.interface import SlurmCluster, SlurmSettings
from supervisor_tasks.slurm.login_node import LoginNode
from supervisor_tasks.slurm.ssh_clock import SshClock
from supervisor_tasks.slurm.ssh_control import SshControl
from supervisor_tasks.slurm.ssh_homes import SshHomeCheck, SshJobLogs
from supervisor_tasks.slurm.ssh_queries import SshJobQueries
from supervisor_tasks.slurm.ssh_scripts import SshScripts
from supervisor_tasks.slurm.ssh_search import SshSubmissionSearch
from supervisor_tasks.slurm.ssh_site import LastReported, SshSiteQueries
from supervisor_tasks.slurm.ssh_submissions import SshSubmissions


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """SLURM behind the login node. Threads may share it."""

    login_node: LoginNode
    settings: SlurmSettings
    clock: SshClock
    homes: SshHomeCheck
    submissions: SshSubmissions
    search: SshSubmissionSearch
    logs: SshJobLogs
    queries: SshJobQueries
    site: SshSiteQueries
    control: SshControl

    @classmethod
    def of(
        cls,
        login_node: LoginNode,
        settings: SlurmSettings,
        *,
        homes: Homes | None = None,
        environment_file: str = "",
    ) -> "Cluster":
        """Build the cluster's parts. `environment_file` is the site's file on the login
        node; jobs inherit what it exports.
        """
        clock = SshClock(login_node=login_node)
        home_check = SshHomeCheck(login_node=login_node, homes=homes or Homes())
        scripts = SshScripts(login_node=login_node)
        queries = SshJobQueries(login_node=login_node, batch_scripts=scripts)
        reported = LastReported()
        return cls(
            login_node=login_node,
            settings=settings,
            clock=clock,
            homes=home_check,
            submissions=SshSubmissions(
                login_node=login_node,
                settings=settings,
                reported=reported,
                environment_file=environment_file,
                associations=Associations(
                    login_node=login_node, account=settings.customer_account
                ),
            ),
            search=SshSubmissionSearch(
                login_node=login_node,
                clock=clock,
                queries=queries,
                batch_scripts=scripts,
            ),
            logs=SshJobLogs(login_node=login_node, clock=clock, homes=home_check),
            queries=queries,
            site=SshSiteQueries(
                login_node=login_node, partition=settings.partition, reported=reported
            ),
            control=SshControl(login_node=login_node),
        )

    @property
    def address(self) -> str:
        """The login node."""
        return self.login_node.address

    def close(self) -> None:
        """Close the connections."""
        self.login_node.close()


def over_ssh(cluster: SlurmCluster) -> Cluster:
    """Return the cluster as one behind a login node, for a caller that needs its
    commands. Raises LookupError with another transport; a retry does not help.
    """
    if not isinstance(cluster, Cluster):
        raise LookupError("SLURM_TRANSPORT=rest: there is no login node")
    return cluster
