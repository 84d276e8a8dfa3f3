"""What `make complexity` counts, and the expressions that `make check` refuses."""

import pytest

from tests.support.complexity import Measured, nested


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("[a for a in b if a]", []),
        ("a if b else c", []),
        ("[d] if [a for a in b] else {a for a in c}", []),
        ("[[a for a in b] for b in c]", [(1, "a comprehension in a comprehension")]),
        (
            "any(a in {d for d in e} for a in b)",
            [(1, "a comprehension in a comprehension")],
        ),
        (
            "a if b else (c if d else e)",
            [(1, "a conditional expression in another one")],
        ),
    ],
)
def test_nested__an_expression__is_found_if_it_contains_one_of_its_kind(
    source: str, found: list[object]
) -> None:
    assert list(nested(source)) == found


def test_measured__functions__have_a_rate_and_those_above_10() -> None:
    product = Measured((("a.py:1 f", 11, 20), ("a.py:30 g", 1, 4)))
    assert (product.rate, product.high) == (0.5, [("a.py:1 f", 11)])
