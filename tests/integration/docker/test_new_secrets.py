"""docker/new-secrets.sh on a host whose users' new files are their own: containers read
what compose.yaml mounts as other users.
"""

import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from devgrid import REPOSITORY
from tests.support.compose_files import copied

PAGE = (REPOSITORY / "docs" / "how-to" / "deploy.md").read_text()
COMPOSE = PAGE.partition("\n## Compose")[2].partition("\n## systemd")[0]
FILES = ("compose.yaml", "compose.clusters.yaml")


@pytest.fixture(scope="module", params=["027", "077"])
def folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder `docker` of a clone with this umask, after the script."""
    made = copied(tmp_path_factory.mktemp("site"))
    subprocess.run(["chmod", "-R", "go-rwx", made], check=True)
    commands = f"umask {request.param}; ./new-secrets.sh; ./new-secrets.sh second"
    subprocess.run(["sh", "-euc", commands], cwd=made, check=True)
    return made


def mounted(folder: Path) -> Iterator[Path]:
    """What the containers are given of the folder: secrets, files and folders."""
    for name in FILES:
        compose = yaml.safe_load((folder / name).read_text())
        yield from (folder / each["file"] for each in compose["secrets"].values())
        for service in compose["services"].values():
            for volume in service.get("volumes", ()):
                if volume.startswith("./"):
                    yield folder / volume.partition(":")[0]


def test_new_secrets__what_containers_mount__can_be_read_by_their_users(
    folder: Path,
) -> None:
    found = set(mounted(folder))
    found |= {folder / "files" / "known_hosts", folder / "files/second/known_hosts"}
    assert len(found) > 30
    for path in found:
        mode = 0o755 if path.is_dir() else 0o644
        assert stat.S_IMODE(path.stat().st_mode) == mode, path


def test_new_secrets__the_folders_of_secrets__are_entered_by_their_owner_alone(
    folder: Path,
) -> None:
    for path in (folder / "secrets", folder / "secrets" / "second"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path


def test_page__each_file_that_it_puts_into_files__can_be_read() -> None:
    files = set(re.findall(r"files/([a-z_.]+\w)", COMPOSE)) - {"second", "third"}
    assert files == {"known_hosts", "tls_cert.pem", "sbatch_ca.pem"}
    text = " ".join(COMPOSE.split())
    for name in files:
        assert re.search(
            rf"(install -m 644 \S+|chmod 644) files/{re.escape(name)}", text
        ), name
