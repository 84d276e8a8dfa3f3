"""What the operator sees of one cluster of a site: its status, earnings and metrics."""

import json
import urllib.request
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from devgrid.cluster.cluster import GridCluster
from devgrid.machine import deadline
from devgrid.processes import wait_until
from tests.support.commands import supervisor

SETTLED = "supervisor_jobs_settled_total"


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """`open_jobs` and what is wrong, by `supervisor status`; the `paid_jobs` of
    `supervisor earnings`; by `supervisor metrics` the jobs that are settled, by their
    outcome, and the values of the label `cluster`.
    """

    name: str
    open_jobs: int
    wrong: tuple[str, ...]
    paid_jobs: frozenset[str]
    settled: dict[str, int]
    labels: frozenset[str]


def own_figures(cluster: GridCluster, job_ids: Collection[str]) -> ClusterFigures:
    """The figures of a cluster that has settled these jobs, all FINISHED, and no
    other.
    """
    return ClusterFigures(
        name=cluster.name,
        open_jobs=0,
        wrong=(),
        paid_jobs=frozenset(job_ids),
        settled={"finished": len(job_ids)},
        labels=frozenset({cluster.name}),
    )


def wait_for_own_figures(
    cluster: GridCluster, metrics_port: int, job_ids: Collection[str]
) -> None:
    """Wait until the figures of a cluster are those of its own jobs: the last ones are
    settled some seconds after their end on the contract.
    """
    wanted = own_figures(cluster, job_ids)
    try:
        wait_until(
            lambda: figures_of(cluster, metrics_port) == wanted,
            f"{cluster.name} to show its own jobs",
            30.0,
            1.0,
        )
    except TimeoutError as error:
        found = figures_of(cluster, metrics_port)
        raise AssertionError(f"found {found}; expected {wanted}") from error


def figures_of(cluster: GridCluster, metrics_port: int) -> ClusterFigures:
    """Read the figures of a cluster. Its `supervisor metrics` serves at that port."""
    status = _asked(cluster, "status")
    settled, labels = _metrics(metrics_port)
    return ClusterFigures(
        name=status["cluster"],
        open_jobs=sum(status["jobs"].values()),
        wrong=(*status["problems"], *(alarm["name"] for alarm in status["alarms"])),
        paid_jobs=frozenset(
            row["job"]
            for row in _asked(cluster, "earnings", "--per", "job")
            if row["jobs"]
        ),
        settled=settled,
        labels=labels,
    )


def _asked(cluster: GridCluster, *words: str) -> Any:
    result = supervisor(*words, "-o", "json", env=cluster.environment)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def _metrics(port: int) -> tuple[dict[str, int], frozenset[str]]:
    """The jobs that are settled, by their outcome, and the values of `cluster`."""
    url = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url, timeout=deadline(5)) as answer:
        page = answer.read().decode()
    samples = [
        sample
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]
    settled = {
        sample.labels["outcome"]: int(sample.value)
        for sample in samples
        if sample.name == SETTLED and sample.value
    }
    return settled, frozenset(sample.labels.get("cluster", "") for sample in samples)
