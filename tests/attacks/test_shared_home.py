"""A customer leaves a start-up file in a folder where the supervisor's next session as
another customer reads it.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from devgrid.processes import wait_until
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.execution.effect_failures import update_effect_alarms
from supervisor_tasks.jobs.model import Address, State
from supervisor_tasks.slurm.cluster import Cluster
from supervisor_tasks.slurm.homes import Homes, UnsafeHomeError
from tests.support.submission_env import PATIENCE_S, SubmissionEnv

ATTACKER = Address("0x" + "a" * 40)
VICTIM = Address("0x" + "b" * 40)
ALLOWED = "ALLOW_SHARED_HOMES_WHERE_CUSTOMERS_CAN_RUN_CODE_AS_EACH_OTHER"


@pytest.fixture(scope="module")
def submission_env() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running() as submission_env:
        for name in (ATTACKER, VICTIM):
            submission_env.slurm.users.add(name, "/bin/bash")
        yield submission_env


@pytest.fixture
def shared_home(submission_env: SubmissionEnv) -> Iterator[Path]:
    """The home of both customers, with the mode of /dev/shm: both may write there."""
    users, folder = (
        submission_env.slurm.users,
        submission_env.processes.folder / "shared",
    )
    folder.mkdir(exist_ok=True)
    folder.chmod(0o1777)
    for name in (ATTACKER, VICTIM):
        users.set_home(name, folder)
    yield folder
    for name in (ATTACKER, VICTIM):
        users.set_home(name, users.home(name))


@pytest.fixture
def run_as(submission_env: SubmissionEnv, shared_home: Path) -> Path:
    """The file into which the attacker's start-up file writes the user that it runs
    as.
    """
    uid, told = submission_env.slurm.users.add(ATTACKER), shared_home / "run-as"
    told.touch()
    told.chmod(0o666)
    start_up = shared_home / ".bashrc"
    start_up.write_text(f"id -u >>{told}\n")
    os.chown(start_up, uid, uid)
    return told


@pytest.fixture
def site(submission_env: SubmissionEnv) -> Iterator[WorkerContext]:
    yield from closing(submission_env.site(submission_env.cluster()))


@pytest.fixture
def insisting_worker(submission_env: SubmissionEnv) -> Iterator[WorkerContext]:
    """A worker of a site that allows shared homes, by its setting."""
    yield from closing(
        submission_env.site(submission_env.cluster_of_settings(**{ALLOWED: "true"}))
    )


def closing(site: WorkerContext) -> Iterator[WorkerContext]:
    yield site
    site.slurm.cluster.close()
    site.ledger.holder.close()


def test_home__of_two_customers__gets_no_session_and_the_operator_is_called(
    submission_env: SubmissionEnv, site: WorkerContext, shared_home: Path, run_as: Path
) -> None:
    job = submission_env.new_job(site, customer=VICTIM)
    assert submission_env.carry_out(site, job).state is State.READY
    assert run_as.read_text() == ""
    assert "SubmitStarted" not in submission_env.journal(job)
    update_effect_alarms(site.ledger)
    (alarm,) = [
        one for one in site.ledger.alarms.all() if one.name == AlarmName.HOME_UNSAFE
    ]
    (said,) = alarm.details["errors"]
    assert VICTIM in said
    assert str(shared_home) in said
    submission_env.slurm.users.set_home(VICTIM, submission_env.slurm.users.home(VICTIM))
    wait_until(
        lambda: submission_env.carry_out(site, job).state is State.QUEUED,
        "the job to be submitted",
        PATIENCE_S,
    )
    update_effect_alarms(site.ledger)
    assert AlarmName.HOME_UNSAFE not in {one.name for one in site.ledger.alarms.all()}


def test_home__shared_at_a_site_that_allows_it__gets_submissions(
    submission_env: SubmissionEnv, insisting_worker: WorkerContext, run_as: Path
) -> None:
    job = submission_env.new_job(insisting_worker, customer=VICTIM)
    assert submission_env.carry_out(insisting_worker, job).state is State.QUEUED
    assert run_as.read_text()


# --- which homes are refused ----------------------------------------------------------


@pytest.fixture
def cluster(submission_env: SubmissionEnv) -> Iterator[Cluster]:
    cluster = submission_env.cluster(homes=Homes(safe_for_s=0.0, unsafe_for_s=0.0))
    yield cluster
    cluster.login_node.ssh.close()


@pytest.fixture
def home(submission_env: SubmissionEnv) -> Iterator[Path]:
    """A home of the victim's own, which a test may make unsafe."""
    users = submission_env.slurm.users
    uid, folder = users.add(VICTIM), submission_env.processes.folder / "homes" / VICTIM
    folder.mkdir(parents=True)
    os.chown(folder, uid, uid)
    users.set_home(VICTIM, folder)
    yield folder
    users.set_home(VICTIM, users.home(VICTIM))
    folder.parent.rename(
        submission_env.processes.folder
        / f"homes-{folder.stat(follow_symlinks=False).st_ino}"
    )


def refused(cluster: Cluster, *words: str) -> None:
    with pytest.raises(UnsafeHomeError) as error:
        cluster.homes.require_own(VICTIM)
    for word in (VICTIM, *words):
        assert word in str(error.value)


def test_home__of_the_customer_alone__is_accepted(cluster: Cluster, home: Path) -> None:
    cluster.homes.require_own(VICTIM)
    home.chmod(0o2750)
    cluster.homes.require_own(VICTIM)


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o1777, 0o770, 0o2775])
def test_home__that_others_can_write_to__is_refused(
    cluster: Cluster, home: Path, mode: int
) -> None:
    home.chmod(mode)
    refused(cluster, str(home), "chmod go-w")


def test_home__of_another_user__is_refused(
    submission_env: SubmissionEnv, cluster: Cluster, home: Path
) -> None:
    uid = submission_env.slurm.users.add(ATTACKER)
    os.chown(home, uid, uid)
    refused(cluster, str(home), "belongs to", ATTACKER)


@pytest.mark.parametrize("spoiled", ["for all to write to", "of another user"])
def test_home_of_his_own__that_others_can_change__gets_no_submission_and_an_alarm(
    submission_env: SubmissionEnv, site: WorkerContext, home: Path, spoiled: str
) -> None:
    if spoiled == "of another user":
        uid = submission_env.slurm.users.add(ATTACKER)
        os.chown(home, uid, uid)
    else:
        home.chmod(0o757)
    job = submission_env.new_job(site, customer=VICTIM)
    assert submission_env.carry_out(site, job).state is State.READY
    assert "SubmitStarted" not in submission_env.journal(job)
    update_effect_alarms(site.ledger)
    (alarm,) = [
        one for one in site.ledger.alarms.all() if one.name == AlarmName.HOME_UNSAFE
    ]
    assert str(home) in str(alarm.details["errors"])


def test_home__in_a_folder_where_others_can_exchange_it__is_refused(
    cluster: Cluster, home: Path
) -> None:
    home.parent.chmod(0o777)
    refused(cluster, str(home.parent))
    home.parent.chmod(0o1777)  # only who owns an entry can rename it
    cluster.homes.require_own(VICTIM)


def test_home__in_a_folder_of_another_customer__is_refused(
    submission_env: SubmissionEnv, cluster: Cluster, home: Path
) -> None:
    os.chown(home.parent, submission_env.slurm.users.add(ATTACKER), 0)
    refused(cluster, str(home.parent), ATTACKER)


def test_home__behind_a_link_of_another_customer__is_refused(
    submission_env: SubmissionEnv, cluster: Cluster, home: Path
) -> None:
    link = home.parent / "link"
    link.symlink_to(home)
    submission_env.slurm.users.set_home(VICTIM, link)
    cluster.homes.require_own(VICTIM)
    os.chown(link, submission_env.slurm.users.add(ATTACKER), 0, follow_symlinks=False)
    refused(cluster, str(link), ATTACKER)


def test_home__that_is_a_file__is_refused(
    submission_env: SubmissionEnv, cluster: Cluster, home: Path
) -> None:
    file = home / "file"
    file.touch()
    submission_env.slurm.users.set_home(VICTIM, file)
    refused(cluster, str(file), "is no folder")


def test_home__that_does_not_exist__is_refused_until_it_is_made(
    submission_env: SubmissionEnv, cluster: Cluster, home: Path
) -> None:
    uid, missing = submission_env.slurm.users.add(VICTIM), home.parent / "to-be-made"
    submission_env.slurm.users.set_home(VICTIM, missing)
    refused(cluster, str(missing), "does not exist", "pam_mkhomedir")
    missing.mkdir()
    refused(cluster, str(missing), "belongs to")
    os.chown(missing, uid, uid)
    cluster.homes.require_own(VICTIM)


def test_home__missing_where_others_can_make_it__is_refused(
    submission_env: SubmissionEnv, cluster: Cluster, shared_home: Path
) -> None:
    missing = shared_home / "to-be-made" / "home"
    submission_env.slurm.users.set_home(VICTIM, missing)
    refused(cluster, str(missing), f"others can make it, as {shared_home} has")


def test_accounts__two_with_one_uid__are_refused(
    submission_env: SubmissionEnv, cluster: Cluster
) -> None:
    twin = Address("0x" + "c" * 40)
    users = submission_env.slurm.users
    uid = users.add(VICTIM)
    users.add(twin)
    users.set_uid(twin, uid)
    with pytest.raises(UnsafeHomeError, match=f"{twin}.*{VICTIM}"):
        cluster.homes.require_own(twin)


def test_start_up_file__answers_for_its_owner__is_not_asked(
    submission_env: SubmissionEnv, cluster: Cluster, home: Path
) -> None:
    """The check runs in a session of the admin."""
    (home / ".bashrc").write_text("echo all is well; exit 0\n")
    home.chmod(0o777)
    refused(cluster, "chmod go-w")
