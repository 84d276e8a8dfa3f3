"""What SLURM gives beside what was paid for: more is found, less and what has no price
is not.
"""

from dataclasses import replace

import pytest

from supervisor_tasks.jobs.model import Definition, SlurmId
from supervisor_tasks.jobs.paid_size import Paid
from supervisor_tasks.jobs.size_rules import (
    as_asked,
    excesses,
    excesses_to_undo,
    may_be_rounded,
)
from supervisor_tasks.slurm.parsers import CommandAnswer
from supervisor_tasks.slurm.sacct import accounted_jobs
from supervisor_tasks.slurm.size import Size
from supervisor_tasks.slurm.squeue import listed_jobs
from tests.support.slurm_samples import DELIMITER, sample, squeue_sample

DEFINITION = Definition(
    gpus=1, mem_per_cpu_mb=100, cpus_per_task=3, ntasks=1, batch_location_hash="x"
)
PAID = Paid(DEFINITION, limit_min=2, partition="main")
SIZE = Size(
    limit_min=2, cpus=3, memory_mb=300, nodes=1, gpus=1, partition="main", qos="normal"
)


def of(size: Size, paid: Paid = PAID) -> list[str]:
    return [excess.of for excess in excesses(size, paid)]


def test_recorded__each_change_of_a_waiting_job__is_told() -> None:
    jobs = listed_jobs(CommandAnswer(0, squeue_sample("squeue-sizes"), ""), DELIMITER)
    found = {
        slurm_id: of(job.record.size, PAID)
        for slurm_id, job in jobs.items()
        if job.record.size is not None
    }
    assert found == {
        SlurmId(9): [],  # runs, as it was submitted
        SlurmId(10): ["CPUs", "memory"],  # runs with four tasks of one CPU
        SlurmId(11): [],
        SlurmId(12): ["CPUs"],  # NumCPUs=8
        SlurmId(13): ["TimeLimit", "GPUs"],  # TimeLimit=600 TresPerJob=gpu:2
        SlurmId(14): ["GPUs"],  # TresPerTask=gpu:2
        SlurmId(15): ["memory"],  # MinMemoryNode=8000
        SlurmId(16): ["ArrayString"],  # an array of three
    }


def test_recorded__each_change_of_a_job_that_has_ended__accounting_tells_it() -> None:
    rows = accounted_jobs(CommandAnswer(0, sample("sacct-sizes"), ""), DELIMITER)
    small = replace(PAID, definition=replace(DEFINITION, cpus_per_task=2))
    without_gpu = replace(PAID, definition=replace(DEFINITION, gpus=0))
    much_memory = replace(DEFINITION, gpus=0, cpus_per_task=2, mem_per_cpu_mb=1500)
    others = {2: without_gpu, 11: replace(PAID, definition=much_memory)}
    found = {
        row.record.slurm_id: of(
            row.record.size, others.get(int(row.record.slurm_id), small)
        )
        for row in rows
        if row.record.size is not None
    }
    assert found == {
        SlurmId(1): [],
        SlurmId(2): [],  # three CPUs, rounded up to two cores of two threads
        SlurmId(3): ["Partition"],  # whose nodes are given whole
        SlurmId(4): ["CPUs", "nodes", "memory"],
        SlurmId(5): ["memory"],
        SlurmId(6): ["memory"],
        SlurmId(7): ["memory"],  # all of a node's
        SlurmId(8): ["memory"],
        SlurmId(9): ["GPUs"],
        SlurmId(10): [],  # whole cores: accounting does not show that
        SlurmId(11): [],  # SLURM gives more CPUs for its memory
        SlurmId(12): ["Partition"],
    }


@pytest.mark.parametrize(
    ("size", "found"),
    [
        (SIZE, []),
        (replace(SIZE, limit_min=1, cpus=1, memory_mb=1, gpus=0), []),
        (replace(SIZE, qos="other", account="other"), []),
        (replace(SIZE, limit_min=3), ["TimeLimit"]),
        (replace(SIZE, limit_min=None), ["TimeLimit"]),
        (replace(SIZE, cpus=4), ["CPUs"]),
        (replace(SIZE, nodes=2), ["nodes"]),
        (replace(SIZE, memory_mb=301), ["memory"]),
        (replace(SIZE, gpus=2), ["GPUs"]),
        (replace(SIZE, partition="main,other"), ["Partition"]),
        (replace(SIZE, reservation="others"), ["Reservation"]),
        (replace(SIZE, array=True), ["ArrayString"]),
        (replace(SIZE, cpus=None, memory_mb=None, nodes=None), []),
    ],
)
def test_excesses__of_a_size__are_these(size: Size, found: list[str]) -> None:
    assert of(size) == found


@pytest.mark.parametrize(
    ("size", "undo"),
    [
        (replace(SIZE, limit_min=3), ("TimeLimit=2",)),
        (replace(SIZE, limit_min=None), ("TimeLimit=2",)),
        (
            replace(SIZE, cpus=4),
            (
                "NumTasks=1",
                "NumNodes=1-1",
                "CPUsPerTask=3",
                "NumCPUs=3",
                "MinCPUsNode=3",
            ),
        ),
        (
            replace(SIZE, nodes=2),
            (
                "NumTasks=1",
                "NumNodes=1-1",
                "CPUsPerTask=3",
                "NumCPUs=3",
                "MinCPUsNode=3",
            ),
        ),
        (replace(SIZE, memory_mb=301), ("MinMemoryCPU=100",)),
        (
            replace(SIZE, gpus=2),
            ("TresPerNode=", "TresPerTask=", "TresPerSocket=", "TresPerJob=gres:gpu:1"),
        ),
        (replace(SIZE, partition="main,other"), ("Partition=main",)),
        (replace(SIZE, reservation="others"), ("ReservationName=",)),
        (replace(SIZE, account="vip"), ("Account=grid",)),
        (replace(SIZE, account="grid", qos="high"), ("QOS=normal",)),
        (replace(SIZE, array=True), ()),
    ],
)
def test_excesses__each__says_how_slurm_puts_it_back(
    size: Size, undo: tuple[str, ...]
) -> None:
    paid = PAID
    if size.account:
        paid = replace(PAID, account="grid", qos="normal")
    assert [excess.undo for excess in excesses(size, paid)] == [undo]


@pytest.mark.parametrize(
    ("size", "found"),
    [
        (replace(SIZE, account="grid", qos="normal"), []),
        (replace(SIZE, account="vip", qos="normal"), ["Account"]),
        (replace(SIZE, account="grid", qos="high"), ["QOS"]),
        (replace(SIZE, account="", qos="normal"), ["Account"]),
    ],
)
def test_excesses__another_account_or_qos_than_at_the_first_look__are_these(
    size: Size, found: list[str]
) -> None:
    first = replace(PAID, account="grid", qos="normal")
    assert of(size, first) == found
    assert of(size, replace(first, compares_sizes=False)) == []


def test_excesses__rounded_up_by_slurm__are_none_beside_what_was_asked_for() -> None:
    whole_cores = replace(SIZE, cpus=4, memory_mb=400)
    assert may_be_rounded(excesses(whole_cores, PAID))
    assert of(as_asked(whole_cores, SIZE, PAID)) == []
    assert of(as_asked(replace(whole_cores, limit_min=600), SIZE, PAID)) == [
        "TimeLimit"
    ]
    assert not may_be_rounded(
        excesses(replace(SIZE, limit_min=600, partition="x"), PAID)
    )


def test_excesses__more_nodes_than_tasks__are_not_rounded_up_by_slurm() -> None:
    """SLURM shows a job with ReqNodeList or a count of features as a request for one
    node.
    """
    two_nodes = replace(SIZE, cpus=6, memory_mb=600, nodes=2)
    assert of(as_asked(two_nodes, SIZE, PAID)) == ["nodes"]
    assert not may_be_rounded(excesses(replace(SIZE, nodes=2), PAID))
    tasks = replace(PAID, definition=replace(DEFINITION, ntasks=2))
    assert of(as_asked(two_nodes, SIZE, tasks), tasks) == []


@pytest.mark.parametrize(
    ("given", "asked", "wanted", "found"),
    [
        (8, 3, 8, ["CPUs"]),  # CPUsPerTask=8, which SLURM does not count
        (8, 3, 3, []),  # whole cores, or a whole node
        (3, 3, 8, []),  # the owner's words, and no CPU more
        (None, None, 8, []),
        (8, None, 3, []),
    ],
)
def test_excesses__cpus_that_tasks_and_nodes_ask_for__are_not_rounded_up_by_slurm(
    given: int | None, asked: int | None, wanted: int, found: list[str]
) -> None:
    shown = replace(SIZE, cpus=given, wanted_cpus=wanted)
    assert of(as_asked(shown, replace(SIZE, cpus=asked), PAID)) == found


def test_excesses__fewer_threads_of_a_core_than_first_seen__are_unpaid_whole_cores() -> (
    None
):
    first, shown = replace(PAID, threads="*"), replace(SIZE, cpus=6, threads="1")
    assert of(as_asked(shown, SIZE, first)) == ["CPUs"]
    for the_sites_choice in (replace(PAID, threads="1"), PAID):
        assert of(as_asked(shown, SIZE, the_sites_choice)) == []
    assert of(as_asked(replace(shown, threads="*"), SIZE, first)) == []


def test_excesses__all_memory_of_a_node__is_not_rounded_up_by_slurm() -> None:
    whole = replace(SIZE, whole_memory=True)
    (found,) = excesses(as_asked(replace(whole, memory_mb=16_000), whole, PAID), PAID)
    assert (str(found), found.undo) == (
        "MinMemoryCPU: all of a node instead of 300 MB",
        ("MinMemoryCPU=100",),
    )
    assert not may_be_rounded([found])


def test_excesses__more_memory_for_a_cpu_than_the_site_gives__is_more_cpus_of_slurms() -> (
    None
):
    paid = replace(
        PAID,
        definition=replace(DEFINITION, mem_per_cpu_mb=4000, cpus_per_task=1),
        most_memory_per_cpu_mb=2000,
    )
    assert of(replace(SIZE, cpus=2, memory_mb=4000), paid) == []
    assert of(replace(SIZE, cpus=3, memory_mb=4000), paid) == ["CPUs"]
    assert of(replace(SIZE, cpus=2, memory_mb=8000), paid) == ["memory"]


def test_excesses__a_site_that_gives_more_itself__compares_what_it_does_not_add() -> (
    None
):
    bigger = replace(
        SIZE, limit_min=600, cpus=8, memory_mb=800, nodes=2, gpus=2, partition="other"
    )
    assert of(bigger, replace(PAID, compares_sizes=False)) == [
        "TimeLimit",
        "GPUs",
        "Partition",
    ]


def test_excesses_to_undo__a_reservation__only_while_the_job_waits() -> None:
    found = excesses(replace(SIZE, reservation="others", gpus=2), PAID)
    assert [excess.of for excess in excesses_to_undo(found, waits=True)] == [
        "GPUs",
        "Reservation",
    ]
    assert [excess.of for excess in excesses_to_undo(found, waits=False)] == ["GPUs"]
