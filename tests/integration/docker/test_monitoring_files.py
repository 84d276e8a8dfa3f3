"""Prometheus and Grafana of docker/compose.yaml: their files are right, and name what
compose mounts and runs.
"""

import json
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from devgrid import REPOSITORY

DOCKER = REPOSITORY / "docker"
RULES = DOCKER / "helm" / "grid-supervisor" / "files" / "rules.yaml"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
SECOND = yaml.safe_load((DOCKER / "compose.clusters.yaml").read_text())["services"]
PROMETHEUS = yaml.safe_load((DOCKER / "monitoring" / "prometheus.yaml").read_text())
# where Grafana's image reads at its start
PROVISIONING = PurePosixPath("/etc/grafana/provisioning")


def mounts(service: str) -> dict[PurePosixPath, Path]:
    """The files of this repository in a service's container."""
    files = [
        volume.split(":")
        for volume in COMPOSE[service]["volumes"]
        if volume.startswith("./")
    ]
    assert {mode for _, _, mode in files} == {"ro"}
    return {PurePosixPath(target): DOCKER / source for source, target, _ in files}


def provisioned(kind: str) -> dict[str, Any]:
    """Grafana's file in a folder of its provisioning, as it is mounted."""
    (file,) = [
        source
        for target, source in mounts("grafana").items()
        if target.parent == PROVISIONING / kind
    ]
    found: dict[str, Any] = yaml.safe_load(file.read_text())
    assert found["apiVersion"] == 1
    return found


def test_prometheus_configuration__by_promtool__is_right(tmp_path: Path) -> None:
    text = (DOCKER / "monitoring" / "prometheus.yaml").read_text()
    config = tmp_path / "prometheus.yaml"
    config.write_text(text.replace("/tmp/rules.yaml", str(RULES)))
    assert str(RULES) in config.read_text()
    checked = subprocess.run(
        ["promtool", "check", "config", config],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "rules found" in checked.stdout


def test_prometheus__in_compose__reads_the_files_that_are_mounted() -> None:
    mounted = {source: target for target, source in mounts("prometheus").items()}
    (script,) = COMPOSE["prometheus"]["command"]
    (rules,) = PROMETHEUS["rule_files"]
    assert (
        f"--config.file={mounted[DOCKER / 'monitoring' / 'prometheus.yaml']} " in script
    )
    assert f"{mounted[RULES]} >{rules}\n" in script  # with the site's links in it


def test_prometheus__in_compose__asks_each_process_at_its_port() -> None:
    asked = {
        (name, discovery["port"])
        for job in PROMETHEUS["scrape_configs"]
        for discovery in job["dns_sd_configs"]
        for name in discovery["names"]
    }
    served = {
        (name, int(service["environment"]["HEALTH_ADDRESS"].rpartition(":")[2]))
        for name, service in (COMPOSE | SECOND).items()
        if "HEALTH_ADDRESS" in service.get("environment", ())
    }
    assert asked == served


def test_grafana__its_datasource__is_the_prometheus_of_compose() -> None:
    (source,) = provisioned("datasources")["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    host, _, port = source["url"].removeprefix("http://").partition(":")
    assert host in COMPOSE["grafana"]["depends_on"]
    assert COMPOSE[host]["ports"][0].endswith(f":{port}")


def test_grafana__its_dashboard__is_in_the_folder_that_it_reads() -> None:
    (provider,) = provisioned("dashboards")["providers"]
    folder = PurePosixPath(provider["options"]["path"])
    (dashboard,) = [
        source
        for target, source in mounts("grafana").items()
        if target.parent == folder
    ]
    shown = json.loads(dashboard.read_text())
    assert (provider["type"], shown["uid"], dashboard.name) == (
        "file",
        "grid-supervisor",
        "dashboard.json",
    )


def test_grafana__each_panel__asks_the_provisioned_datasource() -> None:
    (source,) = provisioned("datasources")["datasources"]
    shown = json.loads((RULES.parent / "dashboard.json").read_text())
    variables = {each["name"]: each for each in shown["templating"]["list"]}
    # the choice begins with the default datasource
    assert variables["datasource"]["query"] == source["type"]
    described = [
        each for panel in shown["panels"] for each in (panel, *panel.get("targets", ()))
    ]
    asked = {
        json.dumps(each["datasource"]) for each in described if "datasource" in each
    }
    assert asked == {json.dumps({"type": source["type"], "uid": "${datasource}"})}


@pytest.mark.parametrize(("service", "port"), [("prometheus", 9090), ("grafana", 3000)])
def test_monitoring__each_service__has_a_health_check_of_its_page(
    service: str, port: int
) -> None:
    check = COMPOSE[service]["healthcheck"]
    assert check["test"][0] == "CMD"  # no shell
    assert any(f"http://127.0.0.1:{port}" in word for word in check["test"])
    assert COMPOSE[service]["ports"][0].endswith(f":{port}")
