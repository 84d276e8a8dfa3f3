"""What a demo prints: one job's steps as they happen, its output and its bill."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from devgrid.chain.model import Account, ChainJob
from devgrid.cluster.cluster import GridCluster
from devgrid.grid import Grid
from devgrid.hand_in import credits_text
from devgrid.services.grid_logger import logged_lines
from supervisor_tasks.jobs.model import ChainStatus

# What the journal's events are called in the story.
STORY = {
    "Claimed": "claimed",
    "ScriptFetched": "script fetched",
    "Submitted": "submitted",
    "SlurmRunningObserved": "running",
    "SlurmCompleted": "ended",
    "CancelRequested": "cancel requested",
    "ToppedUp": "topped up",
    "SubmitRejected": "rejected by SLURM",
    "ScriptUnavailable": "no script",
}
NOTHING_EARNED = "The contract pays for whole minutes of SLURM's elapsed time, and the job ran for less than one."


class DemoError(Exception):
    """The job, or the grid under it, did not end as it should."""


@contextmanager
def ledger_of(grid: Grid) -> Iterator[Engine]:
    """The ledger of a grid's first cluster, for questions. Raises DemoError when its Postgres does not answer them."""
    engine = create_engine(grid.environment["DATABASE_URL"])
    try:
        yield engine
    except SQLAlchemyError as error:
        said = str(getattr(error, "orig", None) or error).partition("\n")[0]
        raise DemoError(
            f"the ledger's Postgres: {said}; expected it to answer until the end: run the demo again"
        ) from error
    finally:
        engine.dispose()


class DemoReporter:
    """Prints the story of a demo with the time of each step."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._started_s = time.monotonic()

    def note(self, text: str) -> None:
        """A line about the demo itself."""
        self._console.print(f"[dim]{self._clock()}  {text}[/dim]")

    def step(self, name: str, about: str, cluster: str = "") -> None:
        """A step of the story, with the cluster where there are several."""
        where = f"{cluster:<12}" if cluster else ""
        self._console.print(f"{self._clock()}  {where}[bold green]{name:<18}[/bold green]", end="")
        self._console.print(about, markup=False)

    def section(self, name: str, body: str) -> None:
        """A titled block of lines."""
        self._console.rule(name, align="left")
        self._console.print(body, markup=False)

    def _clock(self) -> str:
        return f"{time.monotonic() - self._started_s:7.2f} s"


class JobStory:
    """One job of a customer on one cluster, told while it happens."""

    def __init__(
        self, grid: Grid, cluster: GridCluster, customer: Account, engine: Engine, reporter: DemoReporter
    ) -> None:
        self._grid, self._cluster, self._customer = grid, cluster, customer
        self._engine, self._reporter = engine, reporter
        self._name = cluster.name if len(grid.clusters) > 1 else ""
        self._told: set[str] = set()
        self._balance_wei = grid.chain.credit_balance(customer.address)
        self._earned_wei = grid.chain.credit_balance(cluster.provider.address)
        self.job_id = ""

    @property
    def title(self) -> str:
        """What tells the blocks of several clusters apart."""
        return f" ({self._name})" if self._name else ""

    def begin(self, workflow_text: str) -> None:
        """Hand the job in. Raises HandInError when no cluster can run it."""
        on = self._cluster if self._name else None
        self._grid.check_hand_in(self._customer, workflow_text, on=on)
        self.job_id = self._grid.submit(self._customer, workflow_text, on=on)
        self._tell("requested", self.job_id)

    def claimed(self) -> bool:
        """Tell what is new; whether the job is claimed, or has come to its end without that."""
        return self.settled() or "claimed" in self._told

    def settled(self) -> bool:
        """Tell what is new; whether the job has come to its end."""
        job = self._job()
        if job.status >= ChainStatus.META_SCHEDULED:
            self._tell("meta-scheduled", f"to {job.provider}")
        for name, about in self._journal():
            self._tell(name, about)
        if job.status.cold:
            self._tell("settled", f"{job.status.name} in block {job.block_number_state_change}")
        return job.status.cold or "rejected by SLURM" in self._told

    def conclude(self) -> None:
        """Print the job's output, what SLURM says of it, and the bill. Raises DemoError unless the job has finished."""
        job = self._job()
        if not job.status.cold:
            lines = logged_lines(self._grid.folder / "user-logs", job.customer, self.job_id)
            raise DemoError("SLURM rejected the job: " + "; ".join(lines))
        output = self._cluster.output(job.customer, self.job_id).rstrip()
        self._reporter.section(f"The job's own output{self.title}", output or "(nothing)")
        self._tell_slurm()
        self._tell_bill(job)
        if job.status is not ChainStatus.FINISHED:
            raise DemoError(f"the job ended {job.status.name}: {job.last_error or 'no reason given'}")

    def _job(self) -> ChainJob:
        return self._grid.chain.job(self.job_id)

    def _tell(self, name: str, about: str) -> None:
        if name not in self._told:
            self._told.add(name)
            self._reporter.step(name, about, self._name)

    def _tell_slurm(self) -> None:
        query = text("SELECT slurm_id, elapsed_s, exit_status FROM jobs WHERE job_id = :job_id")
        with self._engine.connect() as connection:
            row = connection.execute(query, {"job_id": self.job_id}).one()
        body = (
            f"SLURM id         {row.slurm_id}\nelapsed          {row.elapsed_s} s\nraw wait status  {row.exit_status}"
        )
        self._reporter.section(f"SLURM{self.title}", body)

    def _tell_bill(self, job: ChainJob) -> None:
        balances = self._grid.chain.credit_balance
        per_minute = self._cluster.prices.of(job.definition)
        paid = self._balance_wei - balances(self._customer.address)
        earned = balances(self._cluster.provider.address) - self._earned_wei
        minutes = job.final_cost_wei // per_minute
        body = (
            f"minutes on chain    {minutes} (at {credits_text(per_minute)} each)\n"
            f"the customer paid   {credits_text(paid)}\n"
            f"the provider earned {credits_text(earned)}"
        )
        if not minutes:
            body += f"\n{NOTHING_EARNED}"
        self._reporter.section(f"The bill{self.title}", body)

    def _journal(self) -> list[tuple[str, str]]:
        """The named steps of the job so far, each with its details."""
        query = text("SELECT name, details FROM events WHERE job_id = :job_id ORDER BY id")
        with self._engine.connect() as connection:
            rows = connection.execute(query, {"job_id": self.job_id}).all()
        return [(STORY[row.name], _about(row.name, row.details)) for row in rows if row.name in STORY]


def _about(name: str, details: dict[str, object]) -> str:
    if name == "Submitted":
        return f"SLURM id {details['slurm_id']}"
    if name == "ScriptFetched":
        return f"{details['bytes']} bytes"
    if name == "Claimed":
        return f"for {details['time_limit_min']} minutes at most"
    if name == "SlurmRunningObserved":
        return "the contract pays for each whole minute"
    if name == "SlurmCompleted":
        outcome = details["outcome"]
        return f"{outcome['status']} after {outcome['elapsed_s']} s" if isinstance(outcome, dict) else ""
    return str(details.get("reason", ""))
