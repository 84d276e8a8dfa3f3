"""Readings as labels."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.labels import labels, normalised
from benchmarks.reading import Measured, Reading


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("AMD EPYC 7763 64-Core Processor", "amd-epyc-7763-64-core-processor"),
        ("Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz", "intel-r-xeon-r-gold-6248-cpu-2.50ghz"),
        ("  NVIDIA A100-SXM4-40GB ", "nvidia-a100-sxm4-40gb"),
        ("x86_64_v4", "x86_64_v4"),
        ("Zürich İ", "z-rich"),
        ("-(-)-", ""),
        ("", ""),
    ],
)
def test_normalised__text__is_as_the_contract_has_it(text: str, expected: str) -> None:
    assert normalised(text) == expected


@given(st.text())
def test_normalised__any_text__has_the_form_and_keeps_it(text: str) -> None:
    shown = normalised(text)
    assert re.fullmatch(r"([a-z0-9._]([a-z0-9._-]*[a-z0-9._])?)?", shown)
    assert normalised(shown) == shown


def test_labels__several_readings__are_sorted_and_have_two_decimals() -> None:
    found = labels(
        [
            Reading(words={"os": "linux", "cpu": "AMD EPYC"}, left_out={"gpu": "none"}),
            Reading(numbers={"compute.gflops": Measured(64620.0, "GFLOPS")}),
            Reading(numbers={"network.p2p.latency.us": Measured(1.005, "us"), "x.iops": Measured(2.678, "1/s")}),
        ]
    )
    assert list(found.items()) == [
        ("compute.gflops", "64620.00"),
        ("cpu", "amd-epyc"),
        ("network.p2p.latency.us", "1.00"),
        ("os", "linux"),
        ("x.iops", "2.68"),
    ]


def test_labels__what_rounds_to_zero_or_to_nothing__is_no_label() -> None:
    assert labels([Reading(numbers={"a": Measured(0.004, "x")}, words={"b": "(())"})]) == {}
