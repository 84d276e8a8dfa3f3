"""The options of a grid and its clusters. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from devgrid.chain.model import ChainPrices

Hooks = Literal["spool", "upstream"]
Transport = Literal["ssh", "rest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """One cluster: its SLURM, its hooks and what its provider offers.

    `hooks` selects what reports SLURM's events to the supervisor: the project's own
    reporter, or an imitation of the upstream plugins, which try once. `slurm_conf` are
    more lines of that file. `overrides` are settings of the fleet. With `spool_disk_mb`
    the spool is on a disk of that size, which can be filled. Unless it is `registered`,
    the provider is unknown to the grid, and the supervisor measures and registers it.
    Without `job_submit`, SLURM lets customers submit and change jobs themselves, as at
    a site that does not use job_submit.lua. With a `callback_key` the reporter and
    sshd's command prove what they report; the upstream plugins cannot. With the
    `transport` rest there is a slurmrestd, and no sshd. With `ssh_certificates` sshd
    trusts an authority, whose key the supervisor has, and no other key.
    """

    name: str = "devgrid"
    nodes: int = 4
    gpus_per_node: int = 2
    threads_per_core: int = 1
    accounting: bool = False
    min_job_age_s: int = 300
    slurm_conf: tuple[str, ...] = ()
    job_submit: bool = True
    hooks: Hooks = "spool"
    callback_key: bool = True
    transport: Transport = "ssh"
    ssh_certificates: bool = False
    spool_disk_mb: int | None = None
    registered: bool = True
    prices: ChainPrices = field(default_factory=ChainPrices)
    overrides: Mapping[str, str] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the provider. A job that uses the label `name` runs on this
        cluster.
        """
        return {"name": self.name}

    @property
    def with_key(self) -> bool:
        """Whether calls to the supervisor prove where they come from."""
        return self.callback_key and self.hooks == "spool"


@dataclass(frozen=True, slots=True, kw_only=True)
class GridOptions(ClusterOptions):
    """A grid with its first cluster, and with the clusters of `others`, each of another
    name. Without a block time each transaction is mined at once. With `ldap`, customers
    get accounts in a directory of its own. With `postgres_disk_mb` the database is on a
    disk of that size, which can be filled. `report` is called with a line for each step
    of the start.
    """

    others: tuple[ClusterOptions, ...] = ()
    block_time_s: float | None = None
    ldap: bool = False
    postgres_disk_mb: int | None = None
    report: Callable[[str], None] = lambda _: None
