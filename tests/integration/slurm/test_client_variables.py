"""The site sets variables for people that SLURM's commands read as options: the
supervisor's questions and orders are the same with them, on real SLURM.
"""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from devgrid.cluster.sshd import Sshd
from devgrid.processes import wait_until
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.model import JobId, SlurmId, State
from supervisor_tasks.slurm.client_variables import (
    OF_ALL_COMMANDS,
    TO_REACH_SLURM,
    WITHOUT_OPTIONS,
)
from supervisor_tasks.slurm.cluster import Cluster, over_ssh
from supervisor_tasks.slurm.not_started import ended_on, ended_on_command
from supervisor_tasks.slurm.ssh_command import command_line
from tests.support.submission_env import (
    CUSTOMER,
    PATHS,
    PATIENCE_S,
    SubmissionEnv,
    authorized_keys_command,
    nodes_of,
)

OPTIONS = {
    "SQUEUE_FORMAT": "%i %j",
    "SQUEUE_PARTITION": "other",
    "SQUEUE_USERS": "root",
    "SQUEUE_ACCOUNT": "other",
    "SQUEUE_NAMES": "other",
    "SQUEUE_QOS": "other",
    "SQUEUE_ARRAY": "1",
    "SCANCEL_INTERACTIVE": "true",
    "SCANCEL_STATE": "SUSPENDED",
    "SCANCEL_PARTITION": "other",
    "SCONTROL_FUTURE": "1",
    "SINFO_PARTITION": "other",
    "SINFO_FORMAT": "%t",
    "SACCT_FORMAT": "JobName",
    "SLURM_TIME_FORMAT": "relative",
    "SLURM_CLUSTERS": "other",
    "SLURM_DEBUG_FLAGS": "Protocol",
}

# each of these breaks a question or an order by itself
ALONE = (
    "SQUEUE_FORMAT",
    "SQUEUE_PARTITION",
    "SCANCEL_INTERACTIVE",
    "SLURM_CLUSTERS",
)


@pytest.fixture(scope="module")
def submission_env() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running(accounting=True) as submission_env:
        yield submission_env


@pytest.fixture
def with_options(
    submission_env: SubmissionEnv, request: pytest.FixtureRequest
) -> Iterator[WorkerContext]:
    """A worker whose sessions on the login node have the variables of the case."""
    names: tuple[str, ...] = request.param
    sshd = Sshd.start(
        submission_env.processes,
        submission_env.slurm.env() | {name: OPTIONS[name] for name in names},
        authorized_keys_command(submission_env.key),
        name=f"sshd-{'-'.join(names)[:40]}",
    )
    paths = replace(PATHS, sacct="/usr/bin/sacct")
    site = submission_env.site(submission_env.cluster(sshd=sshd, paths=paths))
    yield site
    site.slurm.cluster.close()
    site.ledger.holder.close()
    submission_env.slurm.run("scancel", f"--user={CUSTOMER}")


def submitted(submission_env: SubmissionEnv, site: WorkerContext) -> JobId:
    job = submission_env.new_job(site)
    assert submission_env.carry_out(site, job).state is State.QUEUED
    return job


def id_of(site: WorkerContext, job: JobId) -> SlurmId:
    found = site.ledger.jobs([job])[job].slurm_id
    assert found is not None
    return found


def accounted(cluster: Cluster, job: JobId) -> list[SlurmId]:
    """The ids of the job's submissions in accounting."""
    found = cluster.search.sacct_submissions_of({job: CUSTOMER}, {job: 600.0})[job]
    assert isinstance(found, list)
    return [record.slurm_id for record in found]


@pytest.mark.parametrize(
    "with_options",
    [*((name,) for name in ALONE), tuple(OPTIONS)],
    ids=[*ALONE, "all"],
    indirect=True,
)
def test_options_in_the_session__each_question_and_order__is_as_without_them(
    submission_env: SubmissionEnv, with_options: WorkerContext
) -> None:
    site, cluster = with_options, over_ssh(with_options.slurm.cluster)
    job = submitted(submission_env, site)
    slurm_id = id_of(site, job)
    wait_until(
        lambda: submission_env.look(site, job).state is State.RUNNING,
        f"{job} to run",
        PATIENCE_S,
    )
    assert slurm_id in cluster.queries.list_all()
    assert slurm_id in cluster.queries.list_all(CUSTOMER)
    assert cluster.queries.known_ids([slurm_id]) == {slurm_id}
    assert list(cluster.queries.requests([slurm_id])) == [slurm_id]
    found = cluster.search.find(CUSTOMER, {job: 60.0}, lambda _: {})[job]
    assert isinstance(found, list)
    assert [record.slurm_id for record in found] == [slurm_id]
    assert len(nodes_of(cluster).hardware().nodes) == 2
    assert cluster.site.controller().booted.isdecimal()
    cluster.control.cancel(slurm_id, CUSTOMER)
    wait_until(
        lambda: submission_env.look(site, job).state is State.ENDED,
        f"{job} to end",
        PATIENCE_S,
    )
    answer = cluster.login_node.ask(ended_on_command(PATHS.squeue, [slurm_id]))
    assert list(ended_on(answer)) == [slurm_id]
    wait_until(
        lambda: accounted(cluster, job) == [slurm_id],
        "accounting to show the job",
        PATIENCE_S,
    )


# --- the shell's text -----------------------------------------------------------------

LOGIN_SHELLS = ["dash", "bash", "zsh", "fish"]
KEPT = {
    "SLURM_CONF": "/a b/slurm.conf",
    "SLURM_CONF_SERVER": "host:1",
    "SLURM_JWT": "a.b.c",
    "SLURM_SACK_SOCKET": "/run/sack",
    "SQUEUE": "no option",
    "OF_THE_SITE": "SQUEUE_ a * SLURM_$(touch ran)=1 'SINFO_X=\n\"",
}


@pytest.mark.parametrize("sh", ["dash", "bash"])
@pytest.mark.parametrize("login_shell", LOGIN_SHELLS)
@pytest.mark.parametrize("stdin", [b"", b"input\n"])
def test_without_options__each_shell__removes_options_and_nothing_else(
    login_shell: str, sh: str, stdin: bytes, tmp_path: Path
) -> None:
    link = tmp_path / "sh"
    link.symlink_to(f"/bin/{sh}")
    line = command_line(["/usr/bin/env", "-0"], len(stdin), WITHOUT_OPTIONS)
    assert line.startswith("/bin/sh ")
    done = subprocess.run(
        [login_shell, "-c", line.replace("/bin/sh", str(link), 1)],
        env={"PATH": "/usr/bin:/bin", **KEPT, **OPTIONS, "SBATCH_X": ""},
        input=stdin,
        capture_output=True,
        cwd=tmp_path,
        check=True,
    )
    shown = dict(word.split("=", 1) for word in done.stdout.decode().split("\0")[:-1])
    assert {name: shown.get(name) for name in KEPT} == KEPT
    assert not [name for name in shown if name in OPTIONS or name == "SBATCH_X"]
    assert done.stderr == b""
    assert not (tmp_path / "ran").exists()


def test_without_options__its_text__is_the_same_in_each_login_shell() -> None:
    assert not set("'!\\\n") & set(WITHOUT_OPTIONS)
    for word in (*OF_ALL_COMMANDS, *TO_REACH_SLURM):
        assert word in WITHOUT_OPTIONS
