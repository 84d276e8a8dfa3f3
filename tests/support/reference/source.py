"""Reads the product's source: the modules, and the texts below names."""

import ast
import inspect
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from textwrap import dedent

PACKAGES = ("supervisor_tasks", "grpc_callbacks", "plugins", "benchmarks")


@cache
def parsed(file: Path) -> ast.Module:
    """The syntax tree of a file, which is read once. Callers must not change it."""
    return ast.parse(file.read_text())


@cache
def modules(repository: Path) -> Sequence[tuple[str, ast.Module]]:
    """Each module of the product: its path in the repository, and its syntax tree."""
    return tuple(_modules(repository))


def _modules(repository: Path) -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for file in sorted((repository / package).rglob("*.py")):
            if "_pb2" not in file.name and "migrations" not in file.parts:
                yield str(file.relative_to(repository)), parsed(file)
    for file in sorted(repository.glob("*config.py")):
        yield file.name, parsed(file)


def meanings(owner: type) -> dict[str, str]:
    """The text below each attribute of a class."""
    (tree,) = ast.parse(dedent(inspect.getsource(owner))).body
    assert isinstance(tree, ast.ClassDef)
    found = dict[str, str]()
    for statement, after in zip(tree.body, tree.body[1:], strict=False):
        name, text = _assigned(statement), _text(after)
        if name is not None and text is not None:
            found[name] = text
    return found


def in_words(name: str) -> str:
    """A function's name as words."""
    return name.strip("_").replace("_", " ")


def _assigned(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None


def _text(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        value = statement.value.value
        return value if isinstance(value, str) else None
    return None
