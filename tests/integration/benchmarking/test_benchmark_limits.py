"""A benchmark that SLURM ends at its time limit, as slurmctld tells it and, when that
has forgotten it, accounting.
"""

from dataclasses import replace

import pytest

from devgrid.processes import wait_until
from tests.support.benchmark_env import (
    RUNNER,
    body_of,
    in_slurm,
    measuring,
    results,
    until_done,
    until_stage,
)
from tests.support.submission_env import PATHS, SubmissionEnv

ACCOUNTING = replace(PATHS, sacct="/usr/bin/sacct")
# a minute, what SLURM takes to notice and to end the job, and a busy machine
LIMIT_S = 240.0


@pytest.mark.chaos  # SLURM ends a job a minute after its begin at the earliest
@pytest.mark.timeout(600)
@pytest.mark.parametrize("forgotten", [False, True])
def test_time_limit__is_the_reason__the_output_is_kept_and_the_next_one_is_measured(
    forgotten: bool,
) -> None:
    with SubmissionEnv.running(
        accounting=forgotten, min_job_age_s=2 if forgotten else 300
    ) as submission_env:
        submission_env.slurm.users.add(RUNNER)
        cluster = submission_env.cluster(paths=ACCOUNTING if forgotten else PATHS)
        site = measuring(submission_env.site(cluster), cluster, ["endless", "good"])
        number = site.ledger.benchmarks.ask("a test")
        name = until_stage(site, "endless", "SUBMITTED", slurm_state="RUNNING")[
            "job_name"
        ]
        if forgotten:
            wait_until(
                lambda: in_slurm(submission_env, name) == [],
                "slurmctld to forget the job",
                LIMIT_S,
            )
        assert until_done(site, LIMIT_S)["state"] == "DONE"
        found = results(site)["endless"]
        assert (found["state"], found["slurm_state"]) == ("FAILED", "TIMEOUT")
        assert found["reason"] == "it ran into its time limit (1 min)"
        assert number is not None
        script, output = site.ledger.benchmark_queries.output(number, "endless") or (
            "",
            None,
        )
        assert script == body_of("endless")
        assert (output or b"").startswith(b"begun\n")
        assert site.ledger.benchmarks.labels() == {"good.number": 12.5}
