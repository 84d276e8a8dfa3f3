"""What lists and stories look like at 80 and at 160 columns: golden files, which `make golden` writes."""

import pytest

from tests.support.golden_cases import GOLDEN, LISTS, SHOWN, WIDTHS, printed


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SHOWN)
def test_output__in_a_terminal_of_this_width__is_as_in_the_golden_file(name: str, width: int) -> None:
    assert printed(name, width) == (GOLDEN / f"{name}.{width}.txt").read_text()


def test_golden_files__each__has_a_case() -> None:
    assert {file.name for file in GOLDEN.iterdir()} == {f"{name}.{width}.txt" for name in SHOWN for width in WIDTHS}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", [name for name in SHOWN if not name.endswith("-wide")])
def test_output__fits_the_terminal(name: str, width: int) -> None:
    assert max(map(len, printed(name, width).splitlines())) <= width


@pytest.mark.parametrize("name", LISTS)
def test_list__has_one_line_a_row(name: str) -> None:
    assert len(printed(name, 80).splitlines()) == len(LISTS[name][1]) + 1
