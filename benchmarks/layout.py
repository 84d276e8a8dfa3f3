"""Which nodes a job takes, by how many ranks. Pure arithmetic."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.plan import Node, Plan


@dataclass(frozen=True, slots=True)
class Layout:
    """Nodes and ranks. What the smallest of the nodes has, all have."""

    nodes: tuple[Node, ...]
    ranks_per_node: int
    nodelist: tuple[str, ...]  # empty where any nodes of the partition will do

    @property
    def ranks(self) -> int:
        """Of all nodes."""
        return len(self.nodes) * self.ranks_per_node

    @property
    def cpus_per_task(self) -> int:
        """CPUs of each rank."""
        return max(1, min(node.cpus for node in self.nodes) // self.ranks_per_node)


def chosen(candidates: Sequence[Node], *, single_node: bool) -> tuple[Node, ...]:
    """The nodes of a job: all candidates, or the first of the most common kind."""
    if not single_node:
        return tuple(candidates)
    kinds = [(node.cpus, node.gpus, node.mem_mb) for node in candidates]
    most_common = max(kinds, key=kinds.count)
    return (candidates[kinds.index(most_common)],)


def nodelist(plan: Plan, nodes: Sequence[Node]) -> tuple[str, ...]:
    """The names that sbatch has to be given: none where all nodes are taken, or all are alike."""
    kinds = {(node.cpus, node.gpus, node.mem_mb) for node in plan.nodes}
    return () if len(nodes) == len(plan.nodes) or len(kinds) == 1 else tuple(node.name for node in nodes)


def process_grid(ranks: int) -> tuple[int, int]:
    """P x Q, as square as the number of ranks allows, P >= Q: 15 is 5 x 3."""
    q = next(q for q in range(math.isqrt(ranks), 0, -1) if ranks % q == 0)
    return ranks // q, q


def problem_size(mem_mb_per_node: int, nodes: int, share: float, block_size: int) -> int:
    """N of HPL: share x sqrt(memory / 8) x 1000, a multiple of NB and at least one. Two nodes of 128460 MB give 89600."""
    n = int(share * math.sqrt(mem_mb_per_node * nodes / 8) * 1000)
    return max(block_size, n // block_size * block_size)
