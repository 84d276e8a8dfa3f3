"""Cells: ids cut to what is unique, lengths of time, columns that are left out."""

from datetime import timedelta

import pytest

from supervisor_tasks.cli.exit_codes import UnusableError
from supervisor_tasks.cli.options import age
from supervisor_tasks.cli.views import Column, View, cells, plain, span, unique_length
from tests.support.golden_cases import NOW

VIEW = View(
    "things",
    "id",
    (
        Column("ID", "id", "id"),
        Column("NOTE", "note"),
        Column("MORE", "more", wide=True),
    ),
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m00s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (86399, "23h59m"),
        (86400, "1d00h"),
        (400 * 86400, "400d00h"),
        (-95, "in 1m35s"),
    ],
)
def test_span__any_number_of_seconds__has_two_units_at_most(
    seconds: float, text: str
) -> None:
    assert span(seconds) == text


def test_unique_length__ids_that_begin_alike__is_what_tells_them_apart() -> None:
    assert unique_length(["0x" + "a" * 64]) == 10
    assert unique_length(["0x" + "a" * 20 + "1bbb", "0x" + "a" * 20 + "2bbb"]) == 23
    assert unique_length(["0xab", "0xab"]) == 10
    assert unique_length([]) == 10


def test_cells__column_without_values__is_left_out_but_for_the_first() -> None:
    columns, shown = cells(
        VIEW, [{"id": "0x1", "note": None, "more": 5}], NOW, wide=False
    )
    assert ([column.title for column in columns], shown[0][0].text) == (["ID"], "0x1")
    columns, _ = cells(VIEW, [{"id": "", "note": "", "more": 5}], NOW, wide=True)
    assert [column.title for column in columns] == ["ID", "MORE"]


def test_plain__nested_value__is_words_and_not_json() -> None:
    assert (
        plain({"a": 1.5, "b": [True, None], "c": {"d": "e"}})
        == "a 1.5, b yes, None, c d e"
    )


def test_age__number_with_a_unit__is_read_and_other_text_refused() -> None:
    assert (age("90s"), age("2h"), age(None)) == (
        timedelta(seconds=90),
        timedelta(hours=2),
        None,
    )
    for wrong in ("", "2", "h", "-2h", "2 h", "2y", "²h", "9999999h"):
        with pytest.raises(UnusableError):
            age(wrong)
