"""The queue of each task, and the task of each effect."""

from celery import Celery

import supervisor_tasks.tasks
from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.messaging.queues import QUEUE_OF_TASK, TASK_OF_KIND, TASKS


def test_task_of_kind__each_effect__is_carried_out_by_a_task_that_workers_know() -> (
    None
):
    assert TASK_OF_KIND.keys() == set(EffectKind)
    assert set(TASK_OF_KIND.values()) <= set(QUEUE_OF_TASK)


def test_queue_of_task__each_task__is_one_of_the_workers() -> None:
    app = Celery(set_as_current=False)
    app.loader.import_module(supervisor_tasks.tasks.__name__)
    app.finalize()
    known = {
        name.removeprefix(f"{TASKS}.") for name in app.tasks if name.startswith(TASKS)
    }
    assert known == set(QUEUE_OF_TASK)
