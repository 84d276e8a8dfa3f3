"""How long a worker may take to end after SIGTERM: compose, chart and systemd say the
same, and docs/how-to/deploy.md tells it.
"""

import re

from devgrid import REPOSITORY

STOP_GRACE = re.compile(
    r"^\s*(?:stop_grace_period: |terminationGracePeriodSeconds: |TimeoutStopSec=)(\d+)",
    re.MULTILINE,
)
FILES = (
    "compose.yaml",
    "compose.clusters.yaml",
    "helm/grid-supervisor/values.yaml",
    "systemd/grid-supervisor-.service.d/10-common.conf",
    "systemd/small-site/grid-supervisor.service",
)


def test_stop_grace__of_all_deployments__is_the_one_of_the_page() -> None:
    found = {
        # Postgres and Redis of compose have less
        file: max(
            map(int, STOP_GRACE.findall((REPOSITORY / "docker" / file).read_text()))
        )
        for file in FILES
    }
    (told,) = re.findall(
        r"within (\d+) s \(`stop_grace_period`",
        (REPOSITORY / "docs" / "how-to" / "deploy.md").read_text(),
    )
    assert found == dict.fromkeys(FILES, int(told))
