"""A module of supervisor_tasks that says that it is pure is held to it by the import
contract, and no other module is listed there. So is a module that its package calls
pure. Any module may import a pure one, so a pure one imports only pure ones. One of
another package imports nothing but the standard library and pure modules. A function or
class of another module that says that it is pure calls nothing but the standard
library's pure functions and pure ones of ours.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import grimp

from tests.support.reference.source import parsed

REPOSITORY = Path(__file__).resolve().parents[2]
SAYS_SO = re.compile(r"\bPure[.,;:]")
# of a package's docstring: says so of modules that it lists
NAMES_PURE = re.compile(r"\bpure\b[^:.]*:((?:\s*`\w+`,?)+)", re.IGNORECASE)
PACKAGES_WITHOUT_CONTRACT = ("benchmarks", "devgrid", "grpc_callbacks")
FOR_ANY_MODULE = "supervisor_tasks.** -> "
# of the standard library: what they return depends on more than their arguments
WITH_EFFECTS = {"os", "random", "secrets", "socket", "subprocess", "threading", "time"}
BUILTINS_WITH_EFFECTS = {"input", "open", "print"}

Definition = ast.FunctionDef | ast.ClassDef


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


def test_pure__said_of_modules_in_a_packages_docstring__is_true() -> None:
    named = set[str]()
    for file in (REPOSITORY / "supervisor_tasks").rglob("__init__.py"):
        package = module_of(file).removesuffix(".__init__")
        for names in NAMES_PURE.findall(ast.get_docstring(parsed(file)) or ""):
            named |= {f"{package}.{name}" for name in re.findall(r"\w+", names)}
    assert len(named) > 4
    assert named <= listed()


def test_jobs__each_module_of_the_package__is_named_in_its_docstring() -> None:
    folder = REPOSITORY / "supervisor_tasks" / "jobs"
    modules = {file.stem for file in folder.glob("*.py")} - {"__init__"}
    docstring = ast.get_docstring(parsed(folder / "__init__.py")) or ""
    assert set(re.findall(r"`(\w+)`", docstring)) == modules


def test_pure_modules__their_imports_of_ours__are_pure() -> None:
    graph = grimp.build_graph("supervisor_tasks", "benchmarks", cache_dir=None)
    impure = [
        f"{module} -> {imported}"
        for module in sorted(listed())
        for imported in graph.find_modules_directly_imported_by(module)
        if imported not in listed() | set(pure_elsewhere())
    ]
    assert impure == []


def test_pure__in_another_package__imports_the_standard_library_and_pure_ones() -> None:
    pure = listed() | set(pure_elsewhere())
    impure = [
        f"{module} -> {imported}"
        for module, file in pure_elsewhere().items()
        for imported in imports_of(file)
        if imported not in pure
        and imported.partition(".")[0] not in sys.stdlib_module_names
    ]
    assert len(pure_elsewhere()) > 5
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


def test_pure__in_a_docstring_below_the_module__calls_nothing_with_effects() -> None:
    found, impure = 0, list[str]()
    for file in sorted((REPOSITORY / "supervisor_tasks").rglob("*.py")):
        if module_of(file) in listed():
            continue
        for node in ast.walk(parsed(file)):
            if isinstance(node, Definition) and says_pure(node):
                found += 1
                names = effects_of(node, parsed(file), set())
                impure += [f"{module_of(file)}.{node.name}: {name}" for name in names]
    assert found > 10
    assert impure == []


def test_effects_of__calls_of_a_clock_and_through_another_function__are_found() -> None:
    tree = ast.parse(
        "import time\nfrom supervisor_tasks.chain.blocks import seconds_since\n"
        "def asks(rpc):\n    return seconds_since(rpc, 1)\n"
        "def begins():\n    return time.time()\n"
        "def both(rpc):\n    return asks(rpc), begins(), open(max('a', 'b'))\n"
    )
    assert effects_of(tree.body[-1], tree, set()) == ["open", "seconds_since", "time"]


def effects_of(node: ast.AST, tree: ast.Module, seen: set[str]) -> list[str]:
    """What a function or class calls that is not pure, itself or through functions of
    its module.
    """
    own = {each.name: each for each in tree.body if isinstance(each, Definition)}
    found = set[str]()
    for name in called_in(node) - seen:
        seen.add(name)
        if name in own:
            found |= {*effects_of(own[name], tree, seen)}
        elif name in BUILTINS_WITH_EFFECTS | imports_with_effects(tree):
            found.add(name)
    return sorted(found)


def called_in(node: ast.AST) -> set[str]:
    """The names that calls in it begin with: `time` of `time.time()`."""
    found = set[str]()
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            called = each.func
            while isinstance(called, ast.Attribute):
                called = called.value
            if isinstance(called, ast.Name):
                found.add(called.id)
    return found


def imports_with_effects(tree: ast.Module) -> set[str]:
    """The names that a module imports from what is neither pure nor the library's."""
    pure = listed() | set(pure_elsewhere())
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules = {
                alias.asname or alias.name: str(node.module) for alias in node.names
            }
        else:
            continue
        for name, module in modules.items():
            package = module.partition(".")[0]
            is_library = package in sys.stdlib_module_names - WITH_EFFECTS
            if not is_library and module not in pure:
                found.add(name)
    return found


def says_pure(node: ast.AST) -> bool:
    return (
        isinstance(node, Definition)
        and SAYS_SO.search(ast.get_docstring(node) or "") is not None
    )


@cache
def pure_elsewhere() -> dict[str, Path]:
    return {
        module_of(file): file
        for package in PACKAGES_WITHOUT_CONTRACT
        for file in sorted((REPOSITORY / package).rglob("*.py"))
        if says_that_it_is_pure(file)
    }


def imports_of(file: Path) -> Iterator[str]:
    """The modules that it imports. For `from package import module` it is the module."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert node.module
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = (REPOSITORY / f"{inner.replace('.', '/')}.py").is_file()
                yield inner if is_module else node.module


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(REPOSITORY).with_suffix("").parts)


def says_that_it_is_pure(file: Path) -> bool:
    return SAYS_SO.search(ast.get_docstring(parsed(file)) or "") is not None


def test_pure_modules__with_a_function__have_a_test_file_of_their_name() -> None:
    """Where a rule is tested is found by its module's name."""
    without = [
        module
        for module in sorted(listed())
        if not list(
            (REPOSITORY / "tests").glob(
                f"*/{_folder_of(module)}/test_{_stem_of(module)}*.py"
            )
        )
        and _has_a_rule(module)
    ]
    assert without == []


def _folder_of(module: str) -> str:
    """The folder of a module's tests, in unit/ or integration/."""
    return "/".join(module.split(".")[1:-1])


def _stem_of(module: str) -> str:
    return module.rpartition(".")[2]


def _has_a_rule(module: str) -> bool:
    """Whether a module has a function of its own that is not private."""
    file = REPOSITORY / f"{module.replace('.', '/')}.py"
    if not file.exists():
        return False
    return any(
        isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        for node in ast.parse(file.read_text()).body
    )
