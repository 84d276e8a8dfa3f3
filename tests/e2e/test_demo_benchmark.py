"""A new cluster, as `make demo BENCHMARK=1` shows it: really measured, offered,
approved, at work.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from devgrid import REPOSITORY
from devgrid.machine import deadline

PATIENCE_S = 840  # a minute where nothing else runs


@pytest.mark.chaos
@pytest.mark.quiet_machine  # it measures the machine
@pytest.mark.timeout(PATIENCE_S + 60)
def test_demo__of_an_unknown_cluster__measures_registers_and_runs_the_first_job(
    tmp_path: Path,
) -> None:
    argv = [
        sys.executable,
        "-m",
        "devgrid",
        "demo",
        str(REPOSITORY / "devgrid/workflows/hello-world.yaml"),
        "--benchmark",
    ]
    environment = {
        **os.environ,
        "DEVGRID_LINK": str(tmp_path / "none"),
        "COLUMNS": "250",
    }
    ended = subprocess.run(
        argv,
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=deadline(PATIENCE_S),
    )
    told = ended.stdout
    assert ended.returncode == 0, told + ended.stderr
    steps = [
        "unknown",
        "to be measured",
        "measuring",
        "registered",
        "approved",
        "requested",
        "claimed",
        "settled",
    ]
    places = [re.search(rf"^ *[\d.]+ s +{step} ", told, re.MULTILINE) for step in steps]
    assert all(places), told
    assert [found.start() for found in places if found] == sorted(
        found.start() for found in places if found
    )
    assert re.search(r"measured +hpl: compute.gflops \d+\.\d\d", told), told
    assert re.search(
        r"measured +ior: storage.scratch.read.bw.mibps .*measured with fio", told
    )
    assert re.search(
        r"measured +speedtest: .*network.upload.bw.mbps .*measured with iperf3", told
    )
    assert re.search(r"left out +osu: no osu_", told)
    assert "failed" not in told
    registered = dict(re.findall(r"s +(\S+) = (\S.*)$", told, re.MULTILINE))
    assert registered["os"] == "linux"
    assert float(registered["compute.gflops"]) > 0
    assert not any(label.startswith("network.p2p") for label in registered)
