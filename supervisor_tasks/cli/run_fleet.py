"""`supervisor run --flag value ...`: the whole fleet of one cluster as child processes,
their logs merged into one.

For a small site: the systemd unit that started the Go program can start this instead. A
child that ends is started again. Each child gets only the keys that it works with. The
children end with this process, however it ends.
"""

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import IO

import structlog

from supervisor_tasks.cli.env_files import EnvFileError, files_here, variables_of
from supervisor_tasks.cli.fleet_flags import Flags
from supervisor_tasks.cli.run_command import (
    SERVERS,
    WRONG_SETTINGS,
    command,
    environment,
    missing_servers,
)
from supervisor_tasks.config import logging as logs
from supervisor_tasks.config.first_process import SIGNAL_STATUS_BASE
from supervisor_tasks.config.needs import (
    KEYS,
    Need,
    SlurmAccess,
    kept,
    slurm_access,
    unused_by,
)
from supervisor_tasks.config.process_protection import protect_memory
from supervisor_tasks.config.settings import UnreadableFileError, text_of_file
from supervisor_tasks.config.ssh_keys import public_half
from supervisor_tasks.config.variables import (
    given_secrets,
    overridden,
    variables_with_a_secret,
    warn_of_mistyped,
)

log = structlog.get_logger()

FLEET: Mapping[str, tuple[Need, ...]] = {
    "worker": (Need.WALLET, Need.SLURM, Need.NOTIFY),
    "beat": (),
    "callbacks": (Need.SSH_PUBLIC,),
    "flower": (),
    "metrics": (),
}
"""The processes, each with the keys that it works with."""
PR_SET_PDEATHSIG = 1  # prctl(2)
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 30.0
LASTED_S = 60.0  # a child that ran for so long was started well
# of one child in a row; then the fleet ends, and systemd or the container's runtime
# decides
MAX_RESTARTS = 10
STOP_AFTER_S = 90.0  # a worker ends what it has begun


def environment_of(process: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return a process's environment: without the secrets that it does not work with,
    and with an address for probes.
    """
    access = slurm_access(given)
    own = dict(given)
    unused = set(KEYS) - kept(FLEET.get(process, ()), access)
    for key in unused | unused_by(process):
        own.pop(key.upper(), None)
        own.pop(f"{key.upper()}_FILE", None)
    if process == "callbacks" and _derives_public_key(given):
        own.update(_public_key(given))
    return environment(process, own) | _health_address(process, own)


def _derives_public_key(given: Mapping[str, str]) -> bool:
    """Whether the public half of the SSH key is wanted, and not given; an empty one
    counts as not given, as for every process.
    """
    is_given = bool(given.get("SLURM_SSH_PUBLIC_KEY"))
    return slurm_access(given) is SlurmAccess.SSH_KEY and not is_given


def _public_key(given: Mapping[str, str]) -> dict[str, str]:
    """Return the public half of the SSH key, which sshd asks the gRPC process for. The
    worker reports a wrong key.
    """
    try:
        return {"SLURM_SSH_PUBLIC_KEY": public_half(_private_key(given))}
    except ValueError:  # also without a key
        return {}


def _private_key(given: Mapping[str, str]) -> str:
    """Return the SSH key, or nothing if none is given. Raises UnreadableFileError."""
    file = given.get("SLURM_SSH_PRIVATE_KEY_FILE", "")
    private = given.get("SLURM_SSH_PRIVATE_KEY", "")
    return private or (text_of_file("slurm_ssh_private_key", file) if file else "")


def unreadable_key(given: Mapping[str, str]) -> list[str]:
    """Return a line if the file of the SSH key cannot be read. Without the key, the
    callbacks process would report a setting that the operator need not give.
    """
    try:
        if _derives_public_key(given):
            _private_key(given)
    except UnreadableFileError as error:
        return [str(error)]
    return []


def _health_address(process: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return HEALTH_ADDRESS: each process has a port of its own, counted from the one
    that is given.
    """
    host, colon, port = given.get("HEALTH_ADDRESS", "").rpartition(":")
    if not colon or not port.isdecimal() or process not in FLEET:
        return {}
    return {"HEALTH_ADDRESS": f"{host}:{int(port) + list(FLEET).index(process)}"}


@dataclass(slots=True)
class Child:
    """A process of the fleet. `start_at_s` is when it is started (time.monotonic), and
    infinite while it runs.
    """

    name: str
    process: "subprocess.Popen[bytes] | None" = None
    started_s: float = 0.0
    start_at_s: float = 0.0
    restarts: int = 0
    rest: bytes = field(default=b"", repr=False)  # of a line that has not ended yet

    def ended(self, now_s: float) -> None:
        """Plan the next start of the process, which has ended."""
        self.process = None
        self.restarts = 1 if now_s - self.started_s >= LASTED_S else self.restarts + 1
        self.start_at_s = now_s + min(
            FIRST_PAUSE_S * 2.0 ** (self.restarts - 1), MAX_PAUSE_S
        )


class FleetRunner:
    """Starts the children, passes their lines on, starts again what ends, and ends all
    of them.
    """

    def __init__(self, given: Mapping[str, str], out: IO[bytes]) -> None:
        self._given = given
        self._out = out
        self._children = [Child(name) for name in FLEET]
        self._selector = selectors.DefaultSelector()
        self._end_signal = 0  # the signal that asked this process to end

    def run(self) -> int:
        """Work until a signal asks for the end, or a child cannot work. Returns this
        process's status.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note_signal)
        self._watch_signals()
        status = self._migrate()
        while not status and not self._end_signal:
            self._start_due()
            self._pass_lines_on(self._pause_s())
            status = self._reap()
        self._stop()
        if not status and self._end_signal == signal.SIGINT:
            return SIGNAL_STATUS_BASE + self._end_signal
        return status

    def _note_signal(self, number: int, _: object) -> None:
        self._end_signal = number

    def _watch_signals(self) -> None:
        """Let a signal end the wait for lines."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        self._selector.register(reader, selectors.EVENT_READ, None)

    def _migrate(self) -> int:
        """Bring the ledger's tables up to date before any process uses them. Returns
        its status, or 0 when asked to end.
        """
        child = Child("migrate")
        process = self._start(child)
        while process.poll() is None:
            self._pass_lines_on(FIRST_PAUSE_S)
            if self._end_signal:
                process.terminate()
        self._pass_lines_on(0.0)
        if self._end_signal:
            return 0
        return process.returncode

    def _start_due(self) -> None:
        now_s = time.monotonic()
        for child in self._children:
            if child.start_at_s <= now_s:
                self._start(child)

    def _start(self, child: Child) -> "subprocess.Popen[bytes]":
        child.started_s = time.monotonic()
        process = subprocess.Popen(
            command(child.name, [], self._given),
            env=environment_of(child.name, self._given),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Ctrl-C reaches this process alone, which ends the children in peace
            start_new_session=True,
            preexec_fn=partial(_end_with, os.getpid()),  # no other thread runs here
        )
        child.process, child.start_at_s = process, inf
        assert process.stdout is not None  # noqa: S101  PIPE
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, child)
        return process

    def _pause_s(self) -> float:
        """Seconds until a child must be started; at most FIRST_PAUSE_S, as no event
        reports a child's end.
        """
        now_s = time.monotonic()
        waits = [child.start_at_s - now_s for child in self._children]
        return max(min([FIRST_PAUSE_S, *waits]), 0.0)

    def _pass_lines_on(self, wait_s: float) -> None:
        for key, _ in self._selector.select(wait_s):
            if key.data is None:
                os.read(key.fd, 1024)  # the bytes of signals
                continue
            output = os.read(key.fd, 65536)
            self._write(key.data, output)
            if not output:
                self._selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]

    def _write(self, child: Child, output: bytes) -> None:
        """Write whole lines, each with the child's name: JSON has it as `process`,
        other lines begin with it.
        """
        *lines, child.rest = (child.rest + output).split(b"\n")
        if not output and child.rest:  # the end of the output ends its last line
            lines, child.rest = [child.rest], b""
        for line in lines:
            if line.startswith(b'{"'):
                named = b'{"process": "%s", %s' % (
                    child.name.encode(),
                    line.removeprefix(b"{"),
                )
            else:
                named = b"%s: %s" % (child.name.encode(), line)
            self._out.write(named + b"\n")
        self._out.flush()

    def _reap(self) -> int:
        """Plan the next start of each child that has ended. Returns the status with
        which this process must end, or 0.
        """
        now_s = time.monotonic()
        for child in self._children:
            if child.process is None or child.process.poll() is None:
                continue
            status = child.process.returncode
            child.ended(now_s)
            ended = {"process": child.name, "status": status}
            if status == WRONG_SETTINGS:
                log.error(
                    "fleet_ended", reason="its settings do not let it work", **ended
                )
                return WRONG_SETTINGS
            if child.restarts > MAX_RESTARTS:
                log.error(
                    "fleet_ended",
                    reason=f"it ended {child.restarts} times in a row",
                    **ended,
                )
                return 1
            log.warning(
                "process_ended",
                starts_again_in_s=round(child.start_at_s - now_s),
                **ended,
            )
        return 0

    def _stop(self) -> None:
        """End the children. A worker ends what it has begun; what still runs after
        STOP_AFTER_S is killed.
        """
        processes = [
            child.process for child in self._children if child.process is not None
        ]
        for process in processes:
            process.terminate()
        deadline_s = time.monotonic() + STOP_AFTER_S
        while any(process.poll() is None for process in processes):
            if time.monotonic() >= deadline_s:
                break
            self._pass_lines_on(FIRST_PAUSE_S / 10)
        for process in processes:
            process.kill()
            process.wait()
        self._pass_lines_on(0.0)


def _end_with(parent: int) -> None:
    """Have the kernel end this child when its parent is gone. It runs in the child
    before the child's program.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def run_fleet(flags: Flags) -> int:
    """Run the fleet with these flags over the environment, and the environment over the
    files of the working directory. Returns this process's status.
    """
    files = files_here()
    try:
        given = overridden(variables_of(files), os.environ)
    except EnvFileError as error:
        logs.log_refusal(str(error), os.environ.get("CLUSTER_NAME", ""))
        return WRONG_SETTINGS
    given = overridden(given, flags.settings)
    missing = [] if flags.embedded else missing_servers(SERVERS, given)
    wrong = [*missing, *unreadable_key(given)]
    if wrong:
        logs.log_refusal("\n".join(wrong), given.get("CLUSTER_NAME", ""))
        return WRONG_SETTINGS
    protect_memory("fleet")  # the children are given theirs from `given`
    logs.configure(secrets=given_secrets(given), cluster=given.get("CLUSTER_NAME", ""))
    logs.log_crashes()
    if files:
        log.info("settings_files_read", files=[str(file) for file in files])
    warn_of_mistyped(frozenset(given))
    secrets = variables_with_a_secret(flags.settings)
    if secrets:
        expected = f"the variable, or {secrets[0]}_FILE: every user of this host can read the command line"
        log.warning(
            "secret_on_the_command_line", found=", ".join(secrets), expected=expected
        )
    return FleetRunner(given, sys.stdout.buffer).run()
