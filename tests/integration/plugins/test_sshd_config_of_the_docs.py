"""The directives for sshd in docs/security.md, read by a real sshd."""

import re
import subprocess
from pathlib import Path

import pytest

from devgrid import REPOSITORY

PAGE = (REPOSITORY / "docs" / "security.md").read_text()
(CERTIFICATES,) = re.findall(
    r"^    # sshd_config, without.*\n((?:    .*\n)+)", PAGE, re.MULTILINE
)
(KEYS,) = re.findall(
    r"^(    Match User 0x\*.*?)^Here slurmadmin", PAGE, re.MULTILINE | re.DOTALL
)
OURS = "/etc/ssh/supervisor-keys %u"
SITES = "/usr/bin/sss_ssh_authorizedkeys"
SITES_LINES = f"AuthorizedKeysCommand {SITES}\nAuthorizedKeysCommandUser daemon\n"
IN_HOME = ".ssh/authorized_keys .ssh/authorized_keys2"


def read_by_sshd(folder: Path, lines: str, user: str) -> dict[str, str]:
    """What sshd takes from these lines for a login of this user."""
    key, config = folder / "host_key", folder / "sshd_config"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True
    )
    config.write_text(f"HostKey {key}\n{lines}")
    login = f"user={user},host=client.example,addr=192.0.2.1"
    shown = subprocess.run(
        ["/usr/sbin/sshd", "-T", "-f", config, "-C", login],
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr
    return dict(line.partition(" ")[::2] for line in shown.stdout.splitlines())


def test_certificates__their_block__is_taken_with_each_directive(
    tmp_path: Path,
) -> None:
    read = read_by_sshd(tmp_path, CERTIFICATES, "alice")
    assert read["trustedusercakeys"] == "/etc/ssh/supervisor_ca.pub"
    assert read["revokedkeys"] == "/etc/ssh/revoked_keys"


@pytest.mark.parametrize(
    ("user", "command", "command_user", "keys"),
    [
        ("0x" + "a" * 40, OURS, "supervisor-keys", IN_HOME),
        ("benchmark", OURS, "supervisor-keys", IN_HOME),
        ("slurmadmin", OURS, "supervisor-keys", "/etc/ssh/supervisor_admin.pub"),
        ("alice", SITES, "daemon", IN_HOME),
    ],
)
def test_keys__behind_the_sites_own_command__are_of_the_grids_users_only(
    tmp_path: Path, user: str, command: str, command_user: str, keys: str
) -> None:
    read = read_by_sshd(tmp_path, SITES_LINES + KEYS, user)
    assert read["authorizedkeyscommand"] == command
    assert read["authorizedkeyscommanduser"] == command_user
    assert read["authorizedkeysfile"] == keys
