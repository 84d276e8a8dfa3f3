"""What Flower's table shows of a task."""

from types import SimpleNamespace

import pytest

from supervisor_tasks.dashboard.task_columns import (
    MAX_ARGUMENT_CHARS,
    MAX_RESULT_CHARS,
    shown_task,
)

JOB = "0x" + "a" * 64


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("()", ""),
        ("None", ""),
        (None, ""),
        (f"({JOB})", "(0xaaaaaaaa)"),
        (f"'job FAILED {JOB} slurm:7'", "job FAILED 0xaaaaaaaa slurm:7"),
    ],
)
def test_shown_task__its_result__has_cut_ids(text: str | None, shown: str) -> None:
    assert shown_task(SimpleNamespace(args=None, result=text)).result == shown


def test_shown_task__of_many_jobs__is_cut() -> None:
    task = shown_task(
        SimpleNamespace(args=f"({', '.join([JOB] * 90)})", result="; ".join([JOB] * 90))
    )
    assert len(task.args) == MAX_ARGUMENT_CHARS
    assert len(task.result) == MAX_RESULT_CHARS
