"""Lets a piece of work read each small table only once, even if it needs many values.

A look at the chain compares a dozen alarms and facts with what it saw, and mostly
nothing has changed. Each query costs a round trip. Together these queries were most of
the work of an idle worker.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Read = TypeVar("Read")

_kept: ContextVar[dict[Hashable, Any] | None] = ContextVar("kept", default=None)


@contextmanager
def reading_once() -> Iterator[None]:
    """Inside this context, this thread reads each small table once, when it first needs
    it. It reads a table again after it has written to it.

    Only the next piece of work sees what other workers write meanwhile. So use it only
    for work that is soon repeated.
    """
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def kept(key: Hashable, read: Callable[[], Read]) -> Read | None:
    """The result of `read`, which is called once per key; None outside of
    `reading_once`.
    """
    results = _kept.get()
    if results is None:
        return None
    if key not in results:
        results[key] = read()
    result: Read = results[key]
    return result


def discard(key: Hashable) -> None:
    """Drop what was read under this key, because this thread has written there."""
    results = _kept.get()
    if results is not None:
        results.pop(key, None)
