"""`make debian-test`, ended by a signal, leaves nothing. Its Debian has a `make` of
this test, which works for ever.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from devgrid import REPOSITORY
from devgrid.machine import deadline
from devgrid.processes import wait_until
from tests.images.machines import extracted_root

SCRIPT = REPOSITORY / "devgrid" / "in-debian.sh"
MAKE = "#!/bin/bash\n(exec -a {name} sleep infinity) &\nexec -a {name} sleep infinity\n"


@pytest.fixture
def root() -> Iterator[Path]:
    with extracted_root() as folder:
        yield folder


def working(name: str) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if (process.info["cmdline"] or [""])[0] == name
    ]


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)],
)
def test_in_debian__ended_by_a_signal__leaves_no_process_and_no_mount(
    root: Path, number: signal.Signals, status: int
) -> None:
    name = f"working-{os.getpid()}-{number}"
    (root / "usr/bin/make").write_text(MAKE.format(name=name))
    (root / "usr/bin/make").chmod(0o755)
    environment = {**os.environ, "DEBIAN_ROOT": str(root), "DEBIAN_RELEASE": "bookworm"}
    # A shell's background ignores SIGINT; a terminal's foreground does not.
    script = subprocess.Popen(
        [SCRIPT],
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_until(
            lambda: len(working(name)) == 2, "make to work in the other Debian", 120.0
        )
        script.send_signal(number)
        assert script.wait(deadline(30)) == status
        wait_until(lambda: not working(name), "its processes to end", 30.0)
    finally:
        script.kill()
        script.wait()
    assert str(root) not in Path("/proc/mounts").read_text()
