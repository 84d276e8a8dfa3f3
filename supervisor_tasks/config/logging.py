"""Logs: structlog for our code, and through it also for libraries that use the standard
library's logging.
"""

import logging
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import structlog

from supervisor_tasks.config.redaction import Hide, cleaned, hiding, visible

MANY_LINES = ("exception", "stack")  # structlog's names for tracebacks


def configure(
    level: str = "info", secrets: Sequence[str] = (), cluster: str = ""
) -> None:
    """Configure the logs: readable text if standard error is a terminal, otherwise
    JSON; secrets are redacted.

    Each line has the cluster, if the process serves one. Python's warnings become lines
    too.
    """
    hide = hiding(secrets)
    margin = ""
    last: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if sys.stderr.isatty():
        margin = "    "
        # A rich traceback would show local variables, secrets among them.
        last = structlog.dev.ConsoleRenderer(
            exception_formatter=structlog.dev.plain_traceback
        )

    def clean(
        _: object, __: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        cleaned_event = dict[str, Any]()
        for key, value in event.items():
            if key in MANY_LINES:
                cleaned_event[key] = _traceback(value, hide, margin)
            else:
                cleaned_event[key] = cleaned(value, hide)
        return cleaned_event

    def add_cluster(
        _: object, __: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        if not cluster:
            return event
        return {"cluster": cluster, **event}

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        add_cluster,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
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
    logging.captureWarnings(True)
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
    # The code that uses a connection raises the error that ends the connection.
    # paramiko logs that error too, as one line of the log for each line of the
    # traceback.
    logging.getLogger("paramiko.transport").setLevel(logging.CRITICAL)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def log_refusal(reasons: str, cluster: str) -> None:
    """Show why the process cannot start, a line for each reason: as plain text on a
    terminal, otherwise as a line of the log.

    It is for the time before the log is configured: malformed settings do not allow
    that.
    """
    if sys.stderr.isatty():
        print(reasons, file=sys.stderr)
        return
    configure(cluster=cluster)
    for reason in reasons.splitlines():
        structlog.get_logger().error("process_refuses_to_start", reason=reason)


def log_crashes() -> None:
    """Have this process log an exception that ends it, or one of its threads, as a line
    like all others.
    """

    def crashed(
        kind: type[BaseException],
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or issubclass(kind, KeyboardInterrupt):
            return
        structlog.get_logger().critical(
            "process_crashed", exc_info=(kind, error, trace)
        )

    def thread_crashed(given: threading.ExceptHookArgs) -> None:
        if given.exc_value is None or issubclass(given.exc_type, SystemExit):
            return
        thread = ""
        if given.thread is not None:
            thread = given.thread.name
        error = (given.exc_type, given.exc_value, given.exc_traceback)
        structlog.get_logger().critical("thread_crashed", thread=thread, exc_info=error)

    sys.excepthook = crashed
    threading.excepthook = thread_crashed


def _traceback(value: Any, hide: Hide, margin: str) -> str:
    """Return a traceback with its lines; the margin separates them from lines of the
    log.
    """
    return "\n".join(margin + visible(line) for line in hide(str(value)).split("\n"))
