"""Benchmarks as jobs of a real SLURM, native: MPI between two slurmd, a real disk, this
machine's network.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.plan import Mode, Plan, PlannedNode
from benchmarks.registry import SUITE
from devgrid.cluster.linux_users import Users
from devgrid.cluster.slurm import Slurm
from devgrid.machine import deadline
from devgrid.ports import free_port
from devgrid.processes import answers, tail, wait_until
from devgrid.state_folder import private_processes
from tests.support.spool_env import new_spool

# Two slurmd of one machine: Open MPI's shared memory of the one would be taken for the
# other's, and there are more ranks than cores.
ONE_MACHINE = {
    "OMPI_MCA_btl": "self,tcp",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_rmaps_base_display_map": "1",  # it prints which rank is on which node
}
NONCE = "5ca1ab1e0ddba11c0ffee00000000000"


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with private_processes() as processes:
        spool = new_spool(processes)
        running = Slurm.start(
            processes,
            Users(processes.folder),
            spool=spool,
            nodes=2,
            cpus_per_node=2,
            gpus_per_node=1,
        )
        try:
            yield running
        finally:
            running.stop()


def a_plan(slurm: Slurm, iperf3_port: int) -> Plan:
    folder = slurm.processes.folder / "volume"
    folder.mkdir(mode=0o777)
    disk = slurm.processes.folder / "disk"
    disk.mkdir(mode=0o777)
    return Plan(
        mode=Mode.NATIVE,
        partition="main",
        nodes=tuple(
            PlannedNode(name=f"node{number}", cpus=2, gpus=1, mem_mb=16_000)
            for number in (1, 2)
        ),
        nonce=NONCE,
        hpl_max_n=128,
        hpl_block_size=64,
        ior_block_mb_per_node=8,
        volumes={
            "scratch": str(folder),
            "disk-world-tmp": str(disk),
            "disk-tmp": str(folder / "none"),
        },
        environment=ONE_MACHINE,
        iperf3_server=f"127.0.0.1:{iperf3_port}",
        iperf3_duration_s=1,
    )


def submit(slurm: Slurm, name: str, plan: Plan) -> Path:
    """Hand a benchmark in, as the operator's user; returns the file of its output."""
    job, output = SUITE[name].render(plan), slurm.processes.folder / f"{name}.log"
    done = subprocess.run(
        [
            "sbatch",
            "--parsable",
            f"--job-name={name}",
            f"--output={output}",
            "--partition=main",
            *job.resource_flags(),
        ],
        input=job.script.encode(),
        env={**os.environ, **slurm.env()},
        cwd=slurm.processes.folder,
        capture_output=True,
        timeout=deadline(60),
    )
    assert done.returncode == 0, done.stderr
    return output


@pytest.mark.timeout(600)
def test_benchmarks__native_on_two_slurmd__measure_or_name_what_is_missing(
    slurm: Slurm,
) -> None:
    port = free_port()
    server = ["iperf3", "--server", "--bind", "127.0.0.1", "--port", str(port)]
    slurm.processes.start("iperf3", server, ready=lambda: answers(port))
    plan = a_plan(slurm, port)
    outputs = {name: submit(slurm, name, plan) for name in SUITE}

    def all_ended() -> bool:
        shown = slurm.run("squeue", "--noheader")
        # of a busy slurmctld squeue may get no answer
        return shown.returncode == 0 and not shown.stdout.strip()

    wait_until(all_ended, "all benchmarks to end", 480.0, every_s=0.5)
    readings = {}
    for name, output in outputs.items():
        print(tail(output, 30))
        readings[name] = SUITE[name].parse(output.read_bytes(), NONCE)
    assert list(readings["hpl"].numbers) == ["compute.gflops"]
    assert "HPLinpack" in readings["hpl"].tool
    assert (
        "plain HPL on the CPUs, by 2 ranks: no hpl.sh on the node"
        in readings["hpl"].notes
    )
    ranks = re.findall(
        r"Data for node: (\S+).*?Process rank: (\d+)",
        outputs["hpl"].read_text(),
        re.DOTALL,
    )
    assert sorted(ranks, key=lambda rank: rank[1]) == [("node1", "0"), ("node2", "1")]
    assert len(readings["ior"].numbers) == 8
    assert not any("files may be left" in note for note in readings["ior"].notes)
    assert list((slurm.processes.folder / "disk").iterdir()) == []
    assert "no folder" in readings["ior"].left_out["storage.disk-tmp.read.iops"]
    assert list(readings["speedtest"].numbers) == [
        "network.upload.bw.mbps",
        "network.download.bw.mbps",
    ]
    assert any("iperf3" in note for note in readings["speedtest"].notes)
    assert set(readings["machine"].texts) == {"os", "arch", "cpu", "cpu.microarch"}
    assert readings["machine"].left_out == {"gpu": "no nvidia-smi on the node"}
    assert readings["osu"].empty
    assert all(
        reason.startswith("no osu_") for reason in readings["osu"].left_out.values()
    )
