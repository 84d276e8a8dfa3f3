"""By what the Helm chart scales the slurm workers: the messages in their queue."""

from functools import cache
from typing import Any

import pytest
import yaml

from devgrid import REPOSITORY
from supervisor_tasks.messaging.backpressure import BACKLOG_MESSAGES
from supervisor_tasks.messaging.queues import Queue

CHART = REPOSITORY / "docker" / "helm" / "grid-supervisor"
# what Helm renders; tests/images/test_helm.py compares it
GOLDEN = REPOSITORY / "tests" / "images" / "helm" / "golden"
SCALED = {"everything-on": "main", "external-servers": "main"}  # file: its cluster
# most messages that waited while one worker submitted 600 jobs (values.yaml)
WAITING_AT_WORK = 2
# Kubernetes adds a worker when there is more than a tenth above the threshold.
TOLERANCE = 1.1


@cache
def keda() -> Any:
    return yaml.safe_load((CHART / "values.yaml").read_text())["keda"]


@cache
def manifests(file: str) -> list[Any]:
    return list(yaml.safe_load_all((GOLDEN / f"{file}.yaml").read_text()))


def trigger(file: str) -> dict[str, str]:
    (scaled,) = (each for each in manifests(file) if each["kind"] == "ScaledObject")
    found: dict[str, str] = scaled["spec"]["triggers"][0]["metadata"]
    return found


@pytest.mark.parametrize(("file", "cluster"), SCALED.items())
def test_trigger__of_each_golden_file__counts_the_queue_of_the_slurm_workers(
    file: str, cluster: str
) -> None:
    assert trigger(file)["listName"] == Queue.SLURM.of(cluster)
    assert trigger(file)["listLength"] == str(keda()["messagesPerWorker"])


def test_threshold__only_the_dispatcher_sends__is_reached_without_a_worker() -> None:
    """The dispatcher sends no second message while more than BACKLOG_MESSAGES wait."""
    assert keda()["messagesPerWorker"] * TOLERANCE < BACKLOG_MESSAGES + 1


def test_threshold__one_worker_at_work__is_not_reached() -> None:
    assert keda()["messagesPerWorker"] > 2 * WAITING_AT_WORK
