"""Which nodes a job takes, and with how many ranks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.plan import Plan, PlannedNode


@dataclass(frozen=True, slots=True)
class RankLayout:
    """Nodes and ranks. Every node counts as having what the smallest of them has."""

    nodes: tuple[PlannedNode, ...]
    ranks_per_node: int
    nodelist: tuple[str, ...]  # empty if any nodes of the partition will do

    @property
    def ranks(self) -> int:
        """The ranks on all nodes."""
        return len(self.nodes) * self.ranks_per_node

    @property
    def cpus_per_task(self) -> int:
        """CPUs of each rank."""
        return max(1, min(node.cpus for node in self.nodes) // self.ranks_per_node)


def chosen(
    candidates: Sequence[PlannedNode], *, single_node: bool
) -> tuple[PlannedNode, ...]:
    """Return the nodes of a job: all candidates, or the first of the most common
    kind.
    """
    if not single_node:
        return tuple(candidates)
    kinds = [node.kind for node in candidates]
    most_common = max(kinds, key=kinds.count)
    return (candidates[kinds.index(most_common)],)


def nodelist(plan: Plan, nodes: Sequence[PlannedNode]) -> tuple[str, ...]:
    """Return the node names that sbatch needs: none if all nodes are taken, or all are
    alike.
    """
    if len(nodes) == len(plan.nodes):
        return ()
    if len({node.kind for node in plan.nodes}) == 1:
        return ()
    return tuple(node.name for node in nodes)


def process_grid(ranks: int) -> tuple[int, int]:
    """Return P x Q, as square as the number of ranks allows, P >= Q: 15 is 5 x 3."""
    q = math.isqrt(ranks)
    while ranks % q != 0:
        q -= 1
    return ranks // q, q


def problem_size(
    mem_mb_per_node: int, nodes: int, share: float, block_size: int
) -> int:
    """Return N of HPL: share x sqrt(memory / 8) x 1000, a multiple of NB and at least
    one. Two nodes of 128460 MB give 89600.
    """
    n = int(share * math.sqrt(mem_mb_per_node * nodes / 8) * 1000)
    return max(block_size, n // block_size * block_size)
