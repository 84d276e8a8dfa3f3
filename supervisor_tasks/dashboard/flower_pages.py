"""The pages: /jobs, and one for each job. Flower's own classes ask for the password and
draw the frame.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flower.views import BaseHandler
from tornado import template, web
from tornado.ioloop import IOLoop

from supervisor_tasks.cli.views import Cell, Column, View, cells
from supervisor_tasks.config.redaction import cleaned, hiding
from supervisor_tasks.dashboard.questions import QuestionError, UnknownJobError
from supervisor_tasks.errors import SupervisorError

if TYPE_CHECKING:
    from supervisor_tasks.dashboard.ledger_reader import LedgerReader

Answer = TypeVar("Answer")

TEMPLATES = Path(__file__).parent / "templates"
# A page runs no script but Flower's and ours, also if a customer's text contains one.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
JOBS = View(
    "jobs",
    "job_id",
    (
        Column("Job", "job_id", "id"),
        Column("Cluster", "cluster"),
        Column("State", "state", "state"),
        Column("Contract", "chain_status", "state"),
        Column("SLURM", "slurm_id", "number"),
        Column("Customer", "customer", "id"),
        Column("Claimed", "created_at", "age"),
        Column("Changed", "updated_at", "age"),
        Column("Ran", "elapsed_s", "span"),
        Column("Reason", "reason"),
    ),
)
FAILED = ("FAILED", "PANICKED")


class SupervisorPage(BaseHandler):  # type: ignore[misc]  # Flower has no types
    """A page of ours. `reader` returns the ledger's reader; its first call takes as
    long as an import of SQLAlchemy.
    """

    def initialize(self, reader: "Callable[[], LedgerReader]") -> None:
        """Tornado gives the arguments of the route."""
        self.reader = reader

    def set_default_headers(self) -> None:
        """Add the policy for scripts to Flower's headers."""
        super().set_default_headers()
        self.set_header("Content-Security-Policy", POLICY)
        self.set_header("Cache-Control", "no-store")

    async def read(self, question: Callable[[], Answer]) -> Answer:
        """Ask the ledger in a thread, so that Flower goes on meanwhile."""
        executor: Executor = self.application.executor
        return await IOLoop.current().run_in_executor(executor, question)

    def clean(self, text: object) -> str:
        """Return a text for a page, without secrets and control characters; the
        template escapes it.
        """
        return str(cleaned(str(text), hiding(self.reader().settings.secret_values())))

    def cell(self, cell: Cell) -> Cell:
        """Return a cell for a page."""
        return Cell(self.clean(cell.with_link), _style(cell.style))

    def cells(self, line: Iterable[Cell]) -> list[Cell]:
        """Return the cells of a line for a page."""
        return [self.cell(cell) for cell in line]

    def failure(self, error: SupervisorError) -> str:
        """Return what a page shows of an error, and set its status."""
        status = 503
        if isinstance(error, QuestionError):
            status = 400
        elif isinstance(error, UnknownJobError):
            status = 404
        self.set_status(status)
        return self.clean(error)


class JobsPage(SupervisorPage):
    """The jobs' table, with one search for id, customer and SLURM id."""

    @web.authenticated
    async def get(self) -> None:
        """Show the jobs that are neither settled nor given back and those that were
        last, or those that the search finds.
        """
        question = self.get_argument("q", "", escape=False)
        try:
            found = await self.read(lambda: self.reader().jobs(question))
        except SupervisorError as error:
            self.render(
                "supervisor_jobs.html",
                question=question,
                error=self.failure(error),
                columns=[],
                rows=[],
            )
            return
        columns, rows = cells(JOBS, found.rows, found.now, wide=False)
        self.render(
            "supervisor_jobs.html",
            question=question,
            error="",
            columns=columns,
            rows=[
                self._row(row, shown)
                for row, shown in zip(found.rows, rows, strict=True)
            ],
        )

    def _row(self, row: Mapping[str, Any], shown: Sequence[Cell]) -> dict[str, Any]:
        return {
            "link": self.reverse_url("supervisor_job", row["cluster"], row["job_id"]),
            "failed": row["chain_status"] in FAILED,
            "cells": [self.cell(cell) for cell in shown],
        }


class JobPage(SupervisorPage):
    """What happened to a job, and what comes next."""

    @web.authenticated
    async def get(self, cluster: str, job_id: str) -> None:
        """Show one job."""
        try:
            timeline = await self.read(lambda: self.reader().timeline(cluster, job_id))
        except SupervisorError as error:
            self.render(
                "supervisor_jobs.html",
                question="",
                error=self.failure(error),
                columns=[],
                rows=[],
            )
            return
        self.render(
            "supervisor_job.html",
            job_id=job_id,
            facts={
                name: self.cell(cell)
                for name, cell in timeline.facts.items()
                if cell.text
            },
            happened=[self.cells(line) for line in timeline.happened],
            comes_next=[self.cells(line) for line in timeline.comes_next],
        )


class FilePage(web.RequestHandler):
    """The style of our pages, or the script that shows failed jobs in red in Flower's
    own table.
    """

    def initialize(self, name: str, content_type: str) -> None:
        """Tornado gives the arguments of the route."""
        self.name, self.content_type = name, content_type

    def get(self) -> None:
        """Send it."""
        self.set_header("Content-Type", f"{self.content_type}; charset=utf-8")
        self.write((TEMPLATES / self.name).read_text())


class WithOurTemplates(template.Loader):
    """Flower's templates, ours beside them, a link to our pages in its navigation, and
    our style in its frame.
    """

    def _create_template(self, name: str) -> template.Template:
        if (TEMPLATES / name).is_file():
            return template.Template(
                (TEMPLATES / name).read_text(), name=name, loader=self
            )
        file = Path(self.root) / name
        text = file.read_text()
        for anchor, added in ADDED.get(name, {}).items():
            if anchor not in text:
                raise LookupError(
                    f"{file}: found no {anchor!r}; expected Flower's template of version 2.2"
                )
            text = text.replace(anchor, added, 1)
        return template.Template(text, name=name, loader=self)


ADDED = {
    "navbar.html": {
        '<ul class="app-nav navbar-nav">': """<ul class="app-nav navbar-nav">
        <li class="nav-item">
          <a class="nav-link{% if active_tab == 'jobs' %} active{% end %}" href="{{ reverse_url('supervisor_jobs') }}"
            {% if active_tab == 'jobs' %}aria-current="page"{% end %}>Jobs</a>
        </li>"""
    },
    "base.html": {
        "</head>": """  <link href="{{ reverse_url('supervisor_style') }}" rel="stylesheet">
  </head>""",
        "</body>": """  <script src="{{ reverse_url('supervisor_script') }}"></script>
  </body>""",
    },
    "tasks.html": {
        '<button class="task-state-filter" type="button" data-task-state="RETRY"': (
            '<button class="task-state-filter" type="button" data-task-state="JOB-FAILED" aria-pressed="false">Job failed'
            '</button>\n    <button class="task-state-filter" type="button" data-task-state="RETRY"'
        )
    },
    "task.html": {
        '{% elif task.state == "FAILURE" %}': '{% elif task.state in ("FAILURE", "JOB-FAILED") %}'
    },
}


def _style(style: str) -> str:
    """Return the class of a cell's style."""
    return f"is-{style}" if style else ""
