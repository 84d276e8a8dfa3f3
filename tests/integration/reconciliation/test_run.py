"""A sweep of one worker, without the rest of a fleet: real SLURM, chain and Postgres.
What the fleet makes of the discrepancies is in tests/e2e/test_sweep.py.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from json import dumps
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import text

from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.alarms.alarm_names import Alarm, AlarmName
from supervisor_tasks.bootstrap import build
from supervisor_tasks.config.needs import Need
from supervisor_tasks.config.settings import load
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.model import Address, ChainStatus, JobId, State
from supervisor_tasks.jobs.stalled import NOT_LISTED
from supervisor_tasks.ledger import operator_actions
from supervisor_tasks.ledger.cursor_names import CONTRACT_STREAM, HISTORY_STREAM
from supervisor_tasks.ledger.facts import PROVIDER
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.ledger.switch_names import Switch
from supervisor_tasks.messaging.queues import Queue
from supervisor_tasks.reconciliation import sweep_cancellations
from supervisor_tasks.reconciliation.backfill import has_pending_blocks
from supervisor_tasks.reconciliation.run import sweep
from supervisor_tasks.slurm.commands import script_header
from supervisor_tasks.slurm_lookup.cluster_check import record_controller_start
from tests.support.grid_assertions import sbatch_without_the_fleet, slurm_of
from tests.support.ledger import claim, emptied
from tests.support.load_sweep import prepare, put_on_chain
from tests.support.rpc_proxies import node_proxy

PATIENCE_S = 60.0
GRACE_S = 1.0
LIVE = "PENDING,RUNNING,CONFIGURING"
# a site's own scancel that rejects
REFUSING = """#!/bin/bash
for word; do
    [[ $word == --* ]] || echo "scancel: error: Kill job error on job id $word: Access/permission denied" >&2
done
exit 1
"""
# accounting without records
KNOWS_ALL_BUT = """#!/bin/sh
case "$*" in *--user={user}*) echo "sacct: error: Invalid user id: {user}" >&2; exit 1 ;; esac
"""
AS_THE_LEDGER_HAS_IT = """
    UPDATE jobs SET state = :state, chain_status = :chain_status, slurm_id = :slurm_id, slurm_submit_s = :submit_s
    WHERE job_id = :job_id
    """
EVENT = """
    INSERT INTO events (cluster, job_id, name, details, state, at)
    VALUES (:cluster, :job_id, :name, CAST(:details AS json), 'QUEUED', now() - CAST(:ago AS interval))
    """
EFFECT = """
    INSERT INTO effects (cluster, job_id, kind, due_at) VALUES (:cluster, :job_id, 'poll_slurm', now() + :due * interval '1 s')
    """
CALLBACK = """
    INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer, received_at)
    VALUES (:cluster, :job_id, :slurm_id, 3, 0, 0, 'a test', now() - CAST(:ago AS interval))
    """
RUNS = "UPDATE callbacks SET proof = :proof, status = 4, read_at = now() WHERE job_id = :job_id"
PROOF = "UPDATE callbacks SET proof = :proof, status = 7, read_at = now() WHERE job_id = :job_id"


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    running = Grid.start(
        GridOptions(block_time_s=0.25, min_job_age_s=86_400, job_submit=False)
    )
    try:
        prepare(running)
        yield running
    finally:
        running.stop()


@contextmanager
def worker_of(grid: Grid, **settings: str) -> Iterator[WorkerContext]:
    """A worker of the slurm queue that knows SLURM and its provider, with an empty
    ledger.
    """
    environment = {"SWEEP_GRACE_S": str(GRACE_S), "SLURM_ACCOUNTING": "false"}
    loaded = load(
        Need.SLURM,
        environment=grid.environment | environment | settings | {"LOG_LEVEL": "error"},
    )
    worker = build(loaded, {Queue.SLURM}, Celery(broker=grid.environment["BROKER_URL"]))
    try:
        ledger = worker.context.ledger
        emptied(ledger.engine)
        ledger.facts.set(PROVIDER, grid.chain.account("provider").address)
        with ledger.engine.begin() as connection:
            ledger.cursors.set(
                connection, CONTRACT_STREAM, grid.chain.block_number(), ""
            )
        yield worker.context
    finally:
        worker.close()


@pytest.fixture
def site(grid: Grid) -> Iterator[WorkerContext]:
    with worker_of(grid) as context:
        yield context


def execute(site: WorkerContext, statement: str, **values: object) -> None:
    with site.ledger.engine.begin() as connection:
        connection.execute(text(statement), values | {"cluster": site.ledger.cluster})


def swept(site: WorkerContext) -> dict[str, Any]:
    """Sweep, and return the report."""
    sweep(site, "a test")
    return dict(site.ledger.reconciliations.last()[0].report)


def swept_again(site: WorkerContext) -> dict[str, Any]:
    """Sweep, and once more when the doubts of the first are old enough to count."""
    sweep(site, "the first sight")

    def oldest_s() -> float:
        return min(
            site.ledger.reconciliations.begin("ages").previous_doubts_s.values(),
            default=0.0,
        )

    wait_until(lambda: oldest_s() > GRACE_S, "the doubts to be older", PATIENCE_S)
    return swept(site)


def found(report: dict[str, Any], job_id: JobId) -> list[str]:
    return [one["found"] for one in report["discrepancies"] if one["job_id"] == job_id]


def new_job(
    grid: Grid,
    site: WorkerContext,
    state: State,
    chain: ChainStatus,
    *,
    customer: str | None = None,
    slurm_id: int | None = None,
    submit_s: int | None = None,
    ledger_chain: ChainStatus | None = None,
) -> JobId:
    """A job on the contract and in the ledger."""
    job_id = JobId("0x" + secrets.token_hex(32))
    customer = Address(customer or grid.new_customer().address)
    provider = Address(grid.chain.account("provider").address)
    put_on_chain(grid, [job_id], customer, provider, chain)
    claimed = replace(
        claim(1),
        job_id=job_id,
        customer=customer,
        provider=provider,
        claim_key=f"claim:{job_id}",
    )
    site.ledger.record(JobChange(job_id, claimed))
    execute(site, "DELETE FROM effects WHERE job_id = :job_id", job_id=job_id)
    execute(
        site,
        AS_THE_LEDGER_HAS_IT,
        job_id=job_id,
        state=state.value,
        chain_status=(ledger_chain or chain).value,
        slurm_id=slurm_id,
        submit_s=submit_s,
    )
    return job_id


def behind(grid: Grid, site: WorkerContext, customer: str) -> JobId:
    """A job that the ledger has not submitted, and that runs by the contract."""
    return new_job(
        grid,
        site,
        State.READY,
        ChainStatus.RUNNING,
        customer=customer,
        ledger_chain=ChainStatus.SCHEDULED,
    )


def submitted(
    site: WorkerContext, job_id: JobId, *more: str, ago: str = "1 hour"
) -> None:
    """Write the job's submission into the journal, and the events after it."""
    for name in ("SubmitStarted", "Submitted", *more):
        execute(site, EVENT, job_id=job_id, name=name, details="{}", ago=ago)


def gone(
    grid: Grid, site: WorkerContext, place: int, submit_s: int, *more: str
) -> JobId:
    """A job that waits, as the ledger knows it, and that SLURM does not have."""
    job = new_job(
        grid,
        site,
        State.QUEUED,
        ChainStatus.SCHEDULED,
        slurm_id=910_000 + place,
        submit_s=submit_s,
    )
    submitted(site, job, *more, ago="2 hours")
    return job


def alarms(site: WorkerContext, name: AlarmName) -> list[Alarm]:
    return [one for one in site.ledger.alarms.all() if one.name == name]


def our_comment(grid: Grid) -> str:
    return f"--comment=supervisor {grid.environment['PUBLIC_ADDRESS']}"


def live(grid: Grid, states: str = LIVE) -> set[int]:
    argv = ("squeue", "--noheader", "--format=%i", f"--states={states}")
    listed = slurm_of(grid).run(*argv).stdout
    return {int(number) for number in listed.split()}


@pytest.mark.parametrize("refuses", [False, True])
def test_sweep__contract_is_final_and_slurm_has_it__is_cancelled_where_slurm_lets_it(
    grid: Grid, refuses: bool
) -> None:
    scancel = grid.folder / "scancel-that-refuses"
    scancel.write_text(REFUSING)
    scancel.chmod(0o755)
    settings = {"SLURM_SCANCEL_PATH": str(scancel)} if refuses else {}
    customer = grid.new_customer().address
    with worker_of(grid, **settings) as site:
        job = new_job(
            grid, site, State.SETTLED, ChainStatus.FINISHED, customer=customer
        )
        slurm_id = sbatch_without_the_fleet(
            grid, customer, f"--job-name={job}", our_comment(grid)
        )
        report = swept(site)
        assert found(report, job) == ["orphan_running"]
        assert report["cancelled"] == int(not refuses)
        assert list(report["not_cancelled"]) == [str(slurm_id)] * refuses
        if refuses:
            assert slurm_id in live(grid)
            slurm_of(grid).run("scancel", str(slurm_id))
    wait_until(lambda: slurm_id not in live(grid), "its end", PATIENCE_S)


def test_sweep__one_customer_has_many_jobs_to_cancel__the_others_do_not_wait(
    grid: Grid, site: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_cancellations, "JOBS_CANCELLED_AT_ONCE", 1)
    of_customers = list[list[int]]()
    for jobs in (3, 1):
        customer = grid.new_customer().address
        slurm_ids = list[int]()
        for _ in range(jobs):
            job = new_job(
                grid, site, State.SETTLED, ChainStatus.FINISHED, customer=customer
            )
            slurm_ids.append(
                sbatch_without_the_fleet(
                    grid, customer, f"--job-name={job}", our_comment(grid)
                )
            )
        of_customers.append(slurm_ids)
    many, one = of_customers
    report = swept(site)
    assert (report["cancelled"], report["again_s"]) == (2, 60.0)
    wait_until(lambda: len(live(grid).intersection(many)) == 2, "an end", PATIENCE_S)
    wait_until(lambda: not live(grid).intersection(one), "its end", PATIENCE_S)
    while swept(site)["cancelled"]:
        pass
    wait_until(lambda: not live(grid).intersection(many), "all ends", PATIENCE_S)


def test_sweep__customer_submits_jobs_himself__alarm_names_user_and_size(
    grid: Grid, site: WorkerContext
) -> None:
    customer = grid.new_customer().address
    slurm_ids = [
        sbatch_without_the_fleet(grid, customer, *options)
        for options in (("--hold",), ("--hold", "--time=7", "--cpus-per-task=2"))
    ]
    sweep(site, "a test")
    (alarm,) = alarms(site, AlarmName.FOREIGN_CUSTOMER_JOBS)
    some = alarm.details["some"]
    assert some.keys() >= {str(number) for number in slurm_ids}
    assert customer in some[str(slurm_ids[1])]
    assert "2 CPUs, 1 nodes, 10 MB" in some[str(slurm_ids[1])]
    assert "limit 7 minutes" in some[str(slurm_ids[1])]
    slurm_of(grid).run("scancel", *map(str, slurm_ids))
    wait_until(lambda: not live(grid).intersection(slurm_ids), "their end", PATIENCE_S)
    sweep(site, "a test")
    # jobs of other tests have run, and are told until SLURM forgets them
    for left in alarms(site, AlarmName.FOREIGN_CUSTOMER_JOBS):
        assert not left.details["some"].keys() & set(map(str, slurm_ids))


def test_sweep__a_side_cannot_be_seen__the_other_is_compared_and_tried_again_soon(
    grid: Grid,
) -> None:
    with worker_of(grid, SLURM_SQUEUE_PATH="/bin/false") as site:
        job = new_job(
            grid, site, State.RUNNING, ChainStatus.CANCELLED, slurm_id=900_001
        )
        report = swept(site)
        assert report["unseen"].keys() == {"slurm"}
        assert found(report, job) == ["final_on_chain"]
        assert report["slurm_jobs"] is None
        assert report["again_s"] == 60.0
    with worker_of(grid) as site:
        site.ledger.facts.set(PROVIDER, "")
        report = swept(site)
        assert report["on_chain"] is None
        assert "found no address of this provider" in report["unseen"]["chain"]


def test_sweep__node_has_no_old_logs__jobs_on_the_contract_are_compared(
    grid: Grid,
) -> None:
    first_with_logs = grid.chain.block_number()

    def answer(calls: list[dict[str, Any]]) -> tuple[int, Any] | None:
        if not any(has_old_logs(call) for call in calls):
            return None
        pruned = {"code": -32000, "message": "pruned history unavailable"}
        return 200, [{**call, "error": pruned} for call in calls]

    def has_old_logs(call: dict[str, Any]) -> bool:
        if call["method"] != "eth_getLogs":
            return False
        (wanted,) = call["params"]
        return int(wanted["fromBlock"], 16) < first_with_logs

    with (
        node_proxy(grid.chain, answer) as (methods, url),
        worker_of(grid, METASCHEDULER_ENDPOINT_RPC=url) as site,
    ):
        with site.ledger.engine.begin() as connection:
            site.ledger.cursors.set(connection, HISTORY_STREAM, first_with_logs, "")
        job = new_job(
            grid, site, State.RUNNING, ChainStatus.CANCELLED, slurm_id=900_002
        )
        report = swept(site)
        assert found(report, job) == ["final_on_chain"]
        assert report["unseen"].keys() == {"history"}
        assert "pruned history" in report["unseen"]["history"]
        assert report["again_s"] == 60.0
        asked = methods.count("eth_getLogs")
        sweep(site)  # none is due: the next one asks again
        assert methods.count("eth_getLogs") == asked
        first_claim = replace(site.sweep, start_block=first_with_logs)
        report = swept(replace(site, reconciliation_services=first_claim))
        assert report["unseen"] == {}


def listed_by_a_steady_slurm(
    grid: Grid, site: WorkerContext, silent_s: float = 3 * 3600.0
) -> int:
    """The id of a job that SLURM lists, so that it has not lost everything. slurmctld
    was silent for so long before its start, and is up for long enough.
    """
    cluster = site.slurm.cluster
    controller = cluster.site.controller()
    record_controller_start(site.ledger, controller, silent_s, cluster.clock.now_s())
    other = sbatch_without_the_fleet(grid, grid.new_customer().address)
    booted_s = int(controller.booted)
    wait_until(
        lambda: cluster.clock.now_s() > booted_s + GRACE_S,
        "slurmctld to be up for long enough",
        PATIENCE_S,
    )
    return other


@pytest.mark.parametrize("was_saved", [False, True])
def test_sweep__waiting_jobs_are_gone__what_is_left_of_each_decides(
    grid: Grid, was_saved: bool
) -> None:
    # accounting that has no record
    settings = {"SLURM_ACCOUNTING": "true", "SLURM_SACCT_PATH": "/bin/true"}
    # slurmctld did not answer before its start: it saved nothing meanwhile
    silent_s = 0.0 if was_saved else 3 * 3600.0
    with worker_of(grid, **settings) as site:
        other = listed_by_a_steady_slurm(grid, site, silent_s)
        booted_s = int(site.slurm.cluster.site.controller().booted)
        taken_later = gone(grid, site, 1, booted_s + 1)
        often_forgotten = gone(
            grid, site, 2, booted_s - 7200, *["SubmissionLostBySlurm"] * 3
        )
        called = gone(grid, site, 3, booted_s - 7200)
        execute(site, CALLBACK, job_id=called, slurm_id=910_003, ago="1 hour")
        execute(site, "UPDATE callbacks SET read_at = now()")
        report = swept_again(site)
        decided = [found(report, job) for job in (taken_later, often_forgotten, called)]
        (alarm,) = alarms(site, AlarmName.SWEEP_CONTRADICTION)
        if was_saved:
            assert decided == [["needs_operator"]] * 3
            assert "look at slurmctld's state" in alarm.details["advice"]
        else:
            assert decided == [["lost"], ["needs_operator"], ["lost"]]
            assert alarm.details["some"] == [often_forgotten]
        slurm_of(grid).run("scancel", str(other))


def test_sweep__stranger_called_about_a_waiting_job_that_is_gone__operator_decides(
    grid: Grid,
) -> None:
    settings = {"SLURM_ACCOUNTING": "true", "SLURM_SACCT_PATH": "/bin/true"}
    with worker_of(grid, **settings) as site:
        other = listed_by_a_steady_slurm(grid, site)
        booted_s = int(site.slurm.cluster.site.controller().booted)
        jobs = [gone(grid, site, place, booted_s - 7200) for place in (4, 5, 6)]
        made_up, proven, never_named = jobs
        for place, job in ((4, made_up), (5, proven)):
            execute(site, CALLBACK, job_id=job, slurm_id=910_000 + place, ago="1 hour")
        for job, proof in ((made_up, "unproven"), (proven, "proven")):
            execute(site, RUNS, job_id=job, proof=proof)
        report = swept_again(site)
        decided = [found(report, job) for job in (made_up, proven, never_named)]
        assert decided == [["needs_operator"], ["lost"], ["forgotten"]]
        assert site.ledger.jobs(jobs)[made_up].state is State.QUEUED
        slurm_of(grid).run("scancel", str(other))


def test_sweep__hook_proved_the_end_of_a_job_without_an_id__the_operator_decides(
    grid: Grid,
) -> None:
    """A restored ledger has taken the jobs over after SLURM had forgotten them."""
    settings = {"SLURM_ACCOUNTING": "true", "SLURM_SACCT_PATH": "/bin/true"}
    with worker_of(grid, **settings) as site:
        other = listed_by_a_steady_slurm(grid, site)
        jobs = [
            new_job(grid, site, State.RUNNING, ChainStatus.RUNNING) for _ in range(2)
        ]
        for job, proof in zip(jobs, ("proven", "unproven"), strict=True):
            execute(site, CALLBACK, job_id=job, slurm_id=910_004, ago="1 hour")
            execute(site, PROOF, job_id=job, proof=proof)
        report = swept_again(site)
        assert [found(report, job) for job in jobs] == [["needs_operator"], ["lost"]]
        assert site.ledger.jobs(jobs)[jobs[0]].state is State.RUNNING
        slurm_of(grid).run("scancel", str(other))


def test_sweep__job_was_completing_when_slurm_last_listed_it__the_operator_decides(
    grid: Grid,
) -> None:
    settings = {"SLURM_ACCOUNTING": "true", "SLURM_SACCT_PATH": "/bin/true"}
    with worker_of(grid, **settings) as site:
        other = listed_by_a_steady_slurm(grid, site)
        jobs = list[JobId]()
        for place, last_seen in enumerate(("COMPLETING", "RUNNING")):
            slurm_id = 910_005 + place
            job = new_job(
                grid, site, State.RUNNING, ChainStatus.RUNNING, slurm_id=slurm_id
            )
            for seen in (last_seen, NOT_LISTED):
                look = {"name": "SlurmPendingObserved", "ago": "1 hour"}
                execute(site, EVENT, job_id=job, details=dumps({"seen": seen}), **look)
            jobs.append(job)
        report = swept_again(site)
        assert [found(report, job) for job in jobs] == [["needs_operator"], ["lost"]]
        slurm_of(grid).run("scancel", str(other))


def test_sweep__slurm_lost_what_it_had_saved__submissions_are_held_until_accepted(
    grid: Grid, site: WorkerContext
) -> None:
    ledger = site.ledger
    for place in range(5):
        job = new_job(
            grid,
            site,
            State.RUNNING,
            ChainStatus.RUNNING,
            slurm_id=920_000 + place,
            submit_s=1_700_000_000,
        )
        submitted(site, job)
    report = swept(site)
    assert report["found"] == {"missing": 5}
    assert report["again_s"] <= 60.0
    assert "5 jobs" in (ledger.switches.reason(Switch.SUBMISSIONS_PAUSED) or "")
    assert alarms(site, AlarmName.SLURM_STATE_LOST)
    operator_actions.accept_slurm(ledger, None)
    sweep(site, "the operator has accepted it")
    assert ledger.switches.reason(Switch.SUBMISSIONS_PAUSED) is None
    assert not alarms(site, AlarmName.SLURM_STATE_LOST)


@pytest.mark.parametrize("names_the_job", [True, False])
def test_sweep__ledger_is_older_than_the_chain__job_is_found_by_its_script(
    grid: Grid, site: WorkerContext, names_the_job: bool
) -> None:
    customer = grid.new_customer().address
    job = behind(grid, site, customer)
    named = job if names_the_job else JobId("0x" + secrets.token_hex(32))
    script = grid.folder / "renamed.sh"
    script.write_text(f"#!/bin/bash\n{script_header(named)}\nsleep 600\n")
    renamed = sbatch_without_the_fleet(
        grid, customer, "--job-name=renamed", command=str(script)
    )
    wait_until(lambda: renamed in live(grid, "RUNNING"), "SLURM to run it", PATIENCE_S)
    report = swept(site)
    assert (report["again_s"], report["unseen"]) == (10.0, {})
    assert found(report, job) == ["ahead_on_chain"]
    adopted = site.ledger.jobs([job])[job]
    assert adopted.slurm_id == (renamed if names_the_job else None)
    assert adopted.state is State.RUNNING
    slurm_of(grid).run("scancel", str(renamed))


def test_sweep__customer_has_no_account__only_his_jobs_are_left_undecided(
    grid: Grid,
) -> None:
    stranger = Address("0x" + secrets.token_hex(20))
    sacct = grid.folder / "sacct-of-users"
    sacct.write_text(KNOWS_ALL_BUT.format(user=stranger))
    sacct.chmod(0o755)
    settings = {"SLURM_ACCOUNTING": "true", "SLURM_SACCT_PATH": str(sacct)}
    with worker_of(grid, **settings) as site:
        undecided = behind(grid, site, stranger)
        decided = behind(grid, site, grid.new_customer().address)
        lost = new_job(grid, site, State.RUNNING, ChainStatus.RUNNING, slurm_id=910_009)
        report = swept(site)
        assert site.ledger.jobs([decided])[decided].state is State.RUNNING
        assert site.ledger.jobs([undecided])[undecided].state is State.READY
        assert set(report["unseen"]) == {"customers"}
        # the next sweep asks for the missing jobs, also while that one is undecided
        report = swept(site)
        assert site.ledger.jobs([undecided])[undecided].state is State.READY
        assert found(report, lost) == ["missing"]
        assert stranger in report["unseen"]["customers"]


def test_sweep__not_due__reads_older_claims_and_then_nothing(
    grid: Grid, site: WorkerContext
) -> None:
    ledger = site.ledger
    execute(site, "DELETE FROM cursors")
    sweep(site, "a test")
    # It found more blocks to read, so that the next one is due within seconds.
    execute(
        site,
        "UPDATE reconciliations SET report = jsonb_set(report, '{again_s}', '3600')",
    )
    head = grid.chain.block_number()
    with ledger.engine.begin() as connection:
        ledger.cursors.set(connection, CONTRACT_STREAM, head, "")
        ledger.cursors.set(connection, HISTORY_STREAM, head, "")
    assert has_pending_blocks(site)
    sweep(site)
    assert not has_pending_blocks(site)
    sweep(site)
    assert len(ledger.reconciliations.last(5)) == 1
    assert ledger.periodic_runs.age_s("sweep finished") is not None


def test_sweep__work_is_overdue__dispatches_the_tasks_for_it(
    grid: Grid, site: WorkerContext
) -> None:
    dispatched = list[str]()
    context = replace(site, dispatch=dispatched.append)
    job = new_job(grid, context, State.RUNNING, ChainStatus.RUNNING, slurm_id=930_001)
    execute(site, EFFECT, job_id=job, due=-120)
    execute(site, CALLBACK, job_id=job, slurm_id=930_001, ago="2 minutes")
    report = swept(context)
    assert report["stale"] == {"effects": 1, "callbacks": 1, "transactions": 0}
    assert dispatched == ["poll_jobs"]
