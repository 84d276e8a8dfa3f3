"""All SQL is in supervisor_tasks/ledger: no other module of the product writes a
statement or builds one.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
LEDGER = REPOSITORY / "supervisor_tasks/ledger"
FILES = [
    file
    for package in ("supervisor_tasks", "grpc_callbacks", "benchmarks", "plugins")
    for file in sorted((REPOSITORY / package).rglob("*.py"))
    if LEDGER not in file.parents and "_pb2" not in file.name
]
MAY_HAVE = re.compile(
    r"SELECT |INSERT INTO|UPDATE |DELETE FROM|AS \(|^from sqlalchemy", re.MULTILINE
)
STATEMENT = re.compile(
    r"\s*(SELECT (?!1\b)|INSERT INTO |UPDATE \w+ SET |DELETE FROM |WITH \w+ AS )"
)
TYPES = {"Connection", "Engine", "make_url"}  # what a caller may hold and pass on


def statements(source: str) -> Iterator[str]:
    """The statements in a module's texts, and what it imports from SQLAlchemy to build
    one.
    """
    if not MAY_HAVE.search(source):
        return
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and STATEMENT.match(node.value)
        ):
            yield f"{node.lineno}: {node.value.strip()[:40]}"
        if isinstance(node, ast.ImportFrom) and node.module == "sqlalchemy":
            yield from (
                f"{node.lineno}: {name.name}"
                for name in node.names
                if name.name not in TYPES
            )


def test_sql__of_the_product__is_in_the_ledger_alone() -> None:
    found = {
        str(file.relative_to(REPOSITORY)): list(statements(file.read_text()))
        for file in FILES
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("source", "number"),
    [
        ('query = "SELECT state FROM jobs"', 1),
        ('ping = "SELECT 1"', 0),
        ("from sqlalchemy import Engine, select", 1),
        ("from sqlalchemy import Engine", 0),
    ],
)
def test_statements__in_a_module__are_found(source: str, number: int) -> None:
    assert len(list(statements(source))) == number
