"""A customer's start-up file answers in place of sbatch, with any job id: an impossible
one, one that SLURM has not given, or one of another job. The other jobs end with their
own figures, and are neither cancelled nor changed. The attacker's job is found in
SLURM, or given back.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from devgrid.processes import wait_until
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.cancel import cancel
from supervisor_tasks.jobs.events import (
    CancelRequested,
    ChainStatusObserved,
    SubmitNotExecuted,
    SubmitStarted,
    Submitted,
    ToppedUp,
)
from supervisor_tasks.jobs.false_slurm_ids import must_know
from supervisor_tasks.jobs.model import (
    Address,
    ChainStatus,
    EffectKind,
    Job,
    JobId,
    SlurmId,
    State,
)
from supervisor_tasks.jobs.monitor import poll_jobs
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.slurm.cluster import Cluster, over_ssh
from supervisor_tasks.slurm_lookup.lookup import look_at
from tests.support.effect_batches import carry_out
from tests.support.ledger import claimed_again
from tests.support.marks import in_chaos
from tests.support.submission_env import (
    CUSTOMER,
    LIVE,
    PATHS,
    SLURM_SETTINGS,
    SubmissionEnv,
)

ATTACKER = Address("0x" + "4" * 40)
LONG = "#!/bin/bash\nsleep 600\n"
CANNOT_BE = 4294967295
PATIENCE_S = 60.0
IN_SBATCHS_PLACE = """
case "$BASH_EXECUTION_STRING" in *guard*)
    IFS= read -r m; id=$(cat ~/id); printf '%s\\n%s\\n%s 0 0\\n' "$m" "$id" "$m"; exit 0 ;;
esac
"""
BEFORE_SBATCH = """
case "$BASH_EXECUTION_STRING" in *guard*)
    n=$(printf %s "$BASH_EXECUTION_STRING" | grep -o ' fed [0-9]*' | head -n 1); head -c "${n# fed }" >~/input
    eval "$BASH_EXECUTION_STRING" <~/input >/dev/null; eval "$BASH_EXECUTION_STRING" <~/input; exit 0 ;;
esac
"""
BEHIND_SBATCH = """
case "$BASH_EXECUTION_STRING" in *guard*)
    eval "$BASH_EXECUTION_STRING" | sed "s/^[0-9][0-9]*$/$(cat ~/id)/"; exit 0 ;;
esac
"""
# Keeps what it got, token and all, answers what is false, and submits the job itself.
KEPT = """
case "$BASH_EXECUTION_STRING" in *guard*)
    n=$(printf %s "$BASH_EXECUTION_STRING" | grep -o ' fed [0-9]*' | head -n 1); head -c "${{n# fed }}" >~/input
    ( eval "$BASH_EXECUTION_STRING" ) <~/input >~/output 2>&1; IFS= read -r m <~/input; {answer} ;;
esac
"""
FALSE_ANSWERS = {
    "a refusal": """why="Batch job submission failed: Requested node configuration is not available"
        printf '%s\\n' "$m" "sbatch: error: $why" "$m" >&2
        printf '%s\\n%s 0 1\\n' "$m" "$m"; exit 0""",
    "nothing ran": "exit 127",
}


@pytest.fixture(scope="module")
def submission_env() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running(accounting=True) as submission_env:
        submission_env.slurm.users.add(ATTACKER)
        submission_env.slurm.users.set_shell(ATTACKER, "/bin/bash")
        wait_until_ids_are_denied(submission_env)
        yield submission_env


def wait_until_ids_are_denied(submission_env: SubmissionEnv) -> None:
    """Wait until slurmctld has run so long that it must know each job which is
    submitted from now on.
    """
    cluster = submission_env.cluster()

    def must_know_new_jobs() -> bool:
        controller = cluster.site.controller()
        return must_know(
            0.0, controller.runs_for_s(cluster.clock.now_s()), controller.min_job_age_s
        )

    try:
        wait_until(must_know_new_jobs, "slurmctld to be old enough", PATIENCE_S, 0.2)
    finally:
        cluster.close()


@pytest.fixture(
    params=[
        pytest.param(None, id="slurmctld alone"),
        in_chaos("/usr/bin/sacct", id="accounting"),
    ]
)
def site(
    submission_env: SubmissionEnv, request: pytest.FixtureRequest
) -> Iterator[WorkerContext]:
    site = submission_env.site(
        submission_env.cluster(paths=replace(PATHS, sacct=request.param))
    )
    yield site
    site.slurm.cluster.close()
    site.ledger.holder.close()
    for user in (CUSTOMER, ATTACKER):
        submission_env.slurm.run("scancel", f"--user={user}")


@pytest.fixture
def attackers_home(submission_env: SubmissionEnv) -> Iterator[Path]:
    """The attacker's home, with his start-up file and the id that it prints."""
    home = submission_env.slurm.users.home(ATTACKER)
    (home / ".bashrc").write_text(IN_SBATCHS_PLACE)
    yield home
    (home / ".bashrc").unlink()


def job_of(site: WorkerContext, job_id: JobId) -> Job:
    return site.ledger.jobs([job_id])[job_id]


def honest_job(
    submission_env: SubmissionEnv,
    site: WorkerContext,
    script: str = LONG,
    customer: Address = CUSTOMER,
) -> tuple[JobId, SlurmId]:
    """A job that SLURM has under the id in the ledger."""
    job_id = submission_env.new_job(site, script, customer)
    number = submission_env.until_queued(site, job_id).slurm_id
    assert number is not None
    return job_id, number


def look_once(submission_env: SubmissionEnv, site: WorkerContext) -> None:
    """Carry out all polls at once, even those that are not due."""
    with submission_env.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE effects SET due_at = now() WHERE kind = 'poll_slurm' AND done_at IS NULL"
            )
        )
    poll_jobs(site)


def until(
    submission_env: SubmissionEnv, site: WorkerContext, job_id: JobId, state: State
) -> Job:
    def there() -> bool:
        look_once(submission_env, site)
        return job_of(site, job_id).state is state

    wait_until(there, f"{job_id} to be {state}", PATIENCE_S, 0.1)
    return job_of(site, job_id)


def what_becomes_of(
    submission_env: SubmissionEnv, site: WorkerContext, job_id: JobId
) -> Job:
    """Carry on a job of the attacker until it runs or was given back: poll it, look for
    it, submit it again.
    """

    def decided() -> bool:
        if submission_env.effect_id(job_id):
            submission_env.carry_out(site, job_id)
        look_once(submission_env, site)
        job = job_of(site, job_id)
        if job.state is State.SUBMITTING:
            submission_env.a_minute_passes(job_id)
        return job.state is State.REFUSED or job.slurm_submit_s is not None

    wait_until(decided, f"the end of {job_id}", PATIENCE_S, 0.1)
    return job_of(site, job_id)


def test_submission__answered_with_an_impossible_id__is_given_back_and_others_end(
    submission_env: SubmissionEnv, site: WorkerContext, attackers_home: Path
) -> None:
    (attackers_home / "id").write_text(str(CANNOT_BE))
    attackers_job, (honest, _) = (
        submission_env.new_job(site, LONG, ATTACKER),
        honest_job(submission_env, site, "#!/bin/bash\nexit 7\n"),
    )
    assert submission_env.carry_out(site, attackers_job).slurm_id is None
    ended = until(submission_env, site, honest, State.ENDED)
    assert ended.outcome is not None
    assert ended.outcome.exit_status == 7 * 256
    given_back = what_becomes_of(submission_env, site, attackers_job)
    assert given_back.state is State.REFUSED
    assert str(CANNOT_BE) in given_back.status_message


def test_look__impossible_id_is_in_the_ledger__the_other_jobs_are_seen(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    old = submission_env.new_job(site)
    site.ledger.record(
        JobChange(old, SubmitStarted(10)), JobChange(old, Submitted(SlurmId(CANNOT_BE)))
    )
    others = [honest_job(submission_env, site)[0] for _ in range(5)]
    matches = look_at(site, [*site.ledger.jobs(others).values(), job_of(site, old)])
    assert [matches[job].record is not None for job in others] == [True] * len(others)
    assert matches[old].record is None


@pytest.mark.parametrize("whose", ["another customer's", "his own", "no job's yet"])
def test_submission__answered_with_a_wrong_id__is_denied_and_other_jobs_left_alone(
    submission_env: SubmissionEnv, site: WorkerContext, attackers_home: Path, whose: str
) -> None:
    gate = submission_env.slurm.users.home(CUSTOMER) / "gate"
    gate.unlink(missing_ok=True)
    (attackers_home / ".bashrc").rename(attackers_home / "lies")
    victim, number = honest_job(
        submission_env,
        site,
        "#!/bin/bash\nuntil [ -e ~/gate ]; do sleep 0.1; done\nexit 5\n",
        CUSTOMER,
    )
    own, own_number = honest_job(submission_env, site, LONG, ATTACKER)
    named = {
        "another customer's": number,
        "his own": own_number,
        "no job's yet": own_number + 1000,
    }[whose]
    (attackers_home / "id").write_text(str(named))
    (attackers_home / "lies").rename(attackers_home / ".bashrc")
    limits = [submission_env.field(one, "TimeLimit") for one in (number, own_number)]
    attackers_job = submission_env.new_job(site, LONG, ATTACKER)
    assert submission_env.carry_out(site, attackers_job).slurm_id == named
    longer = ToppedUp("top up", 9, (1, 0))
    site.ledger.record(
        JobChange(attackers_job, longer),
        JobChange(attackers_job, CancelRequested((1, 1))),
    )
    for kind in (EffectKind.TOP_UP, EffectKind.CANCEL):
        carry_out(site, submission_env.effect_id(attackers_job, kind))
    assert [
        submission_env.field(one, "TimeLimit") for one in (number, own_number)
    ] == limits
    assert {submission_env.field(one, "State") for one in (number, own_number)} <= set(
        LIVE
    )
    site.ledger.record(JobChange(attackers_job, ToppedUp("another", 1, (1, 2))))
    look_once(submission_env, site)
    assert job_of(site, attackers_job).slurm_id is None
    assert "FalseSlurmId" in submission_env.journal(attackers_job)
    gate.touch()
    ended = until(submission_env, site, victim, State.ENDED)
    assert ended.outcome is not None
    assert ended.outcome.exit_status == 5 * 256
    assert job_of(site, own).slurm_id == own_number


def test_submission__always_answered_with_anothers_id__is_given_back_with_the_reason(
    submission_env: SubmissionEnv, site: WorkerContext, attackers_home: Path
) -> None:
    _, number = honest_job(submission_env, site)
    (attackers_home / "id").write_text(str(number))
    attackers_job = submission_env.new_job(site, LONG, ATTACKER)
    given_back = what_becomes_of(submission_env, site, attackers_job)
    assert given_back.state is State.REFUSED
    assert f"SLURM id {number}" in given_back.status_message
    assert submission_env.journal(attackers_job).count("FalseSlurmId") == 3
    assert submission_env.field(number, "State") in LIVE


def test_submission__answered_with_anothers_id__the_job_is_found_under_its_own_id(
    submission_env: SubmissionEnv, site: WorkerContext, attackers_home: Path
) -> None:
    (attackers_home / ".bashrc").write_text(BEHIND_SBATCH)
    _, number = honest_job(submission_env, site)
    (attackers_home / "id").write_text(str(number))
    attackers_job = submission_env.new_job(site, LONG, ATTACKER)
    assert submission_env.carry_out(site, attackers_job).slurm_id == number
    found = what_becomes_of(submission_env, site, attackers_job)
    assert [found.slurm_id] == submission_env.in_slurm(attackers_job)
    assert found.slurm_id != number


def unpaid_job(
    submission_env: SubmissionEnv, site: WorkerContext, home: Path, answer: str
) -> tuple[WorkerContext, JobId, int]:
    """A job that its customer submitted with the token while his session gave a false
    answer; and the worker with the key.
    """
    with_key = Cluster.of(
        over_ssh(site.slurm.cluster).login_node,
        replace(SLURM_SETTINGS, submit_key="0" * 64),
    )
    site = replace(site, slurm_services=replace(site.slurm, cluster=with_key))
    (home / ".bashrc").write_text(KEPT.format(answer=FALSE_ANSWERS[answer]))
    job_id = submission_env.new_job(site, LONG, ATTACKER)
    submission_env.carry_out(site, job_id)
    (slurm_id,) = submission_env.in_slurm(job_id)
    return site, job_id, slurm_id


@pytest.mark.parametrize("answer", FALSE_ANSWERS)
def test_refusal_that_is_false__job_runs_unpaid__is_found_and_cancelled(
    submission_env: SubmissionEnv,
    site: WorkerContext,
    attackers_home: Path,
    answer: str,
) -> None:
    site, job_id, unpaid = unpaid_job(submission_env, site, attackers_home, answer)
    if answer == "nothing ran":
        assert "SubmitNotExecuted" in submission_env.journal(job_id)
        site.ledger.record(JobChange(job_id, CancelRequested((1, 1))))
    over = job_of(site, job_id)
    assert (over.state in (State.REFUSED, State.ENDED), over.slurm_id) == (True, None)
    assert submission_env.field(unpaid, "State") in LIVE
    carry_out(site, submission_env.effect_id(job_id, EffectKind.CANCEL))
    while submission_env.effect_id(job_id, EffectKind.CANCEL):
        submission_env.a_minute_passes(job_id)
        carry_out(site, submission_env.effect_id(job_id, EffectKind.CANCEL))
    wait_until(
        lambda: submission_env.field(unpaid, "State") == "CANCELLED",
        "the unpaid job to be cancelled",
        PATIENCE_S,
        0.1,
    )
    window_s = site.slurm.cluster.submissions.token_window_s
    assert submission_env.age_of_the_last_submission_s(job_id) > window_s > 0


def test_nothing_ran__that_is_false__the_next_submission_adopts_the_job(
    submission_env: SubmissionEnv, site: WorkerContext, attackers_home: Path
) -> None:
    """Otherwise each try would give him one more token, and one more job."""
    site, job_id, slurm_id = unpaid_job(
        submission_env, site, attackers_home, "nothing ran"
    )
    assert submission_env.journal(job_id)[-1] == "SubmitNotExecuted"
    submission_env.a_minute_passes(job_id)
    assert submission_env.carry_out(site, job_id).slurm_id == slurm_id
    assert submission_env.journal(job_id)[-1] == "ExistingSlurmJobAdopted"
    assert submission_env.in_slurm(job_id) == [slurm_id]


def test_nothing_ran__again_and_again__is_tried_more_and_more_seldom(
    submission_env: SubmissionEnv, site: WorkerContext, attackers_home: Path
) -> None:
    """Each try writes two events, and gives a token."""
    (attackers_home / ".bashrc").write_text(
        'case "$BASH_EXECUTION_STRING" in *guard*) exit 127 ;; esac\n'
    )
    job_id = submission_env.new_job(site, LONG, ATTACKER)

    def waits_after_a_try() -> bool:
        submission_env.carry_out(site, job_id)
        query = text(
            "SELECT last_error LIKE '%cannot begin the submission%' AND due_at > now() + interval '30 s'"
            " FROM effects WHERE id = :id"
        )
        with submission_env.engine.connect() as connection:
            waits = connection.scalar(query, {"id": submission_env.effect_id(job_id)})
        submission_env.a_minute_passes(job_id)
        submission_env.a_minute_passes(job_id)
        return bool(waits)

    assert not waits_after_a_try()
    wait_until(waits_after_a_try, "a wait of more than 30 s", PATIENCE_S, 0.0)


def test_refusal_that_is_false__job_of_another_supervisor__is_left_alone(
    submission_env: SubmissionEnv, site: WorkerContext, attackers_home: Path
) -> None:
    """The job went back, and another provider with the same SLURM claimed it."""
    site, job_id, slurm_id = unpaid_job(
        submission_env, site, attackers_home, "a refusal"
    )
    cluster = over_ssh(site.slurm.cluster)
    elsewhere = Cluster.of(
        cluster.login_node,
        replace(cluster.settings, public_address="another.example.com:3000"),
    )
    other = replace(site, slurm_services=replace(site.slurm, cluster=elsewhere))
    submission_env.a_minute_passes(job_id)
    cancel(other, job_of(site, job_id))
    assert submission_env.field(slurm_id, "State") in LIVE


def test_refusal_that_is_false__claimed_again_while_it_is_looked_for__is_left_alone(
    submission_env: SubmissionEnv, site: WorkerContext, attackers_home: Path
) -> None:
    """What SLURM has by then can be the submission of the new claim."""
    site, job_id, slurm_id = unpaid_job(
        submission_env, site, attackers_home, "a refusal"
    )
    refused = job_of(site, job_id)
    again = claimed_again(refused, 901)
    pending = ChainStatusObserved(ChainStatus.PENDING, (900, 0))
    site.ledger.record(JobChange(job_id, pending), JobChange(job_id, again))
    submission_env.a_minute_passes(job_id)
    cancel(site, refused)
    assert submission_env.field(slurm_id, "State") in LIVE


def test_submission__made_once_more_beside_a_second_one__the_oldest_job_stays(
    submission_env: SubmissionEnv, site: WorkerContext, attackers_home: Path
) -> None:
    """The token is that of the first submission, which did not run: slurmctld accepts
    it until it has seen the second one.
    """
    with_key = Cluster.of(
        over_ssh(site.slurm.cluster).login_node,
        replace(SLURM_SETTINGS, submit_key="0" * 64),
    )
    site = replace(site, slurm_services=replace(site.slurm, cluster=with_key))
    (attackers_home / ".bashrc").write_text(BEFORE_SBATCH)
    job_id = submission_env.new_job(site, LONG, ATTACKER)
    site.ledger.record(
        JobChange(job_id, SubmitStarted(10)),
        JobChange(job_id, SubmitNotExecuted("cut off")),
    )
    number = submission_env.carry_out(site, job_id).slurm_id
    oldest, *extras = sorted(submission_env.in_slurm(job_id))
    assert (number, len(extras)) == (oldest, 1)
    wait_until(
        lambda: submission_env.field(extras[0], "State") == "CANCELLED",
        "the other one to be cancelled",
        PATIENCE_S,
        0.1,
    )
    assert submission_env.field(oldest, "State") in LIVE
    assert until(submission_env, site, job_id, State.RUNNING).slurm_id == oldest
