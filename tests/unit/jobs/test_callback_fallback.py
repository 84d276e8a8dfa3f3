"""What plugins said of a job that SLURM has forgotten."""

from dataclasses import replace

import pytest

from plugins.spool import reported_outcome
from supervisor_tasks.jobs.callback_fallback import (
    MAX_GAP_S,
    RESIZED,
    SUSPENDED,
    CallbackRecord,
    ConflictingOutcomes,
    end_before_slurms,
    outcome_from_callbacks,
    poll_delay_s,
)
from supervisor_tasks.jobs.model import (
    Address,
    ChainStatus,
    Definition,
    Job,
    JobId,
    Outcome,
    SlurmId,
)
from supervisor_tasks.jobs.runs import JobRun
from supervisor_tasks.slurm.parsers import JobRecord

CALLED_S = 1_795_285_686.0
JOB = Job(
    job_id=JobId("0x" + "1" * 64),
    customer=Address("0x" + "2" * 40),
    provider=Address("0x" + "3" * 40),
    claim_key="claim:0",
    definition=Definition(
        gpus=0,
        mem_per_cpu_mb=100,
        cpus_per_task=1,
        ntasks=1,
        batch_location_hash="hash",
    ),
    time_limit_min=10,
)
RUNNING, CANCELLING, CANCELLED, FINISHED, FAILED, OUT_OF_CREDITS = 4, 5, 6, 7, 8, 9
SAID = CallbackRecord(FINISHED, 125, 0, CALLED_S + 200)


def test_outcome_from_callbacks__one_plausible_end__is_the_end() -> None:
    assert outcome_from_callbacks(JOB, CALLED_S, [SAID]) == Outcome(
        status=ChainStatus.FINISHED, elapsed_s=125
    )
    failed = replace(SAID, status=FAILED, exit_code=768)
    assert outcome_from_callbacks(JOB, CALLED_S, [failed]) == Outcome(
        status=ChainStatus.FAILED, elapsed_s=125, exit_status=768, reason="exit code 3"
    )


def test_outcome_from_callbacks__no_end_among_them__is_nothing() -> None:
    assert outcome_from_callbacks(JOB, CALLED_S, []) is None
    assert (
        outcome_from_callbacks(
            JOB,
            CALLED_S,
            [replace(SAID, status=RUNNING), replace(SAID, status=CANCELLING)],
        )
        is None
    )


def test_outcome_from_callbacks__longer_than_since_the_submission__is_nothing() -> None:
    said = replace(SAID, duration_s=206)
    assert outcome_from_callbacks(JOB, CALLED_S, [said]) is None
    assert outcome_from_callbacks(
        JOB, CALLED_S, [said, SAID, said]
    ) == outcome_from_callbacks(JOB, CALLED_S, [SAID])


@pytest.mark.parametrize(
    ("duration_s", "elapsed_s"),
    [(600, 600), (601, 601), (659, 659), (660, 600), (719, 600), (900, 600)],
)
def test_outcome_from_callbacks__slurm_let_it_overrun__the_limit_is_what_is_paid(
    duration_s: int, elapsed_s: int
) -> None:
    said = CallbackRecord(OUT_OF_CREDITS, duration_s, 15, CALLED_S + 1000)
    assert outcome_from_callbacks(JOB, CALLED_S, [said]) == Outcome(
        status=ChainStatus.OUT_OF_CREDITS, elapsed_s=elapsed_s
    )


@pytest.mark.parametrize("duration_s", [0, 206, 1_795_285_886])
def test_outcome_from_callbacks__cancelled_while_it_waited__took_no_time(
    duration_s: int,
) -> None:
    never_began = 0 if duration_s > 205 else duration_s
    cancelled = replace(SAID, status=CANCELLED, duration_s=duration_s)
    assert outcome_from_callbacks(JOB, CALLED_S, [cancelled]) == Outcome(
        status=ChainStatus.CANCELLED, elapsed_s=never_began
    )


@pytest.mark.parametrize(
    "other",
    [
        replace(SAID, duration_s=0),
        replace(SAID, duration_s=10),
        replace(SAID, status=CANCELLED),
        replace(SAID, status=FAILED, exit_code=9),
    ],
)
def test_outcome_from_callbacks__contradictions__are_all_that_may_be_true(
    other: CallbackRecord,
) -> None:
    (one,), (another,) = (
        [outcome_from_callbacks(JOB, CALLED_S, [said])] for said in (SAID, other)
    )
    assert isinstance(one, Outcome)
    assert isinstance(another, Outcome)
    assert outcome_from_callbacks(
        JOB, CALLED_S, [SAID, other, SAID]
    ) == ConflictingOutcomes((one, another))
    assert outcome_from_callbacks(JOB, CALLED_S, [other, SAID]) == ConflictingOutcomes(
        (another, one)
    )


def test_outcome_from_callbacks__twice_nearly_the_same__is_the_later_one() -> None:
    later = replace(SAID, duration_s=126, received_s=CALLED_S + 201)
    assert outcome_from_callbacks(JOB, CALLED_S, [SAID, later]) == Outcome(
        status=ChainStatus.FINISHED, elapsed_s=126
    )


def test_outcome_from_callbacks__finished_with_an_exit_status__was_no_success() -> None:
    outcome = outcome_from_callbacks(JOB, CALLED_S, [replace(SAID, exit_code=125)])
    assert isinstance(outcome, Outcome)
    assert outcome.status is ChainStatus.FAILED


@pytest.mark.parametrize(
    ("status", "exit_code", "reason"),
    [
        (FAILED, 0, "SLURM: NODE_FAIL, PREEMPTED, DEADLINE or BOOT_FAIL"),
        (FAILED, 253, "SLURM: OUT_OF_MEMORY"),
        (FINISHED, 253, "SLURM: OUT_OF_MEMORY"),
    ],
)
def test_outcome_from_callbacks__failed_by_slurms_own_doing__says_so(
    status: int, exit_code: int, reason: str
) -> None:
    outcome = outcome_from_callbacks(
        JOB, CALLED_S, [replace(SAID, status=status, exit_code=exit_code)]
    )
    assert outcome == Outcome(
        status=ChainStatus.FAILED, elapsed_s=125, exit_status=exit_code, reason=reason
    )


def test_outcome_from_callbacks__ended_by_slurm__has_no_exit_status() -> None:
    outcome = outcome_from_callbacks(
        JOB, CALLED_S, [replace(SAID, status=OUT_OF_CREDITS, exit_code=15)]
    )
    assert outcome == Outcome(status=ChainStatus.OUT_OF_CREDITS, elapsed_s=125)


def test_poll_delay_s__more_callbacks__is_zero_first_and_grows_to_the_longest_gap() -> (
    None
):
    assert [poll_delay_s(heard) for heard in range(1, 12)] == [
        0,
        0,
        0,
        0,
        1,
        2,
        4,
        8,
        16,
        30,
        30,
    ]
    assert poll_delay_s(10**6) == MAX_GAP_S


def test_outcome_from_callbacks__of_a_job_that_was_suspended__is_for_the_operator() -> (
    None
):
    believable = outcome_from_callbacks(JOB, CALLED_S, [SAID])
    assert isinstance(believable, Outcome)
    assert outcome_from_callbacks(
        JOB, CALLED_S, [SAID], suspended=True
    ) == ConflictingOutcomes((believable,), SUSPENDED)
    for nothing in (
        [],
        [replace(SAID, status=RUNNING)],
        [replace(SAID, duration_s=206)],
    ):
        assert outcome_from_callbacks(JOB, CALLED_S, nothing, suspended=True) is None


def test_outcome_from_callbacks__end_before_the_last_of_two_runs__is_an_earlier_runs() -> (
    None
):
    submit_s, seen_s = int(CALLED_S), int(CALLED_S) + 150
    runs = (
        JobRun(submit_s=submit_s, elapsed_s=75),
        JobRun(submit_s=submit_s + 75, restarts=1, seen_s=seen_s),
    )
    job = replace(JOB, runs=runs)
    requeued = CallbackRecord(FAILED, 75, 0, CALLED_S + 76)
    assert outcome_from_callbacks(job, CALLED_S, [requeued, SAID]) == Outcome(
        status=ChainStatus.FINISHED, elapsed_s=125
    )
    assert outcome_from_callbacks(job, CALLED_S, [requeued]) is None
    assert isinstance(
        outcome_from_callbacks(replace(job, runs=runs[:1]), CALLED_S, [requeued, SAID]),
        ConflictingOutcomes,
    )
    overrun = outcome_from_callbacks(
        job, CALLED_S, [CallbackRecord(OUT_OF_CREDITS, 600, 0, CALLED_S + 700)]
    )
    assert isinstance(overrun, Outcome)
    assert overrun.elapsed_s == 525  # what the first run has left of ten minutes


RESIZING = reported_outcome("RESIZING", 0)
RESIZE = CallbackRecord(RESIZING[0], 0, RESIZING[1], CALLED_S + 100)


def test_outcome_from_callbacks__job_was_resized__operator_decides() -> None:
    believable = outcome_from_callbacks(JOB, CALLED_S, [SAID])
    assert isinstance(believable, Outcome)
    assert outcome_from_callbacks(JOB, CALLED_S, [RESIZE, SAID]) == ConflictingOutcomes(
        (believable,), RESIZED
    )
    assert outcome_from_callbacks(JOB, CALLED_S, [RESIZE]) is None


@pytest.mark.parametrize("state", ["NODE_FAIL", "TIMEOUT", "CANCELLED", "DEADLINE"])
def test_end_before_slurms__job_was_resized__its_hooks_seconds_are_a_part(
    state: str,
) -> None:
    """SLURM shows the hook 0 s at the resize, and then the seconds since it."""
    record = replace(GHOST, state=state)
    assert end_before_slurms(JOB, CALLED_S, record, [RESIZE, SAID]) is None


GHOST = JobRecord(SlurmId(7), "NODE_FAIL", 2000, 0)
FIRST = Outcome(status=ChainStatus.FINISHED, elapsed_s=125)


@pytest.mark.parametrize("state", ["NODE_FAIL", "TIMEOUT", "CANCELLED", "DEADLINE"])
def test_end_before_slurms__hook_told_an_earlier_end__is_that_one(state: str) -> None:
    said = [
        replace(SAID, status=RUNNING, duration_s=0),
        SAID,
        replace(SAID, status=FAILED, duration_s=2000, received_s=CALLED_S + 2100),
    ]
    record = replace(GHOST, state=state)
    assert end_before_slurms(JOB, CALLED_S, record, said) == FIRST


@pytest.mark.parametrize(
    ("job", "record", "said"),
    [
        (JOB, replace(GHOST, state="COMPLETED"), SAID),
        (JOB, replace(GHOST, state="FAILED"), SAID),
        (JOB, replace(GHOST, restarts=1), SAID),
        (JOB, replace(GHOST, earlier_runs=1), SAID),
        (replace(JOB, runs=(JobRun(submit_s=1), JobRun(submit_s=2))), GHOST, SAID),
        (JOB, replace(GHOST, elapsed_s=130), SAID),  # one end, by two clocks
        (JOB, GHOST, replace(SAID, status=RUNNING)),
        (JOB, GHOST, replace(SAID, status=CANCELLED)),
        # it would have begun before it was submitted
        (JOB, GHOST, replace(SAID, duration_s=400)),
    ],
    ids=[
        "its script has ended it",
        "its script has failed",
        "requeued by squeue",
        "requeued by sacct",
        "requeued by the looks",
        "the same end",
        "no end",
        "perhaps requeued",
        "impossible",
    ],
)
def test_end_before_slurms__no_sign_of_a_second_end__is_none(
    job: Job, record: JobRecord, said: CallbackRecord
) -> None:
    assert end_before_slurms(job, CALLED_S, record, [said]) is None
