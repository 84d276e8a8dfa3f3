"""Which of a worker's events Flower gets."""

from typing import Any

from supervisor_tasks.messaging.task_events import HELD_S, HeldEvents

JOB = "0x" + "a" * 64


def received(uuid: str, name: str, args: str = "()") -> tuple[str, dict[str, Any]]:
    return "task-received", {
        "uuid": uuid,
        "name": f"supervisor_tasks.tasks.{name}",
        "args": args,
    }


def ended(uuid: str, result: str = "None") -> tuple[str, dict[str, Any]]:
    return "task-succeeded", {"uuid": uuid, "result": result}


def sent(held: HeldEvents, *events: tuple[str, dict[str, Any]]) -> list[str]:
    return [kind for event in events for kind, _ in held.sent_now(*event)]


def test_events__run_that_did_nothing__are_never_sent() -> None:
    events = received("1", "claim"), ("task-started", {"uuid": "1"}), ended("1")
    assert sent(HeldEvents(), *events) == []


def test_events__task_of_a_job_that_another_run_took__are_sent_with_the_job() -> None:
    """A message that comes while the batch runs only makes it look again."""
    held = HeldEvents()
    held.sent_now(*received("1", "submit", f"('{JOB}',)"))
    told = held.sent_now(*ended("1"))
    assert [kind for kind, _ in told] == ["task-received", "task-succeeded"]
    assert JOB in told[0][1]["args"]


def test_events__run_that_did_something__are_sent_at_its_end_with_their_own_times() -> (
    None
):
    held = HeldEvents()
    assert sent(held, received("1", "claim"), ("task-started", {"uuid": "1"})) == []
    told = held.sent_now(*ended("1", f"'CLAIMED {JOB}'"))
    assert [kind for kind, _ in told] == [
        "task-received",
        "task-started",
        "task-succeeded",
    ]
    assert told[0][1]["timestamp"] <= told[1][1]["timestamp"]


def test_events__run_that_failed__are_sent() -> None:
    failed = "task-failed", {"uuid": "1", "exception": "no"}
    assert sent(HeldEvents(), received("1", "scan"), failed) == [
        "task-received",
        "task-failed",
    ]


def test_events__task_that_takes_long__are_sent_while_it_runs() -> None:
    now_s = [100.0]
    held = HeldEvents(lambda: now_s[0])
    assert (
        sent(held, received("1", "submit", f"({JOB})"), ("task-started", {"uuid": "1"}))
        == []
    )
    now_s[0] += HELD_S
    heartbeat = held.sent_now("worker-heartbeat", {"freq": 2})
    assert [kind for kind, _ in heartbeat] == [
        "task-received",
        "task-started",
        "worker-heartbeat",
    ]
    assert heartbeat[0][1]["name"] == "submit"
    assert heartbeat[0][1]["timestamp"] == 100.0
    assert sent(held, ended("1")) == ["task-succeeded"]


def test_events__task_that_waits_for_its_time__are_not_sent() -> None:
    now_s = [100.0]
    held = HeldEvents(lambda: now_s[0])
    assert sent(held, received("1", "submit", f"({JOB})")) == []
    now_s[0] += 10 * HELD_S
    assert sent(held, ("worker-heartbeat", {})) == ["worker-heartbeat"]


def test_events__job_failed__the_task_is_not_shown_as_a_success() -> None:
    result = f"'job FAILED {JOB} slurm:7'"
    assert (
        sent(HeldEvents(), received("1", "report", f"({JOB})"), ended("1", result))[-1]
        == "task-job-failed"
    )
    assert (
        sent(HeldEvents(), received("1", "poll_jobs"), ended("1", result))[-1]
        == "task-job-failed"
    )


def test_events__of_workers__pass() -> None:
    assert sent(HeldEvents(), ("worker-heartbeat", {"freq": 2})) == ["worker-heartbeat"]


def test_events__held_without_an_end__are_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr("supervisor_tasks.messaging.task_events.MAX_HELD_TASKS", 2)
    held = HeldEvents()
    assert sent(held, *(received(str(number), "claim") for number in range(3))) == []
    assert sent(held, ended("0", "'x'"), ended("2", "'x'")) == [
        "task-succeeded",
        "task-received",
        "task-succeeded",
    ]
