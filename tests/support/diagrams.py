"""Draws each diagram of the pages: `python -m tests.support.diagrams MERMAID_JS`. One
that cannot be drawn is an error.
"""

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from selenium import webdriver

from tests.support.docs_site import REPOSITORY, pages

DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```", re.MULTILINE | re.DOTALL)
DRAW = """
const [text, done] = arguments;
mermaid.render("drawn", text).then(drawn => done(drawn.svg ? "" : "it is empty"), error => done(String(error)));
"""
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def diagrams() -> Iterator[tuple[str, str]]:
    """Each diagram: the page and the line on which it begins, and its text."""
    for page in pages():
        text = (REPOSITORY / page).read_text()
        for found in DIAGRAM.finditer(text):
            yield f"{page}:{text.count(chr(10), 0, found.start()) + 1}", found[1]


def not_drawn(mermaid: Path) -> Iterator[str]:
    """A line for each diagram that the program of this file cannot draw."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for option in OPTIONS:
        options.add_argument(option)
    with (
        tempfile.TemporaryDirectory() as folder,
        webdriver.Chrome(
            options, webdriver.ChromeService("/usr/bin/chromedriver")
        ) as browser,
    ):
        page = Path(folder) / "page.html"
        page.write_text(
            f'<!doctype html><body><script src="{mermaid.resolve().as_uri()}"></script>'
        )
        browser.get(page.as_uri())
        for place, text in diagrams():
            error = browser.execute_async_script(DRAW, text)
            if error:
                yield f"{place}: found a diagram that mermaid cannot draw ({error}); expected one that it can"


if __name__ == "__main__":
    sys.exit("\n".join(not_drawn(Path(sys.argv[1]))) or 0)
