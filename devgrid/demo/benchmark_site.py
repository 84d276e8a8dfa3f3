"""Prepares a grid so that it can be measured in a minute: a Linux user, a volume, an
iperf3 server, and small problems.

All nodes are this machine. The ranks of a job talk over the loopback, as shared memory
between two slurmd of one machine is not shared memory of one node.
"""

from pathlib import Path

from devgrid.cluster.linux_users import BENCHMARK_USER
from devgrid.grid import Grid
from devgrid.ports import free_port
from devgrid.processes import answers

NODES = 2
GPUS_PER_NODE = 1  # so HPL has one rank a node
MPI = {"btl": "self,tcp", "btl_tcp_if_include": "lo", "mpi_yield_when_idle": "1"}


def prepare(grid: Grid) -> None:
    """Set the settings of the benchmarks, and make what they refer to. Call it before
    the fleet is started.
    """
    grid.users.add(BENCHMARK_USER)
    settings = {
        "BENCHMARK_DISABLE": "false",
        "BENCHMARK_RUN_AS": BENCHMARK_USER,
        "BENCHMARK_MODE": "native",
        "BENCHMARK_TIME_LIMIT": "10m",
        "BENCHMARK_ENVIRONMENT": " ".join(
            f"OMPI_MCA_{name}={value}" for name, value in MPI.items()
        ),
        "BENCHMARK_HPL_MAX_N": "512",
        "BENCHMARK_HPL_BLOCK_SIZE": "128",
        "BENCHMARK_IOR_BLOCK_MB_PER_NODE": "64",
        "BENCHMARK_VOLUMES": f"scratch={_volume(grid)}",
        "BENCHMARK_IPERF3_SERVER": _iperf3(grid),
    }
    grid.environment.update(settings)


def _volume(grid: Grid) -> Path:
    folder = grid.folder / "volumes" / "scratch"
    folder.mkdir(parents=True)
    folder.chmod(0o1777)
    return folder


def _iperf3(grid: Grid) -> str:
    port = free_port()
    argv = ["/usr/bin/iperf3", "--server", "--bind", "127.0.0.1", "--port", str(port)]
    grid.processes.start("iperf3", argv, ready=lambda: answers(port))
    return f"127.0.0.1:{port}"
