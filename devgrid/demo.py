"""The demo: one job from the chain to SLURM and back, told live."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from sqlalchemy import Engine, create_engine, text

from devgrid.benchmarking import GPUS_PER_NODE, NODES, prepare
from devgrid.chain import Account, Job, Prices
from devgrid.grid import CREDIT, Grid
from devgrid.measured import measure_and_approve
from devgrid.process import wait_until
from devgrid.services import logged_lines
from devgrid.workflow import load
from supervisor_tasks.job import ChainStatus

LONGEST_S = 3600.0  # a job may take its time; each step before it runs may not
TO_CLAIM_S = 60.0
BLOCK_TIME_S = 0.25

# What the journal's events are called in the story.
STORY = {
    "Claimed": "claimed",
    "ScriptFetched": "script fetched",
    "Submitted": "submitted",
    "SlurmStarted": "running",
    "SlurmEnded": "ended",
    "CancelRequested": "cancel requested",
    "ToppedUp": "topped up",
    "SubmitRejected": "rejected by SLURM",
    "ScriptUnavailable": "no script",
}


class DemoError(Exception):
    """The job did not get there."""


def run(workflow_text: str, keep_as: Path | None, benchmark: bool = False) -> None:
    """Run a workflow file to its end on a grid of its own. With `keep_as`, a link of that name leads to the grid, which
    stays up. With `benchmark`, the grid does not know the cluster before it is measured. Raises WorkflowError, StartError,
    DemoError or TimeoutError.
    """
    load(workflow_text)
    teller = _Teller()
    nodes, gpus = (NODES, GPUS_PER_NODE) if benchmark else (4, 2)
    grid = Grid.start(
        block_time_s=BLOCK_TIME_S, tell=teller.note, registered=not benchmark, nodes=nodes, gpus_per_node=gpus
    )
    kept = False
    try:
        if benchmark:
            prepare(grid)
        teller.note("starting the fleet: worker, beat, gRPC process, Flower")
        grid.fleet.migrate()
        fleet = grid.fleet
        fleet.start_callbacks(wait=False)
        fleet.start_worker()
        fleet.start_beat()
        fleet.start_flower()
        fleet.wait_for_callbacks()
        if benchmark:
            measure_and_approve(grid, teller.step)
        customer = grid.new_customer(role="customer")
        _journey(grid, customer, workflow_text, teller)
        if keep_as is not None:
            fleet.wait_for_flower()
            keep_as.symlink_to(grid.folder)
            grid.keep()
            kept = True
            teller.how_to_go_on(grid.folder, fleet.flower_url)
    finally:
        if not kept:
            teller.note("stopping everything")
            grid.stop()


class _Teller:
    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._started_s = time.monotonic()

    def note(self, text: str) -> None:
        self._console.print(f"[dim]{self._clock()}  {text}[/dim]")

    def step(self, name: str, about: str) -> None:
        self._console.print(f"{self._clock()}  [bold green]{name:<18}[/bold green]", end="")
        self._console.print(about, markup=False)

    def section(self, name: str, body: str) -> None:
        self._console.rule(name, align="left")
        self._console.print(body, markup=False)

    def how_to_go_on(self, folder: Path, flower_url: str) -> None:
        self.section(
            "The grid is up",
            f"Flower          {flower_url}\n"
            f"state and logs  {folder}\n\n"
            "  .venv/bin/python -m devgrid submit devgrid/workflows/sleeper.yaml\n"
            "  .venv/bin/python -m devgrid jobs\n"
            "  .venv/bin/python -m devgrid output ID\n"
            "  .venv/bin/python -m devgrid top-up ID CREDITS\n"
            "  .venv/bin/python -m devgrid cancel ID\n"
            "  .venv/bin/python -m devgrid down          stops it and removes its files",
        )

    def _clock(self) -> str:
        return f"{time.monotonic() - self._started_s:7.2f} s"


def _journey(grid: Grid, customer: Account, workflow_text: str, teller: _Teller) -> None:
    prices, before = Prices(), grid.chain.credit_balance(customer.address)
    provider = grid.chain.account("provider").address
    earned_before = grid.chain.credit_balance(provider)
    job_id = grid.submit(customer, workflow_text)
    teller.step("requested", job_id)
    with _ledger(grid) as engine:
        _tell_life(grid, engine, job_id, teller)
        settled = grid.chain.job(job_id)
        _tell_end(grid, engine, settled, teller)
    paid = before - grid.chain.credit_balance(customer.address)
    earned = grid.chain.credit_balance(provider) - earned_before
    minutes = settled.final_cost_wei // prices.of(settled.definition)
    teller.section(
        "The bill",
        f"minutes on chain    {minutes} (at {prices.of(settled.definition) / CREDIT:.4f} credits each)\n"
        f"the customer paid   {paid / CREDIT:.4f} credits\n"
        f"the provider earned {earned / CREDIT:.4f} credits",
    )
    if settled.status is not ChainStatus.FINISHED:
        raise DemoError(f"the job ended {settled.status.name}: {settled.last_error or 'no reason given'}")


def _tell_life(grid: Grid, engine: Engine, job_id: str, teller: _Teller) -> None:
    told: set[str] = set()

    def settled() -> bool:
        job = grid.chain.job(job_id)
        if job.status >= ChainStatus.META_SCHEDULED and "meta-scheduled" not in told:
            told.add("meta-scheduled")
            teller.step("meta-scheduled", f"to {job.provider}")
        for name, about in _journal(engine, job_id):
            if name not in told:
                told.add(name)
                teller.step(name, about)
        return job.status.cold or "rejected by SLURM" in told

    wait_until(lambda: settled() or "claimed" in told, "the job to be claimed", TO_CLAIM_S, every_s=0.05)
    wait_until(settled, "the job to be settled", LONGEST_S, every_s=0.05)
    job = grid.chain.job(job_id)
    if not job.status.cold:
        raise DemoError(
            "SLURM rejected the job: " + "; ".join(logged_lines(grid.folder / "user-logs", job.customer, job_id))
        )
    teller.step("settled", f"{job.status.name} in block {job.block_number_state_change}")


def _tell_end(grid: Grid, engine: Engine, job: Job, teller: _Teller) -> None:
    teller.section("The job's own output", grid.output(job.customer, job.job_id).rstrip() or "(nothing)")
    with engine.connect() as connection:
        query = text("SELECT slurm_id, elapsed_s, exit_status FROM jobs WHERE job_id = :job_id")
        row = connection.execute(query, {"job_id": job.job_id}).one()
    teller.section(
        "SLURM",
        f"SLURM id         {row.slurm_id}\nelapsed          {row.elapsed_s} s\nraw wait status  {row.exit_status}",
    )


@contextmanager
def _ledger(grid: Grid) -> Iterator[Engine]:
    engine = create_engine(grid.environment["DATABASE_URL"])
    try:
        yield engine
    finally:
        engine.dispose()


def _journal(engine: Engine, job_id: str) -> list[tuple[str, str]]:
    """The named steps of a job so far, each with what there is to say of it."""
    query = text("SELECT name, details FROM events WHERE job_id = :job_id ORDER BY id")
    with engine.connect() as connection:
        rows = connection.execute(query, {"job_id": job_id}).all()
    return [(STORY[row.name], _about(row.name, row.details)) for row in rows if row.name in STORY]


def _about(name: str, details: dict[str, object]) -> str:
    if name == "Submitted":
        return f"SLURM id {details['slurm_id']}"
    if name == "ScriptFetched":
        return f"{details['bytes']} bytes"
    if name == "Claimed":
        return f"for {details['time_limit_min']} minutes at most"
    if name == "SlurmEnded":
        outcome = details["outcome"]
        return f"{outcome['status']} after {outcome['elapsed_s']} s" if isinstance(outcome, dict) else ""
    return str(details.get("reason", ""))
