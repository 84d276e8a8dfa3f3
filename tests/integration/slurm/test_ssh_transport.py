"""An SSH connection that ends at a bad moment."""

import socket
from typing import Any

import paramiko
import pytest

from devgrid.processes import wait_until
from supervisor_tasks.slurm.ssh import SshUnavailableError
from tests.support.submission_env import CUSTOMER, PATIENCE_S, Login

LONG_S = 60.0


def test_run__connection_ends_while_a_channel_opens__is_refused_at_once(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in the transport's thread, too, fails the test."""
    ssh = login.ssh(login.sshd, connect_timeout_s=LONG_S)
    assert ssh.run(CUSTOMER, ["true"]).status == 0
    link: Any = vars(paramiko.Channel)["_set_transport"]

    def end_first(channel: paramiko.Channel, transport: paramiko.Transport) -> None:
        transport.sock.shutdown(socket.SHUT_RDWR)
        wait_until(
            lambda: not (transport.is_active() and transport.is_alive()),
            "the transport's thread to end, or to wait for the lock",
            PATIENCE_S,
        )
        link(channel, transport)

    with monkeypatch.context() as patched:
        patched.setattr(paramiko.Channel, "_set_transport", end_first)
        with pytest.raises(SshUnavailableError):
            ssh.run(CUSTOMER, ["true"], timeout_s=LONG_S)
    assert ssh.run(CUSTOMER, ["true"]).status == 0
    ssh.close()
