"""Lays the pages out for mkdocs: `python -m tests.support.docs_site FOLDER`.

The pages link to each other, and to files of the repository, by relative paths. So the
site has the same folders: the tracked pages, and the files that they link to.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def pages() -> list[Path]:
    """The tracked pages, by their paths in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return [Path(line) for line in listed.stdout.split()]


def links(page: Path) -> Iterator[Path]:
    """The files that a page links to, by their paths in the repository. A link that
    leaves it is an error.
    """
    for link in LINK.findall((REPOSITORY / page).read_text()):
        if "://" not in link and not link.startswith("mailto:"):
            target = (REPOSITORY / page).parent / link
            yield target.resolve().relative_to(REPOSITORY)


def lay_out(folder: Path) -> None:
    """Copy the pages and the files that they link to into the folder, in place of what
    was there.
    """
    shutil.rmtree(folder, ignore_errors=True)
    found = pages()
    for file in sorted({*found, *(target for page in found for target in links(page))}):
        if (REPOSITORY / file).is_file():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / file, folder / file)


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
