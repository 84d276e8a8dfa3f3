"""The sweep on a whole grid: what went wrong behind the fleet's back is found in
ledger, contract and SLURM, and mended.
"""

import json
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from devgrid import REPOSITORY
from devgrid.chain.model import Account, ChainPrices
from devgrid.grid import Grid, definition_of
from devgrid.options import GridOptions, Transport
from devgrid.processes import wait_until
from devgrid.services.workflow import Resources
from devgrid.state_folder import private_processes
from supervisor_tasks.jobs.model import ChainStatus
from supervisor_tasks.ledger import operator_actions
from supervisor_tasks.ledger.advisory_locks import advisory_lock
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.lock_names import cluster_lock
from tests.support.end_states import (
    as_customer,
    assert_ended,
    id_of,
    row_of,
    scontrol,
)
from tests.support.grid_assertions import (
    alarm_names,
    execute,
    journal,
    ledger,
    parked,
    rows,
    sbatch_without_the_fleet,
    slurm_ids,
    slurm_of,
    state_if_known,
    wait_for,
    wait_for_end,
)
from tests.support.grids import BLOCK_TIME_S
from tests.support.slurmctld_state import copied
from tests.support.transports import SSH, OnlySsh, only_ssh, rest_in_chaos

GRACE_S = 1.0
LONG = "#!/bin/bash\nsleep 3500\n"  # 60 minutes are paid
READ_ON = "UPDATE cursors SET block_number = :head WHERE stream = 'contract'"
ENDS_AT = "#!/bin/bash\nuntil [ -e ~/{gate} ]; do sleep 0.1; done\nexit 5\n"


# A site's own scancel, which refuses what its list names.
PICKY_SCANCEL = """#!/bin/bash
status=0 words=()
for word; do
    if grep -qxs "$word" {refused}; then
        echo "scancel: error: Kill job error on job id $word: Access/permission denied" >&2
        status=1
    else
        words+=("$word")
    fi
done
[[ "${{words[-1]}}" == --* ]] && exit $status
/usr/bin/scancel "${{words[@]}}" || status=$?
exit $status
"""


@pytest.fixture(scope="module")
def rejected_ids() -> Iterator[Path]:
    """The list of SLURM ids that scancel rejects, in a folder that the admin can
    read.
    """
    with private_processes() as processes:
        yield processes.folder / "refused"


@pytest.fixture(scope="module")
def grid(rejected_ids: Path, transport: Transport) -> Iterator[Grid]:
    """SLURM keeps an accounting database that the fleet does not ask before a test says
    so; over slurmrestd none.
    """
    scancel = rejected_ids.with_name("scancel")
    scancel.write_text(PICKY_SCANCEL.format(refused=rejected_ids))
    scancel.chmod(0o755)
    overrides = {
        "SWEEP_EVERY_S": "3600",
        "SWEEP_GRACE_S": str(GRACE_S),
        "SLURM_ACCOUNTING": "false",
    }
    overrides["SLURM_SCANCEL_PATH"] = str(scancel)
    running = Grid.start(
        GridOptions(
            transport=transport,
            block_time_s=BLOCK_TIME_S,
            accounting=transport == SSH,
            min_job_age_s=86_400,
            overrides=overrides,
            job_submit=False,
        )
    )
    try:
        running.fleet.start(flower=False)
        yield running
    finally:
        running.stop()


def last_sweep(grid: Grid) -> int:
    found: int = rows(grid, "SELECT COALESCE(max(id), 0) AS id FROM reconciliations")[
        0
    ].id
    return found


def reports(grid: Grid, after: int = 0) -> list[dict[str, Any]]:
    """What the sweeps say of themselves, for any reason."""
    return [
        row.report
        for row in rows(
            grid,
            "SELECT report FROM reconciliations WHERE id > :after ORDER BY id",
            after=after,
        )
    ]


def sweep(grid: Grid, timeout_s: float = 90.0) -> dict[str, Any]:
    """Have one made that begins now; its report. One that was asked for earlier and
    comes late has another name.
    """
    before, name = last_sweep(grid), f"test {secrets.token_hex(4)}"

    def swept() -> list[dict[str, Any]]:
        return [report for report in reports(grid, before) if name in report["why"]]

    with Celery(broker=grid.environment["BROKER_URL"]) as app:

        def asked() -> bool:
            # One that is under way drops the message.
            app.send_task(
                "supervisor_tasks.tasks.sweep",
                kwargs={"why": name},
                queue="devgrid.slurm",
            )
            try:
                wait_until(lambda: bool(swept()), "the sweep", 5.0, 0.05)
            except TimeoutError:
                return False
            return True

        wait_until(asked, "a sweep", timeout_s)
    return swept()[0]


def sweep_that_sees_all(grid: Grid) -> dict[str, Any]:
    """Its report. On a busy machine SLURM may not answer one of them in time; then that
    one concludes nothing.
    """
    return _sweep_until(
        grid, lambda report: not report["unseen"], "a sweep that sees all"
    )


def sweep_that_sees_slurm(grid: Grid) -> dict[str, Any]:
    """Its report. What a sweep finds in SLURM, the next one may have mended: it must be
    the first that sees SLURM.
    """
    return _sweep_until(
        grid, lambda report: "slurm" not in report["unseen"], "a sweep that sees SLURM"
    )


def _sweep_until(
    grid: Grid, is_enough: Callable[[dict[str, Any]], bool], what: str
) -> dict[str, Any]:
    seen: list[dict[str, Any]] = []

    def enough() -> bool:
        seen.append(sweep(grid))
        return is_enough(seen[-1])

    wait_until(enough, what, 120.0)
    return seen[-1]


def found(report: dict[str, Any], job_id: str) -> list[str]:
    return [
        discrepancy["found"]
        for discrepancy in report["discrepancies"]
        if discrepancy["job_id"] == job_id
    ]


def ever_found(grid: Grid, job_id: str, after: int = 0) -> set[str]:
    return {kind for report in reports(grid, after) for kind in found(report, job_id)}


def found_since(grid: Grid, job_id: str, before: int) -> set[str]:
    """What the sweeps after that one find, once one has found anything. The fleet also
    makes its own.
    """
    wait_until(
        lambda: bool(sweep(grid)) and bool(ever_found(grid, job_id, before)),
        f"a sweep to find {job_id}",
        120.0,
        GRACE_S,
    )
    return ever_found(grid, job_id, before)


def found_before_its_report(grid: Grid, job_id: str) -> set[str]:
    """Without what a sweep finds that looks between the report's block and its receipt:
    the contract is ahead of the ledger.
    """
    return ever_found(grid, job_id) - {"final_on_chain"}


def running_job(
    grid: Grid, customer: Account, script: str = LONG, minutes: int = 60
) -> str:
    job_id = grid.submit_script(customer, script, minutes=minutes)
    wait_for(grid, job_id, {ChainStatus.RUNNING})
    known = "SELECT 1 FROM jobs WHERE job_id = :id AND state = 'RUNNING' AND chain_status = 3"
    wait_until(lambda: bool(rows(grid, known, id=job_id)), "the ledger to know", 60.0)
    return job_id


def live(grid: Grid, job_id: str) -> list[int]:
    # the last one while the start hook runs
    states = "--states=RUNNING,PENDING,CONFIGURING"
    shown = ["squeue", "--noheader", states, f"--name={job_id}", "--format=%A"]
    return [int(number) for number in slurm_of(grid).run(*shown).stdout.split()]


def end(grid: Grid, customer: Account, *job_ids: str) -> None:
    for job_id in job_ids:
        grid.chain.customers.cancel_job(customer, job_id)
    for job_id in job_ids:
        wait_for_end(grid, job_id)


def drop_effects(grid: Grid, job_id: str) -> None:
    """No effect looks at the job any more. For a job in SLURM this holds only while no
    worker lives.

    A look under way opens the next one.
    """
    execute(
        grid,
        "UPDATE effects SET done_at = now(), lease = NULL WHERE job_id = :id AND done_at IS NULL",
        id=job_id,
    )


def skip_logs(grid: Grid) -> None:
    """As if the node had given no logs of the blocks up to now."""
    execute(grid, READ_ON, head=grid.chain.block_number())


@contextmanager
def no_callbacks(grid: Grid) -> Iterator[None]:
    """No callback comes."""
    reporter = grid.processes.find("reporter")
    grid.processes.kill(reporter, signal.SIGSTOP, wait=False)
    try:
        yield
    finally:
        grid.processes.kill(reporter, signal.SIGCONT, wait=False)


def panic(grid: Grid, job_id: str) -> None:
    who = grid.chain.account("metascheduler")
    grid.chain.send(
        who, "MetaScheduler", "panicJob", bytes.fromhex(job_id[2:]), "by the grid"
    )


def test_sweep__worker_starts__one_is_made_and_kept(grid: Grid) -> None:
    wait_until(lambda: last_sweep(grid) > 0, "the first sweep", 60.0)
    wait_until(
        lambda: bool(rows(grid, "SELECT 1 FROM facts WHERE name = 'provider.address'")),
        "the provider's name",
        60.0,
    )
    report = sweep_that_sees_all(grid)
    assert (report["found"], report["on_chain"]) == ({}, 0)
    assert set(report["seconds"]) >= {"ledger", "slurm", "chain"}


def test_sweep__end_without_a_callback__is_reported_with_true_figures(
    grid: Grid, customer: Account
) -> None:
    with no_callbacks(grid):
        job_id = running_job(grid, customer, ENDS_AT.format(gate="ended-unheard"))
        grid.processes.kill(grid.fleet.find("worker"))
        drop_effects(grid, job_id)
        (grid.users.home(customer.address) / "ended-unheard").touch()
        failed = ["squeue", "--noheader", "--states=FAILED", f"--name={job_id}"]
        wait_until(
            lambda: bool(slurm_of(grid).run(*failed).stdout),
            "SLURM to end it",
            60.0,
            0.2,
        )
        grid.fleet.start_worker()
        wait_for_end(grid, job_id)
    assert found_before_its_report(grid, job_id) == {"end_not_recorded"}
    assert_ended(grid, job_id, "FAILED", ChainStatus.FAILED, 5 * 256)


@only_ssh(OnlySsh.NO_DIFFERENCE)
def test_sweep__effects_are_gone__they_are_opened_again(
    grid: Grid, customer: Account
) -> None:
    services = grid.processes.find("services")
    grid.processes.kill(services, signal.SIGSTOP, wait=False)  # it stays CLAIMED
    try:
        job_id = grid.submit_script(customer, "#!/bin/bash\ntrue\n")
        wait_until(lambda: state_if_known(grid, job_id) == "CLAIMED", "the claim", 60.0)
        grid.processes.kill(grid.fleet.find("worker"))
        drop_effects(grid, job_id)
    finally:
        grid.processes.kill(services, signal.SIGCONT, wait=False)
    grid.fleet.start_worker()
    assert wait_for_end(grid, job_id, 120).status is ChainStatus.FINISHED
    assert found_before_its_report(grid, job_id) == {"effect_missing"}


def limit_of(grid: Grid, slurm_id: int) -> str:
    shown = slurm_of(grid).run(
        "squeue", "--noheader", f"--jobs={slurm_id}", "--format=%l"
    )
    return shown.stdout.strip()


def test_sweep__slurm_has_an_older_limit__restores_it_but_not_one_the_owner_lowered(
    grid: Grid, customer: Account
) -> None:
    job_id = running_job(grid, customer, minutes=10)
    slurm_id = id_of(grid, job_id)
    grid.chain.customers.top_up_job(
        customer,
        job_id,
        5 * ChainPrices().of(definition_of("", Resources(memPerCpu=100))),
    )
    wait_until(lambda: "LimitApplied" in journal(grid, job_id), "the top-up", 60.0, 0.1)
    assert limit_of(grid, slurm_id) == "15:00"
    before = last_sweep(grid)
    # as a slurmctld that had not saved the update yet
    scontrol(grid, "update", f"JobId={slurm_id}", "TimeLimit=10")
    assert found_since(grid, job_id, before) == {"limit_lost"}
    wait_until(
        lambda: limit_of(grid, slurm_id) == "15:00",
        "the limit that was paid for",
        60.0,
        0.1,
    )
    as_customer(
        grid, customer, "scontrol", "update", f"JobId={slurm_id}", "TimeLimit=12"
    )
    assert found(sweep_that_sees_slurm(grid), job_id) == []
    assert limit_of(grid, slurm_id) == "12:00"
    end(grid, customer, job_id)


def test_sweep__contract_is_final_and_no_log_told__slurm_is_stopped(
    grid: Grid, customer: Account
) -> None:
    job_id = running_job(grid, customer)
    grid.processes.kill(grid.fleet.find("worker"))
    panic(grid, job_id)
    skip_logs(grid)
    grid.fleet.start_worker()
    wait_until(
        lambda: state_if_known(grid, job_id) == "SETTLED",
        "the sweep at the worker's start",
        90.0,
        0.1,
    )
    wait_until(lambda: not live(grid, job_id), "SLURM to be stopped", 60.0, 0.2)
    assert "ChainStatusObserved" in journal(grid, job_id)


@pytest.mark.chaos
def test_sweep__given_back_by_hand_and_no_log_told__slurm_is_stopped(
    grid: Grid, customer: Account
) -> None:
    services = grid.processes.find("services")
    scontrol(grid, "update", "nodename=node[1-4]", "state=drain", "reason=test")
    job_id = grid.submit_script(customer, LONG)
    wait_until(
        lambda: state_if_known(grid, job_id) == "QUEUED", "the submission", 60.0, 0.1
    )
    grid.processes.kill(grid.fleet.find("worker"))
    # no service gives it to us again
    grid.processes.kill(services, signal.SIGSTOP, wait=False)
    try:
        grid.chain.send(
            grid.chain.account("provider"),
            "MetaScheduler",
            "refuseJob",
            bytes.fromhex(job_id[2:]),
        )
        skip_logs(grid)
        grid.fleet.start_worker()
        wait_until(
            lambda: bool(sweep(grid)) and state_if_known(grid, job_id) == "REFUSED",
            "the second sight",
            90.0,
            GRACE_S,
        )
        wait_until(lambda: not live(grid, job_id), "SLURM to be stopped", 60.0, 0.2)
        assert grid.chain.job(job_id).status is ChainStatus.PENDING
        grid.chain.customers.cancel_job(customer, job_id)
    finally:
        scontrol(grid, "update", "nodename=node[1-4]", "state=resume")
        grid.processes.kill(services, signal.SIGCONT, wait=False)


def test_sweep__settled_and_still_in_slurm__is_cancelled_by_the_ledgers_id(
    grid: Grid, customer: Account
) -> None:
    job_id = running_job(grid, customer)
    execute(
        grid,
        "UPDATE jobs SET state = 'SETTLED', chain_status = 8 WHERE job_id = :id",
        id=job_id,
    )
    drop_effects(grid, job_id)
    assert found(sweep(grid), job_id) == []  # the contract says that it is active
    assert live(grid, job_id)
    before = last_sweep(grid)
    panic(grid, job_id)
    assert found_since(grid, job_id, before) == {"orphan_running"}
    wait_until(lambda: not live(grid, job_id), "SLURM to be stopped", 60.0, 0.2)


@only_ssh(OnlySsh.LOGIN_NODE)
@pytest.mark.chaos
def test_sweep__one_that_scancel_refuses__the_others_are_cancelled_all_the_same(
    grid: Grid, customer: Account, rejected_ids: Path
) -> None:
    job_ids = [running_job(grid, customer) for _ in range(2)]
    ours = f"--comment=supervisor {grid.environment['PUBLIC_ADDRESS']}"
    second = {
        job_id: sbatch_without_the_fleet(
            grid, customer.address, f"--job-name={job_id}", ours
        )
        for job_id in job_ids
    }
    rejected_ids.write_text("".join(f"{slurm_id}\n" for slurm_id in second.values()))
    before = last_sweep(grid)

    def not_cancelled() -> set[int]:
        return {int(number) for number in sweep(grid)["not_cancelled"]}

    wait_until(
        lambda: not_cancelled() == set(second.values()),
        "both to be refused",
        60.0,
        GRACE_S,
    )
    discrepancies = reports(grid, before)[-1]["discrepancies"]
    first, other = [
        discrepancy["cancelled"]
        for discrepancy in discrepancies
        if discrepancy["job_id"] in job_ids
    ]
    rejected_ids.write_text(f"{first}\n")
    report = sweep(grid)
    assert "Access/permission denied" in report["not_cancelled"][str(first)]
    assert report["unseen"].keys() == {"cancelling"}
    listed = {slurm_id for job_id in job_ids for slurm_id in live(grid, job_id)}
    assert (first in listed, other in listed) == (True, False)
    rejected_ids.unlink()
    wait_until(lambda: not_cancelled() == set(), "none to be refused", 60.0, GRACE_S)
    gone = {
        slurm_id for job_id in job_ids for slurm_id in live(grid, job_id)
    }.isdisjoint(second.values())
    assert (gone, sum(report["cancelled"] for report in reports(grid, before))) == (
        True,
        2,
    )
    end(grid, customer, *job_ids)


def test_sweep__second_slurm_job_and_strangers__the_second_is_cancelled_and_no_other(
    grid: Grid, customer: Account
) -> None:
    job_id = running_job(grid, customer)
    (first,) = live(grid, job_id)
    ours = f"--comment=supervisor {grid.environment['PUBLIC_ADDRESS']}"
    second = sbatch_without_the_fleet(
        grid, customer.address, f"--job-name={job_id}", ours
    )
    benchmark = sbatch_without_the_fleet(
        grid, customer.address, f"--job-name={job_id}", "--comment=benchmark"
    )
    unknown = sbatch_without_the_fleet(
        grid, customer.address, f"--job-name=0x{'5' * 64}", ours
    )
    before = last_sweep(grid)

    def cancelled() -> int:
        return sum(report["cancelled"] for report in reports(grid, before))

    # at first sight, as the first one is live
    wait_until(
        lambda: bool(sweep_that_sees_slurm(grid)) and cancelled() > 0,
        "a sweep to see the second",
        60.0,
        GRACE_S,
    )
    assert cancelled() == 1
    seen = [report for report in reports(grid, before) if report["cancelled"]]
    assert [found(report, job_id) for report in seen] == [["duplicate"]]
    wait_until(
        lambda: second not in live(grid, job_id),
        "the second to be cancelled",
        60.0,
        0.2,
    )
    assert set(live(grid, job_id)) == {first, benchmark}
    assert live(grid, f"0x{'5' * 64}") == [unknown]
    slurm_of(grid).run("scancel", str(benchmark), str(unknown))
    end(grid, customer, job_id)


@rest_in_chaos
def test_sweep__ledger_that_has_never_heard_of_its_jobs__takes_them_in(
    grid: Grid, customer: Account
) -> None:
    """One that runs, one that SLURM has ended meanwhile, one that was never submitted,
    one that is over.
    """
    over = grid.submit_script(customer, "#!/bin/bash\ntrue\n")
    wait_for_end(grid, over)
    services = grid.processes.find("services")
    runs, ended = (
        running_job(grid, customer),
        running_job(grid, customer, ENDS_AT.format(gate="ended-before")),
    )
    grid.processes.kill(services, signal.SIGSTOP, wait=False)
    claimed = grid.submit_script(customer, "#!/bin/bash\ntrue\n")
    wait_until(lambda: state_if_known(grid, claimed) == "CLAIMED", "the claim", 60.0)
    grid.processes.kill(grid.fleet.find("worker"))
    (grid.users.home(customer.address) / "ended-before").touch()
    wait_until(lambda: not live(grid, ended), "SLURM to end one", 60.0, 0.2)
    execute(
        grid,
        "TRUNCATE jobs, events, effects, callbacks, cursors, facts, reconciliations CASCADE",
    )
    # the old fleet would have heard of it
    grid.chain.customers.cancel_job(customer, runs)
    grid.processes.kill(services, signal.SIGCONT, wait=False)
    grid.chain.mine(3)
    grid.fleet.start_worker()
    assert wait_for_end(grid, claimed, 120).status is ChainStatus.FINISHED
    assert (wait_for_end(grid, ended).status, wait_for_end(grid, ended).exit_code) == (
        ChainStatus.FAILED,
        5 * 256,
    )
    assert wait_for_end(grid, runs).status is ChainStatus.CANCELLED
    assert [len(slurm_ids(grid, job_id)) for job_id in (runs, ended, claimed)] == [
        1,
        1,
        1,
    ]
    assert state_if_known(grid, over) is None


OLDER = "a claim from before this ledger's first scan"
AGAIN = "UPDATE cursors SET block_number = :head WHERE stream = 'history'"


def read_older_claims(grid: Grid) -> list[str]:
    """Have all older blocks read once more; the reasons of the sweeps that were made
    meanwhile.
    """
    before = last_sweep(grid)
    execute(grid, AGAIN, head=grid.chain.block_number())
    read = "SELECT 1 FROM cursors WHERE stream = 'history' AND block_number <= 1"
    wait_until(lambda: bool(rows(grid, read)), "all blocks to be read", 90.0, 0.5)
    return [report["why"] for report in reports(grid, before)]


@only_ssh(OnlySsh.NO_DIFFERENCE)
def test_sweep__older_claims__are_read_without_a_sweep_until_one_is_unknown(
    grid: Grid, customer: Account
) -> None:
    """Of known claims no sweep is made, ever. One for another reason (SLURM did not
    answer in time) reads them itself: then nothing is shown, and they are read once
    more.
    """
    job_id = running_job(grid, customer)
    sweep(grid)
    reasons: list[list[str]] = []

    def read_without_a_sweep() -> bool:
        reasons.append(read_older_claims(grid))
        return not reasons[-1]

    wait_until(read_without_a_sweep, "a reading during which no sweep is made", 180.0)
    assert not [why for reading in reasons for why in reading if OLDER in why]
    unknown = [
        f"DELETE FROM {table} WHERE job_id = :id"  # noqa: S608  our own tables
        for table in ("effects", "callbacks", "events", "jobs")
    ]
    first_the_job = (
        # as the ledger does: no deadlock with a look under way
        "SELECT 1 FROM jobs WHERE job_id = :id FOR UPDATE"
    )

    def forget_the_job() -> None:
        """The sweep that takes a job in sets the scan back to its claim: the next scan
        must not meet the claim first.
        """
        with (
            ledger(grid) as engine,
            advisory_lock(engine, cluster_lock("devgrid", "scan")),
        ):
            execute(
                grid,
                first_the_job,
                AGAIN,
                READ_ON,
                *unknown,
                head=grid.chain.block_number(),
                id=job_id,
            )

    def taken_in_for_an_older_claim() -> bool:
        before = last_sweep(grid)
        forget_the_job()
        wait_until(
            lambda: state_if_known(grid, job_id) == "RUNNING",
            "the job to be taken in",
            90.0,
            0.5,
        )

        def takers() -> list[dict[str, Any]]:
            return [
                report
                for report in reports(grid, before)
                if "never_seen" in found(report, job_id)
            ]

        wait_until(
            lambda: bool(takers()), "the sweep that took it in to be kept", 60.0, 0.2
        )
        (took_in,) = takers()
        return OLDER in took_in["why"]

    wait_until(taken_in_for_an_older_claim, "no other sweep to come first", 240.0)
    assert len(slurm_ids(grid, job_id)) == 1
    end(grid, customer, job_id)


@rest_in_chaos
def test_sweep__slurmctld_hangs__nothing_is_concluded(
    grid: Grid, customer: Account
) -> None:
    job_id = running_job(grid, customer)
    slurmctld = grid.processes.find("slurmctld")
    grid.processes.kill(slurmctld, signal.SIGSTOP, wait=False)
    try:
        report = sweep(grid)
    finally:
        grid.processes.kill(slurmctld, signal.SIGCONT, wait=False)
    assert ("slurm" in report["unseen"], report["slurm_jobs"], report["found"]) == (
        True,
        None,
        {},
    )
    assert report["again_s"] <= 60
    assert sweep_that_sees_all(grid)["found"] == {}
    assert live(grid, job_id)
    end(grid, customer, job_id)


@rest_in_chaos
def test_sweep__slurmctld_was_started_again__one_is_made(grid: Grid) -> None:
    before = last_sweep(grid)
    grid.processes.kill(grid.processes.find("slurmctld"))
    slurm_of(grid).start_controller()
    because = "SELECT 1 FROM reconciliations WHERE report ->> 'why' LIKE '%slurmctld runs since%' AND id > :before"
    wait_until(lambda: bool(rows(grid, because, before=before)), "the sweep", 90.0, 0.5)


def lose_state(grid: Grid) -> None:
    """SLURM forgets all of its jobs, and begins with the first id again."""
    slurm = slurm_of(grid)
    grid.processes.kill(grid.processes.find("slurmctld"))
    shutil.rmtree(slurm.layout.folder / "state")
    (slurm.layout.folder / "state").mkdir()
    slurm.start_controller()
    wait_until(
        lambda: bool(rows(grid, "SELECT 1 FROM facts WHERE name = 'provider.address'")),
        "the worker",
        60.0,
    )


def until_found(grid: Grid, job_id: str, kind: str) -> None:
    """In any sweep: the fleet makes its own after a restart of slurmctld and while
    something is in doubt, and what it finds first, no other one finds again.
    """
    wait_until(
        lambda: bool(sweep(grid)) and kind in ever_found(grid, job_id),
        f"{job_id} to be {kind}",
        120.0,
        GRACE_S,
    )


@pytest.mark.extended
@only_ssh(OnlySsh.START)
def test_sweep__slurmctld_killed_before_it_saved_a_job__job_runs_once(
    grid: Grid, customer: Account
) -> None:
    slurm, nodes = slurm_of(grid), "nodename=node[1-4]"
    slurm.run("scontrol", "update", nodes, "state=drain", "reason=test")
    state_folder, saved = slurm.layout.folder / "state", slurm.layout.folder / "saved"
    wait_until(
        lambda: copied(state_folder, saved), "a copy of slurmctld's state", 30.0, 0.2
    )
    job_id = grid.submit_script(customer, "#!/bin/bash\ndate >> runs\n")
    wait_until(
        lambda: state_if_known(grid, job_id) == "QUEUED", "the submission", 60.0, 0.05
    )
    grid.processes.kill(grid.processes.find("slurmctld"))
    shutil.rmtree(state_folder)
    saved.rename(state_folder)
    slurm.start_controller()
    slurm.run("scontrol", "update", nodes, "state=resume")
    until_found(grid, job_id, "forgotten")
    assert wait_for_end(grid, job_id, 90).status is ChainStatus.FINISHED
    story = journal(grid, job_id)
    assert (story.count("SubmissionLostBySlurm"), story.count("Submitted")) == (1, 2)
    assert len(slurm_ids(grid, job_id)) == 1
    assert (
        len((grid.users.home(customer.address) / "runs").read_text().splitlines()) == 1
    )


@pytest.mark.extended
@rest_in_chaos
def test_sweep__slurm_lost_its_state__jobs_wait_until_slurm_knows_other_jobs(
    grid: Grid, customer: Account
) -> None:
    first, second = running_job(grid, customer), running_job(grid, customer)
    lose_state(grid)
    until_found(grid, first, "needs_operator")  # SLURM lists nothing at all
    assert "sweep_contradiction" in alarm_names(grid)
    assert {grid.chain.job(job_id).status for job_id in (first, second)} == {
        ChainStatus.RUNNING
    }
    with ledger(grid) as engine:  # the operator's word for one of them
        assert operator_actions.mark_lost(
            Ledger(engine, "devgrid", dispatch=lambda _: None), [first]
        ) == [first]
    job = wait_for_end(grid, first)
    assert (job.status, job.final_cost_wei) == (ChainStatus.PANICKED, 0)
    assert grid.chain.job(second).status is ChainStatus.RUNNING
    # When SLURM knows others, the second one really is gone, unless no process was
    # there to hear of its end. The fleet makes sweeps of its own: before another job is
    # there, no process must hear.
    grid.processes.kill(grid.fleet.find("callbacks"))
    execute(
        grid,
        "UPDATE periodic_runs SET succeeded_at = succeeded_at - interval '1 min' WHERE name LIKE 'callbacks%'",
    )
    try:
        other = running_job(grid, customer)
        # A callback from before that comes late ends a doubt for one sweep. The next
        # sweep doubts, and later ones hold it.
        seen = list[list[str]]()

        def undecided() -> bool:
            seen.append(found(sweep_that_sees_all(grid), second))
            return seen[-1] == ["needs_operator"]

        for _ in range(2):
            try:
                wait_until(
                    undecided, f"{second} to be left to the operator", 60.0, GRACE_S
                )
            except TimeoutError as error:
                raise AssertionError(
                    f"{error}; found {seen[-10:]}, journal {journal(grid, second)}"
                ) from error
        assert "lost" not in ever_found(grid, second)
        assert grid.chain.job(second).status is ChainStatus.RUNNING
    finally:
        grid.fleet.start_callbacks()
    until_found(grid, second, "lost")
    job = wait_for_end(grid, second)
    assert (job.status, job.final_cost_wei) == (ChainStatus.PANICKED, 0)
    wait_until(
        lambda: bool(sweep(grid)) and "sweep_contradiction" not in alarm_names(grid),
        "the alarm to be over",
        60.0,
    )
    end(grid, customer, other)


@only_ssh(OnlySsh.ACCOUNTING)
def test_sweep__slurm_lost_its_state__job_ends_with_accountings_figures(
    grid: Grid, customer: Account
) -> None:
    """slurmctld tells slurmdbd, when it starts without a state, that all jobs have
    ended; then it gives the id again.
    """
    grid.environment["SLURM_ACCOUNTING"] = "true"
    grid.processes.kill(grid.fleet.find("worker"))
    grid.fleet.start_worker()
    with no_callbacks(grid):
        job_id = running_job(grid, customer)
        wait_until(
            lambda: accounted(grid, job_id)[:1] == ["RUNNING"],
            "accounting to have it running",
            60.0,
            0.2,
        )
        grid.processes.kill(grid.fleet.find("worker"))
        drop_effects(grid, job_id)
        lose_state(grid)
        others = ids_until(grid, customer, id_of(grid, job_id))
        grid.fleet.start_worker()
        until_found(grid, job_id, "end_not_recorded")
        job = wait_for_end(grid, job_id)
    assert found_before_its_report(grid, job_id) == {"end_not_recorded"}
    state_if_known, elapsed_s = accounted(grid, job_id)
    assert (state_if_known, job.status) == ("CANCELLED", ChainStatus.CANCELLED)
    assert row_of(grid, job_id).elapsed_s == int(elapsed_s)
    slurm_of(grid).run("scancel", *map(str, others))


def accounted(grid: Grid, job_id: str) -> list[str]:
    """State and elapsed seconds as accounting has them, under the job's name."""
    shown = [
        "sacct",
        "--noheader",
        "--parsable2",
        "--allocations",
        "--duplicates",
        "--starttime=now-1days",
    ]
    told = (
        slurm_of(grid)
        .run(*shown, f"--name={job_id}", "--format=State,ElapsedRaw")
        .stdout.splitlines()
    )
    assert len(told) <= 1, told
    return told[0].split("|") if told else []


def ids_until(grid: Grid, customer: Account, last: int) -> list[int]:
    """Jobs of the customer's own that wait; the last one has this id."""
    given = [sbatch_without_the_fleet(grid, customer.address, "--hold")]
    while given[-1] < last:
        given.append(sbatch_without_the_fleet(grid, customer.address, "--hold"))
    assert given[-1] == last
    return given


@only_ssh(OnlySsh.NO_DIFFERENCE)
def test_sweep__unread_callback_and_unfollowed_transaction__dispatches_their_tasks(
    grid: Grid, customer: Account
) -> None:
    """The sweep is made by a process of its own: a worker also looks for what was
    forgotten, once a second.
    """
    gate = grid.users.home(customer.address) / "go"
    ends = running_job(
        grid, customer, "#!/bin/bash\nuntil [ -e ~/go ]; do sleep 0.1; done\n"
    )
    scontrol(grid, "update", "nodename=node[1-4]", "state=drain", "reason=test")
    waits = grid.submit_script(customer, LONG)
    wait_until(
        lambda: "SlurmJobIdentified" in journal(grid, waits), "a look", 60.0, 0.1
    )
    sent = "SELECT 1 FROM transactions WHERE job_id = :id AND purpose = 'report FINISHED' AND state = :state"
    with grid.no_blocks():
        gate.touch()
        wait_until(
            lambda: bool(rows(grid, sent, id=ends, state="SENT")),
            "a transaction",
            60.0,
            0.1,
        )
        grid.processes.kill(grid.fleet.find("worker"))
    scontrol(grid, "update", "nodename=node[1-4]", "state=resume")
    unread = "SELECT 1 FROM callbacks WHERE job_id = :id AND read_at IS NULL"
    wait_until(lambda: bool(rows(grid, unread, id=waits)), "a callback", 60.0, 0.1)
    assert wait_for_end(grid, ends).status is ChainStatus.FINISHED
    execute(
        grid,
        "UPDATE callbacks SET received_at = received_at - interval '2 minutes' WHERE read_at IS NULL",
        "UPDATE transactions SET created_at = created_at - interval '2 minutes' WHERE state = 'SENT'",
    )
    before = last_sweep(grid)
    with Redis(
        unix_socket_path=grid.environment["BROKER_URL"].removeprefix("redis+socket://")
    ) as broker:
        broker.flushall()
        subprocess.run(
            [sys.executable, "-c", SWEEP],
            cwd=REPOSITORY,
            env=grid.environment,
            check=True,
        )
        assert "supervisor_tasks.tasks.poll_jobs" in waiting(broker, "devgrid.slurm")
        assert "supervisor_tasks.tasks.collect_receipts" in waiting(
            broker, "devgrid.chain"
        )
    grid.fleet.start_worker()
    wait_for(grid, waits, {ChainStatus.RUNNING})
    wait_until(
        lambda: bool(rows(grid, sent, id=ends, state="MINED")), "the tracker", 60.0, 0.1
    )
    stale = [report["stale"] for report in reports(grid, before)]
    assert stale[0]["callbacks"] >= 1
    assert stale[0]["transactions"] >= 1
    end(grid, customer, waits)


SWEEP = """
from supervisor_tasks import app
from supervisor_tasks.messaging.queues import Queue
from supervisor_tasks.config.needs import Need
from supervisor_tasks.config.settings import load_or_exit
from supervisor_tasks.bootstrap import build
from supervisor_tasks.reconciliation.run import sweep
worker = build(load_or_exit(Need.SLURM), {Queue.SLURM}, app)
sweep(worker.context, "a test")
worker.close()
"""


def waiting(broker: Any, queue: str) -> set[str]:
    """The tasks whose messages wait in a queue."""
    return {
        json.loads(message)["headers"]["task"]
        for message in broker.lrange(queue, 0, -1)
    }


def test_sweep__at_its_end__nothing_is_parked(grid: Grid) -> None:
    assert parked(grid) == []
