"""Adds our pages to Flower. flowerconfig.py calls it, which Flower reads before it makes its own."""

from flower import urls
from tornado.web import url

from supervisor_tasks.dashboard.ledger_reader import LedgerReader
from supervisor_tasks.dashboard.pages import JobPage, JobsPage, StylePage, WithOurTemplates


def install() -> None:
    """Add the routes, the templates and the link in the navigation."""
    reader = {"reader": LedgerReader()}
    urls.handlers[:0] = [
        url(r"/jobs", JobsPage, reader, name="supervisor_jobs"),
        url(r"/jobs/([A-Za-z0-9_.-]+)/(0x[0-9a-f]{64})", JobPage, reader, name="supervisor_job"),
        url(r"/supervisor.css", StylePage, name="supervisor_style"),
    ]
    urls.settings["template_loader"] = WithOurTemplates(urls.settings["template_path"])
