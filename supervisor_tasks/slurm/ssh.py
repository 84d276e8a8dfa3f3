"""Commands on the login node, as any user, over SSH connections that are kept.

One connection per Linux user, the least recently used is closed when there are too many; each command is a channel of its
own. A Fabric Connection must not be shared between threads, its transport may: Fabric opens, channels run.
"""

import shlex
import socket
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import paramiko
from fabric import Config, Connection

from supervisor_tasks.errors import OutcomeUnknownError, TransientError
from supervisor_tasks.slurm.output import Answer

CONNECT_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 30.0
MOST_CONNECTIONS = 64
CHANNELS = 8  # at once on one connection: OpenSSH's default MaxSessions is 10, and more are no faster


class SshUnavailableError(TransientError):
    """The login node cannot be reached or does not let us in; nothing was run, again later."""


class SshCutError(OutcomeUnknownError):
    """The connection broke, or time ran out, while a command ran; nobody knows how far it got."""


@dataclass(slots=True)
class _Line:
    """A connection and the right to open channels on it."""

    connection: Connection
    channels: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(CHANNELS))

    @property
    def alive(self) -> bool:
        transport = self.connection.transport
        return transport is not None and transport.is_active()


class Ssh:
    """The login node. Threads may share it."""

    def __init__(self, address: str, key: paramiko.PKey, known_hosts: Path) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = (host.strip("[]"), int(port)) if host else (port, 22)
        self._key = key
        self._known_hosts = known_hosts
        self._lines: OrderedDict[str, _Line] = OrderedDict()
        self._lock = threading.Lock()
        self._opening: dict[str, threading.Lock] = {}

    def run(self, user: str, argv: Sequence[str], stdin: bytes = b"", timeout_s: float = COMMAND_TIMEOUT_S) -> Answer:
        """Run one command as a user; every word is quoted. Raises SshUnavailableError when nothing was run (retry) and
        SshCutError when nobody knows.
        """
        line = self._line(user)
        with line.channels:
            try:
                channel = self._open_channel(user, line)
            except (paramiko.SSHException, EOFError, OSError) as error:
                self._drop(user, line)
                raise SshUnavailableError(f"no channel to {self._host} as {user}: {error}") from error
            with channel:
                try:
                    return _run(channel, shlex.join(argv), stdin, timeout_s)
                except (paramiko.SSHException, EOFError, OSError) as error:
                    if not line.alive:
                        self._drop(user, line)
                    raise SshCutError(f"{argv[0]} as {user} was cut off: {error or type(error).__name__}") from error

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            lines, self._lines = list(self._lines.values()), OrderedDict()
        for line in lines:
            line.connection.close()

    def _open_channel(self, user: str, line: _Line) -> paramiko.Channel:
        transport = line.connection.transport
        if transport is None:
            raise paramiko.SSHException(f"the connection of {user} is closed")
        channel: paramiko.Channel = transport.open_session(timeout=CONNECT_TIMEOUT_S)
        return channel

    def _line(self, user: str) -> _Line:
        with self._lock:
            opening = self._opening.setdefault(user, threading.Lock())
        with opening:  # one login per user at a time; the others wait for it and share it
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
            surplus = [self._lines.popitem(last=False)[1] for _ in range(len(self._lines) - MOST_CONNECTIONS)]
        for old in surplus:
            old.connection.close()

    def _drop(self, user: str, line: _Line) -> None:
        with self._lock:
            if self._lines.get(user) is line:
                del self._lines[user]
        line.connection.close()

    def _connect(self, user: str) -> Connection:
        try:
            sock = socket.create_connection((self._host, self._port), CONNECT_TIMEOUT_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else every command waits 40 ms for an ACK
            options = {"pkey": self._key, "sock": sock, "look_for_keys": False, "allow_agent": False}
            config = Config(overrides={"load_ssh_configs": False})
            connection = Connection(self._host, user, self._port, config=config, connect_kwargs=options)
            connection.client.load_host_keys(str(self._known_hosts))
            connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
            connection.open()
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise SshUnavailableError(f"cannot log in to {self._host}:{self._port} as {user}: {error}") from error
        return connection


def load_key(text: str) -> paramiko.PKey:
    """A private key of any type that OpenSSH writes."""
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            return kind.from_private_key(StringIO(text))
        except paramiko.SSHException:
            continue
    raise ValueError("SLURM_SSH_PRIVATE_KEY holds no Ed25519, ECDSA or RSA key that can be read without a passphrase")


def _run(channel: paramiko.Channel, command: str, stdin: bytes, timeout_s: float) -> Answer:
    channel.settimeout(timeout_s)
    channel.exec_command(command)
    if stdin:
        channel.sendall(stdin)
    channel.shutdown_write()
    stdout = channel.makefile("rb").read()
    stderr = channel.makefile_stderr("rb").read()
    if not channel.status_event.wait(timeout_s) or channel.exit_status < 0:
        raise EOFError("the command's end was not seen")
    return Answer(channel.exit_status, stdout.decode(errors="replace"), stderr.decode(errors="replace"))
