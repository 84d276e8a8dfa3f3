"""The output of OSU's micro-benchmarks, as the programs printed it."""

import pytest

from benchmarks.registry import SUITE
from tests.support.benchmark_outputs import read, refused, sample
from tests.support.benchmark_plans import NONCE, printed

OSU_LABELS = {
    "latency": "network.p2p.latency.us",
    "bibw": "network.p2p.bw.mbps",
    "alltoall": "network.all-to-all.latency.us",
}


@pytest.mark.parametrize("version", ["5.6.2", "5.9", "7.0.1", "7.3", "7.5"])
def test_osu__each_version__gives_the_values_at_the_largest_message(
    version: str,
) -> None:
    texts = [(test, sample(f"osu-{test}-{version}.made-up.txt")) for test in OSU_LABELS]
    reading = read("osu", *texts)
    last = {OSU_LABELS[test]: float(text.split()[-1]) for test, text in texts}
    assert {key: measured.number for key, measured in reading.numbers.items()} == last
    assert {key: measured.unit for key, measured in reading.numbers.items()} == {
        "network.p2p.latency.us": "us",
        "network.p2p.bw.mbps": "MB/s",
        "network.all-to-all.latency.us": "us",
    }
    assert f"OSU MPI Latency Test v{version}" in reading.tool


def test_osu__recorded_port_of_mpi4py__is_read() -> None:
    texts = [
        (test, sample(f"osu-{test}-mpi4py-3.1.6.txt")) for test in ("bibw", "alltoall")
    ]
    reading = read(
        "osu",
        *texts,
        nonce_lines=("missing network.p2p.latency.us no osu_latency on the node",),
    )
    assert reading.numbers["network.p2p.bw.mbps"].number == 293.43
    assert reading.numbers["network.all-to-all.latency.us"].number == 14127.23
    assert reading.left_out == {"network.p2p.latency.us": "no osu_latency on the node"}


def test_osu__table_with_more_columns__gives_the_average() -> None:
    reading = read("osu", ("alltoall", sample("osu-alltoall-full-5.9.made-up.txt")))
    assert reading.numbers["network.all-to-all.latency.us"].number == 1168.08


def test_osu__one_test_cut_off__keeps_the_others() -> None:
    bibw = ("bibw", sample("osu-bibw-7.3.made-up.txt"))
    cut_off = f"\n@@{NONCE} begin latency\n{sample('osu-latency-mpi4py-3.1.6-cut-off.txt')}\n@@{NONCE} end latency 124\n"
    reading = SUITE["osu"].parse(printed(bibw) + cut_off.encode(), NONCE)
    assert list(reading.numbers) == ["network.p2p.bw.mbps"]
    assert "status 124" in reading.left_out["network.p2p.latency.us"]
    assert (
        "the output ends before alltoall"
        in reading.left_out["network.all-to-all.latency.us"]
    )


def test_osu__only_small_messages__is_refused() -> None:
    assert "of 1024 bytes or more" in refused(
        "osu", ("latency", "# OSU MPI Latency Test v7.3\n1   1.23\n2   1.24\n")
    )


@pytest.mark.parametrize("value", ["nan", "0.00", "-1", "inf", "garbage"])
def test_osu__value_that_is_no_number__is_refused(value: str) -> None:
    refused(
        "osu",
        ("latency", f"# OSU MPI Latency Test v7.3\n1   1.23\n4194304   {value}\n"),
    )
