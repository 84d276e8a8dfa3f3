"""Which callbacks of the hooks tell of a job's earlier runs."""

import pytest

from supervisor_tasks.jobs.callback_fallback import RUNNING
from supervisor_tasks.jobs.model import JobId, SlurmId
from supervisor_tasks.jobs.run_callbacks import (
    ends_of_earlier_runs,
    is_awaited,
    proven_ends_s,
)
from supervisor_tasks.ledger.callbacks import CallbackSeen
from supervisor_tasks.slurm.parsers import JobRecord


def shown(state: str, elapsed_s: int, restarts: int) -> JobRecord:
    return JobRecord(SlurmId(7), state, elapsed_s, 0, restarts=restarts)


@pytest.mark.parametrize(
    ("seen", "ends_s", "earlier_s"),
    [
        pytest.param(shown("PENDING", 0, 1), [20], (20,), id="waits"),
        pytest.param(shown("RUNNING", 5, 2), [20, 30], (20, 30), id="runs"),
        pytest.param(shown("RUNNING", 5, 2), [20], None, id="an end is missing"),
        pytest.param(
            shown("RUNNING", 5, 1),
            [20, 30],
            None,
            id="ended since the look, or resized",
        ),
        pytest.param(shown("COMPLETED", 9, 1), [20, 9], (20,), id="ended"),
        pytest.param(
            shown("COMPLETED", 9, 1), [20, 8], (20,), id="ended, a second apart"
        ),
        pytest.param(
            shown("COMPLETED", 9, 1), [20], None, id="its last end is yet to come"
        ),
        pytest.param(
            shown("COMPLETED", 9, 1), [9], None, id="its first end is missing"
        ),
        pytest.param(
            shown("COMPLETED", 9, 1), [20, 30], None, id="not the end that SLURM shows"
        ),
        pytest.param(shown("COMPLETED", 9, 1), [3, 20, 9], None, id="resized"),
    ],
)
def test_ends_of_earlier_runs__told_by_hooks__are_known_if_each_run_has_one_end(
    seen: JobRecord, ends_s: list[int], earlier_s: tuple[int, ...] | None
) -> None:
    assert ends_of_earlier_runs(seen, ends_s) == earlier_s


def test_proven_ends_s__callers_without_the_key__make_no_bill_smaller() -> None:
    def end(number: int, proof: str, status: int = 7) -> CallbackSeen:
        return CallbackSeen(number, JobId("0x1"), 7, status, number, 0, proof=proof)

    callbacks = [
        end(1, "unproven"),
        end(20, "proven"),
        end(2, "no key"),
        end(3, "proven", status=RUNNING),
        end(9, "proven", status=6),
    ]
    assert proven_ends_s(callbacks) == [20, 9]


@pytest.mark.parametrize(
    ("seen", "ends_s", "awaited"),
    [
        (shown("COMPLETED", 9, 1), [20], True),
        (shown("COMPLETED", 9, 1), [], False),
        (shown("COMPLETED", 9, 1), [20, 30], False),
        (shown("RUNNING", 9, 2), [20], False),
    ],
)
def test_is_awaited__ended_job_with_hook_callbacks__each_case(
    seen: JobRecord, ends_s: list[int], awaited: bool
) -> None:
    assert is_awaited(seen, ends_s) == awaited
