"""Images, compose stacks, charts and units: `make images-test`, and not part of other
runs, as building them takes minutes.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from os import link
from pathlib import Path

import pytest

from devgrid.cluster.slurmrestd import Slurmrestd, jwt_conf, new_jwt_key
from devgrid.grid import Grid
from devgrid.options import GridOptions
from tests.images.containers import (
    IMAGE,
    POSTGRES,
    PROMETHEUS,
    REDIS,
    SERVERS,
    Containers,
    build,
    provide_base,
)
from tests.images.machines import Machine
from tests.images.systemd_site import follow_page

HERE = "tests/images"
collect_ignore_glob = [] if any(HERE in word for word in sys.argv) else ["test_*.py"]


@pytest.fixture(scope="session")
def image() -> str:
    """The image, built from docker/Dockerfile on a base that debootstrap has made."""
    provide_base()
    build("docker/Dockerfile", IMAGE, VERSION="1.2.3", REVISION="0123456789abcdef")
    return IMAGE


@pytest.fixture(scope="session")
def servers() -> None:
    """The images of Postgres, Redis and Prometheus."""
    provide_base()
    build(f"{SERVERS}/Dockerfile.postgres", POSTGRES, SERVERS)
    build(f"{SERVERS}/Dockerfile.redis", REDIS, SERVERS)
    build(f"{SERVERS}/Dockerfile.prometheus", PROMETHEUS, SERVERS)


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[Containers]:
    running = Containers(tmp_path)
    try:
        yield running
    finally:
        running.remove()


@pytest.fixture(scope="session")
def jwt_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The key by which slurmctld of `site_grid` takes tokens."""
    return new_jwt_key(tmp_path_factory.mktemp("jwt"))


@pytest.fixture(scope="session")
def site_grid(jwt_key: Path) -> Iterator[Grid]:
    """The grid that the machine serves."""
    running = Grid.start(GridOptions(block_time_s=0.25, slurm_conf=jwt_conf(jwt_key)))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def machine(site_grid: Grid) -> Iterator[Machine]:
    """A machine on which the page was followed up to its last step."""
    with ExitStack() as after:
        yield follow_page(site_grid, after)


@pytest.fixture(scope="session")
def slurmrestd(site_grid: Grid, machine: Machine, jwt_key: Path) -> dict[str, str]:
    """The settings for a slurmrestd of that SLURM, whose socket the machine has."""
    assert site_grid.slurm is not None
    environment = site_grid.slurm.env()
    rest = Slurmrestd.start(site_grid.processes, site_grid.users, environment, jwt_key)
    socket = "/srv/slurmrestd.socket"  # /run of the machine is its own
    link(rest.url.removeprefix("unix://"), machine.root / socket.lstrip("/"))
    settings = rest.settings(site_grid.users, environment)
    del settings["SLURM_JWT_KEY"]
    return {**settings, "SLURMRESTD_URL": f"unix://{socket}"}
