"""A customer's start-up file prints a false time where the supervisor asks for the login
node's clock, so that the token of a submission, which he keeps, counts for an hour.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.model import Address, State
from supervisor_tasks.slurm.submit_token import LOGIN_CLOCK_APART_S
from tests.support.submission_env import SLURM_SETTINGS, SubmissionEnv

ATTACKER = Address("0x" + "4" * 40)
# The delimiter is in the command line of the question for the time. The guard's input,
# with the token, is kept and not carried out.
FORGES = r"""
case "$BASH_EXECUTION_STRING" in
    *guard*)
        n=$(printf %s "$BASH_EXECUTION_STRING" | grep -o ' fed [0-9]*' | head -n 1)
        head -c "${{n# fed }}" >~/input
        exit 0 ;;
    *' clock '*)
        mark=$(printf %s "$BASH_EXECUTION_STRING" | grep -o '[0-9a-f]\{{32\}}' | head -n 1)
        echo "$mark $(($(date +%s) + {ahead_s})) " ;;
esac
"""


@pytest.fixture(scope="module")
def submission_env() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running() as submission_env:
        submission_env.slurm.users.add(ATTACKER, "/bin/bash")
        yield submission_env


@pytest.fixture
def site(submission_env: SubmissionEnv) -> Iterator[WorkerContext]:
    settings = replace(SLURM_SETTINGS, submit_key="0" * 64)
    site = submission_env.site(submission_env.cluster(settings=settings))
    yield site
    site.slurm.cluster.close()
    site.ledger.holder.close()
    submission_env.slurm.run("scancel", f"--user={ATTACKER}")


@pytest.fixture
def home(submission_env: SubmissionEnv) -> Iterator[Path]:
    home = submission_env.slurm.users.home(ATTACKER)
    yield home
    for name in (".bashrc", "input"):
        (home / name).unlink(missing_ok=True)


@pytest.mark.parametrize("ahead_s", [3500, -3500, LOGIN_CLOCK_APART_S + 30])
def test_forged_clock__far_from_the_admins__nothing_is_submitted(
    submission_env: SubmissionEnv, site: WorkerContext, home: Path, ahead_s: int
) -> None:
    (home / ".bashrc").write_text(FORGES.format(ahead_s=ahead_s))
    job_id = submission_env.new_job(site, customer=ATTACKER)
    assert submission_env.carry_out(site, job_id).state is State.READY
    assert not (home / "input").exists()  # no token was shown to him
    said = submission_env.last_error(job_id)
    assert f"clock of {ATTACKER}'s session" in said
    assert f"at most {LOGIN_CLOCK_APART_S} s" in said
    (home / ".bashrc").unlink()
    submission_env.a_minute_passes(job_id)
    assert submission_env.carry_out(site, job_id).state is State.QUEUED
