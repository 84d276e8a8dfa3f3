"""What SLURM 22.05.8 (Debian 12) and 24.11.5 (Debian 13) print is read alike: recorded
by tests/support/record_slurm.py.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from supervisor_tasks.jobs.model import SlurmId
from supervisor_tasks.slurm.cluster_identity import parse_cluster_identity
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.parsers import (
    CommandAnswer,
    boot_time,
    controller_time_s,
    has_accounting,
    max_job_id,
    min_job_age_s,
    next_id,
)
from supervisor_tasks.slurm.site_limits import confinement, job_limits
from supervisor_tasks.slurm.size import Size, memory_per_cpu_limit
from supervisor_tasks.slurm.squeue import SqueueRow, listed_jobs, requested_sizes
from tests.support.slurm_samples import with_cpu_fields

DATA = Path(__file__).parents[2] / "data" / "slurm"
DELIMITER = "4f1d0c9ab3"
RUNS = SlurmId(4)
SIZE = Size(
    limit_min=60,
    cpus=2,
    memory_mb=200,
    nodes=1,
    gpus=0,
    partition="main",
    qos="",
    account="",
    reservation="",
    threads="*",
)


@pytest.fixture(params=["22.05.8", "24.11.5"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def printed(version: str, name: str) -> CommandAnswer:
    return CommandAnswer(0, (DATA / version / f"{name}.txt").read_text(), "")


def listed(version: str) -> dict[SlurmId, SqueueRow]:
    answer = printed(version, "squeue-listing")
    return listed_jobs(
        replace(answer, stdout=with_cpu_fields(answer.stdout)), DELIMITER
    )


def test_listed_jobs__of_each_version__have_the_same_phases_and_ends(
    version: str,
) -> None:
    """22.05 prints a raw wait status in the field exit_code, 24.11 `code:signal`."""
    seen = [(row.record.phase, row.record.reason) for row in listed(version).values()]
    assert [phase for phase, _ in seen] == [
        Phase.ENDED,
        Phase.ENDED,
        Phase.ENDED,
        Phase.RUNNING,
        Phase.WAITING,
    ]
    assert [row.record.exit_status for row in listed(version).values()] == [
        0,
        3 * 256,
        9,
        0,
        0,
    ]
    assert seen[-1][1] == "JobHeldUser"


def test_listed_jobs__of_each_version__have_the_sizes_that_were_asked_for(
    version: str,
) -> None:
    """24.11 shows --cpus-per-task as a TRES of each task, too."""
    sizes = [row.record.size for row in listed(version).values()]
    assert [size and size.gpus for size in sizes] == [0, 0, 0, 1, 0]
    assert sizes[0] == SIZE


def test_listed_jobs__of_each_version__have_times_and_what_owners_write(
    version: str,
) -> None:
    row = listed(version)[RUNS]
    assert row.record.start_s is not None
    assert 1_700_000_000 < row.submit_s <= row.record.start_s
    assert (row.name, row.comment) == (f"0x{4:064x}", "supervisor h:1")
    assert row.stdout.endswith(f"/{row.name}.log")
    assert not row.record.may_requeue


def test_requests__of_each_version__are_what_was_asked_for(version: str) -> None:
    asked = requested_sizes(printed(version, "squeue-json"), [RUNS])[RUNS]
    assert (asked.cpus, asked.memory_mb, asked.nodes, asked.gpus) == (2, 200, 1, 1)


def test_configuration__of_each_version__is_read(version: str) -> None:
    config = printed(version, "scontrol-show-config")
    assert int(boot_time(config)) > 1_700_000_000
    assert 0 <= (controller_time_s(config) or 0) - int(boot_time(config)) < 60
    assert not has_accounting(config)
    assert confinement(config).proctrack == "proctrack/linuxproc"
    assert confinement(config).unconstrained == ()
    assert confinement(config).allocates_memory
    limits = job_limits(config, printed(version, "scontrol-show-partition"))
    assert (limits.whole_nodes, limits.over_time_limit) == ("", "")
    assert (next_id(config), max_job_id(config), min_job_age_s(config)) == (
        6,
        67_043_328,
        300,
    )
    assert parse_cluster_identity(config).name == "devgrid"
    assert (
        memory_per_cpu_limit(
            config.stdout, printed(version, "scontrol-show-partition").stdout
        )
        is None
    )
