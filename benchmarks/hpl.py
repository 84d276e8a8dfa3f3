"""HPL: compute.gflops. Mixed precision (NVIDIA's HPL-AI, also called HPL-MxP) on GPUs,
plain HPL on CPU clusters.
"""

import re
from collections.abc import Iterator

from benchmarks.plan import Mode, Plan
from benchmarks.rank_layout import (
    RankLayout,
    chosen,
    nodelist,
    problem_size,
    process_grid,
)
from benchmarks.rendering import JobScript, container_words, rendered
from benchmarks.result import MeasuredValue, Reading, UnreadableOutputError
from benchmarks.sections import Section, number, shown, split_output

LABEL = "compute.gflops"
# N NB P Q
_SIZES = r"[ \t]+([0-9]{1,9})[ \t]+([0-9]{1,5})[ \t]+([0-9]{1,6})[ \t]+([0-9]{1,6})"
_PER_GPU = r"(?:[ \t]*\([^()\n]{1,40}\))?"
# After the Gflops of the LU factorisation, HPL-AI prints the refinement's time and
# iterations, and the Gflops of both.
_REFINED = r"(?:[ \t]+\S{1,40}[ \t]+[0-9]{1,9}[ \t]+(\S{1,40}))?"
_RESULT = re.compile(
    rf"\n[ \t]*(HPL_AI[ \t]+)?(W[RC][0-9A-Z]{{1,14}}){_SIZES}[ \t]+(\S{{1,40}})[ \t]+(\S{{1,40}}){_PER_GPU}{_REFINED}"
)
# HPL-MxP as NVIDIA's hpl-mxp.sh runs it: the check comes before the result. The next
# line, `LU GFLOPS`, is only a part.
_MXP = re.compile(
    r"\n[ \t]*N[ \t]*=[ \t]*[0-9]{1,9},[ \t]*NB[ \t]*=[ \t]*[0-9]{1,5},[ \t]*NPROW[ \t]*=[^\n]{1,120}"
    r"\n[ \t]*GFLOPS[ \t]*=[ \t]*([^\s,]{1,40}),"
)
_CHECK = re.compile(r"\.{6}[ \t]*(PASSED|FAILED)")
_VERSION = re.compile(
    r"\n(HPLinpack|HPL-AI-NVIDIA|HPL-AI|HPL-MxP-NVIDIA|HPL-MxP|HPL-NVIDIA|hpl-ai)[ \t]+([0-9][0-9.]{0,15})"
)
_MOST_GFLOPS = 1e11  # a hundred times the fastest machine


def render(plan: Plan) -> JobScript:
    """Render the job with one rank for each GPU. On CPU clusters the plan sets the
    ranks; if it does not, there is one for each CPU.
    """
    layout, nb = layout_of(plan), plan.hpl_block_size
    gpus = min(node.gpus for node in layout.nodes)
    mem_mb = min(node.mem_mb for node in layout.nodes)
    n = problem_size(mem_mb, len(layout.nodes), plan.hpl_memory_share, nb)
    if plan.hpl_max_n is not None:
        n = min(n, max(nb, plan.hpl_max_n // nb * nb))
    p, q = process_grid(layout.ranks)
    facts = {
        "container": plan.mode is Mode.CONTAINER,
        "container_flags": container_words(plan, plan.images.hpl),
        "gpus": gpus,
        "nodes": len(layout.nodes),
        "ranks": layout.ranks,
        "ranks_per_node": layout.ranks_per_node,
        "cpus_per_task": layout.cpus_per_task,
        "single_node": len(layout.nodes) == 1,
        "n": n,
        "nb": nb,
        "p": p,
        "q": q,
        "dat": dat(n, nb, p, q),
    }
    return JobScript(
        script=rendered("hpl.sh.j2", plan, facts),
        nodes=len(layout.nodes),
        ntasks_per_node=layout.ranks_per_node,
        cpus_per_task=layout.cpus_per_task,
        gpus_per_node=gpus,
        time_limit_min=plan.time_limit_min,
        nodelist=layout.nodelist,
    )


def layout_of(plan: Plan) -> RankLayout:
    """Return the layout on the nodes with GPUs, or on all nodes if none has any."""
    nodes = chosen(plan.gpu_nodes or plan.nodes, single_node=plan.hpl_single_node)
    cpus = min(node.cpus for node in nodes)
    gpus = min(node.gpus for node in nodes)
    ranks = cpus
    if gpus:
        ranks = gpus
    elif plan.cpu_ranks_per_node:
        ranks = min(plan.cpu_ranks_per_node, cpus)
    return RankLayout(nodes, ranks, nodelist(plan, nodes))


def dat(n: int, nb: int, p: int, q: int) -> str:
    """Return HPL.dat, which is hpcc's hpccinf.txt too: hpcc needs the lines about
    PTRANS at its end.
    """
    values = [
        *(
            "HPLinpack benchmark input file",
            "",
            "HPL.out",
            6,
            1,
            n,
            1,
            nb,
            0,
            1,
            p,
            q,
            16.0,
        ),
        *(1, 2, 1, 4, 1, 2, 1, 1, 1, 1, 1, 1, 2, 64, 0, 0, 1, 8),
        *("", 0, 0, 0, 0),
    ]
    return "\n".join(map(str, values))


def parse(output: bytes, nonce: str) -> Reading:
    """Return the best GFLOPS of the log. Raises UnreadableOutputError; a retry does not
    help.
    """
    found = split_output(output, nonce)
    if "hpl" not in found.sections and found.missing:
        return Reading(left_out=found.missing, notes=found.notes)
    section = found.section("hpl")
    text = "\n" + section.text
    believed = _believed(text, section.exit_status)
    if not believed:
        raise UnreadableOutputError(_why_nothing(section, text))
    notes = list(found.notes)
    if section.why_unusable:
        notes.append(f"the job went on after the result: {section.why_unusable}")
    return Reading(
        {LABEL: MeasuredValue(max(believed), "GFLOPS")},
        notes=tuple(notes),
        tool=_tool(text),
    )


def _tool(text: str) -> str:
    """The program's name and version; empty if it printed none."""
    version = _VERSION.search(text)
    if version is None:
        return ""
    return f"{version[1]} {version[2]}"


def _believed(text: str, exit_status: int | None) -> list[float]:
    """GFLOPS of each plausible result line whose residual check passed. A line without
    a check counts if the job ended well.
    """
    believed = list[float]()
    for shown_gflops, begin, end in _result_lines(text):
        outcomes = {check[1] for check in _CHECK.finditer(text, begin, end)}
        if "FAILED" in outcomes:
            continue
        if not outcomes and exit_status != 0:
            continue
        try:
            gflops = number(shown_gflops, "Gflops")
        except UnreadableOutputError:
            continue
        if gflops <= _MOST_GFLOPS:
            believed.append(gflops)
    return believed


def _result_lines(text: str) -> Iterator[tuple[str, int, int]]:
    """The GFLOPS of each result line, and where the text of its residual check begins
    and ends.

    HPL and HPL-AI print the check after the result, HPL-MxP before it.
    """
    lines = list(_RESULT.finditer(text))
    check_ends = [*(line.start() for line in lines[1:]), len(text)]
    for line, check_end in zip(lines, check_ends, strict=False):
        yield _gflops(line), line.end(), check_end
    check_begin = 0
    for line in _MXP.finditer(text):
        yield line[1], check_begin, line.start()
        check_begin = line.end()


def _gflops(line: re.Match[str]) -> str:
    """GFLOPS of the whole solution in a result line. Mixed precision is measured with
    refinement, as HPL-MxP defines it; a line without refinement shows only a part.
    """
    mixed, *_, plain, refined = line.groups("")
    if mixed:
        return refined
    return plain


def _why_nothing(section: Section, text: str) -> str:
    results = list(_RESULT.finditer(text))
    lines = [line[0].strip() for line in (*results, *_MXP.finditer(text))]
    printed = "no result line"
    if lines:
        printed = f"no result with a passed residual among {len(lines)}, such as {shown(lines[-1])}"
    if not all(map(_gflops, results)):
        printed += ", and an HPL_AI line without refinement, which is no whole solution"
    ending = section.why_unusable or f"it ends with: {shown(text)}"
    return f"HPL printed {printed}; {ending}"
