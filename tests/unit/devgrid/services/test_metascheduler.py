"""Who gets a job."""

from dataclasses import replace

import pytest

from devgrid.chain.model import (
    ChainJob,
    ChainNode,
    ChainPrices,
    JobDefinition,
    Provider,
)
from devgrid.services.metascheduler import choose, fits, holds
from supervisor_tasks.jobs.model import ChainStatus

DEFINITION = JobDefinition(
    gpus=1, mem_per_cpu_mb=1000, cpus_per_task=4, ntasks=2, batch_location_hash="h"
)
CHEAP = ChainPrices(1, 1, 1)
PROVIDER = Provider(
    "0xaa",
    (ChainNode(2, 8, 16_000), ChainNode(2, 8, 16_000)),
    CHEAP,
    (("zone", "eu"), ("gpus", "4")),
    banned=False,
)
ENOUGH = CHEAP.of(DEFINITION)
JOB = ChainJob(
    job_id="0x1",
    status=ChainStatus.PENDING,
    customer="0xcc",
    provider="0x0",
    definition=DEFINITION,
    max_cost_wei=ENOUGH,
    final_cost_wei=0,
    pending_top_up_wei=0,
    delegate_spending_authority=False,
    submit_s=0,
    start_s=0,
    end_s=0,
    cancel_request_s=0,
    block_number_state_change=0,
    panic_s=0,
    name=b"",
    has_cancel_request=False,
    last_error="",
    exit_code=0,
)


def test_fits__enough_of_everything__does() -> None:
    assert fits(DEFINITION, ENOUGH, PROVIDER)


@pytest.mark.parametrize(
    "change",
    [
        {"gpus": 5},
        {"ntasks": 5},
        {"cpus_per_task": 9},
        {"mem_per_cpu_mb": 5000},
        {"uses": (("zone", "us"),)},
        {"affinity": (("gpus", ">", "4"),)},
        {"affinity": (("colour", "=", "red"),)},
    ],
)
def test_fits__too_much_or_not_the_label__does_not(change: dict[str, object]) -> None:
    assert not fits(replace(DEFINITION, **change), 10**9, PROVIDER)  # type: ignore[arg-type]


# every node, to the last MB
ALL = replace(DEFINITION, gpus=4, ntasks=2, cpus_per_task=8, mem_per_cpu_mb=2000)


def test_fits__all_nodes_to_the_last_of_everything__does() -> None:
    assert fits(ALL, 10**9, PROVIDER)


@pytest.mark.parametrize(
    "nodes",
    [
        (ChainNode(2, 8, 16_000), ChainNode(1, 8, 16_000)),
        (ChainNode(2, 8, 16_000), ChainNode(2, 7, 16_000)),
        (ChainNode(2, 8, 16_000), ChainNode(2, 8, 15_999)),
        (),
    ],
)
def test_fits__one_less_of_anything__does_not(nodes: tuple[ChainNode, ...]) -> None:
    assert not fits(ALL, 10**9, replace(PROVIDER, nodes=nodes))


@pytest.mark.parametrize(
    ("nodes", "answer"),
    [
        ((ChainNode(0, 1, 100), ChainNode(0, 4, 4000)), True),
        ((ChainNode(0, 3, 4000), ChainNode(0, 3, 4000)), False),
        ((ChainNode(0, 4, 3999), ChainNode(0, 4, 3999)), False),
        ((ChainNode(0, 4, 100), ChainNode(0, 1, 4000)), False),
    ],
    ids=[
        "one node is enough",
        "no node has the CPUs",
        "no node has the memory",
        "no node has both",
    ],
)
def test_fits__a_task__is_on_one_node(
    nodes: tuple[ChainNode, ...], answer: bool
) -> None:
    one_task = replace(DEFINITION, gpus=0, ntasks=1)
    assert fits(one_task, 10**9, replace(PROVIDER, nodes=nodes)) is answer


def test_fits__labels_wanted_and_there__does() -> None:
    picky = replace(
        DEFINITION,
        uses=(("zone", "eu"),),
        affinity=(("gpus", ">=", "4"), ("zone", "in", "us,eu")),
    )
    assert fits(picky, ENOUGH, PROVIDER)


def test_fits__credits_for_less_than_a_minute__does_not() -> None:
    assert not fits(DEFINITION, ENOUGH - 1, PROVIDER)


@pytest.mark.parametrize(
    ("found", "operator", "wanted", "answer"),
    [
        ("10", ">", "9", True),
        ("10", "<", "9", False),
        ("b", ">", "a", True),
        ("4", "=", "4.0", True),
        ("x", "==", "x", True),
        ("x", ">=", "x", True),
        ("x", "<=", "a", False),
        ("x", "<=", "x", True),
        ("9", "<=", "10", True),
        ("9", "<", "9", False),
        ("9", ">=", "10", False),
        ("4", "==", "5", False),
        ("10", "<", "9x", True),
        ("eu", "in", "us, eu", True),
        ("eu", "in", "us", False),
        (None, "=", "x", False),
        ("x", "??", "x", False),
    ],
)
def test_holds__each_operator__compares_as_numbers_or_else_as_text(
    found: str | None, operator: str, wanted: str, answer: bool
) -> None:
    assert holds(found, operator, wanted) is answer


def test_choose__several_fit__takes_the_cheapest() -> None:
    dear = replace(PROVIDER, address="0xbb", prices=ChainPrices(2, 2, 2))
    job = replace(JOB, max_cost_wei=10 * ENOUGH)
    assert choose(job, [dear, PROVIDER], frozenset()) == "0xaa"
    assert choose(job, [dear, replace(PROVIDER, banned=True)], frozenset()) == "0xbb"


def test_choose__provider_refused_it__does_not_get_it_again() -> None:
    dear = replace(PROVIDER, address="0xbb", prices=ChainPrices(2, 2, 2))
    assert choose(JOB, [PROVIDER], frozenset({"0xaa"})) is None
    assert (
        choose(
            replace(JOB, max_cost_wei=10 * ENOUGH),
            [PROVIDER, dear],
            frozenset({"0xaa"}),
        )
        == "0xbb"
    )


def test_choose__no_provider__is_none() -> None:
    assert choose(JOB, [], frozenset()) is None
