"""docs/security.md names each test of an attack, and no test that is not there."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "security.md").read_text()
NAMED = re.compile(r"(?:tests/([\w/]+)/)?(test_\w+\.py)`?(?: \((unit|integration)\))?")


def test_security_page__tests_of_attacks__are_all_named() -> None:
    attacks = {file.name for file in (TESTS / "attacks").glob("test_*.py")}
    assert attacks, "tests/attacks holds no tests"
    assert attacks - {name for _, name, _ in NAMED.findall(PAGE)} == set()


def test_security_page__tests_that_it_names__are_in_the_folder_that_it_names() -> None:
    """A test without a folder is in tests/attacks."""
    missing = [
        (folder or kind or "attacks", name)
        for folder, name, kind in NAMED.findall(PAGE)
        if not list((TESTS / (folder or kind or "attacks")).rglob(name))
    ]
    assert missing == []
