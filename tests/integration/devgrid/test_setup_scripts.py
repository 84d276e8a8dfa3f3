"""What `make setup` tells while it installs: a line a group, Python's progress, and the
time that each took.
"""

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from devgrid import REPOSITORY
from devgrid.machine import deadline

SCRIPTS = REPOSITORY / "devgrid"
PACKAGES = ("first", "second", "third", "fourth")
METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
WHEEL = (
    "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
)


def run(
    script: str, *words: str | Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, **(environment or {})}
    argv = [str(SCRIPTS / script), *map(str, words)]
    return subprocess.run(
        argv, env=given, capture_output=True, text=True, timeout=deadline(120)
    )


def new_wheel(folder: Path, name: str) -> str:
    """A package without any code; its hash."""
    info = f"{name}-1.0.dist-info"
    file = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{info}/METADATA", METADATA.format(name=name))
        archive.writestr(f"{info}/WHEEL", WHEEL)
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """A lock of four packages, which are in its folder."""
    hashes = {name: new_wheel(tmp_path, name) for name in PACKAGES}
    file = tmp_path / "lock.txt"
    file.write_text(
        "".join(
            f"{name}==1.0 \\\n    --hash=sha256:{known}\n"
            for name, known in hashes.items()
        )
    )
    return file


@pytest.fixture
def python(tmp_path: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    return tmp_path / "venv"


def offline(lock: Path) -> dict[str, str]:
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(lock.parent)}


def test_python_packages__installed__are_counted_to_the_last(
    python: Path, lock: Path
) -> None:
    done = run("install-python.sh", python, lock, environment=offline(lock))
    lines = [
        line.removeprefix("setup: Python packages: ")
        for line in done.stdout.splitlines()
    ]
    assert done.returncode == 0, done.stderr
    assert lines[0] == f"4 from {lock}"
    assert lines[1:5] == ["1 of 4", "2 of 4", "3 of 4", "4 of 4"]
    assert lines[5] == f"all are here, and are put into {python}"
    assert re.fullmatch(r"4 in \d+ s", lines[6])
    assert len(list(python.glob("lib/*/site-packages/*-1.0.dist-info"))) == len(
        PACKAGES
    )


def test_python_packages__another_hash__ends_it_with_pips_words(
    python: Path, lock: Path
) -> None:
    first = re.search("sha256:[0-9a-f]{64}", lock.read_text())
    assert first is not None
    lock.write_text(lock.read_text().replace(first[0], f"sha256:{'0' * 64}"))
    done = run("install-python.sh", python, lock, environment=offline(lock))
    assert done.returncode == 1
    assert "hash" in done.stderr.lower()


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    """A folder with an apt-get that notes what it is asked for, and a dpkg-query that
    has seen no package but `here`.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {
        "apt-get": f'echo "$*" >>{tmp_path}/asked\ncase $* in *refused*) echo "E: no such package"; exit 100;; esac\n'
        f'case $* in *install*) "$SETUP_POLICY"; echo $? >>{tmp_path}/policies;; esac\n',
        "dpkg-query": "case $* in *here) echo installed;; *) exit 1;; esac\n",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}")
        (programs / name).chmod(0o755)
    return programs


def packages(apt: Path, text: str, *more: str) -> subprocess.CompletedProcess[str]:
    listed = apt.parent / "packages.txt"
    listed.write_text(text)
    given = {
        "PATH": f"{apt}:{os.environ['PATH']}",
        "SETUP_POLICY": str(apt / "policy"),
        "SETUP_LOCK": str(apt / "lock"),
    }
    return run("install-packages.sh", listed, *more, environment=given)


def test_debian_packages__of_each_group__have_a_line_with_their_time(apt: Path) -> None:
    done = packages(
        apt, "# about\n\n## one\nhere\na\nb\n\n## two\nhere\n\n## three\nc\n", "d"
    )
    assert done.returncode == 0, done.stderr
    expected = [
        r"one: a b \.\.\. \d+ s",
        r"three: c \.\.\. \d+ s",
        r"others: d \.\.\. \d+ s",
    ]
    told = [
        line.removeprefix("setup: Debian packages, ")
        for line in done.stdout.splitlines()
    ]
    assert len(told) == len(expected)
    assert all(
        re.fullmatch(pattern, line)
        for pattern, line in zip(expected, told, strict=True)
    ), told
    asked = (apt.parent / "asked").read_text().splitlines()
    assert [
        line.rpartition("recommends ")[2] for line in asked if " install " in line
    ] == ["a b", "c", "d"]
    assert sum(line.endswith("update") for line in asked) == 1
    # no service was started meanwhile
    assert (apt.parent / "policies").read_text().splitlines() == ["101"] * 3
    assert not (apt / "policy").exists()


def test_debian_packages__all_here__say_nothing_and_ask_nothing(apt: Path) -> None:
    done = packages(apt, "## one\nhere\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (apt.parent / "asked").exists()


def test_debian_packages__apt_fails__its_words_are_shown(apt: Path) -> None:
    done = packages(apt, "## one\nrefused\n## two\na\n")
    assert done.returncode == 1
    assert "E: no such package" in done.stderr
    assert "two" not in done.stdout


def test_step__that_fails__says_so_and_keeps_its_status() -> None:
    failed, done = (
        run("timed.sh", "a step", "sh", "-c", "exit 3"),
        run("timed.sh", "a step", "true"),
    )
    assert (failed.returncode, failed.stdout) == (3, "setup: a step ... failed\n")
    assert re.fullmatch(r"setup: a step \.\.\. \d+ s\n", done.stdout)
