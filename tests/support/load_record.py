"""Keeps the figures of the last measurement in docs: in performance.json, and as tables
in performance.md.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.support.load_figures import Figure

DOCS = Path(__file__).parents[2] / "docs"
FIGURES = DOCS / "performance.json"
DOCUMENT = DOCS / "performance.md"
BEGIN, END = (
    "<!-- figures: written by make bench RECORD=1 -->\n",
    "<!-- end of figures -->\n",
)
MOVES, SETTLES = ": first job moves after", ": 100 jobs settled after"


def recorded() -> list[Figure]:
    """The figures in performance.json; none if the file does not exist."""
    if not FIGURES.exists():
        return []
    return [Figure(**entry) for entry in json.loads(FIGURES.read_text())["figures"]]


def write(machine: dict[str, Any], figures: Sequence[Figure], *, whole: bool) -> None:
    """Write the figures into both files. Unless `whole`, recorded figures that were not
    measured now stay.
    """
    if not whole:
        figures = list((by_name(recorded()) | by_name(figures)).values())
    result = {"machine": machine, "figures": [asdict(figure) for figure in figures]}
    FIGURES.write_text(json.dumps(result, indent=1) + "\n")
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text(), figures))


def with_tables(document: str, figures: Sequence[Figure]) -> str:
    """The document, with these figures between its two delimiters. Raises ValueError when
    it has none.
    """
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(
            f"{DOCUMENT.name} has no place for the figures: expected the lines {BEGIN!r} and {END!r}"
        )
    return f"{before}{BEGIN}{tables(figures)}{END}{after}"


def tables(figures: Sequence[Figure]) -> str:
    """Two tables: the single figures, and the recoveries with a row for each fault."""
    single = [
        figure for figure in figures if not figure.name.endswith((MOVES, SETTLES))
    ]
    rows = [
        f"| {figure.name} | {shown(figure)} | {bound(figure)} |" for figure in single
    ]
    named = by_name(figures)
    faults = [
        figure.name.removesuffix(MOVES)
        for figure in figures
        if figure.name.endswith(MOVES)
    ]
    recoveries = [
        f"| {fault} | {shown(named[fault + MOVES])} | {shown(named[fault + SETTLES])} |"
        for fault in faults
    ]
    return "\n".join(
        [
            *("| | measured | bound |", "|---|---|---|", *rows),
            *(
                "",
                "After the end of a fault under 100 jobs (bounds: 5 s and 60 s):",
                "",
            ),
            *(
                "| fault | first job moves | 100 jobs settled |",
                "|---|---|---|",
                *recoveries,
                "",
            ),
        ]
    )


def shown(figure: Figure) -> str:
    """The figure with its unit, in three digits or whole."""
    number = f"{figure.value:,.0f}" if figure.value >= 1000 else f"{figure.value:.3g}"
    return f"{number} {figure.unit}".rstrip()


def bound(figure: Figure) -> str:
    """The bound, and whether the figure missed it."""
    missed = "" if figure.kept else ", **missed**"
    return f"{'at least' if figure.at_least else 'at most'} {figure.bound:g}{missed}"


def by_name(figures: Iterable[Figure]) -> dict[str, Figure]:
    """The figures by their names."""
    return {figure.name: figure for figure in figures}
