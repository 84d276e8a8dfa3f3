"""Delivers the spool to the supervisor, in each job's order, until every event is acknowledged.

`python -m plugins.reporter --spool FOLDER --supervisor HOST:PORT [--ca FILE]`, beside slurmctld. An event's file is removed
when the supervisor has answered OK, and not before; one that the supervisor calls malformed goes to `rejected/`.
"""

import argparse
import logging
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

import grpc
from watchfiles import watch

from plugins import spool
from plugins.authorized_keys import open_channel
from protos.supervisor.v1alpha1.supervisor_pb2 import SetJobStatusRequest
from protos.supervisor.v1alpha1.supervisor_pb2_grpc import JobAPIStub

log = logging.getLogger("reporter")

CALLERS = 8
TIMEOUT_S = 30.0
LONGEST_WAIT_S = 2.0
LOOK_ANYWAY_MS = 500  # for what came before the kernel was asked to tell


class Reporter:
    """Delivers one spool to one supervisor."""

    def __init__(self, folder: Path, stub: JobAPIStub) -> None:
        self._folder = folder
        self._stub = stub
        self._stopping = threading.Event()
        self._last_failure = ""
        self._callers = ThreadPoolExecutor(CALLERS, thread_name_prefix="caller")

    def run(self) -> None:
        """Deliver what is there and what comes, until `stop`."""
        (self._folder / "rejected").mkdir(exist_ok=True)
        self._deliver_all()
        changes = watch(
            self._folder,
            debounce=20,
            step=10,
            recursive=False,
            rust_timeout=LOOK_ANYWAY_MS,
            yield_on_timeout=True,
            stop_event=self._stopping,
            raise_interrupt=False,
            watch_filter=lambda _, path: bool(spool.NAME.fullmatch(Path(path).name)),
        )
        for _ in changes:
            self._deliver_all()
        self._callers.shutdown()

    def stop(self) -> None:
        """End after what is under way."""
        self._stopping.set()

    def _deliver_all(self) -> None:
        """Deliver until the spool is empty, with a growing wait while the supervisor does not answer."""
        wait_s = 0.1
        while files := spool.pending(self._folder):
            if self._deliver(files):
                wait_s = 0.1
            else:
                log.warning("%d events wait, next try in %.1f s: %s", len(files), wait_s, self._last_failure)
                if self._stopping.wait(wait_s):
                    return
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _deliver(self, files: Sequence[Path]) -> bool:
        """One try for each event; False when one was not answered. Jobs go side by side, a job's own events in order."""
        events = [event for file in files for event in self._read(file)]
        by_job = groupby(sorted(events, key=lambda event: event.job_id), key=lambda event: event.job_id)
        return all(list(self._callers.map(self._deliver_job, [list(group) for _, group in by_job])))

    def _deliver_job(self, events: Sequence[spool.SpooledEvent]) -> bool:
        return all(self._call(event) for event in events)

    def _call(self, event: spool.SpooledEvent) -> bool:
        request = SetJobStatusRequest(
            name=event.job_id,
            id=event.slurm_id,
            duration=event.duration_s,
            status=event.status,  # type: ignore[arg-type]  # the enum's number
            exit_code=event.exit_code,
        )
        try:
            self._stub.SetJobStatus(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                self._last_failure = f"{error.code().name}: {error.details()!r}"
                return False
            self._reject(event.file, error.details() or "")
        else:
            event.file.unlink(missing_ok=True)
        return True

    def _read(self, file: Path) -> list[spool.SpooledEvent]:
        try:
            return [spool.read(file)]
        except spool.MalformedEventError as error:
            self._reject(file, str(error))
            return []

    def _reject(self, file: Path, reason: str) -> None:
        log.error("rejected %s: %r", file.name, reason)
        file.rename(self._folder / "rejected" / file.name)


def main() -> None:
    """Read the options and deliver until SIGTERM."""
    parser = argparse.ArgumentParser(prog="reporter", description="Delivers SLURM's events to the supervisor.")
    parser.add_argument("--spool", type=Path, required=True, help="where the hooks write")
    parser.add_argument("--supervisor", required=True, metavar="HOST:PORT")
    parser.add_argument("--ca", type=Path, help="certificate authority of the supervisor; without it, no TLS")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    with open_channel(options.supervisor, options.ca) as channel:
        reporter = Reporter(options.spool, JobAPIStub(channel))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: reporter.stop())
        reporter.run()


if __name__ == "__main__":
    main()
