"""From the settings and the partition's hardware to a plan."""

import pytest

from supervisor_tasks.benchmark_plan import plan_of
from supervisor_tasks.settings import load
from supervisor_tasks.slurm.specs import Node, Specs

NONCE = "00112233445566778899aabbccddeeff"
NODE1, NODE2, NODE10 = (Node(name, cpus=8, gpus=0, mem_mb=16_000) for name in ("node1", "node2", "node10"))
UCX = {"BENCHMARK_UCX": "true", "BENCHMARK_UCX_AFFINITY": "a:1|b:1|c:1"}


@pytest.mark.parametrize(
    ("nodes", "left_out", "devices"),
    [
        ((NODE1, NODE2, NODE10), (), ("a:1", "b:1", "c:1")),
        ((NODE1, NODE10), (NODE2,), ("a:1", "c:1")),
        ((NODE2,), (NODE1, NODE10), ("b:1",)),
    ],
)
def test_ucx_devices__belong_to_their_nodes__whichever_of_them_work(
    nodes: tuple[Node, ...], left_out: tuple[Node, ...], devices: tuple[str, ...]
) -> None:
    assert plan_of(load(environment=UCX), Specs(nodes, left_out), NONCE).ucx.affinity == devices


def test_ucx_devices__for_another_number_of_nodes__are_refused() -> None:
    with pytest.raises(ValueError, match=r"3 entries of UCX affinity; expected .* each of the partition's 2 nodes"):
        plan_of(load(environment=UCX), Specs((NODE1,), (NODE2,)), NONCE)


def test_ucx_devices__one_list__is_for_all_nodes() -> None:
    one = load(environment=UCX | {"BENCHMARK_UCX_AFFINITY": "a:1"})
    assert plan_of(one, Specs((NODE1, NODE2)), NONCE).ucx.affinity == ("a:1",)


def test_ucx_devices__without_ucx__count_for_nothing() -> None:
    assert plan_of(load(environment=UCX | {"BENCHMARK_UCX": "false"}), Specs((NODE1,)), NONCE).ucx.affinity == ()


@pytest.mark.parametrize(("max_time_min", "limit_min"), [(None, 120), (0, 120), (60, 60), (600, 120)])
def test_time_limit__is_within_the_partitions(max_time_min: int | None, limit_min: int) -> None:
    settings = load(environment={"BENCHMARK_TIME_LIMIT": "2h"})
    assert plan_of(settings, Specs((NODE1,), max_time_min=max_time_min), NONCE).time_limit_min == limit_min
