"""How many callbacks are kept, and which are counted together."""

import pytest

from grpc_callbacks.callback_limits import (
    MAX_CALLBACKS_WHEN_OVER,
    CallbackOrigin,
    LedgerJob,
    most_of_ours,
    origin_of,
    scope_of,
)


@pytest.mark.parametrize(
    ("job", "origin"),
    [
        (None, CallbackOrigin.UNKNOWN_JOB),
        (LedgerJob(7, "RUNNING"), CallbackOrigin.OURS),
        (LedgerJob(7, "SETTLED"), CallbackOrigin.OURS),
        (LedgerJob(8, "RUNNING"), CallbackOrigin.UNKNOWN_JOB),
        (LedgerJob(None, "CLAIMED"), CallbackOrigin.EARLY),
        (LedgerJob(None, "SETTLED"), CallbackOrigin.UNKNOWN_JOB),
        (LedgerJob(None, "REFUSED"), CallbackOrigin.UNKNOWN_JOB),
    ],
)
def test_origin_of__job_as_the_ledger_has_it__is_ours_early_or_unknown(
    job: LedgerJob | None, origin: CallbackOrigin
) -> None:
    assert origin_of(7, job) is origin


@pytest.mark.parametrize("proven", [False, True])
@pytest.mark.parametrize(
    ("job", "counted_together"),
    [
        (LedgerJob(7, "RUNNING"), ("0x1", 7)),
        (LedgerJob(None, "CLAIMED"), ("0x1", 0)),  # under all ids
        (LedgerJob(8, "RUNNING"), ("", 0)),  # of all jobs
        (None, ("", 0)),
    ],
)
def test_scope_of__callbacks_that_are_counted_together__are_bounded_together(
    job: LedgerJob | None, counted_together: tuple[str, int], proven: bool
) -> None:
    origin, *counted, is_proven = scope_of("0x1", 7, job, proven=proven)
    assert (origin, tuple(counted)) == (origin_of(7, job), counted_together)
    assert is_proven is proven


@pytest.mark.parametrize(
    ("state", "proven", "most", "kept"),
    [
        ("RUNNING", False, 1000, 1000),
        ("SETTLED", True, 1000, 1000),
        ("SETTLED", False, 1000, MAX_CALLBACKS_WHEN_OVER),
        ("REFUSED", False, 1000, MAX_CALLBACKS_WHEN_OVER),
        ("SETTLED", False, 3, 3),
    ],
)
def test_most_of_ours__job_is_over_and_callback_without_proof__is_less(
    state: str, proven: bool, most: int, kept: int
) -> None:
    assert most_of_ours(LedgerJob(7, state), most, proven=proven) == kept
