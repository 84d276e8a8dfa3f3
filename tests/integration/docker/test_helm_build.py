"""How `make images-test` builds Helm: by a Go that can, or with a message that names the version."""

import os
import subprocess
from pathlib import Path

import pytest

from devgrid import REPOSITORY

# What it is told, and the version that it says it has.
GO = """#!/bin/sh
if [ "$*" = "env GOVERSION" ]; then echo {version}; else echo "$@" >>{told}; fi
"""


def made(folder: Path, version: str | None) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """`make build/bin/helm` with a Go of this version, or without Go: how it ended, and what Go was told."""
    program, told = folder / "go", folder / "told"
    for tool in ("find", "sort"):
        (folder / tool).symlink_to(f"/usr/bin/{tool}")
    if version is not None:
        program.write_text(GO.format(version=version, told=told))
        program.chmod(0o755)
    argv = ["/usr/bin/make", "--always-make", "--silent", "build/bin/helm"]
    environment = {**os.environ, "PATH": str(folder)}
    done = subprocess.run(argv, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    return done, told.read_text().splitlines() if told.exists() else []


@pytest.mark.parametrize("version", ["go1.21.0", "go1.24.0", "go1.100.1"])
def test_helm__with_a_go_that_fetches_what_it_needs__is_built(version: str, tmp_path: Path) -> None:
    done, told = made(tmp_path, version)
    assert done.returncode == 0, done.stderr
    (line,) = told
    assert line.startswith("install helm.sh/helm/v3/cmd/helm@v3.")


@pytest.mark.parametrize(("version", "found"), [("go1.19.8", "go1.19.8"), ("go1.20.14", "go1.20.14"), (None, "NONE")])
def test_helm__with_an_older_go_or_none__is_not_built_and_told(version: str | None, found: str, tmp_path: Path) -> None:
    done, told = made(tmp_path, version)
    assert (done.returncode, told) == (2, [])
    assert f"images-test: found {found}; expected Go 1.21 or newer" in done.stderr
