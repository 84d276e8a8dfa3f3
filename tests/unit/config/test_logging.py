"""What reaches the log: one line for each event, without secrets and without what moves
a cursor.
"""

import io
import json
import logging
import re
import socket
import subprocess
import sys
import threading
from typing import Any

import paramiko
import pytest
import structlog
import structlog.testing

from devgrid.machine import deadline
from supervisor_tasks.config import logging as logs
from tests.support.terminals import Terminal

pytestmark = pytest.mark.usefixtures("restored_logging")


SECRET = "correct-horse-battery"
COLOUR = re.compile("\x1b\\[[0-9;]*m")  # of the terminal's own rendering


def configured(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, level: str = "info"
) -> Any:
    monkeypatch.setattr(sys, "stderr", stream)
    logs.configure(level, [SECRET])
    return structlog.get_logger("supervisor")


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    configured(monkeypatch, stream)
    return stream


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    configured(monkeypatch, stream)
    return stream


def entries(file: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.getvalue().splitlines()]


def fail() -> None:
    held = SECRET  # what a traceback with local variables would show
    raise RuntimeError(f"refused {held}\n2026-01-01 [info] forged")


def test_configure__no_terminal__is_json_with_event_level_and_time(
    file: io.StringIO,
) -> None:
    structlog.get_logger("supervisor").info("job_submitted", job_id="0x1", slurm_id=7)
    (entry,) = entries(file)
    assert entry.pop("timestamp").endswith("Z")
    assert entry == {
        "event": "job_submitted",
        "level": "info",
        "logger": "supervisor",
        "job_id": "0x1",
        "slurm_id": 7,
    }


def test_configure__terminal__is_readable(terminal: Terminal) -> None:
    structlog.get_logger("supervisor").info("job_submitted", slurm_id=7)
    assert "job_submitted" in terminal.getvalue()
    assert not terminal.getvalue().startswith("{")


def test_configure__standard_library__goes_the_same_way(file: io.StringIO) -> None:
    logging.getLogger("celery").warning("lost %s", "broker")
    (entry,) = entries(file)
    assert (entry["event"], entry["level"], entry["logger"]) == (
        "lost broker",
        "warning",
        "celery",
    )


def test_configure__level__holds_back_what_is_below(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    log = configured(monkeypatch, stream, "warning")
    log.info("quiet")
    log.warning("loud")
    assert [entry["event"] for entry in entries(stream)] == ["loud"]


@pytest.mark.parametrize("kind", ["file", "terminal"])
def test_log__secret_anywhere__is_redacted(
    kind: str, request: pytest.FixtureRequest
) -> None:
    stream: io.StringIO = request.getfixturevalue(kind)
    log = structlog.get_logger("supervisor")
    log.info("text", value=f"key is {SECRET}!")
    log.info("error", error=ValueError(SECRET))
    log.info("nested", value={"a": [SECRET, {SECRET: 1}]}, raw=SECRET.encode())
    logging.getLogger("third").warning("party %s", SECRET)
    try:
        fail()
    except RuntimeError:
        log.exception("failed")
        logging.getLogger("third").exception("failed too")
    assert SECRET not in stream.getvalue()
    assert stream.getvalue().count("[redacted]") >= 8


@pytest.mark.parametrize(
    "hostile",
    [
        "a\nforged",
        "a\r\nforged",
        "\x1b[2Ja",
        "a\u2028forged",
        "a\u202egnp",
        "\x00",
        "\x9b2J",
    ],
)
@pytest.mark.parametrize("kind", ["file", "terminal"])
def test_log__control_characters__are_shown_and_not_obeyed(
    kind: str, hostile: str, request: pytest.FixtureRequest
) -> None:
    stream: io.StringIO = request.getfixturevalue(kind)
    structlog.get_logger("supervisor").info(
        "said", name=hostile, deep=[{"name": hostile}]
    )
    logging.getLogger("third").warning("said %s", hostile)
    written = COLOUR.sub("", stream.getvalue())
    assert written.count("\n") == 2
    assert written.replace("\n", "").isprintable()


def test_traceback__on_a_terminal__keeps_its_lines_behind_a_margin(
    terminal: Terminal,
) -> None:
    try:
        fail()
    except RuntimeError:
        structlog.get_logger("supervisor").exception("failed")
    first, *rest = terminal.getvalue().rstrip("\n").split("\n")
    assert "failed" in first
    assert any("in fail" in line for line in rest)
    assert all(line.startswith("    ") for line in rest)


def test_ssh__refused__is_raised_and_not_logged_a_second_time(
    file: io.StringIO,
) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        transport = paramiko.Transport(ours)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(paramiko.SSHException):
            transport.start_client(timeout=10)
        transport.join(10)
    assert entries(file) == []


# --- the cluster, warnings and crashes ------------------------------------------------


def test_configure__with_a_cluster__each_line_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logs.configure(cluster="west")
    structlog.get_logger("ours").info("effect_completed", job_id="0x1")
    logging.getLogger("a.library").warning("its words")
    assert [entry["cluster"] for entry in entries(stream)] == ["west", "west"]


def test_configure__line_about_another_cluster__keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logs.configure(cluster="west")
    structlog.get_logger("ours").info("wallet_used_by_other_cluster", cluster="east")
    assert [entry["cluster"] for entry in entries(stream)] == ["east"]


CRASHES = """
import threading, warnings
from supervisor_tasks.config import logging as logs
logs.configure(secrets=["correct-horse-battery"], cluster="west")
logs.log_crashes()
warnings.warn("root should not run this")
def fails():
    raise RuntimeError("correct-horse-battery")
thread = threading.Thread(target=fails, name="batch")
thread.start()
thread.join()
fails()
"""


def test_log_crashes__warning_thread_and_process__are_lines_without_secrets() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CRASHES],
        capture_output=True,
        text=True,
        timeout=deadline(60),
    )
    assert done.returncode == 1
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert [entry["event"] for entry in told[1:]] == [
        "thread_crashed",
        "process_crashed",
    ]
    assert "root should not run this" in told[0]["event"]
    assert told[1]["thread"] == "batch"
    assert "RuntimeError: [redacted]" in told[2]["exception"]
    assert {entry["cluster"] for entry in told} == {"west"}
    assert SECRET not in done.stderr


# --- what ends a process --------------------------------------------------------------


@pytest.fixture
def _hooks_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)


@pytest.mark.usefixtures("_hooks_as_they_were")
@pytest.mark.parametrize(
    ("error", "events"),
    [
        (RuntimeError("broken"), ["process_crashed"]),
        (KeyboardInterrupt(), []),
        (None, []),
    ],
)
def test_log_crashes__end_of_the_process__is_a_line_unless_it_was_asked_for(
    error: BaseException | None, events: list[str]
) -> None:
    logs.log_crashes()
    with structlog.testing.capture_logs() as lines:
        sys.excepthook(type(error) if error else RuntimeError, error, None)  # type: ignore[arg-type]
    assert [line["event"] for line in lines] == events


@pytest.mark.usefixtures("_hooks_as_they_were")
@pytest.mark.parametrize(
    ("error", "thread", "lines"),
    [
        (RuntimeError("x"), "reader", [("thread_crashed", "reader")]),
        (RuntimeError("x"), None, [("thread_crashed", "")]),
        (SystemExit(1), "reader", []),
        (None, "reader", []),
    ],
)
def test_log_crashes__end_of_a_thread__is_a_line_with_its_name(
    error: BaseException | None, thread: str | None, lines: list[tuple[str, str]]
) -> None:
    logs.log_crashes()
    of_thread = threading.Thread(name=thread) if thread else None
    kind = type(error) if error else RuntimeError
    with structlog.testing.capture_logs() as found:
        threading.excepthook(threading.ExceptHookArgs((kind, error, None, of_thread)))
    assert [(line["event"], line["thread"]) for line in found] == lines


def test_log_refusal__on_a_terminal__is_plain_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    logs.log_refusal("A: found nothing\nB: found nothing", "main")
    assert shown.getvalue() == "A: found nothing\nB: found nothing\n"
