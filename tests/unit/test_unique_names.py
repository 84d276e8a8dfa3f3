"""Names are used once in the product. Which package may import which: the contracts of
import-linter in pyproject.toml (`make check`).
"""

import ast
from collections import Counter
from pathlib import Path

from tests.support.reference.source import parsed

REPOSITORY = Path(__file__).resolve().parents[2]
PRODUCT = ("supervisor_tasks", "grpc_callbacks", "plugins", "benchmarks")


def test_names__of_modules__are_used_once_in_the_product() -> None:
    files = [
        file for package in PRODUCT for file in (REPOSITORY / package).rglob("[!_]*.py")
    ]
    names = Counter(
        file.stem
        for file in files
        if "versions" not in file.parts and not file.stem.endswith(("_pb2", "_grpc"))
    )
    assert len(names) > 100
    assert [name for name, number in names.items() if number > 1] == []


def test_names__of_classes__are_used_once_in_the_product() -> None:
    files = [
        file for package in PRODUCT for file in (REPOSITORY / package).rglob("*.py")
    ]
    trees = [
        parsed(file) for file in files if not file.stem.endswith(("_pb2", "_grpc"))
    ]
    names = Counter(
        node.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    assert len(names) > 100
    assert [name for name, number in names.items() if number > 1] == []
