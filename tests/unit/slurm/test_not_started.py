"""Which jobs a node could not start, by squeue's and scontrol's words."""

from dataclasses import replace

import pytest

from supervisor_tasks.jobs.model import SlurmId
from supervisor_tasks.slurm.not_started import (
    EndedOn,
    accounted_ends,
    drained_s,
    ended_on,
    may_not_have_started,
    not_started,
)
from supervisor_tasks.slurm.parsers import (
    CommandAnswer,
    JobRecord,
    SlurmUnavailableError,
)

# As SLURM 22.05.8 printed them.
ENDED = "1| 1795727975| node1|\n2| 1795727975| node2|\n3| N/A| n/a|\n"
NODE = (
    "NodeName=node1 Arch=x86_64 CPUTot=64 State=IDLE+DRAIN OS=Linux 6.18.44 #1 SMP Partitions=main"
    " ExtSensorsTemp=n/s Reason=batch job complete failure [root@1795727975]\n"
)
OTHER_NODE = NODE.replace("node1", "node2").replace(
    "batch job complete failure", "maintenance"
)
FIRST = EndedOn("node1", 1795727975)


@pytest.mark.parametrize(
    ("state", "elapsed_s", "exit_status", "suspect"),
    [
        ("COMPLETED", 0, 0, True),
        ("COMPLETED", 1, 0, True),
        ("COMPLETED", 2, 0, True),  # a busy node
        ("COMPLETED", 10, 0, True),
        ("COMPLETED", 11, 0, False),
        ("COMPLETED", 1, 256, False),
        ("COMPLETED", 0, 256, False),
        ("CANCELLED", 0, 0, True),
        ("CANCELLED", 300, 0, True),
        ("CANCELLED", 301, 0, False),
        ("CANCELLED", 20, 15, False),  # scancel of a job that runs
        ("FAILED", 0, 0, False),
        ("RUNNING", 0, 0, False),
    ],
)
def test_may_not_have_started__each_end__is_true_only_for_a_short_run_with_status_0(
    state: str, elapsed_s: int, exit_status: int, *, suspect: bool
) -> None:
    assert (
        may_not_have_started(JobRecord(SlurmId(1), state, elapsed_s, exit_status))
        is suspect
    )


@pytest.mark.parametrize(
    "requeued", [{"restarts": 1}, {"earlier_runs": 1, "earlier_s": 60}]
)
def test_may_not_have_started__job_ran_before_a_requeue__its_runs_are_billed(
    requeued: dict[str, int],
) -> None:
    seen = replace(JobRecord(SlurmId(1), "COMPLETED", 0, 0), **requeued)  # type: ignore[arg-type]
    assert not may_not_have_started(seen)


def test_ended_on__each_job__has_its_node_and_its_end() -> None:
    assert ended_on(CommandAnswer(0, ENDED, "")) == {
        1: FIRST,
        2: EndedOn("node2", 1795727975),
    }
    assert (
        ended_on(
            CommandAnswer(1, "", "slurm_load_jobs error: Invalid job id specified")
        )
        == {}
    )


@pytest.mark.parametrize(
    "answer", [CommandAnswer(1, "", "no route"), CommandAnswer(0, ENDED[:-3], "")]
)
def test_ended_on__answer_is_not_whole__is_no_answer(answer: CommandAnswer) -> None:
    with pytest.raises(SlurmUnavailableError):
        ended_on(answer)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node[1-2]", "node1"),
        ("node[01,03-07]", "node01"),
        ("a-3,node[1-2]", "a-3"),
    ],
)
def test_accounted_ends__each_job__has_the_first_of_its_nodes(
    nodes: str, first: str
) -> None:
    printed = f"1|1795727975|{nodes}|\n2|Unknown|node2|\n3|1795727975|None assigned|\n"
    assert accounted_ends(CommandAnswer(0, printed, "")) == {
        1: EndedOn(first, 1795727975)
    }


def test_accounted_ends__accounting_does_not_answer__is_no_answer() -> None:
    with pytest.raises(SlurmUnavailableError, match="sacct"):
        accounted_ends(CommandAnswer(1, "", "Unable to connect to slurm database"))


def test_drained_s__nodes_that_could_not_start_a_job__also_beside_one_that_is_gone() -> (
    None
):
    assert drained_s(CommandAnswer(0, NODE + OTHER_NODE, "")) == {"node1": 1795727975}
    prolog = NODE.replace("batch job complete failure", "Prolog error")
    assert drained_s(CommandAnswer(0, prolog, "")) == {"node1": 1795727975}
    assert drained_s(CommandAnswer(1, NODE, "Node nodeX not found")) == {
        "node1": 1795727975
    }
    with pytest.raises(SlurmUnavailableError):
        drained_s(
            CommandAnswer(
                1, "", "slurm_load_node error: Unable to contact slurm controller"
            )
        )


@pytest.mark.parametrize(
    ("drained", "found"),
    [
        ({"node1": 1795727975}, {1: "node1"}),
        ({"node1": 1795727977}, {1: "node1"}),
        ({"node1": 1795727978}, {}),  # another job's failure, a little later
        ({"node2": 1795727975}, {}),
        ({}, {}),
    ],
)
def test_not_started__nodes_drained__finds_jobs_that_ended_there_at_that_time(
    drained: dict[str, int], found: dict[int, str]
) -> None:
    assert not_started({SlurmId(1): FIRST}, drained) == found
