"""Jobs that a node of SLURM could not start. Pure.

slurmstepd may fail before it runs the script, for example when a SPANK plugin of the
node cannot be loaded. slurmctld then ends the job as COMPLETED with exit code 0, like a
script that does nothing, and in the same moment drains the node. Such a job has run for
0 or 1 seconds, or longer on a node that is busy.

The node's Prolog may fail. slurmctld then drains the node, and cancels the job, which
it must not requeue. Its seconds are those of the Prolog. Its exit code is 0, where that
of a job that was cancelled while it ran has SIGTERM.

What decides is that the job's own node was drained for that at the job's end.

Seen with SLURM 22.05.8 (tests/attacks/test_node_that_starts_nothing.py).
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from supervisor_tasks.jobs.model import SlurmId
from supervisor_tasks.slurm.commands import UNIX_TIMES
from supervisor_tasks.slurm.parsers import (
    CommandAnswer,
    JobRecord,
    SlurmUnavailableError,
    is_unknown_job,
)

DRAIN_REASONS = ("batch job complete failure", "Prolog error")
DRAINED_WITHIN_S = 2  # of the job's end
# by SLURM's count, which subtracts times in whole seconds; measured: 0.08 to 0.19 s
FAILS_WITHIN_S = 1
# The longest run by SLURM's count, for each state that such a job can have. A script that
# does its work ends as COMPLETED, too, and another job may fail on its node just then: so
# not longer than a busy node needs.
_MAX_ELAPSED_S = {"COMPLETED": 10, "CANCELLED": 300}
_SHOWN = 200  # characters of an answer, in the error
# job, end ("N/A" of a job that waits), node
_ENDED = re.compile(r"(\d+)\| *(\S+)\| *(\S+)\| *")
# job, end ("Unknown" of a job that runs), the first of its nodes ("None assigned"): by
# sacct
_ACCOUNTED = re.compile(r"(\d+)\|(\d+)\|([^\s,|[]+)(?:\[(\w+)[^\s|]*|,[^\s|]*)?\|")
_DRAINED = re.compile(
    rf"\bNodeName=(\S+) .*\bReason=(?:{'|'.join(DRAIN_REASONS)}) \[[^@\]]*@(\d+)\]"
)


@dataclass(frozen=True, slots=True)
class EndedOn:
    """Where the batch script of a job should have run, and when the job ended (Unix
    time of slurmctld's clock).
    """

    node: str
    ended_s: int


def may_not_have_started(seen: JobRecord) -> bool:
    """Whether SLURM shows the job's end like the end of a job that a node could not
    start. The earlier runs of a job that was requeued must be billed: its end counts.
    """
    max_elapsed_s = _MAX_ELAPSED_S.get(seen.state, -1)
    is_alike = (seen.exit_status, seen.restarts, seen.earlier_runs) == (0, 0, 0)
    return is_alike and seen.elapsed_s <= max_elapsed_s


def ended_on_command(squeue: str, slurm_ids: Collection[SlurmId]) -> list[str]:
    """Return the squeue command that shows where and when jobs ended. A job's owner can
    write none of the three fields.
    """
    ids = ",".join(map(str, sorted(slurm_ids)))
    fields = "--Format=JobID:0| ,EndTime:0| ,BatchHost:0|"
    return [
        *UNIX_TIMES,
        squeue,
        "--noheader",
        "--all",
        "--states=all",
        f"--jobs={ids}",
        fields,
    ]


def ended_on(answer: CommandAnswer) -> dict[SlurmId, EndedOn]:
    """Return where and when each job ended. Jobs that SLURM does not know any more are
    left out. Raises SlurmUnavailableError when the answer cannot be read; a retry
    helps.
    """
    if answer.status != 0:
        if is_unknown_job(answer.stderr):
            return {}
        raise _unreadable(answer, "squeue")
    ended = dict[SlurmId, EndedOn]()
    for line in answer.stdout.splitlines():
        found = _ENDED.fullmatch(line)
        if found is None:
            raise _unreadable(answer, "squeue")
        slurm_id, end_s, node = found.groups()
        if end_s.isdecimal():
            ended[SlurmId(int(slurm_id))] = EndedOn(node, int(end_s))
    return ended


def accounted_end_command(sacct: str, slurm_ids: Collection[SlurmId]) -> list[str]:
    """Return the sacct command that shows where and when jobs ended that slurmctld has
    forgotten.
    """
    return [
        *UNIX_TIMES,
        sacct,
        "--noheader",
        "--parsable",
        "--allocations",
        f"--jobs={','.join(map(str, sorted(slurm_ids)))}",
        "--format=JobIDRaw,End,NodeList",
    ]


def accounted_ends(answer: CommandAnswer) -> dict[SlurmId, EndedOn]:
    """Return where and when each job ended. A batch script runs on the first node of
    its job. Jobs that have not ended, or had no node, are left out. Raises
    SlurmUnavailableError when the answer cannot be read; a retry helps.
    """
    if answer.status != 0:
        raise _unreadable(answer, "sacct")
    ended = dict[SlurmId, EndedOn]()
    for found in map(_ACCOUNTED.fullmatch, answer.stdout.splitlines()):
        if found is not None:
            slurm_id, end_s, name, number = found.groups("")
            ended[SlurmId(int(slurm_id))] = EndedOn(name + number, int(end_s))
    return ended


def _unreadable(answer: CommandAnswer, command: str) -> SlurmUnavailableError:
    shown = answer.stderr or answer.stdout
    return SlurmUnavailableError(
        f"{command} ended with status {answer.status}: {shown[:_SHOWN]!r}"
    )


def drained_command(scontrol: str, nodes: Collection[str]) -> list[str]:
    """Return the scontrol command that shows why nodes are drained."""
    return [
        *UNIX_TIMES,
        scontrol,
        "--oneliner",
        "show",
        "node",
        ",".join(sorted(nodes)),
    ]


def drained_s(answer: CommandAnswer) -> dict[str, int]:
    """Return since when (Unix time) nodes are drained for one of DRAIN_REASONS.
    scontrol fails when a node is gone, and shows the others. Raises
    SlurmUnavailableError where it shows none; a retry helps.
    """
    if not answer.stdout.strip():
        raise SlurmUnavailableError(
            f"scontrol ended with status {answer.status}: {answer.stderr[:_SHOWN]!r}"
        )
    drained = dict[str, int]()
    for line in answer.stdout.splitlines():
        if found := _DRAINED.search(line):
            drained[found[1]] = int(found[2])
    return drained


def not_started(
    ended: Mapping[SlurmId, EndedOn], drained: Mapping[str, int]
) -> dict[SlurmId, str]:
    """Return the jobs whose nodes were drained at their ends, with the node of each."""
    jobs = dict[SlurmId, str]()
    for slurm_id, end in ended.items():
        if end.node not in drained:
            continue
        apart_s = abs(drained[end.node] - end.ended_s)
        if apart_s <= DRAINED_WITHIN_S:
            jobs[slurm_id] = end.node
    return jobs
