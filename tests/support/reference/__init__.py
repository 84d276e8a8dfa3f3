"""The pages of docs/reference/, generated from the code: `make docs` writes them, `make
check` compares them.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.support.reference import (
    alarms,
    commands,
    log_events,
    metrics,
    module_index,
    settings,
    states,
)

REPOSITORY = Path(__file__).resolve().parents[3]
FOLDER = REPOSITORY / "docs" / "reference"
STALE = "docs/reference: found {names} that differ from the code; expected the same text: run `make docs`"


@cache
def pages() -> Mapping[str, str]:
    """The text of each page, by the name of its file."""
    return {
        "alarms.md": alarms.page(REPOSITORY),
        "cli.md": commands.page(),
        "log-events.md": log_events.page(REPOSITORY),
        "metrics.md": metrics.page(),
        "modules.md": module_index.page(REPOSITORY),
        "settings.md": settings.page(REPOSITORY),
        "states-and-events.md": states.page(),
    }


def write(folder: Path = FOLDER) -> None:
    """Write the pages into the folder."""
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text)


def stale(folder: Path = FOLDER) -> list[str]:
    """The names of the pages that differ from the folder's, and of files there that are
    no page.
    """
    there = {file.name: file.read_text() for file in folder.glob("*")}
    expected = pages()
    return sorted(
        name
        for name in there.keys() | expected.keys()
        if there.get(name) != expected.get(name)
    )
