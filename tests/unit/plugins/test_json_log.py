"""The reporter's log: one JSON object a line, or readable text on a terminal."""

import io
import json
import logging
from datetime import datetime

import pytest

from plugins.json_log import EventLog, configure
from tests.support.terminals import Terminal

pytestmark = pytest.mark.usefixtures("restored_logging")


def test_log__event_with_values__is_one_object() -> None:
    stream = io.StringIO()
    configure("here", stream)
    EventLog("reporter").error(
        "event_rejected", slurm_id=7, reason='no"\n\x1b[31mERROR forged'
    )
    (line,) = stream.getvalue().splitlines()
    told = json.loads(line)
    assert datetime.fromisoformat(told.pop("timestamp")).tzinfo is not None
    assert told == {
        "event": "event_rejected",
        "cluster": "here",
        "slurm_id": 7,
        "reason": 'no"\n\x1b[31mERROR forged',
        "level": "error",
        "logger": "reporter",
    }
    assert "\x1b" not in line


def test_log__of_a_library_with_a_traceback__is_one_object() -> None:
    stream = io.StringIO()
    configure("here", stream)
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("watchfiles").exception("it failed for %s", "a file")
    told = json.loads(stream.getvalue())
    assert (told["event"], told["logger"], told["level"]) == (
        "it failed for a file",
        "watchfiles",
        "error",
    )
    assert "ValueError: no" in told["exception"]


def test_log__on_a_terminal__is_readable_and_moves_no_cursor() -> None:
    stream = Terminal()
    configure("here", stream)
    EventLog("reporter").warning("delivery_postponed", events=2, error="\x1b[2Jx")
    (line,) = stream.getvalue().splitlines()
    assert "[warning ] delivery_postponed" in line
    assert "events=2" in line
    assert "\x1b" not in line
