"""How the worker searches what slurmrestd 22.05.8 listed (tests/data/slurm/rest) where
a host does not know a user.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from supervisor_tasks.jobs.model import JobId
from supervisor_tasks.slurm.parsers import SlurmUnavailableError
from supervisor_tasks.slurm.rest_answers import RestAnswer, clock_s
from tests.support.recorded_slurmrestd import (
    CUSTOMER,
    DIAG,
    JOB,
    NUMBER,
    OTHER,
    RecordedClient,
    cluster_of,
    raise_in,
    shown,
)


def find(*jobs: dict[str, Any]) -> Mapping[JobId, object]:
    listed = RestAnswer(200, {"errors": [], "jobs": list(jobs)})
    client = RecordedClient({"GET jobs": listed})
    return cluster_of(client).search.find(CUSTOMER, {JOB: 10.0}, lambda _: {})


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
