"""How a site's SLURM keeps jobs within what was paid for, read from what `scontrol show
config` and `scontrol show partition` print. Pure.

Samples: tests/data/slurm/scontrol-show-config*.txt, scontrol-show-partition-*.txt.
"""

import re
from dataclasses import dataclass

from supervisor_tasks.slurm.parsers import CommandAnswer, config_value

# of cgroup.conf: a job gets no other cores, memory and devices than its own
CONSTRAINED = (
    "ConstrainCores",
    "ConstrainRAMSpace",
    "ConstrainSwapSpace",
    "ConstrainDevices",
)
_NO_EXTRA_TIME = ("", "0", "NONE")
# of AccountingStorageEnforce: these alone require no association of a user
_WITHOUT_ASSOCIATIONS = {"none", "(null)", "nojobs", "nosteps"}


@dataclass(frozen=True, slots=True)
class Confinement:
    """How slurmctld's configuration has nodes confine jobs. `unconstrained` names what
    cgroup.conf leaves open; empty if slurmctld does not show its cgroup.conf. Without
    `allocates_memory`, SLURM bounds no job's memory.
    """

    proctrack: str
    task_plugins: tuple[str, ...]
    unconstrained: tuple[str, ...]
    allocates_memory: bool


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What slurmctld's configuration gives jobs beyond what they ask for.
    `whole_nodes` says why a job gets whole nodes, and is empty where it does not.
    `over_time_limit` is how long a job may run after its time limit: minutes,
    UNLIMITED, or empty.
    """

    whole_nodes: str
    over_time_limit: str
    may_expand: bool
    slurm_user: str


def confinement(config: CommandAnswer) -> Confinement:
    """Read how nodes confine jobs, from `scontrol show config`. Raises
    SlurmUnavailableError when slurmctld does not answer; a retry helps.

    slurm.conf(5): "task/" before the name of a TaskPlugin is optional. select/linear
    allocates memory only with CR_Memory, the others with a name such as CR_Core_Memory.
    """
    task_plugins = [
        f"task/{plugin.removeprefix('task/')}"
        for plugin in config_value(config, "TaskPlugin").split(",")
    ]
    unconstrained = re.findall(
        rf"^({'|'.join(CONSTRAINED)})\s*=\s*no\b", config.stdout, re.MULTILINE
    )
    parameters = config_value(config, "SelectTypeParameters")
    return Confinement(
        config_value(config, "ProctrackType"),
        tuple(task_plugins),
        tuple(unconstrained),
        allocates_memory="MEMORY" in parameters.upper(),
    )


def job_limits(config: CommandAnswer, partition: CommandAnswer) -> JobLimits:
    """Read what jobs of the partition get beyond what they ask for. Raises
    SlurmUnavailableError when slurmctld does not answer; a retry helps.

    slurm.conf(5): the partition's OverTimeLimit overrides the config's.
    """
    whole_nodes = ""
    if config_value(config, "SelectType") == "select/linear":
        whole_nodes = "SelectType=select/linear"
    elif _of_partition(partition, "OverSubscribe") == "EXCLUSIVE":
        whole_nodes = "OverSubscribe=EXCLUSIVE of the partition"
    over_time_limit = _of_partition(partition, "OverTimeLimit")
    if over_time_limit in ("", "NONE"):
        over_time_limit = config_value(config, "OverTimeLimit")
    if over_time_limit in _NO_EXTRA_TIME:
        over_time_limit = ""
    parameters = config_value(config, "SchedulerParameters").split(",")
    return JobLimits(
        whole_nodes,
        over_time_limit,
        "permit_job_expansion" in parameters,
        config_value(config, "SlurmUser"),
    )


def requires_associations(config: CommandAnswer) -> bool:
    """Whether slurmctld takes jobs only of users that accounting knows, from `scontrol
    show config`. Raises SlurmUnavailableError when slurmctld does not answer; a retry
    helps.
    """
    enforced = config_value(config, "AccountingStorageEnforce").split(",")
    return bool(set(enforced) - _WITHOUT_ASSOCIATIONS)


def _of_partition(partition: CommandAnswer, name: str) -> str:
    """Return a word of the partition; empty when it is not shown."""
    found = re.search(rf"\b{name}=(\S+)", partition.stdout)
    if found is None:
        return ""
    return found[1]
