"""Which commands a worker answers, and what a flood of refused ones leaves in its log."""

import logging
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.worker.control import Panel

from supervisor_tasks.observability.remote_control import (
    ANSWERED_COMMANDS,
    MAX_LINE_CHARS,
    PERIOD_S,
    OneLine,
    _hello,
    keep_questions_only,
)


def record(level: int, message: str) -> logging.LogRecord:
    return logging.LogRecord("kombu.pidbox", level, "", 0, message, (), None)


def test_one_line__refusals__are_one_line_a_period_that_counts_the_others() -> None:
    now_s = [100.0]
    filtered = OneLine(lambda: now_s[0])
    shown = list[str]()
    for at_s in (100.0, 101.0, 100.0 + PERIOD_S - 0.1, 100.0 + PERIOD_S):
        now_s[0] = at_s
        refused = record(logging.ERROR, "x" * 300 + "\nTraceback of the caller's text")
        refused.exc_text = "Traceback"
        if filtered.filter(refused):
            assert refused.exc_text is None
            shown.append(refused.getMessage())
    line = f"control message refused: {'x' * MAX_LINE_CHARS}"
    assert shown == [
        f"{line}; 0 more were not logged",
        f"{line}; 2 more were not logged",
    ]


def test_one_line__message_below_a_warning__passes_as_it_is() -> None:
    filtered = OneLine(lambda: 100.0)
    for _ in range(2):
        told = record(logging.INFO, "two\nlines")
        assert filtered.filter(told)
        assert told.getMessage() == "two\nlines"


@pytest.mark.parametrize(("node", "answers"), [("w2@host", True), ("w1@host", False)])
def test_hello__another_worker__is_told_the_clock_and_revokes_nothing(
    node: str, answers: bool
) -> None:
    state = SimpleNamespace(hostname="w1@host", app=Celery())
    before = state.app.clock.value
    found = _hello(state, node, revoked={"task": 1.0})
    expected = {"revoked": {}, "clock": before + 1}
    assert found == (expected if answers else None)


def test_keep_questions_only__commands_that_change_something__are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Panel, "data", dict(Panel.data))
    monkeypatch.setattr(Panel, "meta", dict(Panel.meta))
    assert "shutdown" in Panel.data
    keep_questions_only()
    for name in ("kombu.pidbox", "celery.worker.pidbox"):
        logger = logging.getLogger(name)
        (one_line,) = (one for one in logger.filters if isinstance(one, OneLine))
        logger.removeFilter(one_line)
    assert Panel.data.keys() <= {*ANSWERED_COMMANDS, "hello"}
    assert {"ping", "stats", "hello"} <= Panel.data.keys()
