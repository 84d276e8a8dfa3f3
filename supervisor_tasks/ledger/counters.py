"""Totals that survive every process: jobs by outcome, minutes, credits, transactions,
gas, and how long steps took.

A change of the ledger and the counting of it are one transaction, so nothing is counted
twice or missed, with any number of workers. Each change inserts rows of its own
(`counter_increments`), so changes do not wait for each other. `fold` adds them to the
totals (`counters`) from time to time, and `read` adds the rest. So a scrape reads two
small tables.

A job is counted as settled once, and a transaction as mined once, also if a
reorganisation takes that back and it happens again: a counter of Prometheus never
falls.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum

from sqlalchemy import Connection, Engine, text

from supervisor_tasks.jobs.billing import SECONDS_PER_MINUTE
from supervisor_tasks.jobs.events import (
    Event,
    SubmitNotExecuted,
    SubmitOutcomeUnknown,
    SubmitRejected,
    Submitted,
)
from supervisor_tasks.jobs.model import ChainStatus, Job, JobId, State
from supervisor_tasks.ledger.bulk import as_rows, insert_rows
from supervisor_tasks.ledger.database import read_connection


class Total(StrEnum):
    """What is counted. The name is the key in the tables; a new name needs a migration
    only if old rows must move.
    """

    JOBS_CLAIMED = "jobs_claimed"
    JOBS_REFUSED = "jobs_refused"
    JOBS_SETTLED = "jobs_settled"  # by outcome
    BILLED_S = "billed_s"
    CREDITS = "credits"  # in the contract's smallest unit: 1e18 are one credit
    SUBMISSIONS = "submissions"  # by result
    CALLBACKS = "callbacks"  # read by a worker, by verdict
    TRANSACTIONS = "transactions"  # by result
    REPLACEMENTS = "replacements"
    GAS = "gas"
    FEES_WEI = "fees_wei"
    CLAIM_TO_SUBMIT = "claim_to_submit"  # a histogram, as is the next one
    END_TO_SETTLE = "end_to_settle"


BOUNDS_S = (
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1800.0,
    3600.0,
)
# the label of a histogram's sum, in microseconds; the other labels are upper bounds
SUM = "sum"
MICROSECONDS = 1_000_000
OUTCOMES = ("finished", "failed", "cancelled", "out_of_credits", "panicked", "lost")
RESULT_OF: dict[type[Event], str] = {
    Submitted: "accepted",
    SubmitRejected: "rejected",
    SubmitNotExecuted: "not_run",
    SubmitOutcomeUnknown: "unclear",
}
CALLBACK_MATCHES = ("matched", "early", "unknown_job")
TRANSACTION_RESULTS = ("mined", "reverted", "given_up", "foreign")

Key = tuple[Total, str]
Amounts = Counter[Key]
Jobs = Mapping[JobId, Job]

_FIRST_SUBMITTED = text(
    """
    SELECT EXTRACT(EPOCH FROM clock_timestamp() - created_at)::float8 FROM jobs
    WHERE cluster = :cluster AND job_id = ANY(:job_ids) AND NOT EXISTS (
        SELECT FROM events WHERE events.cluster = jobs.cluster AND events.job_id = jobs.job_id AND events.state = 'QUEUED')
    """
)
_FIRST_SETTLED = text(
    """
    SELECT wanted.job_id, (
        SELECT EXTRACT(EPOCH FROM clock_timestamp() - min(at))::float8 FROM events
        WHERE cluster = :cluster AND events.job_id = wanted.job_id AND state = 'ENDED'
    ) AS ended_s
    FROM unnest(CAST(:job_ids AS text[])) AS wanted(job_id)
    WHERE NOT EXISTS (
        SELECT FROM events WHERE cluster = :cluster AND events.job_id = wanted.job_id AND state = 'SETTLED')
    """
)
_ADD = insert_rows("counter_increments", ("cluster", "name", "label", "amount"))
_FOLD = text(
    """
    WITH gone AS (DELETE FROM counter_increments WHERE cluster = :cluster RETURNING name, label, amount)
    INSERT INTO counters (cluster, name, label, total)
    SELECT :cluster, name, label, sum(amount) FROM gone GROUP BY name, label ORDER BY name, label
    ON CONFLICT (cluster, name, label) DO UPDATE SET total = counters.total + excluded.total
    """
)
_READ = text(
    """
    SELECT name, label, sum(amount) AS total FROM (
        SELECT name, label, total AS amount FROM counters WHERE cluster = :cluster
        UNION ALL
        SELECT name, label, amount FROM counter_increments WHERE cluster = :cluster
    ) AS counted GROUP BY name, label
    """
)


class Counters:
    """The totals of one cluster. Its methods raise LedgerUnavailableError, when the
    database does not answer; a retry helps.
    """

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    def add(self, connection: Connection, amounts: Amounts) -> None:
        """Add to totals, in the transaction that makes the change."""
        rows = [
            {
                "cluster": self._cluster,
                "name": name.value,
                "label": label,
                "amount": amount,
            }
            for (name, label), amount in amounts.items()
            if amount
        ]
        if rows:
            connection.execute(_ADD, as_rows(rows))

    def count(
        self,
        connection: Connection,
        before: Jobs,
        after: Jobs,
        events: Sequence[tuple[Job, Event]],
    ) -> None:
        """Count a change of jobs, in its transaction and before the change is written
        to the journal.
        """
        amounts = events_counted(events) + jobs_counted(before, after)
        submitted = [
            job.job_id for job, event in events if isinstance(event, Submitted)
        ]
        if submitted:
            asked = {"cluster": self._cluster, "job_ids": submitted}
            amounts += observed(
                Total.CLAIM_TO_SUBMIT, connection.scalars(_FIRST_SUBMITTED, asked)
            )
        settled = entered(State.SETTLED, before, after)
        if settled:
            amounts += self._of_settled(connection, settled)
        self.add(connection, amounts)

    def _of_settled(self, connection: Connection, settled: Sequence[Job]) -> Amounts:
        """The amounts of jobs that are settled for the first time."""
        jobs = {job.job_id: job for job in settled}
        asked = {"cluster": self._cluster, "job_ids": list(jobs)}
        first, seconds = list[Job](), list[float]()
        for row in connection.execute(_FIRST_SETTLED, asked):
            first.append(jobs[row.job_id])
            if row.ended_s is not None:
                seconds.append(row.ended_s)
        return settled_counted(first) + observed(Total.END_TO_SETTLE, seconds)

    def fold(self) -> None:
        """Move the increments into the totals."""
        with self._engine.begin() as connection:
            connection.execute(_FOLD, {"cluster": self._cluster})

    def read(self) -> dict[tuple[str, str], Decimal]:
        """All totals that are not 0, by name and label."""
        with read_connection(self._engine) as connection:
            rows = connection.execute(_READ, {"cluster": self._cluster})
            return {(row.name, row.label): row.total for row in rows}


def events_counted(events: Iterable[tuple[Job, Event]]) -> Amounts:
    """What these events count. Pure."""
    amounts: Amounts = Counter()
    for _, event in events:
        if type(event) in RESULT_OF:
            amounts[Total.SUBMISSIONS, RESULT_OF[type(event)]] += 1
    return amounts


def jobs_counted(before: Jobs, after: Jobs) -> Amounts:
    """What these changes of jobs count, without the settled ones. Pure."""
    claimed = sum(job_id not in before for job_id in after)
    refused = len(entered(State.REFUSED, before, after))
    return Counter(
        {(Total.JOBS_CLAIMED, ""): claimed, (Total.JOBS_REFUSED, ""): refused}
    )


def settled_counted(jobs: Collection[Job]) -> Amounts:
    """What the first settlement of these jobs counts. The contract pays nothing for a
    job that panicked. Pure.
    """
    amounts: Amounts = Counter()
    for job in jobs:
        outcome = job.chain_status.name.lower()
        if outcome not in OUTCOMES:
            outcome = "lost"
        amounts[Total.JOBS_SETTLED, outcome] += 1
        is_paid = job.chain_status is not ChainStatus.PANICKED
        if job.outcome is not None and is_paid:
            amounts[Total.BILLED_S, ""] += job.outcome.minutes * SECONDS_PER_MINUTE
    return amounts


def entered(state: State, before: Jobs, after: Jobs) -> list[Job]:
    """The jobs that entered a state. Pure."""
    jobs = list[Job]()
    for job_id, job in after.items():
        was_there = job_id in before and before[job_id].state is state
        if job.state is state and not was_there:
            jobs.append(job)
    return jobs


def bucket(value_s: float) -> str:
    """The label of the first bucket that a duration fits into. Pure."""
    place = bisect_left(BOUNDS_S, value_s)
    return f"{BOUNDS_S[place]:g}" if place < len(BOUNDS_S) else "+Inf"


def observed(histogram: Total, seconds: Iterable[float]) -> Amounts:
    """What these durations add to a histogram: one to the bucket of each, and all to
    the sum in microseconds. Pure.
    """
    amounts: Amounts = Counter()
    for value_s in seconds:
        amounts[histogram, bucket(value_s)] += 1
        amounts[histogram, SUM] += round(max(value_s, 0.0) * MICROSECONDS)
    return amounts
