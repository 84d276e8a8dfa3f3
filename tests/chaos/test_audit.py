"""The audit finds nothing on a clean grid, and finds each kind of violation."""

import copy
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from devgrid.grid import Grid
from devgrid.machine import deadline
from devgrid.options import GridOptions
from supervisor_tasks.jobs.model import ChainStatus
from tests.support import chaos_jobs
from tests.support.audit import CHECKS, audit, violations
from tests.support.audit_evidence import Evidence, OnChainJob, gather
from tests.support.grid_assertions import ledger, rows, wait_for, wait_for_end
from tests.support.grids import BLOCK_TIME_S
from tests.support.slurmctld_log import UnsavedEnd


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    running = Grid.start(GridOptions(block_time_s=BLOCK_TIME_S))
    try:
        running.fleet.start(flower=False)
        customer = running.new_customer()
        for job_id in (
            chaos_jobs.finishing(running, customer),
            chaos_jobs.failing(running, customer),
        ):
            wait_for_end(running, job_id)
        cancelled = running.submit_script(
            customer, chaos_jobs.marking(running, "sleep 600")
        )
        chaos_jobs.expect(running, cancelled, "CANCELLED", runs=1)
        wait_for(running, cancelled, {ChainStatus.RUNNING})
        running.chain.customers.cancel_job(customer, cancelled)
        wait_for_end(running, cancelled)
        chaos_jobs.wait_for_rest(running)
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def evidence(grid: Grid) -> Evidence:
    return gather(grid.folder)


def test_audit__grid_at_rest__everything_examined_and_nothing_wrong(
    evidence: Evidence,
) -> None:
    findings = audit(evidence)
    assert violations(findings) == []
    without_items = {found.check.name for found in findings if not found.examined}
    assert without_items <= {
        "acknowledged",
        "forgotten_by_slurm",
    }  # only the reporter called, and slurmctld was not killed


def test_program__a_row_is_wrong__prints_it_and_ends_with_status_1(grid: Grid) -> None:
    """With a real ledger: the program finds nothing before a row is changed, and finds
    the changed row.
    """

    def run() -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "tests.support.audit", str(grid.folder)]
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=deadline(120)
        )

    good = run()
    assert (good.returncode, good.stderr) == (0, ""), good.stdout
    settled = rows(
        grid, "SELECT job_id, elapsed_s FROM jobs WHERE slurm_id IS NOT NULL LIMIT 1"
    )[0]
    change = text("UPDATE jobs SET elapsed_s = elapsed_s + :by WHERE job_id = :id")
    with ledger(grid) as engine, engine.begin() as connection:
        connection.execute(change, {"by": 60, "id": settled.job_id})
    bad = run()
    with ledger(grid) as engine, engine.begin() as connection:
        connection.execute(change, {"by": -60, "id": settled.job_id})
    assert bad.returncode == 1
    assert (
        f"VIOLATION ledger_figures: {settled.job_id} ran {settled.elapsed_s + 60} s in the ledger"
        in bad.stdout
    )


# --- one thing wrong at a time --------------------------------------------------------


def finished(evidence: Evidence) -> OnChainJob:
    return next(job for job in evidence.ours if job.status == "FINISHED")


def with_job(evidence: Evidence, **changes: Any) -> Evidence:
    job = replace(finished(evidence), **changes)
    return replace(evidence, jobs={**evidence.jobs, job.job_id: job})


def with_slurm(evidence: Evidence, **changes: Any) -> Evidence:
    seen = replace(evidence.slurm_jobs(finished(evidence).job_id)[0], **changes)
    return replace(evidence, slurm={**evidence.slurm, seen.slurm_id: seen})


def forgotten_by_slurm(evidence: Evidence, **changes: Any) -> Evidence:
    """As if slurmctld had accepted a job, forgotten it and purged its files; the job is
    panicked and costs nothing.
    """
    job = finished(evidence)
    slurm_id = evidence.slurm_jobs(job.job_id)[0].slurm_id
    slurm = {
        number: seen for number, seen in evidence.slurm.items() if number != slurm_id
    }
    start_records = {
        job_id: ids
        for job_id, ids in evidence.start_records.items()
        if job_id != job.job_id
    }
    panicked = replace(job, **{"status": "PANICKED", "final_cost_wei": 0, **changes})
    jobs_now = {**evidence.jobs, job.job_id: panicked}
    return replace(
        evidence,
        slurm=slurm,
        start_records=start_records,
        jobs=jobs_now,
        purged=Counter([slurm_id]),
    )


# the checks that find a panicked job
GIVEN_UP = {"expected", "not_given_up", "right_status", "ran_once"}


def test_panicked__forgotten_by_slurm__is_no_fault_of_ours(evidence: Evidence) -> None:
    lost = forgotten_by_slurm(evidence)
    assert GIVEN_UP.isdisjoint(wrong(lost))
    assert {found.check.name: found.examined for found in audit(lost)}[
        "forgotten_by_slurm"
    ] == 1


def test_panicked__slurm_never_logged_that_it_forgot_the_job__is_ours(
    evidence: Evidence,
) -> None:
    assert wrong(replace(forgotten_by_slurm(evidence), purged=Counter())) >= GIVEN_UP


def test_panicked__slurm_forgot_one_job_and_two_have_its_id__both_are_ours(
    evidence: Evidence,
) -> None:
    lost = forgotten_by_slurm(evidence)
    row = next(
        row for row in lost.ledger["jobs"] if row["job_id"] == finished(evidence).job_id
    )
    other = {**row, "job_id": "0x" + "9" * 64}
    assert (
        wrong(
            replace(lost, ledger={**lost.ledger, "jobs": [*lost.ledger["jobs"], other]})
        )
        >= GIVEN_UP
    )


def test_panicked__slurm_has_a_record_of_the_job__is_ours(evidence: Evidence) -> None:
    lost = replace(forgotten_by_slurm(evidence), slurm=evidence.slurm)
    assert wrong(lost) >= {"expected", "not_given_up", "right_status"}


def test_finished__and_forgotten_after_slurm_had_logged_the_end__is_right(
    evidence: Evidence,
) -> None:
    job = finished(evidence)
    lost = forgotten_by_slurm(
        evidence, status="FINISHED", final_cost_wei=job.final_cost_wei
    )
    slurm_id = evidence.slurm_jobs(job.job_id)[0].slurm_id
    assert (
        wrong(
            replace(lost, unsaved=[UnsavedEnd(slurm_id, "COMPLETED", 1, 0, lost=True)])
        )
        == set()
    )
    assert wrong(
        replace(lost, unsaved=[UnsavedEnd(slurm_id, "FAILED", 1, 256, lost=True)])
    ) >= {"forgotten_by_slurm"}


def test_finished__and_running_again_in_slurms_records_since__is_right(
    evidence: Evidence,
) -> None:
    """The contract has the end that SLURM logged first. The record is that of the
    second run, which no node had.
    """
    seen = evidence.slurm_jobs(finished(evidence).job_id)[0]
    again = with_slurm(evidence, state="CANCELLED", elapsed_s=75)
    assert wrong(again) == {"right_status", "minutes", "ledger_figures"}
    first = UnsavedEnd(
        seen.slurm_id, seen.state, seen.elapsed_s, seen.exit_status, lost=False
    )
    assert wrong(replace(again, unsaved=[first])) == set()
    assert "minutes" in wrong(replace(again, unsaved=[replace(first, elapsed_s=130)]))


def given_up_by_slurmd(evidence: Evidence) -> Evidence:
    """As if a slurmd that had stood still could not launch the job that must finish,
    and had it cancelled.
    """
    job = finished(evidence)
    cancelled = with_job(
        with_slurm(evidence, state="CANCELLED", elapsed_s=0), status="CANCELLED"
    )
    slurm_id = evidence.slurm_jobs(job.job_id)[0].slurm_id
    without_record = {
        job_id: ids
        for job_id, ids in evidence.start_records.items()
        if job_id != job.job_id
    }
    return replace(
        cancelled,
        start_records=without_record,
        unlaunched={slurm_id},
        kill_requested={slurm_id},
    )


OF_A_CANCELLED_JOB = {"expected", "ran_once"}


def test_cancelled__by_a_slurmd_that_could_not_launch_it__is_slurms_own_doing(
    evidence: Evidence,
) -> None:
    assert OF_A_CANCELLED_JOB.isdisjoint(wrong(given_up_by_slurmd(evidence)))
    once_before = replace(
        given_up_by_slurmd(evidence), start_records=evidence.start_records
    )  # and slurmctld was killed before it saved that
    assert "expected" not in wrong(once_before)


def test_cancelled__and_no_slurmd_logged_why__is_ours(evidence: Evidence) -> None:
    assert (
        wrong(replace(given_up_by_slurmd(evidence), unlaunched=set()))
        >= OF_A_CANCELLED_JOB
    )


def test_cancelled__by_slurmctld_without_a_request__is_slurms_own_doing(
    evidence: Evidence,
) -> None:
    slurm_id = evidence.slurm_jobs(finished(evidence).job_id)[0].slurm_id
    again = with_job(with_slurm(evidence, state="CANCELLED"), status="CANCELLED")
    assert wrong(again) == {"ledger_agrees"}
    assert "expected" in wrong(replace(again, kill_requested={slurm_id}))


def test_failed__by_the_loss_of_its_node__is_slurms_own_doing(
    evidence: Evidence,
) -> None:
    def failed(state: str) -> Evidence:
        return with_job(with_slurm(evidence, state=state), status="FAILED")

    assert "expected" not in wrong(failed("NODE_FAIL"))
    assert "expected" in wrong(failed("FAILED"))


def test_finished__though_a_slurmd_had_it_cancelled__is_ours(
    evidence: Evidence,
) -> None:
    job = finished(evidence)
    on_chain_only = replace(
        given_up_by_slurmd(evidence), jobs={**evidence.jobs, job.job_id: job}
    )
    assert wrong(on_chain_only) >= {"right_status", "ran_once"}


def wrong(evidence: Evidence) -> set[str]:
    return {found.check.name for found in audit(evidence) if found.violations}


def with_row(evidence: Evidence, table: str, **changes: Any) -> Evidence:
    ledger = copy.deepcopy(evidence.ledger)
    row = next(
        row
        for row in ledger[table]
        if row.get("job_id") in (finished(evidence).job_id, None)
    )
    row.update(changes)
    return replace(evidence, ledger=ledger)


def without_rows(evidence: Evidence, table: str) -> Evidence:
    return replace(evidence, ledger={**evidence.ledger, table: []})


def with_another_row(evidence: Evidence, table: str, **changes: Any) -> Evidence:
    rows = evidence.ledger[table]
    return replace(
        evidence, ledger={**evidence.ledger, table: [*rows, {**rows[0], **changes}]}
    )


def twin(evidence: Evidence) -> Evidence:
    seen = replace(
        evidence.slurm_jobs(finished(evidence).job_id)[0], slurm_id=4711, elapsed_s=1
    )
    return replace(evidence, slurm={**evidence.slurm, 4711: seen})


def second_run_marked(evidence: Evidence) -> Evidence:
    job_id = finished(evidence).job_id
    return replace(
        evidence, start_records={**evidence.start_records, job_id: {1, 4711}}
    )


def longer_bill(evidence: Evidence) -> Evidence:
    """The report of the end has one minute more than SLURM's elapsed time."""
    sent = [
        replace(
            call,
            arguments=(*call.arguments[:2], call.arguments[2] + 1, *call.arguments[3:]),
        )
        if call.call == "providerSetJobStatus"
        else call
        for call in evidence.transactions
    ]
    return replace(evidence, transactions=sent)


def written_twice(evidence: Evidence) -> Evidence:
    report = next(
        call for call in evidence.transactions if call.call == "providerSetJobStatus"
    )
    again = replace(report, hash="0x" + "1" * 64, nonce=report.nonce + 1000)
    return replace(evidence, transactions=[*evidence.transactions, again])


def step_skipped(evidence: Evidence) -> Evidence:
    kept = [step for step in evidence.transitions if step.after != "RUNNING"]
    return replace(evidence, transitions=kept)


def nonce_lost(evidence: Evidence) -> Evidence:
    gone = evidence.ledger["transactions"][1]["nonce"]
    rows = [row for row in evidence.ledger["transactions"] if row["nonce"] != gone]
    return replace(evidence, ledger={**evidence.ledger, "transactions": rows})


def other_bytes(evidence: Evidence) -> Evidence:
    def changed(row: dict[str, Any]) -> dict[str, Any]:
        return row | {"raw": b"other bytes"} if "raw" in row else row

    ledger = {
        table: list(map(changed, rows)) for table, rows in evidence.ledger.items()
    }
    return replace(evidence, ledger=ledger)


def ids_of_finished(evidence: Evidence) -> tuple[str, int]:
    seen = evidence.slurm_jobs(finished(evidence).job_id)[0]
    return seen.job_id, seen.slurm_id


def callback(
    job_id: str, slurm_id: int, status: int = 7, duration_s: int = 0, exit_code: int = 0
) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "slurm_id": slurm_id,
        "status": status,
        "duration_s": duration_s,
        "exit_code": exit_code,
    }


def forged_in_place_of_the_end(evidence: Evidence, **forged: int) -> Evidence:
    """The hook's event is lost, and a forged callback about the same job and id has
    come.
    """
    ids = ids_of_finished(evidence)
    callbacks = [
        {**row, **forged}
        if (row["job_id"], row["slurm_id"], row["status"]) == (*ids, 7)
        else row
        for row in evidence.ledger["callbacks"]
    ]
    assert callbacks != evidence.ledger["callbacks"]
    return replace(evidence, ledger={**evidence.ledger, "callbacks": callbacks})


def failed_without_slurm(evidence: Evidence) -> Evidence:
    """A job that failed and that SLURM does not have; its customer meant it to run."""
    failed = next(job.job_id for job in evidence.ours if job.status == "FAILED")
    slurm = {
        number: seen for number, seen in evidence.slurm.items() if seen.job_id != failed
    }
    return replace(evidence, slurm=slurm, purged=Counter())


def test_failed__its_script_is_not_there__is_right_without_slurm(
    evidence: Evidence,
) -> None:
    failed = next(job.job_id for job in evidence.ours if job.status == "FAILED")
    lost = replace(
        failed_without_slurm(evidence),
        expected={failed: {"ends": ["FAILED"], "runs": 0}},
    )
    assert "right_status" not in wrong(lost)


def test_acknowledged__of_a_plugin_of_another_version__is_not_kept(
    evidence: Evidence,
) -> None:
    other = [callback(*ids_of_finished(evidence), status=status) for status in (5, 11)]
    assert "acknowledged" not in wrong(replace(evidence, acknowledged=other))


def test_audit__callbacks_of_a_job_are_full__a_missing_callback_is_right(
    evidence: Evidence,
) -> None:
    ids = ids_of_finished(evidence)
    row = evidence.ledger["callbacks"][0]
    forged = [
        {**row, **callback(*ids, duration_s=10**6 + number)} for number in range(1000)
    ]
    others = [
        row
        for row in evidence.ledger["callbacks"]
        if (row["job_id"], row["slurm_id"]) != ids
    ]
    full = replace(
        evidence, ledger={**evidence.ledger, "callbacks": [*others, *forged]}
    )
    assert {"hook_events_stored", "acknowledged"}.isdisjoint(
        wrong(replace(full, acknowledged=[callback(*ids)]))
    )
    short = replace(full, ledger={**full.ledger, "callbacks": [*others, *forged[1:]]})
    assert wrong(replace(short, acknowledged=[callback(*ids)])) >= {
        "hook_events_stored",
        "acknowledged",
    }


def test_audit__unknown_callbacks_were_purged__only_a_known_job_must_have_its_own(
    evidence: Evidence,
) -> None:
    unknown, known = (
        callback("0x" + "e" * 64, 1),
        callback(*ids_of_finished(evidence), duration_s=4711),
    )
    fact = {"cluster": "devgrid", "name": "callbacks.unknown_checked_to", "value": "7"}
    purged = replace(
        evidence, ledger={**evidence.ledger, "facts": [*evidence.ledger["facts"], fact]}
    )
    assert "acknowledged" in wrong(replace(evidence, acknowledged=[unknown]))
    assert "acknowledged" not in wrong(replace(purged, acknowledged=[unknown]))
    assert "acknowledged" in wrong(replace(purged, acknowledged=[known]))


def test_hook_event__not_stored_and_noted_as_lost__is_right(
    evidence: Evidence,
) -> None:
    silent = without_rows(evidence, "callbacks")
    assert "hook_events_stored" in wrong(silent)
    noted = replace(
        silent, lost_ends={seen.slurm_id for seen in evidence.hook_finished}
    )
    assert "hook_events_stored" not in wrong(noted)


def test_hook_event__the_hook_did_not_finish_and_slurmctld_lived__is_wrong(
    grid: Grid,
) -> None:
    """A hook that dies with its slurmctld is no violation; here slurmctld ran all the
    time.
    """
    finished = grid.folder / "slurm" / "reported_ends"
    lines = finished.read_text()
    assert gather(grid.folder).hook_unfinished == []
    last = [line for line in lines.splitlines() if "|COMPLETED|" in line][-1]
    finished.write_text(lines.replace(f"{last}\n", ""))
    try:
        assert "hook_events_stored" in wrong(gather(grid.folder))
    finally:
        finished.write_text(lines)


Doctored = Callable[[Evidence], Evidence]
DOCTORED: dict[str, list[Doctored]] = {
    "something_to_check": [
        lambda e: replace(e, claims=[]),
        lambda e: replace(e, jobs={}),
    ],
    "ended": [lambda e: with_job(e, status="RUNNING")],
    "expected": [
        lambda e: with_job(e, status="CANCELLED"),
        lambda e: with_job(e, exit_code=9),
    ],
    "not_given_up": [
        lambda e: with_job(e, status="PANICKED"),
        lambda e: replace(e, refused=[finished(e).job_id]),
        lambda e: replace(e, refused=[finished(e).job_id], expected={}),
    ],
    "forgotten_by_slurm": [lambda e: forgotten_by_slurm(e, status="FINISHED")],
    "right_status": [
        lambda e: replace(forgotten_by_slurm(e), purged=Counter()),
        lambda e: with_slurm(e, state="NODE_FAIL"),
        lambda e: with_slurm(e, exit_status=256),
        lambda e: replace(e, slurm={}),
        failed_without_slurm,
        lambda e: replace(failed_without_slurm(e), expected={}),
    ],
    "steps": [step_skipped],
    "minutes": [longer_bill, lambda e: with_slurm(e, elapsed_s=60)],
    "paid": [lambda e: with_job(e, final_cost_wei=1)],
    "ran_once": [
        twin,
        second_run_marked,
        lambda e: replace(e, start_records={}, slurm={}),
        lambda e: replace(
            e, expected={finished(e).job_id: {"ends": ["FINISHED"], "runs": 0}}
        ),
    ],
    "no_twins": [twin],
    "none_left": [lambda e: with_slurm(e, live=True)],
    "hook_events_stored": [
        lambda e: without_rows(e, "callbacks"),
        lambda e: forged_in_place_of_the_end(e, status=8),
        lambda e: forged_in_place_of_the_end(e, duration_s=4711),
        lambda e: forged_in_place_of_the_end(e, exit_code=9),
        lambda e: replace(
            e,
            hook_finished=[
                replace(seen, state="NODE_FAIL") for seen in e.hook_finished
            ],
        ),
    ],
    "acknowledged": [
        lambda e: replace(e, acknowledged=[callback("0x0", 1)]),
        lambda e: replace(
            e, acknowledged=[callback(*ids_of_finished(e), duration_s=4711)]
        ),
        lambda e: replace(e, acknowledged=[callback(*ids_of_finished(e), exit_code=9)]),
    ],
    "callbacks_read": [
        lambda e: with_row(e, "callbacks", read_at=None),
        lambda e: replace(e, spooled=["1-1-end"]),
        lambda e: replace(e, rejected=["1-1-end"]),
    ],
    "nonces": [
        nonce_lost,
        lambda e: replace(e, waiting_nonces=[7]),
        lambda e: replace(e, next_nonce=2),
    ],
    "signed_bytes": [other_bytes],
    "one_write_an_idempotency_key": [written_twice],
    "fates": [
        lambda e: with_row(e, "transactions", state="SENT"),
        lambda e: with_row(e, "transactions", state="FOREIGN"),
        lambda e: without_rows(e, "signatures"),
    ],
    "one_ledger": [lambda e: with_another_row(e, "jobs", of_ledger=1)],
    "claims": [
        lambda e: without_rows(e, "jobs"),
        lambda e: with_row(e, "jobs", time_limit_min=1),
    ],
    "ledger_agrees": [
        lambda e: with_row(e, "jobs", state="ENDED"),
        lambda e: with_row(e, "jobs", chain_status=6),
    ],
    "ledger_figures": [
        lambda e: with_row(e, "jobs", elapsed_s=61),
        lambda e: with_row(e, "jobs", slurm_id=4711),
    ],
    "nothing_left": [
        lambda e: with_row(e, "effects", done_at=None),
        lambda e: with_row(e, "effects", done_at=None, parked_at=1),
    ],
}


def test_audit__doctored_evidence__covers_every_check() -> None:
    assert DOCTORED.keys() == {check.name for check in CHECKS}


@pytest.mark.parametrize(
    ("name", "doctor"),
    [(name, doctor) for name, all_of in DOCTORED.items() for doctor in all_of],
)
def test_audit__doctored_evidence__is_found_by_its_check(
    evidence: Evidence, name: str, doctor: Doctored
) -> None:
    findings = {found.check.name: found for found in audit(doctor(evidence))}
    assert findings[name].violations
