"""docs/reference/alarms.md: each alarm with its meaning, and the modules that name
it.
"""

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from supervisor_tasks.alarms.alarm_meanings import CRITICAL, MEANINGS
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.ledger.switch_names import Switch
from tests.support.reference.markdown import head, item
from tests.support.reference.markdown import page as text_of
from tests.support.reference.source import meanings, modules

ABOUT = """An alarm is on until its cause is gone. `supervisor` shows the alarms that are on, with details and advice. The
log has `alarm_on` and `alarm_off`, and Prometheus `supervisor_alarm{alarm="..."}`. A critical alarm is also sent in the
quiet hours (NOTIFY_QUIET_HOURS). Each links to its page: what it means, how to look, what to do."""


def page(repository: Path) -> str:
    """The page's text."""
    lines, places = head("Alarms", ABOUT), places_of(repository)
    for name in sorted(AlarmName):
        meaning = MEANINGS[name]
        title = f"[`{name.value}`](../how-to/alarms/{name.value}.md){' (critical)' if name in CRITICAL else ''}"
        lines += item(
            f"{title}: {meaning.cause} **Do:** {meaning.advice} Code: {', '.join(places[name.name])}."
        )
    lines += [
        "",
        "## Switches",
        "",
        "Operators set them, and so does a worker that has found the cause.",
        "",
    ]
    meaning_of = meanings(Switch)
    for switch in Switch:
        lines += item(f"`{switch.value}`: {meaning_of[switch.name]}")
    return text_of(lines)


def places_of(repository: Path) -> Mapping[str, list[str]]:
    """The modules that name each alarm: they raise it, end it, or act on it."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, tree in modules(repository):
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and ast.unparse(node.value) == AlarmName.__name__
            ):
                found[node.attr].add(f"`{module.removeprefix('supervisor_tasks/')}`")
    return {
        name: sorted(places - {"`alarms/alarm_meanings.py`"})
        for name, places in found.items()
    }
