"""The output of IOR and fio, as the programs printed it."""

import json
import re

import pytest

from benchmarks.result import MeasuredValue, UnreadableOutputError
from tests.support.benchmark_outputs import read, sample

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
