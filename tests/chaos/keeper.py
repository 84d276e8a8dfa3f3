"""Starts each process again that has died, as systemd does at a site."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from devgrid.processes import Processes

CHECK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Death:
    """A process that was found dead."""

    name: str
    found_s: float


class ProcessSupervisor:
    """A context manager: inside it, each of the named processes is started again when
    it has died.
    """

    def __init__(self, processes: Processes, names: Sequence[str]) -> None:
        self._processes = processes
        self._names = tuple(names)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="keeper", daemon=True)
        self.deaths: list[Death] = []

    def __enter__(self) -> "ProcessSupervisor":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(CHECK_EVERY_S):
            alive = {running.name for running in self._processes.running()}
            for name in self._names:
                if name not in alive:
                    self._processes.reap()
                    self.deaths.append(Death(name, time.monotonic()))
                    self._processes.start_again(name)
