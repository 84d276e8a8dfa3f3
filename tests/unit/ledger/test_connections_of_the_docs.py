"""What docs/how-to/deploy.md tells a site with a Postgres of its own, and how many
connections the project's own Postgres takes.
"""

import re
from typing import Any

import pytest
import yaml

from devgrid import REPOSITORY
from supervisor_tasks.dashboard import ledger_reader
from supervisor_tasks.doctor import probe_context
from supervisor_tasks.ledger import database

DOCKER = REPOSITORY / "docker"
PAGE = (REPOSITORY / "docs" / "how-to" / "deploy.md").read_text()
ROWS = dict(re.findall(r"^\| ([^|]+) \| (\d+) \|$", PAGE, re.MULTILINE))
# chain worker, slurm worker, beat, two gRPC processes, Flower, metrics, a command
FLEET = (41, 41, 2, 2, 2, 4, 4, 3)
KEPT_FOR_SUPERUSERS = 3
A_PROBE = 1


@pytest.mark.parametrize(
    ("row", "most"),
    [
        ("a worker (", database.MAX_CONNECTIONS + A_PROBE),
        ("`flower`, `metrics`", ledger_reader.MAX_CONNECTIONS + A_PROBE),
        ("a command, `supervisor doctor`", probe_context.MAX_CONNECTIONS),
    ],
)
def test_page__the_connections_of_a_process__are_its_pool_and_a_probes(
    row: str, most: int
) -> None:
    (told,) = (number for name, number in ROWS.items() if name.startswith(row))
    assert int(told) == most


def test_postgres__of_chart_and_compose__serves_a_fleet_while_it_is_replaced() -> None:
    values: Any = yaml.safe_load(
        (DOCKER / "helm" / "grid-supervisor" / "values.yaml").read_text()
    )
    compose: Any = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    by_compose = compose["services"]["postgres"]["command"][-1]
    default = f"${{POSTGRES_MAX_CONNECTIONS:-{values['postgres']['maxConnections']}}}"
    assert by_compose == f"max_connections={default}"
    one_more_worker = database.MAX_CONNECTIONS + 1
    needed = sum(FLEET) + one_more_worker + KEPT_FOR_SUPERUSERS
    assert values["postgres"]["maxConnections"] > needed


WORKER, BEAT, CALLBACKS, FLOWER, METRICS, COMMAND = 41, 2, 2, 4, 4, 3
CLUSTER = 2 * WORKER + BEAT + CALLBACKS + METRICS
FURTHER = re.findall(r"^echo POSTGRES_MAX_CONNECTIONS=(\d+) >>.env", PAGE, re.MULTILINE)


def test_page__the_sum_of_several_clusters__is_that_of_its_table() -> None:
    two, three = (
        clusters * CLUSTER + FLOWER + COMMAND + KEPT_FOR_SUPERUSERS
        for clusters in (2, 3)
    )
    told = " ".join(PAGE.split())
    assert f"one slurm worker takes {CLUSTER} and Flower {FLOWER}: " in told
    assert f"two clusters come to {two} and three to {three}" in told


def test_compose__of_two_and_three_clusters__has_connections_for_an_upgrade() -> None:
    assert len(FURTHER) == 2
    for clusters, told in enumerate(map(int, FURTHER), 2):
        needed = clusters * CLUSTER + FLOWER + COMMAND + KEPT_FOR_SUPERUSERS
        assert told >= needed + WORKER  # one worker is replaced at a time


def test_chart__the_remark_about_keda__counts_its_most_workers() -> None:
    text = (DOCKER / "helm" / "grid-supervisor" / "values.yaml").read_text()
    most = yaml.safe_load(text)["keda"]["maxReplicas"] + 1
    assert f"{most} * {WORKER} = {most * WORKER}, " in text
