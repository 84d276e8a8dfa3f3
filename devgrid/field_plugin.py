"""An imitation of the plugins that clusters in the field run: each event is told once, and lost when nobody takes it.

The real ones live in slurmctld and slurmd. This one is a process of its own, which learns of the events by the project's hooks
(in a folder that serves as its memory and as nothing else): what it sends is the same.
`python -m devgrid.field_plugin --events FOLDER --supervisor HOST:PORT [--ca FILE]`
"""

import argparse
import logging
import signal
import threading
from pathlib import Path

import grpc
from watchfiles import watch

from plugins import spool
from plugins.authorized_keys import open_channel
from protos.supervisor.v1alpha1.supervisor_pb2 import SetJobStatusRequest
from protos.supervisor.v1alpha1.supervisor_pb2_grpc import JobAPIStub

log = logging.getLogger("field_plugin")

TIMEOUT_S = 5.0


def run(folder: Path, stub: JobAPIStub, stopping: threading.Event) -> None:
    """Tell what comes, once, until `stopping`."""
    _tell_all(folder, stub)
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
        _tell_all(folder, stub)


def _tell_all(folder: Path, stub: JobAPIStub) -> None:
    for file in spool.pending(folder):
        event = spool.read(file, told_by_the_field)
        file.unlink()
        try:
            stub.SetJobStatus(_request(event), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            log.warning("lost: status %d of SLURM's %d: %s", event.status, event.slurm_id, error.code().name)


def told_by_the_field(state: str, exit_status: int) -> tuple[int, int]:
    """Whatever is no failure, time-out or cancellation is FINISHED to the field's plugin: NODE_FAIL, PREEMPTED and the like."""
    statuses = {"FAILED": spool.FAILED, "TIMEOUT": spool.OUT_OF_CREDITS, "CANCELLED": spool.CANCELLED}
    return statuses.get(state, spool.FINISHED), exit_status


def _request(event: spool.SpooledEvent) -> SetJobStatusRequest:
    return SetJobStatusRequest(
        name=event.job_id,
        id=event.slurm_id,
        duration=event.duration_s,
        status=event.status,  # type: ignore[arg-type]  # the enum's number
        exit_code=event.exit_code,
    )


def main() -> None:
    """Read the options and run until SIGTERM."""
    parser = argparse.ArgumentParser(prog="field_plugin", description=__doc__)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--supervisor", required=True, metavar="HOST:PORT")
    parser.add_argument("--ca", type=Path)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with open_channel(options.supervisor, options.ca) as channel:
        run(options.events, JobAPIStub(channel), stopping)


if __name__ == "__main__":
    main()
