"""How the worker judges what slurmrestd 22.05.8 answered (tests/data/slurm/rest) where
a host does not know a user; integration/jobs/test_rest_submission.py asks slurmrestd.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from supervisor_tasks.errors import OutcomeUnknownError
from supervisor_tasks.jobs.model import Address, Definition, JobId, SlurmId
from supervisor_tasks.slurm.commands import comment
from supervisor_tasks.slurm.interface import Request, SlurmSettings
from supervisor_tasks.slurm.parsers import SlurmRejectedError, SlurmUnavailableError
from supervisor_tasks.slurm.rest import RestCluster
from supervisor_tasks.slurm.rest_access import RestAccess
from supervisor_tasks.slurm.rest_answers import RestAnswer, clock_s
from supervisor_tasks.slurm.rest_client import RestClient
from supervisor_tasks.slurm.rest_tokens import TokenMint
from supervisor_tasks.slurm.rest_versions import OLD
from supervisor_tasks.slurm.ssh import our_clock_s
from tests.support.slurm_samples import rest_answer

CUSTOMER = Address("0x" + "a" * 40)
JOB, OTHER = JobId("0x" + "1" * 64), JobId("0x" + "2" * 64)
NUMBER = SlurmId(18)
ADDRESS = "supervisor.example.com:3000"
DIAG = rest_answer("diag", slurm="22.05.8", api=OLD)


class RecordedClient(RestClient):
    """Answers each request with the answer that is set for it, or with the next one of
    `in_turn`, and keeps what was asked.
    """

    def __init__(
        self,
        answers: Mapping[str, RestAnswer],
        in_turn: Mapping[str, list[RestAnswer]] = MappingProxyType({}),
    ) -> None:
        super().__init__("http://127.0.0.1:6820")
        self.answers = {"GET diag": DIAG, **answers}
        self.in_turn = in_turn
        self.asked = list[str]()

    def request(self, method: str, path: str, *_: object, **__: object) -> RestAnswer:
        request = f"{method} {path}"
        self.asked.append(request)
        if request in self.in_turn:
            return self.in_turn[request].pop(0)
        return self.answers[request]


def cluster(client: RecordedClient) -> RestCluster:
    return RestCluster.of(
        RestAccess(client=client, mint=TokenMint(b"key" * 16), admin="slurm"),
        SlurmSettings(partition="main", public_address=ADDRESS),
        home="/home/{address}",
        environment={},
    )


def shown(ours: JobId, **changes: Any) -> dict[str, Any]:
    """A recorded job as if slurmctld had just received it as this one of ours."""
    jobs = rest_answer("jobs", slurm="22.05.8", api=OLD).body["jobs"]
    (job,) = (job for job in jobs if job["name"] == "running")
    marks = {
        "name": ours,
        "standard_output": f"{ours}.log",
        "comment": comment(ADDRESS),
        "submit_time": clock_s(DIAG.body),
    }
    return {**job, **marks, **changes}


def find(*jobs: dict[str, Any]) -> Mapping[JobId, object]:
    listed = RestAnswer(200, {"errors": [], "jobs": list(jobs)})
    client = RecordedClient({"GET jobs": listed})
    return cluster(client).search.find(CUSTOMER, {JOB: 10.0}, lambda _: {})


def test_find__own_job__is_found() -> None:
    found = find(shown(JOB), shown(OTHER, job_id=19, user_name=None))[JOB]
    assert isinstance(found, list)
    assert [record.slurm_id for record in found] == [NUMBER]


@pytest.mark.parametrize("user", [None, ""])
@pytest.mark.parametrize(
    "changes", [{}, {"comment": "none"}, {"name": "x"}, {"standard_output": "x"}]
)
def test_find__our_job_without_its_user__is_unclear_and_not_absent(
    user: str | None, changes: dict[str, str]
) -> None:
    found = find(shown(JOB, user_name=user, **changes))
    with pytest.raises(SlurmUnavailableError, match=str(NUMBER)):
        raise_in(found[JOB])


def test_find__renamed_job_without_its_user__is_unclear_and_not_absent() -> None:
    renamed = {"name": "x", "standard_output": "x", "comment": "none"}
    with pytest.raises(SlurmUnavailableError, match=str(NUMBER)):
        raise_in(find(shown(JOB, user_name=None, **renamed))[JOB])
    earlier = {**renamed, "submit_time": clock_s(DIAG.body) - 3600}
    assert find(shown(JOB, user_name=None, **earlier))[JOB] == []


@pytest.mark.parametrize("user", [None, "0x" + "b" * 40])
def test_find__another_job_of_ours_or_another_user__is_not_the_job(
    user: str | None,
) -> None:
    assert find(shown(OTHER, user_name=user))[JOB] == []


def raise_in(found: object) -> None:
    if isinstance(found, Exception):
        raise found


# --- whose job slurmctld made of a submission -----------------------------------------


def submit(client: RecordedClient, times: int) -> list[SlurmId | Exception]:
    """Submit the job so many times, in one process."""
    rest, outcomes = cluster(client), list[SlurmId | Exception]()
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


@pytest.mark.parametrize(
    ("jobs", "is_ended"),
    [
        ([shown(JOB, user_name=CUSTOMER)], True),
        ([shown(JOB, user_name="another")], False),
        ([], False),
    ],
    ids=["his own", "another user's", "not listed"],
)
def test_cancel__job_that_slurm_shows_as_the_users_or_not__ends_only_the_users(
    jobs: list[dict[str, Any]], is_ended: bool
) -> None:
    client = showing(*jobs)
    cluster(client).control.cancel(NUMBER, CUSTOMER)
    assert (f"DELETE job/{NUMBER}" in client.asked) is is_ended


def test_cancel__slurm_does_not_show_whose_job_it_is__is_tried_again() -> None:
    """slurmctld 24.11.5 hangs after it has refused an order, as it does for a user that
    it does not know.
    """
    client = showing(shown(JOB, user_name=None))
    with pytest.raises(SlurmUnavailableError, match="whose job 18 is"):
        cluster(client).control.cancel(NUMBER, CUSTOMER)
    assert f"DELETE job/{NUMBER}" not in client.asked


def test_cancel__slurm_rejects_the_admin__is_an_error() -> None:
    client = showing(shown(JOB, user_name=CUSTOMER))
    denied = rest_answer("cancel-denied", slurm="22.05.8", api=OLD)
    client.answers[f"DELETE job/{NUMBER}"] = denied
    with pytest.raises(SlurmRejectedError):
        cluster(client).control.cancel(NUMBER, CUSTOMER)


def showing(*jobs: dict[str, Any]) -> RecordedClient:
    """slurmrestd shows these jobs under the id, and ends what it is told to."""
    listed = [{**job, "job_id": NUMBER} for job in jobs]
    return RecordedClient(
        {
            f"GET job/{NUMBER}": RestAnswer(200, {"errors": [], "jobs": listed}),
            f"DELETE job/{NUMBER}": rest_answer("cancelled", slurm="22.05.8", api=OLD),
        }
    )
