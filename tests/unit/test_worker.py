"""Which secrets a command line of Celery will work with."""

from pathlib import Path

import pytest

from supervisor_tasks.config.needs import Need
from supervisor_tasks.worker import needs_of_command

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        ("celery -A supervisor_tasks beat", []),
        ("celery -A supervisor_tasks flower", []),
        ("celery -A supervisor_tasks worker", [Need.WALLET, Need.SLURM, Need.NOTIFY]),
        ("celery -A supervisor_tasks worker -Q main.chain", [Need.WALLET, Need.NOTIFY]),
        (
            "celery -A supervisor_tasks worker --queues=main.slurm,main.default",
            [Need.SLURM, Need.NOTIFY],
        ),
        ("celery -A supervisor_tasks worker -Q main.default", [Need.NOTIFY]),
    ],
)
def test_needs_of_command__queues__tell_which_secrets(
    command: str, needs: list[Need]
) -> None:
    assert needs_of_command(command.split()) == needs
