"""HPL's and HPCC's output, as the programs printed it."""

import pytest

from benchmarks.registry import SUITE
from benchmarks.result import MeasuredValue
from tests.support.benchmark_outputs import read, refused, sample
from tests.support.benchmark_plans import DATA, NONCE


@pytest.mark.parametrize(
    ("name", "gflops", "tool"),
    [
        ("hpcc-1.5.0.txt", 1.153, "HPLinpack 2.0"),
        ("hpcc-1.5.0-two-sizes.txt", 0.07156, "HPLinpack 2.0"),
        ("hpl-2.3.made-up.txt", 414.44, "HPLinpack 2.3"),
        ("hpl-nvidia-23.5.made-up.txt", 10840.0, "HPL-NVIDIA 23.5.0"),
        ("hpl-ai-nvidia-23.5.made-up.txt", 36950.0, "HPL-AI-NVIDIA 23.5.0"),
        ("hpl-mxp-nvidia-24.03.made-up.txt", 851200.0, "HPL-MxP-NVIDIA 24.3.0"),
        ("hpl-mxp-nvidia-26.02.made-up.txt", 2041600.0, "HPL-MxP-NVIDIA 26.2.0"),
        ("hpl-ai-nvidia-23.5-best-failed.made-up.txt", 35000.0, "HPL-AI-NVIDIA 23.5.0"),
    ],
)
def test_hpl__log__gives_the_best_gflops_that_passed(
    name: str, gflops: float, tool: str
) -> None:
    reading = read("hpl", ("hpl", sample(name)))
    assert reading.numbers == {"compute.gflops": MeasuredValue(gflops, "GFLOPS")}
    assert reading.tool == tool


def test_hpl__recorded_job_of_two_nodes__is_read_with_its_notes() -> None:
    reading = SUITE["hpl"].parse((DATA / "job-hpl-hpcc-1.5.0.txt").read_bytes(), NONCE)
    assert reading.numbers == {"compute.gflops": MeasuredValue(0.05463, "GFLOPS")}
    assert reading.notes == (
        "plain HPL on the CPUs, by 4 ranks: no hpl.sh on the node",
    )


def test_hpl__residual_failed__is_refused() -> None:
    assert "no result with a passed residual" in refused(
        "hpl", ("hpl", sample("hpcc-1.5.0-residual-failed.txt"))
    )


def test_hpl__mxp_residual_failed__is_refused_but_another_passed_result_counts() -> (
    None
):
    passed = sample("hpl-mxp-nvidia-26.02.made-up.txt")
    failed = passed.replace("PASSED", "FAILED").replace("2.0416e+06", "9.0416e+06")
    assert "no result with a passed residual" in refused("hpl", ("hpl", failed))
    for both in (passed + failed, failed + passed):
        assert read("hpl", ("hpl", both)).numbers["compute.gflops"].number == 2041600.0


def test_hpl__several_checks_of_one_result__all_must_pass() -> None:
    text = sample("hpcc-1.5.0.txt").replace(
        "...... PASSED", "...... PASSED\n||Ax-b||_oo/(eps)= 17.0 ...... FAILED"
    )
    assert "no result with a passed residual" in refused("hpl", ("hpl", text))


def test_hpl__no_check__counts_if_the_program_ended_well() -> None:
    text = "HPL_AI   WR01C2R4   95000   256   2   1   8.85   6.462e+04   6.62302   2   3.695e+04\n"
    assert read("hpl", ("hpl", text)).numbers["compute.gflops"].number == 36950.0
    assert "ended with status 137" in refused("hpl", ("hpl", text), status=137)


@pytest.mark.parametrize("per_gpu", ["", " ( 3.231e+04)"])
def test_hpl__ai_with_and_without_refinement__only_gflops_with_it_count(
    per_gpu: str,
) -> None:
    """The LU factorisation alone is no solution, and HPL-MxP's rules count the time
    until there is one.
    """
    text = f"HPL_AI   WR01C2R4   95000   256   2   1   8.85   6.462e+04{per_gpu}   6.62302   2   3.695e+04{per_gpu}\n"
    assert read("hpl", ("hpl", text)).numbers["compute.gflops"].number == 36950.0
    without = text.partition("   6.62302")[0] + "\n"
    assert "HPL_AI line without refinement" in refused("hpl", ("hpl", without))
    assert (
        read("hpl", ("hpl", without + text)).numbers["compute.gflops"].number == 36950.0
    )


def test_hpl__died_after_a_passed_result__counts_and_says_so() -> None:
    reading = read("hpl", ("hpl", sample("hpl-ai-nvidia-23.5.made-up.txt")), status=139)
    assert reading.numbers["compute.gflops"].number == 36950.0
    assert any("status 139" in note for note in reading.notes)


@pytest.mark.parametrize(
    "gflops",
    [
        "nan",
        "-nan",
        "inf",
        "0.0000e+00",
        "-1.153e+00",
        "*****",
        "1e999",
        "1_0",
        "9e30",
        "١٢",
    ],
)
def test_hpl__gflops_that_are_no_number__are_refused(gflops: str) -> None:
    refused("hpl", ("hpl", sample("hpcc-1.5.0.txt").replace("1.153e+00", gflops)))
