import time

from supervisor_tasks.in_memory.local_runs import LocalRuns


def test_begin__work_under_way__is_left_to_its_thread_which_does_it_once_more() -> None:
    runs = LocalRuns()
    assert runs.begin("report")
    assert not runs.begin("report")
    assert not runs.begin("report")
    assert runs.again("report")
    assert not runs.again("report")
    assert runs.begin("report")


def test_begin__another_work_under_way__begins() -> None:
    runs = LocalRuns()
    assert runs.begin("report")
    assert runs.begin("claim")


def test_end__after_an_error__the_work_can_begin_again() -> None:
    runs = LocalRuns()
    runs.begin("report")
    runs.begin("report")
    runs.end("report")
    assert runs.begin("report")
    assert not runs.again("report")


APART_S = 0.1
PATIENCE_S = 60.0


def test_pace__run_asked_for_a_rest__the_next_one_waits() -> None:
    runs = LocalRuns()
    runs.wait_for_delay("report")
    begun_s = time.monotonic()
    runs.delay_next_run("report", APART_S)
    runs.wait_for_delay("claim")
    runs.wait_for_delay("report")
    assert time.monotonic() - begun_s >= APART_S / 2


def test_pace__no_rest_asked_for_since_the_last_run__does_not_wait() -> None:
    runs = LocalRuns()
    runs.delay_next_run("report", PATIENCE_S)
    runs.wait_for_delay("report")  # no run before it
    begun_s = time.monotonic()
    runs.wait_for_delay("report")
    assert time.monotonic() - begun_s < PATIENCE_S / 2


def test_pace__asked_again_before__is_done_by_the_run_that_begins() -> None:
    runs = LocalRuns()
    runs.begin("report")
    runs.begin("report")
    runs.wait_for_delay("report")
    assert not runs.again("report")
