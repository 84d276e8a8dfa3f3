"""A module that says that it is pure is held to it by the import contract, and no other
module is listed there. Any module may import a pure one, so a pure one imports only
pure ones.
"""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import grimp

from tests.support.reference.source import parsed

REPOSITORY = Path(__file__).resolve().parents[2]
SAYS_SO = re.compile(r"\bPure[.;:]")
# pure as well, but in a package that has no contract of pure modules
PURE_ELSEWHERE = {"benchmarks.label_format"}
FOR_ANY_MODULE = "supervisor_tasks.** -> "


@cache
def contracts() -> list[dict[str, Any]]:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]
    found: list[dict[str, Any]] = settings["importlinter"]["contracts"]
    return found


@cache
def listed() -> frozenset[str]:
    (names,) = (
        one["source_modules"]
        for one in contracts()
        if one["name"].startswith("Pure modules")
    )
    return frozenset(names)


def test_pure__in_a_modules_docstring__is_what_the_import_contract_lists() -> None:
    files = (REPOSITORY / "supervisor_tasks").rglob("*.py")
    assert {module_of(file) for file in files if says_that_it_is_pure(file)} == listed()


def test_pure_modules__their_imports_of_ours__are_pure() -> None:
    graph = grimp.build_graph("supervisor_tasks", "benchmarks", cache_dir=None)
    impure = [
        f"{module} -> {imported}"
        for module in sorted(listed())
        for imported in graph.find_modules_directly_imported_by(module)
        if imported not in listed() | PURE_ELSEWHERE
    ]
    assert impure == []


def test_contracts__modules_that_all_may_import__are_pure() -> None:
    ignored = [text for one in contracts() for text in one.get("ignore_imports", ())]
    for_any = {
        text.removeprefix(FOR_ANY_MODULE)
        for text in ignored
        if text.startswith(FOR_ANY_MODULE)
    }
    assert len(for_any) > 10
    assert for_any <= listed()


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(REPOSITORY).with_suffix("").parts)


def says_that_it_is_pure(file: Path) -> bool:
    return SAYS_SO.search(ast.get_docstring(parsed(file)) or "") is not None
