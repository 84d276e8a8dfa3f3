"""A spool, a reporter, and a supervisor that records its calls, for the tests of the
programs beside SLURM.
"""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer, add_HealthServicer_to_server

from devgrid import REPOSITORY
from devgrid.processes import Processes, Running
from devgrid.tls import Certificates
from plugins.spool import NAME
from protos.supervisor.v1alpha1.supervisor_pb2 import (
    FetchAuthorizedKeysRequest,
    FetchAuthorizedKeysResponse,
    SetJobStatusRequest,
    SetJobStatusResponse,
)
from protos.supervisor.v1alpha1.supervisor_pb2_grpc import (
    JobAPIServicer,
    SshAPIServicer,
    add_JobAPIServicer_to_server,
    add_SshAPIServicer_to_server,
)

KEY = "restrict,pty ssh-ed25519 AAAA supervisor\n"


class Supervisor(JobAPIServicer, SshAPIServicer, HealthServicer):
    """A gRPC server that records its calls. The first calls are refused with
    `refusals`, one each. `always` is the refusal of all calls about a job.
    """

    def __init__(self) -> None:
        self.calls: deque[tuple[float, SetJobStatusRequest]] = deque()
        self.refusals: deque[grpc.StatusCode] = deque()
        self.always: dict[int, grpc.StatusCode] = {}  # by SLURM's id
        self.health_asked: deque[str] = deque()  # the services
        self.under_way = self.most_under_way = 0
        self.authorized_keys = KEY
        self.hold = threading.Event()
        self.hold.set()
        self._lock = threading.Lock()

    def SetJobStatus(  # noqa: N802  the method of a gRPC service is named by its protocol
        self, request: SetJobStatusRequest, context: grpc.ServicerContext
    ) -> SetJobStatusResponse:
        """Store the call, and answer it once `hold` is set."""
        with self._lock:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            self.calls.append((time.monotonic(), request))
            refusal = (
                self.refusals.popleft()
                if self.refusals
                else self.always.get(request.id)
            )
        self.hold.wait()
        with self._lock:
            self.under_way -= 1
        if refusal is not None:
            context.abort(refusal, "no such job\nERROR forged")
        return SetJobStatusResponse()

    def FetchAuthorizedKeys(  # noqa: N802
        self,
        request: FetchAuthorizedKeysRequest,  # noqa: ARG002
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> FetchAuthorizedKeysResponse:
        """Answer with the authorized keys of every user."""
        return FetchAuthorizedKeysResponse(authorized_keys=self.authorized_keys)

    def Check(  # noqa: N802
        self,
        request: HealthCheckRequest,
        context: object,  # noqa: ARG002
    ) -> HealthCheckResponse:
        """Answer that the service works."""
        self.health_asked.append(request.service)
        return HealthCheckResponse(status=HealthCheckResponse.SERVING)

    def received(self, slurm_id: int) -> list[tuple[int, int]]:
        """Status and exit code of each call about a job, in order."""
        return [
            (call.status, call.exit_code)
            for _, call in self.calls
            if call.id == slurm_id
        ]


@contextmanager
def serving(
    port: int = 0, certificates: Certificates | None = None
) -> Iterator[tuple[Supervisor, int]]:
    """Yields a supervisor and its port, with TLS if there are certificates."""
    server, service = grpc.server(ThreadPoolExecutor(16)), Supervisor()
    add_JobAPIServicer_to_server(service, server)
    add_SshAPIServicer_to_server(service, server)
    add_HealthServicer_to_server(service, server)
    if certificates is None:
        port = server.add_insecure_port(f"127.0.0.1:{port}")
    else:
        pair = (certificates.key.read_bytes(), certificates.cert.read_bytes())
        port = server.add_secure_port(
            f"127.0.0.1:{port}", grpc.ssl_server_credentials([pair])
        )
    server.start()
    try:
        yield service, port
    finally:
        service.hold.set()
        server.stop(None).wait()


def name_of(number: int) -> str:
    """A job id of the grid."""
    return f"0x{number:064x}"


def new_spool(processes: Processes) -> Path:
    """Make a spool, as a site does."""
    spool = processes.folder / "spool"
    spool.mkdir()
    return spool


def events(spool: Path) -> list[str]:
    """The names of the events that wait in the spool."""
    return sorted(file.name for file in spool.iterdir() if NAME.fullmatch(file.name))


def write(spool: Path, slurm_id: int, kind: str, sequence: int | None = None) -> Path:
    """Write an event into the spool, as the hooks do."""
    text = f"job_id={name_of(slurm_id)}\nslurm_id={slurm_id}\n"
    text = (
        "event=started\n" + text
        if kind == "start"
        else "event=ended\n" + text + "state=FAILED\nexit=3:0\nstart_s=5\nend_s=9\n"
    )
    text += "complete=1\n"
    file = (
        spool
        / f"{time.time_ns() if sequence is None else sequence:019d}-{slurm_id}-{kind}"
    )
    draft = spool / f".{file.name}"
    draft.write_text(text)
    return draft.rename(file)


def start_reporter(
    processes: Processes,
    spool: Path,
    port: int,
    authority: Path | None = None,
    *,
    within: Sequence[str] = (),
    **environment: str,
) -> Running:
    """Start a reporter, and wait until it works. `within` is a command that runs the
    reporter's own, as a prefix.
    """
    options = ["--spool", str(spool), "--supervisor", f"127.0.0.1:{port}"]
    options += [] if authority is None else ["--ca", str(authority)]
    ready: Callable[[], bool] = (spool / "rejected").exists
    argv = [*within, sys.executable, "-m", "plugins.reporter", *options]
    return processes.start(
        "reporter", argv, cwd=REPOSITORY, ready=ready, env={**os.environ, **environment}
    )
