"""Look at the nodes: what hardware the partition has, written down for who registers it."""

from supervisor_tasks.journey.drain import drain
from supervisor_tasks.journey.known_slurm import require_known
from supervisor_tasks.ledger.provider import NODES, Registrations
from supervisor_tasks.offer import Machine
from supervisor_tasks.registration import shows_nodes
from supervisor_tasks.site import Site


def look_at_nodes(site: Site) -> None:
    """Write the partition's hardware down; what is known stays. Raises AnotherSlurmError, SlurmUnavailableError or
    SshUnavailableError.
    """
    drain(site.ledger, "look_at_nodes", lambda: _look(site))


def _look(site: Site) -> bool:
    require_known(site)
    specs = site.slurm.nodes.specs()
    machines = tuple(Machine(node.gpus, node.cpus, node.mem_mb) for node in specs.nodes)
    book = Registrations(site.ledger.sweeps)
    if not shows_nodes(site.ledger.ticks.age_s(NODES)):
        book.forget_hardware()
    new = book.learn_hardware(machines)
    site.ledger.ticks.leave(NODES)
    if new:
        site.sweep.wake("register")
    return False
