"""Batch scripts of benchmarks: shellcheck, and what they do where this machine is the
node.
"""

import subprocess
from pathlib import Path

import pytest

from benchmarks.registry import SUITE
from tests.support.benchmark_cases import GOLDEN
from tests.support.benchmark_plans import a_plan, run_here


def test_golden_files__shellcheck_and_bash__find_nothing() -> None:
    files = sorted(GOLDEN.glob("*.sh"))
    assert {file.name.split(".")[1] for file in files} == set(SUITE)
    checked = subprocess.run(
        ["shellcheck", "--shell=bash", *files], capture_output=True, text=True
    )
    assert checked.stdout == ""
    assert checked.returncode == 0
    for file in files:
        assert subprocess.run(["bash", "-n", file], capture_output=True).stderr == b""


def test_ior__without_ior__measures_the_volumes_with_fio(tmp_path: Path) -> None:
    volumes = {
        "scratch": str(tmp_path / "with space"),
        "disk-tmp": str(tmp_path / "none"),
    }
    (tmp_path / "with space").mkdir()
    plan = a_plan(volumes=volumes, ior_block_mb_per_node=4)
    reading = SUITE["ior"].parse(run_here(SUITE["ior"].render(plan).script), plan.nonce)
    assert sorted(reading.numbers) == [
        f"storage.scratch.{way}.{what}"
        for way in ("read", "write")
        for what in ("bw.mibps", "iops")
    ]
    assert reading.numbers["storage.scratch.write.bw.mibps"].number == pytest.approx(
        2 * reading.numbers["storage.scratch.write.iops"].number, rel=0.05
    )
    assert "no folder" in reading.left_out["storage.disk-tmp.read.iops"]
    (note,) = [note for note in reading.notes if "with fio" in note]
    assert "a write ends with fsync" in note
    assert list((tmp_path / "with space").iterdir()) == []
