"""docs/reference/modules.md: each module of the product, what it has, and its tests; then
the tests that need a whole grid.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from tests.support.reference.markdown import head, table
from tests.support.reference.markdown import page as text_of
from tests.support.reference.source import modules, parsed

MOST_TESTS = 4
ABOUT = f"""What each module says of itself, and up to {MOST_TESTS} test files in `tests/unit` and `tests/integration`
that import it or have its name, the latter first. Where no test imports a module, its package's tests run it. The last
tables have the tests that start a whole grid."""
TIERS = ("unit", "integration")
WHOLE_GRID = ("e2e", "attacks", "chaos")


def page(repository: Path) -> str:
    """The page's text."""
    lines = head("Modules", ABOUT)
    tests = importers(repository)
    for folder, members in _by_folder(repository).items():
        lines += [f"## {folder.replace('.', 'Top level')}", ""]
        lines += table(
            ("module", "what it has", "tests"),
            (
                (f"`{PurePosixPath(path).name}`", text, _listed(tests, path))
                for path, text in members
            ),
        )
        lines.append("")
    for tier in WHOLE_GRID:
        lines += [f"## tests/{tier}", ""]
        lines += table(("file", "what it shows"), _described(repository, tier))
        lines.append("")
    return text_of(lines)


def importers(repository: Path) -> Mapping[str, list[str]]:
    """The test files that import a module, by the module's path."""
    paths = {_dotted(path): path for path, _ in modules(repository)}
    found: dict[str, list[str]] = {path: [] for path in paths.values()}
    for tier in TIERS:
        for file in sorted((repository / "tests" / tier).rglob("test_*.py")):
            name = str(file.relative_to(repository / "tests"))
            for module in _imported(parsed(file)) & paths.keys():
                found[paths[module]].append(name)
    for path, importing in found.items():
        importing += [
            test for test in _namesakes(repository, path) if test not in importing
        ]
    return found


def _namesakes(repository: Path, path: str) -> Iterator[str]:
    """The test files that a module has by its name; they may import it by another."""
    module = PurePosixPath(path.removeprefix("supervisor_tasks/"))
    for tier in TIERS:
        test = str(PurePosixPath(tier, module.parent, f"test_{module.stem}.py"))
        if (repository / "tests" / test).exists():
            yield test


def first_paragraph(tree: ast.Module) -> str:
    """The first paragraph of a module's docstring, for a cell of a table."""
    text = (ast.get_docstring(tree) or "").partition("\n\n")[0]
    return " ".join(text.split()).replace("|", r"\|")


def _by_folder(repository: Path) -> Mapping[str, list[tuple[str, str]]]:
    folders: dict[str, list[tuple[str, str]]] = {}
    for path, tree in modules(repository):
        if text := first_paragraph(tree):
            folder = str(PurePosixPath(path).parent)
            folders.setdefault(folder, []).append((path, text))
    return dict(sorted(folders.items()))


def _described(repository: Path, tier: str) -> Iterator[tuple[str, str]]:
    for file in sorted((repository / "tests" / tier).glob("test_*.py")):
        yield f"`{file.name}`", first_paragraph(parsed(file))


def _listed(tests: Mapping[str, list[str]], path: str) -> str:
    """A module's tests, those with its name first, as they are about it alone."""
    stem = PurePosixPath(path).stem
    ordered = sorted(tests[path], key=lambda test: stem not in PurePosixPath(test).stem)
    return ", ".join(f"`{test}`" for test in ordered[:MOST_TESTS])


def _dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported(tree: ast.Module) -> set[str]:
    """The modules that a file imports. A name of `from package import name` may be one."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names
