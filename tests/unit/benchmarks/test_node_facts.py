"""What kind of machine a node is: from what it printed."""

import platform
from pathlib import Path

import pytest
from archspec.cpu import TARGETS, host

from benchmarks.microarch import microarchitecture
from benchmarks.node_facts import parse, render
from benchmarks.result import UnreadableOutputError
from supervisor_tasks.provider.offer import label_texts
from tests.support.benchmark_plans import DATA, NONCE, a_plan, printed, run_here

CPUINFO = (DATA / "cpuinfo-x86_64-amd-linux-6.18.txt").read_text()


def test_machine__this_machine__is_what_it_says_of_itself() -> None:
    reading = parse(run_here(render(a_plan()).script), NONCE)
    assert reading.texts["os"] == "linux"
    assert (
        reading.texts["arch"]
        == {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    )
    assert f": {reading.texts['cpu']}\n" in Path("/proc/cpuinfo").read_text()
    assert reading.texts["cpu.microarch"] == host().name
    assert "gpu" not in {**reading.texts, **reading.left_out}
    assert set(label_texts(reading.texts)) == {"arch", "cpu", "cpu.microarch", "os"}


def node(
    *, os: str = "Linux", arch: str = "x86_64", cpuinfo: str = CPUINFO, **more: str
) -> bytes:
    return printed(("os", os), ("arch", arch), ("cpuinfo", cpuinfo), *more.items())


def test_machine__recorded_epyc_with_gpus__is_read() -> None:
    reading = parse(node(gpu="NVIDIA A100-SXM4-40GB\nNVIDIA A100-SXM4-40GB\n"), NONCE)
    assert reading.texts == {
        "os": "linux",
        "arch": "amd64",
        "cpu": "AMD EPYC",
        "cpu.microarch": "x86_64_v4",
        "gpu": "NVIDIA A100-SXM4-40GB",
    }
    assert reading.notes == ()


def test_machine__gpus_of_two_kinds__is_the_first_and_says_so() -> None:
    reading = parse(node(gpu="Tesla T4\nNVIDIA L4\n"), NONCE)
    assert reading.texts["gpu"] == "Tesla T4"
    assert reading.notes == ("GPUs of several kinds: Tesla T4, NVIDIA L4",)


def test_machine__nvidia_smi_fails_or_is_missing__has_no_gpu() -> None:
    failed = (
        f"\n@@{NONCE} begin gpu\nNVIDIA-SMI has failed\n@@{NONCE} end gpu 9\n".encode()
    )
    for nonce_lines in (
        failed,
        printed(notes=("missing gpu no nvidia-smi on the node",)),
    ):
        reading = parse(node() + nonce_lines, NONCE)
        assert "gpu" not in reading.texts
        assert "nvidia-smi" in reading.left_out["gpu"]


def test_machine__arm_without_model_name__takes_lscpus() -> None:
    features = " ".join(TARGETS["neoverse_v1"].features)
    cpuinfo = f"processor\t: 0\nFeatures\t: {features}\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
    reading = parse(
        node(
            arch="aarch64",
            cpuinfo=cpuinfo,
            lscpu="Vendor ID:  ARM\nModel name:   Neoverse-V1\n",
        ),
        NONCE,
    )
    assert reading.texts == {
        "os": "linux",
        "arch": "arm64",
        "cpu": "Neoverse-V1",
        "cpu.microarch": "neoverse_v1",
    }


@pytest.mark.parametrize(
    "output",
    [
        node(os=""),
        node(os="two words"),
        node(arch=""),
        node(cpuinfo="processor : 0\n"),
        node(cpuinfo="model name : " + "x" * 300),
    ],
)
def test_machine__garbage__is_refused(output: bytes) -> None:
    with pytest.raises(UnreadableOutputError):
        parse(output, NONCE)


@pytest.mark.parametrize(
    "name", ["haswell", "skylake_avx512", "zen3", "icelake", "x86_64_v3", "zen4"]
)
def test_microarchitecture__all_features_of_one__is_that_one(name: str) -> None:
    target = TARGETS[name]
    cpuinfo = {"vendor_id": target.vendor, "flags": " ".join(target.features)}
    assert microarchitecture("x86_64", cpuinfo) == name


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "expected"),
    [
        ("ppc64le", {"cpu": "POWER9, altivec supported"}, "power9le"),
        ("ppc64le", {}, "ppc64le"),
        ("riscv64", {}, "riscv64"),
        ("x86_64", {}, "x86_64"),
        ("pdp11", {}, ""),
    ],
)
def test_microarchitecture__other_machines__are_their_family_at_least(
    machine: str, cpuinfo: dict[str, str], expected: str
) -> None:
    assert microarchitecture(machine, cpuinfo) == expected
