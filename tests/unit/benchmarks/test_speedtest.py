"""The output of speedtest and iperf3, as the programs printed it."""

import json

import pytest

from benchmarks.result import MeasuredValue
from tests.support.benchmark_outputs import read, refused, sample


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
