"""docs/security.md names each test of an attack, and no test that is not there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = set(re.findall(r"test_\w+\.py", (ROOT / "docs" / "security.md").read_text()))


def test_security_page__tests_of_attacks__are_all_named() -> None:
    attacks = {file.name for file in (ROOT / "tests" / "attacks").glob("test_*.py")}
    assert attacks, "tests/attacks holds no tests"
    assert attacks - NAMED == set()


def test_security_page__tests_that_it_names__exist() -> None:
    assert NAMED - {file.name for file in (ROOT / "tests").rglob("test_*.py")} == set()
