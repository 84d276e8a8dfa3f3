"""The commands for benchmarks: measure the cluster, show the results, draw a label over
time.
"""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from supervisor_tasks.cli import options
from supervisor_tasks.cli.cli_context import CliContext, cli_context
from supervisor_tasks.cli.exit_codes import CommandError
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.output import Output
from supervisor_tasks.cli.views import STYLES, Bar, Cell, Column, View, ago
from supervisor_tasks.cli.wording import counted, joined
from supervisor_tasks.config.needs import Need
from supervisor_tasks.config.settings import load
from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.ledger.status_queries import OpenEffectFilter

NO_RUN = "0" * 16  # instead of the number of a real run
RunNumber = Annotated[
    int | None,
    typer.Option(
        "--run", min=1, max=options.MAX_NUMBER, help="Instead of the last one."
    ),
]
NODES = View(
    "nodes",
    "name",
    tuple(Column(name.upper(), name) for name in ("name", "cpus", "gpus", "mem_mb")),
)
BENCHMARKS = View(
    "benchmarks",
    "benchmark",
    (
        Column("BENCHMARK", "benchmark"),
        Column("STATE", "state", "state"),
        Column("SLURM", "slurm_id", "number"),
        Column("SLURM_STATE", "slurm_state", "state"),
        Column("TOOL", "tool", wide=True),
        Column("OUTPUT_BYTES", "output_bytes", "number", wide=True),
        Column("BEGAN", "called_at", "age"),
        Column("ENDED", "ended_at", "age"),
        Column("REASON", "reason", wide=True),
    ),
)
LABELS = View(
    "labels",
    "label",
    (
        Column("BENCHMARK", "benchmark"),
        Column("LABEL", "label"),
        Column("VALUE", "value"),
    ),
)
RUNS = View(
    "benchmark runs",
    "id",
    (
        Column("RUN", "id", "number"),
        Column("STATE", "state", "state"),
        Column("ASKED", "asked_at", "age"),
        Column("ENDED", "ended_at", "age"),
        Column("WHY", "why", flexible=True),
        Column("HARDWARE", "hardware", flexible=True),
        Column("CANCELLED", "cancel_reason", flexible=True),
    ),
)
VALUES = View(
    "values",
    "run",
    (
        Column("AT", "at", "age"),
        Column("RUN", "run", "number"),
        Column("BENCHMARK", "benchmark"),
        Column("VALUE", "value"),
    ),
)
app = options.noun(
    "Measure the cluster, and see what was measured.", example="benchmark show"
)


@app.command()
def run(
    context: typer.Context, reason: options.Reason = "", yes: options.Yes = False
) -> None:
    """Have the cluster measured now; one run at a time.

    Example: supervisor benchmark run --reason "new switches"
    """
    cli = cli_context(context)
    if cli.settings.benchmark_disable:
        raise CommandError(
            "found BENCHMARK_DISABLE; expected it to be false: change it to have the cluster measured"
        )
    _refuse_second_run(cli)
    jobs = counted(sum(cli.overview.snapshot().jobs.values()), "open job")
    will = f"the benchmarks will use the cluster's nodes beside {jobs}"
    with cli.change("benchmark run", "benchmarks", will, yes=yes, reason=reason):
        number = cli.ledger.benchmarks.ask(reason or "the operator asked")
        if number is None:
            _refuse_second_run(cli)
    typer.echo(
        f"run {number} is asked for; `supervisor benchmark show` shows its progress"
    )


def _refuse_second_run(cli: CliContext) -> None:
    under_way = cli.ledger.benchmarks.under_way()
    if under_way is not None:
        raise CommandError(
            f"found run {under_way.id} under way; expected none: `supervisor benchmark show`, or `supervisor benchmark"
            " cancel`"
        )


@app.command()
def plan(
    context: typer.Context,
    output: options.Output = Format.TABLE,
    no_color: options.NoColor = False,
) -> None:
    """Show what a run that began now would submit: nodes, options of sbatch, scripts;
    it asks SLURM for the nodes, with SLURM_SSH_PRIVATE_KEY, submits nothing and stores
    nothing.

    Example: supervisor benchmark plan
    """
    # in here, because no other command needs these imports
    from benchmarks.registry import SUITE
    from supervisor_tasks.benchmarking.planned_jobs import jobs_of
    from supervisor_tasks.bootstrap import slurm_services
    from supervisor_tasks.from_settings.benchmark_plan import plan_of

    cli = cli_context(context)
    cli.shown.color = not no_color
    cli.print_target()
    settings = load(Need.SLURM)
    slurm = slurm_services(settings)
    try:
        hardware = slurm.nodes.hardware()
    finally:
        slurm.cluster.close()
    if not hardware.nodes:
        raise CommandError(
            f"found {len(hardware.excluded_nodes)} nodes, and none works; expected one that does: see"
            " `sinfo -R` on the login node"
        )
    try:
        jobs = jobs_of(
            plan_of(settings, hardware, NO_RUN),
            SUITE.values(),
            settings.benchmark_sbatch_flags,
        )
    except ValueError as error:
        raise CommandError(
            f"the run cannot be planned: {error}; change the setting that it names"
        ) from error
    nodes = [asdict(node) for node in hardware.nodes]
    if output in (Format.JSON, Format.YAML):
        shown = [
            {"benchmark": job.benchmark, "options": job.options, "script": job.script}
            for job in jobs
        ]
        cli.shown.document({"nodes": nodes, "jobs": shown}, output)
        return
    if output is Format.NAME:
        for job in jobs:
            typer.echo(job.benchmark)
        return
    cli.shown.table(NODES, nodes, datetime.now(UTC))
    for job in jobs:
        typer.echo(
            f"\n--- {job.benchmark}: sbatch {shlex.join(job.options)}\n\n{job.script}"
        )


@app.command()
def show(
    context: typer.Context,
    run_id: RunNumber = None,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """Show a run: why, on which hardware, and for each benchmark its SLURM job and its
    labels, or why it has none.

    Example: supervisor benchmark show --run 3
    """
    cli = cli_context(context)
    cli.shown.color = not no_color
    number = _run_number(cli, run_id)
    cli.shown.repeated(lambda: _show_run(cli, number, output), watch)


def _show_run(cli: CliContext, number: int, output: Format) -> None:
    run = cli.ledger.benchmark_queries.run(number)
    results = cli.ledger.benchmark_queries.results(number)
    assert run is not None  # noqa: S101  `_run_number` has just found it, and no run is deleted
    run = run | {"last_error": _last_error(cli, number)}
    cli.shown.one(
        {"run": run, "benchmarks": results},
        number,
        output,
        lambda wide: show_run(cli.shown, run, results, cli.now(), wide=wide),
    )


def facts_of(run: Mapping[str, Any], now: datetime) -> dict[str, str | Cell | None]:
    """Return the values that a run has only once."""
    return {
        "run": str(run["id"]),
        "state": Cell(run["state"], STYLES.get(run["state"], "")),
        "why": run["why"],
        "asked": ago(run["asked_at"], now),
        "begun": ago(run["begun_at"], now) or "not yet",
        "ended": ago(run["ended_at"], now),
        "hardware": _hardware(run["hardware"]),
        "cancelled": run["cancel_reason"],
        "error": Cell(run["last_error"], "red"),
    }


def show_run(
    shown: Output,
    run: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
    now: datetime,
    *,
    wide: bool,
) -> None:
    """Print a run, its benchmarks, and the labels that were measured."""
    shown.facts(facts_of(run, now))
    shown.title("benchmarks")
    shown.table(BENCHMARKS, results, now, wide=wide)
    labels = [
        {"benchmark": row["benchmark"], "label": label, "value": value}
        for row in results
        for label, value in row["labels"].items()
    ]
    shown.title("labels")
    shown.table(LABELS, labels, now, wide=wide)
    notes = [[Cell(row["benchmark"]), note] for row in results for note in _notes(row)]
    if notes:
        shown.title("notes")
        shown.lines(notes)


def _notes(result: Mapping[str, Any]) -> Iterator[Cell]:
    """Yield why a benchmark failed, its notes, and the labels that it lacks."""
    if result["reason"]:
        yield Cell(result["reason"], "red")
    yield from map(Cell, result["notes"])
    yield from (
        Cell(f"{label} left out: {why}") for label, why in result["left_out"].items()
    )


@app.command()
def cancel(
    context: typer.Context, reason: options.Reason = "", yes: options.Yes = False
) -> None:
    """End the run that is under way: its SLURM job is cancelled, what it has measured
    stays.

    Example: supervisor benchmark cancel --reason "the nodes are needed"
    """
    cli = cli_context(context)
    found = cli.ledger.benchmarks.under_way()
    if found is None:
        raise CommandError(
            "found no run under way; expected one: see `supervisor benchmark history`"
        )
    will = f"run {found.id} ({found.why}) will end; its SLURM job is cancelled, what it has measured stays"
    with cli.change(
        "benchmark cancel", f"run {found.id}", will, yes=yes, reason=reason
    ):
        cli.ledger.benchmarks.cancel(reason or "the operator cancelled it")
    typer.echo(
        f"run {found.id} will end; `supervisor benchmark show` shows when it has ended"
    )


@app.command()
def history(
    context: typer.Context,
    label: Annotated[
        str | None, typer.Option(help="All values of this label, instead of the runs.")
    ] = None,
    since: options.Since = None,
    limit: options.Limit = 20,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """List the last runs, or the values of a label, the newest first.

    Example: supervisor benchmark history --label compute.gflops
    """
    cli = cli_context(context)
    younger = options.age(since)

    def rows() -> list[dict[str, Any]]:
        begin = cli.begin_of(younger)
        if label is None:
            return _runs(cli, limit, begin, output)
        return _values(cli, label, limit, begin)

    cli.present(RUNS if label is None else VALUES, rows, output, watch, no_color)


def _runs(
    cli: CliContext, limit: int, since: datetime | None, output: Format
) -> list[dict[str, Any]]:
    runs = cli.ledger.benchmark_queries.runs(limit, since)
    if output in (Format.TABLE, Format.WIDE):
        return [run | {"hardware": _hardware(run["hardware"])} for run in runs]
    return runs


def _values(
    cli: CliContext, label: str, limit: int, since: datetime | None
) -> list[dict[str, Any]]:
    points = cli.ledger.benchmark_queries.history(label, since)[-limit:]
    rows = [
        {
            "at": one.at,
            "run": one.run_id,
            "benchmark": one.benchmark,
            "value": one.value,
        }
        for one in points
    ]
    return rows[::-1]


@app.command()
def output(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="BENCHMARK", help="Its name; `supervisor benchmark show` has it."
        ),
    ],
    run_id: RunNumber = None,
    script: Annotated[
        bool, typer.Option("--script", help="The script instead of what it printed.")
    ] = False,
) -> None:
    """Print what a benchmark printed, byte by byte (pipe it into a pager that shows
    control characters).

    Example: supervisor benchmark output hpl --run 3 | less
    """
    cli = cli_context(context)
    number = _run_number(cli, run_id)
    found = cli.ledger.benchmark_queries.output(number, name)
    if found is None:
        results = cli.ledger.benchmark_queries.results(number)
        known = joined((row["benchmark"] for row in results), "none yet")
        raise CommandError(
            f"found no benchmark {name!r} in run {number}; expected one that it has: {known}"
        )
    script_text, printed = found
    if script:
        sys.stdout.buffer.write(script_text.encode())
        return
    if printed is None:
        raise CommandError(
            f"found no output of {name} in run {number}; expected a benchmark that has ended: see `supervisor benchmark show`"
        )
    sys.stdout.buffer.write(printed)


@app.command()
def plot(
    context: typer.Context,
    label: Annotated[
        str, typer.Argument(metavar="LABEL", help="Such as compute.gflops.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="The file, instead of LABEL.svg."),
    ] = None,
    terminal: Annotated[
        bool,
        typer.Option(
            "--terminal", help="Draw bars in the terminal, and write no file."
        ),
    ] = False,
) -> None:
    """Draw a label over time, as an SVG file or in the terminal.

    Example: supervisor benchmark plot compute.gflops --out gflops.svg
    """
    from supervisor_tasks.cli.plot import Drawn, drawn  # imports pygal

    cli = cli_context(context)
    points = cli.ledger.benchmark_queries.history(label)
    numbers = [
        Drawn(one.at, one.value, one.run_id)
        for one in points
        if isinstance(one.value, int | float)
    ]
    if not numbers:
        known = joined(cli.ledger.benchmark_queries.known_labels())
        raise CommandError(
            f"found no number of {label!r}; expected a label that was measured: {known}"
        )
    if terminal:
        cli.shown.bars([_bar(one.at, one.run_id, one.value) for one in numbers])
        return
    file = out or Path(f"{label}.svg")
    file.write_bytes(drawn(label, cli.settings.cluster_name, numbers))
    typer.echo(f"{file}: {len(numbers)} values of {label}")


def _bar(at: datetime, run_id: int, value: float) -> Bar:
    return Bar(f"{at.astimezone():%Y-%m-%d %H:%M} run {run_id}", value, f"{value:.2f}")


def _run_number(cli: CliContext, run_id: int | None) -> int:
    """Return the number of a run, or of the last one, which must exist. Raises
    CommandError.
    """
    found = cli.ledger.benchmark_queries.run(run_id)
    if found is None:
        missing = "no run" if run_id is None else f"no run {run_id}"
        raise CommandError(
            f"found {missing}; expected one: see `supervisor benchmark history`, or begin one with `supervisor benchmark run`"
        )
    return int(found["id"])


def _last_error(cli: CliContext, number: int) -> str:
    """Return why the run makes no progress now; empty if it does."""
    for row in cli.overview.effects(OpenEffectFilter(kind=EffectKind.BENCHMARK)):
        if row["subject"] == str(number):
            return str(row["last_error"] or "")
    return ""


def _hardware(hardware: dict[str, list[dict[str, int]]] | None) -> str:
    """Return the totals of the hardware as one line."""
    nodes = (hardware or {}).get("nodes", [])
    if not nodes:
        return ""
    cpus, gpus, mem_mb = (
        sum(map(itemgetter(what), nodes)) for what in ("cpus", "gpus", "mem_mb")
    )
    return f"{len(nodes)} nodes, {cpus} CPUs, {gpus} GPUs, {mem_mb} MB"


COMMANDS = {"benchmark": app}
