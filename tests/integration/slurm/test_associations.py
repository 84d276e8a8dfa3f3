"""A site whose slurmctld takes jobs only of users that accounting knows, on real SLURM."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.model import State
from supervisor_tasks.slurm import associations
from tests.support.submission_env import (
    CUSTOMER,
    PATHS,
    SLURM_SETTINGS,
    SubmissionEnv,
)


@pytest.fixture(scope="module")
def submission_env() -> Iterator[SubmissionEnv]:
    enforced = "AccountingStorageEnforce=associations"
    with SubmissionEnv.running(enforced, accounting=True) as submission_env:
        accounting(submission_env, "add", "account", "grid")
        yield submission_env


def accounting(submission_env: SubmissionEnv, *words: str) -> str:
    done = submission_env.slurm.run("sacctmgr", "--immediate", *words)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return str(done.stdout)


@contextmanager
def site_with(submission_env: SubmissionEnv, account: str) -> Iterator[WorkerContext]:
    """A worker of a site with this SLURM_CUSTOMER_ACCOUNT."""
    paths = replace(PATHS, sacct="/usr/bin/sacct")
    settings = replace(SLURM_SETTINGS, customer_account=account)
    site = submission_env.site(submission_env.cluster(paths=paths, settings=settings))
    try:
        yield site
    finally:
        submission_env.slurm.run("scancel", f"--user={CUSTOMER}")
        site.slurm.cluster.close()
        site.ledger.holder.close()


def waits(submission_env: SubmissionEnv, site: WorkerContext) -> None:
    """A job of the customer's stays READY, and SLURM's words are kept."""
    job_id = submission_env.new_job(site)
    assert submission_env.carry_out(site, job_id).state is State.READY
    assert "Invalid account" in submission_env.last_error(job_id)


def test_customer_unknown_to_accounting__site_names_an_account__is_added_and_runs(
    submission_env: SubmissionEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(associations, "ADDED_AGAIN_S", 3600.0)
    with site_with(submission_env, "") as site:
        waits(submission_env, site)
        assert CUSTOMER not in accounting(submission_env, "list", "user")
    with site_with(submission_env, "nosuch") as site, capture_logs() as logs:
        waits(submission_env, site)
        waits(submission_env, site)
        (told,) = [entry for entry in logs if "added" in entry["event"]]
        assert told["event"] == "customer_not_added_to_account"
        assert "nosuch" in told["said"]
    with site_with(submission_env, "grid") as site, capture_logs() as logs:
        job = submission_env.until_queued(site, submission_env.new_job(site))
        assert job.slurm_id is not None
        assert submission_env.field(job.slurm_id, "Account") == "grid"
        (told,) = [entry for entry in logs if "added" in entry["event"]]
        assert (told["customer"], told["account"]) == (CUSTOMER, "grid")
