from supervisor_tasks.ledger.local_runs import LocalRuns


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
