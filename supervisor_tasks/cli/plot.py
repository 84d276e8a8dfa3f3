"""Draws a label over time."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pygal
from pygal.style import CleanStyle

# pygal's import hook for maps, which we do not draw, makes each later import of the process warn (from Python 3.11).
sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, pygal.PluginImportFixer)]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A label's value from one run."""

    at: datetime
    value: float
    run_id: int


def drawn(label: str, cluster: str, points: Sequence[Drawn]) -> bytes:
    """Return an SVG document that loads no other files."""
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
