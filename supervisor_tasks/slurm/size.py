"""A job's size in SLURM: squeue shows its request while the job waits, and its
allocation once it runs. Accounting shows both of a job that has ended. Pure.

Samples: tests/data/slurm/squeue-sizes-slurm-22.05.8.txt,
tests/data/slurm/sacct-sizes-slurm-22.05.8.txt.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_COUNT = re.compile(
    r"(?:gres[:/])?gpu(?::[^:=,()]+)??(?:[:=](?P<number>\d+))?(?:\(.*\))?"
)
# a part of a GPU; SLURM shows how many parts, and not of how many GPUs
_GPU_SHARE = re.compile(r"(?:gres[:/])?(?:shard|mps)(?:[:=(].*)?")
_TRES = re.compile(r"(?P<name>[\w/:.-]+)=(?P<amount>[\d.]+)(?P<unit>[KMGTP]?)")
_MB = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_NONE = ("", "N/A", "(null)", "NULL", "None")
ANY_THREADS = "*"  # squeue's word for a job that asks for no number


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A job's size. `limit_min` is None for a job without its own limit. CPUs, memory
    and nodes are None where SLURM does not show them. `gpus` is the highest number that
    its options ask for. `array`: it is part of a job array. `qos`, `account` and
    `reservation` are empty where there is none. `threads` is the number of threads that
    it asks for on each core, `*` for any, as squeue shows it; no other job gets the
    core's other threads. `whole_memory`: it asks for all memory of its nodes, which
    `memory_mb` shows only once it runs. `memory_mb` is the most that its options may ask
    for, `counted_mb` what SLURM counts. `wanted_cpus` are the CPUs that its tasks and
    nodes ask for (CPUsPerTask, MinCPUsNode): SLURM gives them to a running job, and does
    not count all of them as requested. `accounted`: accounting shows it, and it is what
    the job asked for, with its owner's changes.
    """

    limit_min: int | None
    cpus: int | None
    memory_mb: int | None
    nodes: int | None
    gpus: int
    partition: str
    qos: str = ""
    account: str = ""
    reservation: str = ""
    array: bool = False
    threads: str = ""
    whole_memory: bool = False
    counted_mb: int | None = field(default=None, compare=False)
    wanted_cpus: int = 0
    accounted: bool = False


@dataclass(frozen=True, slots=True)
class SiteChoice:
    """What the site gives a job that asks for no account, no QOS and any number of
    threads of a core. Account and QOS are empty where the site gives none.
    """

    account: str
    qos: str
    threads: str = ANY_THREADS


def size_of(
    *,
    limit_min: int | None,
    partition: str,
    qos: str,
    account: str,
    reservation: str,
    array_task: str,
    tasks: str,
    tres: str,
    gpus_per: Sequence[str] = (),
    per_cpu_mb: float = 0,
    per_node_mb: float = 0,
    cpus_per_task: int = 0,
    cpus_per_node: int = 0,
) -> Size:
    """Make the size from squeue's fields; `gpus_per` are the TRES for the job, a node,
    a task and a socket. `per_cpu_mb` and `per_node_mb` are the memory that the job asks
    for, `cpus_per_task` and `cpus_per_node` the CPUs; 0 where it asks for none.
    """
    amounts = tres_amounts(tres)
    task_count = 1
    if tasks.isdecimal():
        task_count = int(tasks)
    # a waiting job shows the fewest nodes that it takes; it may get one for each task
    most_nodes = max(_nodes(amounts), task_count)
    return Size(
        limit_min=limit_min,
        cpus=_whole(amounts.get("cpu")),
        memory_mb=_most_memory_mb(amounts, per_cpu_mb, per_node_mb, most_nodes),
        nodes=_whole(amounts.get("node")),
        gpus=_most_gpus(amounts, gpus_per, task_count, most_nodes),
        partition=partition,
        qos=_word(qos),
        account=_word(account),
        reservation=_word(reservation),
        array=_word(array_task) != "",
        counted_mb=_whole(amounts.get("mem")),
        wanted_cpus=max(cpus_per_task * task_count, cpus_per_node * _nodes(amounts)),
    )


def request_of(job: Mapping[str, Any]) -> Size:
    """Make the size of a request from the job's entry in `squeue --json`, without limit
    and partition. What it asks for on each node counts for each node that it has.
    Raises KeyError, TypeError or ValueError if the entry is another one; a retry does
    not help.
    """
    tres = job["tres_req_str"]
    if not isinstance(tres, str):
        raise TypeError(f"found {tres!r} as the requested TRES; expected a text")
    amounts = tres_amounts(tres)
    allocated = tres_amounts(str(job.get("tres_alloc_str") or ""))
    nodes = max(_nodes(amounts), _nodes(allocated))
    gpus_per = [
        str(job.get(f"tres_per_{what}") or "")
        for what in ("job", "node", "task", "socket")
    ]
    return Size(
        limit_min=None,
        cpus=_whole(amounts.get("cpu")),
        memory_mb=_most_memory_mb(
            amounts,
            _number(job.get("memory_per_cpu")) or 0,
            _number(job.get("memory_per_node")) or 0,
            nodes,
        ),
        nodes=_whole(amounts.get("node")),
        gpus=_most_gpus(amounts, gpus_per, _number(job.get("tasks")) or 1, nodes),
        partition="",
    )


def accounted_size(
    *, requested: str, allocated: str, partition: str, qos: str, account: str
) -> Size | None:
    """Make the size of a job that has ended from sacct's fields (ReqTRES, AllocTRES).
    None where accounting has no size of it. Its time limit is 0: its time is billed as
    it is.

    ReqTRES does not show that an owner asked for all memory of a node, or changed the
    memory before the CPUs. So the memory is the higher one of what was requested and
    what was allocated for as many CPUs as were requested: SLURM allocates whole cores,
    or whole nodes, with their memory. The nodes are those that were allocated: ReqTRES
    does not show what an owner asked for by ReqNodeList or Features.
    """
    wanted, given = tres_amounts(requested), tres_amounts(allocated)
    if not wanted:
        return None
    per_cpu_mb = given.get("mem", 0) / (given.get("cpu", 0) or 1)
    return Size(
        limit_min=0,
        cpus=_whole(wanted.get("cpu")),
        memory_mb=_most_memory_mb(wanted, per_cpu_mb, 0, _nodes(wanted)),
        nodes=_whole(given.get("node", wanted.get("node"))),
        gpus=_most_gpus(wanted, (), 1, 1),
        partition=partition,
        qos=_word(qos),
        account=_word(account),
        accounted=True,
    )


def _most_gpus(
    amounts: Mapping[str, float], gpus_per: Sequence[str], tasks: int, nodes: int
) -> int:
    """Return the highest number of GPUs that one of these asks for: the whole TRES, or
    the TRES for the job, each node, each task and each socket.
    """
    most = int(amounts.get("gres/gpu", 0))
    if any(map(_GPU_SHARE.fullmatch, amounts)):
        most = max(most, 1)
    for text, times in zip(gpus_per, (1, nodes, tasks, nodes), strict=False):
        most = max(most, gpu_count(text) * times)
    return most


def _most_memory_mb(
    amounts: Mapping[str, float], per_cpu_mb: float, per_node_mb: float, nodes: int
) -> int | None:
    """Return the most memory that one of these asks for: the whole TRES, or that for
    each CPU and each node. slurmctld does not compute the TRES again when a job's CPUs
    change.
    """
    by_cpus_mb = per_cpu_mb * amounts.get("cpu", 0)
    return int(max(amounts.get("mem", 0), by_cpus_mb, per_node_mb * nodes)) or None


def _nodes(amounts: Mapping[str, float]) -> int:
    """Return the number of nodes; a job whose nodes are not shown has one."""
    return int(amounts.get("node", 1)) or 1


def memory_per_cpu_limit(config: str, partition: str) -> int | None:
    """Return MaxMemPerCPU in MB, from `scontrol show config` and `scontrol show
    partition`. The partition's value overrides the config's.
    """
    for shown in (partition, config):
        if found := re.search(r"\bMaxMemPerCPU\s*=\s*(\d+)", shown):
            return int(found[1]) or None
    return None


def tres_amounts(shown: str) -> dict[str, float]:
    """Return the amounts of `cpu=3,mem=300M,node=1,gres/gpu=1`; memory in MB."""
    amounts = dict[str, float]()
    for part in shown.split(","):
        found = _TRES.fullmatch(part)
        if found is None:
            continue
        amount = float(found["amount"])
        if found["name"] == "mem":
            amount *= _MB[found["unit"]]
        amounts[found["name"]] = amount
    return amounts


def gpu_count(shown: str) -> int:
    """Return the GPUs of `gres:gpu:1`, `gpu:2`, `gres/gpu:a100:2`, `gres/gpu=2`, or of
    several with commas between. Shares of GPUs (`gres:shard:8`, `mps:100`) count as one
    GPU: they have no price of their own.
    """
    gpus, parts = 0, shown.split(",")
    for part in parts:
        if found := _COUNT.fullmatch(part):
            gpus += int(found["number"] or 1)
    if any(map(_GPU_SHARE.fullmatch, parts)):
        return max(gpus, 1)
    return gpus


def with_wanted_cpus(size: Size) -> Size:
    """The size of a job that waits, with the CPUs that it gets when it begins, if SLURM
    may give it more than `cpus` (NumCPUs with a higher maximum).
    """
    return replace(size, cpus=max(size.cpus or 0, size.wanted_cpus) or None)


def is_whole_memory(shown: str) -> bool:
    """Whether a job asks for all memory of its nodes, which squeue shows as 0."""
    return shown.rstrip("BKMGTP") == "0"


def _number(shown: object) -> int | None:
    """Return a positive number of SLURM's JSON, which later versions wrap in an object;
    None for anything else.
    """
    if isinstance(shown, Mapping):
        return positive_number(shown.get("number"))
    return positive_number(shown)


def positive_number(shown: object) -> int | None:
    """Return a positive number; None for anything else."""
    if isinstance(shown, int) and shown > 0:
        return shown
    return None


def _whole(amount: float | None) -> int | None:
    if amount is None:
        return None
    return int(amount)


def _word(shown: str) -> str:
    if shown in _NONE:
        return ""
    return shown
