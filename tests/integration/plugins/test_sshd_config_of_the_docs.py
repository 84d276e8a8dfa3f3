"""The directives for sshd in docs/security.md, read by a real sshd."""

import re
import subprocess
from pathlib import Path

import pytest

from devgrid import REPOSITORY

PAGE = (REPOSITORY / "docs" / "security.md").read_text()
BLOCKS = re.findall(
    r"^    # sshd_config.*\n((?:    .*\n|\n(?=    ))+)", PAGE, re.MULTILINE
)
# As `sshd -T` shows them, by a word of the block; what stands behind Match is for one
# user.
TAKEN = {
    "AuthorizedKeysCommand ": {
        "authorizedkeyscommand /etc/ssh/supervisor-keys %u",
        "authorizedkeyscommanduser supervisor-keys",
    },
    "TrustedUserCAKeys ": {
        "trustedusercakeys /etc/ssh/supervisor_ca.pub",
        "revokedkeys /etc/ssh/revoked_keys",
    },
}


@pytest.mark.parametrize("word", TAKEN)
def test_block__in_sshd_config__is_taken_with_each_directive_of_its_own(
    word: str, tmp_path: Path
) -> None:
    (block,) = [block for block in BLOCKS if word in block]
    key = tmp_path / "host_key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True
    )
    config = tmp_path / "sshd_config"
    config.write_text(f"HostKey {key}\n{block}")
    shown = subprocess.run(
        ["/usr/sbin/sshd", "-T", "-f", config], capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stderr
    assert set(shown.stdout.splitlines()) >= TAKEN[word]
