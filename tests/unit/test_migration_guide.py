"""docs/how-to/migrate-from-go.md names variables, and values of our chart, that
exist.
"""

import json
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from typing import Any

import pytest
import yaml

from devgrid import REPOSITORY
from supervisor_tasks.config.other_forms import OTHER_FORMS
from supervisor_tasks.config.settings import Settings

GUIDE = (REPOSITORY / "docs" / "how-to" / "migrate-from-go.md").read_text()
FLAGS = dict(re.findall(r"^\| `--([a-z.-]+)`.*? \| `([A-Z_]+)`", GUIDE, re.MULTILINE))
VARIABLES = {
    *(name.upper() for name in Settings.model_fields),
    *(name for name, _ in OTHER_FORMS.values()),
}
CHART = REPOSITORY / "docker" / "helm" / "grid-supervisor"
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES = (CHART / "values.yaml").read_text()
DEFAULTS: dict[str, Any] = yaml.safe_load(VALUES)
ENTRIES = re.findall(
    r"^\* (.*?)(?=^\* |\Z)",
    GUIDE.partition("## Values of its chart\n")[2],
    re.MULTILINE | re.DOTALL,
)
OF_A_CLUSTER, VARIABLE = "cluster.", re.compile(r"[A-Z][A-Z_]*[A-Z*]")


def named_values(entry: str) -> Iterator[str]:
    """The values of our chart that an entry of the guide names: in full, where it
    leaves out what they have in common with the one before.
    """
    current = re.sub(r"\(the old chart .*?\)", "", entry, flags=re.DOTALL)
    ours = current.removeprefix(_of_the_old_chart(current))
    before = ""
    for word in re.findall(r"`([^`]*)`", ours):
        name = word.partition(":")[0]
        if name.startswith("."):
            name = before.rpartition(".")[0] + name
        elif name.startswith("_"):
            name = before.rpartition("_")[0] + name
        elif VARIABLE.fullmatch(name):
            name = f"{OF_A_CLUSTER}settings.{name}"
        yield name
        before = name


def _of_the_old_chart(entry: str) -> str:
    """The part of an entry up to the first colon that is not in a name."""
    (part,) = re.findall(r"^(?:`[^`]*`|[^`:])*:", entry)
    return str(part)


NAMED = sorted({name for entry in ENTRIES for name in named_values(entry)})


def is_value(node: dict[str, Any], names: Sequence[str]) -> bool:
    """Whether the schema of a value has one of that name in it."""
    if not names:
        return True
    for each in (node, *node.get("allOf", ())):
        if "$ref" in each and is_value(_definition(each["$ref"]), names):
            return True
    found = node.get("properties", {}).get(names[0])
    return found is not None and is_value(found, names[1:])


def _definition(reference: str) -> dict[str, Any]:
    definition: dict[str, Any] = SCHEMA["definitions"][reference.rpartition("/")[2]]
    return definition


def is_default(node: Any, names: Sequence[str]) -> bool:
    """Whether values.yaml has it."""
    for name in names:
        if not isinstance(node, dict) or name not in node:
            return False
        node = node[name]
    return True


def exists(name: str) -> bool:
    """Whether our chart has that value, setting of a cluster, or key of a Secret."""
    if name.startswith(f"{OF_A_CLUSTER}settings."):
        variable = name.rpartition(".")[2]
        return any(fnmatch(known, variable) for known in VARIABLES)
    if name.startswith(OF_A_CLUSTER):
        cluster = SCHEMA["properties"]["clusters"]["items"]
        return is_value(cluster, name.split(".")[1:])
    if re.fullmatch(r"[a-z]+(_[a-z]+)+", name):
        return re.search(rf"keys? [^#]*\b{name}\b", VALUES) is not None
    return is_value(SCHEMA, name.split(".")) or is_default(DEFAULTS, name.split("."))


@pytest.mark.parametrize("variable", sorted(set(FLAGS.values())))
def test_variable__that_stands_for_a_flag__is_a_setting(variable: str) -> None:
    assert variable in VARIABLES


@pytest.mark.parametrize("name", NAMED)
def test_value__that_stands_for_one_of_the_old_chart__exists(name: str) -> None:
    assert exists(name)


def test_values__of_the_guide__are_found_in_each_entry() -> None:
    without = [entry for entry in ENTRIES if not list(named_values(entry))]
    assert len(ENTRIES) >= 24
    assert [_of_the_old_chart(entry) for entry in without] == [
        "`livenessProbe`, `readinessProbe`, `podSecurityContext`, `securityContext`:"
    ]


def test_memory_of_hpl__its_default_in_the_guide__is_ours() -> None:
    (named,) = re.findall(r"Without either, the\s+share is ([0-9.]+[0-9])", GUIDE)
    assert float(named) == Settings.model_fields["benchmark_hpl_memory_share"].default


def test_flags__what_is_needed_beside_them__is_named() -> None:
    """The Go program has no flag for these, and `supervisor run` does not work without
    them.
    """
    section = GUIDE.partition("## Flags\n")[2].partition("\n## ")[0]
    _, _, needed = section.partition("Also needed are:")
    assert all(
        f"`{name}`" in needed
        for name in (
            "DATABASE_URL",
            "BROKER_URL",
            "--embedded",
            "SLURM_SSH_KNOWN_HOSTS",
        )
    )
    assert {"DATABASE_URL", "BROKER_URL", "SLURM_SSH_KNOWN_HOSTS"}.isdisjoint(
        FLAGS.values()
    )
