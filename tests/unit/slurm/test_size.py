"""A job's size, from the texts by which SLURM shows it."""

from functools import partial
from typing import Any

import pytest

from supervisor_tasks.slurm.size import (
    Size,
    accounted_size,
    gpu_count,
    is_whole_memory,
    memory_per_cpu_limit,
    positive_number,
    request_of,
    size_of,
    tres_amounts,
)

# what squeue shows of a job that asks for nothing
size_shown = partial(
    size_of,
    limit_min=1,
    partition="",
    qos="",
    account="",
    reservation="",
    array_task="",
    tasks="1",
    tres="",
)


@pytest.mark.parametrize(
    ("shown", "is_whole"),
    [
        ("0", True),
        ("0M", True),
        ("0G", True),
        ("00", False),
        ("M", False),
        ("50M", False),
        ("100M", False),
        ("10G", False),
        ("", False),
    ],
)
def test_is_whole_memory__as_squeue_shows_it__is_true_only_for_zero(
    shown: str, is_whole: bool
) -> None:
    assert is_whole_memory(shown) == is_whole


@pytest.mark.parametrize(
    ("shown", "gpus"),
    [
        ("", 0),
        ("N/A", 0),
        ("gres:gpu:1", 1),
        ("gpu:2", 2),
        ("gres:gpu", 1),
        ("gres:gpu:a100:2", 2),
        ("gres/gpu:h100=4", 4),
        ("gres/gpu=3", 3),
        ("gres:gpu:a100:1,gres:gpu:v100:2", 3),
        ("gres:craynetwork:4", 0),
        ("cpu=2,gres/gpu=1", 1),
        ("gpu:2(S:0-1)", 2),
        ("gres:shard:8", 1),
        ("gres/shard:a100:8", 1),
        ("mps:100", 1),
        ("gres:mps", 1),
        ("gres:shardlike:8", 0),
        ("gres:gpu:2,gres:shard:8", 2),
        ("gpu:0", 0),
        ("gres/gpu=0", 0),
        ("gpu:a100", 1),
        ("gpu:2,gpu:3,license:4", 5),
        ("gres:shard:8,license:4", 1),
        ("nvgpu:2", 0),
        ("gpux:2", 0),
    ],
)
def test_gpu_count__each_form_of_slurm__is_the_number_of_gpus(
    shown: str, gpus: int
) -> None:
    assert gpu_count(shown) == gpus


@pytest.mark.parametrize("tres", ["cpu=1,gres/shard=8", "cpu=1,gres/mps:a100=100"])
def test_size_of__shares_of_gpus__are_one_gpu(tres: str) -> None:
    assert size_shown(tres=tres).gpus == 1


@pytest.mark.parametrize(
    ("shown", "amounts"),
    [
        ("mem=300M", {"mem": 300.0}),
        ("mem=300", {"mem": 300.0}),
        ("mem=512K", {"mem": 0.5}),
        ("mem=62.50G", {"mem": 64_000.0}),
        ("mem=2T", {"mem": 2_097_152.0}),
        ("mem=1P", {"mem": 1_073_741_824.0}),
    ],
)
def test_tres_amounts__memory_in_each_unit__is_in_mb(
    shown: str, amounts: dict[str, float]
) -> None:
    assert tres_amounts(shown) == amounts


@pytest.mark.parametrize(
    ("shown", "amounts"),
    [
        ("", {}),
        ("N/A", {}),
        ("cpu", {}),
        ("cpu=", {}),
        ("cpu=many,node=1", {"node": 1.0}),
        ("cpu=3,,node=1", {"cpu": 3.0, "node": 1.0}),
        ("cpu=3,mem=1E", {"cpu": 3.0}),
        ("cpu=-3", {}),
        ("cpu=3,gres/gpu:a100=2", {"cpu": 3.0, "gres/gpu:a100": 2.0}),
        ("billing=3,fs/disk=5M", {"billing": 3.0, "fs/disk": 5.0}),
    ],
)
def test_tres_amounts__each_part__is_an_amount_or_left_out(
    shown: str, amounts: dict[str, float]
) -> None:
    assert tres_amounts(shown) == amounts


@pytest.mark.parametrize(
    ("config", "partition", "limit_mb"),
    [
        ("MaxMemPerNode           = UNLIMITED", "MaxMemPerNode=UNLIMITED", None),
        ("MaxMemPerCPU            = 2000", "MaxMemPerNode=UNLIMITED", 2000),
        ("MaxMemPerCPU            = 2000", "DefMemPerCPU=10 MaxMemPerCPU=1000", 1000),
        ("MaxMemPerCPU            = 1000", "MaxMemPerCPU=2000", 2000),
        ("MaxMemPerCPU            = 2000", "MaxMemPerCPU=0", None),
        ("MaxMemPerCPU            = 0", "", None),
        ("NoMaxMemPerCPU          = 2000", "DefMemPerCPU=10", None),
        ("", "", None),
    ],
)
def test_memory_per_cpu_limit__site_and_partition__the_partitions_own_counts(
    config: str, partition: str, limit_mb: int | None
) -> None:
    assert memory_per_cpu_limit(config, partition) == limit_mb


def test_request_of__job_in_json_of_either_version__is_the_same_size() -> None:
    told = {
        "tres_req_str": "cpu=6,mem=600M,node=2",
        "tres_per_task": "gpu:1",
        "tasks": 2,
    }
    assert request_of(told) == request_of(
        told | {"tasks": {"set": True, "infinite": False, "number": 2}}
    )
    assert (
        request_of(told).cpus,
        request_of(told).memory_mb,
        request_of(told).nodes,
    ) == (6, 600, 2)
    assert request_of(told).gpus == 2


@pytest.mark.parametrize(
    ("tasks", "tres", "gpus_per", "gpus"),
    [
        ("1", "", (), 0),
        ("1", "node=1,gres/gpu=3", (), 3),
        ("1", "node=2", ("gpu:2", "", "", ""), 2),
        ("1", "node=2", ("", "gpu:2", "", ""), 4),
        ("3", "node=2", ("", "", "gpu:2", ""), 6),
        ("1", "node=2", ("", "", "", "gpu:2"), 4),
        ("3", "node=2,gres/gpu=7", ("gpu:1", "gpu:1", "gpu:2", "gpu:1"), 7),
        ("3", "node=2,gres/gpu=1", ("gpu:9", "gpu:1", "gpu:2", "gpu:1"), 9),
        ("1", "node=0", ("", "gpu:2", "", ""), 2),
        ("1", "", ("", "gpu:2", "", ""), 2),
        ("N/A", "node=1", ("", "", "gpu:2", ""), 2),
        ("", "node=1", ("", "", "gpu:2", ""), 2),
        ("3", "node=4", ("N/A", "N/A", "N/A", "N/A"), 0),
        ("3", "node=4", ("", "mps:100"), 4),
        ("4", "node=1", ("", "gpu:1", "", ""), 4),  # it may get four nodes
        ("4", "node=1", ("gpu:1", "", "", ""), 1),
        ("1", "gres/gpu=2,gres/shard=8", (), 2),
        ("1", "gres/shardlike=8", (), 0),
    ],
)
def test_size_of__gpus_asked_for_in_each_way__are_the_highest_number(
    tasks: str, tres: str, gpus_per: tuple[str, ...], gpus: int
) -> None:
    assert size_shown(tasks=tasks, tres=tres, gpus_per=gpus_per).gpus == gpus


@pytest.mark.parametrize(
    ("tres", "cpus", "memory_mb", "nodes"),
    [
        ("cpu=3,mem=300M,node=2", 3, 300, 2),
        ("cpu=2.9,mem=1.5M,node=1", 2, 1, 1),
        ("node=1", None, None, 1),
        ("cpu=0", 0, None, None),
        ("", None, None, None),
    ],
)
def test_size_of__each_tres__has_whole_numbers_or_none_where_it_shows_none(
    tres: str, cpus: int | None, memory_mb: int | None, nodes: int | None
) -> None:
    size = size_shown(limit_min=7, partition="main", tres=tres)
    expected = Size(
        limit_min=7,
        cpus=cpus,
        memory_mb=memory_mb,
        nodes=nodes,
        gpus=0,
        partition="main",
    )
    assert size == expected


@pytest.mark.parametrize(
    ("tres", "per_cpu_mb", "per_node_mb", "memory_mb"),
    [
        ("cpu=8,mem=800M,node=1", 100, 0, 800),
        ("cpu=8,mem=800M,node=1", 800, 0, 6400),
        ("cpu=1,mem=800M,node=1", 800, 0, 800),
        ("cpu=8,mem=800M,node=1", 0, 800, 800),
        ("cpu=8,mem=800M,node=2", 0, 800, 1600),
        ("cpu=8,mem=900M,node=1", 100, 800, 900),
        ("cpu=8,node=1", 100, 0, 800),
        ("node=1", 100, 0, None),
    ],
)
def test_size_of__memory_asked_for_in_each_way__is_the_highest_number(
    tres: str, per_cpu_mb: int, per_node_mb: int, memory_mb: int | None
) -> None:
    """SLURM 22.05 does not compute a job's memory again when its CPUs change."""
    size = size_shown(tres=tres, per_cpu_mb=per_cpu_mb, per_node_mb=per_node_mb)
    assert size.memory_mb == memory_mb


NO_VALUE = ("", "N/A", "(null)", "NULL", "None")  # as SLURM writes it


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        *(((none,) * 4, ("", "", "", False)) for none in NO_VALUE),
        (("high", "vip", "maint", "0"), ("high", "vip", "maint", True)),
        (("high", "vip", "maint", "1-10"), ("high", "vip", "maint", True)),
        (("high", "vip", "maint", "[1,3]"), ("high", "vip", "maint", True)),
    ],
)
def test_size_of__fields_with_or_without_a_value__are_kept_or_empty(
    words: tuple[str, str, str, str], kept: tuple[str, str, str, bool]
) -> None:
    qos, account, reservation, array_task = words
    size = size_shown(
        qos=qos, account=account, reservation=reservation, array_task=array_task
    )
    assert (size.qos, size.account, size.reservation, size.array) == kept


@pytest.mark.parametrize(
    ("job", "gpus"),
    [
        ({}, 0),
        ({"tres_per_job": "gres:gpu:2"}, 2),
        ({"tres_per_node": "gres:gpu:2"}, 6),
        ({"tres_per_socket": "gres:gpu:2"}, 6),
        ({"tres_per_task": "gpu:1", "tasks": 5}, 5),
        ({"tres_per_task": "gpu:1", "tasks": {"set": True, "number": 5}}, 5),
        ({"tres_per_task": "gpu:1", "tasks": {"set": False, "number": 0}}, 1),
        ({"tres_per_task": "gpu:1", "tasks": {}}, 1),
        ({"tres_per_task": "gpu:1", "tasks": "5"}, 1),
        ({"tres_per_task": "gpu:1"}, 1),
        ({"tres_per_job": None, "tres_per_node": ""}, 0),
        ({"tres_per_node": "gres:gpu:2", "tres_alloc_str": "cpu=8,node=4"}, 8),
        ({"tres_per_node": "gres:gpu:2", "tres_alloc_str": "cpu=8,node=1"}, 6),
        ({"tres_per_job": "gres:gpu:2", "tres_alloc_str": "cpu=8,node=4"}, 2),
    ],
)
def test_request_of__gpus_in_each_field_of_the_json__are_counted(
    job: dict[str, Any], gpus: int
) -> None:
    shown = {"tres_req_str": "cpu=6,mem=600M,node=3"} | job
    assert request_of(shown) == Size(
        limit_min=None, cpus=6, memory_mb=600, nodes=3, gpus=gpus, partition=""
    )


@pytest.mark.parametrize(
    ("job", "memory_mb"),
    [
        ({"memory_per_cpu": 100}, 600),
        ({"memory_per_cpu": 800}, 4800),
        ({"memory_per_cpu": {"set": True, "infinite": False, "number": 800}}, 4800),
        ({"memory_per_cpu": {"set": False, "infinite": False, "number": 0}}, 600),
        ({"memory_per_node": 500}, 1500),
        ({"memory_per_node": 100}, 600),
        ({"memory_per_node": 500, "tres_alloc_str": "cpu=8,node=4"}, 2000),
        ({"memory_per_cpu": 100, "tres_alloc_str": "cpu=8,node=4"}, 600),
        ({"memory_per_cpu": None, "memory_per_node": None}, 600),
    ],
)
def test_request_of__memory_in_each_field_of_the_json__is_the_highest_number(
    job: dict[str, Any], memory_mb: int
) -> None:
    shown = {"tres_req_str": "cpu=6,mem=600M,node=3"} | job
    assert request_of(shown).memory_mb == memory_mb


@pytest.mark.parametrize(
    ("job", "error"),
    [
        ({}, KeyError),
        ({"tres": "cpu=1"}, KeyError),
        ({"tres_req_str": None}, TypeError),
        ({"tres_req_str": {"cpu": 1}}, TypeError),
        ({"tres_req_str": "cpu=1.2.3"}, ValueError),
    ],
)
def test_request_of__another_entry_than_expected__is_an_error(
    job: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        request_of(job)


@pytest.mark.parametrize(
    ("shown", "number"),
    [
        (1, 1),
        (2**40, 2**40),
        (0, None),
        (-1, None),
        (1.5, None),
        ("1", None),
        (None, None),
        ({"number": 1}, None),
    ],
)
def test_positive_number__each_value__is_a_number_above_zero_or_none(
    shown: object, number: int | None
) -> None:
    assert positive_number(shown) == number


@pytest.mark.parametrize(
    ("requested", "allocated", "nodes"),
    [
        ("cpu=2,mem=200M,node=1", "cpu=4,mem=400M,node=2", 2),  # ReqNodeList
        ("cpu=4,mem=400M,node=2", "cpu=4,mem=400M,node=2", 2),
        ("cpu=2,mem=200M,node=1", "", 1),  # it never ran
    ],
)
def test_accounted_size__nodes_that_were_allocated__are_those(
    requested: str, allocated: str, nodes: int
) -> None:
    size = accounted_size(
        requested=requested, allocated=allocated, partition="main", qos="", account=""
    )
    assert size is not None
    assert (size.nodes, size.cpus) == (nodes, int(requested[4]))
