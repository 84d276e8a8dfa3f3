"""Which SLURM it is: what stays when slurmctld is started again, moves to its backup, or gets other nodes. Pure.

A cluster is known by its ClusterName, the first port of its slurmctld, and the names of the hosts that slurmctld may run on,
whatever addresses they have. One of the hosts in common is enough: a controller that is added or taken away is no other
cluster. A cluster that gets another name or port, or whose controllers are all replaced at once, is another one until the
operator says that it is not.
"""

import re
from dataclasses import dataclass

from supervisor_tasks.slurm.output import Answer, SlurmUnavailableError


@dataclass(frozen=True, slots=True)
class Which:
    """A SLURM cluster."""

    name: str
    port: str
    hosts: tuple[str, ...]

    def __str__(self) -> str:
        """As it is told to people, and kept in the ledger."""
        return f"{self.name} on port {self.port} of {', '.join(self.hosts)}"

    @classmethod
    def told(cls, text: str) -> "Which":
        """The cluster of such a text."""
        name, _, rest = text.partition(" on port ")
        port, _, hosts = rest.partition(" of ")
        return cls(name, port, tuple(host.partition("(")[0] for host in hosts.split(", ")))

    def is_the_same_as(self, other: "Which") -> bool:
        """Whether both are one cluster."""
        mine, others = ((one.name, one.port.partition("-")[0]) for one in (self, other))  # of a range the first port
        return mine == others and not set(self.hosts).isdisjoint(other.hosts)


def which(answer: Answer) -> Which:
    """The cluster whose configuration scontrol shows. Raises SlurmUnavailableError when it does not show one."""
    name, port = (_value(answer, key) for key in ("ClusterName", "SlurmctldPort"))
    hosts = re.findall(r"^SlurmctldHost\[\d+\]\s*=\s*([^\s(]+)", answer.stdout, re.MULTILINE)
    if answer.status != 0 or not (name and port and hosts):
        raise SlurmUnavailableError(f"scontrol show config ended with status {answer.status} and named no cluster")
    return Which(name, port, tuple(hosts))


def _value(answer: Answer, key: str) -> str:
    found = re.search(rf"^{key}\s*=\s*(\S+)", answer.stdout, re.MULTILINE)
    return found[1] if found else ""
