"""Which SLURM cluster this is. The identity stays when slurmctld restarts, moves to its
backup, or gets other nodes. Pure.

A cluster is known by its ClusterName, the first port of its slurmctld, and the names of
the hosts that slurmctld may run on, without their addresses. One common host is enough:
adding or removing a controller does not make another cluster. A cluster with another
name or port, or with all controllers replaced at once, counts as another one until the
operator confirms that it is the same.

slurmrestd shows only the names of the hosts: then name and port are empty, and are not
compared. slurm_lookup/cluster_check.py compares, and stops the work at another one.
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
        hosts = ", ".join(self.hosts)
        if not self.name:
            return f"{_CONTROLLERS}{hosts}"
        return f"{self.name} on port {self.port} of {hosts}"

    @classmethod
    def parse(cls, text: str) -> "ClusterIdentity":
        """Read the cluster from such a text."""
        if text.startswith(_CONTROLLERS):
            return cls("", "", tuple(text.removeprefix(_CONTROLLERS).split(", ")))
        name, _, rest = text.partition(" on port ")
        port, _, shown_hosts = rest.partition(" of ")
        hosts = list[str]()
        for host in shown_hosts.split(", "):
            hosts.append(host.partition("(")[0])
        return cls(name, port, tuple(hosts))

    def is_the_same_as(self, other: "ClusterIdentity") -> bool:
        """Whether both are one cluster."""
        if set(self.hosts).isdisjoint(other.hosts):
            return False
        if not (self.name and other.name):
            return True
        if self.name != other.name:
            return False
        return _first_port(self.port) == _first_port(other.port)


def _first_port(port: str) -> str:
    """Return the first port of a range, such as 6817-6820, or the single port."""
    return port.partition("-")[0]


def parse_cluster_identity(answer: CommandAnswer) -> ClusterIdentity:
    """Read the cluster from `scontrol show config`. Raises SlurmUnavailableError when
    the answer names no cluster; a retry helps.
    """
    name = _value(answer, "ClusterName")
    port = _value(answer, "SlurmctldPort")
    hosts = re.findall(
        r"^SlurmctldHost\[\d+\]\s*=\s*([^\s(]+)", answer.stdout, re.MULTILINE
    )
    names_a_cluster = name and port and hosts
    if answer.status != 0 or not names_a_cluster:
        raise SlurmUnavailableError(
            f"scontrol show config ended with status {answer.status} and named no cluster"
        )
    return ClusterIdentity(name, port, tuple(hosts))


def _value(answer: CommandAnswer, key: str) -> str:
    found = re.search(rf"^{key}\s*=\s*(\S+)", answer.stdout, re.MULTILINE)
    if found is None:
        return ""
    return found[1]
