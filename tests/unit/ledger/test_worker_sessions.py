"""A worker that stands still loses its lease; a watcher that stood still itself counts
no silence.
"""

from supervisor_tasks.ledger.worker_sessions import (
    SESSION_TIMEOUT_S,
    WATCH_GAP_S,
    StaleSessionDetector,
)

SILENT, OTHER = (7, "began", "word"), (8, "began", "word")


def watch(
    silence: StaleSessionDetector, seconds: range, *words: tuple[int, str, str]
) -> list[list[tuple[int, str, str]]]:
    return [silence.silent_holders(words, float(second)) for second in seconds]


def test_silent_holders__for_long_enough__is_told_and_not_a_moment_before() -> None:
    found = watch(StaleSessionDetector(), range(int(SESSION_TIMEOUT_S) + 1), SILENT)
    assert found == [[]] * int(SESSION_TIMEOUT_S) + [[SILENT]]


def test_silent_holders__gives_a_sign__restarts_its_time() -> None:
    silence = StaleSessionDetector()
    watch(silence, range(14), SILENT)
    assert silence.silent_holders([(7, "began", "another word")], 14.0) == []
    assert watch(silence, range(15, 29), (7, "began", "another word")) == [[]] * 14


def test_silent_holders__watcher_stood_still__counts_no_silence() -> None:
    silence = StaleSessionDetector()
    watch(silence, range(14), SILENT, OTHER)
    assert silence.silent_holders([SILENT, OTHER], 14 + WATCH_GAP_S + 1) == []


def test_silent_holders__holder_is_gone__is_forgotten() -> None:
    silence = StaleSessionDetector()
    watch(silence, range(14), SILENT)
    silence.silent_holders([], 14.0)
    assert silence.silent_holders([SILENT], 15.0) == []
