"""Draws a label over time, and earnings as bars, as SVG documents that load no other
files.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pygal
from pygal.style import CleanStyle

from supervisor_tasks.cli.views import Bar

# pygal's import hook for maps, which we do not draw, makes each later import of the
# process warn (from Python 3.11).
sys.meta_path[:] = [
    finder
    for finder in sys.meta_path
    if not isinstance(finder, pygal.PluginImportFixer)
]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A label's value from one run."""

    at: datetime
    value: float
    run_id: int


def drawn(label: str, cluster: str, points: Sequence[Drawn]) -> bytes:
    """Return the values of a label over time."""
    chart = pygal.DateTimeLine(
        title=f"{label} of {cluster}",
        js=[],
        style=CleanStyle,
        show_legend=False,
        x_label_rotation=25,
        x_value_formatter=lambda at: at.strftime("%Y-%m-%d %H:%M"),
        value_formatter=lambda value: f"{value:.2f}",
        include_x_axis=True,
        disable_xml_declaration=False,
    )
    values = [
        {"value": (one.at.astimezone(UTC), one.value), "label": f"run {one.run_id}"}
        for one in sorted(points, key=lambda one: one.at)
    ]
    chart.add(label, values)
    picture: bytes = chart.render()
    return picture


def drawn_bars(title: str, bars: Sequence[Bar]) -> bytes:
    """Return bars, from the left to the right in the order in which they are given."""
    chart = pygal.Bar(
        title=title,
        js=[],
        style=CleanStyle,
        show_legend=False,
        x_label_rotation=25,
        value_formatter=lambda value: f"{value:.6g}",
        disable_xml_declaration=False,
    )
    chart.x_labels = [bar.name for bar in bars]
    chart.add("", [{"value": bar.value, "label": bar.text} for bar in bars])
    picture: bytes = chart.render()
    return picture
