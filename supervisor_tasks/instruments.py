"""The counters, histograms and gauges of one process, for Prometheus.

They begin at 0 with the process: Prometheus adds up what several processes and several
starts count. Totals that must survive a restart are in the ledger (ledger/counters.py).
No instrument has the label `cluster`: `ClusterLabel` adds it to everything that a
process serves.
"""

import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from math import nan
from pathlib import PurePosixPath

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.core import InfoMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

disable_created_metrics()  # type: ignore[no-untyped-call]

REGISTRY = CollectorRegistry()
"""What this process measures."""

FAST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SLOW_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
PROGRAMS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "sacct", "bash", "sh")
OTHER = "other"

SSH_COMMANDS = Histogram(
    "supervisor_ssh_command_duration_seconds",
    "How long commands on the login node took.",
    ["program", "result"],
    buckets=FAST_S,
    registry=REGISTRY,
)
REST_REQUESTS = Histogram(
    "supervisor_slurmrestd_request_duration_seconds",
    "How long requests to slurmrestd took.",
    ["request", "result"],
    buckets=FAST_S,
    registry=REGISTRY,
)
SSH_LOGINS = Histogram(
    "supervisor_ssh_login_duration_seconds",
    "How long logins on the login node took.",
    ["result"],
    buckets=FAST_S,
    registry=REGISTRY,
)
RPC_REQUESTS = Histogram(
    "supervisor_rpc_request_duration_seconds",
    "How long HTTP requests to RPC endpoints took.",
    ["endpoint", "result"],
    buckets=FAST_S,
    registry=REGISTRY,
)
RPC_CALLS = Counter(
    "supervisor_rpc_calls",
    "Calls in requests to RPC endpoints.",
    ["endpoint", "method"],
    registry=REGISTRY,
)
BATCHES = Histogram(
    "supervisor_batch_duration_seconds",
    "How long batches took: groups of effects that are carried out together, and rounds of exclusive work.",
    ["batch", "result"],
    buckets=FAST_S,
    registry=REGISTRY,
)
CLAIM_WAITS = Histogram(
    "supervisor_claim_wait_seconds",
    "From the block in which a job became claimable to the block with its claim, by the blocks' clocks.",
    buckets=SLOW_S,
    registry=REGISTRY,
)
CALLBACKS = Counter(
    "supervisor_callbacks_received",
    "Callbacks that plugins sent, by the answer (denied: the caller may not call).",
    ["verdict"],
    registry=REGISTRY,
)
CHAIN_HEAD = Gauge(
    "supervisor_chain_head_block",
    "The node's last block.",
    ["chain_id"],
    registry=REGISTRY,
)
CHAIN_LAG = Gauge(
    "supervisor_chain_head_lag_blocks",
    "Blocks of the node that are not read yet.",
    ["chain_id"],
    registry=REGISTRY,
)

OK, ERROR = "ok", "error"
RESULTS = OK, ERROR  # of what is timed
CALLBACK_ANSWERS = (
    "stored",
    "ignored",
    "malformed",
    "unknown_job",
    "too_many",
    "not_stored",
    "denied",
)
FIRST_SERIES: Mapping[str, list[tuple[Counter | Histogram, str]]] = {
    "callbacks": [(CALLBACKS, answer) for answer in CALLBACK_ANSWERS],
    "worker": [(SSH_LOGINS, result) for result in RESULTS],
}
"""The series of each kind of process that must be there before their first event."""


def zero(process: str) -> None:
    """Create the series that this kind of process has, so that each is there with 0
    before its first event.
    """
    # Prometheus's increase() does not count an event that creates its series.
    for metric, label in FIRST_SERIES.get(process, ()):
        metric.labels(label)


def chain_not_read_yet(chain_id: int) -> None:
    """Create the series of a chain before its first reading: its head and lag are not
    numbers.
    """
    for gauge in (CHAIN_HEAD, CHAIN_LAG):
        gauge.labels(chain_id).set(nan)


@contextmanager
def timed(histogram: Histogram, *labels: str) -> Iterator[None]:
    """Observe how long the block takes, with the result `ok`, or `error` if it
    raises.
    """
    begun_s, result = time.monotonic(), ERROR
    try:
        yield
        result = OK
    finally:
        histogram.labels(*labels, result).observe(time.monotonic() - begun_s)


def program_of(path: str) -> str:
    """Return the program's name as a label. All other programs share one value, so that
    the number of series is bounded.
    """
    name = PurePosixPath(path).name
    return name if name in PROGRAMS else OTHER


class BuildInfo(Collector):
    """The version of the supervisor and of Python in this process."""

    def __init__(self, process: str) -> None:
        self._about = {
            "version": version("grid-supervisor"),
            "python": platform.python_version(),
            "process": process,
        }

    def collect(self) -> Iterator[Metric]:
        """Return supervisor_build_info."""
        info = InfoMetricFamily(
            "supervisor_build", "The version of the supervisor and of Python."
        )
        info.add_metric([], self._about)
        yield info


class ClusterLabel(Collector):
    """The metrics of several collectors, each sample with the label `cluster`."""

    def __init__(
        self, cluster: str, *collectors: Collector | CollectorRegistry
    ) -> None:
        self._labels = {"cluster": cluster}
        self._collectors = collectors

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of one scrape."""
        for collector in self._collectors:
            yield from _labelled(collector.collect(), self._labels)

    def describe(self) -> list[Metric]:
        """Return nothing, so that the collectors run at the first scrape and not
        before.
        """
        return []


def _labelled(metrics: Iterable[Metric], labels: Mapping[str, str]) -> Iterator[Metric]:
    for metric in metrics:
        labelled = Metric(metric.name, metric.documentation, metric.type, metric.unit)
        labelled.samples = [_with_labels(sample, labels) for sample in metric.samples]
        yield labelled


def _with_labels(sample: Sample, labels: Mapping[str, str]) -> Sample:
    return sample._replace(labels={**labels, **sample.labels})
