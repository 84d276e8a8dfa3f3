"""What SLURM gives to a job, compared with what was paid for. Pure.

The owner can change a job until it runs: he can ask for more CPUs, GPUs, memory and
time than were paid for. The supervisor puts back what is more than paid, as long as
SLURM allows that, and else cancels the job (the rules for `MoreThanPaid` in
jobs/state_machine.py). Less than paid is the owner's choice. So is all that has no
price: JobName, Comment, Nice, StartTime, Requeue, Dependency, WorkDir and the paths of
the output. The site chooses the account and the QOS of a job, by a default or its own
plugin. The job must keep those (jobs/site_choices.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from supervisor_tasks.jobs.model import Definition
from supervisor_tasks.jobs.paid_size import Paid
from supervisor_tasks.slurm.size import Size

TIME_LIMIT = "TimeLimit"
RESERVATION = "Reservation"
# a site has few sizes of jobs, and a sweep compares thousands of jobs
KEPT_COMPARISONS = 1024
# SLURM may allocate more of these than it was asked for. It gives a job more nodes than
# tasks only if the owner asks for them: by NumNodes, or by ReqNodeList or a count of
# Features (`fast*2`), which SLURM does not show as a number of nodes.
ROUNDED_UP = ("CPUs", "memory", "GPUs")


@dataclass(frozen=True, slots=True)
class Excess:
    """More than was paid for: of what, how much SLURM gives, and how much was paid for.
    `undo` has the words of `scontrol update` that put it back; it is empty if SLURM
    cannot do that.
    """

    of: str
    shown: str
    paid: str
    undo: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.of}: {self.shown} instead of {self.paid}"


@dataclass(frozen=True, slots=True)
class _Rule:
    """A part of a job's size that has a price: what SLURM gives, what was paid for, and
    how to put it back.
    """

    of: str
    given: Callable[[Size], int | None]
    paid: Callable[[Paid], int]
    undo: Callable[[Definition], tuple[str, ...]]


def _cpus(wanted: Definition) -> tuple[str, ...]:
    tasks, nodes = f"NumTasks={wanted.ntasks}", f"NumNodes=1-{wanted.ntasks}"
    per_task, per_node = (
        f"CPUsPerTask={wanted.cpus_per_task}",
        f"MinCPUsNode={wanted.cpus_per_task}",
    )
    return tasks, nodes, per_task, f"NumCPUs={wanted.cpus}", per_node


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
        lambda wanted: (
            "TresPerNode=",
            "TresPerTask=",
            "TresPerSocket=",
            f"TresPerJob=gres:gpu:{wanted.gpus}",
        ),
    ),
)


_GPUS_ALONE = tuple(rule for rule in _RULES if rule.of == "GPUs")


@lru_cache(maxsize=KEPT_COMPARISONS)
def excesses(size: Size, paid: Paid) -> tuple[Excess, ...]:
    """What the job has that was not paid for."""
    found = _more_time(size, paid) + _amounts(size, paid)
    if size.partition:
        found += _other_than_given("Partition", size.partition, paid.partition)
    if paid.compares_sizes:
        found += _whole_memory(size, paid)
        found += _other_than_given("Account", size.account, paid.account)
        found += _other_than_given("QOS", size.qos, paid.qos)
    if size.reservation:
        found.append(
            Excess(RESERVATION, size.reservation, "none", ("ReservationName=",))
        )
    if size.array:
        found.append(Excess("ArrayString", "an array of jobs", "one job"))
    return tuple(found)


def _more_time(size: Size, paid: Paid) -> list[Excess]:
    limit = str(paid.limit_min)
    undo = (f"TimeLimit={limit}",)
    if size.limit_min is None:
        return [Excess(TIME_LIMIT, "no limit", limit, undo)]
    if size.limit_min > paid.limit_min:
        return [Excess(TIME_LIMIT, str(size.limit_min), limit, undo)]
    return []


def _amounts(size: Size, paid: Paid) -> list[Excess]:
    rules: Sequence[_Rule] = _GPUS_ALONE
    if paid.compares_sizes:
        rules = _RULES
    found = list[Excess]()
    for rule in rules:
        given, limit = rule.given(size), rule.paid(paid)
        if given is not None and given > limit:
            found.append(
                Excess(rule.of, str(given), str(limit), rule.undo(paid.definition))
            )
    return found


def _whole_memory(size: Size, paid: Paid) -> list[Excess]:
    if not size.whole_memory:
        return []
    undo = f"MinMemoryCPU={paid.definition.mem_per_cpu_mb}"
    return [Excess("MinMemoryCPU", "all of a node", f"{paid.memory_mb} MB", (undo,))]


def _other_than_given(of: str, shown: str, given: str) -> list[Excess]:
    if given in ("", shown):
        return []
    return [Excess(of, shown or "none", given, (f"{of}={given}",))]


def excesses_to_undo(found: Sequence[Excess], *, waits: bool) -> list[Excess]:
    """The excesses to put back, or for which a running job is cancelled. A running job
    is not cancelled for its reservation: a reservation takes only users that the site
    has named, and a MAGNETIC one takes their jobs by itself.
    """
    if waits:
        return list(found)
    return excesses_except(found, RESERVATION)


def excesses_except(found: Sequence[Excess], *left_out: str) -> list[Excess]:
    """The excesses of other things than these."""
    return [excess for excess in found if excess.of not in left_out]


def may_be_rounded(found: Sequence[Excess]) -> bool:
    """Whether SLURM's own rounding may explain some excess: whole cores, whole nodes,
    their memory.
    """
    return any(excess.of in ROUNDED_UP for excess in found)


def as_asked(size: Size, asked: Size, paid: Paid) -> Size:
    """A running job's size, with what the job asked for in place of what SLURM rounded
    up. If the owner asks for fewer threads per core than the site gave, the job has the
    other threads too. These CPUs stay: SLURM did not choose to add them. So do those
    that the tasks and nodes ask for.
    """
    unrounded = replace(size, memory_mb=asked.memory_mb, gpus=asked.gpus)
    keeps_cores = paid.threads not in ("", size.threads)
    if keeps_cores or size.cpus is None:
        return unrounded
    asked_cpus = max(asked.cpus or 0, size.wanted_cpus)
    return replace(unrounded, cpus=min(size.cpus, asked_cpus))
