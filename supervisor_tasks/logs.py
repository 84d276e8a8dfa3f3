"""Logs: structlog for us and, through it, for everybody who logs by the standard library."""

import logging
import sys
from collections.abc import Sequence
from typing import Any

import structlog

from supervisor_tasks.redaction import Hide, hiding

MANY_LINES = ("exception", "stack")  # what structlog calls tracebacks


def configure(level: str = "info", secrets: Sequence[str] = ()) -> None:
    """JSON where standard error is no terminal, readable where it is one; secrets are redacted wherever they turn up."""
    hide = hiding(secrets)
    terminal = sys.stderr.isatty()

    def clean(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {
            key: _traceback(value, hide, "    " * terminal) if key in MANY_LINES else cleaned(value, hide)
            for key, value in event.items()
        }

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # A rich traceback would show local variables, secrets among them.
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    last = plain if terminal else structlog.processors.JSONRenderer()
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            clean,
            last,
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for quiet in (
        "paramiko",
        "urllib3",
        "web3",
        "celery.worker.strategy",
        "celery.beat",
        "celery.app.trace",
        "alembic",
    ):
        logging.getLogger(quiet).setLevel(logging.WARNING)
    # What ends a connection is raised where the connection is used; paramiko tells it too, a line of the log for each of the
    # traceback.
    logging.getLogger("paramiko.transport").setLevel(logging.CRITICAL)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def cleaned(value: Any, hide: Hide) -> Any:
    """The value as it may be shown, however deep the text in it lies."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {cleaned(str(key), hide): cleaned(entry, hide) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [cleaned(entry, hide) for entry in value]
    return visible(hide(str(value)))


def _traceback(value: Any, hide: Hide, margin: str) -> str:
    """A traceback keeps its lines; a margin tells them from lines of the log."""
    return "\n".join(margin + visible(line) for line in hide(str(value)).split("\n"))


def visible(text: str) -> str:
    """A stranger's text cannot begin a line of the log or move the terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
