"""squeue does not tell what jobs have asked for: an alarm is raised after five minutes,
until it does. A failure of hours ago does not count.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from devgrid.processes import wait_until
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.model import JobId, State
from supervisor_tasks.jobs.size_check import FAILURES_APART_S
from tests.support.submission_env import PATHS, PATIENCE_S, SubmissionEnv

WITHOUT_JSON = """#!/bin/sh
case "$*" in *--json*) [ -e {works} ] || {{ echo "squeue: error: no serializer/json plugin" >&2; exit 1; }} ;; esac
exec /usr/bin/squeue "$@"
"""


@pytest.fixture
def works(tmp_path: Path) -> Path:
    """The file whose existence makes the site's squeue tell requests."""
    return tmp_path / "works"


@pytest.fixture
def site(
    submission_env: SubmissionEnv, tmp_path: Path, works: Path
) -> Iterator[WorkerContext]:
    """A site whose squeue does not tell what jobs have asked for, and whose SLURM rounds
    up what they get.
    """
    squeue = tmp_path / "squeue"
    squeue.write_text(WITHOUT_JSON.format(works=works))
    squeue.chmod(0o755)
    site = submission_env.site(
        submission_env.cluster(paths=replace(PATHS, squeue=str(squeue)))
    )
    submission_env.slurm.run(
        "scontrol", "update", "PartitionName=main", "OverSubscribe=EXCLUSIVE"
    )
    yield site
    site.slurm.cluster.close()
    site.ledger.holder.close()


def running_job(submission_env: SubmissionEnv, site: WorkerContext) -> JobId:
    """A job that a look has found running."""
    job_id = submission_env.new_job(site)
    submission_env.carry_out(site, job_id)
    wait_until(
        lambda: submission_env.look(site, job_id).state is State.RUNNING,
        "the job to run",
        PATIENCE_S,
        0.2,
    )
    return job_id


def pass_time(submission_env: SubmissionEnv, seconds: float, facts: str) -> None:
    """As when so much time has passed, for the facts of this pattern."""
    passes = "UPDATE facts SET since = since - :s * interval '1 second' WHERE name LIKE :facts"
    with submission_env.engine.begin() as connection:
        changed = connection.execute(text(passes), {"s": seconds, "facts": facts})
        assert changed.rowcount >= 1


def test_sizes__squeue_does_not_tell_requests__calls_the_operator_until_it_does(
    submission_env: SubmissionEnv, site: WorkerContext, works: Path
) -> None:
    job_id = running_job(submission_env, site)
    submission_env.look(site, job_id)
    assert site.ledger.alarms.all() == []
    pass_time(submission_env, 360.0, "condition.sizes_not_compared")
    assert submission_env.look(site, job_id).stop is None
    (alarm,) = site.ledger.alarms.all()
    assert alarm.name == AlarmName.SIZES_NOT_COMPARED
    assert "no serializer/json plugin" in str(alarm.details["unknown"])
    works.touch()
    submission_env.look(site, job_id)
    assert site.ledger.alarms.all() == []


def test_sizes__two_failures_hours_apart__are_no_alarm(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job_id = running_job(submission_env, site)
    submission_env.look(site, job_id)
    pass_time(submission_env, FAILURES_APART_S + 1, "condition.sizes_not_compared%")
    submission_env.look(site, job_id)
    assert site.ledger.alarms.all() == []
