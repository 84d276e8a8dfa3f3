"""The alert rules, judged by promtool: each fires and stays silent as
docker/monitoring/alerts_test.yaml says.
"""

import subprocess

import pytest

from devgrid import REPOSITORY

pytestmark = pytest.mark.extended

RULES = REPOSITORY / "docker" / "helm" / "grid-supervisor" / "files" / "rules.yaml"
TESTS = REPOSITORY / "docker" / "monitoring" / "alerts_test.yaml"


@pytest.mark.parametrize(
    "words",
    [("check", "rules", RULES), ("test", "rules", TESTS)],
    ids=lambda words: words[0],
)
def test_alert_rules__by_promtool__are_right_and_pass_their_tests(
    words: tuple[str, ...],
) -> None:
    checked = subprocess.run(
        ["promtool", *map(str, words)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
