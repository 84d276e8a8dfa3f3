"""How the worker judges what SLURM's commands print, without a login node."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from supervisor_tasks.jobs.model import Address, JobId, SlurmId
from supervisor_tasks.slurm.cluster import Cluster
from supervisor_tasks.slurm.commands import script_header
from supervisor_tasks.slurm.guarded_command import LoginClock
from supervisor_tasks.slurm.interface import SlurmSettings
from supervisor_tasks.slurm.login_node import LoginNode, Paths
from supervisor_tasks.slurm.parsers import CommandAnswer
from supervisor_tasks.slurm.script_matching import ScriptSearch
from supervisor_tasks.slurm.squeue import SqueueRow, listed_jobs
from supervisor_tasks.slurm.ssh import COMMAND_TIMEOUT_S, Ssh, our_clock_s
from supervisor_tasks.slurm.ssh_command import MAX_OUTPUT_BYTES
from tests.support.slurm_samples import DELIMITER, squeue_sample

JOB, OTHER = JobId("0x" + "1" * 64), JobId("0x" + "2" * 64)
CUSTOMER = Address("0x" + "a" * 40)


class SshOfScripts(Ssh):
    """A login node that prints the batch script of one job of ours for each question."""

    def __init__(self, job_id: JobId) -> None:
        self.job_id = job_id

    def run(
        self,
        user: str,
        argv: Sequence[str],
        stdin: bytes = b"",
        timeout_s: float = COMMAND_TIMEOUT_S,
        max_output: int = MAX_OUTPUT_BYTES,
    ) -> CommandAnswer:
        assert argv[:2] == ["/bin/sh", "-c"], (user, timeout_s, max_output)
        delimiter = stdin.decode().rstrip("\n")
        head = f"#!/bin/sh\n{script_header(self.job_id)}\n"
        scripts = [f"{delimiter} {number} {head}" for number in argv[5:]]
        return CommandAnswer(0, f"{''.join(scripts)}{delimiter} end\n", "")

    def clock(self, user: str, *, is_admin: bool = False) -> LoginClock:
        assert user, is_admin
        return LoginClock(1_800_000_000, our_clock_s())


def unresolved_row(name: str) -> SqueueRow:
    """A row of a user whom the login node could not resolve at the moment."""
    answer = CommandAnswer(0, squeue_sample("squeue-listing"), "")
    row = next(iter(listed_jobs(answer, DELIMITER).values()))
    record = replace(row.record, user="", submit_s=1_800_000_000)
    return replace(
        row,
        user="unresolved",
        name=name,
        submit_s=1_800_000_000,
        record=record,
        has_script=True,
    )


@pytest.mark.parametrize("name", [JOB, "renamed"])
@pytest.mark.parametrize(("in_script", "found"), [(JOB, True), (OTHER, False)])
def test_was_submitted__user_was_not_resolved__the_script_decides(
    name: str, in_script: JobId, *, found: bool
) -> None:
    paths = Paths(
        sbatch="sbatch",
        scancel="scancel",
        scontrol="scontrol",
        squeue="squeue",
        sacct=None,
    )
    cluster = Cluster.of(
        LoginNode(ssh=SshOfScripts(in_script), admin="slurm", paths=paths),
        SlurmSettings(partition="main", public_address="supervisor.example.com:3000"),
    )
    row = unresolved_row(name)
    search = ScriptSearch(JOB, CUSTOMER, 10.0, {})
    listed: dict[SlurmId, SqueueRow] = {row.slurm_id: row}
    assert cluster.search.was_submitted([search], listed) == {JOB: found}
