"""Delivers the events of a spool to the supervisor: each job's in order, the lost ones as
hints, and heartbeats. reporter.py watches the spool and says when.
"""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from plugins import spool
from plugins.hook_crash_points import crash_point
from plugins.json_log import EventLog
from plugins.probes.progress import LOOP
from protos.supervisor.v1alpha1.supervisor_pb2 import SetJobStatusRequest
from protos.supervisor.v1alpha1.supervisor_pb2_grpc import JobAPIStub

log = EventLog("reporter")

# malformed; about an unknown job
REJECTING_CODES = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
CALLERS = 8
TIMEOUT_S = 10.0
ROUND_JOBS = 500
HEARTBEAT_EVERY_S = 5.0
# the service in a reporter's health check (grpc_callbacks/server.py)
HEARTBEAT_SERVICE = "plugins.reporter"


class Delivery:
    """Delivers the events of one spool to one supervisor, and counts them in `figures`.
    `last_failure` says why the last one was not delivered.
    """

    def __init__(
        self,
        folder: Path,
        stub: JobAPIStub,
        health: HealthStub,
        figures: Counter[str],
        stopping: threading.Event,
    ) -> None:
        self.last_failure = ""
        self._folder = folder
        self._stub = stub
        self._health: Any = health  # its types do not have the methods
        self._figures = figures
        self._stopping = stopping
        self._heartbeat_at_s, self._heartbeat_error = float("-inf"), ""
        self._has_delivered_end = False
        self._failures: Counter[int] = Counter()  # by SLURM's job id
        self._failed_in_a_row = 0
        self._lost_logged = 0  # how many lines of `lost.log` are in the log
        # the hints of these lines that the supervisor has
        self._hints_sent: set[spool.SpooledEvent] = set()
        self._hint_failures: Counter[spool.SpooledEvent] = Counter()
        self._callers = ThreadPoolExecutor(CALLERS, thread_name_prefix="caller")

    def close(self) -> None:
        """End after the deliveries that are under way."""
        self._callers.shutdown()

    def round(self) -> bool:
        """Try each event of up to ROUND_JOBS jobs once; returns False when one was not
        delivered.

        Jobs go in parallel, the events of one job in order. Jobs that failed before
        come last, so that a job that always fails does not delay the others.
        """
        jobs: dict[int, list[Path]] = {}
        for file in spool.pending(self._folder):
            jobs.setdefault(spool.slurm_id_of(file), []).append(file)
        for settled in self._failures.keys() - jobs.keys():
            del self._failures[settled]
        turns = sorted(jobs, key=lambda slurm_id: self._failures[slurm_id])[:ROUND_JOBS]
        self._failed_in_a_row = 0
        delivered = list(
            self._callers.map(
                self._deliver_job, turns, [jobs[slurm_id] for slurm_id in turns]
            )
        )
        return self._deliver_hints() and all(delivered)

    def _deliver_job(self, slurm_id: int, files: Sequence[Path]) -> bool:
        if self._failed_in_a_row >= CALLERS or self._stopping.is_set():
            # the failures are not due to this job: the supervisor does not answer at
            # all
            return False
        # up to the first that fails: the order must stay
        delivered = all(map(self._deliver, files))
        if delivered:
            self._failed_in_a_row = 0
        else:
            self._failed_in_a_row += 1
            self._failures[slurm_id] += 1
        return delivered

    def _deliver(self, file: Path) -> bool:
        """Deliver or reject one event; returns False when it must be tried again."""
        try:
            reason = self._send_file(file)
            if reason is not None:
                self._reject(file, reason)
            with crash_point("event-delivered"):
                file.unlink(missing_ok=True)
        except FileNotFoundError:
            return True  # another process or the operator removed the file
        except grpc.RpcError as error:
            return self._failed(f"{error.code().name}: {error.details()!r}")
        except OSError as error:
            return self._failed(repr(error))
        return True

    def _send_file(self, file: Path) -> str | None:
        """As `_send`, for a file; a malformed file is one that the supervisor will
        never accept.
        """
        try:
            with crash_point("event-read"):
                event = spool.read(file)
        except spool.MalformedEventError as error:
            return str(error)
        return self._send(event)

    def _send(self, event: spool.SpooledEvent) -> str | None:
        """Send an event; returns None, or why the supervisor will never accept it.
        Raises RpcError: a retry helps.
        """
        LOOP.completed()  # a round of many events takes longer than the loop may stand
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
            if error.code() not in REJECTING_CODES:
                raise
            return error.details() or error.code().name
        self._figures["delivered"] += 1
        self._has_delivered_end |= event.status != spool.RUNNING
        return None

    def _failed(self, why: str) -> bool:
        self._figures["failed"] += 1
        self.last_failure = why
        return False

    def _reject(self, file: Path, reason: str) -> None:
        dropped_names = spool.reject(file)
        self._figures["rejected"] += 1
        log.error(
            "event_rejected",
            file=file.name,
            slurm_id=spool.slurm_id_of(file),
            reason=reason,
        )
        for name in dropped_names:
            log.error("rejected_event_dropped", file=name)

    # --- heartbeats -------------------------------------------------------------------

    def send_heartbeat(self) -> None:
        """Send a heartbeat every HEARTBEAT_EVERY_S, but only if this spool has ever
        delivered an end: the supervisor waits for ends.

        The caller has just read the spool, so a reporter that cannot read its spool
        sends no heartbeat.
        """
        now_s, seen = time.monotonic(), self._folder / spool.HAS_END_EVENTS
        if now_s - self._heartbeat_at_s < HEARTBEAT_EVERY_S:
            return
        if not self._has_delivered_end and not seen.exists():
            return
        self._heartbeat_at_s = now_s
        try:
            self._health.Check(
                HealthCheckRequest(service=HEARTBEAT_SERVICE), timeout=TIMEOUT_S
            )
            self._heartbeat_error = ""
        except grpc.RpcError as error:
            code = error.code().name
            if code != self._heartbeat_error:
                log.warning("heartbeat_failed", code=code, error=error.details())
            self._heartbeat_error = code
        if not seen.exists():
            seen.touch()

    # --- lost events ---------------------------------------------------------------------

    def _deliver_hints(self) -> bool:
        """Make the supervisor check each job with a lost event; hints that failed
        before come last.
        """
        record = spool.read_lost(self._folder)
        if record.length == 0:
            return True
        new = record.lines[self._lost_logged :]
        for line in new:
            log.error("event_lost", **_ids_in(line), line=line)
        self._lost_logged = len(record.lines)
        self._hints_sent.difference_update(spool.LostRecord(new).hints)
        unsent = set(record.hints) - self._hints_sent
        turns = sorted(
            unsent, key=lambda hint: (self._hint_failures[hint], hint.slurm_id)
        )
        self._failed_in_a_row = 0
        delivered = list(map(self._deliver_hint, turns))
        if not all(delivered):
            return False
        if spool.clear_lost(self._folder, record.length):
            self._figures["lost"] += len(record.lines)
            self._lost_logged = 0
            self._hints_sent.clear()
            self._hint_failures.clear()
        return True

    def _deliver_hint(self, hint: spool.SpooledEvent) -> bool:
        if self._failed_in_a_row >= CALLERS:
            return False
        try:
            self._send(hint)
        except grpc.RpcError as error:
            self._failed_in_a_row += 1
            self._hint_failures[hint] += 1
            return self._failed(f"{error.code().name}: {error.details()!r}")
        self._failed_in_a_row = 0
        self._hints_sent.add(hint)
        return True


def _ids_in(line: str) -> dict[str, object]:
    """Return the ids of the job that a line of `lost.log` is about; nothing if the line
    is not whole.
    """
    hints = spool.LostRecord((line,)).hints
    if not hints:
        return {}
    return {"job_id": hints[0].job_id, "slurm_id": hints[0].slurm_id}
