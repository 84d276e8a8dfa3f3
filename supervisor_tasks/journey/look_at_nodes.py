"""Look at the nodes: what hardware the partition has, written down for who registers it. The operator is called when for a
while nobody sees a node that works, though SLURM does.
"""

from collections import Counter

from supervisor_tasks.errors import TransientError
from supervisor_tasks.journey.check_slurm import slurm_works
from supervisor_tasks.journey.drain import drain
from supervisor_tasks.journey.known_slurm import require_known
from supervisor_tasks.ledger.conditions import Condition
from supervisor_tasks.ledger.operator import AlarmName
from supervisor_tasks.ledger.provider import NODES, Registrations
from supervisor_tasks.offer import Machine
from supervisor_tasks.registration import shows_nodes
from supervisor_tasks.site import Site
from supervisor_tasks.slurm.specs import Specs

MISSED_AFTER_S = 300.0  # slurmctld is restarted, nodes boot: that passes
SHOWN = 500  # characters of an error


def look_at_nodes(site: Site) -> None:
    """Write the partition's hardware down; what is known stays. Raises AnotherSlurmError, SlurmUnavailableError or
    SshUnavailableError.
    """
    drain(site.ledger, "look_at_nodes", lambda: _look(site))


def _look(site: Site) -> bool:
    require_known(site)
    book = Registrations(site.ledger.facts)
    try:
        specs = site.slurm.nodes.specs()
    except TransientError as error:
        _missed(site, book, str(error))
        raise
    if specs.nodes:
        book.forget_missed()
        site.ledger.alarms.off(AlarmName.NODES_NOT_SEEN)
    else:
        _missed(site, book, _left_out(site.slurm.nodes.partition, specs))
    machines = tuple(Machine(node.gpus, node.cpus, node.mem_mb) for node in specs.nodes)
    if not shows_nodes(site.ledger.ticks.age_s(NODES)):
        book.forget_hardware()
    new = book.learn_hardware(machines)
    site.ledger.ticks.leave(NODES)
    if new:
        site.sweep.wake("register")
    return False


def _missed(site: Site, book: Registrations, why: str) -> None:
    """Keep why, and call the operator if it has been so for long. While SLURM does not work that is what he is called for."""
    if not slurm_works(site.ledger):
        book.forget_missed()  # how long none is seen counts from when it works again
        return
    book.learn_why_not_seen(why[:SHOWN])
    advice = "look at SLURM_PARTITION, and at `sinfo -R` on the login node; `supervisor provider` has the last error"
    condition = Condition(site.ledger, AlarmName.NODES_NOT_SEEN, MISSED_AFTER_S)
    condition.update(True, partition=site.slurm.nodes.partition, error=why[:SHOWN], advice=advice)


def _left_out(partition: str, specs: Specs) -> str:
    states = Counter(node.state for node in specs.left_out)
    told = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    if specs.not_shown:
        told = ", ".join(filter(None, [told, f"{specs.not_shown} that SLURM does not show"]))
    return f"no node of the partition {partition!r} works: it has {told or 'none'}"
