"""One name, one class: a reader who searches for a class finds one."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("supervisor_tasks", "grpc_callbacks", "benchmarks", "plugins")


def classes() -> Iterator[tuple[str, str]]:
    """The classes of the product, each with its module."""
    for package in PACKAGES:
        for file in sorted((REPOSITORY / package).rglob("*.py")):
            if "_pb2" not in file.name:
                found = (
                    node
                    for node in ast.parse(file.read_text()).body
                    if isinstance(node, ast.ClassDef)
                )
                yield from (
                    (node.name, str(file.relative_to(REPOSITORY))) for node in found
                )


def test_classes__of_the_product__have_a_name_of_their_own() -> None:
    modules = defaultdict[str, list[str]](list)
    for name, module in classes():
        modules[name].append(module)
    assert {name: found for name, found in modules.items() if len(found) > 1} == {}
