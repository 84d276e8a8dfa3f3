"""The commands that show jobs."""

import re

import pytest
from sqlalchemy import Engine, text

from devgrid.machine import deadline
from supervisor_tasks.jobs.events import ChainStatusObserved
from supervisor_tasks.jobs.model import ChainStatus, JobId
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.status_queries import Overview
from tests.support.commands import supervisor
from tests.support.ledger import bring_to_queued, claim, job_id
from tests.support.operator_commands import (
    Run,
    give_back,
    in_terminal,
    open_report,
    said,
)


def test_jobs__by_state__only_those(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    ledger.record(JobChange(job_id(2), claim(2)))
    ledger.record(
        JobChange(job_id(1), ChainStatusObserved(ChainStatus.CANCELLED, (9, 0)))
    )
    assert [row["job_id"] for row in said(run("job", "list", "-o", "json"))] == [
        job_id(2)
    ]
    assert [
        row["job_id"]
        for row in said(run("job", "list", "--state", "settled", "-o", "json"))
    ] == [job_id(1)]
    assert "SEATTLED" in run("job", "list", "--state", "SEATTLED", status=2).stderr


def test_job_show__job_with_a_callback__tells_all_in_the_order_of_time(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    with ledger.engine.begin() as connection:
        insert = (
            "INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer)"
            " VALUES ('here', :job, 101, 7, 61, 0, 'test')"
        )
        connection.execute(text(insert), {"job": job_id(1)})
    document = said(run("job", "show", job_id(1), "-o", "json"))
    assert document["job"]["slurm_id"] == 101
    assert document["job"]["chain_status"] == "SCHEDULED"
    journal = [
        entry["what"] for entry in document["timeline"] if entry["source"] == "journal"
    ]
    assert journal == ["Claimed", "ScriptFetched", "SubmitStarted", "Submitted"]
    assert {entry["source"] for entry in document["timeline"]} == {
        "journal",
        "effect",
        "callback",
    }
    assert [entry["at"] for entry in document["timeline"]] == sorted(
        entry["at"] for entry in document["timeline"]
    )


def test_job__unknown_ambiguous_or_no_id__is_told(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 0x1A)
    bring_to_queued(ledger, 0x1B)
    several = run("job", "show", "0x00", status=1).stderr
    assert "found several jobs" in several
    assert job_id(0x1A) in several
    assert "found no job" in run("job", "show", "0xff", status=1).stderr
    assert (
        "expected one, by the beginning of its id"
        in run("job", "show", "0x%", status=1).stderr
    )
    assert said(run("job", "show", job_id(0x1A), "-o", "json"))["job"][
        "job_id"
    ] == job_id(0x1A)


@pytest.mark.usefixtures("lists_of_one")
def test_job_list__jobs_were_given_back__has_room_for_those_that_are_not_over(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    give_back(ledger, 2)
    assert run("job", "list", "-o", "name").stdout.split() == [job_id(1)]
    of_state = run("job", "list", "--state", "refused", "-o", "name").stdout
    assert of_state.split() == [job_id(2)]
    overview = Overview(ledger.engine, "here")
    assert [row["state"] for row in overview.by_state()] == ["QUEUED"]
    assert [row["job_id"] for row in overview.lately_over(5)] == [job_id(2)]
    assert overview.named(f"customer:{claim(1).customer}") == [job_id(1)]


def test_job_list_and_show__job_of_another_cluster__is_not_seen(
    run: Run, ledger: Ledger
) -> None:
    other = Ledger(ledger.engine, "there", lambda _: None)
    other.record(JobChange(JobId(job_id(5)), claim(5)))
    assert said(run("job", "list", "-o", "json")) == []
    assert "found no job" in run("job", "show", job_id(5), status=1).stderr


def test_job__by_slurm_id_or_customer__is_found(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    for name in ("slurm:101", f"customer:0x{'2' * 40}", "customer:0x22", job_id(1)):
        assert run("job", "show", name, "-o", "name").stdout.split() == [job_id(1)]
    for name in (
        "slurm:102",
        "slurm:",
        "slurm:0x1",
        "customer:0x23",
        "witness:1",
        "slurm:99999999999999999999",
    ):
        assert "found no job" in run("job", "show", name, status=1).stderr
    bring_to_queued(ledger, 2)
    assert "found several jobs" in run("job", "show", "customer:0x22", status=1).stderr


def test_job_list__state_customer_since_sort_and_limit__narrow_and_order_it(
    run: Run, ledger: Ledger
) -> None:
    for number in (1, 2, 3):
        bring_to_queued(ledger, number)
    ledger.record(JobChange(job_id(4), claim(4)))
    with ledger.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE jobs SET created_at = now() - interval '3 h' WHERE slurm_id = 102"
            )
        )
        connection.execute(
            text("UPDATE jobs SET customer = '0x55' WHERE slurm_id = 103")
        )

    def listed(*words: str) -> list[str]:
        return run("job", "list", "-o", "name", *words).stdout.split()

    assert set(listed()) == {job_id(number) for number in (1, 2, 3, 4)}
    assert listed("--sort", "slurm")[:3] == [job_id(3), job_id(2), job_id(1)]
    assert set(listed("--since", "1h")) == {job_id(1), job_id(3), job_id(4)}
    assert listed("--customer", "0x55") == [job_id(3)]
    assert listed("--state", "CLAIMED", "--state", "settled") == [job_id(4)]
    assert len(listed("--limit", "2")) == 2
    assert (
        run("job", "list", "--customer", "0x99").stdout
        == "jobs that are not settled: none\n"
    )
    assert (
        run("job", "list", "--customer", "0x99", "--state", "settled").stdout
        == "jobs: none\n"
    )
    assert (
        "expected an address"
        in run("job", "list", "--customer", "0x%", status=2).stderr
    )


def test_job_show__in_a_terminal__its_transactions_are_links(
    ledger: Ledger, migrated_ledger: tuple[Engine, dict[str, str]]
) -> None:
    open_report(ledger, bring_to_queued(ledger, 1))
    environment = migrated_ledger[1] | {"EXPLORER_URL": "https://x.example/tx/{hash}"}
    with in_terminal(("job", "show", job_id(1)), environment) as screen:
        screen.wait_for("what comes next", "report FINISHED")
        assert screen.process.wait(deadline(30)) == 0
    assert re.search(
        r"\x1b\]8;[^;]*;https://x\.example/tx/0xabc4\x1b\\[^\r]*nonce 4, 0xabc4\x1b\]8;;\x1b",
        screen.shown,
    )
    shown = supervisor("job", "show", job_id(1), env=environment).stdout
    assert "nonce 4, 0xabc4 https://x.example/tx/0xabc4" in shown
