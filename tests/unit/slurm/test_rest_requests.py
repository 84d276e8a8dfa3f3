"""The bodies of requests to slurmrestd 22.05."""

import pytest

from supervisor_tasks.jobs.model import Definition, JobId
from supervisor_tasks.slurm.rest_requests import change, submission

JOB_ID = JobId("0x" + "1" * 64)


def job(gpus: int) -> dict[str, object]:
    definition = Definition(
        gpus=gpus,
        mem_per_cpu_mb=100,
        cpus_per_task=4,
        ntasks=2,
        batch_location_hash="hash",
    )
    body = submission(
        JOB_ID,
        definition,
        "#!/bin/bash\nhostname\n",
        limit_min=12,
        partition="main",
        comment="supervisor x",
        folder="/home/c",
        environment={"PATH": "/bin"},
    )
    return dict(body["job"])


@pytest.mark.parametrize(("gpus", "asked"), [(0, None), (3, "3")])
def test_submission__gpus__are_asked_for_only_where_the_job_has_some(
    gpus: int, asked: str | None
) -> None:
    body = job(gpus)
    assert body.get("gpus") == asked
    assert (body["tasks"], body["cpus_per_task"], body["time_limit"]) == (2, 4, 12)
    assert "requeue" not in body, "22.05 takes each as true"


@pytest.mark.parametrize(
    ("words", "body"),
    [
        ([], {}),
        (["TimeLimit=9"], {"time_limit": 9}),
        (["NumTasks=2", "MinCPUsNode=4"], {"tasks": 2, "minimum_cpus_per_node": 4}),
        (["MinMemoryCPU=100"], {"memory_per_cpu": 100}),
        (
            ["Partition=main", "Account=a=b", "QOS="],
            {"partition": "main", "account": "a=b", "qos": ""},
        ),
        (["TimeLimit=9", "Requeue=0"], None),
        (["Gres=gpu:1"], None),
    ],
)
def test_change__words_of_scontrol__are_fields_or_no_change_at_all(
    words: list[str], body: dict[str, object] | None
) -> None:
    assert change(words) == body
