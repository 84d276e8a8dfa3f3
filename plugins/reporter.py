"""Delivers the spool to the supervisor, in each job's order, until every event is
acknowledged.

Run `python -m plugins.reporter --spool FOLDER --supervisor HOST:PORT [--ca FILE] [--key
FILE]` beside slurmctld (and on nodes where the SPANK plugin writes). The reporter
removes an event's file only after the supervisor has answered OK. If the supervisor
answers that an event is malformed or about an unknown job, the reporter moves it to
`rejected/`; it tries every other event again. A reporter that has delivered an end
sends the supervisor a heartbeat every few seconds. Needs grpcio,
grpcio-health-checking, protobuf and watchfiles.

With `--health HOST:PORT`, or HEALTH_ADDRESS, it answers there: /livez while it looks at
the spool, /readyz while the spool can be read and the supervisor answers, and /metrics.
"""

import argparse
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from watchfiles import watch
from watchfiles._rust_notify import WatchfilesRustInternalError

from plugins import spool
from plugins.channel import add_options, open_channel, supervisor_of
from plugins.crash_points import crash_point
from plugins.json_log import EventLog, configure
from plugins.probes.progress import LOOP
from plugins.reporter_health import serve_health
from protos.supervisor.v1alpha1.supervisor_pb2 import SetJobStatusRequest
from protos.supervisor.v1alpha1.supervisor_pb2_grpc import JobAPIStub

CLUSTER_NAME = "main"  # as the supervisor's settings have it
log = EventLog("reporter")

# malformed; about an unknown job
REJECTING_CODES = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
CALLERS = 8
TIMEOUT_S = 10.0
MAX_WAIT_S = 2.0
LOOK_ANYWAY_MS = 500  # for events from before the inotify watch
ROUND_JOBS = 500
CARE_EVERY_S = 30.0
FIGURES_EVERY_S = 60.0
HEARTBEAT_EVERY_S = 5.0
# the service in a reporter's health check (grpc_callbacks/server.py)
HEARTBEAT_SERVICE = "plugins.reporter"


class Reporter:
    """Delivers one spool to one supervisor. It logs `figures` every minute."""

    def __init__(self, folder: Path, stub: JobAPIStub, health: HealthStub) -> None:
        self.figures: Counter[str] = Counter(
            delivered=0, failed=0, rejected=0, adopted=0, lost=0
        )
        self._folder = folder
        self._stub = stub
        self._health: Any = health  # its types do not have the methods
        self._heartbeat_at_s, self._heartbeat_error = float("-inf"), ""
        self._has_delivered_end = False
        self._stopping = threading.Event()
        self._failures: Counter[int] = Counter()  # by SLURM's job id
        self._failed_in_a_row = 0
        self._last_failure = self._spool_failure = self._watch_failure = ""
        self._lost_logged = 0  # how many lines of `lost.log` are in the log
        # the hints of these lines that the supervisor has
        self._hints_sent: set[spool.SpooledEvent] = set()
        self._hint_failures: Counter[spool.SpooledEvent] = Counter()
        self._care_at_s, self._figures_at_s = float("-inf"), time.monotonic()
        self._callers = ThreadPoolExecutor(CALLERS, thread_name_prefix="caller")

    def run(self) -> None:
        """Deliver the events in the spool and the new ones, until `stop`."""
        (self._folder / "rejected").mkdir(exist_ok=True)
        self._log_spool_errors_of(self._log_figures)
        while not self._stopping.is_set():
            self._deliver_all()
            self._deliver_new_events()
            LOOP.completed()
            # reached when inotify cannot watch the spool
            self._stopping.wait(LOOK_ANYWAY_MS / 1000)
        self._callers.shutdown()
        self._log_spool_errors_of(self._log_figures)

    def _deliver_new_events(self) -> None:
        """Deliver new events as soon as inotify reports them. If the kernel has no
        watch left, log that once.
        """
        try:
            for _ in self._changes():
                LOOP.completed()
                self._watch_failure = ""
                self._deliver_all()
        except (OSError, WatchfilesRustInternalError) as error:
            if str(error) != self._watch_failure:
                every_s = LOOK_ANYWAY_MS / 1000
                log.error("inotify_unavailable", look_every_s=every_s, error=str(error))
            self._watch_failure = str(error)

    def _changes(self) -> Iterator[object]:
        return watch(
            self._folder,
            debounce=20,
            step=10,
            recursive=False,
            rust_timeout=LOOK_ANYWAY_MS,
            yield_on_timeout=True,
            stop_event=self._stopping,
            raise_interrupt=False,
            watch_filter=lambda _, path: _is_for_delivery(Path(path).name),
        )

    def stop(self) -> None:
        """End `run` after the deliveries that are under way."""
        LOOP.end()
        self._stopping.set()

    def _deliver_all(self) -> None:
        """Deliver all waiting events; log an error of the spool."""
        self._log_spool_errors_of(self._deliver_until_empty)

    def _log_spool_errors_of(self, work: Callable[[], None]) -> None:
        """Do the work. Log once that the spool is not there (a disk, a mount); the
        caller tries again.
        """
        try:
            work()
        except OSError as error:
            if str(error) != self._spool_failure:
                log.error("spool_failed", error=str(error))
            self._spool_failure = str(error)
        else:
            self._spool_failure = ""

    def _deliver_until_empty(self) -> None:
        """Deliver all waiting events; between failed rounds wait longer each time, up
        to MAX_WAIT_S.
        """
        wait_s = 0.1
        self._do_periodic_work()
        while not self._stopping.is_set() and (
            self._has_lost() or spool.pending(self._folder)
        ):
            if self._round():
                wait_s = 0.1
            else:
                waiting = len(spool.pending(self._folder))
                log.warning(
                    "delivery_postponed",
                    events=waiting,
                    again_s=wait_s,
                    error=self._last_failure,
                )
                self._stopping.wait(wait_s)
                wait_s = min(2 * wait_s, MAX_WAIT_S)
            LOOP.completed()
            self._do_periodic_work()
            self._send_heartbeat()
        self._send_heartbeat()

    def _round(self) -> bool:
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
        self.figures["delivered"] += 1
        self._has_delivered_end |= event.status != spool.RUNNING
        return None

    def _failed(self, why: str) -> bool:
        self.figures["failed"] += 1
        self._last_failure = why
        return False

    def _reject(self, file: Path, reason: str) -> None:
        dropped_names = spool.reject(file)
        self.figures["rejected"] += 1
        log.error(
            "event_rejected",
            file=file.name,
            slurm_id=spool.slurm_id_of(file),
            reason=reason,
        )
        for name in dropped_names:
            log.error("rejected_event_dropped", file=name)

    # --- heartbeats -------------------------------------------------------------------

    def _send_heartbeat(self) -> None:
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

    # --- lost events, and drafts of killed hooks --------------------------------------

    def _has_lost(self) -> bool:
        lost = self._folder / spool.LOST_LOG
        return lost.exists() and lost.stat().st_size > 0

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
            self.figures["lost"] += len(record.lines)
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

    def _do_periodic_work(self) -> None:
        """Take care of the spool every CARE_EVERY_S, and log the figures every
        FIGURES_EVERY_S.
        """
        now_s = time.monotonic()
        if now_s - self._care_at_s >= CARE_EVERY_S:
            self._care_at_s = now_s
            spool.keep_reserve(self._folder)
            for abandoned in spool.take_abandoned(self._folder):
                self.figures["adopted"] += abandoned.adopted
                log.error(
                    "hook_killed", file=abandoned.name, outcome=_outcome(abandoned)
                )
        if now_s - self._figures_at_s >= FIGURES_EVERY_S:
            self._figures_at_s = now_s
            self._log_figures()

    def _log_figures(self) -> None:
        waiting = spool.pending(self._folder)
        # 0 if the folder does not exist
        aside = len(list((self._folder / "rejected").glob("*")))
        log.info(
            "reporter_figures",
            waiting=len(waiting),
            **self.figures,
            kept_rejected=aside,
        )


def _outcome(abandoned: spool.Abandoned) -> str:
    if abandoned.error:
        return f"tried again: {abandoned.error}"
    return "taken over" if abandoned.adopted else "not whole, removed"


def _is_for_delivery(name: str) -> bool:
    """Return whether a file of the spool is an event, or the record of lost ones."""
    return name == spool.LOST_LOG or spool.NAME.fullmatch(name) is not None


def _ids_in(line: str) -> dict[str, object]:
    """Return the ids of the job that a line of `lost.log` is about; nothing if the line is
    not whole.
    """
    hints = spool.LostRecord((line,)).hints
    if not hints:
        return {}
    return {"job_id": hints[0].job_id, "slurm_id": hints[0].slurm_id}


def main() -> None:
    """Read the options and deliver until SIGTERM."""
    # a core file would hold the key
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    parser = argparse.ArgumentParser(
        prog="reporter", description="Delivers SLURM's events to the supervisor."
    )
    parser.add_argument(
        "--spool", type=Path, required=True, help="where the hooks write"
    )
    parser.add_argument(
        "--health",
        default=os.environ.get("HEALTH_ADDRESS"),
        help="host:port where it answers probes; none: nowhere",
    )
    parser.add_argument(
        "--cluster",
        default=os.environ.get("CLUSTER_NAME") or CLUSTER_NAME,
        help="its name, for logs and metrics",
    )
    add_options(parser)
    options = parser.parse_args()
    configure(options.cluster)
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    try:
        channel = open_channel(supervisor_of(options))
    except (ValueError, OSError) as error:
        log.error("process_refuses_to_start", reason=str(error))
        sys.exit(2)
    with channel:
        health = HealthStub(channel)
        reporter = Reporter(options.spool, JobAPIStub(channel), health)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: reporter.stop())
        with _served(options, reporter, health):
            try:
                reporter.run()
            except OSError as error:
                log.error("reporter_ends", reason=str(error))
                sys.exit(1)


@contextmanager
def _served(
    options: argparse.Namespace, reporter: Reporter, health: HealthStub
) -> Iterator[None]:
    """Answer probes meanwhile, if an address is given. Ends the process with status 2
    if it is not available.
    """
    if not options.health:
        yield
        return
    try:
        server = serve_health(
            options.health, options.cluster, options.spool, reporter.figures, health
        )
    except (OSError, ValueError) as error:
        reason = (
            f"--health: found {options.health!r}; expected a free host:port ({error})"
        )
        log.error("process_refuses_to_start", reason=reason)
        sys.exit(2)
    try:
        yield
    finally:
        server.stop()


if __name__ == "__main__":
    main()
