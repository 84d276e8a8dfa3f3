"""A process that ends again and again tells in its log that it waits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devgrid import REPOSITORY
from devgrid.machine import deadline


@pytest.mark.parametrize(
    ("words", "process"), [(["metrics"], "metrics"), ([], "fleet")]
)
def test_run__refuses_to_start_each_time__tells_that_it_waits(
    words: list[str], process: str, tmp_path: Path
) -> None:
    given = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("DATABASE_URL")
    }
    argv = [sys.executable, "-m", "supervisor_tasks.cli", "run", *words]
    told = list[str]()
    for _ in range(3):
        environment = given | {
            "RUNTIME_DIRECTORY": str(tmp_path),
            "CLUSTER_NAME": "west",
        }
        ended = subprocess.run(
            argv,
            env=environment,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=deadline(60),
        )
        assert ended.returncode == 2
        told += ended.stderr.splitlines()
    (delayed,) = (
        line for line in map(json.loads, told) if line["event"] == "start_delayed"
    )
    expected = {"process": process, "cluster": "west", "soon_ended": 2, "wait_s": 2.0}
    assert expected.items() <= delayed.items()
