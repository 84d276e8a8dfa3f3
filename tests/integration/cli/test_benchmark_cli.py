"""`supervisor benchmark`, on a real ledger."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from supervisor_tasks.benchmarking.benchmark_run import BenchmarkState, PlannedBenchmark
from supervisor_tasks.ledger.benchmarks import BenchmarkResult, BenchmarkStore
from supervisor_tasks.ledger.periodic_runs import PeriodicRuns
from tests.support.commands import Result, supervisor
from tests.support.ledger import emptied, migrated

LABEL = "compute.gflops"
NODES = {
    "nodes": [
        {"name": f"node{n}", "cpus": 8, "gpus": 2, "mem_mb": 16_000} for n in (1, 2)
    ]
}


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Engine, dict[str, str]]]:
    with migrated() as both:
        yield both


@pytest.fixture
def benchmarks(servers: tuple[Engine, dict[str, str]]) -> BenchmarkStore:
    emptied(servers[0])
    # a fleet has worked for this cluster
    PeriodicRuns(servers[0], "here").record("claim")
    return BenchmarkStore(servers[0], "here")


def call(
    servers: tuple[Engine, dict[str, str]], *words: str, status: int = 0, **more: str
) -> Result:
    result = supervisor("benchmark", *words, env=servers[1] | more)
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
    measured = BenchmarkResult(stage=BenchmarkState.MEASURED, **about)  # type: ignore[arg-type]
    benchmarks.store_result(hpl, measured)
    benchmarks.store_result(
        osu, BenchmarkResult(stage=BenchmarkState.FAILED, reason="exit code 1")
    )
    benchmarks.finish(run)
    return number


def test_run__called_twice__asks_once_and_cancel_ends_it(
    servers: tuple[Engine, dict[str, str]], benchmarks: BenchmarkStore
) -> None:
    assert "found no run" in call(servers, "show", status=1).stderr
    assert (
        "is asked for" in call(servers, "run", "--reason", "new nodes", "--yes").stdout
    )
    assert "under way" in call(servers, "run", "--yes", status=1).stderr
    shown = json.loads(call(servers, "show", "-o", "json").stdout)
    assert (shown["run"]["state"], shown["run"]["why"]) == ("ASKED", "new nodes")
    assert "will end" in call(servers, "cancel", "--yes").stdout
    run = benchmarks.under_way()
    assert run is not None
    assert run.cancel_reason == "the operator cancelled it"
    benchmarks.finish(run)
    assert "no run under way" in call(servers, "cancel", "--yes", status=1).stderr


def test_run__where_benchmarks_are_disabled__is_refused(
    servers: tuple[Engine, dict[str, str]], benchmarks: BenchmarkStore
) -> None:
    assert (
        "BENCHMARK_DISABLE"
        in call(servers, "run", "--yes", status=1, BENCHMARK_DISABLE="true").stderr
    )
    assert benchmarks.under_way() is None


def test_show_and_history__two_runs__tell_results_reasons_and_notes(
    servers: tuple[Engine, dict[str, str]], benchmarks: BenchmarkStore
) -> None:
    first, second = measured(benchmarks, 10.5), measured(benchmarks, 12.25)
    table = call(servers, "show").stdout
    for word in (
        "2 nodes, 16 CPUs, 4 GPUs, 32000 MB",
        "MEASURED",
        "exit code 1",
        "12.25",
        "on one node",
    ):
        assert word in table
    shown = json.loads(call(servers, "show", "--run", str(first), "-o", "json").stdout)
    assert shown["benchmarks"][0]["labels"][LABEL] == 10.5
    runs = json.loads(call(servers, "history", "-o", "json").stdout)
    assert [run["id"] for run in runs] == [second, first]
    values = json.loads(call(servers, "history", "--label", LABEL, "-o", "json").stdout)
    assert [(row["run"], row["value"]) for row in values] == [
        (second, 12.25),
        (first, 10.5),
    ]
    older = (
        "UPDATE {table} SET {column} = {column} - interval '2 days' WHERE {of} = :first"
    )
    with servers[0].begin() as connection:
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
    younger = json.loads(call(servers, "history", "--since", "1d", "-o", "json").stdout)
    assert [run["id"] for run in younger] == [second]
    younger = json.loads(
        call(servers, "history", "--label", LABEL, "--since", "1d", "-o", "json").stdout
    )
    assert [row["run"] for row in younger] == [second]


def test_output__of_a_measured_benchmark__is_what_was_printed(
    servers: tuple[Engine, dict[str, str]], benchmarks: BenchmarkStore
) -> None:
    measured(benchmarks, 10.5)
    assert call(servers, "output", "hpl").stdout_bytes == b"\x1b[31mWR\xff"
    assert call(servers, "output", "hpl", "--script").stdout_bytes == b"xhpl"
    assert "no output of osu" in call(servers, "output", "osu", status=1).stderr
    assert "it has: hpl, osu" in call(servers, "output", "xyz", status=1).stderr


def test_plot__label_of_three_runs__is_a_picture_that_loads_nothing(
    servers: tuple[Engine, dict[str, str]], benchmarks: BenchmarkStore, tmp_path: Path
) -> None:
    numbers = [measured(benchmarks, value) for value in (10.5, 12.25, 11.0)]
    file = tmp_path / "gflops.svg"
    assert "3 values" in call(servers, "plot", LABEL, "--out", str(file)).stdout
    root = ET.fromstring(file.read_text())  # noqa: S314  made here
    assert root.tag.endswith("svg")
    text = " ".join(root.itertext())
    assert f"{LABEL} of here" in text
    assert all(f"run {number}" in text for number in numbers)
    assert "<script" not in file.read_text().replace(
        '<script type="text/javascript">window.pygal', ""
    )
    assert "xlink:href=" not in file.read_text()
    lines = call(servers, "plot", LABEL, "--terminal").stdout.splitlines()
    assert [line.split()[-1] for line in lines] == ["10.50", "12.25", "11.00"]
    assert lines[1].count("█") > lines[2].count("█") > lines[0].count("█") > 0
    refused = call(servers, "plot", "cpu", "--out", str(file), status=1).stderr
    assert (
        f"labels that were measured: {LABEL}, cpu" in refused
        or "cpu, compute.gflops" in refused
    )
