"""What a run of these tests leaves behind when it is killed."""

import subprocess
import sys
from pathlib import Path

from devgrid import REPOSITORY
from devgrid.processes import wait_until
from tests.images.containers import engine

RUN = """
from pathlib import Path
from tests.images.stacks import Stack
stack = Stack(Path({folder!r}))
print(stack.project, flush=True)
input()
"""


def containers_of(project: str) -> str:
    return engine("podman", "ps", "--all", "--quiet", "--filter", f"name=^{project}")


def test_stack__its_run_is_killed__leaves_no_container_and_no_network(
    servers: None, tmp_path: Path
) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", RUN.format(folder=str(tmp_path))],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    project = run.stdout.readline().strip()
    assert containers_of(project)
    run.kill()
    run.communicate()
    wait_until(
        lambda: (
            not containers_of(project)
            and project not in engine("podman", "network", "ls")
        ),
        "what the run had started to be removed",
        60.0,
    )
