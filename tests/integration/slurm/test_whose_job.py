"""Which of SLURM's jobs is ours, on real SLURM: ids that are given again, and names
that owners change.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlalchemy import text

from devgrid.processes import wait_until
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.cancel import cancel
from supervisor_tasks.jobs.events import SubmitStarted, Submitted
from supervisor_tasks.jobs.extend_time_limit import extend_time_limit
from supervisor_tasks.jobs.model import Address, JobId, SlurmId, State
from supervisor_tasks.jobs.wait_for_runs import (
    ACCOUNTING_PATIENCE_S,
    AWAITED_LOOKS,
)
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.slurm.cluster import Cluster
from supervisor_tasks.slurm.interface import Request
from supervisor_tasks.slurm.job_matching import UNREAD
from supervisor_tasks.slurm.parsers import JobRecord, QuestionRejectedError
from supervisor_tasks.slurm.rest import RestCluster
from supervisor_tasks.slurm.script_matching import ScriptSearch
from supervisor_tasks.slurm.ssh import our_clock_s
from supervisor_tasks.slurm_lookup.lookup import look_at
from tests.support.submission_env import CUSTOMER, LIVE, PATHS, SubmissionEnv
from tests.support.transports import OnlySsh, only_ssh

LONG = "#!/bin/bash\nsleep 600\n"
SHORT = "#!/bin/bash\nexit 7\n"
GATED = "#!/bin/bash\nuntil [ -e ~/go ]; do sleep 0.1; done\nexit 5\n"


@pytest.fixture(scope="module")
def submission_env() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running(accounting=True, rest=True) as submission_env:
        yield submission_env


@pytest.fixture
def site(submission_env: SubmissionEnv, transport: str) -> Iterator[WorkerContext]:
    """A worker of a site that asks slurmctld alone."""
    yield from worker(submission_env, submission_env.cluster_over(transport))
    submission_env.slurm.run("scancel", f"--user={CUSTOMER}")


@pytest.fixture
def accounting(submission_env: SubmissionEnv) -> Iterator[WorkerContext]:
    """A worker of a site that asks accounting too."""
    yield from worker(
        submission_env,
        submission_env.cluster(paths=replace(PATHS, sacct="/usr/bin/sacct")),
    )
    submission_env.slurm.run("scancel", f"--user={CUSTOMER}")


def worker(
    submission_env: SubmissionEnv, cluster: Cluster | RestCluster
) -> Iterator[WorkerContext]:
    site = submission_env.site(cluster)
    yield site
    site.slurm.cluster.close()
    site.ledger.holder.close()


def submitted(
    submission_env: SubmissionEnv, site: WorkerContext, script: str = LONG
) -> JobId:
    job = submission_env.new_job(site, script)
    assert submission_env.carry_out(site, job).state is State.QUEUED
    return job


def handed_over(site: WorkerContext, job: JobId) -> SlurmId:
    """SLURM has it, and the ledger does not know that yet."""
    cluster, ready = site.slurm.cluster, site.ledger.jobs([job])[job]
    site.ledger.record(JobChange(job, SubmitStarted(ready.limit_min)))
    script = site.ledger.scripts([job])[job]
    request = Request(
        definition=ready.definition, limit_min=ready.limit_min, script=script, number=1
    )
    answers = list[SlurmId | Exception]()
    cluster.submissions.submit_batch(
        CUSTOMER,
        [(job, request)],
        cluster.clock.of(CUSTOMER),
        our_clock_s(),
        lambda _, answer: answers.append(answer),
    )
    (answer,) = answers
    assert isinstance(answer, int), answer
    return answer


def id_of(site: WorkerContext, job: JobId) -> SlurmId:
    found = site.ledger.jobs([job])[job].slurm_id
    assert found is not None
    return found


def seen_as(site: WorkerContext, job: JobId) -> tuple[str, int] | None:
    """The state and the exit status that a look shows."""
    seen = look_at(site, site.ledger.jobs([job]).values())[job].record
    return None if seen is None else (seen.state, seen.exit_status)


def save(submission_env: SubmissionEnv) -> None:
    """slurmctld saves its state, and starts again with it; a copy is kept."""
    state = submission_env.slurm.layout.folder / "state"
    submission_env.processes.stop(submission_env.processes.find("slurmctld"))
    shutil.rmtree(state.with_name("saved"), ignore_errors=True)
    shutil.copytree(state, state.with_name("saved"))
    submission_env.slurm.start_controller()


def forget(submission_env: SubmissionEnv) -> None:
    """slurmctld dies, and starts again with what it had saved."""
    state = submission_env.slurm.layout.folder / "state"
    submission_env.processes.kill(submission_env.processes.find("slurmctld"))
    shutil.rmtree(state)
    state.with_name("saved").rename(state)
    submission_env.slurm.start_controller()


@contextmanager
def no_job_begins(submission_env: SubmissionEnv) -> Iterator[None]:
    """A job that slurmctld forgets may have begun or not when it is killed. A node that
    still has it refuses another job with its id.
    """
    submission_env.slurm.run(
        "scontrol", "update", "NodeName=ALL", "State=DRAIN", "Reason=test"
    )
    try:
        yield
    finally:
        submission_env.slurm.run("scontrol", "update", "NodeName=ALL", "State=RESUME")


def ended(submission_env: SubmissionEnv, number: SlurmId) -> None:
    wait_until(
        lambda: submission_env.field(number, "State") in ("FAILED", "CANCELLED"),
        f"{number} to end",
        60.0,
        0.1,
    )


def test_forgotten__id_is_anothers_before_the_ledger_knows__is_not_the_other_job(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    with no_job_begins(submission_env):
        save(submission_env)
        later, lost = (
            submission_env.new_job(site, SHORT),
            submitted(submission_env, site),
        )
        forget(submission_env)
        number = handed_over(site, later)
        assert number == id_of(site, lost)
        assert seen_as(site, lost) is None
    ended(submission_env, number)
    assert seen_as(site, lost) is None
    site.ledger.record(JobChange(later, Submitted(number)))
    assert (seen_as(site, lost), seen_as(site, later)) == (None, ("FAILED", 7 * 256))


def test_submission_unclear__got_the_id_of_a_forgotten_job__is_found_and_runs_once(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    save(submission_env)
    later, lost = submission_env.new_job(site), submitted(submission_env, site)
    forget(submission_env)
    number = handed_over(site, later)
    assert number == id_of(site, lost)
    assert submission_env.until_queued(site, later).slurm_id == number
    assert submission_env.in_slurm(later) == [number]


@only_ssh(OnlySsh.SCRIPTS)
def test_renamed__before_the_first_look__is_identified_by_its_script(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    gate = submission_env.slurm.users.home(CUSTOMER) / "go"
    gate.unlink(missing_ok=True)
    job = submitted(submission_env, site, GATED)
    number = id_of(site, job)
    wait_until(
        lambda: submission_env.field(number, "State") == "RUNNING",
        "the job to run",
        60.0,
        0.1,
    )
    submission_env.set(number, JobName="other", Comment="none")
    assert seen_as(site, job) == ("RUNNING", 0)
    gate.touch()
    ended(submission_env, number)
    assert seen_as(site, job) == ("FAILED", 5 * 256)


@only_ssh(OnlySsh.SCRIPTS)
@pytest.mark.parametrize("how", ["exit 1", "kill -9 $PPID"])
def test_renamed__scripts_cannot_be_read__this_job_alone_is_unclear(
    submission_env: SubmissionEnv, site: WorkerContext, how: str
) -> None:
    plain, renamed = submitted(submission_env, site), submitted(submission_env, site)
    submission_env.set(id_of(site, renamed), JobName="other")
    fatal = submission_env.processes.folder / "scontrol"
    fatal.write_text(f"#!/bin/sh\n{how}\n")
    fatal.chmod(0o755)
    broken = submission_env.site(
        submission_env.cluster(paths=replace(PATHS, scontrol=str(fatal)))
    )
    try:
        matches = look_at(broken, site.ledger.jobs([plain, renamed]).values())
    finally:
        broken.slurm.cluster.close()
        broken.ledger.holder.close()
    assert matches[plain].record is not None
    assert matches[renamed].unclear == UNREAD


@only_ssh(OnlySsh.SCRIPTS)
def test_forgotten__another_has_its_id_and_name__is_known_by_its_script(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    with no_job_begins(submission_env):
        save(submission_env)
        later, lost = submission_env.new_job(site), submitted(submission_env, site)
        forget(submission_env)
        number = handed_over(site, later)
        site.ledger.record(JobChange(later, Submitted(number)))
        submission_env.set(number, JobName=lost)
    assert number == id_of(site, lost)
    assert seen_as(site, lost) is None
    found = seen_as(site, later)
    assert found is not None
    assert found[0] in LIVE


def test_forgotten__renamed_and_id_reused__accounting_has_it_and_the_other_is_kept(
    submission_env: SubmissionEnv, accounting: WorkerContext
) -> None:
    gate = submission_env.slurm.users.home(CUSTOMER) / "go"
    gate.unlink(missing_ok=True)
    save(submission_env)
    later, lost = (
        submission_env.new_job(accounting),
        submitted(submission_env, accounting, GATED),
    )
    number = id_of(accounting, lost)
    wait_until(
        lambda: submission_env.field(number, "State") == "RUNNING",
        "the job to run",
        60.0,
        0.1,
    )
    submission_env.set(number, JobName="other")
    gate.touch()
    ended(submission_env, number)
    # slurmctld may tell accounting of a short job's end before it tells who submitted
    # it, and is killed below.
    shown = (
        "sacct",
        "--noheader",
        "--parsable2",
        "--allocations",
        f"--jobs={number}",
        "--format=User,State,ExitCode",
    )
    whole = f"{CUSTOMER}|FAILED|5:0"
    wait_until(
        lambda: submission_env.slurm.run(*shown).stdout.strip() == whole,
        "the whole record in accounting",
        60.0,
        0.2,
    )
    forget(submission_env)
    assert handed_over(accounting, later) == number
    assert seen_as(accounting, lost) == ("FAILED", 5 * 256)
    limit, job = (
        submission_env.field(number, "TimeLimit"),
        accounting.ledger.jobs([lost])[lost],
    )
    extend_time_limit(accounting, replace(job, time_limit_min=job.time_limit_min + 9))
    cancel(accounting, job)
    assert submission_env.field(number, "TimeLimit") == limit
    assert submission_env.field(number, "State") in LIVE


def test_requeued__ends_late_on_its_node__accounting_has_both_runs(
    submission_env: SubmissionEnv, accounting: WorkerContext
) -> None:
    job = submitted(
        submission_env, accounting, "#!/bin/bash\ntrap '' TERM\nsleep 600 & wait\n"
    )
    number = id_of(accounting, job)
    wait_until(
        lambda: submission_env.field(number, "TimeUsed") >= "0:02",
        "the job to run",
        60.0,
        0.1,
    )
    submission_env.set(number, Requeue="1")
    start_s = int(
        submission_env.slurm.run(
            *("env", "SLURM_TIME_FORMAT=%s", "squeue", "--noheader"),
            *(f"--jobs={number}", "--Format=StartTime:0"),
        ).stdout
    )
    submission_env.scontrol("requeue", number)
    requeued_s = time.time()

    def last_run() -> JobRecord | None:
        ledger_job = accounting.ledger.jobs([job])[job]
        return look_at(accounting, [ledger_job], {})[job].record

    wait_until(
        lambda: (seen := last_run()) is not None and seen.state == "PENDING",
        "accounting to have the second run",
        60.0,
        0.5,
    )
    seen = last_run()
    assert seen is not None
    assert seen.earlier_runs == 1
    # the seconds until its processes have ended, SLURM's KillWait, are not counted
    assert 2 <= seen.earlier_s <= requeued_s - start_s


def requeue_after_3_s(submission_env: SubmissionEnv, number: SlurmId) -> None:
    wait_until(
        lambda: submission_env.field(number, "TimeUsed") >= "0:03",
        "the job to run",
        60.0,
        0.1,
    )
    submission_env.set(number, Requeue="1")
    submission_env.scontrol("requeue", number)
    wait_until(
        lambda: submission_env.field(number, "State") == "PENDING",
        "the second run",
        60.0,
        0.1,
    )


def test_poll_jobs__hooks_told_an_end_of_each_run__accounting_is_asked_all_the_same(
    submission_env: SubmissionEnv, accounting: WorkerContext
) -> None:
    job = submitted(submission_env, accounting)
    number = id_of(accounting, job)
    requeue_after_3_s(submission_env, number)
    called = """
        INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer, proof)
        VALUES ('here', :job, :number, 6, 1, 0, 'a test', 'proven')
        """
    with submission_env.engine.begin() as connection:
        connection.execute(text(called), {"job": job, "number": number})
    assert submission_env.look(accounting, job).earlier_s == 1
    submission_env.slurm.run("scancel", str(number))
    wait_until(
        lambda: submission_env.look(accounting, job).state is State.ENDED,
        "its end",
        2 * ACCOUNTING_PATIENCE_S,
        0.5,
    )
    ended = accounting.ledger.jobs([job])[job]
    assert ended.outcome is not None
    assert ended.outcome.elapsed_s >= 3


def test_poll_jobs__accounting_is_told_late__its_seconds_are_billed(
    submission_env: SubmissionEnv,
) -> None:
    """slurmctld's queue to slurmdbd is long."""
    told = submission_env.processes.folder / "accounting-is-told"
    sacct = submission_env.processes.folder / "late-sacct"
    sacct.write_text(f'#!/bin/sh\n[ -e {told} ] || exit 0\nexec /usr/bin/sacct "$@"\n')
    sacct.chmod(0o755)
    late = submission_env.site(
        submission_env.cluster(paths=replace(PATHS, sacct=str(sacct)))
    )
    job = submitted(submission_env, late)
    number = id_of(late, job)
    requeue_after_3_s(submission_env, number)
    submission_env.slurm.run("scancel", str(number))
    for _ in range(AWAITED_LOOKS + 1):
        assert submission_env.look(late, job).state is State.QUEUED
    told.touch()
    wait_until(
        lambda: submission_env.look(late, job).state is State.ENDED,
        "its end",
        2 * ACCOUNTING_PATIENCE_S,
        0.5,
    )
    ended = late.ledger.jobs([job])[job]
    assert ended.outcome is not None
    assert ended.outcome.elapsed_s == used_s(submission_env, number)
    late.slurm.cluster.close()
    late.ledger.holder.close()


def used_s(submission_env: SubmissionEnv, number: SlurmId) -> int:
    """The seconds of a job's first run, as accounting has them."""
    first, *_ = submission_env.slurm.run(
        *("sacct", "--duplicates", "--allocations", "--noheader", "--parsable2"),
        *(f"--jobs={number}", "--format=ElapsedRaw"),
    ).stdout.split()
    return int(first)


def test_sacct_submissions_of__customer_without_account__the_others_are_answered(
    submission_env: SubmissionEnv, accounting: WorkerContext
) -> None:
    known, other = submission_env.new_job(accounting), JobId("0x" + "e" * 64)
    users = {known: CUSTOMER, other: Address("0x" + "1" * 40)}
    answers = accounting.slurm.cluster.search.sacct_submissions_of(
        users, dict.fromkeys(users, 60.0)
    )
    assert answers[known] == []
    assert isinstance(answers[other], QuestionRejectedError)
    searches = [ScriptSearch(job, user, 60.0, {}) for job, user in users.items()]
    was_submitted = accounting.slurm.cluster.search.was_submitted(searches, {})
    assert was_submitted == {known: False, other: None}
