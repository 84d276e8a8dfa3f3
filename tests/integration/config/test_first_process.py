"""The first process of a container, here of a namespace of process ids: it can be ended
from its first moment on.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from devgrid import REPOSITORY
from devgrid.machine import deadline
from devgrid.processes import wait_until

AS_FIRST = ("unshare", "--pid", "--fork", "--kill-child")
START = (sys.executable, "-m", "supervisor_tasks.config.first_process")
ENDLESS = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"
ENDED_BY_SIGTERM = 128 + signal.SIGTERM
# What `supervisor run` does, asked to end right before it becomes the process.
ASKED_BEFORE_EXEC = """
import os, signal, sys
from supervisor_tasks.config.first_process import end_on_signal, hold_signals
end_on_signal()
hold_signals()
os.kill(os.getpid(), signal.SIGTERM)
print("still here", flush=True)
os.execv(sys.argv[1], sys.argv[1:])
"""


def started(tmp_path: Path, *argv: str) -> subprocess.Popen[str]:
    (tmp_path / "endless.py").write_text(ENDLESS)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    return subprocess.Popen(
        [*AS_FIRST, *argv], env=environment, stdout=subprocess.PIPE, text=True
    )


def test_module__that_has_no_handlers_yet__is_ended_by_sigterm(tmp_path: Path) -> None:
    with started(tmp_path, *START, "endless") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "begun\n"
        (first,) = psutil.Process(running.pid).children()
        first.send_signal(signal.SIGTERM)
        try:
            assert running.wait(deadline(10)) == ENDED_BY_SIGTERM
        finally:
            running.kill()


def test_signal__between_two_programs__is_not_lost(tmp_path: Path) -> None:
    with started(
        tmp_path, sys.executable, "-c", ASKED_BEFORE_EXEC, *START, "endless"
    ) as running:
        assert running.stdout is not None
        try:
            assert running.wait(deadline(30)) == ENDED_BY_SIGTERM
        finally:
            running.kill()
        assert running.stdout.read() == "still here\n"


def test_sigterm__process_is_not_the_first__keeps_the_default(tmp_path: Path) -> None:
    """Its parent sees that a signal has ended it."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [*START, "endless"], env=environment, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.terminate()
        wait_until(lambda: running.poll() is not None, "the process to end", 10.0)
        assert running.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("arguments", "module"),
    [
        (
            ("celery", "-A", "supervisor_tasks", "beat"),
            "supervisor_tasks.beat",
        ),
        (
            ("celery", "-A", "supervisor_tasks", "flower"),
            "supervisor_tasks.dashboard.install",
        ),
    ],
)
def test_process__needs_no_sqlalchemy__does_not_import_it(
    arguments: tuple[str, ...], module: str
) -> None:
    """It would take such a process about 25 MB."""
    asked = (
        "import importlib, sys; from supervisor_tasks.config.first_process import leave_out_unused;"
        f"leave_out_unused({arguments[0]!r}, {arguments[1:]!r}); importlib.import_module({module!r});"
        "print(sorted({'sqlalchemy', 'web3', 'yaml', 'rich'} & {name for name, it in sys.modules.items() if it}))"
    )
    run = subprocess.run(
        [sys.executable, "-c", asked],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
    )
    assert run.stdout == "[]\n"


@pytest.mark.parametrize(
    ("variable", "value", "text", "imports"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9", "", True),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "", "", False),
        ("OTEL_EXPORTER_OTLP_ENDPOINT_FILE", "{file}", "http://127.0.0.1:9", True),
        ("OTEL_EXPORTER_OTLP_ENDPOINT_FILE", "{file}", "", False),
        ("OTEL_EXPORTER_OTLP_ENDPOINT_FILE", "", "", False),
        ("OTEL_EXPORTER_OTLP_ENDPOINT_FILE", "/no/such/file", "", False),
    ],
)
def test_opentelemetry__with_an_endpoint_and_without__is_imported_only_with_it(
    variable: str, value: str, text: str, imports: bool, tmp_path: Path
) -> None:
    file = tmp_path / "endpoint"
    file.write_text(text)
    asked = (
        "import sys; from supervisor_tasks.config.first_process import leave_out_unused;"
        "leave_out_unused('celery', ['worker']);"
        "print(sys.modules.get('opentelemetry', 'may be imported') is not None)"
    )
    run = subprocess.run(
        [sys.executable, "-c", asked],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
        env={**os.environ, variable: value.format(file=file)},
    )
    assert run.stdout == f"{imports}\n"
