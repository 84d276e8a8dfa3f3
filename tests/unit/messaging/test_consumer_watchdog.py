"""When a worker is called deaf, and when it is not."""

from supervisor_tasks.messaging.consumer import SAMPLES, ConsumerWatchdog


def looks(ear: ConsumerWatchdog, times: int, *, waiting: int = 3, idle: bool = True) -> list[bool]:
    return [ear.hears(received=7, waiting=waiting, idle=idle) for _ in range(times)]


def test_ear__nothing_received_of_what_waits__is_deaf_after_so_many_looks() -> None:
    ear = ConsumerWatchdog()
    assert looks(ear, SAMPLES) == [True] * SAMPLES  # the first look knows of no earlier one
    assert looks(ear, 1) == [False]


def test_watchdog__message_received__restarts_its_time() -> None:
    ear = ConsumerWatchdog()
    looks(ear, SAMPLES)
    assert ear.hears(received=8, waiting=3, idle=True)
    assert all(ear.hears(received=8, waiting=3, idle=True) for _ in range(SAMPLES - 1))
    assert not ear.hears(received=8, waiting=3, idle=True)


def test_ear__nothing_waits_or_all_hands_are_full__is_not_deaf() -> None:
    assert all(looks(ConsumerWatchdog(), 5 * SAMPLES, waiting=0))
    assert all(looks(ConsumerWatchdog(), 5 * SAMPLES, idle=False))
