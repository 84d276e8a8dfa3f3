"""Where test files stand: a reader finds a module's tests by its package, and the
helpers of all tests in tests/support.
"""

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TESTS = REPOSITORY / "tests"
MIRRORS = ("unit", "integration")
OF_NO_PACKAGE = {"benchmarks", "devgrid", "docker", "grpc_callbacks", "plugins"}
# programs and stacks that no other folder uses
HELPERS_OF_THEIR_OWN = {"support", "chaos", "load", "images"}
MAX_CHARACTERS = 80  # of a test's name
TEST = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)
_PART = "[a-z0-9]+(?:_[a-z0-9]+)*"
THREE_PARTS = re.compile(f"test_{_PART}__{_PART}__{_PART}")


def _python_files(folder: Path) -> list[Path]:
    return [
        path for path in sorted(folder.rglob("*.py")) if "__pycache__" not in path.parts
    ]


def test_folders__of_unit_and_integration_tests__are_named_after_packages() -> None:
    packages = {
        path.parent.name
        for path in (REPOSITORY / "supervisor_tasks").glob("*/__init__.py")
    }
    parents = {
        path
        for mirror in MIRRORS
        for path in (TESTS / mirror).iterdir()
        if (path / "__init__.py").exists()
    }
    strange = [
        str(path.relative_to(REPOSITORY))
        for path in parents
        if path.name not in packages | OF_NO_PACKAGE
    ]
    assert not strange, f"named after no package of the product: {strange}"


def test_folders__of_integration_tests__have_all_tests_in_a_package() -> None:
    loose = [path.name for path in (TESTS / "integration").glob("test_*.py")]
    assert not loose, f"in no package's folder: {loose}"


def test_helpers__of_all_tests__are_in_support() -> None:
    own = ("test_", "__init__", "conftest")
    files = [path.relative_to(TESTS) for path in _python_files(TESTS)]
    helpers = [
        path
        for path in files
        if not path.name.startswith(own) and path.parts[0] not in HELPERS_OF_THEIR_OWN
    ]
    assert not helpers, (
        f"to be moved to tests/support: {[str(path) for path in helpers]}"
    )


def test_names__of_all_tests__have_three_parts_and_at_most_80_characters() -> None:
    wrong = [
        f"{path.relative_to(TESTS)}: {name}"
        for path in _python_files(TESTS)
        for name in TEST.findall(path.read_text())
        if len(name) > MAX_CHARACTERS or not THREE_PARTS.fullmatch(name)
    ]
    assert not wrong, (
        f"expected test_<function>__<situation>__<outcome>, {MAX_CHARACTERS} characters at most: {wrong}"
    )
