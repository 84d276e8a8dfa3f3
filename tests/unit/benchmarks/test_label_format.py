"""What was measured, as labels."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.label_format import normalised
from supervisor_tasks.provider.offer import label_texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("AMD EPYC 7763 64-Core Processor", "amd-epyc-7763-64-core-processor"),
        (
            "Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz",
            "intel-r-xeon-r-gold-6248-cpu-2.50ghz",
        ),
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


def test_label_texts__results__have_two_decimals_and_the_contracts_form() -> None:
    found = label_texts(
        {
            "os": "linux",
            "cpu": "AMD EPYC",
            "compute.gflops": 64620.0,
            "lat": 1.005,
            "x.iops": 2.678,
        }
    )
    assert found == {
        "os": "linux",
        "cpu": "amd-epyc",
        "compute.gflops": "64620.00",
        "lat": "1.00",
        "x.iops": "2.68",
    }


def test_label_texts__what_rounds_to_zero_or_to_nothing__is_no_label() -> None:
    assert label_texts({"a": 0.004, "b": "(())"}) == {}
