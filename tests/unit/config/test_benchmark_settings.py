"""From the settings and the partition's hardware to a plan."""

import pytest

from benchmarks.registry import SUITE
from supervisor_tasks.benchmarking.benchmark_run import (
    BenchmarkState,
    Measurement,
    sbatch,
)
from supervisor_tasks.benchmarking.planned_jobs import jobs_of
from supervisor_tasks.config.settings import SettingsError, load
from supervisor_tasks.from_settings.benchmark_plan import plan_of
from supervisor_tasks.slurm.hardware import PartitionHardware, SlurmNode

NONCE = "00112233445566778899aabbccddeeff"
NODE1, NODE2, NODE10 = (
    SlurmNode(name, cpus=8, gpus=0, mem_mb=16_000)
    for name in ("node1", "node2", "node10")
)
NO_MEMORY = SlurmNode("node3", cpus=8, gpus=0, mem_mb=0)
BIG_NODE = SlurmNode("big1", cpus=8, gpus=0, mem_mb=512_000)
UCX = {"BENCHMARK_UCX": "true", "BENCHMARK_UCX_AFFINITY": "a:1|b:1|c:1"}


@pytest.mark.parametrize(
    ("nodes", "excluded_nodes", "devices"),
    [
        ((NODE1, NODE2, NODE10), (), ("a:1", "b:1", "c:1")),
        ((NODE1, NODE10), (NODE2,), ("a:1", "c:1")),
        ((NODE2,), (NODE1, NODE10), ("b:1",)),
    ],
)
def test_ucx_devices__some_nodes_are_down__belong_to_their_nodes(
    nodes: tuple[SlurmNode, ...],
    excluded_nodes: tuple[SlurmNode, ...],
    devices: tuple[str, ...],
) -> None:
    assert (
        plan_of(
            load(environment=UCX), PartitionHardware(nodes, excluded_nodes), NONCE
        ).ucx.affinity
        == devices
    )


def test_ucx_devices__for_another_number_of_nodes__are_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"3 entries of UCX affinity; expected .* each of the partition's 2 nodes",
    ):
        plan_of(load(environment=UCX), PartitionHardware((NODE1,), (NODE2,)), NONCE)


def test_ucx_devices__one_list__is_for_all_nodes() -> None:
    one = load(environment=UCX | {"BENCHMARK_UCX_AFFINITY": "a:1"})
    assert plan_of(one, PartitionHardware((NODE1, NODE2)), NONCE).ucx.affinity == (
        "a:1",
    )


def test_ucx_devices__without_ucx__count_for_nothing() -> None:
    assert (
        plan_of(
            load(environment=UCX | {"BENCHMARK_UCX": "false"}),
            PartitionHardware((NODE1,)),
            NONCE,
        ).ucx.affinity
        == ()
    )


@pytest.mark.parametrize(
    ("max_time_min", "limit_min"), [(None, 120), (0, 120), (60, 60), (600, 120)]
)
def test_time_limit__partition_with_or_without_a_limit__is_within_the_partitions(
    max_time_min: int | None, limit_min: int
) -> None:
    settings = load(environment={"BENCHMARK_TIME_LIMIT": "2h"})
    assert (
        plan_of(
            settings, PartitionHardware((NODE1,), max_time_min=max_time_min), NONCE
        ).time_limit_min
        == limit_min
    )


# --- the site's words for sbatch ------------------------------------------------------

FLAGS = """--account=grid --qos=low --constraint='a100&ib' --reservation="two words" """


def test_sbatch_flags__come_first__and_none_change_nothing() -> None:
    hardware = PartitionHardware((NODE1, NODE2))
    with_flags, without = (
        load(environment={"BENCHMARK_SBATCH_FLAGS": FLAGS}),
        load(environment={}),
    )
    assert without.benchmark_sbatch_flags == ()
    plan = plan_of(with_flags, hardware, NONCE)
    expected = (
        "--account=grid",
        "--qos=low",
        "--constraint=a100&ib",
        "--reservation=two words",
    )
    given = jobs_of(plan, SUITE.values(), with_flags.benchmark_sbatch_flags)
    plain = jobs_of(
        plan_of(without, hardware, NONCE),
        SUITE.values(),
        without.benchmark_sbatch_flags,
    )
    assert [job.options[:4] for job in given] == [expected] * len(SUITE)
    assert [(job.benchmark, job.options[4:], job.script) for job in given] == [
        (job.benchmark, job.options, job.script) for job in plain
    ]


@pytest.mark.parametrize(
    ("excluded_nodes", "flags", "exclude"),
    [
        ((), "", []),
        ((NODE2,), "", []),
        ((BIG_NODE,), "", ["--exclude=big1"]),
        ((BIG_NODE, NODE2), "--account=grid", ["--exclude=big1"]),
        ((NO_MEMORY,), "", ["--exclude=node3"]),
        ((BIG_NODE,), "--exclude=node[7-8]", ["--exclude=node[7-8],big1"]),
        ((), "--exclude=node[7-8]", ["--exclude=node[7-8]"]),
    ],
)
def test_jobs_of__node_of_another_kind_does_not_work__it_is_left_out_by_name(
    excluded_nodes: tuple[SlurmNode, ...], flags: str, exclude: list[str]
) -> None:
    settings = load(environment={"BENCHMARK_SBATCH_FLAGS": flags})
    plan = plan_of(settings, PartitionHardware((NODE1,), excluded_nodes), NONCE)
    jobs = jobs_of(plan, SUITE.values(), settings.benchmark_sbatch_flags)
    found = [
        [option for option in job.options if option.startswith("--exclude=")]
        for job in jobs
    ]
    assert found == [exclude] * len(SUITE)


def options_of_ours() -> list[str]:
    """The names of all options that a benchmark's job is given."""
    nodes = tuple(
        SlurmNode(f"node{n}", cpus=8, gpus=n % 2, mem_mb=16_000) for n in (1, 2, 3)
    )
    settings = load(environment={})
    options = [
        word
        for job in jobs_of(
            plan_of(settings, PartitionHardware(nodes), NONCE), SUITE.values(), ()
        )
        for word in job.options
    ]
    one = Measurement(
        id=1,
        run_id=1,
        benchmark="hpl",
        state=BenchmarkState.WAITING,
        job_name="x",
        options=tuple(options),
    )
    return sorted(
        {word.partition("=")[0] for word in sbatch("sbatch", one, partition="main")[1:]}
    )


@pytest.mark.parametrize(
    "word",
    [
        *(f"{option}=x" for option in options_of_ours()),
        *(
            "--nod=2",
            "--tim=5",
            "--no=x",
            "--comm=supervisor",
            "--mem-per-gpu=1",
            "--array=1-9",
            "--wrap=id",
            "--chdir=/",
        ),
        *(
            "-A grid",
            "grid",
            "--account grid",
            "--account",
            "--account=",
            "--",
            "--Account=x",
            "'--account=a\nb'",
            '"--account=x',
        ),
    ],
)
def test_sbatch_flags__that_would_make_another_job_of_it__are_refused(
    word: str,
) -> None:
    with pytest.raises(SettingsError) as refused:
        load(environment={"BENCHMARK_SBATCH_FLAGS": f"--qos=low {word}"})
    (line,) = refused.value.lines
    assert line.startswith(
        f"BENCHMARK_SBATCH_FLAGS: found {'--qos=low ' + word!r}; expected "
    )
