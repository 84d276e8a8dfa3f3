"""Check whether the services that a process needs answer. A thread for each service
asks it at an interval. So a request for the result never waits, and a service that
hangs delays no other check.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

EVERY_S = 2.0
# a check without a result for so long hangs: its service does not answer
OUTDATED_S = 10.0


@dataclass(frozen=True, slots=True)
class Dependency:
    """A service. `check` raises when it does not answer. The process is ready without a
    service that is not `required`. While a service with `holds_loop` does not answer,
    the main loop of the process is stalled. It is asked every `every_s`.
    """

    name: str
    check: Callable[[], object]
    required: bool = True
    holds_loop: bool = False
    every_s: float = EVERY_S


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a check: the error, None if all was well, and when it came
    (monotonic seconds).
    """

    error: str | None
    at_s: float


class Dependencies:
    """The services of a process and their last results. `log_failure` is called with a
    service's name and the error when the service stops answering, and when it does not
    answer at the first check.
    """

    def __init__(
        self,
        *dependencies: Dependency,
        log_failure: Callable[[str, Exception], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dependencies = dependencies
        self._log_failure = log_failure
        self._clock = clock
        self._answers: dict[str, Answer] = {}
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start the checks, on threads that end with the process."""
        for dependency in self._dependencies:
            threading.Thread(
                target=self._go_on,
                args=(dependency,),
                name=f"check-{dependency.name}",
                daemon=True,
            ).start()

    def stop(self) -> None:
        """Stop the checks."""
        self._stopping.set()

    def ask(self, dependency: Dependency) -> None:
        """Ask one service and keep the result."""
        error = None
        try:
            dependency.check()
        except Exception as failure:  # noqa: BLE001  after any error of a check the service cannot be used
            error = type(failure).__name__
            last = self._answers.get(dependency.name)
            if last is None or last.error is None:
                self._log_failure(dependency.name, failure)
        self._answers[dependency.name] = Answer(error, self._clock())

    @property
    def ready(self) -> bool:
        """Whether every required service answers."""
        return all(
            self._error(dependency) is None
            for dependency in self._dependencies
            if dependency.required
        )

    @property
    def hold_loop(self) -> bool:
        """Whether the main loop may stand still because a service does not answer. A
        restart of the process would not help.
        """
        return any(
            self._error(dependency) is not None
            for dependency in self._dependencies
            if dependency.holds_loop
        )

    def states(self) -> Mapping[str, dict[str, object]]:
        """Each service's state. The error is the name of its type: messages can hold
        addresses and user names.
        """
        return {
            dependency.name: self._state(dependency)
            for dependency in self._dependencies
        }

    def _state(self, dependency: Dependency) -> dict[str, object]:
        error, answer = self._error(dependency), self._answers.get(dependency.name)
        age_s = None if answer is None else round(self._clock() - answer.at_s, 1)
        return {
            "ok": error is None,
            "required": dependency.required,
            "error": error,
            "asked_ago_s": age_s,
        }

    def _error(self, dependency: Dependency) -> str | None:
        answer = self._answers.get(dependency.name)
        if answer is None:
            return "not asked yet"
        if self._clock() - answer.at_s > OUTDATED_S:
            return "no result within the time"
        return answer.error

    def _go_on(self, dependency: Dependency) -> None:
        while not self._stopping.is_set():
            self.ask(dependency)
            self._stopping.wait(dependency.every_s)
