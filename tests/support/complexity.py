"""Prints how much the product branches, by package and by function: `make complexity`.

Cyclomatic complexity as radon counts it: comprehensions and each `and` and `or` count, which ruff's C901 (at most 10 in
`make check`) leaves out. A rate is the complexity of all functions over the lines of code that radon counts (SLOC).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from radon.complexity import cc_visit
from radon.raw import analyze
from radon.visitors import Function
from rich.console import Console
from rich.table import Table

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("supervisor_tasks", "grpc_callbacks", "benchmarks", "plugins")
HIGH = 10  # above it, a function is listed


@dataclass(frozen=True, slots=True)
class Measured:
    """The functions of some modules with their complexity, and the modules' lines of code."""

    functions: tuple[tuple[str, int], ...]  # "path:line name", complexity
    code_lines: int

    @property
    def complexity(self) -> int:
        """The sum over all functions."""
        return sum(complexity for _, complexity in self.functions)

    @property
    def rate(self) -> float:
        """Branches a line; 0 without lines."""
        return self.complexity / self.code_lines if self.code_lines else 0.0

    @property
    def high(self) -> list[tuple[str, int]]:
        """The functions above HIGH, the most complex one first."""
        return sorted((one for one in self.functions if one[1] > HIGH), key=lambda one: -one[1])


def measured(files: Iterable[Path]) -> Measured:
    """What radon counts in these files."""
    functions, code_lines = list[tuple[str, int]](), 0
    for file in files:
        source = file.read_text()
        code_lines += analyze(source).sloc
        place = file.relative_to(REPOSITORY)
        blocks = (block for block in cc_visit(source) if isinstance(block, Function))
        functions += [(f"{place}:{block.lineno} {block.name}", block.complexity) for block in blocks]
    return Measured(tuple(functions), code_lines)


def modules(package: str) -> list[Path]:
    """The modules of a package that people write."""
    return sorted(file for file in (REPOSITORY / package).rglob("*.py") if "_pb2" not in file.name)


def main() -> None:
    """Print the table, and the functions above HIGH."""
    table = Table("package", "functions", "lines of code", "complexity", "a line", f"above {HIGH}")
    every = Measured((), 0)
    for package in PACKAGES:
        found = measured(modules(package))
        every = Measured(every.functions + found.functions, every.code_lines + found.code_lines)
        table.add_row(package, *_figures(found))
    table.add_section()
    table.add_row("product", *_figures(every))
    console = Console()
    console.print(table)
    for name, complexity in every.high:
        console.print(f"{complexity:4}  {name}", highlight=False)


def _figures(found: Measured) -> tuple[str, ...]:
    figures = (len(found.functions), found.code_lines, found.complexity)
    return (*(f"{figure:,}" for figure in figures), f"{found.rate:.3f}", str(len(found.high)))


if __name__ == "__main__":
    main()
