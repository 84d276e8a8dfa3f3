"""Commands on the login node, as any user, over SSH connections that are kept.

One connection per Linux user, the least recently used is closed when there are too many; each command is a channel of its
own. A Fabric Connection must not be shared between threads, its transport may: Fabric opens, channels run.

A user's login may hang for as long as it likes: a start-up file that waits, a home folder on a server that is gone. So one
thread at a time asks it whether it answers (`ask`, `clock`), others wait only as long as answers usually take, and one that did
not answer while other users' did is not asked for a while, each time longer (login_silence.py). Two commands of one customer
run at once, the question what time it is included, and all customers whose logins are slow have SLOW_COMMANDS together. A
submission that was cut off, or that the guard began too late, while the login node answers others is such a silence.
"""

import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Protocol

import paramiko
from fabric import Config, Connection

from supervisor_tasks.effects import IN_TIME_S, KILLED_AFTER_S, MARGIN_S
from supervisor_tasks.errors import OutcomeUnknownError, TransientError
from supervisor_tasks.slurm.guarded_command import LoginClock, ask_clock, clock_told
from supervisor_tasks.slurm.login_silence import NEVER_S, LoginSilence
from supervisor_tasks.slurm.output import Answer
from supervisor_tasks.slurm.ssh_command import BROKEN, CUT_LATER_S, Kept, Listener, command_line, cut_after, run_command

CONNECT_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 30.0
ALIVE_EVERY_S = 5  # how often a silent connection is asked whether the other end is still there
DEAD_AFTER_MS = 15_000  # bytes that the other end does not acknowledge for so long are lost
MOST_CONNECTIONS = 64
CLOCK_TRUSTED_S = 30.0  # then the login node is asked again what time it is
CLOCK_TIMEOUT_S = IN_TIME_S  # a login that takes longer is in time for no submission
QUICK_S = 2.0  # who finds a user's login asked by another thread waits until so long after that one began
HUNG_S = 5.0  # of silence, in the later half of which others were answered: it is the user's own
CHANNELS = 8  # at once on one connection: OpenSSH's default MaxSessions is 10, and more are no faster
COMMANDS_OF_A_CUSTOMER = 2  # at once
SLOW_COMMANDS = 8  # at once, of all customers whose logins are slow: half of a worker's 16 threads
# The guard ends a submission that began in time before that, whatever SLURM does. A start-up file may forge the guard's words.
LATE_S = IN_TIME_S + KILLED_AFTER_S + MARGIN_S

Keys = Callable[[str], paramiko.PKey]  # what a user is logged in with; asked once for each connection


class SshUnavailableError(TransientError):
    """The login node cannot be reached or does not let us in; nothing was run, again later."""


class LoginRefusedError(SshUnavailableError):
    """The login node answers and does not let this user in. A retry helps once the site lets the user in."""

    def __init__(self, user: str, why: str) -> None:
        super().__init__(why)
        self.user = user


class SshBusyError(SshUnavailableError):
    """Other threads have all there is; nothing was run, again later."""


class SshSilentError(SshBusyError):
    """The user's login hung while others answered, and is left alone for a while; nothing was run, again then."""

    def __init__(self, user: str, again_in_s: float) -> None:
        super().__init__(f"the login of {user} hung while others answered; it is asked again in {again_in_s:.0f} s")
        self.again_in_s = again_in_s


class SshCutError(OutcomeUnknownError):
    """The connection broke, time ran out, or more came back than we keep, while a command ran; nobody knows how far it got."""


class TurnListener(Listener, Protocol):
    """The same of a customer's command."""

    @property
    def first_s(self) -> float | None:
        """When its first answer was there (`our_clock_s`)."""

    @property
    def came_late(self) -> bool:
        """Whether it was begun too late to do anything."""


@dataclass(slots=True)
class _Line:
    """A connection and the right to open channels on it."""

    connection: Connection
    channels: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(CHANNELS))
    clock: LoginClock | None = None
    dropped: bool = False
    users: int = 0  # commands that are on it or wait for a channel; guarded by Ssh's lock

    @property
    def alive(self) -> bool:
        transport = self.connection.transport
        return transport is not None and transport.is_active()


@dataclass(slots=True)
class _Login:
    """What threads know of a user's login."""

    opening: threading.Lock = field(default_factory=threading.Lock)
    asking: threading.Lock = field(default_factory=threading.Lock)
    asked_s: float | None = None  # since when, by who has `asking`
    answered_s: float = NEVER_S  # the last command of the user that came to an end
    silence: LoginSilence = field(default_factory=LoginSilence)
    commands: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(COMMANDS_OF_A_CUSTOMER)
    )

    def take_turn(self, user: str, within_s: float) -> None:
        """Take `asking` within so many seconds from when it was taken, or not at all. Raises SshBusyError."""
        since_s = self.asked_s
        left_s = within_s if since_s is None else since_s + within_s - our_clock_s()
        if not self.asking.acquire(timeout=max(left_s, 0.0)):
            raise SshBusyError(f"the login of {user} has not answered another thread yet")

    def require_not_silent(self, user: str) -> None:
        """Raises SshSilentError while the login is left alone."""
        if left_s := self.silence.left_s(our_clock_s()):
            raise SshSilentError(user, left_s)


class Ssh:
    """The login node. Threads may share it."""

    def __init__(
        self, address: str, key: paramiko.PKey | Keys, known_hosts: Path, connect_timeout_s: float = CONNECT_TIMEOUT_S
    ) -> None:
        self.address = address
        host, _, port = address.rpartition(":")
        self._host, self._port = (host.strip("[]"), int(port)) if host else (port, 22)
        self._key_for: Keys = (lambda _: key) if isinstance(key, paramiko.PKey) else key
        self._connect_timeout_s = connect_timeout_s
        self._known_hosts = known_hosts
        self._lines: OrderedDict[str, _Line] = OrderedDict()
        self._lock = threading.Lock()
        self._logins: dict[str, _Login] = {}
        self._slow_commands = threading.BoundedSemaphore(SLOW_COMMANDS)

    def run(self, user: str, argv: Sequence[str], stdin: bytes = b"", timeout_s: float = COMMAND_TIMEOUT_S) -> Answer:
        """Run one command as a user; every word is quoted. Raises SshUnavailableError when nothing was run (retry) and
        SshCutError when nobody knows.
        """
        kept = Kept()
        status = self.stream(user, argv, stdin, timeout_s, kept)
        return Answer(status, kept.out.decode(errors="replace"), kept.complaints.decode(errors="replace"))

    def stream(self, user: str, argv: Sequence[str], stdin: bytes, timeout_s: float, listener: Listener) -> int:
        """The same; `listener` is given the output as it comes. Returns the command's status. What the listener raises ends
        the reading and is passed on, but for an OSError, which counts as a cut.
        """
        with self._using(user) as line, self._soon(line.channels, f"run a command as {user}"):
            channel = self._open_channel(user, line)
            try:
                with cut_after(channel, timeout_s + CUT_LATER_S):
                    status = run_command(channel, command_line(argv, len(stdin)), stdin, timeout_s, listener)
                self._login(user).answered_s = our_clock_s()
                return status
            except BROKEN as error:
                self._drop(user, line)
                raise SshCutError(f"{argv[0]} as {user} was cut off: {str(error) or type(error).__name__}") from error
            finally:
                with suppress(*BROKEN):  # it tells the other end
                    channel.close()

    def stream_in_turn(
        self, user: str, argv: Sequence[str], stdin: bytes, timeout_s: float, listener: TurnListener, other: str
    ) -> int:
        """The same of a customer: two at once at most. A command that was cut off, or that `came_late`, while the login node
        carries out a command of the `other` user, shows a login that hangs; one whose first answer takes long, a slow one.
        """
        silence = self._login(user).silence
        with self._a_turn(user):
            begun_s = our_clock_s()
            try:
                with self._timed(silence, listener):
                    status = self.stream(user, argv, stdin, timeout_s, listener)
            except SshCutError:
                self._judge(user, begun_s, other)
                raise
            if listener.came_late or our_clock_s() - begun_s >= LATE_S:
                self._judge(user, begun_s, other)
            else:
                silence.carried_out()
        return status

    def _judge(self, user: str, begun_s: float, other: str) -> None:
        """Whether a user's command took so long by the user's own login; the `other` user, who is the site's own, is asked."""
        ended_s = our_clock_s()
        with suppress(TransientError):
            self.forget_clock(other)
            self.clock(other, sites_own=True)
            if ended_s - begun_s >= HUNG_S and self._hung(user, begun_s):
                self._login(user).silence.hung(begun_s, our_clock_s())

    def clock(self, user: str, *, sites_own: bool = False) -> LoginClock:
        """The clock of the machine that a user's connection leads to; asked for once a connection and now and then. A login
        that is the site's own, without which nothing goes on, is waited for, and asked again at once. Raises TransientError.
        """
        if not sites_own:
            self._login(user).require_not_silent(user)
        if (known := self._known_clock(user)) is not None:
            return known
        with self._asking(user, sites_own=sites_own):
            if (known := self._known_clock(user)) is None:  # nobody else has asked meanwhile
                line, mark = self._line(user), secrets.token_hex(16)
                with nullcontext() if sites_own else self._a_turn(user):
                    answer = self.run(user, ask_clock(mark), timeout_s=CLOCK_TIMEOUT_S)
                line.clock = known = clock_told(answer, mark, our_clock_s())
        return known

    def ask(self, user: str, argv: Sequence[str]) -> Answer:
        """Run what may be run twice as a user whose login may hang: one thread at a time, until it has just answered. Raises
        SshUnavailableError.
        """
        answers = our_clock_s() - self._login(user).answered_s <= QUICK_S
        try:
            with nullcontext() if answers else self._asking(user), self._a_turn(user):
                return self.run(user, argv)
        except SshCutError as error:
            raise SshUnavailableError(str(error)) from error

    def forget_clock(self, user: str) -> None:
        """Ask anew what time it is before it is needed again."""
        with self._lock:
            line = self._lines.get(user)
        if line is not None:
            line.clock = None

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            lines, self._lines = list(self._lines.values()), OrderedDict()
        for line in lines:
            line.connection.close()

    def _kept(self, user: str) -> _Line | None:
        with self._lock:
            line = self._lines.get(user)
        return line if line is not None and line.alive else None

    def _known_clock(self, user: str) -> LoginClock | None:
        line = self._kept(user)
        known = None if line is None else line.clock
        return known if known is not None and our_clock_s() - known.our_s <= CLOCK_TRUSTED_S else None

    @contextmanager
    def _asking(self, user: str, *, sites_own: bool = False) -> Iterator[None]:
        """Only one thread waits for a user's login that may hang. What hangs on a connection that was there may be the
        connection's doing: the next one is made anew.
        """
        login = self._login(user)
        login.take_turn(user, CLOCK_TIMEOUT_S if sites_own else QUICK_S)
        try:
            login.asked_s = begun_s = our_clock_s()
            makes_anew = self._kept(user) is None
            if not sites_own:
                login.require_not_silent(user)
            yield
        except (SshBusyError, LoginRefusedError):
            raise
        except (SshUnavailableError, SshCutError) as error:
            if makes_anew and not sites_own and self._hung(user, begun_s):
                login.silence.hung(begun_s, our_clock_s())
            raise SshUnavailableError(str(error)) from error
        finally:
            login.asked_s = None
            login.asking.release()

    @contextmanager
    def _a_turn(self, user: str) -> Iterator[None]:
        """One of the commands that a customer may have under way. Who has `asking` takes it after that, and who has it takes
        `asking` of no customer. Raises SshBusyError.
        """
        login = self._login(user)
        with ExitStack() as turns:
            if not login.commands.acquire(timeout=QUICK_S):
                raise SshBusyError(f"{COMMANDS_OF_A_CUSTOMER} commands of {user} are under way already")
            turns.callback(login.commands.release)
            if login.silence.is_slow(our_clock_s()):
                if not self._slow_commands.acquire(blocking=False):
                    raise SshBusyError(
                        f"{user}'s login was slow lately, and {SLOW_COMMANDS} commands of such are under way"
                    )
                turns.callback(self._slow_commands.release)
            yield

    @contextmanager
    def _timed(self, silence: LoginSilence, listener: TurnListener) -> Iterator[None]:
        begun_s = our_clock_s()
        try:
            yield
        finally:
            ended_s = our_clock_s()
            silence.took((listener.first_s or ended_s) - begun_s, ended_s)

    def _hung(self, user: str, begun_s: float) -> bool:
        """Whether a user's login that did not answer since then is alone with that: a login node that stands still answers
        nobody.
        """
        now_s = our_clock_s()
        with self._lock:
            others_s = max((one.answered_s for name, one in self._logins.items() if name != user), default=NEVER_S)
        return now_s - begun_s >= HUNG_S and others_s > (begun_s + now_s) / 2

    def _login(self, user: str) -> _Login:
        with self._lock:
            return self._logins.setdefault(user, _Login())

    @contextmanager
    def _soon(self, limited: "threading.Lock | threading.BoundedSemaphore", what: str) -> Iterator[None]:
        """What others hold may be theirs for long."""
        if not limited.acquire(timeout=self._connect_timeout_s):
            raise SshBusyError(f"cannot {what} yet: other threads have been at it for {self._connect_timeout_s:g} s")
        try:
            yield
        finally:
            limited.release()

    @contextmanager
    def _using(self, user: str) -> Iterator[_Line]:
        """A connection that is not closed for being old as long as it is used."""
        line = self._line(user)
        with self._lock:
            line.users += 1
        try:
            yield line
        finally:
            with self._lock:
                line.users -= 1
                last = line.dropped and not line.users
            if last:
                line.connection.close()

    def _open_channel(self, user: str, line: _Line) -> paramiko.Channel:
        transport = line.connection.transport
        try:
            if transport is None:
                raise paramiko.SSHException(f"the connection of {user} is closed")
            channel: paramiko.Channel = transport.open_session(timeout=self._connect_timeout_s)
        except paramiko.ChannelException as error:  # MaxSessions; the commands that run on it go on
            raise SshUnavailableError(f"{self._host} opens no more sessions for {user} now: {error}") from error
        except BROKEN as error:
            self._drop(user, line)
            raise SshUnavailableError(f"no channel to {self._host} as {user}: {error}") from error
        return channel

    def _line(self, user: str) -> _Line:
        # One login per user at a time; the others wait for it and share it.
        with self._soon(self._login(user).opening, f"log in as {user}"):
            with self._lock:
                line = self._lines.get(user)
                if line is not None and line.alive:
                    self._lines.move_to_end(user)
                    return line
            fresh = _Line(self._connect(user))
            self._keep(user, fresh)
            return fresh

    def _keep(self, user: str, line: _Line) -> None:
        with self._lock:
            self._lines[user] = line
            self._lines.move_to_end(user)
            idle = [name for name, old in self._lines.items() if not old.users and old is not line]
            surplus = [self._lines.pop(name) for name in idle[: max(len(self._lines) - MOST_CONNECTIONS, 0)]]
        for old in surplus:
            old.connection.close()

    def _drop(self, user: str, line: _Line) -> None:
        """Nothing new is run on a connection that failed; what still runs on it is let end."""
        with self._lock:
            if self._lines.get(user) is line:
                del self._lines[user]
            line.dropped = True
        if not line.alive:
            line.connection.close()

    def _connect(self, user: str) -> Connection:
        try:
            with ExitStack() as opened:
                sock = socket.create_connection((self._host, self._port), self._connect_timeout_s)
                opened.callback(sock.close)
                _tune(sock)
                connection = self._connection(user, sock)
                opened.callback(connection.client.close)  # sshd counts who does not get in until he is gone
                connection.open()
                opened.pop_all()
        except BROKEN as error:
            why = f"cannot log in to {self._host}:{self._port} as {user}: {error}"
            if isinstance(error, paramiko.AuthenticationException):
                raise LoginRefusedError(user, why) from error
            raise SshUnavailableError(why) from error
        return connection

    def _connection(self, user: str, sock: socket.socket) -> Connection:
        waits = ("timeout", "banner_timeout", "auth_timeout", "channel_timeout")
        options = {
            "pkey": self._key_for(user),
            "sock": sock,
            "look_for_keys": False,
            "allow_agent": False,
            **dict.fromkeys(waits, self._connect_timeout_s),
        }
        config = Config(overrides={"load_ssh_configs": False})
        connection = Connection(self._host, user, self._port, config=config, connect_kwargs=options)
        connection.client.load_host_keys(str(self._known_hosts))
        connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        return connection


def our_clock_s() -> float:
    """Seconds on this machine's clock, which nobody sets and which goes on while a process, or the machine, stands still."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def load_key(text: str) -> paramiko.PKey:
    """A private key of any type that OpenSSH writes."""
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            return kind.from_private_key(StringIO(text))
        except paramiko.SSHException:
            continue
    raise ValueError("SLURM_SSH_PRIVATE_KEY holds no Ed25519, ECDSA or RSA key that can be read without a passphrase")


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else every command waits 40 ms for an ACK
    # A login node that is gone without a word is noticed: by its silence when nothing is under way, else by what it does not
    # acknowledge.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, ALIVE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ALIVE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_MS)
