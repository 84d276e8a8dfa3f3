"""What lists and stories look like at 80 and at 160 columns: golden files, which `make
golden` writes.
"""

from collections.abc import Iterator
from importlib import import_module

import pytest

from supervisor_tasks.cli.app import MODULES
from supervisor_tasks.cli.views import View
from tests.support.golden_cases import GOLDEN, LISTS, SHOWN, WIDTHS, printed


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SHOWN)
def test_output__in_a_terminal_of_this_width__is_as_in_the_golden_file(
    name: str, width: int
) -> None:
    assert printed(name, width) == (GOLDEN / f"{name}.{width}.txt").read_text()


def test_golden_files__each__has_a_case() -> None:
    assert {file.name for file in GOLDEN.iterdir()} == {
        f"{name}.{width}.txt" for name in SHOWN for width in WIDTHS
    }


# Of the tables that no command prints alone: the golden file that has them.
INSIDE = {
    "benchmark": {"labels": "benchmark-show"},
    "doctor": {"findings": "doctor"},
    "provider": {"offers": "provider-show"},
    "status": {"jobs": "status", "left to do": "status"},
    "sweep": {"discrepancies": "sweep-show"},
    "top": {"jobs": "top"},
}


def views(module: str) -> Iterator[View]:
    for value in vars(import_module(f"supervisor_tasks.cli.{module}")).values():
        found = value.values() if isinstance(value, dict) else [value]
        yield from (one for one in found if isinstance(one, View))


@pytest.mark.parametrize("module", [*MODULES, "job_actions"])
def test_tables__of_each_module__are_in_a_golden_file(module: str) -> None:
    listed = [id(view) for view, _ in LISTS.values()]
    inside = {
        id(view): view
        for other in INSIDE
        for view in views(other)
        if view.title in INSIDE[other]
    }
    assert [
        view.title
        for view in views(module)
        if id(view) not in listed and id(view) not in inside
    ] == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", [name for name in SHOWN if not name.endswith("-wide")])
def test_output__at_each_width__fits_the_terminal(name: str, width: int) -> None:
    assert max(map(len, printed(name, width).splitlines())) <= width


@pytest.mark.parametrize("name", LISTS)
def test_list__at_80_columns__has_one_line_a_row(name: str) -> None:
    assert len(printed(name, 80).splitlines()) == len(LISTS[name][1]) + 1
