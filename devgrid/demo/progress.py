"""Prints a demo: the steps of each job as they happen, its output and its bill."""

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

# The names of the journal's events in the demo.
STEPS = {
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
    """The job did not finish, or the grid failed."""


@contextmanager
def ledger_of(grid: Grid) -> Iterator[Engine]:
    """The ledger of a grid's first cluster, for queries. Raises DemoError when its
    Postgres does not answer.
    """
    engine = create_engine(grid.environment["DATABASE_URL"])
    try:
        yield engine
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).partition("\n")[0]
        raise DemoError(
            f"the ledger's Postgres: {reason}; expected it to answer until the end: run the demo again"
        ) from error
    finally:
        engine.dispose()


class DemoReporter:
    """Prints the steps of a demo, each with its time."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._started_s = time.monotonic()

    def note(self, text: str) -> None:
        """Print a line about the demo itself."""
        self._console.print(f"[dim]{self._clock()}  {text}[/dim]")

    def step(self, name: str, details: str, cluster: str = "") -> None:
        """Print a step of a job, with the cluster if there are several."""
        where = f"{cluster:<12}" if cluster else ""
        self._console.print(
            f"{self._clock()}  {where}[bold green]{name:<18}[/bold green]", end=""
        )
        self._console.print(details, markup=False)

    def section(self, name: str, body: str) -> None:
        """Print a block of lines with a title."""
        self._console.rule(name, align="left")
        self._console.print(body, markup=False)

    def _clock(self) -> str:
        return f"{time.monotonic() - self._started_s:7.2f} s"


class JobProgress:
    """One job of a customer on one cluster. Shows the steps of the job as they
    happen.
    """

    def __init__(
        self,
        grid: Grid,
        cluster: GridCluster,
        customer: Account,
        engine: Engine,
        reporter: DemoReporter,
    ) -> None:
        self._grid, self._cluster, self._customer = grid, cluster, customer
        self._engine, self._reporter = engine, reporter
        self._name = cluster.name if len(grid.clusters) > 1 else ""
        self._shown: set[str] = set()
        self._balance_wei = grid.chain.credit_balance(customer.address)
        self._earned_wei = grid.chain.credit_balance(cluster.provider.address)
        self.job_id = ""

    @property
    def title(self) -> str:
        """The cluster, for the titles of blocks; empty if there is only one."""
        return f" ({self._name})" if self._name else ""

    def begin(self, workflow_text: str) -> None:
        """Submit the job. Raises HandInError when no cluster can run it."""
        on = self._cluster if self._name else None
        self._grid.check_hand_in(self._customer, workflow_text, on=on)
        self.job_id = self._grid.submit(self._customer, workflow_text, on=on)
        self._show("requested", self.job_id)

    def claimed(self) -> bool:
        """Show the new steps. Returns whether the job is claimed, or has ended without
        that.
        """
        return self.settled() or "claimed" in self._shown

    def settled(self) -> bool:
        """Show the new steps. Returns whether the job has ended."""
        job = self._job()
        if job.status >= ChainStatus.META_SCHEDULED:
            self._show("meta-scheduled", f"to {job.provider}")
        for name, details in self._journal():
            self._show(name, details)
        if job.status.is_final:
            self._show(
                "settled", f"{job.status.name} in block {job.block_number_state_change}"
            )
        return job.status.is_final or "rejected by SLURM" in self._shown

    def conclude(self) -> None:
        """Print the job's output, SLURM's figures, and the bill. Raises DemoError
        unless the job has finished.
        """
        job = self._job()
        if not job.status.is_final:
            lines = logged_lines(
                self._grid.folder / "user-logs", job.customer, self.job_id
            )
            raise DemoError("SLURM rejected the job: " + "; ".join(lines))
        output = self._cluster.output(job.customer, self.job_id).rstrip()
        self._reporter.section(
            f"The job's own output{self.title}", output or "(nothing)"
        )
        self._show_slurm()
        self._show_bill(job)
        if job.status is not ChainStatus.FINISHED:
            raise DemoError(
                f"the job ended {job.status.name}: {job.last_error or 'no reason given'}"
            )

    def _job(self) -> ChainJob:
        return self._grid.chain.job(self.job_id)

    def _show(self, name: str, details: str) -> None:
        if name not in self._shown:
            self._shown.add(name)
            self._reporter.step(name, details, self._name)

    def _show_slurm(self) -> None:
        query = text(
            "SELECT slurm_id, elapsed_s, exit_status FROM jobs WHERE job_id = :job_id"
        )
        with self._engine.connect() as connection:
            row = connection.execute(query, {"job_id": self.job_id}).one()
        body = f"SLURM id         {row.slurm_id}\nelapsed          {row.elapsed_s} s\nraw wait status  {row.exit_status}"
        self._reporter.section(f"SLURM{self.title}", body)

    def _show_bill(self, job: ChainJob) -> None:
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
        """The steps of the job so far that have a name, each with its details."""
        query = text(
            "SELECT name, details FROM events WHERE job_id = :job_id ORDER BY id"
        )
        with self._engine.connect() as connection:
            rows = connection.execute(query, {"job_id": self.job_id}).all()
        return [
            (STEPS[row.name], _details(row.name, row.details))
            for row in rows
            if row.name in STEPS
        ]


def _details(name: str, details: dict[str, object]) -> str:
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
        return (
            f"{outcome['status']} after {outcome['elapsed_s']} s"
            if isinstance(outcome, dict)
            else ""
        )
    return str(details.get("reason", ""))
