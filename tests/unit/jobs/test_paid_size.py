"""What was paid for a job: CPUs and memory as SLURM counts them, the time of the
present run, and what the site gave the job.
"""

from dataclasses import replace
from typing import Any

import pytest

from supervisor_tasks.jobs.model import Address, Definition, Job, JobId, TopUp
from supervisor_tasks.jobs.paid_size import Paid, as_given, paid_for
from supervisor_tasks.jobs.runs import JobRun

DEFINITION = Definition(
    gpus=1, mem_per_cpu_mb=4000, cpus_per_task=2, ntasks=3, batch_location_hash="hash"
)
PAID = Paid(DEFINITION, limit_min=10, partition="main")
FIRST = JobRun(submit_s=1000, elapsed_s=125, account="grid", qos="normal", threads="2")
SECOND = JobRun(submit_s=2000, account="vip", qos="high", threads="1")


@pytest.mark.parametrize(
    ("most_memory_per_cpu_mb", "cpus", "memory_mb"),
    [
        (None, 6, 24_000),
        (8000, 6, 24_006),
        (4000, 6, 24_006),
        (3999, 12, 24_012),
        (2000, 12, 24_012),
        (1999, 18, 24_018),
        (1, 24_000, 48_000),
    ],
)
def test_paid__site_limits_memory_per_cpu__has_more_cpus_and_1_mb_more_for_each(
    most_memory_per_cpu_mb: int | None, cpus: int, memory_mb: int
) -> None:
    paid = replace(PAID, most_memory_per_cpu_mb=most_memory_per_cpu_mb)
    assert (paid.cpus, paid.memory_mb) == (cpus, memory_mb)


def test_paid__definition_without_memory__has_its_cpus_once() -> None:
    definition = replace(DEFINITION, mem_per_cpu_mb=0)
    paid = Paid(definition, 10, "main", most_memory_per_cpu_mb=2000)
    assert (paid.cpus, paid.memory_mb) == (6, 6)


@pytest.mark.parametrize(
    ("runs", "given"),
    [
        ((), ("", "", "")),
        ((FIRST,), ("grid", "normal", "2")),
        ((FIRST, SECOND), ("grid", "normal", "2")),
        ((SECOND, FIRST), ("vip", "high", "1")),
        ((JobRun(submit_s=1000),), ("", "", "")),
    ],
)
def test_as_given__runs_with_other_accounts__is_what_the_first_run_had(
    runs: tuple[JobRun, ...], given: tuple[str, str, str]
) -> None:
    account, qos, threads = given
    expected = Paid(DEFINITION, 10, "main", account=account, qos=qos, threads=threads)
    assert as_given(PAID, runs) == expected


JOB: dict[str, Any] = {
    "job_id": JobId("0x" + "1" * 64),
    "customer": Address("0x" + "2" * 40),
    "provider": Address("0x" + "3" * 40),
    "claim_key": "claim:0",
    "definition": DEFINITION,
    "time_limit_min": 10,
}
GIVEN: dict[str, Any] = {"account": "grid", "qos": "normal", "threads": "2"}


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({}, Paid(DEFINITION, 10, "main")),
        ({"top_ups": (TopUp("tx:1", 5),)}, Paid(DEFINITION, 15, "main")),
        ({"runs": (FIRST,)}, Paid(DEFINITION, 10, "main", **GIVEN)),
        # 125 s of 10 minutes are used: 475 s are left, which are 8 minutes for SLURM
        ({"runs": (FIRST, SECOND)}, Paid(DEFINITION, 8, "main", **GIVEN)),
    ],
    ids=["not begun", "topped up", "runs", "requeued"],
)
@pytest.mark.parametrize("compares_sizes", [True, False])
def test_paid_for__each_job__is_the_time_of_its_present_run_and_the_sites_choice(
    about: dict[str, Any], expected: Paid, compares_sizes: bool
) -> None:
    found = paid_for(Job(**JOB | about), "main", compares_sizes=compares_sizes)
    assert found == replace(expected, compares_sizes=compares_sizes)
