"""Prometheus and Grafana of docker/compose.yaml: their files are right, and name what
compose mounts and runs.
"""

import json
import os
import queue
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from devgrid import REPOSITORY
from devgrid.machine import deadline
from devgrid.ports import free_port

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
    config = mounted[DOCKER / "monitoring" / "prometheus.yaml"]
    (made,) = re.findall(r"--config\.file=(\S+) ", script)
    assert f"cat {config} >{made}\n" in script
    assert f"{mounted[RULES]} >{rules}\n" in script  # with the site's links in it


class Monitor:
    """The command of compose's Prometheus, with folders of a test in place of the
    container's.
    """

    def __init__(self, folder: Path) -> None:
        self.configuration = folder / "tmp" / "prometheus.yaml"
        (script,) = COMPOSE["prometheus"]["command"]
        script = script.replace("$$", "$").replace("/tmp/", f"{folder}/tmp/")
        for target, source in mounts("prometheus").items():
            script = script.replace(str(target), str(folder / source.name))
            text = source.read_text().replace("/tmp/", f"{folder}/tmp/")
            (folder / source.name).write_text(text)
        self.configuration.parent.mkdir()
        self.script = script.replace("path=/prometheus", f"path={folder}/data")

    def run(
        self, url: str, program: str = "promtool check config"
    ) -> subprocess.CompletedProcess[str]:
        """Run it with this ALERTMANAGER_URL, and `program` in Prometheus's place."""
        before, _, _ = self.script.partition("exec prometheus")
        return subprocess.run(
            ["/bin/sh", "-ec", f"{before}exec {program} {self.configuration}"],
            env=self.environment(url),
            capture_output=True,
            text=True,
        )

    def environment(self, url: str) -> dict[str, str]:
        given = COMPOSE["prometheus"]["environment"]
        assert given["ALERTMANAGER_URL"] == "${ALERTMANAGER_URL:-}"
        return {
            "PATH": os.environ["PATH"],
            "RUNBOOK_URL": "docs/how-to/alarms",
            "ALERTMANAGER_URL": url,
        }


@pytest.fixture
def monitor(tmp_path: Path) -> Monitor:
    return Monitor(tmp_path)


@pytest.mark.parametrize(
    ("url", "scheme", "address", "prefix"),
    [
        ("http://alerts.example.org:9093", "http", "alerts.example.org:9093", "/"),
        ("https://alerts.example.org/", "https", "alerts.example.org", "/"),
        ("https://alerts.example.org/am/1", "https", "alerts.example.org", "/am/1"),
        ("http://[fd00::1]:9093/am/", "http", "[fd00::1]:9093", "/am/"),
    ],
)
def test_prometheus__with_an_alertmanager__is_told_where_it_is(
    monitor: Monitor, url: str, scheme: str, address: str, prefix: str
) -> None:
    checked = monitor.run(url)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    (told,) = yaml.safe_load(monitor.configuration.read_text())["alerting"][
        "alertmanagers"
    ]
    assert (told["scheme"], told["path_prefix"]) == (scheme, prefix)
    assert told["static_configs"] == [{"targets": [address]}]


def test_prometheus__without_an_alertmanager__has_the_file_as_it_is(
    monitor: Monitor, tmp_path: Path
) -> None:
    checked = monitor.run("")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert (
        monitor.configuration.read_text() == (tmp_path / "prometheus.yaml").read_text()
    )


@pytest.mark.parametrize("url", ["alerts.example.org:9093", "ftp://a", "http://"])
def test_prometheus__with_a_malformed_alertmanager__does_not_start(
    monitor: Monitor, url: str
) -> None:
    refused = monitor.run(url)
    assert refused.returncode == 2
    assert f"ALERTMANAGER_URL: found {url}; expected http://host:port" in refused.stderr


def test_prometheus__with_an_alertmanager__posts_alerts_to_it(
    monitor: Monitor, tmp_path: Path
) -> None:
    """A rule that is always true is on; Alertmanager's address has a path."""
    rule = {"alert": "AlwaysOn", "expr": "vector(1)"}
    rules = {"groups": [{"name": "test", "interval": "1s", "rules": [rule]}]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    posted = queue.Queue[tuple[str, str]]()

    class Alertmanager(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            for alert in json.loads(self.rfile.read(length)):
                posted.put((self.path, alert["labels"]["alertname"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Alertmanager)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/am"
    # Prometheus drops the first ones: it looks for Alertmanagers every 5 s
    flags = (
        f"--rules.alert.resend-delay=1s --web.listen-address=127.0.0.1:{free_port()}"
    )
    prometheus = subprocess.Popen(
        ["/bin/sh", "-ec", f"{monitor.script.rstrip()} {flags}"],
        env=monitor.environment(url),
        stderr=subprocess.DEVNULL,
    )
    try:
        assert posted.get(timeout=deadline(60)) == ("/am/api/v2/alerts", "AlwaysOn")
    finally:
        prometheus.kill()
        prometheus.wait()
        server.shutdown()
        server.server_close()


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
