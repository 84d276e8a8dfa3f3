"""What the contract has paid for jobs, and what our transactions cost, by day, month,
customer or job.

Both come from the receipts of mined transactions, exact to the wei. So the sums agree
with the token's own transfers. Days and months are in UTC. A transaction counts at the
time at which the ledger learned that it was mined.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Engine, text

from supervisor_tasks.jobs.billing import SECONDS_PER_MINUTE
from supervisor_tasks.jobs.model import ChainStatus
from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.list_filter import filter_parameters
from supervisor_tasks.ledger.transaction_names import report_purpose

BILLED = [
    report_purpose(status)
    for status in ChainStatus
    if status.is_final and status is not ChainStatus.PANICKED
]
# the purposes of the transactions that report an end
ENDS = [*BILLED, report_purpose(ChainStatus.PANICKED)]


class Per(StrEnum):
    """What a row of the earnings is for."""

    DAY = "day"
    MONTH = "month"
    CUSTOMER = "customer"
    JOB = "job"


class EarningsSort(StrEnum):
    """The orders of the rows besides the usual one: the largest sum first."""

    CREDITS = "credits"
    MINUTES = "minutes"
    JOBS = "jobs"
    GAS = "gas"


@dataclass(frozen=True, slots=True)
class Earned:
    """What a day, a month, a customer or a job brought and cost.

    `jobs` are those whose end was reported, `minutes` what their customers paid for.
    `name` is empty for transactions that belong to no job, such as a registration.
    `customer`, `outcome` and `ended_at` are only of a job.
    """

    name: str
    jobs: int
    minutes: int
    earned_wei: int
    fees_wei: int
    customer: str | None = None
    outcome: str | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class EarningsFilter:
    """Which transactions count: those of a job, of the customers whose address begins
    so, or younger ones.
    """

    job_id: str | None = None
    customer: str | None = None
    since: timedelta | None = None


_SENT = """
    SELECT job_id, hash, done_at, COALESCE(earned, 0) AS earned, COALESCE(gas_used * gas_price_wei, 0) AS fees,
        state = 'MINED' AND purpose = ANY(:ends) AS is_end,
        state = 'MINED' AND purpose = ANY(:billed) AS is_billed
    FROM transactions
    WHERE cluster = :cluster AND state IN ('MINED', 'REVERTED')
        AND (CAST(:since_s AS float8) IS NULL OR done_at >= now() - :since_s * interval '1 second')
"""
# A claim's transaction belongs to no job when it is sent; the job keeps its hash in
# `claim_key`.
_SENT_WITH_CLAIMS = f"""
    SELECT COALESCE(sent.job_id, claims.claimed_id) AS job_id, done_at, earned, fees, is_end, is_billed
    FROM ({_SENT}) AS sent
    LEFT JOIN (
        SELECT job_id AS claimed_id, split_part(claim_key, ':', 1) AS claim_hash FROM jobs WHERE cluster = :cluster
    ) AS claims ON sent.job_id IS NULL AND claims.claim_hash = sent.hash
"""  # noqa: S608  our own words
# The same of one job, by indexes: a look at all transactions takes long.
_SENT_OF_JOB = """
    SELECT :job_id AS job_id, done_at, COALESCE(earned, 0) AS earned, COALESCE(gas_used * gas_price_wei, 0) AS fees,
        state = 'MINED' AND purpose = ANY(:ends) AS is_end,
        state = 'MINED' AND purpose = ANY(:billed) AS is_billed
    FROM transactions
    WHERE cluster = :cluster AND state IN ('MINED', 'REVERTED')
        AND (CAST(:since_s AS float8) IS NULL OR done_at >= now() - :since_s * interval '1 second')
        AND (job_id = :job_id OR id = (
            SELECT transaction_id FROM jobs JOIN signatures ON hash = split_part(claim_key, ':', 1)
            WHERE jobs.cluster = :cluster AND jobs.job_id = :job_id))
"""
_COUNTED = """
    SELECT sent.done_at, jobs.job_id, jobs.customer, jobs.outcome_status, sent.earned, sent.fees, sent.is_end,
        CASE WHEN sent.is_billed THEN greatest(COALESCE(jobs.elapsed_s, 0), 0) / :minute ELSE 0 END AS minutes
    FROM ({sent}) AS sent
    LEFT JOIN jobs ON jobs.cluster = :cluster AND jobs.job_id = sent.job_id
    WHERE (CAST(:job_id AS text) IS NULL OR jobs.job_id = :job_id)
        AND (CAST(:customer AS text) IS NULL OR jobs.customer LIKE :customer)
"""
_TODAY = text(
    """
    SELECT COALESCE(sum(earned), 0) AS earned_wei, count(*) AS jobs FROM transactions
    WHERE cluster = :cluster AND earned > 0 AND state = 'MINED'
        AND done_at >= date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
    """
)
_NAME = {
    Per.DAY: "to_char(done_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
    Per.MONTH: "to_char(done_at AT TIME ZONE 'UTC', 'YYYY-MM')",
    Per.CUSTOMER: "COALESCE(customer, '')",
    Per.JOB: "COALESCE(job_id, '')",
}
_ORDER = {
    Per.DAY: "name DESC",
    Per.MONTH: "name DESC",
    Per.CUSTOMER: "earned_wei DESC, name",
    Per.JOB: "last_at DESC, name",
}
_SORTED_BY = {
    "credits": "earned_wei",
    "minutes": "minutes",
    "jobs": "jobs",
    "gas": "fees_wei",
}
_SUMS = """
    count(*) FILTER (WHERE is_end) AS jobs, COALESCE(sum(minutes), 0) AS minutes,
    COALESCE(sum(earned), 0) AS earned_wei, COALESCE(sum(fees), 0) AS fees_wei
"""
_OF_A_JOB = ", max(customer) AS customer, max(outcome_status) AS outcome, max(done_at) FILTER (WHERE is_end) AS ended_at"


class Earnings:
    """The earnings of one cluster. Its methods raise LedgerUnavailableError, when the
    database does not answer; a retry helps.
    """

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    def rows(
        self,
        per: Per,
        wanted: EarningsFilter,
        most: int | None,
        sort: EarningsSort | None = None,
    ) -> list[Earned]:
        """The earnings per day, month, customer or job, at most `most` rows. Without
        `sort`, the latest rows come first; of customers, the largest sums.

        OFFSET 0 hides the limit from the planner of the inner query. If Postgres sees
        the limit, it expects to end early, and looks up the job of each transaction
        alone: the months of 200,000 jobs took 4.2 s. They take 1.5 s with OFFSET 0.
        """
        more = _OF_A_JOB if per is Per.JOB else ""
        counted = _counted(wanted, per)
        grouped = (
            f"SELECT {_NAME[per]} AS name, {_SUMS} {more}, max(done_at) AS last_at"  # noqa: S608  our own words
            f" FROM ({counted}) AS counted GROUP BY 1 OFFSET 0"
        )
        if sort is None:
            order = _ORDER[per]
        else:
            order = f"{_SORTED_BY[sort]} DESC, {_ORDER[per]}"
        query = f"SELECT * FROM ({grouped}) AS grouped ORDER BY {order} LIMIT :most"  # noqa: S608  our own words
        return list(map(_earned, self._read(query, wanted, most=most)))

    def total(self, wanted: EarningsFilter) -> Earned:
        """The sum of all rows, also of those that a limit leaves out."""
        (row,) = self._read(
            f"SELECT '' AS name, {_SUMS} FROM ({_counted(wanted)}) AS counted",  # noqa: S608
            wanted,
        )
        return _earned(row)

    def today(self) -> tuple[int, int]:
        """What has been earned since midnight (UTC) in wei, and with how many jobs; by
        an index, for live screens.
        """
        with read_connection(self._engine) as connection:
            row = connection.execute(_TODAY, {"cluster": self._cluster}).one()
        return int(row.earned_wei), row.jobs

    def _read(self, query: str, wanted: EarningsFilter, **more: Any) -> list[Any]:
        parameters = {
            "cluster": self._cluster,
            "ends": ENDS,
            "billed": BILLED,
            "minute": SECONDS_PER_MINUTE,
            "job_id": wanted.job_id,
            **filter_parameters(wanted.customer, wanted.since),
        }
        with read_connection(self._engine) as connection:
            return list(connection.execute(text(query), parameters | more))


def _counted(wanted: EarningsFilter, per: Per | None = None) -> str:
    """Return the query for what counts. It finds the jobs of claims only if it must:
    that reads all jobs.
    """
    if wanted.job_id is not None:
        return _COUNTED.format(sent=_SENT_OF_JOB)
    of_jobs = per in (Per.JOB, Per.CUSTOMER) or wanted.customer is not None
    return _COUNTED.format(sent=_SENT_WITH_CLAIMS if of_jobs else _SENT)


def _earned(row: Any) -> Earned:
    found = row._mapping
    status = found.get("outcome")
    return Earned(
        name=row.name,
        jobs=row.jobs,
        minutes=int(row.minutes),
        earned_wei=int(row.earned_wei),
        fees_wei=int(row.fees_wei),
        customer=found.get("customer"),
        outcome=None if status is None else ChainStatus(status).name,
        ended_at=found.get("ended_at"),
    )
