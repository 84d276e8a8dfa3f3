"""Parsers, with what the programs printed; tests/data/benchmarks/README.md says which
samples are made up.
"""

import json
import re
from pathlib import Path

import pytest

from benchmarks.registry import SUITE
from benchmarks.result import MeasuredValue, Reading, UnreadableOutputError
from benchmarks.sections import MAX_BYTES, split_output
from tests.support.benchmark_plans import DATA, NONCE, printed


def sample(name: str) -> str:
    return (DATA / name).read_text()


def read(
    benchmark: str,
    *sections: tuple[str, str],
    status: int = 0,
    nonce_lines: tuple[str, ...] = (),
) -> Reading:
    return SUITE[benchmark].parse(
        printed(*sections, notes=nonce_lines, status=status), NONCE
    )


def refused(benchmark: str, *sections: tuple[str, str], status: int = 0) -> str:
    with pytest.raises(UnreadableOutputError) as caught:
        read(benchmark, *sections, status=status)
    return str(caught.value)


# --- HPL ------------------------------------------------------------------------------


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


def test_hpl_mxp__residual_failed__is_refused_but_another_passed_result_counts() -> (
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
def test_hpl_ai__with_and_without_refinement__only_gflops_with_it_count(
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


# --- OSU ------------------------------------------------------------------------------

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


# --- IOR and fio ----------------------------------------------------------------------

VOLUME = ("fact volume.scratch planned",)


@pytest.mark.parametrize("version", ["3.3.0", "4.0.0"])
def test_ior__each_version__gives_means_over_the_iterations(version: str) -> None:
    reading = read(
        "ior", ("ior.scratch", sample(f"ior-{version}.made-up.txt")), nonce_lines=VOLUME
    )
    assert reading.numbers == {
        "storage.scratch.write.bw.mibps": MeasuredValue(5000.0, "MiB/s"),
        "storage.scratch.write.iops": MeasuredValue(2500.0, "1/s"),
        "storage.scratch.read.bw.mibps": MeasuredValue(9100.0, "MiB/s"),
        "storage.scratch.read.iops": MeasuredValue(4550.0, "1/s"),
    }
    assert reading.tool == f"IOR-{version}"


def test_ior__one_volume_is_missing__keeps_the_others() -> None:
    nonce_lines = (
        *VOLUME,
        "fact volume.disk-tmp planned",
        "missing ior.disk-tmp no folder /x to write to on the node",
    )
    reading = read(
        "ior", ("ior.scratch", sample("ior-4.0.0.made-up.txt")), nonce_lines=nonce_lines
    )
    assert len(reading.numbers) == 4
    assert set(reading.left_out.values()) == {"no folder /x to write to on the node"}
    assert len(reading.left_out) == 4


ONE_OF_WRITE, NO_READ = r"(?m)^write,5100[^\n]*", "5 of write, 0 of read"


@pytest.mark.parametrize(
    ("rows", "instead", "least", "complaint"),
    [
        (ONE_OF_WRITE, "write,nan,1,", 1, None),
        (ONE_OF_WRITE, "write,0.0,1,", 1, None),
        (ONE_OF_WRITE, "write,1.0,inf,", 1, None),
        (ONE_OF_WRITE, "write,,,", 1, None),
        (ONE_OF_WRITE, "write", 1, None),
        (ONE_OF_WRITE, "write,1.7e300,1,", 1, None),
        # their sum is no number
        (r"(?m)^write,5[^,]*", "write,1.7e308", 2, None),
        (r"(?m)^read,[^\n]*\n", "", 1, NO_READ),
    ],
)
def test_ior__rows_that_are_no_measurement__spoil_their_volume(
    rows: str, instead: str, least: int, complaint: str | None
) -> None:
    text, number = re.subn(rows, instead, sample("ior-4.0.0.made-up.txt"))
    assert number >= least
    with pytest.raises(UnreadableOutputError, match=complaint):
        read("ior", ("ior.scratch", text), nonce_lines=VOLUME)


def test_fio__recorded__gives_what_fio_shows() -> None:
    sections = [
        (f"fio.scratch.{way}", f"fio: a note\n{sample(f'fio-3.33-{way}.json')}")
        for way in ("write", "read")
    ]
    reading = read("ior", *sections, nonce_lines=VOLUME)
    for way in ("write", "read"):
        job = json.loads(sample(f"fio-3.33-{way}.json"))["jobs"][0][way]
        assert (
            reading.numbers[f"storage.scratch.{way}.bw.mibps"].number
            == job["bw_bytes"] / 2**20
        )
        assert reading.numbers[f"storage.scratch.{way}.iops"].number == job["iops"]


# --- speedtest and iperf3 -------------------------------------------------------------


def test_speedtest__result__is_bytes_over_a_million() -> None:
    reading = read("speedtest", ("speedtest", sample("speedtest-1.2.0.made-up.txt")))
    assert reading.numbers == {
        "network.upload.bw.mbps": MeasuredValue(58.123456, "MB/s"),
        "network.download.bw.mbps": MeasuredValue(117.012345, "MB/s"),
    }


@pytest.mark.parametrize(
    "value",
    [
        "NaN",
        "Infinity",
        "0",
        "-5",
        '"5"',
        "true",
        "null",
        "[]",
        "1" * 5000,
        "[" * 100_000,
        f'"{"]" * 200}", "b": {"[" * 100_000}',
    ],
)
def test_speedtest__bandwidth_that_is_no_number__is_refused(value: str) -> None:
    text = sample("speedtest-1.2.0.made-up.txt").replace("117012345", value)
    refused("speedtest", ("speedtest", text))


def test_iperf3__recorded__is_what_arrived_in_megabytes() -> None:
    sections = [
        (f"iperf3.{way}", sample(f"iperf3-3.12-{way}.json"))
        for way in ("upload", "download")
    ]
    reading = read("speedtest", *sections)
    for way in ("upload", "download"):
        bits = json.loads(sample(f"iperf3-3.12-{way}.json"))["end"]["sum_received"][
            "bits_per_second"
        ]
        assert reading.numbers[f"network.{way}.bw.mbps"].number == pytest.approx(
            bits / 8e6
        )


def test_iperf3__server_is_away__is_refused_with_its_words() -> None:
    text = sample("iperf3-3.12-no-server.json")
    assert "unable to connect to server" in refused(
        "speedtest", ("iperf3.upload", text), ("iperf3.download", text)
    )


# --- nonce_lines ----------------------------------------------------------------------------


@pytest.mark.parametrize("benchmark", SUITE)
def test_output__empty_or_without_the_nonce__is_refused(benchmark: str) -> None:
    for output in (
        b"",
        b"\0" * 100,
        b"slurmstepd: error: *** JOB 1 CANCELLED DUE TO TIME LIMIT ***\n",
    ):
        with pytest.raises(
            UnreadableOutputError, match="no delimiter line of this run"
        ):
            SUITE[benchmark].parse(output, NONCE)


def test_output__nonce_of_another_run__is_noise() -> None:
    theirs = printed(
        ("hpl", sample("hpcc-1.5.0.txt").replace("1.153e+00", "9.999e+09"))
    ).replace(b"0011", b"ffff")
    ours = printed(("hpl", sample("hpcc-1.5.0.txt")))
    assert (
        SUITE["hpl"]
        .parse(theirs + ours + theirs, NONCE)
        .numbers["compute.gflops"]
        .number
        == 1.153
    )


def test_output__more_than_ten_megabytes__reads_the_last_of_them() -> None:
    noise = b"\x1b[32m Prog= 1.61% iGF= 1.0\x1b[0m\r\n" * (MAX_BYTES // 20)
    output = printed(("hpl", "THE BODY")).replace(
        b"THE BODY", noise + sample("hpcc-1.5.0.txt").encode()
    )
    assert len(output) > MAX_BYTES
    assert SUITE["hpl"].parse(output, NONCE).numbers["compute.gflops"].number == 1.153
    with pytest.raises(UnreadableOutputError):
        SUITE["hpl"].parse(printed(("hpl", sample("hpcc-1.5.0.txt"))) + noise, NONCE)


def test_output__colours_and_carriage_returns__are_gone() -> None:
    raw = printed(("a", "\x1b[1;31mred\x1b[0m\r\nx\ry \x1b]0;title\x07z \x1b(B\x1b[K"))
    assert split_output(raw, NONCE).section("a").text == "\nred\nx\ny z \n"


def test_samples__all__say_tool_and_version_in_their_names() -> None:
    named = re.compile(
        r"[a-z][a-z0-9-]*?-([a-z0-9_]+-)*[0-9]+\.[0-9][0-9.]*(-[a-z-]+)?(\.made-up)?\.(txt|json)"
    )
    names = [
        path.name
        for path in Path(DATA).iterdir()
        if path.is_file() and path.name != "README.md"
    ]
    assert [name for name in names if not named.fullmatch(name)] == []
