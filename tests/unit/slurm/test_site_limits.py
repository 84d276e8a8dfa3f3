"""How a site's SLURM keeps jobs within what was paid for: recorded answers of `scontrol`,
and what follows from each line of slurm.conf.
"""

import re
from dataclasses import replace

import pytest

from supervisor_tasks.slurm.parsers import CommandAnswer, SlurmUnavailableError
from supervisor_tasks.slurm.site_limits import (
    Confinement,
    JobLimits,
    confinement,
    job_limits,
    requires_associations,
)
from tests.support.slurm_samples import recorded

LIMITS = JobLimits(
    whole_nodes="", over_time_limit="", may_expand=False, slurm_user="root(0)"
)


def with_line(name: str, value: str) -> CommandAnswer:
    """The recorded configuration with another value of a line."""
    config = recorded("scontrol-show-config")
    changed, number = re.subn(
        rf"^({name}\s*=) .*$", rf"\g<1> {value}", config.stdout, flags=re.MULTILINE
    )
    assert number == 1
    return replace(config, stdout=changed)


def with_word(name: str, value: str) -> CommandAnswer:
    """The recorded partition with another value of a word."""
    partition = recorded("scontrol-show-partition")
    changed, number = re.subn(rf"\b{name}=\S+", f"{name}={value}", partition.stdout)
    assert number == 1
    return replace(partition, stdout=changed)


def test_confinement__recorded_with_and_without_control_groups__is_read() -> None:
    without = confinement(recorded("scontrol-show-config"))
    assert without == Confinement(
        "proctrack/linuxproc", ("task/none",), (), allocates_memory=True
    )
    config = recorded("scontrol-show-config-cgroup")
    plugins = ("task/affinity", "task/cgroup")
    assert confinement(config) == Confinement(
        "proctrack/cgroup", plugins, ("ConstrainSwapSpace",), allocates_memory=True
    )
    short = config.stdout.replace("task/affinity,task/cgroup", "affinity,cgroup")
    assert short != config.stdout
    assert confinement(replace(config, stdout=short)).task_plugins == plugins
    opened = re.sub(r"(Constrain\w+\s*=) yes", r"\1 no", config.stdout)
    assert confinement(replace(config, stdout=opened)).unconstrained == (
        "ConstrainCores",
        "ConstrainDevices",
        "ConstrainRAMSpace",
        "ConstrainSwapSpace",
    )


@pytest.mark.parametrize(
    ("parameters", "allocates"),
    [
        ("CR_CPU", False),
        ("NONE", False),
        ("CR_CORE", False),
        ("CR_CORE_MEMORY", True),
        ("CR_MEMORY", True),
        ("CR_CORE_MEMORY,CR_ONE_TASK_PER_CORE", True),
    ],
)
def test_confinement__select_plugin__allocates_memory_only_by_its_name(
    parameters: str, allocates: bool
) -> None:
    config = with_line("SelectTypeParameters", parameters)
    assert confinement(config).allocates_memory is allocates


@pytest.mark.parametrize(
    ("config", "partition", "expected"),
    [
        ({}, {}, LIMITS),
        (
            {"SelectType": "select/linear"},
            {},
            replace(LIMITS, whole_nodes="SelectType=select/linear"),
        ),
        (
            {},
            {"OverSubscribe": "EXCLUSIVE"},
            replace(LIMITS, whole_nodes="OverSubscribe=EXCLUSIVE of the partition"),
        ),
        ({}, {"OverSubscribe": "FORCE:2"}, LIMITS),
        ({"OverTimeLimit": "10 min"}, {}, replace(LIMITS, over_time_limit="10")),
        (
            {"OverTimeLimit": "UNLIMITED"},
            {"OverTimeLimit": "NONE"},
            replace(LIMITS, over_time_limit="UNLIMITED"),
        ),
        ({"OverTimeLimit": "10 min"}, {"OverTimeLimit": "0"}, LIMITS),
        ({}, {"OverTimeLimit": "5"}, replace(LIMITS, over_time_limit="5")),
        (
            {"SchedulerParameters": "bf_interval=5,permit_job_expansion"},
            {},
            replace(LIMITS, may_expand=True),
        ),
        ({"SlurmUser": "slurm(64030)"}, {}, replace(LIMITS, slurm_user="slurm(64030)")),
    ],
)
def test_job_limits__lines_of_slurm_conf__are_what_jobs_get_beyond_their_request(
    config: dict[str, str], partition: dict[str, str], expected: JobLimits
) -> None:
    shown = recorded("scontrol-show-config")
    for name, value in config.items():
        shown = with_line(name, value)
    of_partition = recorded("scontrol-show-partition")
    for name, value in partition.items():
        of_partition = with_word(name, value)
    assert job_limits(shown, of_partition) == expected


@pytest.mark.parametrize(
    ("enforced", "required"),
    [
        ("none", False),
        ("nojobs,nosteps", False),
        ("associations", True),
        ("associations,limits,qos,safe", True),
    ],
)
def test_requires_associations__accounting_storage_enforce__names_them_or_not(
    enforced: str, required: bool
) -> None:
    assert (
        requires_associations(with_line("AccountingStorageEnforce", enforced))
        is required
    )


def test_configuration__no_answer__is_an_outage() -> None:
    away = CommandAnswer(1, "", "slurm_load_ctl_conf error")
    for read in (confinement, requires_associations):
        with pytest.raises(SlurmUnavailableError):
            read(away)
    with pytest.raises(SlurmUnavailableError):
        job_limits(away, recorded("scontrol-show-partition"))
