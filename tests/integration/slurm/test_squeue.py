"""An empty list of squeue beside texts on standard error, on real SLURM: start-up files
and remarks on slurm.conf do not make it a failure, and a squeue that could not ask does.
"""

from collections.abc import Iterator

import pytest

from devgrid.cluster.sshd import Sshd
from supervisor_tasks.slurm.cluster import Cluster
from supervisor_tasks.slurm.parsers import SlurmUnavailableError
from tests.support.submission_env import SubmissionEnv, authorized_keys_command

WARNS = (
    'ForceCommand echo "bash: warning: setlocale: LC_ALL: cannot change locale" >&2;'
    ' exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"'
)


@pytest.fixture(scope="module")
def submission_env() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running() as submission_env:
        yield submission_env


@pytest.fixture(scope="module", params=["start-up file", "slurm.conf"])
def with_remarks(
    submission_env: SubmissionEnv, request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    """A cluster whose login node prints a remark at each squeue."""
    environment, options = submission_env.slurm.env(), [WARNS]
    if request.param == "slurm.conf":
        own = submission_env.slurm.layout.folder / "slurm.conf"
        old = own.with_name("old-slurm.conf")
        old.write_text(f"{own.read_text()}\nSchedulerAuth=x\n")
        environment, options = environment | {"SLURM_CONF": str(old)}, []
    sshd = Sshd.start(
        submission_env.processes,
        environment,
        authorized_keys_command(submission_env.key),
        name=f"sshd-{request.param.replace(' ', '-')}",
        options=options,
    )
    cluster = submission_env.cluster(sshd=sshd)
    yield cluster
    cluster.close()


def test_list_all__customer_without_jobs_and_a_remark__is_empty(
    submission_env: SubmissionEnv, with_remarks: Cluster
) -> None:
    customer = submission_env.new_customer()
    assert with_remarks.queries.list_all(customer) == {}


def test_list_all__squeue_could_not_ask__is_an_error_despite_a_remark(
    submission_env: SubmissionEnv, with_remarks: Cluster
) -> None:
    with pytest.raises(SlurmUnavailableError, match="Invalid user"):
        with_remarks.queries.list_all("no-such-user")
    submission_env.processes.stop(submission_env.processes.find("slurmctld"))
    try:
        with pytest.raises(SlurmUnavailableError, match="contact slurm controller"):
            with_remarks.queries.list_all()
    finally:
        submission_env.slurm.start_controller()
