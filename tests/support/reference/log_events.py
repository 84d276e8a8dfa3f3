"""docs/reference/log-events.md: each event that the product logs."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.reference.markdown import head, item
from tests.support.reference.markdown import page as text_of
from tests.support.reference.source import modules

ABOUT = """Each line of the logs has a fixed event name, a level, and values by name: JSON in production, readable on
a terminal. The names of values that only some lines have are listed too; `...` stands for values that the code adds
as a mapping. `exception` is the level error with a traceback, and `once` a warning that is left out when it repeats.
Each line of a process that serves one cluster has `cluster`, and one about a job has `job_id`, `slurm_id` and
`tx_hash` where they are known. SLURM's hooks write into slurmctld's own log, which is one cluster's, so their lines
do not name it. The lines of libraries have the library's own words as the event; `logger` names it. The
authorized-keys command and the SPANK plugin write text into the logs of sshd and slurmd."""
LEVELS = ("debug", "info", "once", "warning", "error", "exception", "critical")
EVENT = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
HOOK_EVENT = re.compile(r'complain\("([a-z_]+)"')
LOGGERS = re.compile(r"(.*\.)?_?log|structlog\.get_logger\(\)")


@dataclass
class Logged:
    """What the code logs under one name."""

    levels: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    values: dict[str, None] = field(default_factory=dict)


def page(repository: Path) -> str:
    """The page's text."""
    lines = head("Log events", ABOUT)
    events = gathered(repository)
    for name in sorted(events):
        found = events[name]
        levels = ", ".join(level for level in LEVELS if level in found.levels)
        values = f": {', '.join(found.values)}" if found.values else ""
        places = ", ".join(f"`{_short(module)}`" for module in sorted(found.modules))
        lines += item(f"`{name}` ({levels}){values} – {places}")
    return text_of(lines)


def gathered(repository: Path) -> Mapping[str, Logged]:
    """What the product logs, by the event's name."""
    events: dict[str, Logged] = defaultdict(Logged)
    for module, tree in modules(repository):
        for call, level, names in calls(tree):
            for name in names:
                events[name].levels.add(level)
                events[name].modules.add(module)
                events[name].values |= dict.fromkeys(
                    keyword.arg or "..." for keyword in call.keywords
                )
    for name, file in of_hooks(repository):
        events[name].levels.add("error")
        events[name].modules.add(file)
        events[name].values |= dict.fromkeys(("job_id", "slurm_id", "error"))
    return events


def of_hooks(repository: Path) -> Iterator[tuple[str, str]]:
    """The events of the hooks that are written in C, and the file of each."""
    for file in sorted((repository / "plugins").rglob("*.c")):
        for name in HOOK_EVENT.findall(file.read_text()):
            yield name, str(file.relative_to(repository))


def calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str, list[str]]]:
    """Each call of a logger: the level, and the names that the event can have."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and _is_of_a_logger(node.func)
        ):
            yield (
                node,
                node.func.attr,
                _names(node.args[0]) or _names_of_variable(tree, node.args[0]),
            )


def _is_of_a_logger(function: ast.Attribute) -> bool:
    return (
        function.attr in LEVELS
        and LOGGERS.fullmatch(ast.unparse(function.value)) is not None
    )


def _names(argument: ast.expr) -> list[str]:
    texts = [
        node.value for node in ast.walk(argument) if isinstance(node, ast.Constant)
    ]
    return [text for text in texts if isinstance(text, str) and EVENT.fullmatch(text)]


def _names_of_variable(tree: ast.Module, argument: ast.expr) -> list[str]:
    """The names that a variable gets in this module."""
    given = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    values = [
        node.value
        for node in given
        if ast.unparse(node.targets[0]) == ast.unparse(argument)
    ]
    return [name for value in values for name in _names(value)]


def _short(module: str) -> str:
    return module.removeprefix("supervisor_tasks/")
