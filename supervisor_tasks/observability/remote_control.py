"""What a worker accepts from programs that can write to its broker: messages that are
not compressed (celeryconfig.py takes JSON only), and of the commands the questions,
which change nothing.

Celery's workers obey broadcasts: shut down, stop consuming a queue, grow the pool,
revoke a task. The project uses none of these, and a program that can write to Redis
could stop the fleet with one message. Flower needs the questions.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from celery.worker.control import Panel
from kombu import compression

# Questions of celery.worker.control that only read, and two commands that only make the
# worker send its events. objgraph, memdump and memsample are left out: they cost memory
# and write files.
ANSWERED_COMMANDS = (
    *(
        "active",
        "active_queues",
        "clock",
        "conf",
        "ping",
        "query_task",
        "registered",
        "report",
        "reserved",
        "revoked",
    ),
    *(
        "scheduled",
        "stats",
        "dump_active",
        "dump_reserved",
        "dump_revoked",
        "dump_schedule",
        "dump_tasks",
    ),
    *("enable_events", "heartbeat"),
)
# For each refused message, these loggers write a traceback with the caller's own text.
LOGGERS = ("kombu.pidbox", "celery.worker.pidbox")
PERIOD_S = 10.0
MAX_LINE_CHARS = 200  # characters of a line


class OneLine(logging.Filter):
    """Lets one line of a logger through in each period, without its traceback and cut
    to MAX_LINE_CHARS characters.

    The next line shows how many were left out.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._written_s = float("-inf")
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is written. A message below a warning is no refusal
        and passes.
        """
        if record.levelno < logging.WARNING:
            return True
        if self._now_s() - self._written_s < PERIOD_S:
            self._left_out += 1
            return False
        left_out, self._written_s, self._left_out = self._left_out, self._now_s(), 0
        first_line = record.getMessage().partition("\n")[0][:MAX_LINE_CHARS]
        record.msg, record.args = (
            "control message refused: %s; %d more were not logged",
            (first_line, left_out),
        )
        record.exc_info = record.exc_text = record.stack_info = None
        return True


def keep_questions_only() -> None:
    """Make this worker refuse all commands but questions, with one bounded line of the
    log in each period.
    """
    for name in Panel.data.keys() - set(ANSWERED_COMMANDS):
        del Panel.data[name]
    Panel.register(name="hello", type="inspect", visible=False)(_hello)
    one_line = OneLine()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(one_line)


def refuse_compressed_messages() -> None:
    """Make this process refuse messages that say that they are compressed. kombu unpacks
    one before its type is looked at, and 600 kB can hold 600 MB. Ours are not
    compressed.
    """
    untyped: Any = compression
    for content_type in untyped.encoders():
        untyped.register(_refuse, _refuse, content_type)


def _refuse(_: bytes) -> bytes:
    raise ValueError("a compressed message; expected one that is not compressed")


def _hello(
    state: Any, from_node: str, revoked: object = None, **_: object
) -> dict[str, Any] | None:
    """Answer another worker that starts: it asks for the clock and the revoked tasks.

    Celery's own answer also revokes the tasks that the caller names.
    """
    del revoked
    if from_node == state.hostname:
        return None
    return {"revoked": {}, "clock": state.app.clock.forward()}
