"""A job's output is parted into its sections; and how recorded samples are named."""

import re
from pathlib import Path

import pytest

from benchmarks.registry import SUITE
from benchmarks.result import UnreadableOutputError
from benchmarks.sections import MAX_BYTES, split_output
from tests.support.benchmark_outputs import sample
from tests.support.benchmark_plans import DATA, NONCE, printed


@pytest.mark.parametrize("benchmark", SUITE)
def test_split_output__empty_or_without_the_nonce__is_refused(benchmark: str) -> None:
    for output in (
        b"",
        b"\0" * 100,
        b"slurmstepd: error: *** JOB 1 CANCELLED DUE TO TIME LIMIT ***\n",
    ):
        with pytest.raises(
            UnreadableOutputError, match="no delimiter line of this run"
        ):
            SUITE[benchmark].parse(output, NONCE)


def test_split_output__nonce_of_another_run__is_noise() -> None:
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


def test_split_output__more_than_ten_megabytes__reads_the_last_of_them() -> None:
    noise = b"\x1b[32m Prog= 1.61% iGF= 1.0\x1b[0m\r\n" * (MAX_BYTES // 20)
    output = printed(("hpl", "THE BODY")).replace(
        b"THE BODY", noise + sample("hpcc-1.5.0.txt").encode()
    )
    assert len(output) > MAX_BYTES
    assert SUITE["hpl"].parse(output, NONCE).numbers["compute.gflops"].number == 1.153
    with pytest.raises(UnreadableOutputError):
        SUITE["hpl"].parse(printed(("hpl", sample("hpcc-1.5.0.txt"))) + noise, NONCE)


def test_split_output__colours_and_carriage_returns__are_gone() -> None:
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
