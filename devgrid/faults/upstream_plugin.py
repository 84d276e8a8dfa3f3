"""An imitation of the plugins that clusters in the field run: each event is sent once,
and lost if it is not accepted.

The real ones live in slurmd (SPANK, the job's start) and in slurmctld (job completion).
This one is a process of its own. It gets the events from the project's hooks, through a
folder that has no other use. With squeue it gets what the real ones find in SLURM's own
memory: the job's comment, its start and its end. It sends the same:

- only of a job whose comment begins with `supervisor`, to the address that begins at
  its twelfth character;
- by a channel of its own for each event: TLS always, the host name checked and the
  certificate not, 30 s at most, once;
- RUNNING with duration 0 at the start; FAILED, OUT_OF_CREDITS (TIMEOUT) or CANCELLED at
  the end, FINISHED of every other one;
- nothing where a job is requeued or resized.

`python -m devgrid.faults.upstream_plugin --events FOLDER`, with SLURM_CONF in its
environment
"""

import argparse
import logging
import os
import signal
import ssl
import subprocess
import threading
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
from watchfiles import watch

from plugins import spool
from protos.supervisor.v1alpha1.supervisor_pb2 import SetJobStatusRequest
from protos.supervisor.v1alpha1.supervisor_pb2_grpc import JobAPIStub

log = logging.getLogger("upstream_plugin")

TIMEOUT_S = 30.0
COMMENT_WORD = "supervisor"
ADDRESS_AT = 11  # of the comment's characters, counted from 0
# so many nodes may report a start at once; slurmctld reports one end after the other
NODES = 8
NOT_SENT = 0  # JOB_STATUS_UNSPECIFIED
STATUSES = {
    "FAILED": spool.FAILED,
    "TIMEOUT": spool.OUT_OF_CREDITS,
    "CANCELLED": spool.CANCELLED,
    "REQUEUED": NOT_SENT,
    "PENDING": NOT_SENT,  # in SLURM 22.05, the completion hook's state of a requeue
    "RESIZING": NOT_SENT,
}


@dataclass(frozen=True, slots=True)
class InSlurm:
    """SLURM's data of a job. The times are seconds since the epoch, 0 for none."""

    comment: str
    start_s: int
    end_s: int

    @property
    def address(self) -> str:
        """The supervisor's, or "" for a job that is not the supervisor's."""
        return (
            self.comment[ADDRESS_AT:] if self.comment.startswith(COMMENT_WORD) else ""
        )

    @property
    def lasted_s(self) -> int:
        """The whole time, even if the job was resized meanwhile."""
        return max(self.end_s - self.start_s, 0) if self.start_s else 0


def upstream_report(state: str, exit_status: int) -> tuple[int, int]:
    """The status and exit status to send. FINISHED for NODE_FAIL, PREEMPTED and the
    like; NOT_SENT for no callback.
    """
    return STATUSES.get(state, spool.FINISHED), exit_status


def run(folder: Path, stopping: threading.Event) -> None:
    """Send each event that comes once, until `stopping`."""
    with ThreadPoolExecutor(NODES) as nodes, ThreadPoolExecutor(1) as controller:
        _take_all(folder, nodes, controller)
        for _ in watch(
            folder,
            debounce=20,
            step=10,
            recursive=False,
            rust_timeout=500,
            yield_on_timeout=True,
            stop_event=stopping,
            raise_interrupt=False,
        ):
            _take_all(folder, nodes, controller)


def _take_all(folder: Path, nodes: Executor, controller: Executor) -> None:
    for file in spool.pending(folder):
        event = spool.read(file, upstream_report)
        file.unlink()
        if event.status != NOT_SENT:
            (nodes if event.status == spool.RUNNING else controller).submit(
                _try_to_send, event
            )


def _try_to_send(event: spool.SpooledEvent) -> None:
    try:
        send(event, job_in_slurm(event.slurm_id))
    except (grpc.RpcError, OSError, ValueError, subprocess.SubprocessError) as error:
        reason = error.code().name if isinstance(error, grpc.Call) else error
        log.warning(
            "lost: status %d of SLURM's %d: %s", event.status, event.slurm_id, reason
        )


def job_in_slurm(slurm_id: int) -> InSlurm:
    """Query a job with squeue. Raises CalledProcessError when SLURM does not know
    it.
    """
    argv = [
        "squeue",
        "--noheader",
        "--states=all",
        f"--jobs={slurm_id}",
        "--format=%S|%e|%k",
    ]
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    done = subprocess.run(
        argv,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    start, end, comment = done.stdout.rstrip("\n").split("|", 2)
    return InSlurm(
        comment, *(int(word) if word.isdigit() else 0 for word in (start, end))
    )


def send(event: spool.SpooledEvent, job: InSlurm) -> None:
    """Send one callback to the address in the job's comment, unless the job is not the
    supervisor's. gRPC always verifies the certificate: the one that the server shows is
    used as the authority, so that only its host name is checked.
    """
    if not job.address:
        return
    ends_s = time.monotonic() + TIMEOUT_S
    host, _, port = job.address.rpartition(":")
    certificate = ssl.get_server_certificate(
        (host.strip("[]"), int(port)), timeout=TIMEOUT_S
    )
    request = SetJobStatusRequest(
        name=event.job_id,
        id=event.slurm_id,
        duration=0 if event.status == spool.RUNNING else job.lasted_s,
        status=event.status,  # type: ignore[arg-type]  # the enum's number
        exit_code=event.exit_code,
    )
    with grpc.secure_channel(
        job.address, grpc.ssl_channel_credentials(certificate.encode())
    ) as channel:
        JobAPIStub(channel).SetJobStatus(
            request, timeout=max(ends_s - time.monotonic(), 0.0)
        )


def main() -> None:
    """Read the options and run until SIGTERM."""
    parser = argparse.ArgumentParser(prog="upstream_plugin", description=__doc__)
    parser.add_argument("--events", type=Path, required=True)
    folder = parser.parse_args().events
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    run(folder, stopping)


if __name__ == "__main__":
    main()
