"""The version of the image: the page builds it, and compose and the chart run it."""

import re
import tomllib

import yaml

from devgrid import REPOSITORY

DOCKER = REPOSITORY / "docker"
VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"][
    "version"
]
PAGE = (REPOSITORY / "docs" / "how-to" / "deploy.md").read_text()
NAMED = re.compile(r"(?<!/)grid-supervisor:(\d[\w.]*)")


def test_image__in_compose_and_on_the_page__has_the_version_of_the_package() -> None:
    for name in ("compose.yaml", "compose.clusters.yaml", "Dockerfile", ".env.example"):
        assert set(NAMED.findall((DOCKER / name).read_text())) == {VERSION}, name
    assert set(NAMED.findall(PAGE)) == {VERSION}
    built = re.findall(r"^VERSION=(\S+)", PAGE, re.M)
    assert built == [VERSION] * PAGE.count("docker build ")


def test_image__where_it_is_built__is_not_overwritten_by_the_next_version() -> None:
    for text in (PAGE, (DOCKER / "compose.yaml").read_text()):
        assert "grid-supervisor:latest" not in text
    assert re.findall(r"docker build .* -t \S*grid-supervisor\b(?!:)", PAGE) == []


def test_image__in_the_chart__has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((DOCKER / "helm/grid-supervisor/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
