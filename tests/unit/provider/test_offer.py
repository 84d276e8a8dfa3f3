"""What is offered: prices, labels, and how two offers differ."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.label_format import normalised
from supervisor_tasks.provider.offer import (
    USUAL_PRICES,
    Machine,
    Offer,
    Prices,
    differences,
    format_credits,
    label_texts,
    merged,
    normalised_labels,
    price_warnings,
    rounded_credits,
    shadowed_labels,
    sorted_labels,
)

MACHINE = Machine(gpus=2, cpus=8, mem_mb=16_000)
OTHER = Machine(gpus=0, cpus=64, mem_mb=256_000)

machines = st.lists(st.builds(Machine, *[st.integers(0, 2**40)] * 3), max_size=5).map(
    tuple
)
prices = st.builds(Prices, *[st.integers(0, 2**256 - 1)] * 3)
labels = st.dictionaries(
    st.text("ab.c", min_size=1), st.text("xyz", min_size=1), max_size=4
).map(sorted_labels)
offers = st.builds(Offer, machines, prices, labels)


def offer(*nodes: Machine, **also: str) -> Offer:
    return Offer(nodes, USUAL_PRICES, sorted_labels(also))


@given(offers, offers)
def test_digest__of_two_offers__is_equal_exactly_when_nothing_differs(
    one: Offer, other: Offer
) -> None:
    assert (one.digest == other.digest) == (not differences(one, other))


@given(offers, st.randoms())
def test_digest__order_of_the_nodes__says_nothing(
    one: Offer, random: st.DrawFn
) -> None:
    shuffled = list(one.machines)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert Offer(tuple(shuffled), one.prices, one.labels).digest == one.digest


@given(st.integers(0, 2**256 - 1))
def test_format_credits__any_amount__is_exact(wei: int) -> None:
    shown = format_credits(wei)
    assert int(Decimal(shown).as_tuple().exponent) >= -18
    whole, _, part = shown.partition(".")
    assert int(whole) * 10**18 + int(part.ljust(18, "0")) == wei


def test_usual_prices__in_credits__are_8_5_and_0_95_and_0_00008() -> None:
    assert {
        name: format_credits(wei) for name, wei in USUAL_PRICES.named().items()
    } == {
        "gpu": "8.5",
        "cpu": "0.95",
        "mem": "0.00008",
    }


@pytest.mark.parametrize(
    ("cpu_wei", "is_warned"),
    [
        (95 * 10**18, True),
        (95 * 10**18 - 1, False),
        (95 * 10**14, True),
        (95 * 10**14 + 1, False),
        (0, True),
        (95 * 10**16, False),
    ],
)
def test_price_warnings__a_hundred_times_the_usual_price_or_a_hundredth__is_warned(
    cpu_wei: int, is_warned: bool
) -> None:
    found = price_warnings(
        Prices(USUAL_PRICES.gpu_wei_per_min, cpu_wei, USUAL_PRICES.mem_wei_per_min),
        USUAL_PRICES,
    )
    assert [line.partition(" price")[0] for line in found] == (
        ["the cpu"] if is_warned else []
    )


def test_price_warnings__price_far_above_the_usual__tells_both_in_credits() -> None:
    (line,) = price_warnings(
        Prices(8_500 * 10**18, 950_000_000_000_000_000, 80_000_000_000_000),
        USUAL_PRICES,
    )
    assert "the gpu price is 8500 credits a minute; usual are 8.5" in line


@given(st.text())
def test_normalised__any_text__has_the_grids_characters_and_once_is_enough(
    text: str,
) -> None:
    shown = normalised(text)
    assert set(shown) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-")
    assert shown.strip("-") == shown == normalised(shown)


def test_normalised_labels__keys_and_values__are_as_the_grid_has_them() -> None:
    given_labels = {"Zone": "Zürich 4", "GPU model": "NVIDIA A100 (80 GB)"}
    assert normalised_labels(given_labels) == {
        "zone": "z-rich-4",
        "gpu-model": "nvidia-a100-80-gb",
    }


def test_label_texts__numbers_and_empty_values__have_two_decimals_or_no_label() -> None:
    values: dict[str, float | str] = {
        "compute.gflops": 1234.5,
        "cpu": "AMD EPYC",
        "network.p2p.latency.us": 0.001,
        "gpu": "--",
    }
    assert label_texts(values) == {"compute.gflops": "1234.50", "cpu": "amd-epyc"}


def test_merged__the_operators_label__wins_only_where_he_says_so() -> None:
    machine, operator = (
        {"cpu": "epyc", "os": "linux"},
        {"cpu": "fast", "os": "bsd", "zone": "ch"},
    )
    assert merged(machine, operator, ()) == {"cpu": "epyc", "os": "linux", "zone": "ch"}
    assert merged(machine, operator, {"cpu"}) == {
        "cpu": "fast",
        "os": "linux",
        "zone": "ch",
    }
    (line,) = shadowed_labels(machine, operator, {"cpu"})
    assert "os=bsd does not count" in line
    assert "LABELS_OVERRIDE=os" in line


def test_differences__nodes_prices_and_labels__are_a_line_each_in_words() -> None:
    known = Offer((MACHINE, MACHINE), USUAL_PRICES, (("name", "here"), ("zone", "ch")))
    dearer = Prices(
        USUAL_PRICES.gpu_wei_per_min, 12 * 10**17, USUAL_PRICES.mem_wei_per_min
    )
    assert differences(
        known, Offer((MACHINE, OTHER), dearer, (("name", "there"), ("region", "eu")))
    ) == [
        "1 nodes less with 8 CPUs, 2 GPUs, 16000 MB",
        "1 nodes more with 64 CPUs, 0 GPUs, 256000 MB",
        "the cpu price was 0.95 credits a minute, is 1.2",
        "the label name was 'here', is 'there'",
        "the label region was absent, is 'eu'",
        "the label zone was 'ch', is absent",
    ]


def test_plain__two_kinds_of_nodes__has_the_kinds_and_the_prices_in_credits() -> None:
    assert offer(MACHINE, OTHER, MACHINE, name="here").plain() == {
        "machines": [
            {"gpus": 2, "cpus": 8, "mem_mb": 16_000, "nodes": 2},
            {"gpus": 0, "cpus": 64, "mem_mb": 256_000, "nodes": 1},
        ],
        "prices": {
            "gpu_credits_per_min": "8.5",
            "cpu_credits_per_min": "0.95",
            "mem_credits_per_min": "0.00008",
        },
        "labels": {"name": "here"},
    }


@pytest.mark.parametrize(
    ("wei", "exact", "rounded"),
    [
        (0, "0", "0"),
        (1, "0.000000000000000001", "1.0e-18"),
        (10**18, "1", "1"),
        (1_234_567_899_999_999_999, "1.234567899999999999", "1.234567"),
        (4_120_000_000_000, "0.00000412", "0.000004"),
    ],
)
def test_format_credits__exact_and_rounded__is_read_again(
    wei: int, exact: str, rounded: str
) -> None:
    assert format_credits(wei) == exact
    assert int(Decimal(exact).scaleb(18)) == wei
    assert rounded_credits(wei) == rounded
