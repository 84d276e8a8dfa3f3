"""What a plan takes, and the arithmetic of nodes, ranks and sizes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from benchmarks.plan import Plan, PlannedNode, Ucx
from benchmarks.rank_layout import problem_size, process_grid
from tests.support.benchmark_cases import PLANS
from tests.support.benchmark_plans import a_plan


@pytest.mark.parametrize(
    "changes",
    [
        {"environment": {"A B": "x"}},
        {"environment": {"1A": "x"}},
        {"environment": {"A;rm": "x"}},
        {"environment": {"": "x"}},
        {"environment": {"LD_PRELOAD": "x"}},
        {"environment": {"PATH": "x"}},
        {"environment": {"BASH_ENV": "x"}},
        {"environment": {"SLURM_JOB_ID": "1"}},
        {"environment": {"A": "two\nlines"}},
        {"environment": {"A": "\0"}},
        {"nonce": "short"},
        {"nonce": "0011223344556677$(x)"},
        {"nodes": ()},
        {
            "nodes": (
                PlannedNode(name="a", cpus=1, mem_mb=1),
                PlannedNode(name="a", cpus=1, mem_mb=1),
            )
        },
        {"modules": ("a; rm -rf /",)},
        {"container_flags": ("a\nb",)},
        {"volumes": {"scratch": "relative"}},
        {"volumes": {"scratch": "/a/../b"}},
        {"volumes": {"scratch": "/a:/b,/c"}},
        {"volumes": {"Scratch $": "/a"}},
        {"iperf3_server": "host"},
        {"iperf3_server": "-c:1"},
        {"nvidia_smi": "-x"},
        {"hpl_memory_share": 0.0},
        {"hpl_memory_share": math.nan},
        {"hpl_memory_share": 1.1},
        {"time_limit_min": 0},
        {"ucx": Ucx(enabled=True, affinity=("a:1", "b:1", "c:1"))},
        {"unknown": 1},
    ],
)
def test_plan__what_cannot_be_meant_so__is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        a_plan(**changes)


@pytest.mark.parametrize("name", ["", "-x", "a b", "a$(x)", "a/b"])
def test_node__name_that_is_none__is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        PlannedNode(name=name, cpus=1, mem_mb=1)


@pytest.mark.parametrize("text", ["mlx5_0:1;x", "a b"])
def test_ucx__devices_that_are_none__are_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        Ucx.of_settings(True, text, "rc")


def test_plan__as_json__is_the_same_plan() -> None:
    """A run that is resumed after a crash has its plan from the ledger."""
    for plan in PLANS.values():
        assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_problem_size__two_nodes_of_128460_mb__is_89600() -> None:
    assert problem_size(128460, 2, 0.5, 512) == 89600


@given(
    mem=st.integers(1, 10**8),
    nodes=st.integers(1, 10**4),
    share=st.floats(0.01, 1),
    block=st.integers(1, 4096),
)
def test_problem_size__any__is_a_multiple_of_nb_within_the_share(
    mem: int, nodes: int, share: float, block: int
) -> None:
    n = problem_size(mem, nodes, share, block)
    assert n > 0
    assert n % block == 0
    assert n <= max(block, share * math.sqrt(mem * nodes / 8) * 1000)


@pytest.mark.parametrize(
    ("ranks", "grid"),
    [
        (1, (1, 1)),
        (2, (2, 1)),
        (7, (7, 1)),
        (12, (4, 3)),
        (15, (5, 3)),
        (16, (4, 4)),
        (1024, (32, 32)),
    ],
)
def test_process_grid__ranks__are_as_square_as_can_be(
    ranks: int, grid: tuple[int, int]
) -> None:
    assert process_grid(ranks) == grid


@given(ranks=st.integers(1, 100_000))
def test_process_grid__any__uses_all_ranks_with_p_at_least_q(ranks: int) -> None:
    p, q = process_grid(ranks)
    assert p * q == ranks
    assert p >= q
