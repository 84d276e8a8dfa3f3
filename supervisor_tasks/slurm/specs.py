"""What hardware the partition has: its nodes, and of each the CPUs, GPUs and memory. Pure.

Three questions in one command, so that they are of one moment: `scontrol show partition` (is there one of that name?),
`scontrol show nodes` (the hardware), `sinfo` (the partition's nodes, once more: free text in a node's line, such as the reason
why it is drained, may look like another node). What they disagree about is believed of none. Each answer ends with a mark that
nobody can guess. docs/architecture.md says which states of a node count; tests/data/slurm has samples, by version.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from supervisor_tasks.slurm.output import Answer, SlurmUnavailableError

_ASK = (
    'IFS= read -r m; echo "$m"; "$1" --all show partition "$3" --oneliner; echo "$m $?"; '
    '"$1" --all show nodes --oneliner; echo "$m $?"; '
    '"$2" --all --noheader --Node "--partition=$3" "--format=%N|%T"; echo "$m $?"'
)
_SHOWN = 200  # characters of what was found, in an error
_MOST = 2**53  # of anything: more is no hardware
_MIB = {"K": 1 / 1024, "M": 1, "": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
# Admins and health checks write what they like there, and SLURM prints it behind all that is read here.
_FREE_TEXT = re.compile(r"\s(?:Reason|Comment|Extra)=")

# The words of State= that say that the node cannot be sold: scontrol(1), node states, 22.05 to 25.05.
BROKEN = frozenset(
    ("DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "INVAL", "INVALID_REG", "UNKNOWN")
)
# Saving power: the node is silent, or just starts, and SLURM wakes it for a job.
_ASLEEP = frozenset(("POWER", "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP"))
_SYMBOLS = "*~#!%$@^-"  # older versions and sinfo put them behind a state; `*` is NOT_RESPONDING, `~ # ! %` are of power saving


@dataclass(frozen=True, slots=True)
class Node:
    """A node and its hardware. Two are equal when name and hardware are: its state changes all day."""

    name: str
    cpus: int
    gpus: int
    mem_mb: int
    state: str = field(default="IDLE", compare=False)

    @property
    def works(self) -> bool:
        """Whether jobs can run there now or later, as far as SLURM knows."""
        words = {word.rstrip(_SYMBOLS) for word in self.state.split("+")}
        silent = "NOT_RESPONDING" in words or "*" in self.state
        asleep = not words.isdisjoint(_ASLEEP) or not set("~#!%").isdisjoint(self.state)
        return words.isdisjoint(BROKEN) and (asleep or not silent)


@dataclass(frozen=True, slots=True)
class Specs:
    """The partition's hardware: the nodes that count, by name (node2 before node10), and those that were left out. Two are
    equal when the same nodes with the same hardware count.
    """

    nodes: tuple[Node, ...]
    left_out: tuple[Node, ...] = field(default=(), compare=False)


def ask_specs(scontrol: str, sinfo: str, partition: str) -> list[str]:
    """Ask for everything in one command. It reads a mark and a line feed from standard input."""
    return ["/bin/sh", "-c", _ASK, "specs", scontrol, sinfo, partition]


def read_specs(answer: Answer, mark: str, partition: str, *, unresponsive: bool = False) -> Specs:
    """The partition's specs; with `unresponsive`, nodes that do not work count too. Raises SlurmUnavailableError, which says
    what was found and what was expected, for anything that is not whole or contradicts itself: nobody shall register what is
    not there.
    """
    shown_partition, shown_nodes, shown_members = _parts(answer, mark)
    _require_partition(shown_partition, partition)
    members = _members(shown_members)
    nodes = sorted(_nodes(shown_nodes, partition), key=lambda node: _natural(node.name))
    _require_same({node.name for node in nodes}, members, partition)
    counted = tuple(node for node in nodes if unresponsive or node.works)
    return Specs(counted, tuple(node for node in nodes if not (unresponsive or node.works)))


def _parts(answer: Answer, mark: str) -> list[str]:
    """What each question was answered with. Of a partition that does not exist SLURM says so with a failure."""
    _, *pieces = answer.stdout.split(mark)
    commands = ("scontrol show partition", "scontrol show nodes", "sinfo")
    said = re.sub(r"[^\x20-\x7e]+", " ", answer.stderr).strip()[:_SHOWN]
    if len(pieces) != len(commands) + 1:
        raise SlurmUnavailableError(
            f"the specs are not whole: found {len(pieces)} marks, expected {len(commands) + 1} (status {answer.status}): {said}"
        )
    printed = []
    for number, command in enumerate(commands):
        status = pieces[number + 1].partition("\n")[0].strip()
        if status != "0":
            raise SlurmUnavailableError(f"{command} ended with status {status!r:.40}, expected 0: {said}")
        printed.append(pieces[number].partition("\n")[2])
    return printed


def _require_partition(shown: str, partition: str) -> None:
    found = _fields(shown).get("PartitionName", "")
    if found != partition:
        raise SlurmUnavailableError(f"scontrol shows the partition {found!r:.80}, expected {partition!r}")


def _members(shown: str) -> set[str]:
    """The names of the partition's nodes by sinfo, which lists each on a line of its own."""
    names = set()
    for line in shown.splitlines():
        name, bar, state = line.strip().partition("|")
        if not (name and bar and state):
            raise SlurmUnavailableError(f"sinfo printed {line[:_SHOWN]!r}, expected a node's name and its state")
        names.add(name)
    return names


def _require_same(shown: set[str], listed: set[str], partition: str) -> None:
    if shown != listed:
        raise SlurmUnavailableError(
            f"scontrol and sinfo disagree about the nodes of {partition!r}: only scontrol has {_few(shown - listed)}, only"
            f" sinfo has {_few(listed - shown)}; expected the same ones"
        )


def _few(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))[:_SHOWN] or "none"


def _nodes(shown: str, partition: str) -> list[Node]:
    """The partition's nodes. SLURM's own ends of lines are before each `NodeName=`; others belong to free text."""
    nodes = dict[str, Node]()
    for line in re.split(r"\n(?=NodeName=)", shown):
        fields = _fields(line)
        if partition not in fields.get("Partitions", "").split(","):
            continue
        node = _node(fields)
        if node.name in nodes:
            raise SlurmUnavailableError(f"scontrol shows the node {node.name[:_SHOWN]!r} twice, expected once")
        nodes[node.name] = node
    return list(nodes.values())


def _fields(line: str) -> dict[str, str]:
    """The `Key=value` words of a line; the first of a key counts."""
    fields = dict[str, str]()
    for word in _FREE_TEXT.split(line, maxsplit=1)[0].split():
        key, _, value = word.partition("=")
        fields.setdefault(key, value)
    return fields


def _node(fields: Mapping[str, str]) -> Node:
    name, state = fields.get("NodeName", ""), fields.get("State", "")
    tres = dict(_pairs(fields.get("CfgTRES", "")))
    try:
        if not (name and state):
            raise ValueError("NodeName and State")
        return Node(
            name=name,
            cpus=_whole(tres.get("cpu") or fields.get("CPUTot", "")),
            gpus=_gpus(tres, fields.get("Gres", "")),
            mem_mb=_memory_mb(tres.get("mem", ""), fields.get("RealMemory", "")),
            state=state,
        )
    except ValueError as error:
        shown = " ".join(
            f"{key}={fields.get(key, '')}" for key in ("NodeName", "State", "CfgTRES", "Gres", "RealMemory")
        )
        raise SlurmUnavailableError(f"scontrol shows the node {shown[:_SHOWN]!r}, expected {error}") from error


def _pairs(tres: str) -> list[tuple[str, str]]:
    return [(key, value) for key, _, value in (word.partition("=") for word in tres.split(","))]


def _gpus(tres: Mapping[str, str], gres: str) -> int:
    """CfgTRES has all GPUs as gres/gpu where AccountingStorageTRES names them, and those of a type where it names that; else
    only Gres= has them.
    """
    if "gres/gpu" in tres:
        return _whole(tres["gres/gpu"])
    typed = sum(_whole(value) for key, value in tres.items() if key.startswith("gres/gpu:"))
    return max(typed, sum(_gres_gpus(gres)))


def _gres_gpus(gres: str) -> list[int]:
    """The counts in `gpu:4(S:0-1)`, `gpu:a100:2,gpu:v100:2,mps:200`, `gpu`; no number is one."""
    kinds = [kind.split(":") for kind in re.sub(r"\([^()]*\)", "", gres).split(",")]
    return [_whole(words[-1]) if words[-1].isdecimal() else 1 for words in kinds if words[0] == "gpu"]


def _memory_mb(shown: str, real_mb: str) -> int:
    """MB of `16000M`, `62.50G`, `1T`. A fraction is rounded, and RealMemory, where it rounds to the same, is what was meant."""
    if not shown:
        return _whole(real_mb)
    found = re.fullmatch(r"([0-9]{1,15})(?:\.([0-9]{1,6}))?([KMGTP]?)", shown)
    if found is None:
        raise ValueError("mem as a number with K, M, G, T or P")
    number, digits, unit = float(f"{found[1]}.{found[2] or 0}"), len(found[2] or ""), found[3]
    if digits and real_mb.isdecimal() and round(_whole(real_mb) / _MIB[unit], digits) == number:
        return _whole(real_mb)
    return _whole(str(int(number * _MIB[unit])))


def _whole(shown: str) -> int:
    if not re.fullmatch("[0-9]{1,16}", shown) or int(shown) > _MOST:
        raise ValueError(f"a number of at most 16 digits instead of {shown[:40]!r}")
    return int(shown)


def _natural(name: str) -> tuple[object, ...]:
    """node2 before node10. Numbers compare by length and digits: they may be longer than Python reads."""
    words = re.split("([0-9]+)", name)
    numbers = [word.lstrip("0") for word in words[1::2]]
    return tuple((text, len(number), number) for text, number in zip(words[::2], [*numbers, ""], strict=True)), name
