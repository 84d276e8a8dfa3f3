"""The probes of a customer's login, on a real sshd."""

import base64

from devgrid.cluster.linux_users import admin
from devgrid.cluster.sshd import Sshd
from devgrid.machine import deadline
from supervisor_tasks.doctor.check_results import Finding, Level
from supervisor_tasks.doctor.probe_context import ProbeContext, readable_settings
from supervisor_tasks.doctor.probe_runner import deadline_s, examine
from supervisor_tasks.doctor.slurm_probes import CUSTOMER as MEND
from supervisor_tasks.doctor.slurm_probes import FLEET
from tests.support.submission_env import CUSTOMER, Login

NO_LOGIN = (
    f'ForceCommand if [ "$USER" = {CUSTOMER} ]; then exec /usr/sbin/nologin; fi;'
    ' exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"'
)


def found(login: Login, sshd: Sshd) -> list[Finding]:
    """Return what the probes of customers' logins find."""
    settings, lines = readable_settings(
        {
            "SLURM_SSH_ADDRESS": sshd.address,
            "SLURM_SSH_KNOWN_HOSTS": str(sshd.known_hosts),
            "SLURM_SSH_PRIVATE_KEY": base64.b64encode(login.key.read_bytes()).decode(),
            "SLURM_SSH_ADMIN_USER": admin(),
            "SLURM_SUBMIT_KEY": "1" * 64,
        }
    )
    assert not lines
    shared = ProbeContext(settings, deadline_s(deadline(20.0)), CUSTOMER)
    try:
        return examine(FLEET, shared, shared.until_s)
    finally:
        shared.close()


def test_customer_login__account_runs_commands__is_green(login: Login) -> None:
    first, _ = found(login, login.sshd)
    assert (first.level, first.found) == (Level.GREEN, f"{CUSTOMER} may log in")


def test_customer_login__account_refuses_commands__is_red_and_the_rest_not_tried(
    login: Login,
) -> None:
    first, second = found(login, login.another_sshd("no-login", NO_LOGIN))
    assert first.level is Level.RED
    assert first.found == (
        f"{CUSTOMER} runs no command: status 1 This account is currently not available."
    )
    assert first.mend == MEND
    assert (second.name, second.level) == ("job_submit.lua", Level.SKIPPED)
    assert second.found == "the customer's login does not answer"
