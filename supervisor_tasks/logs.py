"""Logs: structlog for us and, through it, for everybody who logs by the standard library."""

import logging
import sys
from collections.abc import Sequence
from typing import Any

import structlog

LEAST_SECRET = 8  # characters; shorter values would redact half of the log
MANY_LINES = ("exception", "stack")  # what structlog calls tracebacks


def configure(level: str = "info", secrets: Sequence[str] = ()) -> None:
    """JSON where standard error is no terminal, readable where it is one; secrets are redacted wherever they turn up."""
    hidden = [secret for secret in secrets if len(secret) >= LEAST_SECRET]
    terminal = sys.stderr.isatty()

    def clean(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {
            key: _traceback(value, hidden, "    " * terminal) if key in MANY_LINES else cleaned(value, hidden)
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
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def cleaned(value: Any, hidden: Sequence[str]) -> Any:
    """The value as it may be shown, however deep the text in it lies."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {cleaned(str(key), hidden): cleaned(entry, hidden) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [cleaned(entry, hidden) for entry in value]
    return visible(_without(str(value), hidden))


def _traceback(value: Any, hidden: Sequence[str], margin: str) -> str:
    """A traceback keeps its lines; a margin tells them from lines of the log."""
    return "\n".join(margin + visible(line) for line in _without(str(value), hidden).split("\n"))


def _without(text: str, hidden: Sequence[str]) -> str:
    for secret in hidden:
        text = text.replace(secret, "[redacted]")
    return text


def visible(text: str) -> str:
    """A stranger's text cannot begin a line of the log or move the terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
