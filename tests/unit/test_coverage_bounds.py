"""What `make coverage` says, and the bounds that it holds."""

from typing import Any

import pytest

from tests.support.coverage_bounds import pure_modules, report


def figures(branches: int, of_branches: int) -> dict[str, Any]:
    lines = {"covered_lines": 9, "num_statements": 10}
    return {
        "summary": {"covered_branches": branches, "num_branches": of_branches, **lines}
    }


@pytest.mark.parametrize(
    ("pure", "other", "holds"),
    [(95, 85, True), (94, 99, False), (100, 79, False), (100, 80, True)],
)
def test_bounds__of_pure_modules_and_of_the_product__are_held(
    pure: int, other: int, holds: bool
) -> None:
    lines, held = report(
        {"pure.py": figures(pure, 100), "other.py": figures(other, 100)}, {"pure.py"}
    )
    assert held == holds
    assert (
        lines[0]
        == f"pure modules: {pure}.0 % of 100 branches (at least 95 %), 90.0 % of 10 lines"
    )
    assert "  other.py: " + f"{100 - other} of 100 branches not reached" in lines


def test_bounds__pure_module_that_was_not_measured__is_an_error() -> None:
    with pytest.raises(ValueError, match=r"found no figures of pure\.py"):
        report({"other.py": figures(1, 1)}, {"pure.py"})


def test_pure_modules__of_the_contract__are_files() -> None:
    assert "supervisor_tasks/jobs/state_machine.py" in pure_modules()
