"""Commands on a login node that is full, noisy, silent or hostile."""

import gc
import hashlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import paramiko
import psutil
import pytest

from devgrid.cluster.sshd import Sshd
from devgrid.faults.network_proxy import Fault, Proxy
from devgrid.machine import deadline
from devgrid.processes import wait_until
from supervisor_tasks.slurm import login_backoff, ssh_command
from supervisor_tasks.slurm import ssh as module
from supervisor_tasks.slurm.login_backoff import FIRST_S
from supervisor_tasks.slurm.parsers import CommandAnswer
from supervisor_tasks.slurm.ssh import (
    Ssh,
    SshBusyError,
    SshCutError,
    SshUnavailableError,
    our_clock_s,
)
from tests.support.submission_env import CUSTOMER, PATIENCE_S, Login

pytestmark = pytest.mark.slow  # logins that hang and time out

THREADS = 16
TRIES = 5
CONNECTIONS = 5
QUICK = 200  # commands
SOME_INPUT = bytes(range(256)) * 400


def test_sessions_all_taken__is_refused_for_now__and_the_one_that_runs_goes_on(
    login: Login,
) -> None:
    ssh = login.ssh(login.another_sshd("one-session", "MaxSessions 1"))
    begun = login.home / "begun"
    answers: list[str] = []
    argv = [
        "/bin/sh",
        "-c",
        f"touch {begun}; while test -e {begun}; do sleep 0.05; done; echo went on",
    ]
    first = threading.Thread(
        target=lambda: answers.append(ssh.run(CUSTOMER, argv).stdout)
    )
    first.start()
    wait_until(begun.exists, "the first to run", PATIENCE_S)
    with pytest.raises(SshUnavailableError, match="no more sessions"):
        ssh.run(CUSTOMER, ["true"])
    begun.unlink()
    first.join(deadline(PATIENCE_S))
    assert answers == ["went on\n"]

    def runs_again() -> bool:
        try:
            return ssh.run(CUSTOMER, ["true"]).status == 0
        except SshUnavailableError:
            return False  # sshd has not put the first one away yet

    wait_until(runs_again, "the session to be free", PATIENCE_S)
    ssh.close()


def test_silent_login_node__is_left_after_a_while__and_a_new_connection_is_tried(
    login: Login,
) -> None:
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
def test_run__output_without_end__is_cut_off(login: Login, where: str) -> None:
    ssh = login.ssh(login.sshd)
    argv = ["/bin/sh", "-c", f"yes{where}"]
    with pytest.raises(SshCutError):
        ssh.run(CUSTOMER, argv, timeout_s=3.0, max_output=2**20)
    assert ssh.run(CUSTOMER, ["echo", "here"]).stdout == "here\n"
    ssh.close()


@pytest.mark.parametrize("question", ["clock", "ask"])
def test_answer__start_up_file_prints_more_than_the_limit__counts_as_none(
    login: Login, question: str
) -> None:
    """The worker would keep 64 MB of each customer's session, and more as text."""
    start_up = login.home / ".bashrc"
    start_up.write_text("head -c 2000000 /dev/zero\n")
    login.users.set_shell(CUSTOMER, "/bin/bash")
    ssh = login.ssh(login.sshd)
    questions: dict[str, Callable[[], object]] = {
        "clock": lambda: ssh.clock(CUSTOMER),
        "ask": lambda: ssh.ask(CUSTOMER, ["true"]),
    }
    try:
        with pytest.raises(SshUnavailableError, match="printed more than 1048576"):
            questions[question]()
    finally:
        login.users.set_shell(CUSTOMER, "/bin/sh")
        start_up.unlink()
        ssh.close()


def test_connection__in_use__is_not_closed_to_make_room(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 1)
    ssh = login.ssh(login.sshd)
    begun = login.home / "begun"
    answers: list[int] = []
    argv = [
        "/bin/sh",
        "-c",
        f"touch {begun}; while test -e {begun}; do sleep 0.05; done",
    ]
    first = threading.Thread(
        target=lambda: answers.append(ssh.run(CUSTOMER, argv).status)
    )
    first.start()
    wait_until(begun.exists, "the first to run", PATIENCE_S)
    # another user's, which is one too many
    assert ssh.run("root", ["true"]).status == 0
    begun.unlink()
    first.join(deadline(PATIENCE_S))
    assert answers == [0]
    ssh.close()


def test_host_key__not_in_known_hosts__is_refused(login: Login) -> None:
    other = login.another_sshd("another-key")
    known = Sshd(other.address, login.sshd.known_hosts)
    with pytest.raises(SshUnavailableError, match="not found in known_hosts"):
        login.ssh(known).run(CUSTOMER, ["true"])


def test_login__refused__leaves_no_connection_open(login: Login) -> None:
    """sshd counts those that do not get in (MaxStartups)."""
    ssh, port = login.ssh(login.sshd), int(login.sshd.address.rpartition(":")[2])
    gc.disable()  # which would close them, some time
    try:
        for _ in range(3):
            with pytest.raises(SshUnavailableError, match="cannot log in"):
                ssh.run("no-such-user", ["true"])

        def all_closed() -> bool:
            return all(
                each.raddr.port != port
                for each in psutil.Process().net_connections()
                if each.raddr
            )

        wait_until(all_closed, "the connections to be closed", PATIENCE_S)
    finally:
        gc.enable()
        ssh.close()


def test_run__words_with_special_characters__reach_the_command_as_they_are(
    login: Login,
) -> None:
    words = ["a b", "$(id)", "`id`", "'", '"', "\\", "*", "~", "é\n", ""]
    ssh = login.ssh(login.sshd)
    assert ssh.run(CUSTOMER, ["printf", "%s|", *words]).stdout == "|".join(words) + "|"
    ssh.close()


def test_login_node__stands_still_before_it_runs_the_command__is_left_in_time(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh, run = login.ssh(login.sshd), ssh_command.run_command
    sshd = login.processes.find("sshd")

    def frozen(
        channel: paramiko.Channel,
        command: str,
        stdin: bytes,
        timeout_s: float,
        listener: ssh_command.OutputListener,
    ) -> int:
        # the channel is open; exec gets no answer
        login.processes.signal_tree(sshd, signal.SIGSTOP)
        return run(channel, command, stdin, timeout_s, listener)

    monkeypatch.setattr(module, "run_command", frozen)
    ends: list[BaseException] = []

    def call() -> None:
        try:
            ssh.run(CUSTOMER, ["true"], timeout_s=1.0)
        except SshCutError as error:
            ends.append(error)

    caller = threading.Thread(target=call, daemon=True)
    try:
        caller.start()
        caller.join(deadline(20.0))
        assert len(ends) == 1
    finally:
        login.processes.signal_tree(sshd, signal.SIGCONT)
    monkeypatch.undo()
    assert ssh.run(CUSTOMER, ["echo", "here"]).stdout == "here\n"
    ssh.close()


@pytest.mark.parametrize(
    ("argv", "stdin"),
    [
        pytest.param(["true"], b"", id="without-input"),
        pytest.param(["head", "-c", "1"], SOME_INPUT, id="input-left"),
    ],
)
def test_run__many_end_at_once__none_ends_the_connection_of_the_others(
    login: Login, argv: list[str], stdin: bytes
) -> None:
    for _ in range(CONNECTIONS):
        ssh = login.ssh(login.sshd, connect_timeout_s=15.0)  # for a turn, too
        with ThreadPoolExecutor(THREADS) as callers:
            answers = list(
                callers.map(
                    ssh.run, [CUSTOMER] * QUICK, [argv] * QUICK, [stdin] * QUICK
                )
            )
        assert {answer.status for answer in answers} == {0}
        ssh.close()


def test_input__comes_whole_and_ends__and_the_status_is_the_commands_own(
    login: Login,
) -> None:
    ssh = login.ssh(login.sshd)
    answer = ssh.run(CUSTOMER, ["/bin/sh", "-c", "sha256sum; exit 3"], SOME_INPUT)
    assert answer == CommandAnswer(
        3, f"{hashlib.sha256(SOME_INPUT).hexdigest()}  -\n", ""
    )
    assert ssh.run(CUSTOMER, ["cat"]).stdout == ""
    ssh.close()


# --- a login that hangs ---------------------------------------------------------------

OTHER = "0x" + "6" * 40


@pytest.fixture
def hanging(login: Login) -> Iterator[Path]:
    """The customer's start-up file waits as long as this file is there."""
    hangs, start_up = login.home / "hangs", login.home / ".bashrc"
    hangs.touch()
    start_up.write_text('while test -e "$HOME/hangs"; do sleep 0.05; done\n')
    login.users.add(OTHER)
    login.users.set_shell(CUSTOMER, "/bin/bash")
    yield hangs
    hangs.unlink(missing_ok=True)
    start_up.unlink()
    login.users.set_shell(CUSTOMER, "/bin/sh")


def test_login_hangs__one_thread_waits_for_it__then_no_thread_for_a_while(
    login: Login, hanging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # meanwhile another login is begun and answers
    monkeypatch.setattr(module, "CLOCK_TIMEOUT_S", deadline(6.0))
    monkeypatch.setattr(module, "QUICK_S", 0.5)
    ssh, ends = login.ssh(login.sshd), Queue[str]()

    def ask() -> None:
        try:
            ssh.clock(CUSTOMER)
        except SshUnavailableError as error:
            ends.put(str(error))

    with ThreadPoolExecutor(THREADS) as callers:
        for _ in range(THREADS):
            callers.submit(ask)
        said = [ends.get(timeout=deadline(PATIENCE_S)) for _ in range(THREADS - 1)]
        assert {"has not answered another thread yet" in each for each in said} == {
            True
        }
        while ends.empty():  # the one that waits
            assert ssh.run(OTHER, ["echo", "here"]).stdout == "here\n"
    assert "cut off" in ends.get()
    with pytest.raises(SshUnavailableError, match="hung while others answered"):
        ssh.clock(CUSTOMER)
    with pytest.raises(SshUnavailableError, match="hung while others answered"):
        ssh.ask(CUSTOMER, ["true"])
    hanging.unlink()
    later_s = our_clock_s() + FIRST_S
    monkeypatch.setattr(module, "our_clock_s", lambda: later_s)
    assert ssh.ask(CUSTOMER, ["echo", "here"]).stdout == "here\n"
    assert abs(ssh.clock(CUSTOMER).login_s - time.time()) < 30
    ssh.close()


def test_login_node__answers_no_user__all_users_are_retried_at_once(
    login: Login, hanging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOCK_TIMEOUT_S", 2.0)
    monkeypatch.setattr(module, "HUNG_S", 1.0)
    ssh = login.ssh(login.sshd)
    with pytest.raises(SshUnavailableError, match="cut off"):
        ssh.clock(CUSTOMER)
    hanging.unlink()
    monkeypatch.setattr(module, "CLOCK_TIMEOUT_S", PATIENCE_S)
    assert abs(ssh.clock(CUSTOMER).login_s - time.time()) < 30
    ssh.close()


def test_login_hangs__on_an_old_connection_or_at_the_site__is_retried_at_once(
    login: Login, hanging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others answer all the time."""
    hanging.unlink()
    ssh, done = login.ssh(login.sshd), threading.Event()
    monkeypatch.setattr(module, "HUNG_S", 1.0)
    monkeypatch.setattr(module, "CLOCK_TRUSTED_S", 0.0)
    ssh.clock(CUSTOMER)

    def others() -> None:
        while not done.is_set():
            ssh.run(OTHER, ["true"])

    with ThreadPoolExecutor(1) as pool:
        answering = pool.submit(others)
        try:
            hanging.touch()
            monkeypatch.setattr(module, "CLOCK_TIMEOUT_S", deadline(4.0))
            with pytest.raises(SshUnavailableError, match="cut off"):
                ssh.clock(CUSTOMER)  # on the connection that was there
            with pytest.raises(SshUnavailableError, match="cut off"):
                ssh.clock(CUSTOMER, is_admin=True)
            with pytest.raises(SshUnavailableError, match="cut off"):
                ssh.clock(CUSTOMER)  # and this one counts
            # or a later one, if a busy machine kept the others from answering
            for _ in range(TRIES):
                with pytest.raises(SshUnavailableError) as last:
                    ssh.clock(CUSTOMER)
                if "cut off" not in str(last.value):
                    break
            assert "hung while others answered" in str(last.value)
        finally:
            done.set()
            answering.result(deadline(PATIENCE_S))
    hanging.unlink()
    monkeypatch.setattr(module, "CLOCK_TIMEOUT_S", PATIENCE_S)
    assert abs(ssh.clock(CUSTOMER, is_admin=True).login_s - time.time()) < 30
    ssh.close()


@dataclass
class CommandOutput:
    """What a customer's command prints, when its first line was there, and whether it
    says that it came too late.
    """

    lines: str = ""
    first_s: float | None = None
    waits_for_stderr: bool = False

    @property
    def came_late(self) -> bool:
        return self.lines == "late\n"

    def stdout(self, piece: bytes) -> None:
        self.lines += piece.decode()
        self.first_s = self.first_s or our_clock_s()

    def stderr(self, piece: bytes) -> None:
        raise AssertionError(piece)


def submit_in_turn(ssh: Ssh, user: str, command: str, other: str) -> str:
    output = CommandOutput()
    assert (
        ssh.stream_in_turn(
            user, ["/bin/sh", "-c", command], b"", PATIENCE_S, output, other
        )
        == 0
    )
    return output.lines


def test_answer__came_late_while_others_were_answered__is_a_hang(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    login.users.add(OTHER)
    ssh = login.ssh(login.sshd)

    def submit(seconds: float) -> None:
        submit_in_turn(ssh, CUSTOMER, f"sleep {seconds}; echo late", OTHER)

    # a slow machine may need long for an answer that is in time
    monkeypatch.setattr(module, "HUNG_S", deadline(PATIENCE_S))
    submit(0.1)  # not by the login
    ssh.clock(CUSTOMER)
    monkeypatch.setattr(module, "HUNG_S", 1.0)
    submit(1.5)
    with pytest.raises(SshUnavailableError, match="hung while others answered"):
        ssh.clock(CUSTOMER)
    ssh.close()


def test_command__cut_off_while_others_were_answered__is_a_hang(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A submission whose answer never comes counts as silence of the login."""
    monkeypatch.setattr(module, "HUNG_S", 1.0)
    login.users.add(OTHER)
    ssh = login.ssh(login.sshd)
    ssh.clock(CUSTOMER)
    silent = ["/bin/sh", "-c", "sleep 60"]
    with pytest.raises(SshCutError):
        ssh.stream_in_turn(CUSTOMER, silent, b"", 2.0, CommandOutput(), OTHER)
    with pytest.raises(SshUnavailableError, match="hung while others answered"):
        ssh.clock(CUSTOMER)
    ssh.close()


def test_slow_customers__share_some_places__a_quick_one_needs_none_of_them(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLOW_COMMANDS", 1)
    monkeypatch.setattr(login_backoff, "SLOW_S", 0.5)
    login.users.add(OTHER)
    ssh, held = login.ssh(login.sshd), login.home / "held"

    def submit(user: str, command: str, other: str) -> str:
        return submit_in_turn(ssh, user, command, other)

    submit(CUSTOMER, "sleep 0.6", OTHER)
    with ThreadPoolExecutor(1) as pool:
        held.touch()
        slow = pool.submit(
            submit,
            CUSTOMER,
            f"touch {held}.begun; while test -e {held}; do sleep 0.05; done",
            OTHER,
        )
        try:
            wait_until(
                Path(f"{held}.begun").exists, "the slow one to begin", PATIENCE_S
            )
            assert submit(OTHER, "sleep 0.6; echo here", CUSTOMER) == "here\n"
            with pytest.raises(SshBusyError, match="slow lately"):
                submit(OTHER, "echo here", CUSTOMER)
        finally:
            held.unlink()
            slow.result(deadline(PATIENCE_S))
    assert submit(OTHER, "echo here", CUSTOMER) == "here\n"
    ssh.close()


def test_stream_in_turn__two_of_a_customer_run__a_third_one_is_refused_for_now(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUICK_S", 0.5)
    login.users.add(OTHER)
    ssh, held = login.ssh(login.sshd), login.home / "held"

    def hold(number: int) -> str:
        waits = f"touch {held}.{number}; while test -e {held}; do sleep 0.05; done"
        return submit_in_turn(ssh, CUSTOMER, waits, OTHER)

    with ThreadPoolExecutor(2) as pool:
        held.touch()
        two = [pool.submit(hold, number) for number in range(2)]
        try:
            for number in range(2):
                begun = Path(f"{held}.{number}")
                wait_until(begun.exists, "both to begin", PATIENCE_S)
            with pytest.raises(SshBusyError, match="2 commands of"):
                submit_in_turn(ssh, CUSTOMER, "echo here", OTHER)
            with pytest.raises(SshBusyError, match="2 commands of"):
                ssh.clock(CUSTOMER)
            assert submit_in_turn(ssh, OTHER, "echo here", CUSTOMER) == "here\n"
        finally:
            held.unlink()
            for one in two:
                one.result(deadline(PATIENCE_S))
    assert submit_in_turn(ssh, CUSTOMER, "echo here", OTHER) == "here\n"
    ssh.close()


def test_run__all_channels_are_taken__is_refused_after_a_while(login: Login) -> None:
    ssh, held = login.ssh(login.sshd), login.home / "held"
    held.touch()
    argv = ["/bin/sh", "-c", f"while test -e {held}; do sleep 0.05; done"]
    with ThreadPoolExecutor(module.MAX_CHANNELS) as callers:
        all_of_them = [
            callers.submit(ssh.run, CUSTOMER, argv) for _ in range(module.MAX_CHANNELS)
        ]

        def refused() -> bool:
            try:
                ssh.run(CUSTOMER, ["true"])
            except SshBusyError:
                return True
            return False

        wait_until(refused, "all channels to be taken", PATIENCE_S)
        held.unlink()
        assert [one.result().status for one in all_of_them] == [0] * module.MAX_CHANNELS
    assert ssh.run(CUSTOMER, ["true"]).status == 0
    ssh.close()
