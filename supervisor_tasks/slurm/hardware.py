"""The partition's hardware: its nodes, and each node's CPUs, GPUs and memory. Pure.

One command asks three questions, so that the answers are of one moment: `scontrol show
partition` (does the partition exist?), `scontrol show nodes` (the hardware), `sinfo`
(the partition's nodes again). The second list is needed because free text in a node's
line, such as the reason why it is drained, may look like another node. If the two lists
disagree, neither is used. Each answer ends with a delimiter that cannot be guessed.
docs/explanation/registration.md lists the node states that count; tests/data/slurm has
samples, by version.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from supervisor_tasks.slurm.parsers import CommandAnswer, SlurmUnavailableError

# sinfo lists all partitions: `--all`, which shows hidden ones too, and `--partition`
# are conflicting options to it.
_ASK = (
    'ask() { "$@"; r=$?; echo "$m $r"; [ "$r" = 0 ] || exit 0; }; IFS= read -r m; echo "$m"; '
    'ask "$1" --all show partition "$3" --oneliner; ask "$1" --all show nodes --oneliner; '
    'ask "$2" --all --noheader --Node "--format=%R|%N"'
)
_COMMANDS = ("scontrol show partition", "scontrol show nodes", "sinfo")
_SHOWN = 200  # characters of the found text, in an error
_MOST = 2**53  # of any number: no hardware has more
_NUMBER = re.compile("[0-9]{1,16}")
_TIME = re.compile("(?:([0-9]{1,5})-)?([0-9]{1,5}):([0-9]{2}):[0-9]{2}")
_MIB = {"K": 1 / 1024, "M": 1, "": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
# Admins and health checks write free text in these fields. SLURM prints them after all
# fields that this module reads.
_FREE_TEXT = re.compile(r"\s(?:Reason|Comment|Extra)=")

# State= is a base state and flags: IDLE+DRAIN. Up to 21.08, and in sinfo, some flags
# replace the base state. A node is left out if no version from 22.05 to 25.11 has its
# base state. Flags that are not listed here, such as DYNAMIC_NORM, change nothing.
_UP = frozenset(
    (
        "IDLE",
        "ALLOCATED",
        "MIXED",
        "COMPLETING",
        "RESERVED",
        "MAINT",
        "PLANNED",
        "BLOCKED",
        "PERFCTRS",
    )
)
_BROKEN = frozenset(
    ("DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "INVAL", "INVALID_REG")
)
# Power saving: the node is silent, or just starts. SLURM starts it for a job.
_ASLEEP = frozenset(
    ("POWER", "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP")
)
# old versions and sinfo print them after a state; * is NOT_RESPONDING
_SYMBOLS = "*~#!%$@^-"
_SYMBOLS_OF_SLEEP = frozenset("~#!%")  # power saving


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node and its hardware. Two nodes are equal when name and hardware are equal;
    the state changes all day.
    """

    name: str
    cpus: int
    gpus: int
    mem_mb: int
    state: str = field(default="IDLE", compare=False)

    @property
    def works(self) -> bool:
        """Whether jobs can run there now or later, as far as SLURM knows."""
        words = self._words
        if words[0] not in _UP | _ASLEEP:
            return False
        if not _BROKEN.isdisjoint(words):
            return False
        has_symbol_of_sleep = not _SYMBOLS_OF_SLEEP.isdisjoint(self.state)
        if has_symbol_of_sleep or not _ASLEEP.isdisjoint(words):
            return True
        return not self._silent

    @property
    def is_unreported(self) -> bool:
        """Whether slurmctld has just started and has no report of the node yet. Soon
        the node is IDLE or does not respond.
        """
        return "UNKNOWN" in self._words and not self._silent

    @property
    def _words(self) -> list[str]:
        return [word.rstrip(_SYMBOLS) for word in self.state.split("+")]

    @property
    def _silent(self) -> bool:
        return "NOT_RESPONDING" in self._words or "*" in self.state


@dataclass(frozen=True, slots=True)
class PartitionHardware:
    """The partition's hardware: the nodes that count, by name (node2 before node10),
    the excluded nodes, and the number of nodes that SLURM does not show. SLURM
    does not show FUTURE nodes, or cloud nodes that are powered down at a site without
    PrivateData=cloud. Two are equal when the same nodes with the same hardware count.
    """

    nodes: tuple[SlurmNode, ...]
    excluded_nodes: tuple[SlurmNode, ...] = field(default=(), compare=False)
    hidden_nodes: int = field(default=0, compare=False)
    # the partition's longest run time for a job
    max_time_min: int | None = field(default=None, compare=False)

    @property
    def in_order(self) -> tuple[SlurmNode, ...]:
        """All nodes that SLURM shows, by name, also the nodes that do not work."""
        return tuple(_by_name((*self.nodes, *self.excluded_nodes)))


def ask_hardware(scontrol: str, sinfo: str, partition: str) -> list[str]:
    """Build the one command that asks for everything. It reads a delimiter and a line
    feed from standard input.
    """
    return ["/bin/sh", "-c", _ASK, "specs", scontrol, sinfo, partition]


def read_hardware(
    answer: CommandAnswer, delimiter: str, partition: str, *, unresponsive: bool = False
) -> PartitionHardware:
    """Read the partition's hardware; with `unresponsive`, nodes that do not work count
    too. Raises SlurmUnavailableError, with what was found and what was expected, for an
    answer that is incomplete or contradicts itself: the supervisor must not register
    hardware that does not exist. A retry helps.
    """
    shown_partition, shown_nodes, shown_members = _parts(answer, delimiter)
    total = _total_nodes(shown_partition, partition)
    nodes = _nodes(shown_nodes, partition)
    shown, listed = {node.name for node in nodes}, _members(shown_members, partition)
    if shown != listed:
        raise SlurmUnavailableError(
            f"scontrol and sinfo disagree about the nodes of {partition!r}: only scontrol has {_few(shown - listed)}, only"
            f" sinfo has {_few(listed - shown)}; expected the same ones"
        )
    return hardware_of(
        nodes, total, _max_time_min(shown_partition), unresponsive=unresponsive
    )


def hardware_of(
    shown: Iterable[SlurmNode],
    total: int,
    max_time_min: int | None,
    *,
    unresponsive: bool,
) -> PartitionHardware:
    """Return the hardware of these nodes of a partition that has `total` nodes, shown
    or not. Raises SlurmUnavailableError while slurmctld has no report of a node yet; a
    retry helps.
    """
    nodes = _by_name(shown)
    counted, excluded_nodes = list[SlurmNode](), list[SlurmNode]()
    unreported = list[str]()
    for node in nodes:
        if unresponsive or node.works:
            counted.append(node)
            continue
        excluded_nodes.append(node)
        if node.is_unreported:
            unreported.append(node.name)
    if unreported:
        raise SlurmUnavailableError(
            f"slurmctld has just started; it is yet to hear from {_few(unreported)}"
        )
    hidden_nodes = max(total - len(nodes), 0)
    return PartitionHardware(
        tuple(counted), tuple(excluded_nodes), hidden_nodes, max_time_min
    )


def _parts(answer: CommandAnswer, delimiter: str) -> list[str]:
    """Return the answer to each question. For a partition that does not exist, SLURM's
    command fails.
    """
    _, *pieces = answer.stdout.split(delimiter)
    statuses, outputs = list[str](), list[str]()
    for piece in pieces:
        status, _, printed = piece.partition("\n")
        statuses.append(status)
        outputs.append(printed)
    # a command's status is at the start of the next piece
    for command, status, printed in zip(_COMMANDS, statuses[1:], outputs, strict=False):
        if status != " 0":
            error_text = _line(answer.stderr) or _line(printed)
            raise SlurmUnavailableError(
                f"{command} ended with status {status[:40]!r}, expected 0: {error_text}"
            )
    if len(pieces) != len(_COMMANDS) + 1:
        raise SlurmUnavailableError(
            f"found {len(pieces)} delimiters, expected {len(_COMMANDS) + 1} (status {answer.status}): {_line(answer.stderr)}"
        )
    return outputs[:-1]


def _line(text: str) -> str:
    """Return a command's text as one line, for an error."""
    return re.sub(r"[^\x20-\x7e]+", " ", text[: 2 * _SHOWN]).strip()[:_SHOWN]


def _total_nodes(shown: str, partition: str) -> int:
    """Return the partition's number of nodes, shown or not."""
    fields = _fields(shown)
    name, total = fields.get("PartitionName", ""), fields.get("TotalNodes", "")
    if name != partition or not _NUMBER.fullmatch(total):
        found = f"{name[:80]!r} with {total[:20]!r} nodes"
        raise SlurmUnavailableError(
            f"scontrol shows the partition {found}, expected {partition!r} and a number"
        )
    return int(total)


def _max_time_min(shown: str) -> int | None:
    """Return the partition's MaxTime, such as 7-00:00:00, in minutes; None for
    UNLIMITED and for anything else.
    """
    found = _TIME.fullmatch(_fields(shown).get("MaxTime", ""))
    if found is None:
        return None
    days, hours, minutes = map(int, found.groups("0"))
    return (days * 24 + hours) * 60 + minutes


def _members(shown: str, partition: str) -> set[str]:
    """Return the names of the partition's nodes from sinfo, which prints a line for
    each partition and node.
    """
    names = set[str]()
    for line in shown.splitlines():
        in_partition, _, name = line.strip().partition("|")
        if not (in_partition and name):
            raise SlurmUnavailableError(
                f"sinfo printed {line[:_SHOWN]!r}, expected a partition and a node"
            )
        if in_partition == partition:
            names.add(name)
    return names


def _few(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))[:_SHOWN] or "none"


def _nodes(shown: str, partition: str) -> list[SlurmNode]:
    """Return the partition's nodes. SLURM's own line ends are before each `NodeName=`;
    other line ends belong to free text.
    """
    nodes = dict[str, SlurmNode]()
    for line in re.split(r"\n(?=NodeName=)", shown):
        fields = _fields(line)
        if partition not in fields.get("Partitions", "").split(","):
            continue
        if fields.get("State", "").startswith("FUTURE"):
            continue
        node = node_of(fields)
        if node.name in nodes:
            raise SlurmUnavailableError(
                f"scontrol shows the node {node.name[:_SHOWN]!r} twice, expected once"
            )
        nodes[node.name] = node
    return list(nodes.values())


def _fields(line: str) -> dict[str, str]:
    """Return the `Key=value` words of a line; the first value of a key counts."""
    fields = dict[str, str]()
    for word in _FREE_TEXT.split(line, maxsplit=1)[0].split():
        key, _, value = word.partition("=")
        fields.setdefault(key, value)
    return fields


def node_of(fields: Mapping[str, str], source: str = "scontrol") -> SlurmNode:
    """Return the node of these fields of `scontrol show nodes`, which `source` showed.
    Raises SlurmUnavailableError for an entry that is incomplete; a retry helps.
    """
    name, state = fields.get("NodeName", ""), fields.get("State", "")
    tres = _tres(fields.get("CfgTRES", ""))
    try:
        if not (name and state):
            raise ValueError("NodeName and State")
        cpus = _whole(tres.get("cpu") or fields.get("CPUTot", ""))
        gpus = _gpus(tres, fields.get("Gres", ""))
        mem_mb = _memory_for_jobs_mb(tres, fields)
    except ValueError as error:
        keys = ("NodeName", "State", "CfgTRES", "Gres", "RealMemory", "MemSpecLimit")
        shown = " ".join(f"{key}={fields.get(key, '')}" for key in keys)
        raise SlurmUnavailableError(
            f"{source} shows the node {shown[:_SHOWN]!r}, expected {error}"
        ) from error
    return SlurmNode(name, cpus, gpus, mem_mb, state)


def _memory_for_jobs_mb(tres: Mapping[str, str], fields: Mapping[str, str]) -> int:
    """Return the MB that jobs may have: RealMemory without MemSpecLimit, which SLURM
    keeps for itself and shows only where it is set. CfgTRES does not lack it.
    """
    configured = tres.get("mem")
    kept = _whole(fields.get("MemSpecLimit") or "0")
    if configured and not kept:
        return _memory_mb(configured)
    for_jobs_mb = max(_whole(fields.get("RealMemory", "")) - kept, 0)
    if configured:
        return min(_memory_mb(configured), for_jobs_mb)
    return for_jobs_mb


def _tres(shown: str) -> dict[str, str]:
    """Return the amounts of `cpu=3,mem=300M`; the last value of a key counts."""
    amounts = dict[str, str]()
    for part in shown.split(","):
        key, _, amount = part.partition("=")
        amounts[key] = amount
    return amounts


def _gpus(tres: Mapping[str, str], gres: str) -> int:
    """Return the number of GPUs. CfgTRES has all GPUs as gres/gpu where
    AccountingStorageTRES names gres/gpu, and the GPUs of a type where it names that
    type; otherwise only Gres= has them.
    """
    if "gres/gpu" in tres:
        return _whole(tres["gres/gpu"])
    typed = 0
    for key, value in tres.items():
        if key.startswith("gres/gpu:"):
            typed += _whole(value)
    return max(typed, _gres_gpus(gres))


def _gres_gpus(gres: str) -> int:
    """Return the sum of the counts in `gpu:4(S:0-1)`, `gpu:a100:2,gpu:v100:2,mps:200`,
    `gpu`; a kind without a number counts as one.
    """
    gpus = 0
    for kind in re.sub(r"\([^()]*\)", "", gres).split(","):
        words = kind.split(":")
        if words[0] != "gpu":
            continue
        if words[-1].isdecimal():
            gpus += _whole(words[-1])
        else:
            gpus += 1
    return gpus


def _memory_mb(shown: str) -> int:
    """Return the MB of `16000M`, `62.50G`, `1T`. SLURM prints the greatest unit in
    which two decimals are exact.
    """
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([KMGTP]?)", shown)
    if found is None:
        raise ValueError("mem as a number with K, M, G, T or P")
    return _whole(str(int(float(found[1]) * _MIB[found[2]])))


def _whole(shown: str) -> int:
    if not _NUMBER.fullmatch(shown) or int(shown) > _MOST:
        raise ValueError(f"a number of at most 16 digits instead of {shown[:40]!r}")
    return int(shown)


def _by_name(nodes: Iterable[SlurmNode]) -> list[SlurmNode]:
    return sorted(nodes, key=lambda node: _natural(node.name))


def _natural(name: str) -> tuple[object, ...]:
    """Return a sort key: node2 before node10. It compares numbers by length and digits,
    as they may be too long for Python.
    """
    words = re.split("([0-9]+)", name)
    key = list[tuple[str, int, str]]()
    for text, digits in zip(words[::2], [*words[1::2], ""], strict=True):
        number = digits.lstrip("0")
        key.append((text, len(number), number))
    return tuple(key), name
