"""docs/reference/settings.md: each setting with its form, its default, its meaning, and
the processes that read it.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from pydantic.fields import FieldInfo

from supervisor_tasks.config import settings
from supervisor_tasks.config.needs import (
    ALSO_KEPT,
    NEED_OF_QUEUE,
    OVER_REST,
    REQUIRED,
    WITH_CERTIFICATES,
    Need,
)
from supervisor_tasks.config.settings import IN_FILES, Settings, SettingsError, load
from supervisor_tasks.messaging.queues import Queue
from tests.support.env_example import default_text, headings
from tests.support.reference.markdown import head, item
from tests.support.reference.markdown import page as text_of
from tests.support.reference.source import meanings, modules

ABOUT = """Settings are environment variables. A setting that can be read from a file has `NAME_FILE` for the file's path.
How to choose them: [configure a site](../how-to/configure.md). `supervisor config show` lists the values of a process."""
# Which processes a module belongs to. bootstrap.py builds what a worker works with.
WAYS_TO_SLURM = {
    "SLURM_SSH_CERTIFICATES": WITH_CERTIFICATES,
    "SLURM_TRANSPORT=rest": OVER_REST,
}
PROCESSES = {
    "grpc_callbacks/": "callbacks",
    "supervisor_tasks/cli/metrics_command.py": "metrics",
    "supervisor_tasks/cli/": "the command",
    "supervisor_tasks/config/embedded_servers.py": "all",
    "supervisor_tasks/observability/probes.py": "worker, beat, callbacks, flower",
    "supervisor_tasks/observability/traces.py": "worker, callbacks",
    "supervisor_tasks/worker.py": "worker, beat, flower",
    "supervisor_tasks/messaging/": "beat",
    "supervisor_tasks/": "worker",
    "celeryconfig.py": "worker, beat, flower",
}
ORDER = ("worker", "beat", "callbacks", "flower", "metrics", "the command")
OF_PYDANTIC = ("a valid", "a number", "a finite")  # how its own messages begin
FORMS = {bool: "true or false", int: "a whole number", float: "a number"}
BOUNDS = {"gt": "above {}", "ge": "{} or more", "lt": "below {}", "le": "{} or less"}
# no setting with a form accepts this: the error contains what is expected
UNFIT = ": \x00"


def page(repository: Path) -> str:
    """The page's text."""
    lines = head("Settings", ABOUT)
    read_by, meaning_of, section = processes(repository), meanings(Settings), ""
    for name, field in Settings.model_fields.items():
        if headings()[name] != section:
            section = headings()[name]
            lines += [
                *([""] if lines[-1] else []),
                f"## {section[0].upper()}{section[1:]}",
                "",
            ]
        lines += item(_described(name, field, meaning_of[name], read_by[name]))
    return text_of(lines)


def _described(name: str, field: FieldInfo, meaning: str, read_by: set[str]) -> str:
    shown = (
        ["all processes"]
        if "all" in read_by
        else [process for process in ORDER if process in read_by]
    )
    assert shown, f"no module reads {name}"
    parts = [f"`{name.upper()}`: {meaning} {_form(name, field)}"]
    default = _default(name, field)
    if default:
        parts.append(f"Default: `{default}`.")
    if name in IN_FILES:
        parts.append(f"`{name.upper()}_FILE` is possible.")
    parts.append(f"Read by: {', '.join(shown)}." + _needs(name))
    return " ".join(parts)


def _form(name: str, field: FieldInfo) -> str:
    """What the setting expects, in the words of its error."""
    usual = "a path" if "Path" in str(field.annotation) else "a text"
    expected = _expected().get(name, usual)
    return f"Form: {_number(field) if expected.startswith(OF_PYDANTIC) else _without_found(expected)}."


@cache
def _expected() -> Mapping[str, str]:
    """What each setting expects, from its error. Settings that accept any text are left
    out.
    """
    try:
        load(environment={name.upper(): UNFIT for name in Settings.model_fields})
    except SettingsError as error:
        parted = [line.partition(": found ") for line in error.lines]
        return {
            name.lower(): rest.partition("; expected ")[2] for name, _, rest in parted
        }
    raise AssertionError("no setting refused the unfit text")


def _number(field: FieldInfo) -> str:
    """The form of a setting that is a number or a truth value."""
    text = next(
        (
            text
            for kind, text in FORMS.items()
            if re.search(rf"\b{kind.__name__}\b", str(field.annotation))
        ),
        "",
    )
    bounds = [
        words.format(getattr(one, key))
        for one in field.metadata
        for key, words in BOUNDS.items()
        if hasattr(one, key)
    ]
    return " ".join([text, " and ".join(bounds)]).strip() if text else ""


def _without_found(expected: str) -> str:
    """What is expected, without the text that was found."""
    return re.sub(r" \([^()]*(is none|\\x00)[^()]*\)", "", expected).rstrip(".")


def _default(name: str, field: FieldInfo) -> str:
    """The default; none where the machine decides."""
    if field.default_factory not in (None, dict):
        return ""
    return default_text(field).replace(str(Path.home()), "~")


def _needs(name: str) -> str:
    """The processes that cannot start without the setting, and those that keep the
    secret.
    """
    required = "".join(
        f" Required by {_of(need)}."
        for need, names in REQUIRED.items()
        if name in names
    )
    for way, needs in WAYS_TO_SLURM.items():
        required += "".join(
            f" With {way} required by {_of(need)}."
            for need, names in needs.items()
            if name in names and name not in REQUIRED[need]
        )
    return required + "".join(
        f" Kept by {_of(need)}." for need, names in ALSO_KEPT.items() if name in names
    )


def _of(need: Need) -> str:
    if need is NEED_OF_QUEUE[Queue.DEFAULT]:  # each worker has that queue
        return "all workers"
    queues = [queue.value for queue, needed in NEED_OF_QUEUE.items() if needed is need]
    return (
        f"workers of {' and '.join(f'`{queue}`' for queue in queues)}"
        if queues
        else "callbacks"
    )


def processes(repository: Path) -> Mapping[str, set[str]]:
    """The processes that read each setting, by the modules that name it."""
    found: dict[str, set[str]] = defaultdict(set)
    through = _properties()
    for module, tree in modules(repository):
        if module != "supervisor_tasks/config/settings.py":
            for name in _read(tree):
                for setting in through.get(name, {name}):
                    found[setting] |= set(_processes_of(module).split(", "))
    return found


def _processes_of(module: str) -> str:
    return next(names for place, names in PROCESSES.items() if module.startswith(place))


def _read(tree: ast.Module) -> Iterator[str]:
    """The attributes of settings that a module reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.search(
            r"(^|\W|_)(settings|load\w*\(.*\))$", ast.unparse(node.value)
        ):
            yield node.attr


def _properties() -> Mapping[str, set[str]]:
    """The settings that each property of Settings reads."""
    (tree,) = (
        node
        for node in ast.parse(Path(settings.__file__).read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "Settings"
    )
    functions = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name != "secret_values"
    ]
    return {function.name: _settings_in(function) for function in functions}


def _settings_in(function: ast.FunctionDef) -> set[str]:
    names = {
        node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)
    }
    return names & Settings.model_fields.keys()
