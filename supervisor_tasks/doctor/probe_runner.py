"""Runs the probes side by side, and ends within a time, also if they hang."""

import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from supervisor_tasks.config.first_process import STARTED_S
from supervisor_tasks.doctor.check_results import Finding, NotTriedError, red, skipped

# The command has answered 10 s after its start. Its imports take 2 s, on a slow machine
# 4; ending it with probes that hang takes another.
ANSWER_AFTER_START_S = 7.0
SHORTEST_S = 3.5  # a server has 3 s to answer
# so much before the deadline, a probe stops waiting for a thing that another probe
# tries
MARGIN_S = 0.7
MAX_ERROR_CHARS = 300  # characters of an error
# urllib3 prints which of its objects failed, and Python the number of the error. The
# words behind are enough for an operator.
CLIENT_PREFIX = re.compile(
    r"\w+\(host='[^']*', port=\d+\): |Failed to establish a new connection: |\[Errno -?\d+\] "
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Probe(Generic[T]):
    """A thing that is tried. `ask` gets what all probes share. If `ask` raises, or does
    not answer, the finding is `failed`, with the advice `mend`.
    """

    name: str
    ask: Callable[[T], Iterable[Finding]]
    mend: str
    failed: Callable[[str, str, str], Finding] = red


class LazyResource(Generic[T]):
    """Something that several probes need, such as a connection. It is made once, by a
    thread of its own; no probe has to wait for it until the end.
    """

    def __init__(self, name: str, make: Callable[[], T], until_s: float) -> None:
        self._name = name
        self._make = make
        self._until_s = until_s
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._value: Any = None
        self._error: Exception | None = None

    def get(self) -> T:
        """Return it. Raises the error with which it could not be made, and TimeoutError
        if that takes too long.
        """
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=self._name, daemon=True
                )
                self._thread.start()
        if not self._done.wait(max(self._until_s - time.monotonic(), 0.0)):
            raise TimeoutError(f"{self._name} has not answered in time")
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value

    def needed(self) -> T:
        """Return it for a probe of something else. Raises NotTriedError: the probe of
        this thing reports the error. A retry does not help.
        """
        try:
            return self.get()
        except NotTriedError:
            raise
        except Exception as error:
            raise NotTriedError(f"{self._name} does not answer") from error

    @property
    def is_made(self) -> bool:
        """Whether it was made, without an error."""
        return self._done.is_set() and self._error is None

    def _run(self) -> None:
        try:
            self._value = self._make()
        except Exception as error:  # noqa: BLE001  each probe that needs it raises it
            self._error = error
        self._done.set()


def deadline_s(within_s: float | None) -> float:
    """Return the moment (monotonic seconds) at which all probes have ended: so many
    seconds from now, or without a number so early that the command answers within 10 s.
    """
    now_s = time.monotonic()
    if within_s is not None:
        return now_s + within_s
    return max(STARTED_S + ANSWER_AFTER_START_S, now_s + SHORTEST_S)


def examine(probes: Sequence[Probe[T]], shared: T, until_s: float) -> list[Finding]:
    """Run the probes side by side until a moment (monotonic seconds); return what they
    find, in the probes' order.

    A probe that has not answered by then has failed. Its thread is left behind, and
    ends with the process.
    """
    results: list[list[Finding] | None] = [None] * len(probes)

    def run(place: int, probe: Probe[T]) -> None:
        results[place] = attempt(probe, shared)

    threads = [
        threading.Thread(
            target=run, args=(place, probe), name=f"probe {probe.name}", daemon=True
        )
        for place, probe in enumerate(probes)
    ]
    begun_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(until_s - time.monotonic(), 0.0))
    waited_s = time.monotonic() - begun_s
    findings = list[Finding]()
    for probe, result in zip(probes, results, strict=True):
        findings += result or [
            probe.failed(probe.name, f"no answer within {waited_s:.0f} s", probe.mend)
        ]
    return findings


def attempt(probe: Probe[T], shared: T) -> list[Finding]:
    """Return what a probe finds; an error that it raises is a finding too. A probe
    always finds something.
    """
    try:
        return list(probe.ask(shared)) or [
            skipped(probe.name, "there is nothing to try")
        ]
    except NotTriedError as why:
        return [skipped(probe.name, str(why))]
    except Exception as error:  # noqa: BLE001  the other probes go on
        return [probe.failed(probe.name, error_line(error), probe.mend)]


def error_line(error: Exception) -> str:
    """Return an error as one line. The text of a gRPC error has many lines; its method
    `details` returns the message.
    """
    details = getattr(error, "details", None)
    text = str(error)
    if callable(details):
        text = details() or text
    lines = text.strip().splitlines()
    if not lines:
        return type(error).__name__
    return CLIENT_PREFIX.sub("", lines[0])[:MAX_ERROR_CHARS]
