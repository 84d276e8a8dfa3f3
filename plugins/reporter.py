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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from grpc_health.v1.health_pb2_grpc import HealthStub
from watchfiles import watch
from watchfiles._rust_notify import WatchfilesRustInternalError

from plugins import spool
from plugins.channel import add_options, open_channel, supervisor_of
from plugins.delivery import Delivery
from plugins.json_log import EventLog, configure
from plugins.probes.progress import LOOP
from plugins.reporter_health import serve_health
from protos.supervisor.v1alpha1.supervisor_pb2_grpc import JobAPIStub

CLUSTER_NAME = "main"  # as the supervisor's settings have it
log = EventLog("reporter")

MAX_WAIT_S = 2.0
CHECK_ANYWAY_MS = 500  # for events from before the inotify watch
CARE_EVERY_S = 30.0
FIGURES_EVERY_S = 60.0


class Reporter:
    """Watches one spool, and has its events delivered. It logs `figures` every minute."""

    def __init__(self, folder: Path, stub: JobAPIStub, health: HealthStub) -> None:
        self.figures: Counter[str] = Counter(
            delivered=0, failed=0, rejected=0, adopted=0, lost=0
        )
        self._folder = folder
        self._stopping = threading.Event()
        self._delivery = Delivery(folder, stub, health, self.figures, self._stopping)
        self._spool_failure = self._watch_failure = ""
        self._care_at_s, self._figures_at_s = float("-inf"), time.monotonic()

    def run(self) -> None:
        """Deliver the events in the spool and the new ones, until `stop`."""
        (self._folder / "rejected").mkdir(exist_ok=True)
        self._log_spool_errors_of(self._log_figures)
        while not self._stopping.is_set():
            self._deliver_all()
            self._deliver_new_events()
            LOOP.completed()
            # reached when inotify cannot watch the spool
            self._stopping.wait(CHECK_ANYWAY_MS / 1000)
        self._delivery.close()
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
                every_s = CHECK_ANYWAY_MS / 1000
                log.error("inotify_unavailable", look_every_s=every_s, error=str(error))
            self._watch_failure = str(error)

    def _changes(self) -> Iterator[object]:
        return watch(
            self._folder,
            debounce=20,
            step=10,
            recursive=False,
            rust_timeout=CHECK_ANYWAY_MS,
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
            _has_lost(self._folder) or spool.pending(self._folder)
        ):
            if self._delivery.round():
                wait_s = 0.1
            else:
                waiting = len(spool.pending(self._folder))
                log.warning(
                    "delivery_postponed",
                    events=waiting,
                    again_s=wait_s,
                    error=self._delivery.last_failure,
                )
                self._stopping.wait(wait_s)
                wait_s = min(2 * wait_s, MAX_WAIT_S)
            LOOP.completed()
            self._do_periodic_work()
            self._delivery.send_heartbeat()
        self._delivery.send_heartbeat()

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


def _has_lost(folder: Path) -> bool:
    lost = folder / spool.LOST_LOG
    return lost.exists() and lost.stat().st_size > 0


def _is_for_delivery(name: str) -> bool:
    """Return whether a file of the spool is an event, or the record of lost ones."""
    return name == spool.LOST_LOG or spool.NAME.fullmatch(name) is not None


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
                log.error("reporter_ended", reason=str(error))
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
