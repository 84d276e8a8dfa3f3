"""Plans for tests, and functions that run rendered scripts and make their output."""

import subprocess
from pathlib import Path
from typing import Any

from benchmarks.plan import Mode, Plan, PlannedNode

NONCE = "00112233445566778899aabbccddeeff"
DATA = Path(__file__).parents[1] / "data" / "benchmarks"


def a_plan(**changes: Any) -> Plan:
    """Two CPU nodes, native, with changes."""
    nodes = (
        PlannedNode(name="node1", cpus=8, mem_mb=128460),
        PlannedNode(name="node2", cpus=8, mem_mb=128460),
    )
    given: dict[str, Any] = {
        "mode": Mode.NATIVE,
        "partition": "main",
        "nodes": nodes,
        "nonce": NONCE,
    }
    return Plan(**{**given, **changes})


def run_here(script: str, **environment: str) -> bytes:
    """Run a batch script on this machine as if it were the node. Returns its output,
    both streams in one as SLURM writes it.
    """
    path = environment.pop("PATH", "/usr/local/bin:/usr/bin:/bin")
    done = subprocess.run(
        ["bash", "-s"],
        input=script.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": path, "HOME": "/nonexistent", **environment},
        timeout=120,
        check=False,
    )
    return done.stdout


def printed(
    *sections: tuple[str, str], notes: tuple[str, ...] = (), status: int = 0
) -> bytes:
    """The output of a script: sections between delimiter lines, and notes."""
    lines = [
        f"\n@@{NONCE} begin {name}\n{text}\n@@{NONCE} end {name} {status}\n"
        for name, text in sections
    ]
    return "".join([*lines, *(f"\n@@{NONCE} {note}\n" for note in notes)]).encode()
