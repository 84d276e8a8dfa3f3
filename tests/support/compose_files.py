"""The files of docker/ from which a site starts a fleet by compose."""

import shutil
from pathlib import Path

from devgrid import REPOSITORY


def copied(folder: Path) -> Path:
    """The files of docker/ that a site has, with nothing filled in yet."""
    docker = folder / "docker"
    docker.mkdir()
    for name in (
        "compose.yaml",
        "compose.clusters.yaml",
        ".env.example",
        "new-secrets.sh",
    ):
        shutil.copy(REPOSITORY / "docker" / name, docker)
    for name in ("monitoring", "helm/grid-supervisor/files"):
        shutil.copytree(REPOSITORY / "docker" / name, docker / name)
    return docker
