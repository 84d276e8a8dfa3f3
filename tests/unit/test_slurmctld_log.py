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


AGAIN = ["Purged files for defunct batch JobId=377", *ran(377)]
CANCELLED = "_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=374 uid 0"
SAVED = "Saving all slurm state"
REMEMBERED = "Recovered JobId=374 Assoc=0"
# what happened, the log's messages, and the end that slurmctld forgot
CASES: dict[str, tuple[list[str], UnsavedEnd | None]] = {
    "ended, and taken for running after the kill": (
        [STARTED, *ran(374), STARTED, *GHOST],
        UnsavedEnd(374, "COMPLETED", 2, 0, lost=False),
    ),
    "failed, forgotten, and its id is given again": (
        [STARTED, *ran(377, "WEXITSTATUS 3"), STARTED, *AGAIN],
        UnsavedEnd(377, "FAILED", 2, 768, lost=True),
    ),
    "ended by a signal": (
        [STARTED, *ran(374, "WTERMSIG 9"), STARTED, *GHOST],
        UnsavedEnd(374, "FAILED", 2, 9, lost=False),
    ),
    "cancelled": (
        [STARTED, *ran(374)[:3], CANCELLED, STARTED, *GHOST],
        UnsavedEnd(374, "CANCELLED", 2, 0, lost=False),
    ),
    "timed out": (
        [STARTED, *ran(374)[:3], "Time limit exhausted for JobId=374", STARTED, *GHOST],
        UnsavedEnd(374, "TIMEOUT", 2, 0, lost=False),
    ),
    "waited when it was saved, and runs once more": (
        [STARTED, *ran(374), STARTED, REMEMBERED, *ran(374)[1:]],
        UnsavedEnd(374, "COMPLETED", 2, 0, lost=False),
    ),
    "was still running when slurmctld was killed": (
        [STARTED, *ran(374)[:3], STARTED, *GHOST, *ran(374)[3:]],
        None,
    ),
    "all was saved before it stopped": (
        [STARTED, *ran(374), SAVED, STARTED, *GHOST],
        None,
    ),
    "ended, and remembered": ([STARTED, *ran(374), STARTED, REMEMBERED], None),
}


@pytest.mark.parametrize(("messages", "end"), CASES.values(), ids=CASES)
def test_unsaved_ends__each_way_to_end_and_to_be_killed__are_those_forgotten(
    messages: list[str], end: UnsavedEnd | None
) -> None:
    assert unsaved_ends(log(*messages)) == ([] if end is None else [end])
