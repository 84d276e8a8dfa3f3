"""When a queue takes no more messages, and what the log says of it."""

from structlog.testing import capture_logs

from supervisor_tasks.messaging.backpressure import Limit


def test_limit__full_and_worked_off__is_logged_once_each_way() -> None:
    limit = Limit(2, "test")
    with capture_logs() as logs:
        allowed = [limit.allows("main.slurm", length) for length in (0, 1, 2, 3, 1, 0)]
    assert allowed == [True, True, False, False, True, True]
    assert [entry["event"] for entry in logs] == ["queue_full", "queue_drained"]
    assert logs[0]["waiting"] == 2


def test_limit__one_queue_is_full__another_takes_messages() -> None:
    limit = Limit(2, "test")
    assert not limit.allows("main.slurm", 2)
    assert limit.allows("main.chain", 1)
