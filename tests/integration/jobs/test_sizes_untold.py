"""squeue does not tell what jobs have asked for: an alarm is raised after five minutes,
until it does.
"""

from dataclasses import replace
from pathlib import Path

from sqlalchemy import text

from devgrid.processes import wait_until
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.jobs.model import State
from tests.support.submission_env import PATHS, PATIENCE_S, SubmissionEnv

WITHOUT_JSON = """#!/bin/sh
case "$*" in *--json*) [ -e {works} ] || {{ echo "squeue: error: no serializer/json plugin" >&2; exit 1; }} ;; esac
exec /usr/bin/squeue "$@"
"""


def test_sizes__squeue_does_not_tell_requests__calls_the_operator_until_it_does(
    submission_env: SubmissionEnv, tmp_path: Path
) -> None:
    works, squeue = tmp_path / "works", tmp_path / "squeue"
    squeue.write_text(WITHOUT_JSON.format(works=works))
    squeue.chmod(0o755)
    site = submission_env.site(
        submission_env.cluster(paths=replace(PATHS, squeue=str(squeue)))
    )
    # SLURM rounds up
    submission_env.slurm.run(
        "scontrol", "update", "PartitionName=main", "OverSubscribe=EXCLUSIVE"
    )
    job_id = submission_env.new_job(site)
    submission_env.carry_out(site, job_id)
    wait_until(
        lambda: submission_env.look(site, job_id).state is State.RUNNING,
        "the job to run",
        PATIENCE_S,
        0.2,
    )
    submission_env.look(site, job_id)
    assert site.ledger.alarms.all() == []
    with submission_env.engine.begin() as connection:
        passes = "UPDATE facts SET since = since - interval '6 min' WHERE name = :name"
        assert (
            connection.execute(
                text(passes), {"name": "condition.sizes_not_compared"}
            ).rowcount
            == 1
        )
    assert submission_env.look(site, job_id).stop is None
    (alarm,) = site.ledger.alarms.all()
    assert alarm.name == AlarmName.SIZES_NOT_COMPARED
    assert "no serializer/json plugin" in str(alarm.details["unknown"])
    works.touch()
    submission_env.look(site, job_id)
    assert site.ledger.alarms.all() == []
    site.slurm.cluster.close()
    site.ledger.holder.close()
