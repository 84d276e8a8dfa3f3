"""Commands on the login node, as any user, over SSH connections that stay open.

Each Linux user has one connection; when there are too many, the one that has been
unused for longest is closed. Each command has its own channel. Threads must not share a
Fabric Connection, but they may share its transport: Fabric opens the connection,
channels run the commands.

A user's login may hang for any length of time: a start-up file waits, or the home
folder is on a server that is gone. So only one thread at a time asks such a login
(`ask`, `clock`); other threads wait only as long as answers usually take. A login that
did not answer while other users' logins did is left alone for a while, longer each time
(login_backoff.py). Two commands of one customer can run at once, the clock question
included. All customers with slow logins share SLOW_COMMANDS. A submission also shows a
hanging login if it was cut off, or the guard began it too late, while the login node
answers others.
"""

import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Protocol

import paramiko
from fabric import Config, Connection

from supervisor_tasks.errors import OutcomeUnknownError, TransientError
from supervisor_tasks.instruments import (
    SSH_COMMANDS,
    SSH_LOGINS,
    program_of,
    timed,
)
from supervisor_tasks.jobs.effect_timing import (
    CLOCK_SKEW_S,
    KILL_GRACE_S,
    SUBMIT_TIMEOUT_S,
)
from supervisor_tasks.slurm.client_variables import WITHOUT_OPTIONS
from supervisor_tasks.slurm.guarded_command import LoginClock, ask_clock, parse_clock
from supervisor_tasks.slurm.login_backoff import NEVER_S, LoginBackoff
from supervisor_tasks.slurm.parsers import CommandAnswer
from supervisor_tasks.slurm.ssh_command import (
    BROKEN,
    CLOSE_LATER_S,
    MAX_CUSTOMERS_OUTPUT_BYTES,
    MAX_OUTPUT_BYTES,
    CommandOutput,
    OutputListener,
    close_after,
    command_line,
    run_command,
)
from supervisor_tasks.slurm.ssh_transport import SshTransport

CONNECT_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 30.0
ALIVE_EVERY_S = 5  # between two keep-alive probes on an idle connection
# the connection ends if the other end acknowledges no bytes for so long
DEAD_AFTER_MS = 15_000
MAX_CONNECTIONS = 64
CLOCK_TRUSTED_S = 30.0  # after this the worker asks the login node's clock again
# a login that takes longer is too late for any submission
CLOCK_TIMEOUT_S = SUBMIT_TIMEOUT_S
# a second thread waits for a login until this long after the first thread asked it
QUICK_S = 2.0
# without an answer; if others got answers in its later half, the user's own login hangs
HUNG_S = 5.0
# at once on one connection; OpenSSH's default MaxSessions is 10, more are no faster
MAX_CHANNELS = 8
COMMANDS_OF_A_CUSTOMER = 2  # at once
# at once, of all customers whose logins are slow: half of a worker's 16 threads
SLOW_COMMANDS = 8
# The guard ends a submission that began in time before LATE_S, even if SLURM hangs. A
# start-up file may forge the guard's output, so the time counts too.
LATE_S = SUBMIT_TIMEOUT_S + KILL_GRACE_S + CLOCK_SKEW_S

# returns a user's login key; called once for each connection
Keys = Callable[[str], paramiko.PKey]


class SshUnavailableError(TransientError):
    """The login node is unreachable or rejects the login. No command ran; retry
    later.
    """


class LoginRejectedError(SshUnavailableError):
    """The login node answers and rejects this user's login. A retry helps once the site
    lets the user in.
    """

    def __init__(self, user: str, why: str) -> None:
        super().__init__(why)
        self.user = user


class SshBusyError(SshUnavailableError):
    """Other threads use all connections, channels or turns. No command ran; retry
    later.
    """


class LoginBackedOffError(SshBusyError):
    """The user's login hung while others answered, and is left alone for a while. No
    command ran; retry after `again_in_s`.
    """

    def __init__(self, user: str, again_in_s: float) -> None:
        super().__init__(
            f"the login of {user} hung while others answered; it is asked again in {again_in_s:.0f} s"
        )
        self.again_in_s = again_in_s


class SshCutError(OutcomeUnknownError):
    """The connection broke, time ran out, or the output was longer than the worker
    keeps, while a command ran. Its outcome is unknown.
    """


class TurnListener(OutputListener, Protocol):
    """A listener for a customer's command."""

    @property
    def first_s(self) -> float | None:
        """The time of its first answer (`our_clock_s`)."""

    @property
    def came_late(self) -> bool:
        """Whether the command began too late to do anything."""


@dataclass(slots=True)
class _CachedConnection:
    """A connection and the right to open channels on it."""

    connection: Connection
    channels: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(MAX_CHANNELS)
    )
    clock: LoginClock | None = None
    dropped: bool = False
    # commands that run on it or wait for a channel; guarded by Ssh's lock
    users: int = 0

    @property
    def alive(self) -> bool:
        """Whether the connection can still be used, as far as this side knows."""
        transport = self.connection.transport
        return transport is not None and transport.is_active()


@dataclass(slots=True)
class _Login:
    """The threads' shared knowledge of a user's login."""

    opening: threading.Lock = field(default_factory=threading.Lock)
    asking: threading.Lock = field(default_factory=threading.Lock)
    asked_s: float | None = None  # since when the holder of `asking` asks
    answered_s: float = NEVER_S  # when the user's last command ended
    backoff: LoginBackoff = field(default_factory=LoginBackoff)
    commands: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(COMMANDS_OF_A_CUSTOMER)
    )

    def acquire_within(self, user: str, within_s: float) -> None:
        """Take `asking` within `within_s` seconds from when its holder took it. Raises
        SshBusyError; a retry helps.
        """
        since_s = self.asked_s
        left_s = within_s
        if since_s is not None:
            left_s = since_s + within_s - our_clock_s()
        if not self.asking.acquire(timeout=max(left_s, 0.0)):
            raise SshBusyError(
                f"the login of {user} has not answered another thread yet"
            )

    def require_no_backoff(self, user: str) -> None:
        """Raise LoginBackedOffError while the login is left alone; a retry helps after
        `again_in_s`.
        """
        if left_s := self.backoff.left_s(our_clock_s()):
            raise LoginBackedOffError(user, left_s)


class Ssh:
    """The login node. Threads may share it."""

    def __init__(
        self,
        address: str,
        key: paramiko.PKey | Keys,
        known_hosts: Path,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self.address = address
        host, _, rest = address.rpartition(":")
        if host:
            self._host, self._port = host.strip("[]"), int(rest)
        else:
            self._host, self._port = rest, 22
        self._key_for: Keys
        if isinstance(key, paramiko.PKey):
            self._key_for = lambda _: key
        else:
            self._key_for = key
        self._connect_timeout_s = connect_timeout_s
        self._known_hosts = known_hosts
        self._connections: OrderedDict[str, _CachedConnection] = OrderedDict()
        self._lock = threading.Lock()
        self._logins: dict[str, _Login] = {}
        self._slow_commands = threading.BoundedSemaphore(SLOW_COMMANDS)

    def run(
        self,
        user: str,
        argv: Sequence[str],
        stdin: bytes = b"",
        timeout_s: float = COMMAND_TIMEOUT_S,
        max_output: int = MAX_OUTPUT_BYTES,
    ) -> CommandAnswer:
        """Run one command as a user; every word is quoted. The command does not get the
        user's variables that SLURM's commands read as options. Raises
        SshUnavailableError when the command did not run (retry) and SshCutError when it
        may have run, or printed more than `max_output` bytes.
        """
        kept = CommandOutput(max_output)
        status = self.stream(user, argv, stdin, timeout_s, kept, WITHOUT_OPTIONS)
        return CommandAnswer(
            status,
            kept.out.decode(errors="replace"),
            kept.complaints.decode(errors="replace"),
        )

    def stream(
        self,
        user: str,
        argv: Sequence[str],
        stdin: bytes,
        timeout_s: float,
        listener: OutputListener,
        before: str = "",
    ) -> int:
        """Run one command as a user, and pass its output to `listener` as it comes. A
        POSIX shell runs the text `before` first. Returns the command's status. Raises
        the errors of `run`, and a retry helps as there. An exception of the listener
        ends the reading and is passed on; an OSError counts as a cut.
        """
        with (
            self._using(user) as cached,
            self._soon(cached.channels, f"run a command as {user}"),
        ):
            channel = self._open_channel(user, cached)
            try:
                with (
                    timed(SSH_COMMANDS, program_of(argv[0])),
                    close_after(channel, timeout_s + CLOSE_LATER_S),
                ):
                    status = run_command(
                        channel,
                        command_line(argv, len(stdin), before),
                        stdin,
                        timeout_s,
                        listener,
                    )
                self._login(user).answered_s = our_clock_s()
                return status
            except BROKEN as error:
                self._drop(user, cached)
                raise SshCutError(
                    f"{argv[0]} as {user} was cut off: {str(error) or type(error).__name__}"
                ) from error
            finally:
                with suppress(*BROKEN):  # closing sends a message to the other end
                    channel.close()

    def stream_in_turn(
        self,
        user: str,
        argv: Sequence[str],
        stdin: bytes,
        timeout_s: float,
        listener: TurnListener,
        other: str,
    ) -> int:
        """Run a customer's command as `stream` does, with at most two commands of the
        customer at once. If the command was cut off or `came_late`, while the login
        node carries out a command of the `other` user, the customer's login hangs. If
        its first answer takes long, the login is slow.
        """
        backoff = self._login(user).backoff
        with self._a_turn(user):
            begun_s = our_clock_s()
            try:
                with self._timed(backoff, listener):
                    status = self.stream(user, argv, stdin, timeout_s, listener)
            except SshCutError:
                self._judge(user, begun_s, other)
                raise
            if listener.came_late or our_clock_s() - begun_s >= LATE_S:
                self._judge(user, begun_s, other)
            else:
                backoff.record_success()
        return status

    def _judge(self, user: str, begun_s: float, other: str) -> None:
        """Record a hang if the user's own login made the command slow. To find out,
        ask the `other` user, the site's own.
        """
        ended_s = our_clock_s()
        with suppress(TransientError):
            self.discard_clock(other)
            self.clock(other, is_admin=True)
            if ended_s - begun_s >= HUNG_S and self._hung(user, begun_s):
                self._login(user).backoff.record_hang(begun_s, our_clock_s())

    def clock(self, user: str, *, is_admin: bool = False) -> LoginClock:
        """Return the clock of the machine that a user's connection leads to. It is
        asked once for each connection, and again when older than CLOCK_TRUSTED_S. A
        login that is the site's own gets more time and is never left alone, because all
        work needs it. Raises TransientError; a retry helps.
        """
        if not is_admin:
            self._login(user).require_no_backoff(user)
        clock = self._trusted_clock(user)
        if clock is not None:
            return clock
        with self._probing(user, is_admin=is_admin):
            clock = self._trusted_clock(user)
            if clock is not None:  # another thread has asked meanwhile
                return clock
            cached, delimiter = self._cached_connection(user), secrets.token_hex(16)
            question = partial(
                self.run, user, ask_clock(delimiter), b"", CLOCK_TIMEOUT_S
            )
            if is_admin:
                answer = question()
            else:
                with self._a_turn(user):
                    begun_s = our_clock_s()
                    answer = question(MAX_CUSTOMERS_OUTPUT_BYTES)
                ended_s = our_clock_s()
                self._login(user).backoff.record_duration(ended_s - begun_s, ended_s)
            cached.clock = clock = parse_clock(answer, delimiter, our_clock_s())
        return clock

    def ask(self, user: str, argv: Sequence[str]) -> CommandAnswer:
        """Run a command as a user whose login may hang; the command must be safe to run
        twice. One thread at a time does this, unless the login has just answered.
        Raises SshUnavailableError; a retry helps.
        """
        probing: AbstractContextManager[None] = nullcontext()
        if our_clock_s() - self._login(user).answered_s > QUICK_S:
            probing = self._probing(user)
        try:
            with probing, self._a_turn(user):
                return self.run(user, argv, max_output=MAX_CUSTOMERS_OUTPUT_BYTES)
        except SshCutError as error:
            raise SshUnavailableError(str(error)) from error

    def discard_clock(self, user: str) -> None:
        """Make the next call of `clock` for this user ask the login node again."""
        with self._lock:
            cached = self._connections.get(user)
        if cached is not None:
            cached.clock = None

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            connections, self._connections = (
                list(self._connections.values()),
                OrderedDict(),
            )
        for cached in connections:
            cached.connection.close()

    def _kept(self, user: str) -> _CachedConnection | None:
        with self._lock:
            cached = self._connections.get(user)
        if cached is None or not cached.alive:
            return None
        return cached

    def _trusted_clock(self, user: str) -> LoginClock | None:
        cached = self._kept(user)
        if cached is None:
            return None
        clock = cached.clock
        if clock is None or our_clock_s() - clock.our_s > CLOCK_TRUSTED_S:
            return None
        return clock

    @contextmanager
    def _probing(self, user: str, *, is_admin: bool = False) -> Iterator[None]:
        """Let only one thread wait for a user's login that may hang. A hang on a
        connection that existed before may be the connection's fault, so it does not
        count as a hang; the next try opens a new connection.
        """
        login = self._login(user)
        within_s = QUICK_S
        if is_admin:
            within_s = CLOCK_TIMEOUT_S
        login.acquire_within(user, within_s)
        try:
            login.asked_s = begun_s = our_clock_s()
            opens_new = self._kept(user) is None
            if not is_admin:
                login.require_no_backoff(user)
            yield
        except (SshBusyError, LoginRejectedError):
            raise
        except (SshUnavailableError, SshCutError) as error:
            may_be_hung = opens_new and not is_admin
            if may_be_hung and self._hung(user, begun_s):
                login.backoff.record_hang(begun_s, our_clock_s())
            raise SshUnavailableError(str(error)) from error
        finally:
            login.asked_s = None
            login.asking.release()

    @contextmanager
    def _a_turn(self, user: str) -> Iterator[None]:
        """Take one of the commands that a customer may run at once. A thread that holds
        `asking` takes a turn after it. A thread that holds a turn takes `asking` of no
        customer. Raises SshBusyError.
        """
        login = self._login(user)
        with ExitStack() as turns:
            if not login.commands.acquire(timeout=QUICK_S):
                raise SshBusyError(
                    f"{COMMANDS_OF_A_CUSTOMER} commands of {user} run already"
                )
            turns.callback(login.commands.release)
            if login.backoff.is_slow(our_clock_s()):
                if not self._slow_commands.acquire(blocking=False):
                    raise SshBusyError(
                        f"{user}'s login was slow lately, and {SLOW_COMMANDS} commands of slow logins run already"
                    )
                turns.callback(self._slow_commands.release)
            yield

    @contextmanager
    def _timed(self, backoff: LoginBackoff, listener: TurnListener) -> Iterator[None]:
        begun_s = our_clock_s()
        try:
            yield
        finally:
            ended_s = our_clock_s()
            backoff.record_duration((listener.first_s or ended_s) - begun_s, ended_s)

    def _hung(self, user: str, begun_s: float) -> bool:
        """Whether only this user's login has hung since then. A login node that stands
        still answers no user.
        """
        now_s = our_clock_s()
        others_s = NEVER_S
        with self._lock:
            for name, login in self._logins.items():
                if name != user:
                    others_s = max(others_s, login.answered_s)
        if now_s - begun_s < HUNG_S:
            return False
        return others_s > (begun_s + now_s) / 2

    def _login(self, user: str) -> _Login:
        with self._lock:
            return self._logins.setdefault(user, _Login())

    @contextmanager
    def _soon(
        self, limited: "threading.Lock | threading.BoundedSemaphore", what: str
    ) -> Iterator[None]:
        """Take a lock, but wait only for the connect time-out: other threads may hold
        it for long.
        """
        if not limited.acquire(timeout=self._connect_timeout_s):
            raise SshBusyError(
                f"cannot {what} yet: waited {self._connect_timeout_s:g} s for other threads"
            )
        try:
            yield
        finally:
            limited.release()

    @contextmanager
    def _using(self, user: str) -> Iterator[_CachedConnection]:
        """Yield a connection that is not closed for age while this thread uses it."""
        cached = self._cached_connection(user)
        with self._lock:
            cached.users += 1
        try:
            yield cached
        finally:
            with self._lock:
                cached.users -= 1
                is_last = cached.dropped and not cached.users
            if is_last:
                cached.connection.close()

    def _open_channel(self, user: str, cached: _CachedConnection) -> paramiko.Channel:
        transport = cached.connection.transport
        try:
            if transport is None:
                raise paramiko.SSHException(f"the connection of {user} is closed")
            channel: paramiko.Channel = transport.open_session(
                timeout=self._connect_timeout_s
            )
        except paramiko.ChannelException as error:
            # MaxSessions; the commands on the connection go on
            raise SshUnavailableError(
                f"{self._host} opens no more sessions for {user} now: {error}"
            ) from error
        except BROKEN as error:
            self._drop(user, cached)
            raise SshUnavailableError(
                f"no channel to {self._host} as {user}: {error}"
            ) from error
        return channel

    def _cached_connection(self, user: str) -> _CachedConnection:
        # One login per user at a time; other threads wait for it and share its
        # connection.
        with self._soon(self._login(user).opening, f"log in as {user}"):
            with self._lock:
                cached = self._connections.get(user)
                if cached is not None and cached.alive:
                    self._connections.move_to_end(user)
                    return cached
            fresh = _CachedConnection(self._connect(user))
            self._keep(user, fresh)
            return fresh

    def _keep(self, user: str, cached: _CachedConnection) -> None:
        with self._lock:
            self._connections[user] = cached
            self._connections.move_to_end(user)
            idle = list[str]()
            for name, old in self._connections.items():
                if old is not cached and not old.users:
                    idle.append(name)
            too_many = max(len(self._connections) - MAX_CONNECTIONS, 0)
            surplus = [self._connections.pop(name) for name in idle[:too_many]]
        for old in surplus:
            old.connection.close()

    def _drop(self, user: str, cached: _CachedConnection) -> None:
        """Stop new commands on a connection that failed; the commands that still run on
        it can end.
        """
        with self._lock:
            if self._connections.get(user) is cached:
                del self._connections[user]
            cached.dropped = True
        if not cached.alive:
            cached.connection.close()

    def _connect(self, user: str) -> Connection:
        try:
            with timed(SSH_LOGINS), ExitStack() as opened:
                sock = socket.create_connection(
                    (self._host, self._port), self._connect_timeout_s
                )
                opened.callback(sock.close)
                _tune(sock)
                connection = self._connection(user, sock)
                # sshd counts an unauthenticated connection until it closes
                opened.callback(connection.client.close)
                connection.open()
                opened.pop_all()
        except BROKEN as error:
            message = f"cannot log in to {self._host}:{self._port} as {user}: {error}"
            if isinstance(error, paramiko.AuthenticationException):
                raise LoginRejectedError(user, message) from error
            raise SshUnavailableError(message) from error
        return connection

    def _connection(self, user: str, sock: socket.socket) -> Connection:
        waits = ("timeout", "banner_timeout", "auth_timeout", "channel_timeout")
        options = {
            "pkey": self._key_for(user),
            "sock": sock,
            "transport_factory": SshTransport,
            "look_for_keys": False,
            "allow_agent": False,
            **dict.fromkeys(waits, self._connect_timeout_s),
        }
        config = Config(overrides={"load_ssh_configs": False})
        connection = Connection(
            self._host, user, self._port, config=config, connect_kwargs=options
        )
        connection.client.load_host_keys(str(self._known_hosts))
        connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        return connection


def our_clock_s() -> float:
    """Return seconds of this machine's clock, which is never set and which runs on
    while the process or machine is suspended.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def load_key(text: str) -> paramiko.PKey:
    """Read a private key of any type that OpenSSH writes. Raises ValueError when it
    cannot be read; the operator must correct the setting.
    """
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            return kind.from_private_key(StringIO(text))
        except paramiko.SSHException:
            continue
    raise ValueError(
        "SLURM_SSH_PRIVATE_KEY holds no Ed25519, ECDSA or RSA key that can be read without a passphrase"
    )


def _tune(sock: socket.socket) -> None:
    # else every command waits 40 ms for an ACK
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # These options detect a login node that disappears: keep-alive when the connection
    # is idle, else TCP_USER_TIMEOUT, by the bytes that stay unacknowledged.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, ALIVE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ALIVE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_MS)
