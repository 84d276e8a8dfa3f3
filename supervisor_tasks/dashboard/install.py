"""Adds our pages to Flower. flowerconfig.py calls it; Flower reads that file before it
makes its own pages.
"""

from functools import cache
from typing import TYPE_CHECKING

from flower import urls
from tornado.web import url

from supervisor_tasks.dashboard.flower_pages import (
    FilePage,
    JobPage,
    JobsPage,
    WithOurTemplates,
)

if TYPE_CHECKING:
    from supervisor_tasks.dashboard.ledger_reader import LedgerReader


def install() -> None:
    """Add the routes, the templates and the link in the navigation."""
    reader = {"reader": _reader}
    urls.handlers[:0] = [
        url(r"/jobs", JobsPage, reader, name="supervisor_jobs"),
        url(
            r"/jobs/([A-Za-z0-9_.-]+)/(0x[0-9a-f]{64})",
            JobPage,
            reader,
            name="supervisor_job",
        ),
        url(
            r"/supervisor.css",
            FilePage,
            _file("css", "text/css"),
            name="supervisor_style",
        ),
        url(
            r"/supervisor.js",
            FilePage,
            _file("js", "text/javascript"),
            name="supervisor_script",
        ),
    ]
    urls.settings["template_loader"] = WithOurTemplates(urls.settings["template_path"])


@cache
def _reader() -> "LedgerReader":
    """Import the ledger's reader when the first page is opened: it takes 28 MB, and
    Flower's own pages do not need it.
    """
    from supervisor_tasks.dashboard.ledger_reader import LedgerReader

    return LedgerReader()


def _file(ending: str, content_type: str) -> dict[str, str]:
    return {"name": f"supervisor.{ending}", "content_type": content_type}
