"""The life of a benchmark run: what is next, and what follows from what SLURM and an
output say.
"""

import math
import re
import subprocess
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_tasks.benchmarking.model import (
    CLEAN_GIVEN_UP_S,
    BenchmarkRun,
    BenchmarkState,
    Measurement,
    RunState,
    RunStep,
    batch_script,
    cleanup_expired,
    job_name,
    name_beginning,
    next_step,
    sbatch,
)
from supervisor_tasks.benchmarking.outcome import (
    LONG_WAIT_S,
    MAX_LOOK_S,
    MAX_WAIT_S,
    NODES_COUNTED_AFTER_S,
    OUTPUT_LATE_S,
    SUBMISSIONS,
    after_cancel,
    after_look,
    blocked_reason,
    counts_nodes,
    cut_short,
    end_reported,
    too_few_nodes,
    unsound,
    waits_long,
    why_failed,
)
from supervisor_tasks.jobs.model import SlurmId
from supervisor_tasks.reconciliation.snapshot import JOB_NAME
from supervisor_tasks.slurm.benchmark_jobs import minutes_back
from supervisor_tasks.slurm.hardware import PartitionHardware, SlurmNode
from supervisor_tasks.slurm.parsers import JobRecord

SETTLED_S = 23.0
NAME = job_name(name_beginning("0x" + "A" * 40, "main"), 3, "0123456789abcdef", "hpl")
TOLD = f"\n{NAME} ended 0\n".encode()
RUNNING = BenchmarkRun(id=3, why="a test", state=RunState.RUNNING)


def one(stage: BenchmarkState, **about: Any) -> Measurement:
    given: dict[str, Any] = {
        "id": 1,
        "run_id": 3,
        "benchmark": "hpl",
        "job_name": NAME,
        "options": ("--time=7",),
    }
    return Measurement(stage=stage, **given | about)


def record(state: str, **about: Any) -> JobRecord:
    return JobRecord(SlurmId(7), state, **{"elapsed_s": 5, "exit_status": 0} | about)


@pytest.mark.parametrize(
    ("stages", "expected"),
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
    stages: list[str], expected: tuple[RunStep, int]
) -> None:
    measurements = [
        one(BenchmarkState(stage), id=number) for number, stage in enumerate(stages)
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


def test_next_step__of_a_run_that_is_to_end__begins_nothing() -> None:
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
        one(BenchmarkState.CANCELLED, called_s_ago=5.0),
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
    ("called_s_ago", "minutes"),
    [(0.0, 10), (3600.0, 70), (math.inf, 30 * 24 * 60 + 10)],
)
def test_minutes_back__time_since_the_call__adds_ten_minutes_and_is_bounded(
    called_s_ago: float, minutes: int
) -> None:
    assert minutes <= minutes_back(called_s_ago) <= minutes + 1


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


@pytest.mark.parametrize(
    "state",
    ["PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "NEVER_HEARD_OF"],
)
def test_look__at_what_has_not_ended__looks_again(state: str) -> None:
    change = after_look(
        one(BenchmarkState.SUBMITTING, called_s_ago=10), record(state), SETTLED_S
    )
    assert (change.stage, change.slurm_id, change.poll_delay_s) == (
        BenchmarkState.SUBMITTED,
        7,
        5.0,
    )
    change = after_look(
        one(BenchmarkState.SUBMITTED, called_s_ago=math.inf), record(state), SETTLED_S
    )
    assert change.poll_delay_s == MAX_LOOK_S


def test_look__at_a_job_that_waits__says_for_what() -> None:
    change = after_look(
        one(BenchmarkState.SUBMITTED), record("PENDING", reason="Priority"), SETTLED_S
    )
    assert change.slurm_state == "PENDING (Priority)"


@pytest.mark.parametrize(
    ("state", "reason", "called_s_ago", "why"),
    [
        (
            "PENDING",
            "PartitionTimeLimit",
            5.0,
            r"without end: PartitionTimeLimit \(it asked for 7 min\)",
        ),
        ("PENDING", "JobHeldAdmin", 5.0, "JobHeldAdmin"),
        ("PENDING", "Priority", MAX_WAIT_S + 1, r"48 h: PENDING \(Priority\)"),
        ("PENDING", "Priority", MAX_WAIT_S, "^$"),
        ("PENDING", "Resources", math.inf, "^$"),
        ("PENDING", "ReqNodeNotAvail, UnavailableNodes:node1", 5.0, "^$"),
        ("RUNNING", "None", MAX_WAIT_S + 1, "^$"),
        ("COMPLETED", "PartitionTimeLimit", MAX_WAIT_S + 1, "^$"),
    ],
)
def test_blocked_reason__slurm_will_not_begin_it_or_not_in_time__says_why(
    state: str, reason: str, called_s_ago: float, why: str
) -> None:
    found = blocked_reason(
        one(BenchmarkState.SUBMITTED, called_s_ago=called_s_ago),
        record(state, reason=reason),
    )
    assert re.search(why, found)
    assert (
        blocked_reason(one(BenchmarkState.SUBMITTED, called_s_ago=math.inf), None) == ""
    )


@pytest.mark.parametrize(
    "state",
    ["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY"],
)
def test_look__at_an_end__is_an_end(state: str) -> None:
    change = after_look(
        one(BenchmarkState.SUBMITTED), record(state, exit_status=256), SETTLED_S
    )
    assert (change.stage, change.slurm_state, change.exit_status) == (
        BenchmarkState.ENDED,
        state,
        256,
    )


def test_look__at_what_slurm_rejected__has_failed() -> None:
    rejected = record("FAILED", elapsed_s=0, reason="BadConstraints")
    change = after_look(one(BenchmarkState.SUBMITTING), rejected, SETTLED_S)
    assert (change.stage, change.reason) == (
        BenchmarkState.FAILED,
        "SLURM rejected the job: BadConstraints",
    )


def test_look__at_nothing__is_no_submission_only_when_nothing_can_arrive_any_more() -> (
    None
):
    early = after_look(
        one(BenchmarkState.SUBMITTING, called_s_ago=3.0), None, SETTLED_S
    )
    assert (early.stage, early.poll_delay_s, early.lost) == (
        BenchmarkState.SUBMITTING,
        20.0,
        False,
    )
    late = after_look(
        one(BenchmarkState.SUBMITTING, called_s_ago=23.0), None, SETTLED_S
    )
    assert (late.stage, late.lost) == (BenchmarkState.WAITING, True)
    last = after_look(
        one(
            BenchmarkState.SUBMITTING,
            called_s_ago=23.0,
            lost_submissions=SUBMISSIONS - 1,
        ),
        None,
        SETTLED_S,
    )
    assert (last.stage, "knows nothing of it" in last.reason) == (
        BenchmarkState.FAILED,
        True,
    )


@pytest.mark.parametrize("stage", [BenchmarkState.SUBMITTING, BenchmarkState.SUBMITTED])
def test_look__at_nothing__is_an_end_when_the_output_says_so(
    stage: BenchmarkState,
) -> None:
    change = after_look(
        one(stage, called_s_ago=100, slurm_id=SlurmId(7)),
        None,
        SETTLED_S,
        output_shows_end=True,
    )
    assert (change.stage, change.slurm_id, change.slurm_state) == (
        BenchmarkState.ENDED,
        7,
        "",
    )


def test_look__at_a_job_that_vanished__waits_before_it_is_an_end() -> None:
    first = after_look(
        one(BenchmarkState.SUBMITTED, slurm_id=SlurmId(7)), None, SETTLED_S
    )
    assert (first.stage, first.missing, first.poll_delay_s <= SETTLED_S) == (
        BenchmarkState.SUBMITTED,
        True,
        True,
    )
    second = after_look(
        one(BenchmarkState.SUBMITTED, slurm_id=SlurmId(7), missing_for_s=22.0),
        None,
        SETTLED_S,
    )
    assert (second.stage, second.poll_delay_s) == (BenchmarkState.SUBMITTED, 1.0)
    third = after_look(
        one(BenchmarkState.SUBMITTED, slurm_id=SlurmId(7), missing_for_s=23.0),
        None,
        SETTLED_S,
    )
    assert third.stage is BenchmarkState.ENDED


@pytest.mark.parametrize(
    ("about", "output", "why"),
    [
        ({"slurm_state": "COMPLETED"}, b"5" + TOLD, ""),
        ({"slurm_state": "COMPLETED"}, None, None),
        ({"slurm_state": "COMPLETED"}, b"5", None),
        (
            {"slurm_state": "COMPLETED", "ended_s_ago": OUTPUT_LATE_S},
            None,
            "no output came back",
        ),
        ({"slurm_state": "COMPLETED", "ended_s_ago": OUTPUT_LATE_S}, b"5", "not whole"),
        ({"slurm_state": "TIMEOUT"}, b"5" + TOLD, r"time limit \(7 min\)"),
        ({"slurm_state": "FAILED", "exit_status": 768}, b"5" + TOLD, "exit code 3"),
        ({"slurm_state": "FAILED", "exit_status": 9}, b"5", "killed by signal 9"),
        ({"slurm_state": "OUT_OF_MEMORY"}, b"5" + TOLD, "SLURM: OUT_OF_MEMORY"),
        ({"slurm_state": "CANCELLED"}, b"5" + TOLD, "SLURM: CANCELLED"),
        ({"slurm_state": ""}, b"5" + TOLD, ""),
        ({"slurm_state": ""}, f"5\n{NAME} ended 4\n".encode(), "exit code 4"),
        ({"slurm_state": ""}, b"5", "does not tell how it ended"),
        ({"slurm_state": ""}, None, "does not tell how it ended"),
    ],
)
def test_why_failed__each_end_and_output__is_empty_only_when_the_job_ended_well(
    about: dict[str, Any], output: bytes | None, why: str | None
) -> None:
    found = why_failed(one(BenchmarkState.ENDED, **about), output)
    if why is None or why == "":
        assert found == why
    else:
        assert found is not None
        assert re.search(why, found)


@given(st.binary())
def test_end_told__of_any_bytes__is_none_or_an_exit_status(output: bytes) -> None:
    assert end_reported(NAME, output) is None
    assert end_reported(NAME, output + TOLD) == (0, output)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -1.0, "", " "])
def test_values__that_cannot_be_measured__are_unsound(value: float | str) -> None:
    assert unsound({"good": 1.0, "compute.gflops": value}).startswith(
        "compute.gflops is "
    )


def test_values__that_can__are_sound_and_none_at_all_are_not() -> None:
    assert unsound({"compute.gflops": 1.5, "cpu": "a cpu"}) == ""
    assert unsound({}) != ""


def node(number: int, state: str = "IDLE") -> SlurmNode:
    return SlurmNode(name=f"node{number}", cpus=8, gpus=0, mem_mb=16_000, state=state)


ALL_OF_FOUR = ("--nodes=4", "--time=7")
NAMED = ("--nodes=2", "--nodelist=node2,node3")
DOWN = node(4, "DOWN*")


@pytest.mark.parametrize(
    ("options", "specs", "why"),
    [
        (
            ALL_OF_FOUR,
            PartitionHardware((node(1), node(2), node(3)), (DOWN,)),
            "it needs 4 nodes, 3 work",
        ),
        (
            ALL_OF_FOUR,
            PartitionHardware((node(1), node(2), node(3), DOWN)),
            "it needs 4 nodes, 3 work",
        ),  # BENCHMARK_UNRESPONSIVE
        (
            ALL_OF_FOUR,
            PartitionHardware((node(1), node(2), node(3), node(4, "ALLOCATED"))),
            "",
        ),
        (
            ALL_OF_FOUR,
            PartitionHardware(
                (node(1), node(2), node(3), node(4, "IDLE+POWERED_DOWN"))
            ),
            "",
        ),
        (
            ALL_OF_FOUR,
            PartitionHardware((node(1), node(2), node(3)), hidden_nodes=1),
            "",
        ),
        (ALL_OF_FOUR, PartitionHardware(()), "it needs 4 nodes, 0 work"),
        (NAMED, PartitionHardware((node(1), node(2), node(3)), (DOWN,)), ""),
        (
            NAMED,
            PartitionHardware((node(1), node(2)), (node(3, "IDLE+DRAIN"), DOWN)),
            "it needs 2 nodes, 1 work",
        ),
        ((), PartitionHardware((node(1),)), ""),
    ],
)
def test_nodes__fewer_than_it_needs__are_too_few(
    options: tuple[str, ...], specs: PartitionHardware, why: str
) -> None:
    assert too_few_nodes(one(BenchmarkState.SUBMITTED, options=options), specs) == why


def test_blocked_reason__node_that_it_needs_is_gone__says_how_many_work() -> None:
    waiting, pending = (
        one(BenchmarkState.SUBMITTED, options=ALL_OF_FOUR, called_s_ago=1000.0),
        record("PENDING", reason="Resources"),
    )
    few = PartitionHardware((node(1), node(2), node(3)), (DOWN,))
    assert (
        blocked_reason(waiting, pending, few)
        == "it needs 4 nodes, 3 work; SLURM: PENDING (Resources)"
    )
    assert (
        blocked_reason(waiting, pending, PartitionHardware((*few.nodes, node(4)))) == ""
    )
    assert blocked_reason(waiting, record("RUNNING"), few) == ""


@pytest.mark.parametrize(
    ("state", "called_s_ago", "counted", "long"),
    [
        ("PENDING", NODES_COUNTED_AFTER_S, False, False),
        ("PENDING", NODES_COUNTED_AFTER_S + 1, True, False),
        ("PENDING", LONG_WAIT_S + 1, True, True),
        ("PENDING", math.inf, False, False),
        ("RUNNING", LONG_WAIT_S + 1, False, False),
    ],
)
def test_job__waits_for_long__has_its_nodes_counted_and_then_the_operator_called(
    state: str, called_s_ago: float, counted: bool, long: bool
) -> None:
    waiting = one(BenchmarkState.SUBMITTED, called_s_ago=called_s_ago)
    assert (
        counts_nodes(waiting, record(state)),
        waits_long(waiting, record(state)),
    ) == (counted, long)
    assert not counts_nodes(waiting, None)


@pytest.mark.parametrize(
    ("state", "cancel_reason", "refused", "stage", "reason"),
    [
        ("PENDING", None, "", BenchmarkState.FAILED, "held"),
        (
            "PENDING",
            None,
            "denied",
            BenchmarkState.FAILED,
            "held; it could not be cancelled: denied",
        ),
        ("PENDING", "enough", "", BenchmarkState.SUBMITTED, ""),
        ("RUNNING", "enough", "", BenchmarkState.SUBMITTED, ""),
        (
            "PENDING",
            "enough",
            "denied",
            BenchmarkState.CANCELLED,
            "enough; it could not be cancelled: denied",
        ),
        (
            "RUNNING",
            "enough",
            "denied",
            BenchmarkState.SUBMITTED,
            "it could not be cancelled: denied",
        ),
    ],
)
def test_cancel__that_slurm_refuses__leaves_what_waits_and_awaits_what_runs(
    state: str,
    cancel_reason: str | None,
    refused: str,
    stage: BenchmarkState,
    reason: str,
) -> None:
    change = after_look(
        one(BenchmarkState.SUBMITTED, called_s_ago=9.0), record(state), SETTLED_S
    )
    found = after_cancel(
        change,
        record(state),
        cannot_start="held",
        cancel_reason=cancel_reason,
        refused=refused,
    )
    assert (found.stage, found.reason) == (stage, reason)


def test_next_step__what_cannot_be_removed_now__does_not_keep_the_others() -> None:
    dirty, waiting = (
        one(BenchmarkState.MEASURED, due_in_s=9.0),
        one(BenchmarkState.WAITING),
    )
    assert next_step(RUNNING, [dirty, waiting]) == (RunStep.SUBMIT, waiting)
    assert next_step(RUNNING, [dirty]) is None


def test_cleaning__a_while_has_passed_or_the_run_is_ending__is_given_up() -> None:
    ending = replace(RUNNING, cancel_reason="enough")
    assert not cleanup_expired(
        RUNNING, one(BenchmarkState.MEASURED, ended_s_ago=CLEAN_GIVEN_UP_S - 1)
    )
    assert cleanup_expired(
        RUNNING, one(BenchmarkState.MEASURED, ended_s_ago=CLEAN_GIVEN_UP_S)
    )
    assert cleanup_expired(ending, one(BenchmarkState.MEASURED))


@pytest.mark.parametrize(
    ("slurm_state", "failed", "expected"),
    [
        ("COMPLETED", "", False),
        ("COMPLETED", None, False),
        ("COMPLETED", "no output came back", False),
        ("", "", False),
        ("", "exit code 4", True),
        ("CANCELLED", "SLURM: CANCELLED", True),
        ("TIMEOUT", "it ran into its time limit", True),
    ],
)
def test_cut_short__run_that_is_ending__keeps_what_had_completed(
    slurm_state: str, failed: str | None, expected: bool
) -> None:
    ended = one(BenchmarkState.ENDED, slurm_state=slurm_state)
    assert cut_short(ended, failed, "enough") is expected
    assert not cut_short(ended, failed, None)
