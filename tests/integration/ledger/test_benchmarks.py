"""Benchmark runs in the ledger, on a real Postgres."""

from dataclasses import asdict

import pytest
from sqlalchemy import Connection, Engine, text

from supervisor_tasks.benchmarking.benchmark_run import (
    BenchmarkState,
    MeasurementUpdate,
    PlannedBenchmark,
    RunState,
)
from supervisor_tasks.jobs.model import EffectKind, SlurmId
from supervisor_tasks.ledger import benchmarks as of_benchmarks
from supervisor_tasks.ledger.benchmark_queries import BenchmarkQueries
from supervisor_tasks.ledger.benchmarks import BenchmarkResult, BenchmarkStore
from supervisor_tasks.ledger.fact_store import Facts
from supervisor_tasks.ledger.facts import TEXT, Fact
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.outbox import Failure
from supervisor_tasks.provider.offer import Machine as GridMachine
from supervisor_tasks.provider.offer import machines_digest
from tests.support.ledger import emptied

MACHINE = PlannedBenchmark(
    benchmark="machine", options=("--nodes=1",), script="#!/bin/sh\nuname\n"
)
HPL = PlannedBenchmark(benchmark="hpl", script="#!/bin/sh\nxhpl\n")
OSU = PlannedBenchmark(benchmark="osu", script="#!/bin/sh\nosu_latency\n")
ALIKE = (GridMachine(0, 8, 16_000), GridMachine(0, 8, 16_000))
HARDWARE = {
    "nodes": [
        asdict(one) | {"name": f"node{number}"} for number, one in enumerate(ALIKE)
    ]
}


@pytest.fixture
def benchmarks(engine: Engine) -> BenchmarkStore:
    emptied(engine)
    return BenchmarkStore(engine, "here")


def measure(benchmarks: BenchmarkStore, flops: float) -> int:
    """A run in which HPL measures that."""
    number = benchmarks.ask("a test")
    run = benchmarks.under_way()
    assert number is not None
    assert run is not None
    benchmarks.begin(run, [MACHINE, HPL, OSU], "benchmark-0xab-here-", HARDWARE)
    _, hpl, _ = benchmarks.measurements(run)
    benchmarks.store_result(
        hpl,
        BenchmarkResult(
            state=BenchmarkState.MEASURED,
            labels={"compute.gflops": flops},
            output=b"\0\xff",
        ),
    )
    benchmarks.finish(run)
    return number


def test_ask__while_a_run_is_under_way__is_not_another_one(
    benchmarks: BenchmarkStore, engine: Engine
) -> None:
    first = benchmarks.ask("one")
    assert first is not None
    assert benchmarks.ask("two") is None
    assert BenchmarkStore(engine, "there").ask("another cluster") is not None
    benchmarks.cancel("enough")
    assert benchmarks.cancel("much more than enough") == first
    run = benchmarks.under_way()
    assert run is not None
    assert (run.why, run.cancel_reason) == ("one", "enough")
    benchmarks.finish(run)
    assert benchmarks.under_way() is None
    assert benchmarks.cancel("nothing") is None
    shown = BenchmarkQueries(engine, "here").run()
    assert shown is not None
    assert shown["state"] == RunState.CANCELLED
    second = benchmarks.ask("two")
    assert second is not None
    assert second > first


def test_resume__run_that_the_version_before_began__is_due(
    benchmarks: BenchmarkStore, engine: Engine
) -> None:
    ledger = Ledger(engine, "here", lambda _: None)
    number = benchmarks.ask("a test")
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM effects"))
    benchmarks.resume()
    (effect,) = ledger.effects.lease([EffectKind.BENCHMARK])
    assert effect.subject == str(number)
    ledger.effects.park([Failure(effect, "no")])
    assert ledger.effects.lease([EffectKind.BENCHMARK]) == []
    benchmarks.cancel("enough")
    (again,) = ledger.effects.lease([EffectKind.BENCHMARK])
    ledger.effects.finish(again)
    benchmarks.resume()
    assert ledger.effects.lease([EffectKind.BENCHMARK]) == []
    ledger.holder.close()


def test_begin__twice__is_begun_once_with_names_of_its_own(
    benchmarks: BenchmarkStore,
) -> None:
    benchmarks.ask("a test")
    run = benchmarks.under_way()
    assert run is not None
    for _ in range(2):
        benchmarks.begin(run, [MACHINE, HPL, OSU], "benchmark-0xab-here-", HARDWARE)
    machine, hpl, osu = benchmarks.measurements(run)
    assert (machine.state, machine.options, machine.script) == (
        BenchmarkState.WAITING,
        ("--nodes=1",),
        MACHINE.script,
    )
    assert machine.job_name.startswith(f"benchmark-0xab-here-{run.id}-")
    assert machine.job_name != hpl.job_name
    assert (osu.state, osu.cleaned, osu.run_as) == (BenchmarkState.WAITING, False, "")
    first = machine.job_name
    benchmarks.finish(run)
    benchmarks.ask("another")
    run = benchmarks.under_way()
    assert run is not None
    benchmarks.begin(run, [MACHINE], "benchmark-0xab-here-", {})
    assert (
        benchmarks.measurements(run)[0].job_name.split("-")[-2] != first.split("-")[-2]
    )


def test_start_submission__called_again_or_after_a_cancellation__is_refused(
    benchmarks: BenchmarkStore,
) -> None:
    benchmarks.ask("a test")
    run = benchmarks.under_way()
    assert run is not None
    benchmarks.begin(run, [MACHINE, HPL], "benchmark-0xab-here-", {})
    machine, hpl = benchmarks.measurements(run)
    assert benchmarks.start_submission(machine, "root")
    assert not benchmarks.start_submission(machine, "root")
    (machine, _) = benchmarks.measurements(run)
    assert (machine.state, machine.run_as) == (BenchmarkState.SUBMITTING, "root")
    assert benchmarks.users() == {"root"}
    assert machine.called_ago_s < 60
    benchmarks.cancel("enough")
    assert not benchmarks.start_submission(hpl, "root")


def test_store_update__from_a_stage_that_is_over__changes_nothing(
    benchmarks: BenchmarkStore,
) -> None:
    benchmarks.ask("a test")
    run = benchmarks.under_way()
    assert run is not None
    benchmarks.begin(run, [MACHINE], "benchmark-0xab-here-", {})
    (waiting,) = benchmarks.measurements(run)
    benchmarks.start_submission(waiting, "root")
    (submitting,) = benchmarks.measurements(run)
    submitted = MeasurementUpdate(
        state=BenchmarkState.SUBMITTED,
        slurm_id=SlurmId(7),
        slurm_state="RUNNING",
        poll_delay_s=30,
    )
    assert benchmarks.store_update(submitting, submitted)
    (job,) = benchmarks.measurements(run)
    assert (job.slurm_id, job.slurm_state) == (7, "RUNNING")
    assert not benchmarks.store_update(
        submitting, MeasurementUpdate(state=BenchmarkState.WAITING)
    )
    assert benchmarks.store_update(
        job, MeasurementUpdate(state=BenchmarkState.SUBMITTED, missing=True)
    )
    (missing,) = benchmarks.measurements(run)
    assert missing.missing_for_s is not None
    assert benchmarks.store_update(missing, submitted)
    assert benchmarks.measurements(run)[0].missing_for_s is None


def test_labels__of_a_run_in_which_a_benchmark_failed__stay_as_they_were(
    benchmarks: BenchmarkStore, engine: Engine
) -> None:
    queries = BenchmarkQueries(engine, "here")
    first = measure(benchmarks, 10.5)
    second = measure(benchmarks, 12.25)
    benchmarks.ask("a test")
    run = benchmarks.under_way()
    assert run is not None
    benchmarks.begin(run, [MACHINE, HPL], "benchmark-0xab-here-", {})
    for one in benchmarks.measurements(run):
        benchmarks.store_result(
            one,
            BenchmarkResult(
                state=BenchmarkState.FAILED, reason="exit code 1", output=b"oh"
            ),
        )
    assert benchmarks.labels() == {"compute.gflops": 12.25}
    assert [
        (point.run_id, point.value) for point in queries.history("compute.gflops")
    ] == [
        (first, 10.5),
        (second, 12.25),
    ]
    assert queries.history("' OR 1=1") == []
    assert queries.known_labels() == ["compute.gflops"]
    assert benchmarks.latest()["hpl"].hardware_digest == machines_digest(ALIKE)
    assert queries.output(second, "hpl") == (HPL.script, b"\0\xff")
    assert queries.output(second, "nothing") is None
    shown = queries.results(run.id)
    assert [(row["state"], row["reason"], row["output_bytes"]) for row in shown] == [
        ("FAILED", "exit code 1", 2)
    ] * 2


def test_measured__is_asked_every_few_seconds__and_reads_the_last_runs_only(
    benchmarks: BenchmarkStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_benchmarks, "MAX_MEASURED_VALUES", 2)
    _, second, third = (measure(benchmarks, flops) for flops in (1.0, 2.0, 3.0))
    assert [one.run_id for one in benchmarks.measured()] == [second, third]
    assert benchmarks.labels() == {"compute.gflops": 3.0}


def test_failing__over_several_runs__names_a_benchmark_until_measured_or_left_out(
    benchmarks: BenchmarkStore,
) -> None:
    def run_of(*results: BenchmarkResult) -> dict[str, str]:
        benchmarks.ask("a test")
        run = benchmarks.under_way()
        assert run is not None
        benchmarks.begin(run, [MACHINE, HPL], "benchmark-0xab-here-", HARDWARE)
        for one, result in zip(benchmarks.measurements(run), results, strict=True):
            assert benchmarks.store_result(one, result)
        benchmarks.finish(run)
        return benchmarks.failing(run)

    fails = BenchmarkResult(state=BenchmarkState.FAILED, reason="exit code 3")
    works, left_out = (
        BenchmarkResult(state=BenchmarkState.MEASURED, labels={"os": "linux"}),
        BenchmarkResult(state=BenchmarkState.LEFT_OUT),
    )
    assert run_of(works, fails) == {"hpl": "exit code 3"}
    cancelled = BenchmarkResult(state=BenchmarkState.CANCELLED, reason="enough")
    assert run_of(fails, cancelled) == {"machine": "exit code 3", "hpl": "exit code 3"}
    assert run_of(works, left_out) == {}


def test_ask__what_is_done_with_it__is_done_only_with_it(
    benchmarks: BenchmarkStore, engine: Engine
) -> None:
    facts, wanted = Facts(engine, "here"), Fact("test.wanted", TEXT)
    facts.set(wanted, "a run")

    def served(connection: Connection) -> None:
        facts.clear_if(wanted, "a run", connection)

    def dies(connection: Connection) -> None:
        served(connection)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        benchmarks.ask("a test", also=dies)
    assert benchmarks.under_way() is None
    assert facts.get(wanted) is not None
    assert benchmarks.ask("another") is not None
    assert benchmarks.ask("a test", also=served) is None
    assert facts.get(wanted) is not None
    benchmarks.cancel("enough")
    run = benchmarks.under_way()
    assert run is not None
    benchmarks.finish(run)
    assert benchmarks.ask("a test", also=served) is not None
    assert facts.get(wanted) is None
