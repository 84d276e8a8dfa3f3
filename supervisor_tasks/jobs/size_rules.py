"""What SLURM gives to a job, beside what was paid for. Pure.

Until it runs, a job is its owner's to change: he may ask for more CPUs, GPUs, memory and time than were paid for. More than
paid is put back, as long as SLURM lets that be done. Less than paid is the owner's own choice. What has no price is his own
too: JobName, Comment, Nice, StartTime, Requeue, Dependency, WorkDir and where output goes. Which account and QOS a job gets is
the site's choice, by a default or a plugin of its own: what the first look has shown is what it is to keep.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from supervisor_tasks.job import Definition
from supervisor_tasks.jobs.paid import Paid
from supervisor_tasks.slurm.size import Size

TIME_LIMIT = "TimeLimit"
RESERVATION = "Reservation"
ROUNDED_UP = ("CPUs", "memory", "nodes", "GPUs")  # SLURM may allocate more of these than it was asked for


@dataclass(frozen=True, slots=True)
class Excess:
    """More than was paid for: of what, how much SLURM gives, and the words of `scontrol update` that put it back; none of
    these where SLURM cannot do that.
    """

    of: str
    shown: str
    paid: str
    undo: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.of}: {self.shown} instead of {self.paid}"


@dataclass(frozen=True, slots=True)
class _Rule:
    """What of a job's size has a price, how much of it was paid for, and how it is put back."""

    of: str
    given: Callable[[Size], int | None]
    paid: Callable[[Paid], int]
    undo: Callable[[Definition], tuple[str, ...]]


def _cpus(wanted: Definition) -> tuple[str, ...]:
    tasks, nodes = f"NumTasks={wanted.ntasks}", f"NumNodes=1-{wanted.ntasks}"
    return tasks, nodes, f"NumCPUs={wanted.cpus}", f"MinCPUsNode={wanted.cpus_per_task}"


_RULES = (
    _Rule("CPUs", lambda size: size.cpus, lambda paid: paid.cpus, _cpus),
    _Rule("nodes", lambda size: size.nodes, lambda paid: paid.definition.ntasks, _cpus),
    _Rule(
        "memory",
        lambda size: size.memory_mb,
        lambda paid: paid.memory_mb,
        lambda wanted: (f"MinMemoryCPU={wanted.mem_per_cpu_mb}",),
    ),
    _Rule(
        "GPUs",
        lambda size: size.gpus,
        lambda paid: paid.definition.gpus,
        lambda wanted: ("TresPerNode=", "TresPerTask=", "TresPerSocket=", f"TresPerJob=gres:gpu:{wanted.gpus}"),
    ),
)


_GPUS_ALONE = tuple(rule for rule in _RULES if rule.of == "GPUs")


def excesses(size: Size, paid: Paid) -> list[Excess]:
    """What the job has that was not paid for."""
    found = list[Excess]()
    if size.limit_min is None or size.limit_min > paid.limit_min:
        shown = "no limit" if size.limit_min is None else str(size.limit_min)
        found.append(Excess(TIME_LIMIT, shown, str(paid.limit_min), (f"TimeLimit={paid.limit_min}",)))
    for rule in _RULES if paid.compares_sizes else _GPUS_ALONE:
        given, limit = rule.given(size), rule.paid(paid)
        if given is not None and given > limit:
            found.append(Excess(rule.of, str(given), str(limit), rule.undo(paid.definition)))
    if paid.partition and size.partition not in ("", paid.partition):
        found.append(Excess("Partition", size.partition, paid.partition, (f"Partition={paid.partition}",)))
    if paid.compares_sizes:
        found += _other_than_first("Account", size.account, paid.account)
        found += _other_than_first("QOS", size.qos, paid.qos)
    if size.reservation:
        found.append(Excess(RESERVATION, size.reservation, "none", ("ReservationName=",)))
    if size.array:
        found.append(Excess("ArrayString", "an array of jobs", "one job"))
    return found


def _other_than_first(of: str, shown: str, first: str) -> list[Excess]:
    return [Excess(of, shown or "none", first, (f"{of}={first}",))] if first and shown != first else []


def to_take_back(found: Sequence[Excess], *, waits: bool) -> list[Excess]:
    """What is put back, or has a job that runs cancelled: not that it runs in a reservation, which takes in only those whom the
    site has named, and may have drawn the job in by itself (a MAGNETIC one).
    """
    return [excess for excess in found if waits or excess.of != RESERVATION]


def may_be_rounded(found: Sequence[Excess]) -> bool:
    """Whether SLURM's own rounding may explain some of it: whole cores, whole nodes, memory of these."""
    return any(excess.of in ROUNDED_UP for excess in found)


def as_asked(size: Size, asked: Size) -> Size:
    """A running job's size with what was asked for in place of what SLURM has rounded up."""
    return replace(size, cpus=asked.cpus, memory_mb=asked.memory_mb, nodes=asked.nodes, gpus=asked.gpus)
