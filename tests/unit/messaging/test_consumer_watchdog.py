"""When a worker is said to receive no messages, and when it is not."""

from supervisor_tasks.messaging.consumer_watchdog import SAMPLES, ConsumerWatchdog


def looks(
    watchdog: ConsumerWatchdog, times: int, *, waiting: int = 3, idle: bool = True
) -> list[bool]:
    return [
        watchdog.is_receiving(received=7, waiting=waiting, idle=idle)
        for _ in range(times)
    ]


def test_is_receiving__none_of_what_waits__is_false_after_so_many_looks() -> None:
    watchdog = ConsumerWatchdog()
    # the first look knows of no earlier one
    assert looks(watchdog, SAMPLES) == [True] * SAMPLES
    assert looks(watchdog, 1) == [False]


def test_watchdog__message_received__restarts_its_time() -> None:
    watchdog = ConsumerWatchdog()
    looks(watchdog, SAMPLES)
    assert watchdog.is_receiving(received=8, waiting=3, idle=True)
    assert all(
        watchdog.is_receiving(received=8, waiting=3, idle=True)
        for _ in range(SAMPLES - 1)
    )
    assert not watchdog.is_receiving(received=8, waiting=3, idle=True)


def test_is_receiving__nothing_waits_or_all_threads_work__is_true() -> None:
    assert all(looks(ConsumerWatchdog(), 5 * SAMPLES, waiting=0))
    assert all(looks(ConsumerWatchdog(), 5 * SAMPLES, idle=False))
