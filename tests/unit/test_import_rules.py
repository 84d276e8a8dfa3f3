"""Which package may import which: each module of supervisor_tasks stands in a row of
the table, and no import is outside.

import-linter (`make check`) holds the directions between single modules; this table is
for packages, and is complete. Pure modules and errors may be imported everywhere.
tests/unit/test_pure_modules.py says which modules are pure.
"""

import ast
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import grimp

from tests.support.reference.source import parsed

REPOSITORY = Path(__file__).resolve().parents[2]
ROOT = "supervisor_tasks"
PRODUCT = (ROOT, "grpc_callbacks", "plugins", "benchmarks")
# what a process starts with; may import anything
PROCESS = {"tasks", "signals", "worker", "bootstrap", "lifecycle", "beat"}
WORKFLOWS = {
    "accounts",
    "benchmarking",
    "indexer",
    "jobs",
    "monitoring",
    "notifications",
    "open_transactions",
    "provider",
    "reconciliation",
    "recovery",
}
# what several workflows use
COMMON = {"chain_events", "execution", "slurm_lookup", "monitoring", "wallet"}
CLIENTS = {"chain", "slurm", "grid", "site_services"}
# config: settings, logging and the embedded servers
LEAVES = {"connections", "crash_points", "config", "instruments"}
MAY_IMPORT = {
    **dict.fromkeys(
        WORKFLOWS | COMMON, CLIENTS | LEAVES | COMMON | {"context", "ledger"}
    ),
    **{key: {"connections", "crash_points", "instruments"} for key in CLIENTS},
    "context": CLIENTS | {"ledger", "wallet"},
    "from_settings": CLIENTS | LEAVES,
    "ledger": LEAVES,
    "messaging": LEAVES | {"ledger", "monitoring"},
    **{key: {"connections"} for key in LEAVES},
    "observability": CLIENTS | LEAVES | {"ledger"},
    "cli": CLIENTS
    | LEAVES
    | {
        "ledger",
        "monitoring",
        "observability",
        "doctor",
        "from_settings",
        "recovery",
        "bootstrap",
        "benchmarking",
    },
    "doctor": CLIENTS | LEAVES | {"ledger", "observability", "context", "bootstrap"},
    "dashboard": LEAVES | {"ledger"},
}


@cache
def pure() -> frozenset[str]:
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"][
        "importlinter"
    ]["contracts"]
    (names,) = (
        one["source_modules"]
        for one in contracts
        if one["name"].startswith("Pure modules")
    )
    return frozenset(name.removeprefix(f"{ROOT}.") for name in names)


@cache
def imports() -> dict[str, set[str]]:
    """What each module imports, without pure modules; the names begin below
    supervisor_tasks.
    """
    graph = grimp.build_graph(ROOT, cache_dir=None)
    found = dict[str, set[str]]()
    for module in graph.modules - {ROOT}:
        others = (
            name.removeprefix(f"{ROOT}.")
            for name in graph.find_modules_directly_imported_by(module)
        )
        found[module.removeprefix(f"{ROOT}.")] = {
            name for name in others if name not in pure() | {ROOT}
        }
    return found


def package_of(module: str) -> str:
    return module.partition(".")[0]


def test_modules__each__stands_in_the_table() -> None:
    known = MAY_IMPORT.keys() | PROCESS
    assert (
        sorted(
            name
            for name in imports()
            if package_of(name) not in known and name not in pure()
        )
        == []
    )


def test_imports__between_packages__are_in_the_table() -> None:
    outside = list[str]()
    for module, others in imports().items():
        mine = package_of(module)
        for other in others:
            may = mine in PROCESS or package_of(other) in {
                mine,
                *MAY_IMPORT.get(mine, set()),
            }
            if not may:
                outside.append(f"{module} -> {other}")
    assert sorted(outside) == []


# Three that the layout gives to two modules each: plugins import nothing of the
# supervisor.
NAMES_OF_TWO = {"context", "crash_points", "model"}


def test_names__of_modules__are_used_once_in_the_product() -> None:
    files = [
        file for package in PRODUCT for file in (REPOSITORY / package).rglob("[!_]*.py")
    ]
    names = Counter(
        file.stem
        for file in files
        if "versions" not in file.parts and not file.stem.endswith(("_pb2", "_grpc"))
    )
    assert {name for name, number in names.items() if number > 1} == NAMES_OF_TWO


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
