"""The connection breaks at any moment, and one job on chain is one job in SLURM: a real
sshd, slurmrestd and SLURM, a bad network. test_rest_submission.py has what only the way
over slurmrestd can meet.
"""

import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from devgrid.cluster.linux_users import admin
from devgrid.faults.network_proxy import Direction, Fault, Proxy
from devgrid.machine import deadline
from devgrid.options import Transport
from devgrid.processes import wait_until
from supervisor_tasks.alarms.alarm_names import Alarm, AlarmName
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.batch import Batch
from supervisor_tasks.jobs.batch_policies import BATCH_POLICIES
from supervisor_tasks.jobs.cancel import cancel
from supervisor_tasks.jobs.effect_timing import SUBMIT_TIMEOUT_S
from supervisor_tasks.jobs.events import (
    CancelRequested,
    ChainStatusObserved,
    ScriptFetched,
    SubmissionNotFound,
    SubmitRejected,
    SubmitStarted,
)
from supervisor_tasks.jobs.extend_time_limit import extend_time_limit
from supervisor_tasks.jobs.model import (
    Address,
    ChainStatus,
    EffectKind,
    JobId,
    SlurmId,
    State,
)
from supervisor_tasks.jobs.monitor import poll_jobs
from supervisor_tasks.jobs.submission_records import listed_records
from supervisor_tasks.jobs.submission_rules import (
    MAX_CUT_OFF_TRIES,
    MAX_UNPARSED_ANSWERS,
)
from supervisor_tasks.jobs.submit import COMMAND_SCRIPT_BYTES
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.ledger.outbox import LEASE_S, EffectAlarmSummary, OpenEffect
from supervisor_tasks.ledger.switch_names import Switch
from supervisor_tasks.monitoring.check_alarms import check_alarms
from supervisor_tasks.slurm.cluster import Cluster, over_ssh
from supervisor_tasks.slurm.interface import CONTROLLER_TIMEOUT_S
from supervisor_tasks.slurm.parsers import CommandAnswer
from supervisor_tasks.slurm.rest_answers import RestAnswer
from supervisor_tasks.slurm.rest_client import RestClient
from supervisor_tasks.slurm.ssh import COMMAND_TIMEOUT_S, CONNECT_TIMEOUT_S, Ssh
from supervisor_tasks.slurm.ssh_command import CLOSE_LATER_S, MAX_OUTPUT_BYTES
from tests.support.effect_batches import carry_out, carry_out_leased, lease
from tests.support.ledger import claimed_again
from tests.support.marks import in_chaos
from tests.support.submission_env import (
    CUSTOMER,
    LIVE,
    PATHS,
    PATIENCE_S,
    SubmissionEnv,
    with_paths,
)
from tests.support.transports import REST, SSH, OnlySsh, only_ssh

# 200 kB: goes in several pieces
LONG = "#!/bin/bash\nsleep 600\n" + "# é \" ' $x `y` \\ !z %s\n" * 8000


@pytest.fixture(scope="module")
def submission_env() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running(rest=True) as submission_env:
        yield submission_env


@pytest.fixture
def proxy(submission_env: SubmissionEnv, transport: str) -> Iterator[Proxy]:
    with Proxy.start(submission_env.server(transport)) as proxy:
        yield proxy


@pytest.fixture
def site(
    submission_env: SubmissionEnv, proxy: Proxy, transport: str
) -> Iterator[WorkerContext]:
    """A worker behind the proxy, with a connection that stands already."""
    site = submission_env.site(submission_env.cluster_over(transport, proxy.address))
    site.slurm.cluster.clock.of(CUSTOMER)
    site.slurm.cluster.clock.of(admin())
    yield site
    site.slurm.cluster.close()
    site.ledger.holder.close()


@pytest.fixture
def new_customer(submission_env: SubmissionEnv) -> Iterator[Address]:
    customer = submission_env.new_customer()
    yield customer
    submission_env.slurm.run("scancel", f"--user={customer}")


@pytest.fixture(autouse=True)
def _room_for_the_next(submission_env: SubmissionEnv) -> Iterator[None]:
    yield
    submission_env.slurm.run("scancel", f"--user={CUSTOMER}")


def assert_submitted_once(
    submission_env: SubmissionEnv, site: WorkerContext, job: JobId, script: str = LONG
) -> int:
    found = submission_env.until_queued(site, job)
    assert submission_env.in_slurm(job) == [found.slurm_id]
    assert found.slurm_id is not None
    interpreter, _, body = script.partition("\n")
    assert (
        submission_env.script(found.slurm_id)
        == f"{interpreter}\n# supervisor job {job}\ntrue\n{body}"
    )
    return found.slurm_id


def test_submission__no_fault__is_made_at_once(
    submission_env: SubmissionEnv, site: WorkerContext, proxy: Proxy
) -> None:
    job = submission_env.new_job(site, LONG)
    assert submission_env.carry_out(site, job).state is State.QUEUED
    assert submission_env.journal(job) == [
        "Claimed",
        "ScriptFetched",
        "SubmitStarted",
        "Submitted",
    ]
    assert_submitted_once(submission_env, site, job)


SEEDED = random.Random(22_05)
# slurmrestd 22.05 refuses a request whose headers come in two pieces
IN_THE_SCRIPT = 100_000
THERE = [0, 900, 100_000, 199_000]
BACK = [0, 150]
TO_SERVER = [60, 1500, SEEDED.randrange(200_000), SEEDED.randrange(200_000)]
MORE = [(Direction.TO_SERVER, at) for at in TO_SERVER]
MORE += [(Direction.TO_CLIENT, at) for at in (40, 250, SEEDED.randrange(300))]


@pytest.mark.parametrize(
    ("direction", "at"),
    [
        *((Direction.TO_SERVER, at) for at in THERE),
        *((Direction.TO_CLIENT, at) for at in BACK),
        *(in_chaos(*cut) for cut in MORE),
    ],
)
def test_submission__connection_cut_at_a_byte__is_one_job_with_its_whole_script(
    submission_env: SubmissionEnv,
    site: WorkerContext,
    proxy: Proxy,
    direction: Direction,
    at: int,
) -> None:
    job = submission_env.new_job(site, LONG)
    submission_env.inject_in_submission(
        site.slurm.cluster, proxy, direction, at, Fault.CUT
    )
    submission_env.carry_out(site, job)
    assert_submitted_once(submission_env, site, job)


@only_ssh(OnlySsh.LOGIN_NODE)
def test_submission__no_time_left_in_the_command__is_due_at_once_without_failing(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    """SLURM took jobs of the same command: it works, and the rest is no failure."""
    jobs = [submission_env.new_job(site) for _ in range(3)]
    # the second call hangs; the customer runs it
    calls = submission_env.processes.folder / "sbatch-calls"
    calls.mkdir()
    calls.chmod(0o777)
    sbatch = submission_env.processes.folder / "hanging-sbatch"
    sbatch.write_text(
        f'#!/bin/sh\nmkdir {calls}/first || {{ trap "" TERM; while :; do sleep 0.1; done; }}\n'
        'exec /usr/bin/sbatch "$@"\n'
    )
    sbatch.chmod(0o755)
    cluster = with_paths(
        over_ssh(site.slurm.cluster), replace(PATHS, sbatch=str(sbatch))
    )
    slow = submission_env.site(cluster)
    carry_out(slow, *(submission_env.effect_id(job) for job in jobs))
    slow.ledger.holder.close()
    by_state = {job.state: job_id for job_id, job in site.ledger.jobs(jobs).items()}
    assert by_state.keys() == {State.QUEUED, State.SUBMITTING, State.READY}
    with submission_env.engine.connect() as connection:
        row = connection.execute(
            text(
                "SELECT failing_since, last_error, due_at <= now() AS due"
                " FROM effects WHERE id = :id"
            ),
            {"id": submission_env.effect_id(by_state[State.READY])},
        ).one()
    assert (row.failing_since, row.last_error, row.due) == (None, None, True)
    for job in jobs:
        found = submission_env.until_queued(site, job)
        assert submission_env.in_slurm(job) == [found.slurm_id]


def slurm_ids(submission_env: SubmissionEnv) -> set[int]:
    shown = submission_env.slurm.run(
        "squeue", "--noheader", "--states=all", "--format=%A"
    ).stdout
    return {int(slurm_id) for slurm_id in shown.split()}


def by_script(
    submission_env: SubmissionEnv, jobs: Sequence[JobId], slurm_ids: set[int]
) -> dict[JobId, list[int]]:
    """Which of these SLURM jobs are each job's, by their scripts."""
    found = {job: list[int]() for job in jobs}
    scripts = submission_env.scripts()
    for slurm_id in sorted(slurm_ids):
        script = scripts[slurm_id]
        for job in jobs:
            if f"# supervisor job {job}\n" in script:
                found[job].append(slurm_id)
    return found


BYTES_OF_A_JOB = {
    (SSH, Direction.TO_SERVER): 700,
    (SSH, Direction.TO_CLIENT): 100,
    (REST, Direction.TO_SERVER): 1300,
    (REST, Direction.TO_CLIENT): 400,
}


@pytest.mark.parametrize("number", [in_chaos(1), 2, 50])
@pytest.mark.parametrize(
    ("direction", "share"),
    [(Direction.TO_SERVER, 0.6), (Direction.TO_CLIENT, 0.5)],
    ids=["on its way", "between answers"],
)
def test_submission__batch_of_one_customer_is_cut__each_job_is_submitted_once(
    submission_env: SubmissionEnv,
    site: WorkerContext,
    proxy: Proxy,
    transport: Transport,
    number: int,
    direction: Direction,
    share: float,
) -> None:
    """Those without an answer, and they alone, are looked for and submitted again."""
    jobs, others = (
        [submission_env.new_job(site) for _ in range(number)],
        slurm_ids(submission_env),
    )
    at = int(share * number * BYTES_OF_A_JOB[transport, direction])
    submission_env.inject_in_submission(
        site.slurm.cluster, proxy, direction, at, Fault.CUT
    )
    carry_out(site, *(submission_env.effect_id(job) for job in jobs))
    known = site.ledger.jobs(jobs)
    assert {job.state for job in known.values()} <= {
        State.QUEUED,
        State.SUBMITTING,
        State.READY,
    }
    started = {job: submission_env.journal(job).count("SubmitStarted") for job in jobs}

    def all_queued() -> bool:
        left = [
            job
            for job, now in site.ledger.jobs(jobs).items()
            if now.state is not State.QUEUED
        ]
        for job in left:
            submission_env.a_minute_passes(job)
        carry_out(site, *(submission_env.effect_id(job) for job in left))
        return not left

    wait_until(all_queued, "all jobs to be queued", PATIENCE_S, 0.1)
    answered = [job for job in jobs if known[job].state is State.QUEUED]
    assert all(
        submission_env.journal(job).count("SubmitStarted") == started[job] == 1
        for job in answered
    )
    in_slurm = by_script(submission_env, jobs, slurm_ids(submission_env) - others)
    assert in_slurm == {
        job: [found.slurm_id] for job, found in site.ledger.jobs(jobs).items()
    }


def test_submission__large_scripts_of_one_customer__go_in_several_commands(
    submission_env: SubmissionEnv, site: WorkerContext, new_customer: Address
) -> None:
    large = f"{LONG}# {'#' * (COMMAND_SCRIPT_BYTES // 2)}\n"
    scripts = [large, large, LONG, large]
    jobs = [submission_env.new_job(site, script, new_customer) for script in scripts]

    def states() -> list[State]:
        return [job.state for job in site.ledger.jobs(jobs).values()]

    carry_out(site, *(submission_env.effect_id(job) for job in jobs))
    assert sorted(states()).count(State.READY) >= 2, "the first command is full"
    batch = Batch(site, EffectKind.SUBMIT)

    def are_submitted() -> bool:
        batch.run(lambda: True)
        return set(states()) == {State.QUEUED}

    try:
        wait_until(are_submitted, "the others to be submitted", PATIENCE_S, 0.1)
    finally:
        batch.close()
    with submission_env.engine.connect() as connection:
        query = text(
            "SELECT count(*) FROM events WHERE name = 'SubmitStarted' AND job_id = ANY(:jobs)"
            " GROUP BY xmin::text"  # by transaction
        )
        begun_together = list(connection.scalars(query, {"jobs": jobs}))
    assert sorted(begun_together) == [1, 1, 2]
    for job, script in zip(jobs, scripts, strict=True):
        assert_submitted_once(submission_env, site, job, script)


def test_submission__network_is_slow__succeeds_at_the_first_try(
    submission_env: SubmissionEnv, site: WorkerContext, proxy: Proxy
) -> None:
    proxy.delay_s = 0.2
    job = submission_env.new_job(site, LONG)
    assert submission_env.carry_out(site, job).state is State.QUEUED
    assert_submitted_once(submission_env, site, job)


# --- what sbatch can end with ---------------------------------------------------------

TOOK_IT = '/usr/bin/sbatch "$@" >/dev/null'
TIMED_OUT = 'echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; exit 1'
SUBMISSIONS = {
    "warns": 'echo "sbatch: warning: can\'t honor --ntasks" >&2; exec /usr/bin/sbatch "$@"',
    "fails after slurmctld took the job": f"{TOOK_IT}; {TIMED_OUT}",
    "is killed": f"{TOOK_IT}; kill -9 $$",
    "prints no id": f"{TOOK_IT}; exit 0",
    "never asked slurmctld": f"cat >/dev/null; {TIMED_OUT}",
}


def with_sbatch(submission_env: SubmissionEnv, text: str) -> Cluster:
    file = submission_env.processes.folder / "sbatch"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return submission_env.cluster(paths=replace(PATHS, sbatch=str(file)))


@only_ssh(OnlySsh.LOGIN_NODE)
@pytest.mark.parametrize("text", SUBMISSIONS.values(), ids=SUBMISSIONS)
def test_sbatch__warns_fails_or_is_killed__one_job_is_submitted(
    submission_env: SubmissionEnv, site: WorkerContext, text: str
) -> None:
    wrapped = submission_env.site(with_sbatch(submission_env, text))
    job = submission_env.new_job(site)
    submission_env.carry_out(wrapped, job)
    wrapped.ledger.holder.close()
    assert_submitted_once(submission_env, site, job, "#!/bin/bash\nsleep 600\n")


@only_ssh(OnlySsh.LOGIN_NODE)
def test_sbatch__missing__nothing_is_executed_and_it_is_tried_again(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    broken = submission_env.site(
        submission_env.cluster(paths=replace(PATHS, sbatch="/usr/bin/no-such-sbatch"))
    )
    job = submission_env.new_job(site)
    assert submission_env.carry_out(broken, job).state is State.READY
    broken.ledger.holder.close()
    assert submission_env.journal(job)[-2:] == ["SubmitStarted", "SubmitNotExecuted"]
    submission_env.a_minute_passes(job)
    assert_submitted_once(submission_env, site, job, "#!/bin/bash\nsleep 600\n")


@only_ssh(OnlySsh.LOGIN_NODE)
def test_spank_plugin_that_cannot_be_loaded__job_waits__operator_is_called(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    plugstack, job = (
        submission_env.slurm.layout.folder / "plugstack.conf",
        submission_env.new_job(site),
    )
    plugstack.write_text(
        f"required {submission_env.processes.folder}/being-upgraded.so\n"
    )
    raised = list[bool]()
    try:
        for _ in range(6):  # minutes
            assert submission_env.carry_out(site, job).state is State.READY
            check_alarms(site)
            raised.append(overdue(site) is not None)
            submission_env.a_minute_passes(job)
    finally:
        plugstack.unlink()
    assert (raised[:4], raised[5]) == ([False] * 4, True)
    alarm = overdue(site)
    assert alarm is not None
    assert alarm.details["effects"] == 1
    assert "Failed to initialize plugin stack" in str(alarm.details["last_error"])
    assert "SubmitOutcomeUnknown" not in submission_env.journal(job)
    assert_submitted_once(submission_env, site, job, "#!/bin/bash\nsleep 600\n")
    check_alarms(site)
    assert overdue(site) is None


def overdue(site: WorkerContext) -> Alarm | None:
    """The alarm that effects have failed for five minutes, if it is raised."""
    found = (
        alarm
        for alarm in site.ledger.alarms.all()
        if alarm.name == AlarmName.EFFECT_OVERDUE
    )
    return next(found, None)


# --- between sbatch and slurmctld -----------------------------------------------------


@pytest.fixture
def slurmctlds_network(submission_env: SubmissionEnv) -> Iterator[Proxy]:
    """In front of slurmctld, for one sbatch alone."""
    with Proxy.start(
        f"127.0.0.1:{submission_env.slurm.layout.controller_port}"
    ) as network:
        yield network


def behind(submission_env: SubmissionEnv, network: Proxy) -> WorkerContext:
    """A worker whose sbatch reaches slurmctld that way."""
    own, port = (
        submission_env.slurm.layout.folder / "slurm.conf",
        network.address.rpartition(":")[2],
    )
    conf = submission_env.processes.folder / "behind-a-proxy.conf"
    conf.write_text(
        own.read_text().replace(
            f"Port={submission_env.slurm.layout.controller_port}\n", f"Port={port}\n"
        )
    )
    return submission_env.site(
        with_sbatch(submission_env, f'SLURM_CONF={conf} exec /usr/bin/sbatch "$@"')
    )


@only_ssh(OnlySsh.LOGIN_NODE)
@pytest.mark.parametrize("fault", [Fault.CUT, Fault.END, Fault.GARBLE_TO_CLIENT])
@pytest.mark.parametrize("at", [0, in_chaos(4), 20, in_chaos(100)])
def test_sbatch__slurmctlds_answer_is_cut_or_garbled__gives_one_job_and_no_refusal(
    submission_env: SubmissionEnv,
    site: WorkerContext,
    slurmctlds_network: Proxy,
    at: int,
    fault: Fault,
) -> None:
    job, wrapped = (
        submission_env.new_job(site),
        behind(submission_env, slurmctlds_network),
    )
    slurmctlds_network.inject(Direction.TO_CLIENT, at, fault, on_arrival=True)
    submission_env.carry_out(wrapped, job)
    wrapped.slurm.cluster.close()
    wrapped.ledger.holder.close()
    assert slurmctlds_network.passed[Direction.TO_CLIENT] >= at
    assert_submitted_once(submission_env, site, job, "#!/bin/bash\nsleep 600\n")
    assert "SubmitRejected" not in submission_env.journal(job)


STRANGE = 'echo "sbatch: error: Batch job submission failed: Something new" >&2; exit 1'


@only_ssh(OnlySsh.LOGIN_NODE)
def test_sbatch__strange_answer_though_slurm_took_the_job__is_no_refusal(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    wrapped, job = (
        submission_env.site(with_sbatch(submission_env, f"{TOOK_IT}; {STRANGE}")),
        submission_env.new_job(site),
    )
    assert submission_env.carry_out(wrapped, job).state is State.SUBMITTING
    wrapped.ledger.holder.close()
    assert_submitted_once(submission_env, site, job, "#!/bin/bash\nsleep 600\n")


@only_ssh(OnlySsh.LOGIN_NODE)
def test_strange_answers_again_and_again__and_slurm_has_nothing__are_a_refusal(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    wrapped, job = (
        submission_env.site(with_sbatch(submission_env, f"cat >/dev/null; {STRANGE}")),
        submission_env.new_job(site),
    )

    def state() -> State:
        submission_env.a_minute_passes(job)
        return submission_env.carry_out(wrapped, job).state

    wait_until(lambda: state() is State.REFUSED, "the job to be refused", PATIENCE_S)
    wrapped.ledger.holder.close()
    assert "Something new" in site.ledger.jobs([job])[job].status_message
    assert submission_env.journal(job).count("SubmitStarted") == MAX_UNPARSED_ANSWERS
    assert submission_env.in_slurm(job) == []


def give_back_and_claim_again(site: WorkerContext, job: JobId) -> None:
    """A job that SLURM has, and that the ledger believed to be rejected."""
    again = claimed_again(site.ledger.jobs([job])[job], 901)
    pending = ChainStatusObserved(ChainStatus.PENDING, (900, 0))
    fetched = ScriptFetched(LONG, "")
    site.ledger.record(
        *(
            JobChange(job, event)
            for event in (SubmitRejected("no"), pending, again, fetched)
        )
    )


@only_ssh(OnlySsh.LOGIN_NODE)
def test_submission__another_of_the_group_is_searched_for__goes_first(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    searched, slurm_id = unclear(submission_env, site, LONG)
    give_back_and_claim_again(site, searched)
    submission_env.a_minute_passes(searched)
    new = submission_env.new_job(site)
    goes_on = submission_env.processes.folder / "squeue-goes-on"
    squeue = submission_env.processes.folder / "waiting-squeue"
    squeue.write_text(
        f"#!/bin/sh\nuntil [ -e {goes_on} ]; do sleep 0.1; done\n"
        'exec /usr/bin/squeue "$@"\n'
    )
    squeue.chmod(0o755)
    paths = replace(PATHS, squeue=str(squeue))
    waiting = submission_env.site(with_paths(over_ssh(site.slurm.cluster), paths))
    both = map(submission_env.effect_id, (searched, new))
    leased = lease(waiting.ledger, *both)
    with submission_env.engine.begin() as connection:
        ends = text(
            "UPDATE effects SET lease_until = now() + interval '1 minute' WHERE lease IS NOT NULL"
        )
        connection.execute(ends)

    def lease_left_s() -> float:
        """Of the job that is searched for."""
        left = text(
            "SELECT EXTRACT(EPOCH FROM lease_until - now())::float8 FROM effects WHERE id = :id"
        )
        with submission_env.engine.connect() as connection:
            left_s = connection.scalar(left, {"id": submission_env.effect_id(searched)})
        assert left_s is not None, "its search has ended before"
        return float(left_s)

    with ThreadPoolExecutor(1) as pool:
        carried_out = pool.submit(carry_out_leased, waiting, leased)
        try:
            wait_until(
                lambda: site.ledger.jobs([new])[new].state is State.QUEUED,
                "the new job to be queued",
                PATIENCE_S,
            )
            wait_until(
                lambda: lease_left_s() > 60.0, "its lease to be extended", PATIENCE_S
            )
        finally:
            goes_on.touch()
        carried_out.result()
    waiting.ledger.holder.close()
    assert assert_submitted_once(submission_env, site, searched) == slurm_id


def test_job__given_back_while_slurm_has_it__is_not_submitted_again(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job, slurm_id = unclear(submission_env, site, LONG)
    give_back_and_claim_again(site, job)
    # what was begun may still arrive
    assert submission_env.carry_out(site, job).state is State.READY
    submission_env.a_minute_passes(job)
    assert submission_env.carry_out(site, job).slurm_id == slurm_id
    assert submission_env.journal(job)[-1] == "ExistingSlurmJobAdopted"
    assert_submitted_once(submission_env, site, job)


# --- what stands in the customer's environment ----------------------------------------

BASHRC = """
export SBATCH_GPUS=2 SBATCH_EXCLUSIVE=user SBATCH_ARRAY_INX=0-9 SBATCH_OVERCOMMIT=1 SBATCH_MEM_PER_NODE=9000 \\
    SBATCH_JOB_NAME=mine SBATCH_TIMELIMIT=999 SBATCH_REQUEUE=1 SBATCH_WAIT=1 SBATCH_EXPORT=NONE SBATCH_GRES=gpu:2 \\
    SLURM_NTASKS_PER_NODE=1 SLURM_HINT=nomultithread SLURM_NTASKS_PER_GPU=1
export OF_THE_SITE="module paths"
for name in awk cat date echo env printf read test timeout wc unset; do
    eval "$name() { /usr/bin/touch \"$HOME/$name-was-called\"; command $name \"\\$@\"; }"
    export -f "$name"
    builtin printf '#!/bin/sh\\n/usr/bin/touch "%s"\\n' "$HOME/$name-was-called" >"$HOME/bin/$name"
done
/usr/bin/chmod 755 "$HOME/bin/"*
PATH=$HOME/bin:$PATH
"""


@pytest.fixture
def with_bashrc(submission_env: SubmissionEnv) -> Iterator[WorkerContext]:
    """A worker whose connection leads to a shell that reads the customer's start-up
    file.
    """
    home = submission_env.slurm.users.home(CUSTOMER)
    (home / "bin").mkdir(mode=0o777)
    (home / "bin").chmod(0o777)
    (home / ".bashrc").write_text(BASHRC)
    submission_env.slurm.users.set_shell(CUSTOMER, "/bin/bash")
    site = submission_env.site(submission_env.cluster())
    yield site
    site.slurm.cluster.close()
    site.ledger.holder.close()
    submission_env.slurm.users.set_shell(CUSTOMER, "/bin/sh")
    (home / ".bashrc").unlink()


@only_ssh(OnlySsh.LOGIN_NODE)
def test_start_up_file__sets_options_of_sbatch__changes_nothing_that_was_paid_for(
    submission_env: SubmissionEnv, site: WorkerContext, with_bashrc: WorkerContext
) -> None:
    usual, job = (
        submission_env.new_job(site),
        submission_env.new_job(site, "#!/bin/bash\n/usr/bin/env\nsleep 600\n"),
    )
    usual_id = submission_env.carry_out(site, usual).slurm_id
    slurm_id = submission_env.carry_out(with_bashrc, job).slurm_id
    assert usual_id is not None
    assert slurm_id is not None
    log = submission_env.slurm.users.home(CUSTOMER) / f"{job}.log"
    wait_until(
        lambda: log.exists() and "OF_THE_SITE=module paths" in log.read_text(),
        "the job's log",
        PATIENCE_S,
    )
    for one in (usual_id, slurm_id):  # what SLURM has allocated shows only then
        wait_until(
            lambda one=one: submission_env.field(one, "State") == "RUNNING",  # type: ignore[misc]
            f"{one} to run",
            PATIENCE_S,
        )
    asked = "ArrayTaskID NumCPUs NumNodes NumTasks tres-per-job tres-per-node MinMemory OverSubscribe TimeLimit Requeue"
    for name in (*asked.split(), "NTPerNode", "tres-alloc"):
        assert submission_env.field(slurm_id, name) == submission_env.field(
            usual_id, name
        ), name
    assert submission_env.in_slurm(job) == [slurm_id]
    assert not list(submission_env.slurm.users.home(CUSTOMER).glob("*-was-called"))


@pytest.fixture
def start_up(submission_env: SubmissionEnv) -> Iterator[Path]:
    """The file that the shell of the customer's next connection reads."""
    file = submission_env.slurm.users.home(CUSTOMER) / ".bashrc"
    file.touch()
    submission_env.slurm.users.set_shell(CUSTOMER, "/bin/bash")
    yield file
    submission_env.slurm.users.set_shell(CUSTOMER, "/bin/sh")
    file.unlink()


@only_ssh(OnlySsh.LOGIN_NODE)
def test_start_up_file__chooses_another_slurm__the_admins_is_asked(
    submission_env: SubmissionEnv, site: WorkerContext, start_up: Path
) -> None:
    start_up.write_text("export SLURM_CONF=/home/of/another/cluster/slurm.conf\n")
    direct, job = (
        submission_env.site(submission_env.cluster()),
        submission_env.new_job(site, "#!/bin/bash\n/usr/bin/env\nsleep 600\n"),
    )
    assert submission_env.carry_out(direct, job).state is State.QUEUED
    log = submission_env.slurm.users.home(CUSTOMER) / f"{job}.log"
    own = f"SLURM_CONF={submission_env.slurm.layout.folder / 'slurm.conf'}\n"
    wait_until(
        lambda: log.exists() and own in log.read_text(), "the job's log", PATIENCE_S
    )
    assert submission_env.journal(job).count("SubmitStarted") == 1
    direct.slurm.cluster.close()
    direct.ledger.holder.close()


def others_are_taken(submission_env: SubmissionEnv, site: WorkerContext) -> None:
    """Another customer's job."""
    other = Address("0x" + "3" * 40)
    submission_env.slurm.users.add(other)
    job = submission_env.new_job(site, customer=other)
    wait_until(
        lambda: submission_env.carry_out(site, job).state is State.QUEUED,
        "another's job to be queued",
        PATIENCE_S,
    )
    submission_env.slurm.run("scancel", f"--user={other}")


def next_submission(
    submission_env: SubmissionEnv, site: WorkerContext, job: JobId
) -> str:
    """Until one more was cut off and looked for in vain, or the effect is parked; why
    it is.
    """
    begun, why = submission_env.journal(job).count("SubmitStarted"), ""

    def over() -> bool:
        nonlocal why
        submission_env.a_minute_passes(job)
        why = submission_env.parked(site, job)
        again = submission_env.journal(job).count("SubmitStarted") > begun
        return bool(why) or (
            again and site.ledger.jobs([job])[job].state is State.READY
        )

    wait_until(over, "a submission to be over", PATIENCE_S, 0.0)
    return why


def test_submission__cut_off_again_and_again__is_parked_once_others_get_through(
    submission_env: SubmissionEnv, start_up: Path
) -> None:
    """A SLURM_JWT that slurmctld does not take: sbatch gets no answer each time."""
    start_up.write_text("export SLURM_JWT=expired\n")
    site = submission_env.site(submission_env.cluster())
    job = submission_env.new_job(site)
    # as no other customer gets through, SLURM may be away, and for long
    for _ in range(MAX_CUT_OFF_TRIES + 1):
        assert next_submission(submission_env, site, job) == ""
    summary = site.ledger.effects.alarm_summary()
    assert (summary.parked, summary.overdue) == (0, 1)
    assert summary.longest_s > 300.0
    others_are_taken(submission_env, site)
    assert f"was cut off {MAX_CUT_OFF_TRIES + 2} times" in next_submission(
        submission_env, site, job
    )
    assert site.ledger.effects.alarm_summary().parked == 1
    start_up.write_text("")
    site.slurm.cluster.close()
    assert [again.job_id for again in site.ledger.effects.retry(job_id=job)] == [job]
    assert_submitted_once(submission_env, site, job, "#!/bin/bash\nsleep 600\n")
    assert site.ledger.effects.alarm_summary() == EffectAlarmSummary(0, 0, 0, 0.0, None)
    site.ledger.holder.close()


HANGING = Address("0x" + "4" * 40)
THREADS = 16  # of a worker


@contextmanager
def at_work(site: WorkerContext) -> Iterator[None]:
    """A worker, which does what is due as messages and beat tell."""
    stop = threading.Event()
    batches = {kind: Batch(site, kind) for kind in BATCH_POLICIES}
    with ThreadPoolExecutor(THREADS) as threads, ThreadPoolExecutor(1) as clock:

        def begin(effects: Sequence[OpenEffect]) -> None:
            for kind in {effect.kind for effect in effects}:
                if kind is EffectKind.POLL_SLURM:
                    threads.submit(poll_jobs, site)
                elif kind in batches:
                    threads.submit(batches[kind].run, lambda: not stop.is_set())

        def dispatch_again() -> None:
            while not stop.wait(0.1):
                begin(site.ledger.effects.due_without_message())

        site.ledger.effects.dispatch_effects = begin
        dispatching = clock.submit(dispatch_again)
        try:
            yield
        finally:
            site.ledger.effects.dispatch_effects = lambda _: None
            stop.set()
            dispatching.result()
            threads.shutdown(cancel_futures=True)


def test_submission__one_customers_login_hangs__anothers_job_is_submitted_and_seen(
    submission_env: SubmissionEnv,
) -> None:
    submission_env.slurm.users.add(HANGING)
    home = submission_env.slurm.users.home(HANGING)
    (home / "hangs").touch()
    (home / ".bashrc").write_text('while test -e "$HOME/hangs"; do sleep 0.1; done\n')
    submission_env.slurm.users.set_shell(HANGING, "/bin/bash")
    site = submission_env.site(submission_env.cluster())
    hang = [submission_env.new_job(site, customer=HANGING) for _ in range(THREADS + 4)]
    tried = text(
        "SELECT count(*) FROM effects WHERE job_id = ANY(:jobs) AND attempts > 0"
    )

    def all_tried() -> bool:
        with submission_env.engine.connect() as connection:
            return int(connection.scalar(tried, {"jobs": hang}) or 0) >= THREADS

    def state(job: JobId) -> State:
        return site.ledger.jobs([job])[job].state

    with at_work(site):
        wait_until(
            all_tried, "all threads to have met the login that hangs", PATIENCE_S
        )
        job = submission_env.new_job(site)
        wait_until(
            lambda: state(job) is State.RUNNING,
            "another customer's job to be seen running",
            PATIENCE_S,
        )
        assert {state(one) for one in hang} == {State.READY}
        (home / "hangs").unlink()
    site.ledger.record(*(JobChange(one, CancelRequested()) for one in hang))
    site.slurm.cluster.close()
    site.ledger.holder.close()


# --- what its owner calls a job -------------------------------------------------------


def unclear(
    submission_env: SubmissionEnv, site: WorkerContext, script: str, options: str = ""
) -> tuple[JobId, int]:
    """A job that SLURM has, and that the supervisor got no answer about."""
    text = f'/usr/bin/sbatch {options} "$@" >/dev/null; {TIMED_OUT}'
    wrapped = submission_env.site(with_sbatch(submission_env, text))
    job = submission_env.new_job(site, script)
    assert submission_env.carry_out(wrapped, job).state is State.SUBMITTING
    wrapped.ledger.holder.close()
    (slurm_id,) = submission_env.in_slurm(job)
    return job, slurm_id


def test_search__submissions_held__finds_what_slurm_has_and_concludes_nothing_else(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job, slurm_id = unclear(submission_env, site, LONG)
    unknown = submission_env.new_job(site)
    site.ledger.record(JobChange(unknown, SubmitStarted(60)))
    site.ledger.switches.set(Switch.SUBMISSIONS_PAUSED, "a test")
    try:
        submission_env.a_minute_passes(job)  # else no look is due yet
        assert submission_env.carry_out(site, job).slurm_id == slurm_id
        for _ in range(2):
            submission_env.a_minute_passes(unknown)
            assert submission_env.carry_out(site, unknown).poll_count == 0
        assert "SubmissionNotFound" not in submission_env.journal(unknown)
    finally:
        site.ledger.switches.unset(Switch.SUBMISSIONS_PAUSED)
    submission_env.a_minute_passes(unknown)
    assert_submitted_once(submission_env, site, unknown, "#!/bin/bash\nsleep 600\n")


@only_ssh(OnlySsh.SCRIPTS)
def test_search__job_renames_itself__finds_it_all_the_same(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job, slurm_id = unclear(
        submission_env,
        site,
        "#!/bin/bash\nscontrol update JobId=$SLURM_JOB_ID Name=another\nsleep 600\n",
    )
    wait_until(
        lambda: submission_env.field(slurm_id, "Name") == "another",
        "the job to be renamed",
        PATIENCE_S,
    )
    found = submission_env.until_queued(site, job)
    assert found.slurm_id == slurm_id
    assert submission_env.in_slurm(job) == [slurm_id]


@only_ssh(OnlySsh.SCRIPTS)
def test_search__jobs_name_and_output_were_changed__knows_it_by_its_script(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job, slurm_id = unclear(submission_env, site, LONG, "--begin=now+1hour")
    submission_env.set(
        slurm_id, Name="another\nline", StdOut="elsewhere.log", Comment="none of yours"
    )
    found = submission_env.until_queued(site, job)
    assert found.slurm_id == slurm_id
    assert submission_env.in_slurm(job) == [slurm_id]


@only_ssh(OnlySsh.SCRIPTS)
def test_search__two_jobs_with_each_others_names__takes_neither_for_the_other(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job, slurm_id = unclear(submission_env, site, LONG, "--begin=now+1hour")
    other, other_id = unclear(submission_env, site, LONG, "--begin=now+1hour")
    submission_env.set(slurm_id, Name=other, StdOut=f"{other}.log")
    submission_env.set(other_id, Name=job, StdOut=f"{job}.log")
    assert submission_env.until_queued(site, job).slurm_id == slurm_id
    assert submission_env.until_queued(site, other).slurm_id == other_id


def test_search__two_found__the_oldest_is_adopted_and_the_other_cancelled(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    twice = 'f=$(mktemp); cat >"$f"; /usr/bin/sbatch "$@" <"$f" >&2; /usr/bin/sbatch "$@" <"$f" >&2; rm "$f"'
    text = f"{twice}; {TIMED_OUT}"
    wrapped = submission_env.site(with_sbatch(submission_env, text))
    job = submission_env.new_job(site)
    submission_env.carry_out(wrapped, job)
    wrapped.ledger.holder.close()
    first, second = sorted(submission_env.in_slurm(job))
    assert submission_env.until_queued(site, job).slurm_id == first
    wait_until(
        lambda: submission_env.field(second, "State") == "CANCELLED",
        "the second to be cancelled",
        PATIENCE_S,
    )
    assert submission_env.field(first, "State") in LIVE


@only_ssh(OnlySsh.LOGIN_NODE)
def test_search__finds_nothing_however_slow_slurm_is__is_over_before_its_lease(
    submission_env: SubmissionEnv, site: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command may take as long as its time-out: a slow one is not parked."""
    sacct = submission_env.processes.folder / "sacct"
    sacct.write_text("#!/bin/sh\n")  # knows nothing
    sacct.chmod(0o755)
    cluster = over_ssh(site.slurm.cluster)
    searching = submission_env.site(
        with_paths(cluster, replace(PATHS, sacct=str(sacct)))
    )
    job = submission_env.new_job(searching)
    searching.ledger.record(
        JobChange(job, SubmitStarted(10)), JobChange(job, SubmissionNotFound())
    )
    suspect = submission_env.new_job(searching, LONG)
    slurm_id = submission_env.carry_out(searching, suspect).slurm_id
    assert slurm_id is not None
    submission_env.set(slurm_id, Name=job)
    # no other of ours, as far as the ledger knows
    with submission_env.engine.begin() as connection:
        connection.execute(
            text("UPDATE jobs SET slurm_id = NULL WHERE job_id = :job"),
            {"job": suspect},
        )
    submission_env.a_minute_passes(job)
    asked, run = list[float](), Ssh.run

    def timed(
        ssh: Ssh,
        user: str,
        argv: Sequence[str],
        stdin: bytes = b"",
        timeout_s: float = COMMAND_TIMEOUT_S,
        max_output: int = MAX_OUTPUT_BYTES,
    ) -> CommandAnswer:
        asked.append(timeout_s + CLOSE_LATER_S)
        return run(ssh, user, argv, stdin, timeout_s, max_output)

    monkeypatch.setattr(Ssh, "run", timed)
    assert submission_env.carry_out(searching, job).state is State.READY
    searching.ledger.holder.close()
    # the list, the script of what calls itself ours, those of all others, accounting,
    # the log
    assert len(asked) >= 5
    # which SLURM it is, two clocks, and the list once more
    besides_s = CONTROLLER_TIMEOUT_S + 3 * COMMAND_TIMEOUT_S
    logins_s = 2 * 3 * CONNECT_TIMEOUT_S
    assert logins_s + besides_s + sum(asked) < LEASE_S


@pytest.mark.parametrize("second", [False, True], ids=["first search", "second search"])
def test_search__many_jobs_of_a_customer__takes_as_many_commands_as_for_one(
    submission_env: SubmissionEnv,
    site: WorkerContext,
    new_customer: Address,
    monkeypatch: pytest.MonkeyPatch,
    second: bool,
) -> None:
    asked, run, request = list[object](), Ssh.run, RestClient.request

    def counted(ssh: Ssh, *words: Any, **named: Any) -> CommandAnswer:
        asked.append(words)
        return run(ssh, *words, **named)

    def requested(client: RestClient, *words: Any, **named: Any) -> RestAnswer:
        asked.append(words)
        return request(client, *words, **named)

    monkeypatch.setattr(Ssh, "run", counted)
    monkeypatch.setattr(RestClient, "request", requested)
    # the site's clock is not read again meanwhile
    for name in ("ssh.CLOCK_TRUSTED_S", "rest_clock.CLOCK_KNOWN_FOR_S"):
        monkeypatch.setattr(f"supervisor_tasks.slurm.{name}", 3600.0)
    counts = list[int]()
    for number in (1, 1, 20):  # the first one logs in
        jobs = [
            submission_env.new_job(site, customer=new_customer) for _ in range(number)
        ]
        for event in (
            (SubmitStarted(10), SubmissionNotFound())
            if second
            else (SubmitStarted(10),)
        ):
            site.ledger.record(*(JobChange(job, event) for job in jobs))
        for job in jobs:
            submission_env.a_minute_passes(job)
        asked.clear()
        carry_out(site, *(submission_env.effect_id(job) for job in jobs))
        assert {submission_env.journal(job)[-1] for job in jobs} == {
            "SubmissionNotFound"
        }
        counts.append(len(asked))
    assert counts[1] == counts[2] > 0


def test_list_all__hostile_names__forge_nothing(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    names = [
        "a\n7|b",
        "\n".join(["9|x|RUNNING|0:00|0|None|1|1"] * 3),
        "n" * 1000,
        "é ü 日本 \x01\t'\";$(id)",
        "%s|%n",
    ]
    names.append('","job_id":7,"x":"')
    ids = []
    for name in names:
        job = submission_env.new_job(site)
        ids.append(submission_env.carry_out(site, job).slurm_id)
        submission_env.set(ids[-1] or 0, Name=name, Comment=name)
    before = slurm_ids(submission_env)
    listed = site.slurm.cluster.queries.list_all()
    # slurmctld may forget jobs that ended long ago between two questions; it gets no
    # new one.
    assert slurm_ids(submission_env) <= listed.keys() <= before
    assert [listed[slurm_id].name for slurm_id in ids if slurm_id] == names
    assert [listed[slurm_id].comment for slurm_id in ids if slurm_id] == names
    again = site.slurm.cluster.queries.list_all(CUSTOMER)
    theirs = {slurm_id: job for slurm_id, job in listed.items() if job.user == CUSTOMER}
    assert (
        {*ids, *(theirs.keys() & slurm_ids(submission_env))}
        <= again.keys()
        <= theirs.keys()
    )
    # What SLURM says of a job may have changed between the two questions; whose it is
    # and what it is called may not.
    assert {
        slurm_id: replace(job, record=listed[slurm_id].record)
        for slurm_id, job in again.items()
    } == {slurm_id: theirs[slurm_id] for slurm_id in again}


# --- a worker that stands still -------------------------------------------------------


@pytest.mark.parametrize(
    ("direction", "at"),
    [(Direction.TO_CLIENT, 0), (Direction.TO_SERVER, 150_000)],
    ids=["before it is let in", "while it sends"],
)
def test_worker__stands_still_and_goes_on_after_a_takeover__one_job_is_submitted(
    submission_env: SubmissionEnv,
    site: WorkerContext,
    new_customer: Address,
    transport: str,
    direction: Direction,
    at: int,
) -> None:
    direct = submission_env.site(submission_env.cluster_over(transport))
    job = submission_env.new_job(site, LONG, new_customer)
    with Proxy.start(submission_env.server(transport)) as proxy:
        proxy.inject(direction, at, Fault.HANG)
        worker = submission_env.start_worker(
            "slow-worker", proxy.address, job, transport
        )
        try:
            proxy.wait_for_fault(PATIENCE_S)
            wait_until(lambda: proxy.connections > 0, "the worker to knock", PATIENCE_S)
            begun = time.monotonic()
            worker.send_signal(signal.SIGSTOP)
            submission_env.lease_runs_out(job)
            submission_env.until_queued(direct, job)
            # Only now would the guard refuse, if the worker had just begun: what it
            # still sends is late.
            wait_until(
                lambda: time.monotonic() > begun + SUBMIT_TIMEOUT_S + 1,
                "the time to be over",
                PATIENCE_S,
            )
            proxy.fault(None)
            worker.send_signal(signal.SIGCONT)
            assert worker.wait(deadline(PATIENCE_S)) == 0
        finally:
            worker.kill()
            worker.wait()
    assert_submitted_once(submission_env, direct, job)
    assert submission_env.journal(job).count("Submitted") == 1
    direct.ledger.holder.close()


def test_worker__stands_still_after_sbatch__its_job_is_adopted(
    submission_env: SubmissionEnv, site: WorkerContext, transport: str
) -> None:
    direct = submission_env.site(submission_env.cluster_over(transport))
    job = submission_env.new_job(site, LONG)
    with Proxy.start(submission_env.server(transport)) as proxy:
        proxy.inject(Direction.TO_SERVER, 200_000, Fault.LOSE_TO_CLIENT)
        worker = submission_env.start_worker(
            "slow-worker", proxy.address, job, transport
        )
        try:
            wait_until(
                lambda: len(submission_env.in_slurm(job)) == 1,
                "the job to be in SLURM",
                PATIENCE_S,
            )
            worker.send_signal(signal.SIGSTOP)
            submission_env.lease_runs_out(job)
            submission_env.until_queued(direct, job)
            proxy.fault(Fault.CUT)
            worker.send_signal(signal.SIGCONT)
            assert worker.wait(deadline(PATIENCE_S)) == 0
        finally:
            worker.kill()
            worker.wait()
    assert_submitted_once(submission_env, direct, job)
    assert submission_env.journal(job).count("Submitted") == 1
    direct.ledger.holder.close()


def test_submission__slurmctld_restarted_in_the_middle__is_one_job(
    submission_env: SubmissionEnv,
    site: WorkerContext,
    proxy: Proxy,
    new_customer: Address,
) -> None:
    job = submission_env.new_job(site, LONG, new_customer)
    wait_until(
        lambda: (
            not submission_env.slurm.run(
                "squeue", "--noheader", "--states=completing"
            ).stdout
        ),
        "rest",
        PATIENCE_S,
    )
    slurmctld = submission_env.slurm.processes.find("slurmctld")
    # slurmctld has told its clock
    proxy.inject(Direction.TO_SERVER, IN_THE_SCRIPT, Fault.HANG)
    submitting = threading.Thread(target=submission_env.carry_out, args=(site, job))
    submitting.start()
    proxy.wait_for_fault(PATIENCE_S)
    submission_env.slurm.processes.kill(slurmctld, signal.SIGSTOP, wait=False)
    proxy.fault(None)
    wait_until(
        lambda: submission_env.slurmctld_has_client(),
        "the submission to be with slurmctld",
        PATIENCE_S,
    )
    submission_env.slurm.processes.kill(slurmctld)
    submission_env.slurm.start_controller()
    submitting.join(deadline(PATIENCE_S))
    assert "SubmitStarted" in submission_env.journal(job)
    assert_submitted_once(submission_env, site, job)


# --- last, because SLURM keeps a job in here that the supervisor cannot identify ------


@only_ssh(OnlySsh.SCRIPTS)
def test_submission__job_cannot_be_identified__is_parked_and_not_submitted_again(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job, slurm_id = unclear(submission_env, site, LONG, "--begin=now+1hour")
    submission_env.set(slurm_id, Name="another", StdOut="elsewhere.log")
    (file,) = (submission_env.slurm.layout.folder / "state").glob(
        f"hash.*/job.{slurm_id}/script"
    )
    file.unlink()
    wait_until(
        lambda: bool(submission_env.parked(site, job)),
        "the effect to be parked",
        PATIENCE_S,
        0.2,
    )
    assert str(slurm_id) in submission_env.parked(site, job)
    assert submission_env.journal(job).count("SubmitStarted") == 1
    submission_env.slurm.run("scancel", str(slurm_id))


def strangers_job(submission_env: SubmissionEnv) -> int:
    done = submission_env.slurm.run(
        "sbatch",
        "--parsable",
        "--output=/dev/null",
        "--time=9",
        "--mem=10",
        "--wrap=sleep 600",
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def shown(submission_env: SubmissionEnv, slurm_id: int) -> str:
    return submission_env.slurm.run(
        "squeue", "--noheader", f"--jobs={slurm_id}", "--format=%T %l"
    ).stdout.strip()


def test_strangers_job__has_the_id_of_ours__is_neither_cancelled_nor_prolonged(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job = submission_env.new_job(site)
    submission_env.until_queued(site, job)
    stranger = strangers_job(submission_env)
    try:
        before = shown(submission_env, stranger).split()[1]
        # as slurmctld does when it has lost its last seconds
        with submission_env.engine.begin() as connection:
            lost = "UPDATE jobs SET slurm_id = :id, slurm_submit_s = NULL WHERE job_id = :job"
            connection.execute(text(lost), {"id": stranger, "job": job})
        confused = site.ledger.jobs([job])[job]
        extend_time_limit(site, replace(confused, time_limit_min=77))
        cancel(site, confused)
        # nor would scancel do it
        site.slurm.cluster.control.cancel(SlurmId(stranger), CUSTOMER)
        site.slurm.cluster.control.cancel(SlurmId(999_999), CUSTOMER)
        state, limit = shown(submission_env, stranger).split()
        assert (state in LIVE, limit) == (True, before)
    finally:
        submission_env.slurm.run("scancel", str(stranger))


def test_listed_records__slurm_gave_the_id_of_a_lost_job_again__find_the_new_one(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    lost, new = submission_env.new_job(site), submission_env.new_job(site)
    found = submission_env.until_queued(site, new)
    assert found.slurm_id is not None
    submit_s = site.slurm.cluster.queries.list_all()[found.slurm_id].submit_s
    with submission_env.engine.begin() as connection:
        active = "UPDATE jobs SET state = 'QUEUED', slurm_id = :id, slurm_submit_s = :s WHERE job_id = :job"
        connection.execute(
            text(active), {"id": found.slurm_id, "s": submit_s - 60, "job": lost}
        )
    assert [seen.slurm_id for seen in listed_records(site, found, 60.0)] == [
        found.slurm_id
    ]
