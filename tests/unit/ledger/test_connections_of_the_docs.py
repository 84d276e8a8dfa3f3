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
    assert by_compose == f"max_connections={values['postgres']['maxConnections']}"
    one_more_worker = database.MAX_CONNECTIONS + 1
    needed = sum(FLEET) + one_more_worker + KEPT_FOR_SUPERUSERS
    assert values["postgres"]["maxConnections"] > needed
