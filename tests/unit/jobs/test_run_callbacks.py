"""Which callbacks of the hooks tell of a job's earlier runs."""

import pytest

from plugins.spool import reported_outcome
from supervisor_tasks.jobs.callback_fallback import RUNNING
from supervisor_tasks.jobs.model import JobId, SlurmId
from supervisor_tasks.jobs.run_callbacks import (
    ends_of_earlier_runs,
    is_awaited,
    proven_ends,
)
from supervisor_tasks.jobs.runs import RunEnd
from supervisor_tasks.ledger.callbacks import CallbackSeen
from supervisor_tasks.slurm.parsers import JobRecord


def shown(state: str, elapsed_s: int, restarts: int) -> JobRecord:
    return JobRecord(SlurmId(7), state, elapsed_s, 0, restarts=restarts)


def ends(*seconds: int) -> list[RunEnd]:
    return [RunEnd(elapsed_s, 0) for elapsed_s in seconds]


@pytest.mark.parametrize(
    ("seen", "ends_s", "earlier_s"),
    [
        pytest.param(shown("PENDING", 0, 1), [20], (20,), id="waits"),
        pytest.param(shown("RUNNING", 5, 2), [20, 30], (20, 30), id="runs"),
        pytest.param(shown("RUNNING", 5, 2), [20], (), id="an end is missing"),
        pytest.param(
            shown("RUNNING", 5, 1),
            [20, 30],
            (),
            id="ended since the look, or resized",
        ),
        pytest.param(shown("COMPLETED", 9, 1), [20, 9], (20,), id="ended"),
        pytest.param(
            shown("COMPLETED", 9, 1), [20, 8], (20,), id="ended, a second apart"
        ),
        pytest.param(
            shown("COMPLETED", 9, 1), [20], (), id="its last end is yet to come"
        ),
        pytest.param(shown("COMPLETED", 9, 1), [9], (), id="its first end is missing"),
        pytest.param(
            shown("COMPLETED", 9, 1), [20, 30], (), id="not the end that SLURM shows"
        ),
        pytest.param(shown("COMPLETED", 9, 1), [3, 20, 9], (), id="resized"),
    ],
)
def test_ends_of_earlier_runs__told_by_hooks__are_known_if_each_run_has_one_end(
    seen: JobRecord, ends_s: list[int], earlier_s: tuple[int, ...]
) -> None:
    told = ends_of_earlier_runs(seen, ends(*ends_s))
    assert told == tuple(ends(*earlier_s))


def end(
    number: int, proof: str, status: int = 7, *, exit_code: int = 0
) -> CallbackSeen:
    return CallbackSeen(number, JobId("0x1"), 7, status, number, exit_code, proof=proof)


def test_proven_ends__callers_without_the_key__make_no_bill_smaller() -> None:
    callbacks = [
        end(1, "unproven"),
        end(20, "proven"),
        end(2, "no key"),
        end(3, "proven", status=RUNNING),
        end(9, "proven", status=6),
    ]
    assert proven_ends(callbacks) == ends(20, 9)


@pytest.mark.parametrize(("proof", "count"), [("proven", 0), ("unproven", 1)])
def test_proven_ends__job_was_resized__none_has_the_seconds_of_its_run(
    proof: str, count: int
) -> None:
    status, exit_status = reported_outcome("RESIZING", 0)
    resized = end(0, proof, status, exit_code=exit_status)
    assert len(proven_ends([end(20, "proven"), resized])) == count


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
    assert is_awaited(seen, ends(*ends_s)) == awaited
