"""A customer's start-up files run before each command that the supervisor runs as him:
they print, wait, answer falsely and read the input.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from devgrid.cluster.linux_users import SAFE_SHELL
from devgrid.cluster.sshd import Sshd
from devgrid.processes import wait_until
from grpc_callbacks.server import RESTRICTED
from supervisor_tasks.jobs.model import State
from tests.support.submission_env import (
    CUSTOMER,
    PATIENCE_S,
    SubmissionEnv,
)

# Each of them leaves a mark when a shell reads it.
START_UP_FILES = (
    ".profile",
    ".bash_profile",
    ".bash_login",
    ".bashrc",
    ".zshenv",
    ".zshrc",
    ".shrc",
    ".kshrc",
    ".ssh/rc",
)
ENVIRONMENTS = (".ssh/environment", ".pam_environment")


@pytest.fixture
def marks(submission_env: SubmissionEnv) -> Iterator[Path]:
    """The marks that the customer's start-up files leave in his home when a shell reads
    them.
    """
    home, users = submission_env.slurm.users.home(CUSTOMER), submission_env.slurm.users
    (home / ".ssh").mkdir(exist_ok=True)
    told = home / "was-read"
    told.touch()
    told.chmod(0o666)
    for name in START_UP_FILES:
        (home / name).write_text(f"echo {name} >>{told}\n")
    for name in ENVIRONMENTS:
        (home / name).write_text(
            f"BASH_ENV={home}/.bashrc\nENV={home}/.bashrc\nFORGED=yes\n"
        )
    yield told
    for name in ("was-read", *START_UP_FILES, *ENVIRONMENTS):
        (home / name).unlink()
    users.set_shell(CUSTOMER, SAFE_SHELL)


def another_sshd(
    submission_env: SubmissionEnv, name: str, *options: str, key_options: str = ""
) -> Sshd:
    return Sshd.start(
        submission_env.processes,
        submission_env.slurm.env(),
        ["sed", f"s/^/{key_options}/", str(submission_env.key.with_suffix(".pub"))],
        name=name,
        options=options,
    )


def environment_of_a_command(
    submission_env: SubmissionEnv, sshd: Sshd | None = None
) -> str:
    ssh = submission_env.cluster(sshd=sshd).login_node.ssh
    answer = ssh.run(CUSTOMER, ["/usr/bin/env"])
    ssh.close()
    return answer.stdout


def shell_called_sh(submission_env: SubmissionEnv, program: str) -> str:
    """A shell with the name sh, as on systems where /bin/sh is that program."""
    folder = submission_env.processes.folder / program
    folder.mkdir(exist_ok=True)
    link = folder / "sh"
    link.unlink(missing_ok=True)
    link.symlink_to(shutil.which(program) or program)
    return str(link)


@pytest.mark.parametrize("program", ["dash", "bash"])
def test_login_shell__default_for_accounts__reads_no_start_up_file(
    submission_env: SubmissionEnv, marks: Path, program: str
) -> None:
    """LDAP_LOGIN_SHELL's default, on a system where it is dash and on one where it is
    bash.
    """
    assert SAFE_SHELL == "/bin/sh"
    submission_env.slurm.users.set_shell(
        CUSTOMER, shell_called_sh(submission_env, program)
    )
    assert "FORGED" not in environment_of_a_command(submission_env)
    assert marks.read_text() == ""


def test_login_shell__bash__reads_the_customers_file(
    submission_env: SubmissionEnv, marks: Path
) -> None:
    """The login shell is chosen because bash reads the file. Without this, the test
    above would prove nothing.
    """
    submission_env.slurm.users.set_shell(CUSTOMER, "/bin/bash")
    environment_of_a_command(submission_env)
    assert ".bashrc" in marks.read_text()


def test_sshd__user_rc_permitted__runs_the_rc_file_unless_the_key_is_restricted(
    submission_env: SubmissionEnv, marks: Path
) -> None:
    """`PermitUserRC no` prevents this, with any login shell, and so do the options of the
    key that the supervisor serves.
    """
    permitting = "PermitUserRC yes"
    restricted = another_sshd(
        submission_env, "restricted", permitting, key_options=RESTRICTED
    )
    environment_of_a_command(submission_env, restricted)
    assert marks.read_text() == ""
    environment_of_a_command(
        submission_env, another_sshd(submission_env, "usual", permitting)
    )
    assert marks.read_text() == ".ssh/rc\n"


def test_submission__customer_has_start_up_files__runs_none_of_them(
    submission_env: SubmissionEnv, marks: Path
) -> None:
    site = submission_env.site(submission_env.cluster())
    job = submission_env.new_job(site)
    assert submission_env.carry_out(site, job).state is State.QUEUED
    assert marks.read_text() == ""
    site.slurm.cluster.close()
    site.ledger.holder.close()


def test_environment_file__of_the_site__is_what_jobs_inherit(
    submission_env: SubmissionEnv, marks: Path
) -> None:
    file = submission_env.processes.folder / "modules.sh"
    file.write_text("export OF_THE_SITE='module paths' SBATCH_GPUS=2\n")
    site = submission_env.site(
        submission_env.cluster_of_settings(SLURM_ENVIRONMENT_FILE=str(file))
    )
    job = submission_env.new_job(site, "#!/bin/bash\n/usr/bin/env\nsleep 600\n")
    slurm_id = submission_env.carry_out(site, job).slurm_id
    log = submission_env.slurm.users.home(CUSTOMER) / f"{job}.log"
    wait_until(
        lambda: log.exists() and "OF_THE_SITE=module paths" in log.read_text(),
        "the job's log",
        PATIENCE_S,
    )
    assert slurm_id is not None
    assert "gpu" not in submission_env.field(slurm_id, "tres-alloc")
    assert marks.read_text() == ""
    site.slurm.cluster.close()
    site.ledger.holder.close()
