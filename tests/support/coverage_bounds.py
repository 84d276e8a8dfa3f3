"""Prints how much of the product the tests reach, and checks the bounds: `...
coverage_bounds COVERAGE_JSON`.

With --some, not all tests ran, and no bound is checked. The bounds are for branches: a
line can be reached with only one value of its conditions.
"""

import json
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
PURE_AT_LEAST = 95.0  # per cent
PRODUCT_AT_LEAST = 90.0
LEAST_REACHED = 10  # modules in the report


@dataclass(frozen=True, slots=True)
class Reached:
    """How many of the branches and of the lines of some modules the tests reach."""

    branches: int
    of_branches: int
    lines: int
    of_lines: int

    @property
    def branch_rate(self) -> float:
        """Per cent of the branches; 100 of a module without branches."""
        return 100.0 * self.branches / self.of_branches if self.of_branches else 100.0

    @property
    def line_rate(self) -> float:
        """Per cent of the lines."""
        return 100.0 * self.lines / self.of_lines if self.of_lines else 100.0


def pure_modules() -> set[str]:
    """The files of the modules that the import contract lists as pure."""
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"][
        "importlinter"
    ]["contracts"]
    (names,) = (
        one["source_modules"]
        for one in contracts
        if one["name"].startswith("Pure modules")
    )
    return {name.replace(".", "/") + ".py" for name in names}


def reached(summaries: Iterable[Mapping[str, Any]]) -> Reached:
    """The sums of coverage's figures of some modules."""
    figures = list(summaries)

    def total(name: str) -> int:
        return sum(int(summary[name]) for summary in figures)

    return Reached(
        total("covered_branches"),
        total("num_branches"),
        total("covered_lines"),
        total("num_statements"),
    )


def report(files: Mapping[str, Any], pure: set[str]) -> tuple[list[str], bool]:
    """The lines of the report, and whether both bounds hold. Raises ValueError when a
    pure module was not measured.
    """
    missing = pure - files.keys()
    if missing:
        raise ValueError(
            f"found no figures of {', '.join(sorted(missing))}; expected all pure modules"
        )
    parts = (
        (
            "pure modules",
            reached(files[name]["summary"] for name in pure),
            PURE_AT_LEAST,
        ),
        (
            "the product",
            reached(file["summary"] for file in files.values()),
            PRODUCT_AT_LEAST,
        ),
    )
    lines = [
        f"{name}: {part.branch_rate:.1f} % of {part.of_branches} branches (at least {bound:g} %),"
        f" {part.line_rate:.1f} % of {part.of_lines} lines"
        for name, part, bound in parts
    ]
    modules = {name: reached([file["summary"]]) for name, file in files.items()}
    least = sorted(
        modules,
        key=lambda name: modules[name].of_branches - modules[name].branches,
        reverse=True,
    )
    for name in least[:LEAST_REACHED]:
        left = modules[name].of_branches - modules[name].branches
        lines.append(
            f"  {name}: {left} of {modules[name].of_branches} branches not reached"
        )
    return lines, all(part.branch_rate >= bound for _, part, bound in parts)


def main(figures: Path, *, some: bool) -> int:
    """Print the report. Returns 1 if all tests ran and a bound is missed."""
    lines, holds = report(json.loads(figures.read_text())["files"], pure_modules())
    print("\n".join(lines))
    return 0 if holds or some else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), some="--some" in sys.argv[2:]))
