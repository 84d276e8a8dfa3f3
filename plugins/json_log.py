"""The reporter's log: one JSON object a line, or readable text on a terminal. Standard
library only.

The lines are like those of the supervisor's other processes: a fixed event name, a
level, and values by name.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

VALUES = "values"  # the attribute of a record that has them


class EventLog:
    """Logs events by fixed names, with values by name."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def info(self, event: str, **values: object) -> None:
        """Log a line of the level info."""
        self._logger.info(event, extra={VALUES: values})

    def warning(self, event: str, **values: object) -> None:
        """Log a warning."""
        self._logger.warning(event, extra={VALUES: values})

    def error(self, event: str, **values: object) -> None:
        """Log an error."""
        self._logger.error(event, extra={VALUES: values})


class LineFormatter(logging.Formatter):
    """Makes one line of a record. Control characters are escaped, so that no value can
    begin a new line.
    """

    def __init__(self, *, readable: bool, cluster: str) -> None:
        super().__init__()
        self._cluster = cluster
        self._line = _text if readable else _json

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        values: dict[str, Any] = {"cluster": self._cluster} | dict(
            getattr(record, VALUES, {})
        )
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        return self._line(record, values)


def configure(cluster: str, stream: TextIO = sys.stderr) -> None:
    """Have all loggers of this process, which serves a cluster, write to the stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(readable=stream.isatty(), cluster=cluster))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)


def _json(record: logging.LogRecord, values: Mapping[str, Any]) -> str:
    line = {
        "event": record.getMessage(),
        **values,
        "level": record.levelname.lower(),
        "logger": record.name,
        "timestamp": _moment(record),
    }
    return json.dumps(line, default=str)


def _text(record: logging.LogRecord, values: Mapping[str, Any]) -> str:
    shown = "".join(
        f" {name}={json.dumps(value, default=str)}" for name, value in values.items()
    )
    event = json.dumps(record.getMessage())[1:-1]
    return f"{_moment(record)} [{record.levelname.lower():<8}] {event:<24}{shown}"


def _moment(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
    )
