"""How SLURM is tried while it does not answer, how soon it forgets, and which of its
jobs are our benchmarks.
"""

import re
from dataclasses import replace

import pytest

from supervisor_tasks.benchmarking.model import is_named, job_name, name_beginning
from supervisor_tasks.monitoring.slurm_health import is_alarming
from supervisor_tasks.monitoring.slurm_tries import next_try_s
from supervisor_tasks.reconciliation.run import interval_s
from supervisor_tasks.slurm.parsers import min_job_age_s
from tests.support.slurm_samples import recorded


@pytest.mark.parametrize("silent_s", [None, 30.0, 3600.0])
def test_next_try__slurm_not_seen_since_the_start__alarms_and_slows_after_ten_tries(
    silent_s: float | None,
) -> None:
    waits = [next_try_s(tries, False, 10.0) for tries in range(13)]
    assert waits == [0.0, *[10.0] * 9, 30.0, 30.0, 30.0]
    assert [tries for tries in range(13) if is_alarming(tries, False, silent_s)] == [
        10,
        11,
        12,
    ]


def test_next_try__slurm_was_seen_since_the_start__no_delay_and_alarm_after_a_minute() -> (
    None
):
    assert {next_try_s(tries, True, 10.0) for tries in range(100)} == {0.0}
    assert not is_alarming(30, True, 59.0)
    assert is_alarming(2, True, 61.0)


OURS = name_beginning("0x" + "A" * 40, "main")


@pytest.mark.parametrize("run_id", [1, 17_000])
def test_is_named__what_we_name__is_ours(run_id: int) -> None:
    assert is_named(job_name(OURS, run_id, "0123456789abcdef", "hpl"), OURS)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            OURS,
            OURS + "hpl",
            OURS + "1-0123456789abcdef",
            OURS + "1-0123abcx-hpl",
            OURS + "-0123456789abcdef-hpl",
        ),
        job_name(
            name_beginning("0x" + "A" * 40, "main-2"), 1, "0123456789abcdef", "hpl"
        ),
        job_name(
            name_beginning("0x" + "A" * 40, "main-large"), 1, "0123456789abcdef", "hpl"
        ),
        job_name(name_beginning("0x" + "b" * 40, "main"), 1, "0123456789abcdef", "hpl"),
        "x" + job_name(OURS, 1, "0123456789abcdef", "hpl"),
    ],
)
def test_is_named__anothers__is_not_ours(name: str) -> None:
    assert not is_named(name, OURS)


@pytest.mark.parametrize(
    ("every_s", "min_job_age_s", "expected_s"),
    [
        (900, 300, 90),
        (900, 0, 900),
        (60, 300, 60),
        (900, 90, 20),
        (900, 30, 20),
        (10, 30, 10),
        (900, 86_400, 900),
    ],
)
def test_interval_s__slurm_forgets_ended_jobs_soon__is_shorter_than_set(
    every_s: float, min_job_age_s: float, expected_s: float
) -> None:
    assert interval_s(every_s, min_job_age_s) == expected_s


def test_min_job_age_s__recorded__is_that_of_slurm_conf() -> None:
    config = recorded("scontrol-show-config")
    assert min_job_age_s(config) == 300
    shorter = re.sub(r"(MinJobAge\s*=) 300 sec", r"\1 2 sec", config.stdout)
    assert min_job_age_s(replace(config, stdout=shorter)) == 2
