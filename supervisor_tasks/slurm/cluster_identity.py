"""Which SLURM cluster this is. The identity stays when slurmctld restarts, moves to its backup, or gets other nodes.
Pure.

A cluster is known by its ClusterName, the first port of its slurmctld, and the names of the hosts that slurmctld may
run on, without their addresses. One common host is enough: adding or removing a controller does not make another
cluster. A cluster with another name or port, or with all controllers replaced at once, counts as another one until the
operator confirms that it is the same.

slurmrestd shows only the names of the hosts: then name and port are empty, and are not compared.
"""

import re
from dataclasses import dataclass

from supervisor_tasks.slurm.parsers import CommandAnswer, SlurmUnavailableError

_CONTROLLERS = "the controllers "


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """A SLURM cluster."""

    name: str
    port: str
    hosts: tuple[str, ...]

    def __str__(self) -> str:
        """Return the text that people read and the ledger stores."""
        known = f"{self.name} on port {self.port} of " if self.name else _CONTROLLERS
        return f"{known}{', '.join(self.hosts)}"

    @classmethod
    def parse(cls, text: str) -> "ClusterIdentity":
        """Read the cluster from such a text."""
        if text.startswith(_CONTROLLERS):
            return cls("", "", tuple(text.removeprefix(_CONTROLLERS).split(", ")))
        name, _, rest = text.partition(" on port ")
        port, _, hosts = rest.partition(" of ")
        return cls(name, port, tuple(host.partition("(")[0] for host in hosts.split(", ")))

    def is_the_same_as(self, other: "ClusterIdentity") -> bool:
        """Whether both are one cluster."""
        mine, others = ((one.name, one.port.partition("-")[0]) for one in (self, other))  # the first port of a range
        return (mine == others or not (self.name and other.name)) and not set(self.hosts).isdisjoint(other.hosts)


def parse_cluster_identity(answer: CommandAnswer) -> ClusterIdentity:
    """Read the cluster from `scontrol show config`. Raises SlurmUnavailableError when the answer names no cluster."""
    name, port = (_value(answer, key) for key in ("ClusterName", "SlurmctldPort"))
    hosts = re.findall(r"^SlurmctldHost\[\d+\]\s*=\s*([^\s(]+)", answer.stdout, re.MULTILINE)
    if answer.status != 0 or not (name and port and hosts):
        raise SlurmUnavailableError(f"scontrol show config ended with status {answer.status} and named no cluster")
    return ClusterIdentity(name, port, tuple(hosts))


def _value(answer: CommandAnswer, key: str) -> str:
    found = re.search(rf"^{key}\s*=\s*(\S+)", answer.stdout, re.MULTILINE)
    return found[1] if found else ""
