"""What `supervisor health` calls wrong: periodic work that has not ended in time."""

from supervisor_tasks.messaging.queues import QUEUE_OF_TASK
from supervisor_tasks.observability.health import (
    MISSED_INTERVALS,
    periodic_work,
    problems,
)


def test_periodic_work__with_accounts__every_queue_has_some() -> None:
    names = {work.name for work in periodic_work(1.0, accounts=True)}
    assert {QUEUE_OF_TASK[name] for name in names - {"beat"}} == set(
        QUEUE_OF_TASK.values()
    )


def test_problems__beat_is_away__names_beat() -> None:
    work = periodic_work(1.0, accounts=False)
    periodic_run_ages_s = {entry.run_name: 1.0 for entry in work} | {
        "callbacks": 1.0,
        "beat": 31.0,
    }
    (line,) = problems(work, periodic_run_ages_s, 0.0)
    assert line == "beat: last ended 31 s ago, expected one every 5 s: see beat"
    assert (
        problems(work, periodic_run_ages_s | {"beat": MISSED_INTERVALS * 5.0}, 0.0)
        == []
    )


def test_problems__clock_of_the_database_set_back_by_an_hour__runs_prove_nothing() -> (
    None
):
    work = periodic_work(1.0, accounts=False)
    fresh = {entry.run_name: -0.1 for entry in work} | {"callbacks": -0.1}
    assert problems(work, fresh, 0.0) == []
    (line,) = problems(work, fresh | {"beat": -3600.0}, 0.0)
    assert line.startswith(
        "beat: last ended 3600 s after now, as the database's clock was set back, expected"
    )
    (line,) = problems(work, fresh | {"callbacks": -3600.0}, 0.0)
    assert "the gRPC process sends no heartbeat" in line
