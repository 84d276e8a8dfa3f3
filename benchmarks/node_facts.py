"""What kind of machine a node of the partition is: os, arch, cpu, cpu.microarch, gpu.
No container is used.
"""

import re
from collections.abc import Mapping

from benchmarks.microarch import microarchitecture
from benchmarks.plan import Plan
from benchmarks.rendering import JobScript, rendered
from benchmarks.result import Reading, UnreadableOutputError
from benchmarks.sections import ScriptOutput, Section, shown, split_output

# Go's name for each of uname's names. A machine that is not listed has the same name in
# both.
_GO_ARCH = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "i386": "386",
    "i686": "386",
    "armv7l": "arm",
    "loongarch64": "loong64",
}
_LIMIT_MIN = 10
_MOST_LETTERS = 200
_ONE_WORD = re.compile(rf"\s*(\S{{1,{_MOST_LETTERS}}})\s*")


def render(plan: Plan) -> JobScript:
    """Render a job on one node, with a GPU if the partition has any."""
    gpu_nodes = plan.gpu_nodes
    nodelist = tuple[str, ...]()
    if 0 < len(gpu_nodes) < len(plan.nodes):  # some nodes have none
        nodelist = (gpu_nodes[0].name,)
    return JobScript(
        script=rendered("machine.sh.j2", plan, {"gpus": bool(gpu_nodes)}),
        nodes=1,
        ntasks_per_node=1,
        cpus_per_task=1,
        gpus_per_node=min(1, len(gpu_nodes)),
        time_limit_min=min(_LIMIT_MIN, plan.time_limit_min),
        mem_mb_per_node=100,
        exclusive=False,
        nodelist=nodelist,
    )


def _cpu(found: ScriptOutput, cpuinfo: Mapping[str, str]) -> str:
    """The model of the processor. Raises UnreadableOutputError."""
    lscpu = found.sections.get("lscpu", Section("", None))
    models = (
        cpuinfo.get("model name"),
        _fields(lscpu.text).get("Model name"),
        cpuinfo.get("cpu"),
    )
    cpu = next(filter(None, models), "")
    if not 0 < len(cpu) <= _MOST_LETTERS:
        raise UnreadableOutputError(
            f"no `model name` in /proc/cpuinfo: {shown(found.section('cpuinfo').text)}"
        )
    return cpu


def parse(output: bytes, nonce: str) -> Reading:
    """Return the words for the labels. Raises UnreadableOutputError if os, arch or cpu
    cannot be read; a retry does not help.
    """
    found = split_output(output, nonce)
    uname = {name: _one_word(found, name) for name in ("os", "arch")}
    cpuinfo = _fields(found.section("cpuinfo").text)
    cpu = _cpu(found, cpuinfo)
    machine = uname["arch"]
    words = {
        "os": uname["os"].lower(),
        "arch": _GO_ARCH.get(machine, machine),
        "cpu": cpu,
    }
    left_out = dict(found.missing)
    if microarch := microarchitecture(machine, cpuinfo):
        words["cpu.microarch"] = microarch
    else:
        left_out["cpu.microarch"] = f"archspec knows no machine {machine}"
    names, why = _gpus(found)
    if names:
        words["gpu"] = names[0]
    elif why:
        left_out["gpu"] = why
    notes = list(found.notes)
    if len(names) > 1:
        notes.append(f"GPUs of several kinds: {', '.join(names)}")
    return Reading(texts=words, left_out=left_out, notes=tuple(notes))


def _one_word(found: ScriptOutput, name: str) -> str:
    section = found.section(name)
    word = _ONE_WORD.fullmatch(section.text)
    if section.exit_status != 0 or word is None:
        raise UnreadableOutputError(
            f"uname printed {shown(section.text)}; expected one word for {name}"
        )
    return word[1]


def _fields(text: str) -> Mapping[str, str]:
    """The values of `key : value` lines, the first of each key."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    return fields


def _gpus(found: ScriptOutput) -> tuple[list[str], str]:
    """The kinds of GPUs, and why there is none."""
    section = found.sections.get("gpu")
    if section is None:
        return [], ""
    if section.exit_status != 0 or not section.text.strip():
        why = (
            f"nvidia-smi ended with status {section.exit_status}: {shown(section.text)}"
        )
        return [], why
    names = dict[str, None]()
    for line in section.text.splitlines():
        name = line.strip()
        if 0 < len(name) <= _MOST_LETTERS:
            names[name] = None
    return list(names), ""
