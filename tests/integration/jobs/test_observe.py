"""What a look concludes of jobs that SLURM does not show as they should be: it has
forgotten them, requeued them, or gives them more than was paid for. Real SLURM and
Postgres.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from devgrid.cluster.linux_users import admin
from devgrid.processes import wait_until
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.callback_fallback import CONTRADICTED, SUSPENDED
from supervisor_tasks.jobs.cancel import cancel
from supervisor_tasks.jobs.events import (
    LimitApplied,
    SlurmRunningObserved,
    SubmitStarted,
    Submitted,
    ToppedUp,
)
from supervisor_tasks.jobs.extend_time_limit import extend_time_limit
from supervisor_tasks.jobs.model import ChainStatus, EffectKind, JobId, SlurmId, State
from supervisor_tasks.jobs.observe import submitted_s_of_requeued
from supervisor_tasks.jobs.wait_for_runs import AWAITED_LOOKS
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.slurm.cluster import over_ssh
from supervisor_tasks.slurm_lookup.lookup import look_at
from supervisor_tasks.slurm_lookup.plausible_callbacks import plausible_ids
from tests.support.requeueing import SETTLED_AFTER_S
from tests.support.submission_env import CUSTOMER, LIVE, PATIENCE_S, SubmissionEnv

UNKNOWN_ID = SlurmId(900_000)  # SLURM never gives it here
SUBMIT_STARTED_S = """
    SELECT max(EXTRACT(EPOCH FROM at)) FROM events WHERE job_id = :job AND name = 'SubmitStarted'
    """
CALLBACK = """
    INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer, proof)
    VALUES ('here', :job, :slurm_id, :status, :duration_s, :exit_code, 'a test', :proof)
    """


@pytest.fixture(scope="module")
def submission_env() -> Iterator[SubmissionEnv]:
    # a job whose script ignores SIGTERM is COMPLETING for long enough to be seen
    with SubmissionEnv.running("KillWait=60") as submission_env:
        yield submission_env


@pytest.fixture
def site(submission_env: SubmissionEnv) -> Iterator[WorkerContext]:
    site = submission_env.site(submission_env.cluster())
    yield site
    site.slurm.cluster.close()
    site.ledger.holder.close()
    submission_env.slurm.run("scancel", f"--user={CUSTOMER}")


def without_callbacks(site: WorkerContext) -> WorkerContext:
    """The same worker at a site that does not trust callbacks."""
    return replace(site, slurm_services=replace(site.slurm, trust_callbacks=False))


def execute(
    submission_env: SubmissionEnv, statement: str, **parameters: object
) -> None:
    with submission_env.engine.begin() as connection:
        connection.execute(text(statement), parameters)


def scalar(submission_env: SubmissionEnv, query: str, **parameters: object) -> Any:
    with submission_env.engine.connect() as connection:
        return connection.scalar(text(query), parameters)


def submitted_as(
    submission_env: SubmissionEnv, site: WorkerContext, slurm_id: SlurmId, *seen: str
) -> JobId:
    """A job that got this id a minute ago, and that looks have seen in these states."""
    job = submission_env.new_job(site)
    site.ledger.record(
        JobChange(job, SubmitStarted(10)),
        JobChange(job, Submitted(slurm_id)),
        *(JobChange(job, SlurmRunningObserved(state)) for state in seen),
    )
    submission_env.a_minute_passes(job)
    return job


def queued_job(
    submission_env: SubmissionEnv, site: WorkerContext
) -> tuple[JobId, SlurmId]:
    """A job that SLURM has taken."""
    job = submission_env.new_job(site)
    slurm_id = submission_env.until_queued(site, job).slurm_id
    assert slurm_id is not None
    return job, slurm_id


def called(
    submission_env: SubmissionEnv,
    job: JobId,
    slurm_id: int,
    *callbacks: tuple[int, int, int],
    proof: str = "proven",
) -> None:
    """Store callbacks (status, seconds, exit code) about the job."""
    for status, duration_s, exit_code in callbacks:
        row = {"job": job, "slurm_id": slurm_id, "proof": proof}
        row |= {"status": status, "duration_s": duration_s, "exit_code": exit_code}
        execute(submission_env, CALLBACK, **row)


def parked_for(submission_env: SubmissionEnv, job: JobId) -> str:
    query = "SELECT last_error FROM effects WHERE job_id = :job AND parked_at IS NOT NULL AND kind = 'poll_slurm'"
    return str(scalar(submission_env, query, job=job) or "")


# --- SLURM has forgotten the job ------------------------------------------------------


@pytest.mark.parametrize(
    ("callbacks", "proof", "status", "elapsed_s"),
    [
        ([(7, 5, 0)], "proven", ChainStatus.FINISHED, 5),
        ([(7, 5, 0)], "no key", ChainStatus.FINISHED, 5),
        ([(4, 0, 0), (8, 6, 512)], "proven", ChainStatus.FAILED, 6),
        ([(9, 7, 0)], "proven", ChainStatus.OUT_OF_CREDITS, 7),
        # it would have begun before it was submitted
        ([(7, 10**6, 0)], "proven", None, None),
        ([(7, 5, 0)], "unproven", None, None),
        ([(4, 0, 0)], "proven", None, None),
        ([], "proven", None, None),
    ],
)
def test_poll_jobs__slurm_forgot_the_job__callbacks_that_can_be_true_end_it(
    submission_env: SubmissionEnv,
    site: WorkerContext,
    callbacks: Sequence[tuple[int, int, int]],
    proof: str,
    status: ChainStatus | None,
    elapsed_s: int | None,
) -> None:
    job = submitted_as(submission_env, site, UNKNOWN_ID, "RUNNING")
    called(submission_env, job, UNKNOWN_ID, *callbacks, proof=proof)
    seen = submission_env.look(site, job)
    if status is None:
        assert (seen.state, seen.outcome) == (State.RUNNING, None)
        assert parked_for(submission_env, job) == ""
        return
    assert seen.outcome is not None
    assert (seen.state, seen.outcome.status) == (State.ENDED, status)
    assert seen.outcome.elapsed_s == elapsed_s


def test_poll_jobs__site_does_not_trust_callbacks__they_end_nothing(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job = submitted_as(submission_env, site, UNKNOWN_ID, "RUNNING")
    called(submission_env, job, UNKNOWN_ID, (7, 5, 0))
    assert submission_env.look(without_callbacks(site), job).state is State.RUNNING
    assert submission_env.look(site, job).state is State.ENDED


@pytest.mark.parametrize(
    ("states", "callbacks", "why"),
    [
        (("RUNNING",), [(7, 5, 0), (8, 5, 256)], CONTRADICTED),
        (("RUNNING", "SUSPENDED"), [(7, 5, 0)], SUSPENDED),
    ],
)
def test_poll_jobs__callbacks_do_not_decide_the_end__operator_decides(
    submission_env: SubmissionEnv,
    site: WorkerContext,
    states: tuple[str, ...],
    callbacks: Sequence[tuple[int, int, int]],
    why: str,
) -> None:
    job = submitted_as(submission_env, site, UNKNOWN_ID, *states)
    called(submission_env, job, UNKNOWN_ID, *callbacks)
    assert submission_env.look(site, job).state is State.RUNNING
    assert parked_for(submission_env, job) == why


# --- sbatch named an id that SLURM never gave -----------------------------------------


def test_poll_jobs__slurm_must_know_the_id_and_does_not__submission_is_denied(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    cluster = site.slurm.cluster
    wait_until(  # a slurmctld that has just begun may have forgotten the job
        lambda: cluster.site.controller().runs_for_s(cluster.clock.now_s()) > 10,
        "slurmctld to run long enough",
        PATIENCE_S,
    )
    older = submitted_as(submission_env, site, UNKNOWN_ID)
    execute(
        submission_env,
        "UPDATE events SET at = at - interval '1 h' WHERE job_id = :job",
        job=older,
    )
    job = submission_env.new_job(site)
    site.ledger.record(
        JobChange(job, SubmitStarted(10)), JobChange(job, Submitted(UNKNOWN_ID))
    )
    assert submission_env.look(site, job).slurm_id is None
    assert "FalseSlurmId" in submission_env.journal(job)
    # slurmctld forgets ended jobs after five minutes
    assert submission_env.look(site, older).slurm_id == UNKNOWN_ID
    assert "FalseSlurmId" not in submission_env.journal(older)


# --- whose id a callback can name -----------------------------------------------------


@pytest.mark.parametrize(
    ("slurm_id", "begun_ago_s", "is_plausible"),
    [
        (UNKNOWN_ID, 0.0, False),  # above all that slurmctld has given
        (9_000, 1e6, True),  # a slurmctld before this one may have given it
        (UNKNOWN_ID, 1e6, False),
        (0, 1e6, False),  # no id
        (2**31, 1e6, False),
    ],
)
def test_plausible_ids__a_caller_names_an_id__only_one_that_slurm_can_have_given(
    submission_env: SubmissionEnv,
    site: WorkerContext,
    slurm_id: int,
    begun_ago_s: float,
    is_plausible: bool,
) -> None:
    job = submission_env.new_job(site)
    found = plausible_ids(site, {job: {slurm_id}}, {job: begun_ago_s})
    assert found.get(job, set()) == ({slurm_id} if is_plausible else set())


def test_plausible_ids__another_job_has_the_id__is_not_plausible(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job = submission_env.new_job(site)
    _, slurm_id = queued_job(submission_env, site)
    assert plausible_ids(site, {job: {slurm_id}}, {job: 1e6}) == {job: set()}


# --- runs that no look has seen -------------------------------------------------------


def requeued(
    submission_env: SubmissionEnv, site: WorkerContext
) -> tuple[JobId, SlurmId]:
    """A job that SLURM has requeued after a run of two seconds or more that no look has
    seen.
    """
    job, slurm_id = queued_job(submission_env, site)
    has_run_for(submission_env, slurm_id, 2)
    submission_env.set(slurm_id, Requeue="1")
    submission_env.scontrol("requeue", slurm_id)
    wait_for_state(submission_env, slurm_id, "PENDING")
    return job, slurm_id


def wait_for_state(
    submission_env: SubmissionEnv, slurm_id: SlurmId, *states: str
) -> None:
    wait_until(
        lambda: submission_env.field(slurm_id, "State") in states,
        f"SLURM to show {slurm_id} as {' or '.join(states)}",
        PATIENCE_S,
        0.1,
    )


def has_run_for(submission_env: SubmissionEnv, slurm_id: SlurmId, seconds: int) -> None:
    """Wait until the job has run for so long."""
    wait_for_state(submission_env, slurm_id, "RUNNING")
    wait_until(
        lambda: submission_env.seconds_run(slurm_id) >= seconds,
        f"{slurm_id} to run for {seconds} s",
        PATIENCE_S,
        0.1,
    )


def test_poll_jobs__job_goes_on_after_a_suspension__time_of_the_look_counts(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    """A later requeue ends the run after the last look. By its start and its seconds,
    the look would be earlier by the time of the suspension.
    """
    job, slurm_id = queued_job(submission_env, site)
    wait_for_state(submission_env, slurm_id, "RUNNING")
    submission_env.scontrol("suspend", slurm_id)
    assert submission_env.look(site, job).runs[-1].suspended
    begun_s = site.slurm.cluster.clock.now_s()
    wait_until(
        lambda: site.slurm.cluster.clock.now_s() >= begun_s + 4,
        "4 s to pass",
        PATIENCE_S,
    )
    submission_env.scontrol("resume", slurm_id)
    wait_for_state(submission_env, slurm_id, "RUNNING")
    assert submission_env.look(site, job).runs[-1].seen_s >= begun_s + 4


@pytest.mark.parametrize("apart_s", [-3600, 0, 3600])
def test_submitted_s_of_requeued__clocks_are_apart__is_by_slurms_clock(
    submission_env: SubmissionEnv, site: WorkerContext, apart_s: int
) -> None:
    job, slurm_id = requeued(submission_env, site)
    seen = look_at(site, [site.ledger.jobs([job])[job]])[job].record
    assert seen is not None
    # a clock that was read when the machine was busy shows a moment earlier
    over_ssh(site.slurm.cluster).login_node.ssh.discard_clock(admin())
    asked_s = time.monotonic()
    now_s = site.slurm.cluster.clock.now_s()
    found = submitted_s_of_requeued(
        site, [(site.ledger.jobs([job])[job], seen)], now_s + apart_s
    )
    took_s = time.monotonic() - asked_s
    begun_s = float(scalar(submission_env, SUBMIT_STARTED_S, job=job))
    # earlier by what passes meanwhile and by parts of two seconds; never later
    assert begun_s - 2 - took_s <= found[job] - apart_s <= begun_s
    assert slurm_id == seen.slurm_id


def test_poll_jobs__requeued_unseen__hooks_ends_count_and_forged_ones_do_not(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job, slurm_id = requeued(submission_env, site)
    called(submission_env, job, slurm_id, (6, 0, 0), proof="unproven")
    assert submission_env.look(site, job).earlier_s >= 2
    called(submission_env, job, slurm_id, (6, 1, 0))
    seen = submission_env.look(site, job)
    assert seen.earlier_s == 1


def test_poll_jobs__ended_after_a_requeue__waits_for_the_hooks_missing_end(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job, slurm_id = requeued(submission_env, site)
    called(submission_env, job, slurm_id, (6, 1, 0))
    submission_env.slurm.run("scancel", str(slurm_id))
    wait_for_state(submission_env, slurm_id, "CANCELLED")
    assert submission_env.look(site, job).state is State.QUEUED
    why = scalar(
        submission_env,
        "SELECT last_error FROM effects WHERE job_id = :job AND kind = 'poll_slurm' AND done_at IS NULL",
        job=job,
    )
    assert "hooks have not reported" in why
    called(submission_env, job, slurm_id, (6, 0, 0))
    ended = submission_env.look(site, job)
    assert ended.outcome is not None
    assert (ended.state, ended.outcome.status) == (State.ENDED, ChainStatus.CANCELLED)
    assert ended.earlier_s == 1


def test_poll_jobs__tries_have_failed_before__five_looks_wait_for_hooks(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job, slurm_id = requeued(submission_env, site)
    called(submission_env, job, slurm_id, (6, 1, 0))
    submission_env.slurm.run("scancel", str(slurm_id))
    wait_for_state(submission_env, slurm_id, "CANCELLED")
    execute(
        submission_env,
        "UPDATE effects SET attempts = 30 WHERE job_id = :job AND kind = 'poll_slurm'",
        job=job,
    )
    wait_until(
        lambda: submission_env.look(site, job).state is State.ENDED,
        "the look that waits no more",
        PATIENCE_S,
        0.1,
    )
    ended = site.ledger.jobs([job])[job]
    assert ended.earlier_s >= 2, "the most that the first run can have taken"
    assert submission_env.journal(job).count("EarlierRunsAwaited") == AWAITED_LOOKS - 1


def test_poll_jobs__short_run_was_told_twice__silent_second_run_is_billed(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    """Two ends of the first run are as many as there were requeues."""
    job, slurm_id = queued_job(submission_env, site)
    has_run_for(submission_env, slurm_id, 2)
    first_s = submission_env.look(site, job).runs[0].elapsed_s + 1
    submission_env.set(slurm_id, Requeue="1")
    submission_env.scontrol("requeue", slurm_id)
    called(submission_env, job, slurm_id, (7, first_s, 0), (8, first_s, 0))
    wait_for_state(submission_env, slurm_id, "PENDING")
    begin_again(submission_env, slurm_id)
    has_run_for(submission_env, slurm_id, 8)
    seen_s = submission_env.look(site, job).runs[-1].elapsed_s
    submission_env.scontrol("requeue", slurm_id)
    wait_for_state(submission_env, slurm_id, "PENDING")
    billed = submission_env.look(site, job).runs
    assert [run.exact for run in billed] == [False, False, True]
    assert billed[1].elapsed_s >= seen_s >= 8


def begin_again(submission_env: SubmissionEnv, slurm_id: SlurmId) -> None:
    """Start a requeued job again. In its first seconds its node may reject that."""
    until_s = time.monotonic() + SETTLED_AFTER_S
    wait_until(
        lambda: time.monotonic() >= until_s, "the node to settle", PATIENCE_S, 0.5
    )
    submission_env.set(slurm_id, StartTime="now")


@pytest.mark.parametrize("has_hooks", [True, False], ids=["hooks", "no hooks"])
def test_poll_jobs__node_clears_up_after_a_requeue__hooks_tell_the_runs_seconds(
    submission_env: SubmissionEnv, site: WorkerContext, has_hooks: bool
) -> None:
    """At a site with neither hooks nor accounting, the end waits for none."""
    gate = submission_env.slurm.users.home(CUSTOMER) / f"gate-{has_hooks}"
    until_gate = f"until [ -e ~/{gate.name} ]; do sleep 0.1; done"
    job = submission_env.new_job(site, f"#!/bin/bash\ntrap '' TERM\n{until_gate}\n")
    slurm_id = submission_env.until_queued(site, job).slurm_id
    assert slurm_id is not None
    has_run_for(submission_env, slurm_id, 2)
    seen = submission_env.look(site, job).runs[-1]
    assert seen.start_s is not None
    told_s = seen.elapsed_s + 1
    has_run_for(submission_env, slurm_id, told_s + 1)
    submission_env.set(slurm_id, Requeue="1")
    submission_env.scontrol("requeue", slurm_id)
    assert submission_env.field(slurm_id, "State") == "COMPLETING"
    if has_hooks:
        called(submission_env, job, slurm_id, (6, told_s, 0))
    assert len(submission_env.look(site, job).runs) == 1
    gate.touch()
    wait_for_state(submission_env, slurm_id, "PENDING")
    gate.unlink()
    waiting = submission_env.look(site, job)
    if has_hooks:
        assert waiting.earlier_s == told_s
        called(submission_env, job, slurm_id, (6, 0, 0))
    else:
        assert waiting.earlier_s > told_s, "the most that it can have taken"
    submission_env.slurm.run("scancel", str(slurm_id))
    wait_for_state(submission_env, slurm_id, "CANCELLED")
    ended = submission_env.look(site, job)
    assert ended.outcome is not None
    assert (ended.state, ended.outcome.elapsed_s) == (State.ENDED, waiting.earlier_s)


@pytest.mark.parametrize(
    ("proof", "status", "told_s"),
    [
        ("proven", ChainStatus.FINISHED, 1),
        ("unproven", ChainStatus.CANCELLED, None),
        ("no key", ChainStatus.CANCELLED, None),
    ],
)
def test_poll_jobs__slurm_ends_a_job_once_more__end_that_our_hook_told_counts(
    submission_env: SubmissionEnv,
    site: WorkerContext,
    proof: str,
    status: ChainStatus,
    told_s: int | None,
) -> None:
    """As after a slurmctld that was killed before it saved the first end. Here the job
    runs on. Where the hook's end does not count, SLURM's seconds do.
    """
    job, slurm_id = queued_job(submission_env, site)
    has_run_for(submission_env, slurm_id, 8)
    called(submission_env, job, slurm_id, (7, 1, 0), proof=proof)
    submission_env.slurm.run("scancel", str(slurm_id))
    wait_for_state(submission_env, slurm_id, "CANCELLED")
    ended = submission_env.look(site, job)
    assert ended.outcome is not None
    assert ended.outcome.status is status
    slurms_s = submission_env.seconds_run(slurm_id)
    assert slurms_s >= 8
    assert ended.outcome.elapsed_s == (slurms_s if told_s is None else told_s)


@pytest.mark.parametrize("has_ended", [False, True], ids=["waits", "ended"])
def test_cancel__owner_made_it_requeueable__slurm_cannot_requeue_it_any_more(
    submission_env: SubmissionEnv, site: WorkerContext, has_ended: bool
) -> None:
    job, slurm_id = requeued(submission_env, site)
    if has_ended:
        submission_env.slurm.run("scancel", str(slurm_id))
        wait_for_state(submission_env, slurm_id, "CANCELLED")
    cancel(site, site.ledger.jobs([job])[job])
    wait_for_state(submission_env, slurm_id, "CANCELLED")
    shown = submission_env.slurm.run("scontrol", "show", "job", str(slurm_id)).stdout
    assert "Requeue=0" in shown


# --- without an id in SLURM -----------------------------------------------------------


def test_cancel__ledger_has_no_id__cancels_the_job_that_slurm_took(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job, slurm_id = queued_job(submission_env, site)
    submission_env.a_minute_passes(job)
    settled_before_the_answer = (
        "UPDATE jobs SET state = 'SETTLED', slurm_id = NULL, slurm_submit_s = NULL"
        " WHERE job_id = :job"
    )
    with submission_env.engine.begin() as connection:
        connection.execute(text(settled_before_the_answer), {"job": job})
    cancel(site, site.ledger.jobs([job])[job])
    wait_for_state(submission_env, slurm_id, "CANCELLED")


def test_cancel__ledger_has_an_id_by_now__leaves_the_job_alone(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    """What decides about the job by its id is another effect."""
    job, slurm_id = queued_job(submission_env, site)
    submission_env.a_minute_passes(job)
    before_the_answer = replace(
        site.ledger.jobs([job])[job], slurm_id=None, slurm_submit_s=None
    )
    cancel(site, before_the_answer)
    assert submission_env.field(slurm_id, "State") in LIVE


def test_extend_time_limit__no_slurm_job__nothing_is_set(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job = submission_env.new_job(site)
    waits = site.ledger.jobs([job])[job]
    assert not isinstance(extend_time_limit(site, waits), LimitApplied)


def test_extend_time_limit__slurm_has_ended_the_job__ends_as_without_the_top_up(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job, slurm_id = queued_job(submission_env, site)
    submission_env.slurm.run("scancel", str(slurm_id))
    wait_for_state(submission_env, slurm_id, "CANCELLED")
    site.ledger.record(JobChange(job, ToppedUp("a top-up", 5)))
    assert submission_env.effect_id(job, EffectKind.TOP_UP)
    event = extend_time_limit(site, site.ledger.jobs([job])[job])
    assert event == LimitApplied(15)
    site.ledger.record(JobChange(job, event))
    ended = submission_env.look(site, job)
    assert ended.outcome is not None
    assert (ended.outcome.status, ended.outcome.minutes) == (ChainStatus.CANCELLED, 0)


# --- a size that was not paid for -----------------------------------------------------


@pytest.fixture
def drained_nodes(submission_env: SubmissionEnv) -> Iterator[None]:
    """Jobs wait."""
    node = ("scontrol", "update", "NodeName=ALL")
    submission_env.slurm.run(*node, "State=DRAIN", "Reason=test")
    yield
    submission_env.slurm.run("scancel", f"--user={CUSTOMER}")
    submission_env.slurm.run(*node, "State=RESUME")


@pytest.mark.usefixtures("drained_nodes")
def test_extend_time_limit__owner_asked_for_more_cpus__job_is_put_back(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job, slurm_id = queued_job(submission_env, site)
    submission_env.set(slurm_id, NumCPUs="8")
    submission_env.look(site, job)
    assert "MoreThanPaid" in submission_env.journal(job)
    event = extend_time_limit(site, site.ledger.jobs([job])[job])
    assert isinstance(event, LimitApplied)
    assert event.put_back
    assert submission_env.field(slurm_id, "NumCPUs") == "1"


@pytest.fixture
def memory_limit(submission_env: SubmissionEnv) -> Iterator[None]:
    """SLURM gives three CPUs to a job that asks for one, as they have its memory."""
    change = ("scontrol", "update", "PartitionName=main")
    submission_env.slurm.run(*change, "MaxMemPerCPU=40")
    yield
    submission_env.slurm.run(*change, "MaxMemPerCPU=UNLIMITED")


@pytest.mark.usefixtures("memory_limit", "drained_nodes")
def test_extend_time_limit__slurm_gives_cpus_for_memory__keeps_them(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job, slurm_id = queued_job(submission_env, site)
    assert submission_env.field(slurm_id, "cpus-per-task") == "3"
    submission_env.look(site, job)
    assert "MoreThanPaid" not in submission_env.journal(job)
    site.ledger.record(JobChange(job, ToppedUp("a top-up", 5)))
    event = extend_time_limit(site, site.ledger.jobs([job])[job])
    assert event == LimitApplied(15)
    assert submission_env.field(slurm_id, "cpus-per-task") == "3"


@pytest.mark.usefixtures("drained_nodes")
@pytest.mark.parametrize(("owners_min", "then_min"), [(5, 5), (9, 8)])
def test_extend_time_limit__limit_is_lowered__a_lower_one_of_the_owner_stays(
    submission_env: SubmissionEnv, site: WorkerContext, owners_min: int, then_min: int
) -> None:
    job, slurm_id = queued_job(submission_env, site)
    submission_env.set(slurm_id, TimeLimit=str(owners_min))
    lowered = replace(
        site.ledger.jobs([job])[job], time_limit_min=8, applied_limit_min=10
    )
    extend_time_limit(site, lowered)
    assert submission_env.field(slurm_id, "TimeLimit") == f"{then_min}:00"


def test_poll_jobs__running_job_has_more_time__limit_is_set_back(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job, slurm_id = queued_job(submission_env, site)
    wait_for_state(submission_env, slurm_id, "RUNNING")
    done = submission_env.slurm.run(
        "scontrol", "update", f"JobId={slurm_id}", "TimeLimit=99"
    )
    assert done.returncode == 0, done.stderr
    wait_until(  # a look at a job that has just begun concludes nothing
        lambda: submission_env.look(site, job).state is State.RUNNING,
        "a look",
        PATIENCE_S,
        0.2,
    )
    assert submission_env.effect_id(job, EffectKind.TOP_UP)
    event = extend_time_limit(site, site.ledger.jobs([job])[job])
    assert event == LimitApplied(10)
    assert submission_env.field(slurm_id, "TimeLimit") == "10:00"


@pytest.mark.usefixtures("drained_nodes")
def test_poll_jobs__job_ended_with_more_than_paid__operator_is_told(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job, slurm_id = queued_job(submission_env, site)
    submission_env.set(slurm_id, NumCPUs="8")
    submission_env.slurm.run("scontrol", "update", "NodeName=ALL", "State=RESUME")
    has_run_for(submission_env, slurm_id, 1)
    submission_env.slurm.run("scancel", str(slurm_id))
    wait_for_state(submission_env, slurm_id, "CANCELLED")
    ended = submission_env.look(site, job)
    assert ended.stop is not None
    assert "it had more than was paid for" in ended.stop.reason
    assert AlarmName.MORE_THAN_PAID in {one.name for one in site.ledger.alarms.all()}
