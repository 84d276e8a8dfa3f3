"""How the worker judges what slurmrestd 22.05.8 answered (tests/data/slurm/rest) where
a host does not know a user; integration/jobs/test_rest_submission.py asks slurmrestd.
"""

from typing import Any

import pytest

from supervisor_tasks.errors import OutcomeUnknownError
from supervisor_tasks.jobs.model import Definition, SlurmId
from supervisor_tasks.slurm.interface import Request
from supervisor_tasks.slurm.parsers import SlurmUnavailableError
from supervisor_tasks.slurm.rest_answers import RestAnswer
from supervisor_tasks.slurm.rest_versions import OLD
from supervisor_tasks.slurm.ssh import our_clock_s
from tests.support.recorded_slurmrestd import (
    CUSTOMER,
    JOB,
    NUMBER,
    RecordedClient,
    cluster_of,
    raise_in,
    shown,
)
from tests.support.slurm_samples import rest_answer


def submit(client: RecordedClient, times: int) -> list[SlurmId | Exception]:
    """Submit the job so many times, in one process."""
    rest, outcomes = cluster_of(client), list[SlurmId | Exception]()
    request = Request(
        definition=Definition(
            gpus=0, mem_per_cpu_mb=1, cpus_per_task=1, ntasks=1, batch_location_hash=""
        ),
        limit_min=1,
        script="#!/bin/sh\n",
        number=1,
    )
    for _ in range(times):
        rest.submissions.submit_batch(
            CUSTOMER,
            [(JOB, request)],
            rest.clock.of(CUSTOMER),
            our_clock_s(),
            lambda _, outcome: outcomes.append(outcome),
        )
    return outcomes


def taken_as(*owners: dict[str, Any]) -> RecordedClient:
    """slurmrestd takes a submission, and shows these owners, one after the other."""
    answers = [
        RestAnswer(200, {"errors": [], "jobs": [shown(JOB, **o)]}) for o in owners
    ]
    return RecordedClient(
        {
            "POST job/submit": rest_answer("submitted", slurm="22.05.8", api=OLD),
            f"DELETE job/{NUMBER}": rest_answer("cancelled", slurm="22.05.8", api=OLD),
        },
        {f"GET job/{NUMBER}": answers},
    )


def test_submit_batch__user_is_no_longer_known__job_of_user_99_is_ended() -> None:
    client = taken_as({}, {"user_name": None, "user_id": 99})
    first, second = submit(client, 2)
    assert first == NUMBER
    with pytest.raises(SlurmUnavailableError, match="make the account"):
        raise_in(second)
    assert client.asked.count(f"DELETE job/{NUMBER}") == 1


def test_submit_batch__another_users_job__is_ended() -> None:
    client = taken_as({"user_name": "unresolved", "user_id": 99})
    (outcome,) = submit(client, 1)
    assert isinstance(outcome, SlurmUnavailableError)
    assert f"DELETE job/{NUMBER}" in client.asked


def test_submit_batch__another_users_job_is_not_ended__is_no_refusal_of_the_job() -> (
    None
):
    """SLURM has the job still: given back to the contract, it would run twice."""
    client = taken_as({"user_name": "unresolved", "user_id": 99})
    denied = rest_answer("cancel-denied", slurm="22.05.8", api=OLD)
    client.answers[f"DELETE job/{NUMBER}"] = denied
    (outcome,) = submit(client, 1)
    assert isinstance(outcome, OutcomeUnknownError)


@pytest.mark.parametrize("user", [None, ""])
def test_submit_batch__user_is_not_shown__job_goes_on_and_is_searched_for(
    user: str | None,
) -> None:
    client = taken_as({"user_name": user})
    (outcome,) = submit(client, 1)
    assert isinstance(outcome, OutcomeUnknownError)
    assert f"DELETE job/{NUMBER}" not in client.asked
