"""When a queue takes no more messages, and what the log says of it."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from supervisor_tasks.messaging import backpressure
from supervisor_tasks.messaging.backpressure import Backpressure, Limit


def test_limit__full_and_worked_off__is_logged_once_each_way() -> None:
    limit = Limit(2, "test")
    with capture_logs() as logs:
        allowed = [limit.allows("main.slurm", length) for length in (0, 1, 2, 3, 1, 0)]
    assert allowed == [True, True, False, False, True, True]
    assert [entry["event"] for entry in logs] == ["queue_full", "queue_has_room"]
    assert logs[0]["waiting"] == 2


def test_limit__one_queue_is_full__another_takes_messages() -> None:
    limit = Limit(2, "test")
    assert not limit.allows("main.slurm", 2)
    assert limit.allows("main.chain", 1)


def test_allows_one_more__broker_is_away__threads_that_waited_do_not_ask_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each waited for the others, and then asked for as long itself."""
    monkeypatch.setattr(backpressure, "COUNT_EVERY_S", 1.0)
    asked, together = list[float](), threading.Barrier(4)

    @contextmanager
    def away() -> Iterator[Any]:
        asked.append(time.monotonic())
        threading.Event().wait(1.2)  # the broker's client tries again meanwhile
        raise OSError("connection refused")
        yield

    limits = Backpressure(away, 10, "test")

    def allowed(_: int) -> bool:
        together.wait()
        return limits.allows_one_more("main.slurm")

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(allowed, range(4))) == [True] * 4
    assert len(asked) == 1
