"""The pages of docs/how-to/alarms: each alarm and each alert has one, and what they
name exists.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from devgrid import REPOSITORY
from supervisor_tasks import instruments
from supervisor_tasks.alarms.alarm_names import AlarmName
from tests.support.reference import metrics

FOLDER = REPOSITORY / "docs" / "how-to" / "alarms"
MONITORING = REPOSITORY / "docker" / "monitoring"
CHART_FILES = REPOSITORY / "docker" / "helm" / "grid-supervisor" / "files"
RULES: list[dict[str, Any]] = yaml.safe_load((CHART_FILES / "rules.yaml").read_text())[
    "groups"
][0]["rules"]
TESTS: list[dict[str, Any]] = yaml.safe_load(
    (MONITORING / "alerts_test.yaml").read_text()
)["tests"]
DASHBOARD: dict[str, Any] = json.loads((CHART_FILES / "dashboard.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
NAMES = sorted([*AlarmName, *(rule["alert"] for rule in RULES)])
SECTIONS = ["What it means", "How to look", "What to do"]
COMMAND = re.compile(r"^supervisor .*|(?<=`)supervisor [^`]*(?=`)", re.MULTILINE)
OPTION = re.compile(r"(?<= )(--?[a-z][a-z-]*)")
METRIC = re.compile(r"\b(supervisor_[a-z_]+)\b")
PARTS = re.compile(r"_(bucket|count|sum)$")
GRID_WIDTH = 24


@cache
def commands() -> dict[str, str]:
    """The help of each command, by its words, as docs/reference/cli.md has it."""
    page = (REPOSITORY / "docs" / "reference" / "cli.md").read_text()
    _, *sections = re.split(r"^## ", page, flags=re.MULTILINE)
    return {
        section.partition("\n")[0]: section.partition("\n")[2] for section in sections
    }


def called(line: str) -> str:
    """The longest command that a line begins with."""
    words = line.split()
    return max(
        (name for name in commands() if words[: len(name.split())] == name.split()),
        key=len,
    )


def known_metrics() -> set[str]:
    """The names of all metrics, as docs/reference/metrics.md has them."""
    return set(METRIC.findall(metrics.page()))


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in RULES)
    yield from (
        target["expr"] for panel in PANELS for target in panel.get("targets", ())
    )


def test_pages__of_alarms_and_alerts__are_there_and_no_others() -> None:
    assert (
        sorted(file.stem for file in FOLDER.glob("*.md") if file.stem != "README")
        == NAMES
    )


@pytest.mark.parametrize("name", NAMES)
def test_page__its_parts__stand_in_one_order(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text()
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert f"[{name}]({name}.md)" in (FOLDER / "README.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_page__commands_that_it_names__exist_with_their_options(name: str) -> None:
    lines = [
        line.partition("  #")[0]
        for line in COMMAND.findall((FOLDER / f"{name}.md").read_text())
    ]
    for line in lines:
        command = called(line)
        assert not any(other.startswith(f"{command} ") for other in commands()), (
            f"{line!r} names no command"
        )
        assert [
            option
            for option in OPTION.findall(line)
            if option not in commands()[command]
        ] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert__its_page_and_its_two_tests__are_there(rule: dict[str, Any]) -> None:
    page = rule["annotations"]["runbook_url"].replace(
        "{{ $labels.alarm }}", AlarmName.WALLET_EMPTY
    )
    assert (REPOSITORY / page).is_file()
    tested = {test["name"]: test["alert_rule_test"][0]["exp_alerts"] for test in TESTS}
    assert tested[f"{rule['alert']} fires"]
    assert tested[f"{rule['alert']} stays silent"] == []


def test_compose__rules_of_prometheus__link_to_the_sites_pages(tmp_path: Path) -> None:
    service = yaml.safe_load((REPOSITORY / "docker" / "compose.yaml").read_text())[
        "services"
    ]["prometheus"]
    (script,) = service["command"]
    made = tmp_path / "rules.yaml"
    given = {
        "/tmp/": f"{tmp_path}/",
        "/etc/prometheus/rules.yaml": str(CHART_FILES / "rules.yaml"),
        "/etc/prometheus/prometheus.yaml": str(MONITORING / "prometheus.yaml"),
        "$$": "$",
    }
    for before, after in given.items():
        script = script.replace(before, after)
    (tmp_path / "prometheus").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "prometheus").chmod(0o755)
    site = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "RUNBOOK_URL": "https://docs.example.org/alarms/",
        "ALERTMANAGER_URL": "",
    }
    done = subprocess.run(
        [*service["entrypoint"], script],
        env=site,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("--config.file=")
    links = re.findall("runbook_url: '(.*)'", made.read_text())
    assert len(links) == len(RULES)
    assert all(
        re.fullmatch(r"https://docs.example.org/alarms/[^/]+\.md", link)
        for link in links
    )


def test_queries__metrics_that_they_name__are_served() -> None:
    named = {
        PARTS.sub("", name) for text in expressions() for name in METRIC.findall(text)
    }
    assert named - {PARTS.sub("", name) for name in known_metrics()} == set()


def test_metrics__names__follow_the_conventions() -> None:
    for name in known_metrics():
        assert not re.search(r"_(age|minutes|ms|min|mb|gb)(_|$)", name), name
    for instrument in instruments.REGISTRY._collector_to_names:
        assert "cluster" not in instrument._labelnames  # type: ignore[attr-defined]


def test_dashboard__its_form__is_grafanas() -> None:
    assert DASHBOARD["schemaVersion"] >= 39
    assert [row["title"] for row in PANELS if row["type"] == "row"] == [
        "Site",
        "Cluster: $cluster",
        "Jobs of $cluster",
    ]
    assert {one["name"] for one in DASHBOARD["templating"]["list"]} == {
        "datasource",
        "cluster",
    }
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    for panel in (panel for panel in PANELS if panel["type"] != "row"):
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["type"] in {"stat", "timeseries", "heatmap"}
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0


def test_dashboard__read_and_written_by_grafanas_own_models__keeps_each_field() -> None:
    """The models are generated from Grafana's schema: a field that it does not have,
    also of a panel's type, is lost.
    """
    register_default_plugins()
    written = json.loads(
        JSONEncoder(sort_keys=True, indent=1).encode(Dashboard.from_json(DASHBOARD))
    )
    assert list(changed(DASHBOARD, written, "")) == [
        ".annotations.list.0.titleFormat"
    ]  # the Prometheus data source's own


def changed(given: Any, written: Any, place: str) -> Iterator[str]:
    """The places at which what was given is not in what was written."""
    if isinstance(given, dict | list) and type(given) is type(written):
        entries = given.items() if isinstance(given, dict) else enumerate(given)
        for key, value in entries:
            there = key in written if isinstance(written, dict) else key < len(written)
            yield from (
                changed(value, written[key], f"{place}.{key}")
                if there
                else [f"{place}.{key}"]
            )
    elif given != written:
        yield place


def test_dashboard__its_panels__do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in PANELS]
    assert all(at["x"] >= 0 and at["x"] + at["w"] <= GRID_WIDTH for at in places)
    assert not [pair for pair in combinations(places, 2) if _overlap(*pair)]


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    return not (beside or above)


def test_dashboard__queries_of_a_cluster__are_limited_to_it() -> None:
    titles = [panel["title"] for panel in PANELS]
    below = PANELS[titles.index("Cluster: $cluster") :]
    queries = [target["expr"] for panel in below for target in panel.get("targets", ())]
    assert [
        query
        for query in queries
        if query.count('cluster=~"$cluster"') < len(re.findall(r"\{", query))
    ] == []
