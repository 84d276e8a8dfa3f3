"""The chart as `helm template` renders it with the values files of
tests/images/helm.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from devgrid import REPOSITORY

CHART = REPOSITORY / "docker" / "helm" / "grid-supervisor"
FILES = Path(__file__).parent / "helm"
VALUES = sorted(file.stem for file in (FILES / "values").glob("*.yaml"))
HELM = os.environ.get("HELM", str(REPOSITORY / "build" / "bin" / "helm"))
KUBERNETES = "1.31"


def helm(
    command: str, values: str, *words: str, check: bool = True
) -> subprocess.CompletedProcess[str]:
    name = ["grid"] if command == "template" else []
    argv = [
        HELM,
        command,
        *name,
        str(CHART),
        "--kube-version",
        KUBERNETES,
        "--values",
        values,
        *words,
    ]
    return subprocess.run(argv, check=check, capture_output=True, text=True)


def rendered(values: str) -> str:
    return helm("template", str(FILES / "values" / f"{values}.yaml")).stdout


def manifests(values: str) -> list[Any]:
    return [manifest for manifest in yaml.safe_load_all(rendered(values)) if manifest]


def pods(values: str) -> Iterator[tuple[str, Any]]:
    """The pods: of the supervisor's processes, and of the chart's own Postgres and
    Redis.
    """
    for manifest in manifests(values):
        pod = manifest.get("spec", {}).get("template", {}).get("spec")
        if pod is not None:
            yield manifest["metadata"]["name"], pod


def servers(values: str) -> dict[str, Any]:
    """The pods of the chart's own Postgres and Redis."""
    names = named(values, "StatefulSet")
    return {name: pod for name, pod in pods(values) if name in names}


def processes(values: str) -> list[tuple[str, Any]]:
    """The pods of the supervisor's own processes."""
    names = servers(values)
    return [(name, pod) for name, pod in pods(values) if name not in names]


def named(values: str, kind: str) -> dict[str, Any]:
    return {
        each["metadata"]["name"]: each
        for each in manifests(values)
        if each["kind"] == kind
    }
