"""Commands on a login node that is full, noisy, silent or hostile."""

import gc
import hashlib
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import paramiko
import psutil
import pytest

from devgrid.process import wait_until
from devgrid.proxy import Fault, Proxy
from devgrid.sshd import Sshd
from supervisor_tasks.slurm import ssh as module
from supervisor_tasks.slurm.output import Answer
from supervisor_tasks.slurm.ssh import SshCutError, SshUnavailableError
from tests.submitting import CUSTOMER, PATIENCE_S, Login

THREADS = 16
CONNECTIONS = 5
QUICK = 200  # commands
SOME_INPUT = bytes(range(256)) * 400


@pytest.fixture(scope="module")
def login() -> Iterator[Login]:
    with Login.running() as login:
        yield login


def test_sessions_all_taken__is_refused_for_now__and_the_one_that_runs_goes_on(login: Login) -> None:
    ssh = login.ssh(login.another_sshd("one-session", "MaxSessions 1"))
    begun = login.home / "begun"
    answers: list[str] = []
    argv = ["/bin/sh", "-c", f"touch {begun}; while test -e {begun}; do sleep 0.05; done; echo went on"]
    first = threading.Thread(target=lambda: answers.append(ssh.run(CUSTOMER, argv).stdout))
    first.start()
    wait_until(begun.exists, "the first to run", PATIENCE_S)
    with pytest.raises(SshUnavailableError, match="no more sessions"):
        ssh.run(CUSTOMER, ["true"])
    begun.unlink()
    first.join(PATIENCE_S)
    assert answers == ["went on\n"]

    def runs_again() -> bool:
        try:
            return ssh.run(CUSTOMER, ["true"]).status == 0
        except SshUnavailableError:
            return False  # sshd has not put the first one away yet

    wait_until(runs_again, "the session to be free", PATIENCE_S)
    ssh.close()


def test_silent_login_node__is_left_after_a_while__and_a_new_connection_is_tried(login: Login) -> None:
    with Proxy.start(login.sshd.address) as proxy:
        login.sshd.also_at(proxy.address)
        ssh = login.ssh(login.sshd, proxy.address)
        assert ssh.run(CUSTOMER, ["echo", "here"]).stdout == "here\n"
        proxy.fault(Fault.HANG)
        with pytest.raises(SshUnavailableError):
            ssh.run(CUSTOMER, ["true"])  # the channel is not opened
        with pytest.raises(SshUnavailableError):
            ssh.run(CUSTOMER, ["true"])  # the banner of a new connection does not come
        proxy.fault(None)
        assert ssh.run(CUSTOMER, ["true"]).status == 0
        assert proxy.connections >= 3
        ssh.close()


@pytest.mark.parametrize("where", ["", " >&2"])
def test_output_without_end__is_not_kept(login: Login, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_OUTPUT", 2**20)
    ssh = login.ssh(login.sshd)
    with pytest.raises(SshCutError):
        ssh.run(CUSTOMER, ["/bin/sh", "-c", f"yes{where}"], timeout_s=3.0)
    assert ssh.run(CUSTOMER, ["echo", "here"]).stdout == "here\n"
    ssh.close()


def test_connection_in_use__is_not_closed_to_make_room(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CONNECTIONS", 1)
    ssh = login.ssh(login.sshd)
    begun = login.home / "begun"
    answers: list[int] = []
    argv = ["/bin/sh", "-c", f"touch {begun}; while test -e {begun}; do sleep 0.05; done"]
    first = threading.Thread(target=lambda: answers.append(ssh.run(CUSTOMER, argv).status))
    first.start()
    wait_until(begun.exists, "the first to run", PATIENCE_S)
    assert ssh.run("root", ["true"]).status == 0  # another user's, which is one too many
    begun.unlink()
    first.join(PATIENCE_S)
    assert answers == [0]
    ssh.close()


def test_another_host_key__is_refused(login: Login) -> None:
    other = login.another_sshd("another-key")
    known = Sshd(other.address, login.sshd.known_hosts)
    with pytest.raises(SshUnavailableError, match="not found in known_hosts"):
        login.ssh(known).run(CUSTOMER, ["true"])


def test_login_that_is_refused__leaves_no_connection_open(login: Login) -> None:
    """sshd counts those that do not get in (MaxStartups)."""
    ssh, port = login.ssh(login.sshd), int(login.sshd.address.rpartition(":")[2])
    gc.disable()  # which would close them, some time
    try:
        for _ in range(3):
            with pytest.raises(SshUnavailableError, match="cannot log in"):
                ssh.run("nobody-here", ["true"])

        def all_closed() -> bool:
            return all(each.raddr.port != port for each in psutil.Process().net_connections() if each.raddr)

        wait_until(all_closed, "the connections to be closed", PATIENCE_S)
    finally:
        gc.enable()
        ssh.close()


def test_words__reach_the_command_as_they_are(login: Login) -> None:
    words = ["a b", "$(id)", "`id`", "'", '"', "\\", "*", "~", "é\n", ""]
    ssh = login.ssh(login.sshd)
    assert ssh.run(CUSTOMER, ["printf", "%s|", *words]).stdout == "|".join(words) + "|"
    ssh.close()


def test_login_node_that_stands_still_before_it_runs_the_command__is_left_in_time(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh, run = login.ssh(login.sshd), module._run
    sshd = login.processes.find("sshd")

    def frozen(channel: paramiko.Channel, command: str, stdin: bytes, timeout_s: float) -> Answer:
        login.processes.signal_tree(sshd, signal.SIGSTOP)  # the channel is open; nobody answers to exec
        return run(channel, command, stdin, timeout_s)

    monkeypatch.setattr(module, "_run", frozen)
    ends: list[BaseException] = []

    def call() -> None:
        try:
            ssh.run(CUSTOMER, ["true"], timeout_s=1.0)
        except SshCutError as error:
            ends.append(error)

    caller = threading.Thread(target=call, daemon=True)
    try:
        caller.start()
        caller.join(20.0)
        assert len(ends) == 1
    finally:
        login.processes.signal_tree(sshd, signal.SIGCONT)
    monkeypatch.undo()
    assert ssh.run(CUSTOMER, ["echo", "here"]).stdout == "here\n"
    ssh.close()


@pytest.mark.parametrize(
    ("argv", "stdin"),
    [pytest.param(["true"], b"", id="without-input"), pytest.param(["head", "-c", "1"], SOME_INPUT, id="input-left")],
)
def test_many_that_end_at_once__none_ends_the_connection_of_the_others(
    login: Login, argv: list[str], stdin: bytes
) -> None:
    for _ in range(CONNECTIONS):
        ssh = login.ssh(login.sshd)
        with ThreadPoolExecutor(THREADS) as callers:
            answers = list(callers.map(ssh.run, [CUSTOMER] * QUICK, [argv] * QUICK, [stdin] * QUICK))
        assert {answer.status for answer in answers} == {0}
        ssh.close()


def test_input__comes_whole_and_ends__and_the_status_is_the_commands_own(login: Login) -> None:
    ssh = login.ssh(login.sshd)
    answer = ssh.run(CUSTOMER, ["/bin/sh", "-c", "sha256sum; exit 3"], SOME_INPUT)
    assert answer == Answer(3, f"{hashlib.sha256(SOME_INPUT).hexdigest()}  -\n", "")
    assert ssh.run(CUSTOMER, ["cat"]).stdout == ""
    ssh.close()
