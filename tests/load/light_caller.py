"""`python -m tests.load.light_caller`: callers of SetJobStatus that take little CPU
from the server that is measured.

It speaks HTTP/2 over TLS itself, in one thread with one connection for each caller, and
writes the same frames as gRPC's clients: headers without HPACK's tables, a message, the
end of the stream. grpcio's own client takes some 0.3 ms of CPU a call, which on two
cores would count as the server's. Prints one JSON object (`Outcome`).

With a rate, calls begin at their times, without waiting for the answers to earlier ones
(open loop). Without it, each caller begins its next call when it has its answer (closed
loop).
"""

import argparse
import json
import selectors
import socket
import ssl
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from devgrid import REPOSITORY
from protos.supervisor.v1alpha1.supervisor_pb2 import JobStatus, SetJobStatusRequest

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
METHOD = b"/supervisor.v1alpha1.JobAPI/SetJobStatus"
ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls: `number` callbacks about as many jobs, with ids from `first` on, all
    with SLURM id 1.

    `rate` is how many begin a second. If it is 0, each of the `callers` begins its next
    call when it has its answer.
    """

    first: int
    number: int
    callers: int
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of the calls: how many were answered, in how many seconds, and the
    wait of each in seconds.

    In the open loop, the wait begins at the time at which the call was due, so that a
    late caller does not hide a wait.
    """

    answered: int
    seconds: float
    waits_s: list[float]

    def p99_ms(self) -> float:
        return 1000 * statistics.quantiles(self.waits_s, n=100)[98]


@dataclass(slots=True)
class Connection:
    """One caller's connection. `due` are the times of the calls that wait for their
    answers, by stream. `answered` are the streams whose message has come: gRPC sends
    one with OK, and none with any other status.
    """

    socket: ssl.SSLSocket
    authority: str
    stream: int = -1
    received: bytearray = field(default_factory=bytearray)
    due: dict[int, float] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)

    def call(self, message: bytes, due_s: float) -> None:
        """Begin a call: send its headers and its message at once."""
        self.stream += 2
        self.due[self.stream] = due_s
        body = b"\0" + len(message).to_bytes(4) + message
        block = _headers(self.authority)
        self.socket.sendall(
            _frame(HEADERS, END_HEADERS, self.stream, block)
            + _frame(DATA, END_STREAM, self.stream, body)
        )

    def answers(self) -> list[float]:
        """Read what has come. Returns the due times of the calls that are answered now.
        Raises ConnectionError.
        """
        while True:
            try:
                piece = self.socket.recv(65_536)
            except ssl.SSLWantReadError:
                break
            if not piece:
                raise ConnectionError("the server has closed the connection")
            self.received += piece
        return self._ended(self.received)

    def _ended(self, received: bytearray) -> list[float]:
        ended, at = [], 0
        while len(received) - at >= 9 + (
            length := int.from_bytes(received[at : at + 3])
        ):
            kind, flags = received[at + 3], received[at + 4]
            stream = int.from_bytes(received[at + 5 : at + 9])
            payload = bytes(received[at + 9 : at + 9 + length])
            at += 9 + length
            if kind == GOAWAY:
                raise ConnectionError(f"the server closes the connection: {payload!r}")
            self._acknowledge(kind, flags, payload)
            if kind == DATA:
                self.answered.add(stream)
            if kind == HEADERS and flags & END_STREAM:
                ended.append(self._end(stream))
        del received[:at]
        return ended

    def _end(self, stream: int) -> float:
        if stream not in self.answered:
            raise RuntimeError("a call was refused: its answer has no message")
        self.answered.remove(stream)
        return self.due.pop(stream)

    def _acknowledge(self, kind: int, flags: int, payload: bytes) -> None:
        if kind in (SETTINGS, PING) and not flags & ACK:
            self.socket.sendall(_frame(kind, ACK, 0, payload if kind == PING else b""))


def run(address: str, authority: Path, calls: Calls) -> Outcome:
    """Make the calls. Raises RuntimeError when a call is refused or not answered within
    ANSWER_S.
    """
    connections = [_connect(address, authority) for _ in range(calls.callers)]
    waiting = deque(
        _message(job_id(number))
        for number in range(calls.first, calls.first + calls.number)
    )
    try:
        return _Loop(connections, waiting, calls.rate).run()
    finally:
        for connection in connections:
            connection.socket.close()


class _Loop:
    """Makes the calls on all connections: in a closed loop, or in an open loop at a
    rate a second.
    """

    def __init__(
        self, connections: Sequence[Connection], waiting: deque[bytes], rate: float
    ) -> None:
        self._connections = connections
        self._waiting = waiting
        self._rate = rate
        self._wanted = len(waiting)
        self._begun = 0
        self._waits_s: list[float] = []
        self._selector = selectors.DefaultSelector()
        for connection in connections:
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def run(self) -> Outcome:
        began_s = time.perf_counter()
        if not self._rate:
            for connection in self._connections:
                self._begin(connection, began_s)
        while len(self._waits_s) < self._wanted:
            pause_s = self._begin_due(began_s) if self._rate else ANSWER_S
            ready = self._selector.select(pause_s)
            if not ready and pause_s == ANSWER_S:
                raise RuntimeError(
                    f"{len(self._waits_s)} of {self._wanted} calls were answered, and no more"
                )
            for key, _ in ready:
                self._take_answers(key.data)
        return Outcome(len(self._waits_s), time.perf_counter() - began_s, self._waits_s)

    def _begin_due(self, began_s: float) -> float:
        """Begin the calls that are due. Returns the seconds until the next one is
        due.
        """
        while self._waiting:
            due_s = began_s + self._begun / self._rate
            pause_s = due_s - time.perf_counter()
            if pause_s > 0:
                return pause_s
            self._begin(self._connections[self._begun % len(self._connections)], due_s)
        return ANSWER_S

    def _begin(self, connection: Connection, due_s: float) -> None:
        if self._waiting:
            connection.call(self._waiting.popleft(), due_s)
            self._begun += 1

    def _take_answers(self, connection: Connection) -> None:
        ended = connection.answers()
        now_s = time.perf_counter()
        self._waits_s += [now_s - due_s for due_s in ended]
        if not self._rate:
            for _ in ended:
                self._begin(connection, time.perf_counter())


def job_id(number: int) -> str:
    """The id of a made-up job."""
    return f"0x{number:064x}"


def _connect(address: str, authority: Path) -> Connection:
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=str(authority))
    context.set_alpn_protocols(["h2"])
    plain = socket.create_connection((host, int(port)), 10.0)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    encrypted = context.wrap_socket(plain, server_hostname=host)
    # Answers are small: with a window as large as HTTP/2 allows, no later WINDOW_UPDATE
    # is needed.
    window = _frame(WINDOW_UPDATE, 0, 0, (2**31 - 1 - 65_535).to_bytes(4))
    encrypted.sendall(PREFACE + _frame(SETTINGS, 0, 0, b"") + window)
    encrypted.setblocking(False)
    return Connection(encrypted, address)


def _headers(authority: str) -> bytes:
    """The headers in HPACK: two indexed fields, and literals that are not put into a
    table and not compressed.
    """
    fields = (
        (b"\x04", METHOD),
        (b"\x01", authority.encode()),
        (b"\x0f\x10", b"application/grpc"),
        (b"\x00\x02te", b"trailers"),
    )
    return b"\x83\x87" + b"".join(
        name + bytes([len(value)]) + value for name, value in fields
    )


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload
    )


def _message(name: str) -> bytes:
    status = JobStatus.JOB_STATUS_FINISHED
    return SetJobStatusRequest(
        name=name, id=1, duration=1, status=status
    ).SerializeToString()


def in_a_process(address: str, authority: Path, calls: Calls) -> Outcome:
    """Run `run` in a process of its own, which does not share an interpreter with the
    measuring program.
    """
    argv = [
        sys.executable,
        "-m",
        "tests.load.light_caller",
        address,
        str(authority),
        json.dumps(asdict(calls)),
    ]
    done = subprocess.run(
        argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=300
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"the caller ended with status {done.returncode}:\n{done.stderr}"
        )
    return Outcome(**json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(prog="light_caller", description=__doc__)
    parser.add_argument("address")
    parser.add_argument("authority", type=Path)
    parser.add_argument("calls", help="the fields of Calls as JSON")
    options = parser.parse_args()
    print(
        json.dumps(
            asdict(
                run(
                    options.address,
                    options.authority,
                    Calls(**json.loads(options.calls)),
                )
            )
        )
    )


if __name__ == "__main__":
    main()
