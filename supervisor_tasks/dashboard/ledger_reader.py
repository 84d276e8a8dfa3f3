"""What the pages read of the ledger: jobs of all clusters, found by id, SLURM id or
customer, and the timeline of one.

The connection is read-only, and a query has QUERY_TIMEOUT_S: no page can change a job,
or keep the database busy.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from supervisor_tasks.cli.bill import Bill, assigned_prices
from supervisor_tasks.cli.timeline import facts_of, lines_of, next_of
from supervisor_tasks.cli.views import Cell
from supervisor_tasks.config.embedded_servers import running_database_url
from supervisor_tasks.config.settings import Settings, load
from supervisor_tasks.dashboard.questions import (
    QueryRejectedError,
    Question,
    UnknownJobError,
    parsed,
)
from supervisor_tasks.jobs.model import Job, JobId, State
from supervisor_tasks.ledger.clusters import known_clusters
from supervisor_tasks.ledger.database import open_engine
from supervisor_tasks.ledger.earnings import Earnings, EarningsFilter
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.registrations import Registrations
from supervisor_tasks.ledger.status_queries import JobFilter, Overview, Row

QUERY_TIMEOUT_S = 5
READ_ONLY = (
    f"-c default_transaction_read_only=on -c statement_timeout={QUERY_TIMEOUT_S * 1000}"
)
MAX_CONNECTIONS = 3
MAX_OPEN_JOBS = 200
MAX_SETTLED_JOBS = 50
MAX_FOUND_JOBS = 100
ADDRESS_CHARACTERS = 42
ALL_STATES = tuple(state.value for state in State)


@dataclass(frozen=True, slots=True)
class JobList:
    """Jobs, each with its cluster, at the time of the database. `clusters` are all that
    the ledger knows.
    """

    rows: Sequence[Row]
    clusters: Sequence[str]
    now: datetime


@dataclass(frozen=True, slots=True)
class JobTimeline:
    """A job: its facts, what happened to it, and what comes next, as the operator's
    command shows them.
    """

    facts: dict[str, Cell]
    happened: list[list[Cell]] = field(default_factory=list)
    comes_next: list[list[Cell]] = field(default_factory=list)


class LedgerReader:
    """Reads the ledger of all clusters. Threads may share it. Raises
    LedgerUnavailableError; a retry helps.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._given = settings

    @cached_property
    def settings(self) -> Settings:
        """The settings, without any key. Raises SettingsError: no retry helps."""
        return self._given or load()

    @cached_property
    def engine(self) -> Engine:
        """The database. Raises NoDatabaseError when none is configured and none of a
        fleet's own runs; a retry helps once one runs.
        """
        url = running_database_url(self.settings)
        return open_engine(url, connections=MAX_CONNECTIONS, options=READ_ONLY)

    def jobs(self, question: str = "") -> JobList:
        """The jobs that the question names; without one, all that are neither settled
        nor given back, and those that were last.

        Raises QuestionError, for which no retry helps, or QueryRejectedError.
        """
        with _rejections():
            return self._jobs(question)

    def _jobs(self, question: str) -> JobList:
        words, find = question.strip(), _unsettled_and_last
        if words:
            find = partial(_named, wanted=parsed(words))
        clusters = known_clusters(self.engine)
        rows: list[Row] = []
        for cluster in clusters:
            found = find(Overview(self.engine, cluster))
            rows += [{**row, "cluster": cluster} for row in found]
        return JobList(rows, clusters, Overview(self.engine, "").now())

    def timeline(self, cluster: str, job_id: str) -> JobTimeline:
        """What is known of a job. Raises UnknownJobError, for which no retry helps,
        or QueryRejectedError.
        """
        with _rejections():
            return self._timeline(cluster, job_id)

    def _timeline(self, cluster: str, job_id: str) -> JobTimeline:
        ledger = Ledger(self.engine, cluster, dispatch=_dispatch_nothing)
        job = ledger.jobs([job_id]).get(JobId(job_id))
        if job is None:
            raise UnknownJobError(
                f"found no job {job_id} of cluster {cluster!r}; expected one that /jobs lists"
            )
        overview = Overview(self.engine, cluster)
        row = overview.job(job_id)
        timeline = overview.timeline(job_id)
        now = overview.now()
        return JobTimeline(
            {
                "cluster": Cell(cluster),
                **facts_of(job, row, now, timeline),
                **_bill(ledger, job, row).facts(),
            },
            lines_of(
                timeline, details=False, transaction_url=self.settings.explorer_url
            ),
            next_of(job, timeline, now),
        )


@contextmanager
def _rejections() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        raise QueryRejectedError(
            "the ledger's database rejected the question; see `supervisor db status`"
        ) from error


def _bill(ledger: Ledger, job: Job, row: Row) -> Bill:
    """The bill of a job, as `supervisor job show` has it."""
    paid = Earnings(ledger.engine, ledger.cluster).total(EarningsFilter(job.job_id))
    prices = assigned_prices(
        job,
        row["created_at"],
        Registrations(ledger.facts).registered_prices(),
        paid.earned_wei,
    )
    return Bill(job, prices, paid.earned_wei, paid.fees_wei)


def _unsettled_and_last(overview: Overview) -> list[Row]:
    return overview.jobs(JobFilter(limit=MAX_OPEN_JOBS)) + overview.lately_over(
        MAX_SETTLED_JOBS
    )


def _named(overview: Overview, wanted: Question) -> list[Row]:
    if wanted.slurm_id:
        return overview.jobs_of_ids(overview.named(f"slurm:{wanted.slurm_id}"))
    rows = list(overview.jobs_of_ids(overview.named(wanted.beginning)))
    if len(wanted.beginning) <= ADDRESS_CHARACTERS:
        rows += overview.jobs(
            JobFilter(ALL_STATES, wanted.beginning, limit=MAX_FOUND_JOBS)
        )
    by_id = {row["job_id"]: row for row in rows}  # each job once
    return list(by_id.values())


def _dispatch_nothing(_: object) -> None:
    """A reader opens no effect."""
