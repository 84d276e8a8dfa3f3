"""The benchmarks: have the cluster measured, see what came of it, draw a label over time."""

import shlex
import sys
from dataclasses import asdict
from pathlib import Path

import click

from supervisor_tasks.cli.desk import JSON, WITHOUT_QUESTION, Desk, ask
from supervisor_tasks.ledger.conditions import Condition
from supervisor_tasks.ledger.facts import BENCHMARK_ERROR
from supervisor_tasks.ledger.operator import AlarmName
from supervisor_tasks.settings import Need, load_or_exit

NO_RUN = "0" * 16  # stands where a run has its own number
WHICH_RUN = click.option("--run", "run_id", type=click.IntRange(1), help="Instead of the last one.")


@click.group()
def benchmark() -> None:
    """Measure the cluster, and see what was measured."""


@benchmark.command()
@click.option("--reason", default="the operator asked")
@click.pass_obj
def run(desk: Desk, reason: str) -> None:
    """Have the cluster measured now. One run at a time."""
    if desk.settings.benchmark_disable:
        raise click.ClickException("found BENCHMARK_DISABLE; expected it to be false: nothing is measured")
    number = desk.ledger.benchmarks.ask(reason)
    if number is None:
        under_way = desk.ledger.benchmarks.under_way()
        named = "a run" if under_way is None else f"run {under_way.id}"
        raise click.ClickException(
            f"found {named} under way; expected none: `supervisor benchmark show`, or `supervisor benchmark cancel`"
        )
    click.echo(f"run {number} is asked for; `supervisor benchmark show` tells how it goes")


@benchmark.command()
@JSON
@click.pass_obj
def plan(desk: Desk, as_json: bool) -> None:
    """What a run that began now would submit: nodes, words for sbatch, scripts. Asks SLURM, by SLURM_SSH_PRIVATE_KEY, for the
    nodes; submits nothing and writes nothing down.
    """
    from benchmarks.suite import SUITE  # these, and what they take, no other command needs
    from supervisor_tasks.benchmark_plan import jobs_of, plan_of
    from supervisor_tasks.wiring import slurm_side

    settings = load_or_exit(Need.SSH)
    slurm = slurm_side(settings)
    try:
        specs = slurm.nodes.specs()
    finally:
        slurm.cluster.ssh.close()
    if not specs.nodes:
        raise click.ClickException(f"found {len(specs.left_out)} nodes, none of which works; expected one that does")
    try:
        jobs = jobs_of(plan_of(settings, specs, NO_RUN), SUITE.values(), settings.benchmark_sbatch_flags)
    except ValueError as error:
        raise click.ClickException(f"the run cannot be planned: {error}") from error
    nodes = [asdict(node) for node in specs.nodes]
    if as_json:
        shown = [{"benchmark": job.benchmark, "options": job.options, "script": job.script} for job in jobs]
        desk.shown.json({"nodes": nodes, "jobs": shown})
        return
    desk.shown.table("nodes", nodes)
    for job in jobs:
        click.echo(f"\n--- {job.benchmark}: sbatch {shlex.join(job.options)}\n\n{job.script}")


@benchmark.command()
@WHICH_RUN
@JSON
@click.pass_obj
def show(desk: Desk, run_id: int | None, as_json: bool) -> None:
    """A run: why, on which hardware, and of each benchmark its SLURM job, its labels or why there are none."""
    number = _run_number(desk, run_id)
    found, results = desk.ledger.benchmarks.run(number), desk.ledger.benchmarks.results(number)
    assert found is not None  # noqa: S101  it was just there, and runs are not deleted
    found = found | {"last_error": _last_error(desk, number)}
    if as_json:
        desk.shown.json({"run": found, "benchmarks": results})
        return
    desk.shown.facts("run", found | {"hardware": _hardware(found["hardware"])})
    desk.shown.table("benchmarks", [{name: row[name] for name in _COLUMNS} for row in results])
    labels = [
        {"benchmark": row["benchmark"], "label": label, "value": value}
        for row in results
        for label, value in row["labels"].items()
    ]
    desk.shown.table("labels", labels)
    notes = [
        {"benchmark": row["benchmark"], "note": note}
        for row in results
        for note in [*row["notes"], *(f"{label} left out: {why}" for label, why in row["left_out"].items())]
    ]
    if notes:
        desk.shown.table("notes", notes)


@benchmark.command()
@click.option("--reason", default="the operator cancelled it")
@WITHOUT_QUESTION
@click.pass_obj
def cancel(desk: Desk, reason: str, yes: bool) -> None:
    """End the run that is under way: its SLURM job is cancelled, what it has measured stays."""
    found = desk.ledger.benchmarks.under_way()
    if found is None:
        raise click.ClickException("found no run under way; expected one: see `supervisor benchmark history`")
    ask(yes, f"Run {found.id} ({found.why}) is ended. Sure?")
    desk.ledger.benchmarks.cancel(reason)
    click.echo(f"run {found.id} is to end; `supervisor benchmark show` tells when it has")


@benchmark.command()
@click.option("--label", help="All that this label has been, instead of the runs.")
@click.option("--last", type=click.IntRange(1), default=20, show_default=True)
@JSON
@click.pass_obj
def history(desk: Desk, label: str | None, last: int, as_json: bool) -> None:
    """The last runs, the newest first; or the values of a label, the newest first."""
    if label is None:
        runs = desk.ledger.benchmarks.runs(last)
        shown = runs if as_json else [run | {"hardware": _hardware(run["hardware"])} for run in runs]
        desk.shown.rows("benchmark runs", shown, as_json)
        return
    points = desk.ledger.benchmarks.history(label)[-last:]
    rows = [{"at": one.at, "run": one.run_id, "benchmark": one.benchmark, "value": one.value} for one in points]
    desk.shown.rows(label, rows[::-1], as_json)


@benchmark.command()
@click.argument("name", metavar="BENCHMARK")
@WHICH_RUN
@click.option("--script", is_flag=True, help="The script instead of what it printed.")
@click.pass_obj
def output(desk: Desk, name: str, run_id: int | None, script: bool) -> None:
    """What a benchmark printed, byte by byte (pipe it into a pager that shows control characters)."""
    number = _run_number(desk, run_id)
    found = desk.ledger.benchmarks.output(number, name)
    if found is None:
        known = ", ".join(row["benchmark"] for row in desk.ledger.benchmarks.results(number)) or "none yet"
        raise click.ClickException(f"found no benchmark {name!r} in run {number}; it has: {known}")
    text, printed = found
    if not script and printed is None:
        raise click.ClickException(f"found no output of {name} in run {number}: see `supervisor benchmark show`")
    sys.stdout.buffer.write(text.encode() if script else printed or b"")


@benchmark.command()
@click.argument("label")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="The file, instead of LABEL.svg.")
@click.pass_obj
def plot(desk: Desk, label: str, out: Path | None) -> None:
    """Draw a label over time, as an SVG file."""
    from supervisor_tasks.cli.picture import Drawn, drawn  # the library, which no other command needs

    points = desk.ledger.benchmarks.history(label)
    numbers = [Drawn(one.at, one.value, one.run_id) for one in points if isinstance(one.value, int | float)]
    if not numbers:
        known = ", ".join(desk.ledger.benchmarks.known_labels()) or "none"
        raise click.ClickException(f"found no number of {label!r}; labels that were measured: {known}")
    file = out or Path(f"{label}.svg")
    file.write_bytes(drawn(label, desk.settings.cluster_name, numbers))
    click.echo(f"{file}: {len(numbers)} values of {label}")


_COLUMNS = ("benchmark", "stage", "slurm_id", "slurm_state", "reason", "tool", "output_bytes", "called_at", "ended_at")


def _run_number(desk: Desk, run_id: int | None) -> int:
    found = desk.ledger.benchmarks.run(run_id)
    if found is None:
        named = "no run" if run_id is None else f"no run {run_id}"
        raise click.ClickException(f"found {named}; see `supervisor benchmark history`, or `supervisor benchmark run`")
    return int(found["id"])


def _last_error(desk: Desk, number: int) -> str:
    """Why the run makes no step at the moment."""
    standstill = Condition(desk.ledger, AlarmName.BENCHMARK_STANDS_STILL).duration
    return (desk.ledger.facts.get(BENCHMARK_ERROR) or "") if standstill.subject() == str(number) else ""


def _hardware(hardware: dict[str, list[dict[str, int]]] | None) -> str:
    """In a few words."""
    nodes = (hardware or {}).get("nodes", [])
    total = {what: sum(node[what] for node in nodes) for what in ("cpus", "gpus", "mem_mb")}
    return f"{len(nodes)} nodes, {total['cpus']} CPUs, {total['gpus']} GPUs, {total['mem_mb']} MB" if nodes else ""


COMMANDS = (benchmark,)
