"""A job that SLURM shows in one state without end is reported to the operator."""

import pytest

from supervisor_tasks.jobs.model import SlurmId
from supervisor_tasks.jobs.stalled import NOT_LISTED, PATIENCE_S, stall_reason
from supervisor_tasks.slurm.parsers import JobRecord
from tests.support.slurm_samples import recorded as answer
from tests.support.slurm_samples import seen_jobs

AN_HOUR_AGO = PATIENCE_S + 1


def recorded(name: str) -> dict[SlurmId, JobRecord]:
    return seen_jobs(answer(name))


def showing(state: str, reason: str = "") -> JobRecord:
    return JobRecord(SlurmId(7), state, 0, 0, reason)


def test_recorded__completing__waits_an_hour() -> None:
    seen = recorded("squeue-jobs-live")[SlurmId(7)]
    assert seen.state == "COMPLETING"
    assert stall_reason(seen, []) is None
    assert (
        stall_reason(seen, [("COMPLETING", 900.0), ("COMPLETING", PATIENCE_S - 1)])
        is None
    )
    why = stall_reason(
        seen, [("COMPLETING", 900.0), ("COMPLETING", AN_HOUR_AGO), ("RUNNING", 5000.0)]
    )
    assert why is not None
    assert why.startswith(
        "for 60 min SLURM has shown the job in states like COMPLETING"
    )


def test_recorded__ended_before_it_began__is_the_operators_at_once() -> None:
    jobs = recorded("squeue-jobs-ended-before-they-began")
    why = stall_reason(jobs[SlurmId(1)], [])
    assert why is not None
    assert why.startswith("SLURM has ended the job as COMPLETED, and shows no time")
    assert stall_reason(jobs[SlurmId(2)], []) is None
    assert jobs[SlurmId(2)].state == "RUNNING for INVALID"


@pytest.mark.parametrize(
    "state",
    ["REVOKED", "UPDATE_DB", "LAUNCH_FAILED", "SPLENDID", "RUNNING for INVALID"],
)
def test_stall_reason__unknown_states_in_turn__count_together(state: str) -> None:
    assert (
        stall_reason(showing(state), [(state, 10.0), ("REVOKED", AN_HOUR_AGO)])
        is not None
    )


@pytest.mark.parametrize("before", ["RUNNING", "PENDING", NOT_LISTED])
def test_stall_reason__unknown_state_after_a_known_one__restarts_its_time(
    before: str,
) -> None:
    looks = [("COMPLETING", 10.0), (before, 900.0), ("COMPLETING", AN_HOUR_AGO)]
    assert stall_reason(showing("COMPLETING"), looks) is None


@pytest.mark.parametrize(
    "state", ["PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "NODE_FAIL"]
)
def test_stall_reason__known_state_for_any_time__is_none(state: str) -> None:
    assert stall_reason(showing(state), [("REVOKED", AN_HOUR_AGO)]) is None


NEVER = (
    *(
        "PartitionTimeLimit",
        "BadConstraints",
        "JobHeldAdmin",
        "JobHeldUser",
        "DependencyNeverSatisfied",
    ),
    *(
        "launch failed requeued held",
        "job requeued in held state",
        "JobHoldMaxRequeue",
        "QOSMinCpuNotSatisfied",
    ),
    *(
        "AssocMaxWallDurationPerJobLimit",
        "QOSMaxCpuPerJobLimit",
        "AssocMaxCpuPerNode",
        "InvalidQOS",
        "MaxMemPerLimit",
    ),
)
PASSES = (
    "None",
    "Priority",
    "Resources",
    "Dependency",
    "BeginTime",
    "PartitionDown",
    "PartitionNodeLimit",
    "Licenses",
    "QOSMaxCpuPerUserLimit",
)


@pytest.mark.parametrize("reason", NEVER)
def test_stall_reason__waits_an_hour_for_what_does_not_come__is_the_operators(
    reason: str,
) -> None:
    seen = showing("PENDING", reason)
    assert (
        stall_reason(seen, [(seen.shown, 10.0), (seen.shown, PATIENCE_S - 1)]) is None
    )
    why = stall_reason(
        seen,
        [(seen.shown, 10.0), (seen.shown, AN_HOUR_AGO), ("PENDING (Priority)", 5000.0)],
    )
    assert why is not None
    assert why.startswith(
        f"for 60 min SLURM has let the job wait for what does not come by itself: PENDING ({reason}): "
    )


@pytest.mark.parametrize("reason", [*PASSES, "ReqNodeNotAvail, UnavailableNodes:node1"])
def test_stall_reason__reason_that_passes_for_any_time__is_none(reason: str) -> None:
    seen = showing("PENDING", reason)
    assert stall_reason(seen, [(seen.shown, AN_HOUR_AGO)]) is None
    held = showing("PENDING", "JobHeldUser")
    assert (
        stall_reason(
            held, [(held.shown, 10.0), (seen.shown, 900.0), (held.shown, AN_HOUR_AGO)]
        )
        is None
    )
