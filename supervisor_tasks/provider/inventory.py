"""Look at the nodes: store the partition's hardware for the registration. An alarm is
raised when these looks find no working node for a while, though SLURM works.
"""

from collections import Counter

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import TransientError
from supervisor_tasks.execution.exclusive_run import run_exclusive
from supervisor_tasks.ledger.conditions import Condition
from supervisor_tasks.ledger.registrations import NODES, Registrations
from supervisor_tasks.monitoring.slurm_health import slurm_is_healthy
from supervisor_tasks.provider.offer import Machine
from supervisor_tasks.provider.registration_rules import shows_nodes
from supervisor_tasks.slurm.hardware import PartitionHardware
from supervisor_tasks.slurm_lookup.cluster_check import require_expected_cluster

MISSED_AFTER_S = 300.0  # a restart of slurmctld or a boot of the nodes is shorter
MAX_ERROR_CHARS = 500  # characters of an error


def refresh_inventory(context: WorkerContext) -> None:
    """Store the partition's hardware. If the look fails, the stored hardware stays.
    Raises SlurmUnavailableError or SshUnavailableError, when SLURM or the login node does
    not answer; a retry helps. Raises AnotherSlurmError, when it is not the ledger's SLURM; a
    retry helps once the operator has decided.
    """
    run_exclusive(context.ledger, "refresh_inventory", lambda: _look(context))


def _look(context: WorkerContext) -> bool:
    require_expected_cluster(context)
    registrations = Registrations(context.ledger.facts)
    try:
        hardware = context.slurm.nodes.hardware()
    except TransientError as error:
        _missed(context, registrations, str(error))
        raise
    if hardware.nodes:
        registrations.end_missed()
        context.ledger.alarms.off(AlarmName.NO_USABLE_NODES)
    else:
        _missed(
            context,
            registrations,
            _no_node_works(context.slurm.nodes.partition, hardware),
        )
    machines = tuple(
        Machine(node.gpus, node.cpus, node.mem_mb) for node in hardware.nodes
    )
    if not shows_nodes(context.ledger.periodic_runs.age_s(NODES)):
        registrations.delete_hardware()
    is_new = registrations.store_hardware(machines)
    context.ledger.periodic_runs.record(NODES)
    if is_new:
        context.dispatch("register")
    return False


def _missed(context: WorkerContext, registrations: Registrations, why: str) -> None:
    """Store the reason, and raise the alarm if no node was found for long. While
    SLURM does not work, another alarm is on.
    """
    if not slurm_is_healthy(context.ledger):
        registrations.end_missed()  # the time without a node starts when SLURM works again
        return
    registrations.store_no_nodes_reason(why[:MAX_ERROR_CHARS])
    advice = "look at SLURM_PARTITION, and at `sinfo -R` on the login node; `supervisor provider show` has the last error"
    condition = Condition(context.ledger, AlarmName.NO_USABLE_NODES, MISSED_AFTER_S)
    condition.update(
        True,
        partition=context.slurm.nodes.partition,
        error=why[:MAX_ERROR_CHARS],
        advice=advice,
    )


def _no_node_works(partition: str, hardware: PartitionHardware) -> str:
    states = Counter(node.state for node in hardware.excluded_nodes)
    counts = [f"{number} {state}" for state, number in sorted(states.items())]
    if hardware.hidden_nodes:
        counts.append(f"{hardware.hidden_nodes} that SLURM does not show")
    found = ", ".join(counts) or "none"
    return f"no node of the partition {partition!r} works: it has {found}"
