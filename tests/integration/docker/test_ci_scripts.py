"""What CI runs: that it tries the locks, and that a lock which lacks a package for one
of the Pythons ends it.
"""

import hashlib
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from devgrid import REPOSITORY
from devgrid.machine import deadline
from tests.support.marks import in_chaos

# makes an environment of Python for each case
pytestmark = [pytest.mark.slow, pytest.mark.extended]

LOCKS = ("requirements.txt", "requirements-dev.txt", "requirements-otel.txt")
DEBIANS = "/usr/bin/python3"
WHEEL = (
    "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
)


def new_wheel(folder: Path, name: str, wants: str = "") -> str:
    """A package without any code, which wants another one; its line of a lock."""
    info, metadata = f"{name}-1.0.dist-info", f"Metadata-Version: 2.1\nName: {name}\n"
    file = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{info}/METADATA", f"{metadata}Version: 1.0\n{wants}")
        archive.writestr(f"{info}/WHEEL", WHEEL)
        archive.writestr(f"{info}/RECORD", "")
    known = hashlib.sha256(file.read_bytes()).hexdigest()
    return f"{name}==1.0 \\\n    --hash=sha256:{known}\n"


def lock_test(
    clone: Path, broken: str, python: str
) -> subprocess.CompletedProcess[str]:
    """Run it on locks of two packages, without a registry. One of the locks, if any,
    lacks what its package wants on that Python.
    """
    (clone / ".ci").mkdir()
    shutil.copy(REPOSITORY / ".ci/lock-test", clone / ".ci")
    (clone / ".venv").symlink_to(REPOSITORY / ".venv")
    wants = f"Requires-Dist: second; python_full_version == '{python}'\n"
    first = new_wheel(clone, "first", wants)
    second = new_wheel(clone, "second")
    for lock in LOCKS:
        (clone / lock).write_text(first if lock == broken else first + second)
    environment = {
        **os.environ,
        "PYENV_ROOT": str(clone / "no-pyenv"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(clone),
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": str(clone),
    }
    return subprocess.run(
        [clone / ".ci/lock-test"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=deadline(120),
    )


def debians() -> str:
    argv = [DEBIANS, "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(
        argv, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_lock_test__locks_that_are_whole__names_each_python(tmp_path: Path) -> None:
    done = lock_test(tmp_path, "", "3.11.0")
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert told[0] == (
        f"lock-test: Python {debians()} ({DEBIANS}): pip takes {' '.join(LOCKS)}"
    )
    assert told[-3:] == [
        f"lock-test: Python {version}: uv takes the locks"
        for version in ("3.11.0", "3.12.0", "3.13.0")
    ]


# CI tries all locks for all Pythons itself (`make lock-test`)
@pytest.mark.parametrize("lock", [LOCKS[0], *map(in_chaos, LOCKS[1:])])
def test_lock_test__package_missing_for_debians_python__fails(
    tmp_path: Path, lock: str
) -> None:
    """With pip's words, as `make demo` did on Debian's Python."""
    done = lock_test(tmp_path, lock, debians())
    assert done.returncode != 0
    assert "In --require-hashes mode, all requirements must have" in done.stderr


@pytest.mark.parametrize("version", [in_chaos("3.11.0"), in_chaos("3.12.0"), "3.13.0"])
def test_lock_test__package_missing_for_a_first_release__fails(
    tmp_path: Path, version: str
) -> None:
    done = lock_test(tmp_path, "requirements-otel.txt", version)
    assert done.returncode != 0
    assert "second" in done.stderr


@pytest.mark.parametrize(
    ("failing", "asked"),
    [
        ("test", ["test"]),
        ("test-extended", ["test", "test-extended"]),
        ("lock-test", ["test", "test-extended", "lock-test"]),
        ("nothing", ["test", "test-extended", "lock-test"]),
    ],
)
def test_run__of_ci__tests_and_tries_the_locks(
    tmp_path: Path, failing: str, asked: list[str]
) -> None:
    make = tmp_path / "make"
    make.write_text(f'#!/bin/sh\necho "$*"\n[ "$*" != {failing} ]\n')
    make.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    argv = [REPOSITORY / ".ci/run"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == asked
    assert (done.returncode == 0) == (failing == "nothing")
