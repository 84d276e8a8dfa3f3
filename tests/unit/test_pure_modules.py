"""A module that says that it is pure is held to it by the import contract, and no other
module is listed there.
"""

import ast
import re
import tomllib
from pathlib import Path

from tests.support.reference.source import parsed

REPOSITORY = Path(__file__).resolve().parents[2]
SAYS_SO = re.compile(r"\bPure[.;:]")


def test_pure__in_a_modules_docstring__is_what_the_import_contract_lists() -> None:
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"][
        "importlinter"
    ]["contracts"]
    (listed,) = (
        one["source_modules"]
        for one in contracts
        if one["name"].startswith("Pure modules")
    )
    files = (REPOSITORY / "supervisor_tasks").rglob("*.py")
    assert {module_of(file) for file in files if says_that_it_is_pure(file)} == set(
        listed
    )


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(REPOSITORY).with_suffix("").parts)


def says_that_it_is_pure(file: Path) -> bool:
    return SAYS_SO.search(ast.get_docstring(parsed(file)) or "") is not None
