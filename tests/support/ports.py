"""A callbacks' port to attack: the gRPC process with a database and a broker of its
own, without a grid.
"""

import resource
import secrets
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import grpc
import psutil
from sqlalchemy import Engine, insert, text

from devgrid import REPOSITORY
from devgrid.machine import deadline
from devgrid.ports import free_port
from devgrid.processes import Processes, Running, answers
from devgrid.state_folder import private_processes
from devgrid.tls import Certificates, make_certificates
from plugins.authorized_keys import REQUEST, Http2Connection, keys_in
from protos.supervisor.v1alpha1 import supervisor_pb2 as messages
from protos.supervisor.v1alpha1 import supervisor_pb2_grpc as services
from supervisor_tasks.ledger.tables import METADATA
from tests.support.callback_servers import start_servers, until_stored

SLOWLY_S = 0.2
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")


SET_JOB_STATUS = b"/supervisor.v1alpha1.JobAPI/SetJobStatus"
WATCH = b"/grpc.health.v1.Health/Watch"


def whole_call(stream: int, path: bytes, message: bytes) -> bytes:
    """The HTTP/2 frames of a call with its message."""
    framed = b"\0" + len(message).to_bytes(4) + message
    data = len(framed).to_bytes(3) + b"\0\1" + stream.to_bytes(4) + framed
    return unfinished_call(stream, path) + data


def unfinished_call(stream: int = 1, path: bytes = SET_JOB_STATUS) -> bytes:
    """The HTTP/2 frame that begins a call, in HPACK without its tables. The message
    of the call never follows.
    """
    block = b"\x83\x86" + b"\x04" + bytes([len(path)]) + path + b"\x01\x01a"
    block += b"\x0f\x10\x10application/grpc" + b"\x00\x02te\x08trailers"
    return len(block).to_bytes(3) + b"\x01\x04" + stream.to_bytes(4) + block


@dataclass
class Port:
    """A running gRPC process."""

    processes: Processes
    running: Running
    address: str

    @property
    def number(self) -> int:
        """Its TCP port."""
        return int(self.address.rpartition(":")[2])

    @property
    def log(self) -> str:
        """What it has logged."""
        return (self.processes.logs / f"{self.running.name}.log").read_text()

    def memory_mb(self) -> float:
        """Its resident memory."""
        return float(psutil.Process(self.running.pid).memory_info().rss / 1e6)


@dataclass
class CallbackSite:
    """A database, a broker and certificates, for gRPC processes that `start` starts."""

    processes: Processes
    engine: Engine
    environment: dict[str, str]
    certificates: Certificates

    def start(self, name: str, host: str = "127.0.0.1", **environment: str) -> Port:
        """Start a gRPC process with these settings; returns when it answers."""
        address = f"{host}:{free_port()}"
        number = int(address.rpartition(":")[2])
        settings = {
            **self.environment,
            "LISTEN_ADDRESS": address,
            "PUBLIC_ADDRESS": f"127.0.0.1:{number}",
            **environment,
        }
        argv = [sys.executable, "-m", "grpc_callbacks"]
        running = self.processes.start(
            name, argv, env=settings, cwd=REPOSITORY, ready=lambda: answers(number)
        )
        return Port(self.processes, running, f"127.0.0.1:{number}")

    @property
    def tls(self) -> dict[str, str]:
        """The settings of a port with TLS."""
        files = self.certificates
        return {
            "TLS_ENABLE": "true",
            "TLS_CERT": str(files.cert),
            "TLS_KEY": str(files.key),
        }

    def number_of(self, query: str, **about: object) -> int:
        """The number that a query of the database selects; 0 for NULL."""
        with self.engine.connect() as connection:
            return int(connection.scalar(text(query), about) or 0)

    def rows(self) -> int:
        """How many callbacks are stored."""
        return self.number_of("SELECT count(*) FROM callbacks")

    def do(self, statement: str, **about: object) -> None:
        """Execute a statement in a transaction of its own."""
        with self.engine.begin() as connection:
            connection.execute(text(statement), about)

    def insert_job(
        self,
        job_id: str,
        slurm_id: int | None = None,
        state: str = "RUNNING",
        cluster: str = "here",
    ) -> None:
        """Insert a job into the ledger."""
        row: dict[str, Any] = {
            "cluster": cluster,
            "job_id": job_id,
            "slurm_id": slurm_id,
            "state": state,
            "customer": f"0x{'2' * 40}",
            "provider": f"0x{'3' * 40}",
            "claim_key": job_id,
            "definition": {},
            "time_limit_min": 60,
            "chain_status": 2,
            "chain_block": 1,
            "chain_log_index": 1,
            "grid_logger_url": "",
            "top_ups": [],
            "cancel_requested": False,
            "poll_count": 0,
            "status_message": "",
        }
        with self.engine.begin() as connection:
            connection.execute(insert(METADATA.tables["jobs"]), row)


@contextmanager
def started_site() -> Iterator[CallbackSite]:
    """A site with a database and a broker, which end with the block."""
    with private_processes() as processes:
        engine, environment = start_servers(processes)
        try:
            yield CallbackSite(
                processes,
                engine,
                environment,
                make_certificates(processes.folder / "tls"),
            )
        finally:
            engine.dispose()


def random_job_id() -> str:
    """A random job id, which no ledger has."""
    return f"0x{secrets.token_hex(32)}"


def report(
    channel: grpc.Channel,
    name: str,
    slurm_id: int = 7,
    timeout_s: float = 10.0,
    **changes: Any,
) -> None:
    """Send a callback that reports the job as finished, with changes; again if it could
    not be stored in time. On a slow machine it waits for the answer longer than
    `timeout_s`.
    """
    fields = {"duration": 1, "status": messages.JOB_STATUS_FINISHED, **changes}
    request = messages.SetJobStatusRequest(name=name, id=slurm_id, **fields)
    call = services.JobAPIStub(channel).SetJobStatus
    until_stored(lambda: call(request, timeout=deadline(timeout_s)))


def answer_to(
    channel: grpc.Channel, name: str, slurm_id: int = 7, **changes: Any
) -> grpc.StatusCode:
    """Send such a callback. Returns the status of the answer."""
    try:
        report(channel, name, slurm_id, **changes)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def usual_wait_s(channel: grpc.Channel, calls: int = 60) -> float:
    """The seconds that an honest caller waits for an answer: the median of many calls,
    as the machine has other work, too.
    """
    fetch = services.SshAPIStub(channel).FetchAuthorizedKeys
    waits_s = []
    for _ in range(calls):
        began_s = time.perf_counter()
        fetch(messages.FetchAuthorizedKeysRequest(), timeout=20)
        waits_s.append(time.perf_counter() - began_s)
    return statistics.median(waits_s)


def keys_for(port: Port, address: str) -> str:
    """What sshd's command at that address gets. Raises OSError when it is refused."""
    where = ("127.0.0.1", port.number)
    with socket.create_connection(where, 10, source_address=(address, 0)) as own:
        ends_s = time.clock_gettime(time.CLOCK_BOOTTIME) + deadline(10)
        call = Http2Connection(own, ends_s).call
        return keys_in(call("http", port.address, REQUEST, ()))


def allow_open_files(number: int) -> None:
    """Let this process open so many files, as far as the machine permits."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(number, limit), limit))


class Crowd:
    """Connections that stay open, and send given bytes; from any number of addresses
    (127.0.1.1, 127.0.1.2 ...).
    """

    def __init__(self, port: Port) -> None:
        self._port = port
        self._sockets: list[socket.socket] = []
        self._slow: list[tuple[socket.socket, bytes]] = []
        self._leaving = threading.Event()
        self._sender: threading.Thread | None = None

    def connect(self, number: int, sends: bytes = b"", addresses: int = 1) -> None:
        """Open so many more connections. One that the port closes at once counts,
        too.
        """
        for turn in range(number):
            address = turn % addresses
            connection = socket.socket()
            self._sockets.append(connection)
            connection.settimeout(30.0)
            connection.bind((f"127.0.{1 + address // 250}.{1 + address % 250}", 0))
            try:
                connection.connect(("127.0.0.1", self._port.number))
                connection.sendall(sends)
            except OSError:
                continue  # it is closed already

    def send_slowly(
        self, number: int, first: bytes, slowly: bytes, addresses: int = 1
    ) -> None:
        """Open so many more connections, which send `first` at once, and then a byte of
        `slowly` every SLOWLY_S.
        """
        self.connect(number, first, addresses)
        self._slow += [(connection, slowly) for connection in self._sockets[-number:]]
        if self._sender is None:
            self._sender = threading.Thread(target=self._send_on, daemon=True)
            self._sender.start()

    def _send_on(self) -> None:
        place = 0
        while not self._leaving.wait(SLOWLY_S):
            for connection, slowly in list(self._slow):
                with suppress(OSError):  # it is closed already
                    connection.send(slowly[place : place + 1], socket.MSG_DONTWAIT)
            place += 1

    def still_open(self) -> int:
        """How many of the connections the port has not closed."""
        return sum(1 for connection in self._sockets if not _is_closed(connection))

    def leave(self) -> None:
        """Close all connections."""
        self._leaving.set()
        if self._sender is not None:
            self._sender.join()
        for connection in self._sockets:
            connection.close()
        self._sockets.clear()


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(65_536):
            continue
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
