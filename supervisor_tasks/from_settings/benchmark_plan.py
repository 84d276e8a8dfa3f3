"""Make the plan of a benchmark run from the settings and the partition's hardware."""

import math
import shlex

from benchmarks.plan import VOLUMES, Images, Launcher, Mode, Plan, PlannedNode, Ucx
from supervisor_tasks.config.settings import Settings
from supervisor_tasks.slurm.hardware import PartitionHardware, SlurmNode


def plan_of(settings: Settings, hardware: PartitionHardware, nonce: str) -> Plan:
    """Return the plan. Raises ValueError for settings that do not fit, such as UCX
    devices for another number of nodes; a retry does not help.
    """
    nodes = tuple(map(_planned, hardware.nodes))
    kinds = {node.kind for node in nodes}
    return Plan(
        mode=Mode(settings.benchmark_mode),
        partition=settings.slurm_partition,
        nodes=nodes,
        unlike_nodes=tuple(
            node.name
            for node in hardware.excluded_nodes
            if (node.cpus, node.gpus, node.mem_mb) not in kinds
        ),
        nonce=nonce,
        time_limit_min=_time_limit_min(settings, hardware),
        images=Images(
            hpl=settings.benchmark_hpl_image,
            osu=settings.benchmark_osu_image,
            ior=settings.benchmark_ior_image,
            speedtest=settings.benchmark_speedtest_image,
        ),
        hpl_single_node=settings.benchmark_hpl_single_node,
        ior_single_node=settings.benchmark_ior_single_node,
        hpl_memory_share=settings.benchmark_hpl_memory_share,
        hpl_block_size=settings.benchmark_hpl_block_size,
        hpl_max_n=settings.benchmark_hpl_max_n,
        cpu_ranks_per_node=settings.benchmark_cpu_ranks_per_node,
        ior_block_mb_per_node=settings.benchmark_ior_block_mb_per_node,
        ior_iterations=settings.benchmark_ior_iterations,
        ucx=_ucx(settings, hardware),
        trace=settings.benchmark_trace,
        environment=settings.benchmark_environment,
        volumes=settings.benchmark_volumes or dict(VOLUMES),
        modules=tuple(shlex.split(settings.benchmark_modules)),
        container_flags=tuple(shlex.split(settings.benchmark_container_flags)),
        launcher=Launcher(settings.benchmark_launcher),
        mpi=settings.benchmark_srun_mpi,
        nvidia_smi=settings.nvidia_smi_path,
        iperf3_server=settings.benchmark_iperf3_server,
    )


def _planned(node: SlurmNode) -> PlannedNode:
    return PlannedNode(
        name=node.name, cpus=node.cpus, gpus=node.gpus, mem_mb=node.mem_mb
    )


def _time_limit_min(settings: Settings, hardware: PartitionHardware) -> int:
    """The limit in the settings, but no more than the partition allows: SLURM would
    accept a longer job, and let it wait without end.
    """
    wanted_min = max(math.ceil(settings.benchmark_time_limit / 60), 1)
    if not hardware.max_time_min:
        return wanted_min
    return min(wanted_min, hardware.max_time_min)


def _ucx(settings: Settings, hardware: PartitionHardware) -> Ucx:
    """Devices are given for all nodes of the partition, in their order, because the
    nodes that work change from run to run.
    """
    ucx = Ucx.of_settings(
        settings.benchmark_ucx,
        settings.benchmark_ucx_affinity,
        settings.benchmark_ucx_transport,
    )
    if not ucx.enabled:
        return ucx.model_copy(update={"affinity": ()})
    nodes = hardware.in_order
    if len(ucx.affinity) <= 1:
        return ucx
    if len(ucx.affinity) != len(nodes):
        expected = (
            f"none, one for all or one for each of the partition's {len(nodes)} nodes"
        )
        raise ValueError(
            f"{len(ucx.affinity)} entries of UCX affinity; expected {expected}"
        )
    of_node = dict(zip((node.name for node in nodes), ucx.affinity, strict=True))
    affinity = tuple(of_node[node.name] for node in hardware.nodes)
    return ucx.model_copy(update={"affinity": affinity})
