"""What a rendering needs to know: the nodes, how the site runs programs, what the
operator chose. A plan is checked when it is made.

A plan holds no secret. Its values may come from settings, SLURM or the operator; a
script quotes those that it contains.
"""

import re
from collections import Counter
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

VOLUMES = {
    "scratch": "/opt/cache/shared",
    "shared-world-tmp": "/opt/cache/world-tmp",
    "shared-tmp": "/opt/cache/persistent",
    "disk-world-tmp": "/opt/cache/disk/world-tmp",
    "disk-tmp": "/opt/cache/disk/tmp",
}
DEFAULT_MEMORY_SHARE = 0.5
DEFAULT_BLOCK_SIZE = 512
# Variables that would change what runs, where output goes or what SLURM has set. The
# operator's own must have other names.
_RESERVED = re.compile(
    r"(LD_.*|BASH_.*|BASH|ENV|IFS|PATH|HOME|SHELL|SHELLOPTS|PS4|SLURM_.*|SBATCH_.*|BENCHMARK_.*)"
)


class Mode(StrEnum):
    """How a job finds a benchmark's programs."""

    CONTAINER = "container"
    NATIVE = "native"


class Launcher(StrEnum):
    """What starts the ranks of a native program; srun always starts those of
    containers.
    """

    MPIRUN = "mpirun"
    SRUN = "srun"


def _of_form(expression: str, fault: str) -> AfterValidator:
    """Return the check of a text by a regular expression. Its error says what is wrong
    with the text.
    """

    def check(text: str) -> str:
        if not re.fullmatch(expression, text):
            raise ValueError(f"{text!r} {fault}")
        return text

    return AfterValidator(check)


def _not_reserved(name: str) -> str:
    if _RESERVED.fullmatch(name):
        raise ValueError(
            f"{name} must not be set for a benchmark: it changes what runs, or what SLURM has set"
        )
    return name


Text = Annotated[str, _of_form(r"[^\x00-\x1f\x7f]*", "holds control characters")]
Word = Annotated[
    str,
    _of_form(
        r"[A-Za-z0-9_./:@=,+%#][A-Za-z0-9_./:@=,+%#-]*",
        "is not one word of letters, digits and _./:@=,+%#-, no - first",
    ),
]
AbsolutePath = Annotated[
    str,
    _of_form(
        r"(?!.*/\.\.(/|$))/[A-Za-z0-9_./@+ -]*",
        "is not an absolute path of letters, digits, spaces and _./@+-",
    ),
]
Device = Annotated[
    str,
    _of_form(r"[A-Za-z0-9_.:,-]+", "is not a device list such as mlx5_0:1,mlx5_1:1"),
]
VariableName = Annotated[
    str,
    _of_form(
        r"[A-Za-z_][A-Za-z0-9_]*",
        "is not a name of an environment variable: letters, digits and _, no digit first",
    ),
    AfterValidator(_not_reserved),
]
VolumeName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
Transport = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_,^]*$")]
Iperf3Server = Annotated[
    str,
    Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:]+\]):[0-9]{1,5}$|^$"),
]  # empty: none
NodeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PlannedNode(_Frozen):
    """A node of the partition, as SLURM configures it."""

    name: NodeName
    cpus: int = Field(gt=0)
    gpus: int = Field(0, ge=0)
    mem_mb: int = Field(gt=0)

    @property
    def kind(self) -> tuple[int, int, int]:
        """CPUs, GPUs and memory: nodes of one kind are alike."""
        return self.cpus, self.gpus, self.mem_mb


class Images(_Frozen):
    """Container images in Enroot's form (registry#path:tag). The defaults are those of
    the Go program.
    """

    hpl: Word = "registry-1.deepsquare.run#library/hpc-benchmarks:23.5"
    osu: Word = "registry-1.deepsquare.run#library/osu-benchmarks:latest"
    ior: Word = "registry-1.deepsquare.run#library/ior-benchmarks:latest"
    speedtest: Word = "registry-1.docker.io#gists/speedtest-cli:1.2.0"


class Ucx(_Frozen):
    """UCX over the fast network. `affinity` has one device list for each node, in the
    nodes' order, or one for all.
    """

    enabled: bool = False
    affinity: tuple[Device, ...] = ()
    transport: Transport = ""

    @classmethod
    def of_settings(cls, enabled: bool, affinity: str, transport: str) -> Self:
        """Make it from BENCHMARK_UCX, BENCHMARK_UCX_AFFINITY (`mlx5_0:1|mlx5_0:1`) and
        BENCHMARK_UCX_TRANSPORT.
        """
        return cls(
            enabled=enabled,
            affinity=tuple(filter(None, affinity.split("|"))),
            transport=transport,
        )


class Plan(_Frozen):
    """One run: its nodes and its options. `nonce` is new for each run; it begins our
    lines in the output. `unlike_nodes` are nodes of the partition that do not work when
    the run begins and are of a kind that no planned node is of: they may work again
    while its jobs wait, and a job must not run there.
    """

    mode: Mode
    partition: Word
    nodes: tuple[PlannedNode, ...] = Field(min_length=1)
    unlike_nodes: tuple[NodeName, ...] = ()
    nonce: Annotated[str, Field(pattern=r"^[0-9a-f]{16,64}$")]
    time_limit_min: int = Field(24 * 60, gt=0)
    images: Images = Images()
    hpl_single_node: bool = False
    ior_single_node: bool = False
    hpl_memory_share: float = Field(DEFAULT_MEMORY_SHARE, gt=0, le=1)
    hpl_block_size: int = Field(DEFAULT_BLOCK_SIZE, ge=1, le=4096)
    # of HPL on CPU clusters; None: one for each CPU
    cpu_ranks_per_node: int | None = Field(None, gt=0)
    # Upper bound of N, for clusters whose memory would make HPL run for days, and for
    # tests.
    hpl_max_n: int | None = Field(None, gt=0)
    ior_block_mb_per_node: int = Field(10 * 1024, ge=1)
    ior_iterations: int = Field(5, ge=1, le=100)
    ucx: Ucx = Ucx()
    trace: bool = False
    environment: dict[VariableName, Text] = Field(default_factory=dict)
    volumes: dict[VolumeName, AbsolutePath] = Field(
        default_factory=lambda: dict(VOLUMES)
    )
    modules: tuple[Word, ...] = ()
    container_flags: tuple[Text, ...] = ()  # the site's own srun flags for containers
    launcher: Launcher = Launcher.MPIRUN
    mpi: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")] = "pmix"  # srun --mpi
    nvidia_smi: Word = "nvidia-smi"
    iperf3_server: Iperf3Server = ""
    iperf3_duration_s: int = Field(10, ge=1, le=600)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        numbers = Counter(node.name for node in self.nodes)
        for name, number in numbers.items():
            if number > 1:
                raise ValueError(
                    f"the node {name} is named {number} times, expected once"
                )
        if len(self.ucx.affinity) not in (0, 1, len(self.nodes)):
            expected = f"none, one for all or one for each of {len(self.nodes)} nodes"
            raise ValueError(
                f"{len(self.ucx.affinity)} entries of UCX affinity; expected {expected}"
            )
        return self

    @property
    def gpu_nodes(self) -> tuple[PlannedNode, ...]:
        """The nodes that have GPUs."""
        return tuple(node for node in self.nodes if node.gpus)
