"""The microarchitecture of a processor, by archspec's table and rules, from what its
node prints.

archspec itself looks at the machine that it runs on. A node may have no archspec, or
another version of it. So the node prints its /proc/cpuinfo, and the choice is made
here.
"""

import re
from collections.abc import Mapping, Sequence

from archspec.cpu import TARGETS, Microarchitecture
from archspec.cpu.detect import COMPATIBILITY_CHECKS, partial_uarch
from archspec.cpu.schema import TARGETS_JSON


def microarchitecture(machine: str, cpuinfo: Mapping[str, str]) -> str:
    """Return the name of the newest compatible microarchitecture, else the machine's
    family; "" if archspec does not know such a machine.

    `machine` is what `uname -m` prints, `cpuinfo` the first processor of /proc/cpuinfo.
    """
    root = TARGETS.get(machine)
    if root is None:
        return ""
    info = _partly_known(machine, cpuinfo)
    candidates = list[Microarchitecture]()
    for target in TARGETS.values():
        is_in_family = root in (target, *target.ancestors)
        if is_in_family and _compatible(machine, info, target):
            candidates.append(target)
    return str(_newest(candidates, info.cpu_part, root).name)


def _newest(
    candidates: Sequence[Microarchitecture], cpu_part: str, root: Microarchitecture
) -> Microarchitecture:
    """The newest of the candidates. A feature that the firmware turns off must not hide
    the rest. So all descendants of the best generic one count, or those with the same
    part number if there are any.
    """
    generics = [target for target in candidates if target.vendor == "generic"]
    best_generic = max(generics, key=_newness, default=root)
    if cpu_part:
        same_part = [target for target in candidates if target.cpu_part == cpu_part]
        candidates = same_part or candidates
    descendants = [target for target in candidates if target > best_generic]
    return max(descendants, key=_newness, default=best_generic)


def _compatible(
    machine: str, info: Microarchitecture, target: Microarchitecture
) -> bool:
    if machine in ("x86_64", "aarch64"):
        return bool(COMPATIBILITY_CHECKS[machine](info, target))
    # archspec's other rules look at our own machine. A machine other than POWER gets
    # its family.
    if machine.startswith("ppc64"):
        return bool(target.generation <= info.generation)
    return bool(target.name == machine)


def _partly_known(machine: str, cpuinfo: Mapping[str, str]) -> Microarchitecture:
    """What archspec would have read on the node."""
    if machine == "aarch64":
        code = cpuinfo.get("CPU implementer", "generic")
        vendor = TARGETS_JSON["conversions"]["arm_vendors"].get(code, code)
        features = set(cpuinfo.get("Features", "").split())
        return partial_uarch(
            vendor=vendor, features=features, cpu_part=cpuinfo.get("CPU part", "")
        )
    if machine.startswith("ppc64"):
        power = re.search(r"POWER([0-9]{1,3})", cpuinfo.get("cpu", ""))
        return partial_uarch(generation=int(power[1]) if power else 0)
    return partial_uarch(
        vendor=cpuinfo.get("vendor_id", "generic"),
        features=set(cpuinfo.get("flags", "").split()),
    )


def _newness(target: Microarchitecture) -> tuple[int, int]:
    return len(target.ancestors), len(target.features)
