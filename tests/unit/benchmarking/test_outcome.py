"""What follows from SLURM's record of a benchmark's job, and from the job's output: a
row for each rule.
"""

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_tasks.benchmarking.benchmark_run import (
    BenchmarkState,
    MeasurementUpdate,
)
from supervisor_tasks.benchmarking.outcome import (
    LEFT_AFTER_S,
    LONG_WAIT_S,
    MAX_POLL_S,
    MAX_SUBMISSIONS,
    MAX_WAIT_S,
    NODES_COUNTED_AFTER_S,
    OUTPUT_LATE_S,
    after_cancel,
    after_poll,
    blocked_reason,
    counts_nodes,
    cut_short,
    end_reported,
    leads_to_no_end,
    left_behind,
    too_few_nodes,
    unsound,
    waits_long,
    why_failed,
)
from supervisor_tasks.jobs.model import SlurmId
from supervisor_tasks.slurm.hardware import PartitionHardware, SlurmNode
from supervisor_tasks.slurm.parsers import JobRecord
from tests.support.measurements import NAME, one

SETTLED_S = 23.0


TOLD = f"\n{NAME} ended 0\n".encode()


def record(state: str, **about: Any) -> JobRecord:
    return JobRecord(SlurmId(7), state, **{"elapsed_s": 5, "exit_status": 0} | about)


@pytest.mark.parametrize(
    "state",
    ["PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "NEVER_HEARD_OF"],
)
def test_after_poll__job_has_not_ended__looks_again(state: str) -> None:
    change = after_poll(
        one(BenchmarkState.SUBMITTING, called_ago_s=10), record(state), SETTLED_S
    )
    assert (change.state, change.slurm_id, change.poll_delay_s) == (
        BenchmarkState.SUBMITTED,
        7,
        5.0,
    )
    change = after_poll(
        one(BenchmarkState.SUBMITTED, called_ago_s=math.inf), record(state), SETTLED_S
    )
    assert change.poll_delay_s == MAX_POLL_S


def test_after_poll__job_waits__says_for_what() -> None:
    change = after_poll(
        one(BenchmarkState.SUBMITTED), record("PENDING", reason="Priority"), SETTLED_S
    )
    assert change.slurm_state == "PENDING (Priority)"


@pytest.mark.parametrize(
    ("state", "reason", "called_ago_s", "why"),
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
    state: str, reason: str, called_ago_s: float, why: str
) -> None:
    found = blocked_reason(
        one(BenchmarkState.SUBMITTED, called_ago_s=called_ago_s),
        record(state, reason=reason),
    )
    assert re.search(why, found)
    assert (
        blocked_reason(one(BenchmarkState.SUBMITTED, called_ago_s=math.inf), None) == ""
    )


@pytest.mark.parametrize(
    "state",
    ["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY"],
)
def test_after_poll__job_has_ended__is_an_end(state: str) -> None:
    change = after_poll(
        one(BenchmarkState.SUBMITTED), record(state, exit_status=256), SETTLED_S
    )
    assert (change.state, change.slurm_state, change.exit_status) == (
        BenchmarkState.ENDED,
        state,
        256,
    )


def test_after_poll__slurm_rejected_the_job__has_failed() -> None:
    rejected = record("FAILED", elapsed_s=0, reason="BadConstraints")
    change = after_poll(one(BenchmarkState.SUBMITTING), rejected, SETTLED_S)
    assert (change.state, change.reason) == (
        BenchmarkState.FAILED,
        "SLURM rejected the job: BadConstraints",
    )


def test_after_poll__slurm_lacks_the_job__is_lost_once_nothing_can_arrive() -> None:
    early = after_poll(
        one(BenchmarkState.SUBMITTING, called_ago_s=3.0), None, SETTLED_S
    )
    assert (early.state, early.poll_delay_s, early.lost) == (
        BenchmarkState.SUBMITTING,
        20.0,
        False,
    )
    late = after_poll(
        one(BenchmarkState.SUBMITTING, called_ago_s=23.0), None, SETTLED_S
    )
    assert (late.state, late.lost) == (BenchmarkState.WAITING, True)
    last = after_poll(
        one(
            BenchmarkState.SUBMITTING,
            called_ago_s=23.0,
            lost_submissions=MAX_SUBMISSIONS - 1,
        ),
        None,
        SETTLED_S,
    )
    assert (last.state, "knows nothing of it" in last.reason) == (
        BenchmarkState.FAILED,
        True,
    )


@pytest.mark.parametrize("state", [BenchmarkState.SUBMITTING, BenchmarkState.SUBMITTED])
def test_after_poll__slurm_lacks_the_job__is_an_end_if_the_output_shows_it(
    state: BenchmarkState,
) -> None:
    change = after_poll(
        one(state, called_ago_s=100, slurm_id=SlurmId(7)),
        None,
        SETTLED_S,
        output_shows_end=True,
    )
    assert (change.state, change.slurm_id, change.slurm_state) == (
        BenchmarkState.ENDED,
        7,
        "",
    )


def test_after_poll__submitted_job_is_missing__waits_before_it_is_an_end() -> None:
    first = after_poll(
        one(BenchmarkState.SUBMITTED, slurm_id=SlurmId(7)), None, SETTLED_S
    )
    assert (first.state, first.missing, first.poll_delay_s <= SETTLED_S) == (
        BenchmarkState.SUBMITTED,
        True,
        True,
    )
    second = after_poll(
        one(BenchmarkState.SUBMITTED, slurm_id=SlurmId(7), missing_for_s=22.0),
        None,
        SETTLED_S,
    )
    assert (second.state, second.poll_delay_s) == (BenchmarkState.SUBMITTED, 1.0)
    third = after_poll(
        one(BenchmarkState.SUBMITTED, slurm_id=SlurmId(7), missing_for_s=23.0),
        None,
        SETTLED_S,
    )
    assert third.state is BenchmarkState.ENDED


@pytest.mark.parametrize(
    ("about", "output", "why"),
    [
        ({"slurm_state": "COMPLETED"}, b"5" + TOLD, ""),
        ({"slurm_state": "COMPLETED"}, None, None),
        ({"slurm_state": "COMPLETED"}, b"5", None),
        ({"slurm_state": "COMPLETED", "ended_ago_s": OUTPUT_LATE_S - 0.1}, b"5", None),
        (
            {"slurm_state": "COMPLETED", "ended_ago_s": OUTPUT_LATE_S},
            None,
            "no output came back",
        ),
        ({"slurm_state": "COMPLETED", "ended_ago_s": OUTPUT_LATE_S}, b"5", "not whole"),
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
def test_end_reported__any_bytes__is_none_or_an_exit_status(output: bytes) -> None:
    assert end_reported(NAME, output) is None
    assert end_reported(NAME, output + TOLD) == (0, output)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -1.0, "", " "])
def test_unsound__value_that_cannot_be_measured__is_named(value: float | str) -> None:
    assert unsound({"good": 1.0, "compute.gflops": value}).startswith(
        "compute.gflops is "
    )


def test_unsound__sound_values_or_none_at_all__only_none_is_wrong() -> None:
    assert unsound({"compute.gflops": 1.5, "cpu": "a cpu"}) == ""
    assert unsound({}) != ""


def node(number: int, state: str = "IDLE") -> SlurmNode:
    return SlurmNode(name=f"node{number}", cpus=8, gpus=0, mem_mb=16_000, state=state)


ALL_OF_FOUR = ("--nodes=4", "--time=7")


NAMED = ("--nodes=2", "--nodelist=node2,node3")


DOWN = node(4, "DOWN*")


@pytest.mark.parametrize(
    ("options", "hardware", "why"),
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
        ((), PartitionHardware((DOWN,)), "it needs 1 nodes, 0 work"),
        (
            ("--nodelist=node2",),
            PartitionHardware((node(1), node(20))),
            "it needs 1 nodes, 0 work",
        ),
        (
            ("--nodes=2", "--exclude=node1,node4"),
            PartitionHardware((node(1), node(2), node(3))),
            "",
        ),
        (
            ("--nodes=2", "--exclude=node1,node4"),
            PartitionHardware((node(1), node(2), node(4))),
            "it needs 2 nodes, 1 work",
        ),
    ],
)
def test_too_few_nodes__fewer_work_than_it_needs__says_how_many_work(
    options: tuple[str, ...], hardware: PartitionHardware, why: str
) -> None:
    assert (
        too_few_nodes(one(BenchmarkState.SUBMITTED, options=options), hardware) == why
    )


def test_blocked_reason__node_that_it_needs_is_gone__says_how_many_work() -> None:
    waiting, pending = (
        one(BenchmarkState.SUBMITTED, options=ALL_OF_FOUR, called_ago_s=1000.0),
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
    ("state", "called_ago_s", "counted", "long"),
    [
        ("PENDING", NODES_COUNTED_AFTER_S, False, False),
        ("PENDING", NODES_COUNTED_AFTER_S + 1, True, False),
        ("PENDING", LONG_WAIT_S, True, False),
        ("PENDING", LONG_WAIT_S + 1, True, True),
        ("PENDING", math.inf, False, False),
        ("RUNNING", LONG_WAIT_S + 1, False, False),
    ],
)
def test_waits_long__each_wait__counts_nodes_first_and_calls_the_operator_later(
    state: str, called_ago_s: float, counted: bool, long: bool
) -> None:
    waiting = one(BenchmarkState.SUBMITTED, called_ago_s=called_ago_s)
    assert (
        counts_nodes(waiting, record(state)),
        waits_long(waiting, record(state), 0.0),
    ) == (counted, long)
    assert not counts_nodes(waiting, None)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("COMPLETING", True),
        ("SUSPENDED", True),
        ("STOPPED", True),
        ("NEVER_HEARD_OF", True),
        ("RUNNING", False),
        ("PENDING", False),
        ("COMPLETED", False),
    ],
)
def test_leads_to_no_end__each_state__is_one_that_does_not_end_by_itself(
    state: str, expected: bool
) -> None:
    assert leads_to_no_end(record(state)) is expected
    assert not leads_to_no_end(None)


def test_waits_long__state_that_leads_to_no_end__calls_the_operator_after_an_hour() -> (
    None
):
    begun = one(BenchmarkState.SUBMITTED, called_ago_s=MAX_WAIT_S)
    found = [
        waits_long(begun, record("COMPLETING"), no_end_s)
        for no_end_s in (0.0, LONG_WAIT_S, LONG_WAIT_S + 1)
    ]
    assert found == [False, False, True]


@pytest.mark.parametrize(
    ("slurm_state", "cancel_reason", "rejected", "no_end_s", "reason"),
    [
        ("COMPLETING", None, "", LONG_WAIT_S, None),
        ("COMPLETING", "enough", "", LEFT_AFTER_S - 1, None),
        (
            "COMPLETING",
            "enough",
            "",
            LEFT_AFTER_S,
            "enough; SLURM has shown COMPLETING for 1 min, and the job was left to it",
        ),
        (
            "SUSPENDED",
            "enough",
            "denied",
            600.0,
            "enough; SLURM has shown SUSPENDED for 10 min, and the job was left to it;"
            " it could not be cancelled: denied",
        ),
        ("RUNNING", "enough", "denied", 0.0, None),
        ("COMPLETED", "enough", "", 0.0, None),
    ],
)
def test_left_behind__cancelled_run__leaves_what_stays_in_such_a_state_for_a_minute(
    slurm_state: str,
    cancel_reason: str | None,
    rejected: str,
    no_end_s: float,
    reason: str | None,
) -> None:
    seen = record(slurm_state)
    change = after_poll(
        one(BenchmarkState.SUBMITTED, called_ago_s=9.0), seen, SETTLED_S
    )
    if cancel_reason is not None and change.state is BenchmarkState.SUBMITTED:
        change = after_cancel(
            change,
            seen,
            cannot_start="",
            cancel_reason=cancel_reason,
            rejected=rejected,
        )
    found = left_behind(change, seen, cancel_reason=cancel_reason, no_end_s=no_end_s)
    if reason is None:
        assert found == change
    else:
        assert (found.state, found.reason) == (BenchmarkState.CANCELLED, reason)


@pytest.mark.parametrize(
    ("slurm_state", "cancel_reason", "rejected", "state", "reason"),
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
def test_after_cancel__slurm_rejects__leaves_what_waits_and_awaits_what_runs(
    slurm_state: str,
    cancel_reason: str | None,
    rejected: str,
    state: BenchmarkState,
    reason: str,
) -> None:
    change = after_poll(
        one(BenchmarkState.SUBMITTED, called_ago_s=9.0), record(slurm_state), SETTLED_S
    )
    found = after_cancel(
        change,
        record(slurm_state),
        cannot_start="held",
        cancel_reason=cancel_reason,
        rejected=rejected,
    )
    assert (found.state, found.reason) == (state, reason)


@pytest.mark.parametrize(
    ("slurm_state", "failed", "expected"),
    [
        ("COMPLETED", "", False),
        ("COMPLETED", None, False),
        ("COMPLETED", "no output came back", False),
        ("", "", False),
        ("", "exit code 4", True),
        ("", None, True),
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


# --- the time of the next look --------------------------------------------------------


@pytest.mark.parametrize(
    ("called_ago_s", "poll_delay_s"),
    [
        (0.0, 1.0),
        (2.0, 1.0),
        (2.5, 1.25),
        (119.0, 59.5),
        (120.0, 60.0),
        (121.0, 60.0),
        (math.inf, 60.0),
    ],
)
def test_after_poll__job_has_not_ended__waits_half_its_age_within_bounds(
    called_ago_s: float, poll_delay_s: float
) -> None:
    change = after_poll(
        one(BenchmarkState.SUBMITTED, called_ago_s=called_ago_s),
        record("RUNNING"),
        SETTLED_S,
    )
    assert change.poll_delay_s == poll_delay_s


@pytest.mark.parametrize(
    ("missing_for_s", "window_s", "poll_delay_s"),
    [
        (None, 23.0, 5.0),
        (0.0, 23.0, 5.0),
        (18.0, 23.0, 5.0),
        (19.0, 23.0, 4.0),
        (None, 3.0, 3.0),
    ],
)
def test_after_poll__submitted_job_is_missing__looks_again_within_five_seconds(
    missing_for_s: float | None, window_s: float, poll_delay_s: float
) -> None:
    missing = one(
        BenchmarkState.SUBMITTED,
        slurm_id=SlurmId(7),
        slurm_state="RUNNING",
        missing_for_s=missing_for_s,
    )
    assert after_poll(missing, None, window_s) == MeasurementUpdate(
        state=BenchmarkState.SUBMITTED,
        poll_delay_s=poll_delay_s,
        slurm_id=SlurmId(7),
        slurm_state="RUNNING",
        missing=True,
    )


# --- which sign counts ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("slurm_state", "state"),
    [
        ("PENDING", BenchmarkState.SUBMITTED),
        ("RUNNING", BenchmarkState.SUBMITTED),
        ("FAILED", BenchmarkState.ENDED),
    ],
)
def test_after_poll__record_and_output_that_shows_an_end__the_record_counts(
    slurm_state: str, state: BenchmarkState
) -> None:
    change = after_poll(
        one(BenchmarkState.SUBMITTED),
        record(slurm_state),
        SETTLED_S,
        output_shows_end=True,
    )
    assert (change.state, change.slurm_state) == (state, slurm_state)


@pytest.mark.parametrize(
    ("lost_before", "state", "lost"),
    [
        (0, BenchmarkState.WAITING, True),
        (3, BenchmarkState.WAITING, True),
        (4, BenchmarkState.FAILED, False),
        (5, BenchmarkState.FAILED, False),
    ],
)
def test_after_poll__handed_over_and_lost_each_time__fails_at_the_fifth_time(
    lost_before: int, state: BenchmarkState, lost: bool
) -> None:
    handed_over = one(
        BenchmarkState.SUBMITTING, called_ago_s=math.inf, lost_submissions=lost_before
    )
    change = after_poll(handed_over, None, SETTLED_S)
    assert (change.state, change.lost) == (state, lost)


# --- the end that an output shows -----------------------------------------------------


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (b"5\nNAME ended 0\n", (0, b"5")),
        (b"5\nNAME ended 137\n", (137, b"5")),
        (b"\nNAME ended 3\n", (3, b"")),
        (b"5\nNAME ended 0\nslurmstepd: late\n", (0, b"5slurmstepd: late\n")),
        (b"5\nNAME ended 0\n\nNAME ended 4\n", (4, b"5\nNAME ended 0\n")),
        (b"\xff\nNAME ended 0\n", (0, b"\xff")),
        (None, None),
        (b"", None),
        (b"NAME ended 0\n", None),
        (b"5\nNAME ended 0", None),
        (b"5\nNAME ended \n", None),
        (b"5\nNAME ended -1\n", None),
        (b"5\nNAME ended 1000\n", None),
        (b"5\nNAME ended 0 \n", None),
        (b"5\nNAME-2 ended 0\n", None),
        (b"5\nNAME ended 0\n\nNAME ended", (0, b"5\nNAME ended")),
    ],
)
def test_end_reported__each_output__is_the_last_whole_line_of_an_end(
    output: bytes | None, expected: tuple[int, bytes] | None
) -> None:
    assert end_reported("NAME", output) == expected


# --- what is wrong with values --------------------------------------------------------


def test_unsound__several_wrong_values__are_all_named_and_no_other() -> None:
    values: dict[str, float | str] = {
        "compute.gflops": -1.5,
        "cpu": "a cpu",
        "network.bw": math.inf,
        "gpu": "",
    }
    found = unsound(values)
    assert found == "compute.gflops is -1.5; network.bw is inf; gpu is "


# --- what blocks a job, and what ends it ----------------------------------------------


def test_blocked_reason__several_reasons_at_once__says_the_first_that_is_certain() -> (
    None
):
    waiting = one(
        BenchmarkState.SUBMITTED, options=ALL_OF_FOUR, called_ago_s=MAX_WAIT_S + 1
    )
    too_few = PartitionHardware((node(1),))
    held = record("PENDING", reason="JobHeldAdmin")
    assert blocked_reason(waiting, held, too_few) == (
        "SLURM would let it wait without end: JobHeldAdmin (it asked for 7 min)"
    )
    busy = record("PENDING", reason="Priority")
    assert blocked_reason(waiting, busy, too_few) == (
        "it needs 4 nodes, 1 work; SLURM: PENDING (Priority)"
    )
    enough = PartitionHardware((node(1), node(2), node(3), node(4)))
    assert blocked_reason(waiting, busy, enough) == (
        "it waited for more than 48 h: PENDING (Priority)"
    )


SUBMITTED = MeasurementUpdate(
    state=BenchmarkState.SUBMITTED, poll_delay_s=4.5, slurm_id=SlurmId(7)
)


@pytest.mark.parametrize(
    ("state", "cancel_reason", "rejected", "poll_delay_s"),
    [
        ("PENDING", None, "", 0.0),
        ("PENDING", None, "denied", 0.0),
        ("PENDING", "enough", "", 1.0),
        ("PENDING", "enough", "denied", 0.0),
        ("RUNNING", "enough", "", 1.0),
        ("RUNNING", "enough", "denied", 60.0),
        (None, "enough", "", 1.0),
        (None, "enough", "denied", 60.0),
    ],
)
def test_after_cancel__each_answer_of_slurm__sets_the_time_of_the_next_look(
    state: str | None, cancel_reason: str | None, rejected: str, poll_delay_s: float
) -> None:
    found = after_cancel(
        SUBMITTED,
        None if state is None else record(state),
        cannot_start="",
        cancel_reason=cancel_reason,
        rejected=rejected,
    )
    assert (found.poll_delay_s, found.slurm_id) == (poll_delay_s, SlurmId(7))
