"""What only the way over slurmrestd can meet; test_submit.py has what both ways
share.
"""

import secrets
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from devgrid.cluster.slurmrestd import NAME
from devgrid.faults.network_proxy import Direction, Fault, Proxy
from devgrid.machine import deadline
from devgrid.processes import wait_until
from devgrid.tls import make_certificates
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import UndecidedError
from supervisor_tasks.jobs.cancel import cancel
from supervisor_tasks.jobs.effect_timing import SUBMIT_TIMEOUT_S
from supervisor_tasks.jobs.extend_time_limit import extend_time_limit
from supervisor_tasks.jobs.model import (
    Address,
    ChainStatus,
    EffectKind,
    State,
    pending_reports,
)
from supervisor_tasks.jobs.per_job_results import required
from supervisor_tasks.monitoring.check_alarms import check_alarms
from supervisor_tasks.slurm.hardware import PartitionHardware
from supervisor_tasks.slurm.parsers import SlurmRejectedError, SlurmUnavailableError
from supervisor_tasks.slurm.rest import RestCluster
from tests.support.submission_env import (
    CUSTOMER,
    PATIENCE_S,
    SLURM_SETTINGS,
    SubmissionEnv,
)

LONG = "#!/bin/bash\nsleep 600\n" + "# a line of a long script\n" * 8000
# bytes; slurmrestd 22.05 refuses a request whose headers come in two pieces
IN_THE_SCRIPT = 100_000
STRANGER = Address("0x" + "5" * 40)  # without an account


@pytest.fixture(scope="module")
def submission_env() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running(rest=True) as submission_env:
        yield submission_env


@pytest.fixture
def site(submission_env: SubmissionEnv) -> Iterator[WorkerContext]:
    site = submission_env.site(submission_env.rest_cluster())
    yield site
    site.slurm.cluster.close()
    site.ledger.holder.close()


@pytest.fixture(autouse=True)
def _room_for_the_next(submission_env: SubmissionEnv) -> Iterator[None]:
    yield
    submission_env.slurm.run("scancel", f"--user={CUSTOMER}")


def rest(site: WorkerContext) -> RestCluster:
    assert isinstance(site.slurm.cluster, RestCluster)
    return site.slurm.cluster


def test_submission__slurmrestd_killed_before_its_answer__makes_one_job(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    assert submission_env.slurmrestd is not None
    job = submission_env.new_job(site, LONG)
    with Proxy.start(submission_env.slurmrestd.address) as proxy:
        behind = submission_env.site(submission_env.rest_cluster(proxy.address))
        rest(behind).clock.of(CUSTOMER)
        proxy.inject(Direction.TO_SERVER, IN_THE_SCRIPT, Fault.LOSE_TO_CLIENT)
        submitting = threading.Thread(
            target=submission_env.carry_out, args=(behind, job)
        )
        submitting.start()
        wait_until(
            lambda: len(submission_env.in_slurm(job)) == 1,
            "the job to be in SLURM",
            PATIENCE_S,
        )
        submission_env.processes.kill(submission_env.processes.find(NAME))
        submission_env.processes.start_again(NAME)
        proxy.fault(Fault.CUT)
        submitting.join(deadline(PATIENCE_S))
        behind.slurm.cluster.close()
        behind.ledger.holder.close()
    found = submission_env.until_queued(site, job)
    assert submission_env.in_slurm(job) == [found.slurm_id]
    assert "SubmitOutcomeUnknown" in submission_env.journal(job)


def test_submission__slurmrestd_killed_before_slurmctld_answers__makes_one_job(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    assert submission_env.slurmrestd is not None
    job, slurmctld = (
        submission_env.new_job(site, LONG),
        submission_env.processes.find("slurmctld"),
    )
    with Proxy.start(submission_env.slurmrestd.address) as proxy:
        behind = submission_env.site(submission_env.rest_cluster(proxy.address))
        proxy.inject(Direction.TO_SERVER, IN_THE_SCRIPT, Fault.HANG)
        submitting = threading.Thread(
            target=submission_env.carry_out, args=(behind, job)
        )
        submitting.start()
        proxy.wait_for_fault(PATIENCE_S)
        submission_env.processes.kill(slurmctld, signal.SIGSTOP, wait=False)
        try:
            proxy.fault(None)
            wait_until(
                lambda: submission_env.slurmctld_has_client(),
                "the submission to be with slurmctld",
                PATIENCE_S,
            )
            submission_env.processes.kill(submission_env.processes.find(NAME))
            submission_env.processes.start_again(NAME)
        finally:
            submission_env.processes.kill(slurmctld, signal.SIGCONT, wait=False)
        submitting.join(deadline(PATIENCE_S))
        behind.slurm.cluster.close()
        behind.ledger.holder.close()
    assert "SubmitOutcomeUnknown" in submission_env.journal(job)
    found = submission_env.until_queued(site, job)
    assert submission_env.in_slurm(job) == [found.slurm_id]


def test_submission__slurmrestd_away__does_not_begin_and_the_job_is_ready(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job = submission_env.new_job(site)
    submission_env.processes.kill(submission_env.processes.find(NAME))
    try:
        assert submission_env.carry_out(site, job).state is State.READY
        assert "SubmitStarted" not in submission_env.journal(job)
        with pytest.raises(SlurmUnavailableError, match="takes no connection"):
            site.slurm.cluster.site.controller()
    finally:
        submission_env.processes.start_again(NAME)
    submission_env.a_minute_passes(job)
    found = submission_env.until_queued(site, job)
    assert submission_env.in_slurm(job) == [found.slurm_id]


def test_token__arrives_late__is_rejected_by_slurmctld(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    """The request arrives when the time of the submission is over, as from a proxy that
    kept it.
    """
    assert submission_env.slurmrestd is not None
    job = submission_env.new_job(site, LONG)
    with Proxy.start(submission_env.slurmrestd.address) as proxy:
        behind = submission_env.site(submission_env.rest_cluster(proxy.address))
        proxy.inject(Direction.TO_SERVER, IN_THE_SCRIPT, Fault.HANG)
        submitting = threading.Thread(
            target=submission_env.carry_out, args=(behind, job)
        )
        submitting.start()
        wait_until(
            lambda: "SubmitStarted" in submission_env.journal(job),
            "the submission to begin",
            PATIENCE_S,
        )
        begun = time.monotonic()
        wait_until(
            lambda: time.monotonic() > begun + SUBMIT_TIMEOUT_S + 2,
            "the time to be over",
            PATIENCE_S,
        )
        # the rest of the request arrives now, while the worker still waits
        proxy.fault(None)
        submitting.join(deadline(PATIENCE_S))
        behind.slurm.cluster.close()
        behind.ledger.holder.close()
    assert submission_env.in_slurm(job) == []
    assert "SubmitOutcomeUnknown" in submission_env.journal(job)
    found = submission_env.until_queued(site, job)
    assert submission_env.in_slurm(job) == [found.slurm_id]


def test_node_is_away__answer_with_error_and_id__is_one_submission(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    for node in ("node1", "node2"):
        submission_env.slurm.run(
            "scontrol", "update", f"nodename={node}", "state=drain", "reason=a test"
        )
    try:
        job = submission_env.new_job(site)
        queued = submission_env.carry_out(site, job)
        assert queued.state is State.QUEUED
        assert submission_env.in_slurm(job) == [queued.slurm_id]
        hardware: PartitionHardware = site.slurm.nodes.hardware()
        assert ([node.name for node in hardware.excluded_nodes], hardware.nodes) == (
            ["node1", "node2"],
            (),
        )
    finally:
        submission_env.slurm.run(
            "scontrol", "update", "nodename=node[1-2]", "state=resume"
        )


def test_submission__user_without_account__job_of_user_99_is_ended(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job = submission_env.new_job(site, customer=STRANGER)
    assert submission_env.carry_out(site, job).state is State.READY
    (slurm_id,) = submission_env.in_slurm(job)
    wait_until(
        lambda: submission_env.field(slurm_id, "State") == "CANCELLED",
        "the job to be ended",
        PATIENCE_S,
    )
    query = text(
        "SELECT last_error FROM effects WHERE job_id = :job AND done_at IS NULL"
    )
    with submission_env.engine.connect() as connection:
        assert "make the account" in str(connection.scalar(query, {"job": job}))


def test_renamed_by_its_owner__unclear_submission__is_left_to_the_operator(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job = submission_env.new_job(site)
    slurm_id = submission_env.carry_out(site, job).slurm_id
    assert slurm_id is not None
    submission_env.set(slurm_id, Name="another", Comment="none of yours")
    other = submission_env.new_job(site)
    found = site.slurm.cluster.search.find(
        CUSTOMER, {job: 10.0, other: 10.0}, lambda _: {}
    )
    # by its output file
    assert [seen.slurm_id for seen in required(found[job])] == [slurm_id]
    with pytest.raises(UndecidedError, match=str(slurm_id)):
        required(found[other])


def test_time_limit_and_cancel__over_slurmrestd__change_the_job_in_slurm(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job = submission_env.new_job(site)
    queued = submission_env.until_queued(site, job)
    assert queued.slurm_id is not None
    extend_time_limit(site, replace(queued, time_limit_min=77))
    assert submission_env.field(queued.slurm_id, "TimeLimit") == "1:17:00"
    cancel(site, queued)
    wait_until(
        lambda: submission_env.field(queued.slurm_id or 0, "State") == "CANCELLED",
        "the job to end",
        PATIENCE_S,
    )
    site.slurm.cluster.control.set_time_limit(
        queued.slurm_id, 5
    )  # of an ended job: no error
    site.slurm.cluster.control.cancel(queued.slurm_id, CUSTOMER)
    with pytest.raises(SlurmRejectedError, match="requeuehold"):
        site.slurm.cluster.control.hold_again(queued.slurm_id)


def test_cancel__slurmrestd_cannot_forbid_the_requeue__the_end_is_reported(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    """slurmrestd cannot forbid the requeue."""
    gate = f"enough-{secrets.token_hex(4)}"
    script = f"#!/bin/bash\nuntil [ -e ~/{gate} ]; do sleep 0.1; done\n"
    job = submission_env.new_job(site, script)
    slurm_id = submission_env.until_queued(site, job).slurm_id
    assert slurm_id is not None
    submission_env.set(slurm_id, Requeue="1")
    (submission_env.slurm.users.home(CUSTOMER) / gate).touch()
    wait_until(
        lambda: submission_env.look(site, job).state is State.ENDED, "its end", 60.0
    )
    assert site.ledger.jobs([job])[job].may_run_again
    with pytest.raises(SlurmRejectedError, match="requeuehold"):
        cancel(site, site.ledger.jobs([job])[job])
    ended = site.ledger.jobs([job])[job]
    assert pending_reports(ended)[-1].status is ChainStatus.FINISHED
    assert submission_env.effect_id(job, EffectKind.REPORT)
    assert submission_env.effect_id(job, EffectKind.CANCEL)


def test_cancel__another_users_job__runs_on(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    queued = submission_env.until_queued(site, submission_env.new_job(site))
    assert queued.slurm_id is not None
    site.slurm.cluster.control.cancel(queued.slurm_id, STRANGER)
    assert submission_env.field(queued.slurm_id, "State") in (
        "PENDING",
        "CONFIGURING",
        "RUNNING",
    )


def test_token__made_with_another_slurms_key__no_answer_counts(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    access = rest(site).access
    mint = replace(access.mint, key=b"another" * 8)
    foreign = RestCluster.of(
        replace(access, mint=mint), SLURM_SETTINGS, home="/", environment={}
    )
    with pytest.raises(SlurmUnavailableError):
        foreign.queries.list_all()
    with pytest.raises(SlurmUnavailableError):
        foreign.clock.of(CUSTOMER)


# --- with job_submit.lua --------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running(rest=True, job_submit=True) as guarded:
        yield guarded


@pytest.mark.parametrize("key", ["", "0" * 64], ids=["no key", "a wrong key"])
def test_worker__without_slurmctlds_key__job_waits_and_the_operator_is_called(
    guarded: SubmissionEnv, key: str
) -> None:
    without = guarded.site(
        guarded.rest_cluster(settings=replace(SLURM_SETTINGS, submit_key=key))
    )
    job, errors = guarded.new_job(without), list[str]()

    def operator_is_called() -> bool:
        is_ready = guarded.carry_out(without, job).state is State.READY
        errors.append(guarded.last_error(job))
        assert "SubmitRejected" not in guarded.journal(job)
        check_alarms(without)
        guarded.a_minute_passes(job)
        alarms = [alarm.name for alarm in without.ledger.alarms.all()]
        return is_ready and AlarmName.EFFECT_OVERDUE in alarms

    wait_until(operator_is_called, "the alarm", PATIENCE_S, 0.1)
    assert any("SLURM_SUBMIT_KEY" in error for error in errors)
    assert guarded.in_slurm(job) == []
    settings = replace(SLURM_SETTINGS, submit_key=guarded.slurm.submit_key)
    right = guarded.site(guarded.rest_cluster(settings=settings))
    found = guarded.until_queued(right, job)
    assert guarded.in_slurm(job) == [found.slurm_id]
    check_alarms(right)
    assert right.ledger.alarms.all() == []
    for site in (without, right):
        site.slurm.cluster.close()
        site.ledger.holder.close()


# --- behind a proxy that speaks TLS ---------------------------------------------------


@contextmanager
def behind_tls(
    submission_env: SubmissionEnv, ca: Path | None = None
) -> Iterator[tuple[WorkerContext, Proxy]]:
    """A worker of another host, which trusts this authority, or else that of the proxy
    before slurmrestd.
    """
    assert submission_env.slurmrestd is not None
    certificates = make_certificates(submission_env.processes.folder / "tls")
    with Proxy.start(
        submission_env.slurmrestd.address, certificates=certificates
    ) as proxy:
        behind = submission_env.site(
            submission_env.rest_cluster(proxy.address, ca or certificates.ca)
        )
        yield behind, proxy
        behind.slurm.cluster.close()
        behind.ledger.holder.close()


@pytest.mark.parametrize(
    ("direction", "at"),
    [
        (Direction.TO_SERVER, 1),
        (Direction.TO_SERVER, IN_THE_SCRIPT),
        (Direction.TO_CLIENT, 40),
        (Direction.TO_CLIENT, 150),
    ],
)
@pytest.mark.parametrize("fault", [Fault.CUT, Fault.END])
def test_submission__tls_connection_ends_at_a_byte__one_job_and_its_whole_script(
    submission_env: SubmissionEnv, direction: Direction, at: int, fault: Fault
) -> None:
    with behind_tls(submission_env) as (behind, proxy):
        job = submission_env.new_job(behind, LONG, submission_env.new_customer())
        behind.slurm.cluster.clock.of(CUSTOMER)
        submission_env.inject_in_submission(
            behind.slurm.cluster, proxy, direction, at, fault
        )
        submission_env.carry_out(behind, job)
        assert "SubmitStarted" in submission_env.journal(job)
        found = submission_env.until_queued(behind, job)
        assert submission_env.in_slurm(job) == [found.slurm_id]
        assert submission_env.script(found.slurm_id or 0).endswith(
            LONG.partition("\n")[2]
        )
        submission_env.slurm.run("scancel", str(found.slurm_id))


def test_tls__certificate_of_another_authority__no_byte_reaches_slurmrestd(
    submission_env: SubmissionEnv, tmp_path: Path
) -> None:
    with behind_tls(submission_env, make_certificates(tmp_path / "other").ca) as (
        behind,
        proxy,
    ):
        job = submission_env.new_job(behind)
        assert submission_env.carry_out(behind, job).state is State.READY
        assert "SubmitStarted" not in submission_env.journal(job)
        assert proxy.passed[Direction.TO_SERVER] == 0
