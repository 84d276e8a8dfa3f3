"""A third cluster by compose: the recipe of docs/how-to/deploy.md, followed by a shell,
makes one that has nothing in common with the second.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from devgrid import REPOSITORY
from tests.support.compose_files import copied

PAGE = (REPOSITORY / "docs" / "how-to" / "deploy.md").read_text()
RECIPE = re.search(r"^\*\*A third cluster\*\*.*?^```\n(.*?)^```", PAGE, re.M | re.S)
# the settings of a cluster, which a site writes into .env
VARIABLE = re.compile(r"\$\{((?:SECOND|THIRD)_\w+):-([^}]*)\}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `docker` of a site with a third cluster."""
    made = copied(tmp_path_factory.mktemp("site"))
    assert RECIPE is not None
    commands = re.sub(r"^docker compose .*$", "", RECIPE[1], flags=re.MULTILINE)
    subprocess.run(["sh", "-euc", commands], cwd=made, check=True)
    return made


def read(file: Path) -> Any:
    return yaml.safe_load(file.read_text())


def test_recipe__its_file__names_nothing_of_the_second(folder: Path) -> None:
    text = (folder / "compose.third.yaml").read_text()
    assert re.findall("second", text, re.IGNORECASE) == []
    second, third = (
        read(folder / f"compose.{name}.yaml") for name in ("clusters", "third")
    )
    assert {name.replace("second", "third") for name in second["services"]} == set(
        third["services"]
    )
    for kind in ("services", "secrets"):
        assert set(second[kind]).isdisjoint(third[kind])


def test_recipe__name_and_port__are_not_those_of_the_second(folder: Path) -> None:
    of_each = [
        dict(VARIABLE.findall((folder / f"compose.{name}.yaml").read_text()))
        for name in ("clusters", "third")
    ]
    second, third = of_each
    assert second == {
        "SECOND_CLUSTER_NAME": "second",
        "SECOND_CALLBACKS_PUBLISHED": "3010",
    }
    assert third == {"THIRD_CLUSTER_NAME": "third", "THIRD_CALLBACKS_PUBLISHED": "3020"}


def test_recipe__each_file_of_the_third__is_there(folder: Path) -> None:
    third = read(folder / "compose.third.yaml")
    for secret in third["secrets"].values():
        assert (folder / secret["file"]).is_file(), secret
    for name, service in third["services"].items():
        assert all((folder / each).is_file() for each in service["env_file"]), name
        folders = {volume.partition(":")[0] for volume in service["volumes"]}
        assert folders == {"./files/third"}, name
        assert (folder / "files" / "third").is_dir()


def test_recipe__prometheus__asks_each_process_of_the_third(folder: Path) -> None:
    services: dict[str, Any] = {}
    for name in ("compose", "compose.clusters", "compose.third"):
        services |= read(folder / f"{name}.yaml")["services"]
    served = {
        (name, int(service["environment"]["HEALTH_ADDRESS"].rpartition(":")[2]))
        for name, service in services.items()
        if "HEALTH_ADDRESS" in service.get("environment", ())
    }
    prometheus = read(folder / "monitoring" / "prometheus.yaml")
    asked = [
        (name, discovery["port"])
        for job in prometheus["scrape_configs"]
        for discovery in job["dns_sd_configs"]
        for name in discovery["names"]
    ]
    assert sorted(asked) == sorted(served)


def test_recipe__followed_again__leaves_prometheus_as_it_is(
    folder: Path, tmp_path: Path
) -> None:
    assert RECIPE is not None
    again = shutil.copytree(folder, tmp_path / "docker")
    commands = [line for line in RECIPE[1].splitlines() if "prometheus" in line]
    assert commands
    subprocess.run(["sh", "-euc", "\n".join(commands)], cwd=again, check=True)
    file = Path("monitoring") / "prometheus.yaml"
    assert (again / file).read_text() == (folder / file).read_text()
