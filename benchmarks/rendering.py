"""A batch script and its options for sbatch; and how templates become a script."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined

from benchmarks.plan import Plan

_TEMPLATES = Environment(
    loader=PackageLoader("benchmarks"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,  # noqa: S701  inserted values go through the filter `quote`; there is no HTML
)
_TEMPLATES.filters["quote"] = lambda value: shlex.quote(str(value))


@dataclass(frozen=True, slots=True)
class JobScript:
    """What to submit: the script goes to sbatch's standard input. `nodelist` is empty
    if any nodes will do.
    """

    script: str
    nodes: int
    ntasks_per_node: int
    cpus_per_task: int
    gpus_per_node: int
    time_limit_min: int
    mem_mb_per_node: int = 0  # 0: all of it
    exclusive: bool = True
    nodelist: tuple[str, ...] = ()

    def resource_flags(self) -> tuple[str, ...]:
        """Return the options for sbatch; the caller adds partition, name, comment and
        output.
        """
        memory = f"{self.mem_mb_per_node}M" if self.mem_mb_per_node else "0"
        flags = [
            f"--nodes={self.nodes}",
            f"--ntasks-per-node={self.ntasks_per_node}",
            f"--cpus-per-task={self.cpus_per_task}",
            f"--mem={memory}",
            f"--time={self.time_limit_min}",
            "--no-requeue",
        ]
        if self.gpus_per_node:
            flags.append(f"--gpus-per-node={self.gpus_per_node}")
        if self.exclusive:
            flags.append("--exclusive")
        if self.nodelist:
            flags.append(f"--nodelist={','.join(self.nodelist)}")
        return tuple(flags)


def rendered(template: str, plan: Plan, facts: Mapping[str, object]) -> str:
    """Return the text of a template for a plan. Raises jinja2.UndefinedError for a name
    that the template uses and `facts` lacks; a retry does not help.
    """
    text = _TEMPLATES.get_template(template).render(plan=plan, **facts)
    return re.sub(r"\n{3,}", "\n\n", text)


def container_words(plan: Plan, image: str) -> str:
    """Return the options for srun, quoted, that run a step in an image (Pyxis)."""
    return shlex.join((f"--container-image={image}", *plan.container_flags))
