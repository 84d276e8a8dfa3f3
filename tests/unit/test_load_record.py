"""The figures in docs/performance.md are those in docs/performance.json, and a missed
bound shows.
"""

import pytest

from tests.support.load_figures import Figure
from tests.support.load_record import (
    BEGIN,
    DOCUMENT,
    END,
    MOVES,
    SETTLES,
    recorded,
    tables,
    with_tables,
)


def test_documents__text_and_recorded_figures__hold_the_same_figures() -> None:
    document = DOCUMENT.read_text()
    assert recorded()
    assert with_tables(document, recorded()) == document


def test_tables__missed_bound__is_said() -> None:
    told = tables(
        [
            Figure("burst", 12.44, "s", 10.0),
            Figure("callbacks", 1080.0, "a second", 300.0, at_least=True),
        ]
    )
    assert "| burst | 12.4 s | at most 10, **missed** |\n" in told
    assert "| callbacks | 1,080 a second | at least 300 |\n" in told


def test_tables__recoveries__a_fault_a_row() -> None:
    told = tables(
        [
            Figure(f"x killed{MOVES}", 0.5, "s", 5.0),
            Figure(f"x killed{SETTLES}", 9.0, "s", 60.0),
        ]
    )
    assert "| x killed | 0.5 s | 9 s |\n" in told
    assert MOVES not in told


def test_with_tables__document_without_delimiters__is_refused() -> None:
    with pytest.raises(ValueError, match="no place for the figures"):
        with_tables(f"{BEGIN}\nno end", [])
    assert with_tables(f"a\n{BEGIN}old{END}b", []).startswith(f"a\n{BEGIN}| | measured")
