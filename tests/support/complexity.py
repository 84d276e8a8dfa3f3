"""Counts the branches of the product by package and by function: `make complexity`
prints them, `make check` checks the bounds.

Cyclomatic complexity as radon counts it: comprehensions and each `and` and `or` count,
which ruff's C901 (at most 10 in `make check`) leaves out. The rate is the complexity of
all functions over the lines of these functions, from `def` to the end, with docstrings,
comments and empty lines. `--check` prints only what misses a bound, and then ends with
status 1.
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from radon.complexity import cc_visit
from radon.visitors import Function
from rich.console import Console
from rich.table import Table

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("supervisor_tasks", "grpc_callbacks", "benchmarks", "plugins")
HIGH = 10  # above it, a function is listed
MAX_RATE = 0.250  # branches a line; lowered with each change that lowers the rate
MAX_HIGH = 0  # functions above HIGH
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, slots=True)
class Measured:
    """The functions of some modules: "path:line name", complexity and lines of each."""

    functions: tuple[tuple[str, int, int], ...]

    @property
    def complexity(self) -> int:
        """The sum over all functions."""
        return sum(complexity for _, complexity, _ in self.functions)

    @property
    def lines(self) -> int:
        """The lines of all functions."""
        return sum(lines for _, _, lines in self.functions)

    @property
    def rate(self) -> float:
        """Branches a line; 0 without lines."""
        return self.complexity / self.lines if self.lines else 0.0

    @property
    def high(self) -> list[tuple[str, int]]:
        """The functions above HIGH, the most complex one first."""
        found = [
            (name, complexity)
            for name, complexity, _ in self.functions
            if complexity > HIGH
        ]
        return sorted(found, key=lambda one: -one[1])


def measured(files: Iterable[Path]) -> Measured:
    """The functions in these files, as radon counts them."""
    functions = list[tuple[str, int, int]]()
    for file in files:
        place = file.relative_to(REPOSITORY)
        for block in cc_visit(file.read_text()):
            if isinstance(block, Function):
                lines = block.endline - block.lineno + 1
                functions.append(
                    (f"{place}:{block.lineno} {block.name}", block.complexity, lines)
                )
    return Measured(tuple(functions))


def nested(source: str) -> Iterator[tuple[int, str]]:
    """The comprehensions in which another one is, and the conditional expressions in
    which another one is, with their lines.
    """
    for node in ast.walk(ast.parse(source)):
        inner = [each for each in ast.walk(node) if each is not node]
        if isinstance(node, COMPREHENSIONS) and any(
            isinstance(each, COMPREHENSIONS) for each in inner
        ):
            yield node.lineno, "a comprehension in a comprehension"
        if isinstance(node, ast.IfExp) and any(
            isinstance(each, ast.IfExp) for each in inner
        ):
            yield node.lineno, "a conditional expression in another one"


def modules(package: str) -> list[Path]:
    """The modules of a package that people write."""
    return sorted(
        file for file in (REPOSITORY / package).rglob("*.py") if "_pb2" not in file.name
    )


def missed() -> list[str]:
    """A line for each bound that the product misses."""
    files = [file for package in PACKAGES for file in modules(package)]
    lines = list[str]()
    for file in files:
        for line, what in nested(file.read_text()):
            lines.append(
                f"{file.relative_to(REPOSITORY)}:{line}: found {what}; expected a step with a name"
            )
    product = measured(files)
    if product.rate > MAX_RATE:
        lines.append(
            f"complexity: found {product.rate:.4f} branches a line; expected {MAX_RATE} at most"
        )
    if len(product.high) > MAX_HIGH:
        lines.append(
            f"complexity: found {len(product.high)} functions above {HIGH}; expected {MAX_HIGH} at most"
        )
        lines += [f"{complexity:4}  {name}" for name, complexity in product.high]
    return lines


def show() -> None:
    """Print the table, and the functions above HIGH."""
    table = Table(
        "package", "functions", "their lines", "complexity", "a line", f"above {HIGH}"
    )
    every = Measured(())
    for package in PACKAGES:
        found = measured(modules(package))
        every = Measured(every.functions + found.functions)
        table.add_row(package, *_figures(found))
    table.add_section()
    table.add_row("product", *_figures(every))
    console = Console()
    console.print(table)
    for name, complexity in every.high:
        console.print(f"{complexity:4}  {name}", highlight=False)


def _figures(found: Measured) -> tuple[str, ...]:
    figures = (len(found.functions), found.lines, found.complexity)
    return (
        *(f"{figure:,}" for figure in figures),
        f"{found.rate:.3f}",
        str(len(found.high)),
    )


def main(arguments: list[str]) -> int:
    """Print the figures, or with --check only what misses a bound. Returns the exit
    status.
    """
    if arguments != ["--check"]:
        show()
        return 0
    lines = missed()
    print("\n".join(lines), end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
