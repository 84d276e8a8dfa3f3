"""Logs: structlog for us and, through it, for everybody who logs by the standard library."""

import logging
import sys
from collections.abc import Sequence
from typing import Any

import structlog

LEAST_SECRET = 8  # characters; shorter values would redact half of the log


def configure(level: str = "info", secrets: Sequence[str] = ()) -> None:
    """JSON where standard error is no terminal, readable where it is one; secrets are redacted wherever they turn up."""
    hidden = [secret for secret in secrets if len(secret) >= LEAST_SECRET]
    terminal = sys.stderr.isatty()

    def redact(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {key: _without(value, hidden) for key, value in event.items()}

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Any] = (
        [structlog.dev.ConsoleRenderer()] if terminal else [structlog.processors.JSONRenderer(default=str)]
    )
    tracebacks: list[Any] = [] if terminal else [structlog.processors.format_exc_info]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *tracebacks, redact, *last],
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


def _without(value: Any, hidden: Sequence[str]) -> Any:
    if isinstance(value, str):
        for secret in hidden:
            value = value.replace(secret, "[redacted]")
        return _visible(value) if not value.isprintable() else value
    return value


def _visible(text: str) -> str:
    """A stranger's text cannot begin a line of the log or move the terminal's cursor. Tracebacks keep their lines."""
    return "".join(
        character if character.isprintable() or character == "\n" else character.encode("unicode_escape").decode()
        for character in text
    )
