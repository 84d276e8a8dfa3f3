"""`supervisor benchmark`, on a real ledger."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from supervisor_tasks.benchmarking.benchmark_run import BenchmarkState, PlannedBenchmark
from supervisor_tasks.ledger.benchmarks import BenchmarkResult, BenchmarkStore
from supervisor_tasks.ledger.periodic_runs import PeriodicRuns
from tests.support.commands import Result, supervisor
from tests.support.ledger import emptied

LABEL = "compute.gflops"
NODES = {
    "nodes": [
        {"name": f"node{n}", "cpus": 8, "gpus": 2, "mem_mb": 16_000} for n in (1, 2)
    ]
}


@pytest.fixture
def benchmarks(migrated_ledger: tuple[Engine, dict[str, str]]) -> BenchmarkStore:
    emptied(migrated_ledger[0])
    # a fleet has worked for this cluster
    PeriodicRuns(migrated_ledger[0], "here").record("claim")
    return BenchmarkStore(migrated_ledger[0], "here")


def call(
    migrated_ledger: tuple[Engine, dict[str, str]],
    *words: str,
    status: int = 0,
    **more: str,
) -> Result:
    result = supervisor("benchmark", *words, env=migrated_ledger[1] | more)
    assert result.exit_code == status, (result.output, result.exception)
    return result


def measured(benchmarks: BenchmarkStore, gflops: float) -> int:
    number = benchmarks.ask("a test")
    run = benchmarks.under_way()
    assert number is not None
    assert run is not None
    planned = [
        PlannedBenchmark(benchmark="hpl", script="xhpl"),
        PlannedBenchmark(benchmark="osu", script="osu_latency"),
    ]
    benchmarks.begin(run, planned, "benchmark-0x-here-", NODES)
    hpl, osu = benchmarks.measurements(run)
    about = {
        "labels": {LABEL: gflops, "cpu": "<script>"},
        "notes": ["on one node"],
        "output": b"\x1b[31mWR\xff",
    }
    measured = BenchmarkResult(state=BenchmarkState.MEASURED, **about)  # type: ignore[arg-type]
    benchmarks.store_result(hpl, measured)
    benchmarks.store_result(
        osu, BenchmarkResult(state=BenchmarkState.FAILED, reason="exit code 1")
    )
    benchmarks.finish(run)
    return number


def test_run__called_twice__asks_once_and_cancel_ends_it(
    migrated_ledger: tuple[Engine, dict[str, str]], benchmarks: BenchmarkStore
) -> None:
    assert "found no run" in call(migrated_ledger, "show", status=1).stderr
    assert (
        "is asked for"
        in call(migrated_ledger, "run", "--reason", "new nodes", "--yes").stdout
    )
    assert "under way" in call(migrated_ledger, "run", "--yes", status=1).stderr
    shown = json.loads(call(migrated_ledger, "show", "-o", "json").stdout)
    assert (shown["run"]["state"], shown["run"]["why"]) == ("ASKED", "new nodes")
    assert "will end" in call(migrated_ledger, "cancel", "--yes").stdout
    run = benchmarks.under_way()
    assert run is not None
    assert run.cancel_reason == "the operator cancelled it"
    benchmarks.finish(run)
    assert (
        "no run under way" in call(migrated_ledger, "cancel", "--yes", status=1).stderr
    )


def test_run__where_benchmarks_are_disabled__is_refused(
    migrated_ledger: tuple[Engine, dict[str, str]], benchmarks: BenchmarkStore
) -> None:
    assert (
        "BENCHMARK_DISABLE"
        in call(
            migrated_ledger, "run", "--yes", status=1, BENCHMARK_DISABLE="true"
        ).stderr
    )
    assert benchmarks.under_way() is None


def test_show_and_history__two_runs__tell_results_reasons_and_notes(
    migrated_ledger: tuple[Engine, dict[str, str]], benchmarks: BenchmarkStore
) -> None:
    first, second = measured(benchmarks, 10.5), measured(benchmarks, 12.25)
    table = call(migrated_ledger, "show").stdout
    for word in (
        "2 nodes, 16 CPUs, 4 GPUs, 32000 MB",
        "MEASURED",
        "exit code 1",
        "12.25",
        "on one node",
    ):
        assert word in table
    shown = json.loads(
        call(migrated_ledger, "show", "--run", str(first), "-o", "json").stdout
    )
    assert shown["benchmarks"][0]["labels"][LABEL] == 10.5
    runs = json.loads(call(migrated_ledger, "history", "-o", "json").stdout)
    assert [run["id"] for run in runs] == [second, first]
    values = json.loads(
        call(migrated_ledger, "history", "--label", LABEL, "-o", "json").stdout
    )
    assert [(row["run"], row["value"]) for row in values] == [
        (second, 12.25),
        (first, 10.5),
    ]
    older = (
        "UPDATE {table} SET {column} = {column} - interval '2 days' WHERE {of} = :first"
    )
    with migrated_ledger[0].begin() as connection:
        connection.execute(
            text(older.format(table="benchmark_runs", column="asked_at", of="id")),
            {"first": first},
        )
        connection.execute(
            text(
                older.format(table="benchmark_results", column="ended_at", of="run_id")
            ),
            {"first": first},
        )
    younger = json.loads(
        call(migrated_ledger, "history", "--since", "1d", "-o", "json").stdout
    )
    assert [run["id"] for run in younger] == [second]
    younger = json.loads(
        call(
            migrated_ledger, "history", "--label", LABEL, "--since", "1d", "-o", "json"
        ).stdout
    )
    assert [row["run"] for row in younger] == [second]


def test_output__of_a_measured_benchmark__is_what_was_printed(
    migrated_ledger: tuple[Engine, dict[str, str]], benchmarks: BenchmarkStore
) -> None:
    measured(benchmarks, 10.5)
    assert call(migrated_ledger, "output", "hpl").stdout_bytes == b"\x1b[31mWR\xff"
    assert call(migrated_ledger, "output", "hpl", "--script").stdout_bytes == b"xhpl"
    assert "no output of osu" in call(migrated_ledger, "output", "osu", status=1).stderr
    assert "it has: hpl, osu" in call(migrated_ledger, "output", "xyz", status=1).stderr


def test_plot__label_of_three_runs__is_a_picture_that_loads_nothing(
    migrated_ledger: tuple[Engine, dict[str, str]],
    benchmarks: BenchmarkStore,
    tmp_path: Path,
) -> None:
    numbers = [measured(benchmarks, value) for value in (10.5, 12.25, 11.0)]
    file = tmp_path / "gflops.svg"
    assert "3 values" in call(migrated_ledger, "plot", LABEL, "--out", str(file)).stdout
    root = ET.fromstring(file.read_text())  # noqa: S314  made here
    assert root.tag.endswith("svg")
    text = " ".join(root.itertext())
    assert f"{LABEL} of here" in text
    assert all(f"run {number}" in text for number in numbers)
    assert "<script" not in file.read_text().replace(
        '<script type="text/javascript">window.pygal', ""
    )
    assert "xlink:href=" not in file.read_text()
    lines = call(migrated_ledger, "plot", LABEL, "--terminal").stdout.splitlines()
    assert [line.split()[-1] for line in lines] == ["10.50", "12.25", "11.00"]
    assert lines[1].count("█") > lines[2].count("█") > lines[0].count("█") > 0
    refused = call(migrated_ledger, "plot", "cpu", "--out", str(file), status=1).stderr
    assert (
        f"expected a label that was measured: {LABEL}, cpu" in refused
        or "cpu, compute.gflops" in refused
    )
