"""What SLURM's job states mean, and the reasons for which a job never begins."""

import pytest

from supervisor_tasks.jobs.model import ChainStatus
from supervisor_tasks.slurm.job_states import Phase, end, never_begins, phase

# JOB STATE CODES of squeue(1), SLURM 22.05 to 25.11
STATES = {
    Phase.WAITING: "PENDING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD SPECIAL_EXIT"
    " RESV_DEL_HOLD POWER_UP_NODE EXPEDITING",
    Phase.RUNNING: "RUNNING SUSPENDED STOPPED RESIZING SIGNALING STAGE_OUT",
    Phase.ENDED: "COMPLETED FAILED TIMEOUT CANCELLED BOOT_FAIL DEADLINE NODE_FAIL OUT_OF_MEMORY PREEMPTED",
    Phase.UNKNOWN: "COMPLETING UPDATE_DB LAUNCH_FAILED RECONFIG_FAIL REVOKED",
}
NOT_FAILED = {
    "COMPLETED": ChainStatus.FINISHED,
    "TIMEOUT": ChainStatus.OUT_OF_CREDITS,
    "CANCELLED": ChainStatus.CANCELLED,
}


@pytest.mark.parametrize(
    ("wanted", "state"),
    [(p, state) for p, states in STATES.items() for state in states.split()],
)
def test_phase__every_state_of_squeue__has_its_phase_and_only_ends_have_a_status(
    wanted: Phase, state: str
) -> None:
    assert phase(state) is wanted
    if wanted is Phase.ENDED:
        assert end(state).status is NOT_FAILED.get(state, ChainStatus.FAILED)
    else:
        with pytest.raises(KeyError):
            end(state)


@pytest.mark.parametrize(
    "state",
    ["SPLENDID", "", "completed", " COMPLETED", "COMPLETED+", "CANCELLED by 1000"],
)
def test_phase__state_of_no_table__is_unknown_and_never_success(state: str) -> None:
    assert phase(state) is Phase.UNKNOWN
    with pytest.raises(KeyError):
        end(state)


@pytest.mark.parametrize(
    ("state", "by_itself", "exit_status"),
    [
        ("COMPLETED", True, 0),
        ("FAILED", True, 0),
        ("OUT_OF_MEMORY", False, 253),
        ("TIMEOUT", False, 0),
        ("CANCELLED", False, 0),
        ("BOOT_FAIL", False, 0),
        ("DEADLINE", False, 0),
        ("NODE_FAIL", False, 0),
        ("PREEMPTED", False, 0),
    ],
)
def test_end__each_end_state__has_the_scripts_own_exit_status_or_the_contracts(
    state: str, by_itself: bool, exit_status: int
) -> None:
    meaning = end(state)
    assert (meaning.by_itself, meaning.exit_status) == (by_itself, exit_status)


@pytest.mark.parametrize(
    "reason",
    [
        "PartitionTimeLimit",
        "PartitionConfig",
        "BadConstraints",
        "InvalidAccount",
        "InvalidQOS",
        "AccountNotAllowed",
        "QOSNotAllowed",
        "QOSMinCpuNotSatisfied",
        "QOSMinGRES",
        "AssocMaxCpuPerJobLimit",
        "AssocMaxWallDurationPerJobLimit",
        "QOSMaxNodePerJobLimit",
        "QOSMaxGRESPerJob",
        "QOSMaxCpuPerNode",
        "JobHeldAdmin",
        "JobHeldUser",
        "JobHoldMaxRequeue",
        "launch failed requeued held",
        "job requeued in held state",
        "MaxMemPerLimit",
        "DependencyNeverSatisfied",
        "ReservationDeleted",
        "JobHeldAdmin,UnavailableNodes:node1",  # only what is before a comma counts
    ],
)
def test_never_begins__owner_or_site_must_change_something__is_true(
    reason: str,
) -> None:
    assert never_begins(reason)


@pytest.mark.parametrize(
    "reason",
    [
        "",
        "None",
        "Priority",
        "Resources",
        "BeginTime",
        "Dependency",
        "Licenses",
        "Reservation",
        "PartitionDown",
        "PartitionInactive",
        "PartitionNodeLimit",
        "AssocGrpCpuLimit",
        "AssocMaxJobsLimit",
        "QOSMaxCpuPerUserLimit",
        "QOSGrpNodeLimit",
        "QOSMin",
        "NotJobHeldAdmin",
        "JobHeldAdminToo",
        "held",
        "ReqNodeNotAvail, UnavailableNodes:node1 held",
    ],
)
def test_never_begins__reason_that_can_go_away__is_false(reason: str) -> None:
    assert not never_begins(reason)
