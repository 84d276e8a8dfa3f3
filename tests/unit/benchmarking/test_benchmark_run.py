"""The life of a benchmark run: what is next, and how its jobs are named and submitted."""

import math
import subprocess
from dataclasses import replace

import pytest

from supervisor_tasks.benchmarking.benchmark_run import (
    CLEAN_GIVEN_UP_S,
    BenchmarkRun,
    BenchmarkState,
    RunState,
    RunStep,
    batch_script,
    cleanup_expired,
    is_named,
    job_name,
    name_beginning,
    next_step,
    sbatch,
)
from supervisor_tasks.benchmarking.outcome import end_reported
from supervisor_tasks.jobs.model import SlurmId
from supervisor_tasks.reconciliation.snapshot import JOB_NAME
from supervisor_tasks.slurm.benchmark_jobs import minutes_back
from tests.support.measurements import NAME, one

RUNNING = BenchmarkRun(id=3, why="a test", state=RunState.RUNNING)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["WAITING", "WAITING"], (RunStep.SUBMIT, 0)),
        (["SUBMITTING", "WAITING"], (RunStep.LOOK, 0)),
        (["SUBMITTED", "WAITING"], (RunStep.LOOK, 0)),
        (["ENDED", "WAITING"], (RunStep.READ, 0)),
        (["MEASURED", "WAITING"], (RunStep.CLEAN, 0)),
        (["FAILED", "SUBMITTED"], (RunStep.CLEAN, 0)),
    ],
)
def test_next_step__stages_of_the_benchmarks__is_the_first_thing_that_is_left(
    states: list[str], expected: tuple[RunStep, int]
) -> None:
    measurements = [
        one(BenchmarkState(state), id=number) for number, state in enumerate(states)
    ]
    assert next_step(RUNNING, measurements) == (expected[0], measurements[expected[1]])


def test_next_step__another_job_is_submitted__begins_none() -> None:
    measurements = [
        one(BenchmarkState.SUBMITTED, due_in_s=1.0),
        one(BenchmarkState.WAITING),
    ]
    assert next_step(RUNNING, measurements) is None


@pytest.mark.parametrize(
    "end",
    [
        BenchmarkState.MEASURED,
        BenchmarkState.FAILED,
        BenchmarkState.LEFT_OUT,
        BenchmarkState.CANCELLED,
    ],
)
def test_next_step__any_end_of_one_benchmark__the_next_one_is_measured(
    end: BenchmarkState,
) -> None:
    measurements = [one(end, cleaned=True), one(BenchmarkState.WAITING)]
    assert next_step(RUNNING, measurements) == (RunStep.SUBMIT, measurements[1])
    assert next_step(RUNNING, measurements[:1]) == (RunStep.FINISH, None)


def test_next_step__of_a_run_that_must_end__begins_nothing() -> None:
    ending = BenchmarkRun(
        id=3, why="a test", state=RunState.RUNNING, cancel_reason="enough"
    )
    waiting, submitted = one(BenchmarkState.WAITING), one(BenchmarkState.SUBMITTED)
    assert next_step(ending, [waiting]) == (RunStep.SKIP, waiting)
    assert next_step(ending, [submitted]) == (RunStep.LOOK, submitted)
    assert next_step(
        BenchmarkRun(id=3, why="", state=RunState.ASKED, cancel_reason="enough"), []
    ) == (
        RunStep.FINISH,
        None,
    )
    assert next_step(BenchmarkRun(id=3, why="", state=RunState.ASKED), []) == (
        RunStep.BEGIN,
        None,
    )


def test_next_step__cancelled_before_it_was_handed_over__cleans_nothing() -> None:
    ending = BenchmarkRun(
        id=3, why="a test", state=RunState.RUNNING, cancel_reason="enough"
    )
    assert next_step(ending, [one(BenchmarkState.CANCELLED)]) == (RunStep.FINISH, None)
    for called in (
        one(BenchmarkState.CANCELLED, called_ago_s=5.0),
        one(BenchmarkState.CANCELLED, slurm_id=SlurmId(7)),
    ):
        assert next_step(ending, [called]) == (RunStep.CLEAN, called)


def test_run_step__each_step__says_whether_it_asks_slurm_and_begins_a_job() -> None:
    assert {step for step in RunStep if not step.asks_slurm} == {
        RunStep.SKIP,
        RunStep.FINISH,
    }
    assert {step for step in RunStep if step.begins_something} == {
        RunStep.BEGIN,
        RunStep.SUBMIT,
    }


@pytest.mark.parametrize(
    ("called_ago_s", "minutes"),
    [(0.0, 10), (3600.0, 70), (math.inf, 30 * 24 * 60 + 10)],
)
def test_minutes_back__time_since_the_call__adds_ten_minutes_and_is_bounded(
    called_ago_s: float, minutes: int
) -> None:
    assert minutes <= minutes_back(called_ago_s) <= minutes + 1


def test_job_name__other_run_token_or_benchmark__is_unique_and_no_grid_jobs() -> None:
    assert JOB_NAME.fullmatch(NAME) is None
    beginning = name_beginning("0x" + "A" * 40, "main")
    names = {
        job_name(beginning, run, token, what)
        for run in (1, 11)
        for token in ("aa", "1aa")
        for what in ("b", "c")
    }
    assert len(names) == 8
    assert all(name.startswith(beginning) for name in names)
    assert not NAME.startswith(name_beginning("0x" + "A" * 40, "ma"))


def test_sbatch__benchmark_with_options__has_our_comment_and_common_options_last() -> (
    None
):
    words = sbatch(
        "/usr/bin/sbatch",
        one(BenchmarkState.WAITING, options=("--nodes=2", "--nice=0")),
        partition="gpu",
    )
    assert "--comment=benchmark hpl of run 3" in words
    assert words.index("--nice=10000") > words.index("--nice=0")
    assert "--no-requeue" in words
    assert f"--job-name={NAME}" in words


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("echo 5", 0),
        ("exit 3", 3),
        ("set -e\nfalse\necho no", 1),
        ("trap true EXIT\nexit 4", 4),
    ],
)
def test_batch_script__body_ends_in_any_way__tells_how_it_ended(
    body: str, status: int
) -> None:
    script = batch_script(
        one(BenchmarkState.WAITING, script=f"#!/bin/bash\n#SBATCH --nice=0\n{body}\n")
    )
    # so that sbatch does not read it
    assert script.index(b"(") < script.index(b"#SBATCH")
    done = subprocess.run(["bash"], input=script, capture_output=True)
    told = end_reported(NAME, done.stdout)
    assert told is not None
    assert told == (status, b"5\n" if body == "echo 5" else b"")


def test_next_step__what_cannot_be_removed_now__does_not_keep_the_others() -> None:
    dirty, waiting = (
        one(BenchmarkState.MEASURED, due_in_s=9.0),
        one(BenchmarkState.WAITING),
    )
    assert next_step(RUNNING, [dirty, waiting]) == (RunStep.SUBMIT, waiting)
    assert next_step(RUNNING, [dirty]) is None


def test_cleanup_expired__a_while_has_passed_or_the_run_is_ending__is_true() -> None:
    ending = replace(RUNNING, cancel_reason="enough")
    assert not cleanup_expired(
        RUNNING, one(BenchmarkState.MEASURED, ended_ago_s=CLEAN_GIVEN_UP_S - 1)
    )
    assert cleanup_expired(
        RUNNING, one(BenchmarkState.MEASURED, ended_ago_s=CLEAN_GIVEN_UP_S)
    )
    assert cleanup_expired(ending, one(BenchmarkState.MEASURED))


OURS = name_beginning("0x" + "A" * 40, "main")


@pytest.mark.parametrize("run_id", [1, 17_000])
def test_is_named__what_we_name__is_ours(run_id: int) -> None:
    assert is_named(job_name(OURS, run_id, "0123456789abcdef", "hpl"), OURS)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            OURS,
            OURS + "hpl",
            OURS + "1-0123456789abcdef",
            OURS + "1-0123abcx-hpl",
            OURS + "-0123456789abcdef-hpl",
        ),
        job_name(
            name_beginning("0x" + "A" * 40, "main-2"), 1, "0123456789abcdef", "hpl"
        ),
        job_name(
            name_beginning("0x" + "A" * 40, "main-large"), 1, "0123456789abcdef", "hpl"
        ),
        job_name(name_beginning("0x" + "b" * 40, "main"), 1, "0123456789abcdef", "hpl"),
        "x" + job_name(OURS, 1, "0123456789abcdef", "hpl"),
    ],
)
def test_is_named__anothers__is_not_ours(name: str) -> None:
    assert not is_named(name, OURS)
