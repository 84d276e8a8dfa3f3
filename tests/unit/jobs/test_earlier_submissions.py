"""For which jobs SLURM is searched before they are submitted."""

from types import SimpleNamespace
from typing import cast

import pytest

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.earlier_submissions import may_be_in_slurm
from supervisor_tasks.ledger.journal import Past


@pytest.mark.parametrize(
    ("past", "token_window_s", "expected"),
    [
        (Past(), 202.0, False),
        (Past(begun=2, first_s=90.0), 0.0, False),
        (Past(begun=2, first_s=90.0), 202.0, True),
        (Past(begun=2, first_s=90.0, earlier_s=60.0), 0.0, True),
        (Past(unknown_claim=7), 0.0, True),
    ],
)
def test_may_be_in_slurm__past_of_a_job__an_earlier_claim_or_a_token_makes_it_so(
    past: Past, token_window_s: float, expected: bool
) -> None:
    submissions = SimpleNamespace(token_window_s=token_window_s)
    cluster = SimpleNamespace(submissions=submissions)
    context = SimpleNamespace(slurm=SimpleNamespace(cluster=cluster))
    assert may_be_in_slurm(cast(WorkerContext, context), past) is expected
