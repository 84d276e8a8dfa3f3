"""How the worker ends jobs by what slurmrestd 22.05.8 answered (tests/data/slurm/rest)."""

from typing import Any

import pytest

from supervisor_tasks.slurm.parsers import SlurmRejectedError, SlurmUnavailableError
from supervisor_tasks.slurm.rest_answers import RestAnswer
from supervisor_tasks.slurm.rest_versions import OLD
from tests.support.recorded_slurmrestd import (
    CUSTOMER,
    JOB,
    NUMBER,
    RecordedClient,
    cluster_of,
    shown,
)
from tests.support.slurm_samples import rest_answer


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
    cluster_of(client).control.cancel(NUMBER, CUSTOMER)
    assert (f"DELETE job/{NUMBER}" in client.asked) is is_ended


def test_cancel__slurm_does_not_show_whose_job_it_is__is_tried_again() -> None:
    """slurmctld 24.11.5 hangs after it has rejected an order, as it does for a user that
    it does not know.
    """
    client = showing(shown(JOB, user_name=None))
    with pytest.raises(SlurmUnavailableError, match="whose job 18 is"):
        cluster_of(client).control.cancel(NUMBER, CUSTOMER)
    assert f"DELETE job/{NUMBER}" not in client.asked


def test_cancel__slurm_rejects_the_admin__is_an_error() -> None:
    client = showing(shown(JOB, user_name=CUSTOMER))
    denied = rest_answer("cancel-denied", slurm="22.05.8", api=OLD)
    client.answers[f"DELETE job/{NUMBER}"] = denied
    with pytest.raises(SlurmRejectedError):
        cluster_of(client).control.cancel(NUMBER, CUSTOMER)


def showing(*jobs: dict[str, Any]) -> RecordedClient:
    """slurmrestd shows these jobs under the id, and ends what it is told to."""
    listed = [{**job, "job_id": NUMBER} for job in jobs]
    return RecordedClient(
        {
            f"GET job/{NUMBER}": RestAnswer(200, {"errors": [], "jobs": listed}),
            f"DELETE job/{NUMBER}": rest_answer("cancelled", slurm="22.05.8", api=OLD),
        }
    )
