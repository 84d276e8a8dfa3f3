"""The job scripts in the golden files. `make golden` writes the files again."""

from benchmarks.plan import Launcher, Mode, Plan, PlannedNode, Ucx
from benchmarks.registry import SUITE
from benchmarks.rendering import JobScript
from tests.support.benchmark_plans import DATA, a_plan

GOLDEN = DATA / "golden"
CPU_NODES = tuple(
    PlannedNode(name=f"node{number}", cpus=8, mem_mb=128460) for number in (1, 2)
)
GPU_NODES = tuple(
    PlannedNode(name=f"gpu{number}", cpus=64, gpus=4, mem_mb=515000)
    for number in (1, 2)
)
SITE = ("--container-mount-home", "--container-workdir=/tmp", "--label=no words' end")

PLANS: dict[str, Plan] = {
    "container-cpu": a_plan(mode=Mode.CONTAINER, nodes=CPU_NODES),
    "container-gpu": a_plan(mode=Mode.CONTAINER, nodes=GPU_NODES),
    "container-gpu-ucx": a_plan(
        mode=Mode.CONTAINER,
        nodes=GPU_NODES,
        ucx=Ucx.of_settings(True, "mlx5_0:1|mlx5_1:1", "sm,self,rc"),
        trace=True,
        container_flags=SITE,
        environment={"UCX_LOG_LEVEL": "it's 5"},
    ),
    "container-gpu-ucx-one-device": a_plan(
        mode=Mode.CONTAINER, nodes=GPU_NODES, ucx=Ucx.of_settings(True, "mlx5_0:1", "")
    ),
    "container-single-node": a_plan(
        mode=Mode.CONTAINER,
        nodes=GPU_NODES,
        hpl_single_node=True,
        ior_single_node=True,
        trace=True,
    ),
    "container-mixed": a_plan(mode=Mode.CONTAINER, nodes=(*CPU_NODES, *GPU_NODES)),
    "native-cpu": a_plan(
        nodes=CPU_NODES, modules=("openmpi/4.1", "hpl"), cpu_ranks_per_node=4
    ),
    "native-cpu-srun": a_plan(
        nodes=CPU_NODES, launcher=Launcher.SRUN, iperf3_server="[2001:db8::1]:5201"
    ),
    "native-gpu-ucx": a_plan(
        nodes=GPU_NODES, ucx=Ucx.of_settings(True, "mlx5_0:1|mlx5_1:1", "rc")
    ),
    "native-one-node": a_plan(
        nodes=CPU_NODES[:1], iperf3_server="iperf.example.org:5201"
    ),
}


def rendered() -> dict[str, JobScript]:
    """The scripts of all plans, by the names of their golden files. A script that
    equals an earlier one is left out.
    """
    found = dict[str, JobScript]()
    for name, plan in PLANS.items():
        for key, benchmark in SUITE.items():
            if (job := benchmark.render(plan)) not in found.values():
                found[f"{name}.{key}.sh"] = job
    return found


def text(job: JobScript) -> str:
    """The text of a golden file: the script, with the options of sbatch as its second
    line.
    """
    interpreter, _, body = job.script.partition("\n")
    return f"{interpreter}\n# sbatch {' '.join(job.resource_flags())}\n{body}"


if __name__ == "__main__":
    for old in GOLDEN.glob("*.sh"):
        old.unlink()
    for name, job in rendered().items():
        (GOLDEN / name).write_text(text(job))
