"""How the command prints: widths, and screens that are shown again and again."""

import io
import sys

import pytest

from supervisor_tasks.cli.output import CLEAR, WIDE_COLUMNS, Output, console_of
from supervisor_tasks.cli.views import Cell
from tests.support.terminals import Terminal


class OperatorEndsError(Exception):
    """In the place of Ctrl-C."""


@pytest.mark.parametrize(
    ("columns", "width"),
    [("77", 77), ("", WIDE_COLUMNS), ("wide", WIDE_COLUMNS), ("-5", WIDE_COLUMNS)],
)
def test_console_of__columns__are_the_width_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert console_of(color=False).width == width


@pytest.mark.parametrize(
    ("screen", "target", "between"),
    [
        (Terminal(), "ledger main", f"{CLEAR}ledger main\n"),
        (Terminal(), "", CLEAR),
        (io.StringIO(), "ledger main", ""),
    ],
)
def test_repeated__every_period__is_shown_below_the_ledger_on_a_clear_screen(
    monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, target: str, between: str
) -> None:
    monkeypatch.setattr(sys, "stdout", screen)
    output, times = Output([]), [0]
    output.target = target

    def show() -> None:
        times[0] += 1
        print(f"look {times[0]}")
        if times[0] == 3:
            raise OperatorEndsError

    with pytest.raises(OperatorEndsError):
        output.repeated(show, 0.001)
    looks = [f"{between}look {number}\n" for number in (1, 2, 3)]
    assert screen.getvalue() == "".join(looks)


def test_repeated__no_period__is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    Output([]).repeated(lambda: print("look"), None)
    assert capsys.readouterr().out == "look\n"


def test_lines__none__prints_an_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    Output([]).lines([])
    assert capsys.readouterr().out.strip() == ""


def test_lines__of_several_lengths__are_columns_without_secrets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Output(["correct-horse-battery"]).lines(
        [[Cell("a"), Cell("key correct-horse-battery")], [Cell("b")]]
    )
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("a  key ")
    assert "correct-horse" not in first
    assert second == "b"
