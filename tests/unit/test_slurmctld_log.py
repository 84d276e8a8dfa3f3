"""What slurmctld's log tells of ends that it forgot. The lines are real ones (SLURM
22.05.8), cut out of an hour's log.
"""

from collections.abc import Iterator

import pytest

from tests.support.slurmctld_log import UnsavedEnd, unsaved_ends

STARTED = "slurmctld version 22.05.8 started on cluster devgrid"


def log(*messages: str) -> Iterator[str]:
    """One line a second."""
    for second, message in enumerate(messages):
        yield f"[2026-11-21T20:17:{second:02}.500] {message}"


def ran(slurm_id: int, end: str = "WEXITSTATUS 0") -> list[str]:
    return [
        f"_slurm_rpc_submit_batch_job: JobId={slurm_id} InitPrio=4294901386 usec=300",
        f"sched: Allocate JobId={slurm_id} NodeList=node1 #CPUs=1 Partition=main",
        f"prolog_running_decr: Configuration for JobId={slurm_id} is complete",
        f"_job_complete: JobId={slurm_id} {end}",
        f"_job_complete: JobId={slurm_id} done",
    ]


GHOST = ["Recovered JobId=374 StepId=batch", "Recovered JobId=374 Assoc=0"]


def test_unsaved_ends__ended_and_taken_for_running_after_the_kill__is_found() -> None:
    found = unsaved_ends(log(STARTED, *ran(374), STARTED, *GHOST))
    assert found == [UnsavedEnd(374, "COMPLETED", 2, 0, lost=False)]


def test_unsaved_ends__failed_forgotten_and_its_id_given_again__has_its_code_as_lost() -> (
    None
):
    once_more = ["Purged files for defunct batch JobId=377", *ran(377)]
    found = unsaved_ends(log(STARTED, *ran(377, "WEXITSTATUS 3"), STARTED, *once_more))
    assert found == [UnsavedEnd(377, "FAILED", 2, 768, lost=True)]


def test_unsaved_ends__ended_by_a_signal__has_failed_with_the_signal() -> None:
    found = unsaved_ends(log(STARTED, *ran(374, "WTERMSIG 9"), STARTED, *GHOST))
    assert found == [UnsavedEnd(374, "FAILED", 2, 9, lost=False)]


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=374 uid 0", "CANCELLED"),
        ("Time limit exhausted for JobId=374", "TIMEOUT"),
    ],
)
def test_unsaved_ends__cancelled_or_timed_out__has_that_state(
    line: str, state: str
) -> None:
    found = unsaved_ends(log(STARTED, *ran(374)[:3], line, STARTED, *GHOST))
    assert found == [UnsavedEnd(374, state, 2, 0, lost=False)]


def test_unsaved_ends__waited_when_it_was_saved_and_runs_once_more__is_found_once() -> (
    None
):
    again = ran(374)[1:]
    found = unsaved_ends(
        log(STARTED, *ran(374), STARTED, "Recovered JobId=374 Assoc=0", *again)
    )
    assert found == [UnsavedEnd(374, "COMPLETED", 2, 0, lost=False)]


def test_unsaved_ends__still_running_when_killed__are_none() -> None:
    assert (
        unsaved_ends(log(STARTED, *ran(374)[:3], STARTED, *GHOST, *ran(374)[3:])) == []
    )


def test_unsaved_ends__all_was_saved_before_it_stopped__are_none() -> None:
    assert (
        unsaved_ends(log(STARTED, *ran(374), "Saving all slurm state", STARTED, *GHOST))
        == []
    )


def test_unsaved_ends__ended_and_remembered__are_none() -> None:
    assert (
        unsaved_ends(log(STARTED, *ran(374), STARTED, "Recovered JobId=374 Assoc=0"))
        == []
    )
