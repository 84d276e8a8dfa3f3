"""What kind of machine a node is: from what it printed."""

import platform
from pathlib import Path

from archspec.cpu import host

from benchmarks.labels import labels
from benchmarks.machine import parse, render
from tests.unit.benchmark_plans import NONCE, a_plan, run_here


def test_machine__this_machine__is_what_it_says_of_itself() -> None:
    reading = parse(run_here(render(a_plan()).script), NONCE)
    assert reading.words["os"] == "linux"
    assert reading.words["arch"] == {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    assert f"model name\t: {reading.words['cpu']}\n" in Path("/proc/cpuinfo").read_text()
    assert reading.words["cpu.microarch"] == host().name
    assert "gpu" not in {**reading.words, **reading.left_out}
    assert labels([reading])["cpu"] == reading.words["cpu"].lower().replace(" ", "-")
