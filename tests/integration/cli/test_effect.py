"""The commands for effects."""

import pytest
from sqlalchemy import Engine, text

from devgrid.machine import deadline
from supervisor_tasks.jobs.events import (
    CancelRequested,
    ChainStatusObserved,
    OperatorCancelled,
    ScriptFetched,
    SlurmCompleted,
    SubmitStarted,
)
from supervisor_tasks.jobs.model import ChainStatus, EffectKind, Outcome
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from tests.support.ledger import bring_to_queued, claim, job_id, park_one
from tests.support.operator_commands import Run, in_terminal, job_of, open_kinds, said


@pytest.mark.usefixtures("lists_of_one")
def test_abandon__effect_that_a_full_list_leaves_out__is_given_up(
    run: Run, ledger: Ledger
) -> None:
    parked = []
    for number in (1, 2):
        bring_to_queued(ledger, number)
        failed = Outcome(status=ChainStatus.FAILED, reason="exit code 1")
        ledger.record(JobChange(job_id(number), SlurmCompleted(failed)))
        parked.append(park_one(ledger, EffectKind.NOTIFY_CUSTOMER))
    words = ("effect", "abandon", str(parked[1].id), "--reason", "x", "--yes")
    assert run(*words).stdout == "abandoned\n"
    assert "found no parked effect" in run(*words, status=1).stderr


def test_abandon__parked_effect__is_given_up_only_if_its_job_does_not_need_it(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    needed = park_one(ledger)
    refused = run(
        "effect", "abandon", str(needed.id), "--reason", "x", "--yes", status=1
    )
    assert "stands still" in refused.stderr
    ledger.record(
        JobChange(
            job_id(1),
            SlurmCompleted(Outcome(status=ChainStatus.FAILED, reason="exit code 1")),
        )
    )
    tell = park_one(ledger, EffectKind.NOTIFY_CUSTOMER)
    run("effect", "abandon", str(tell.id), "--reason", "logger is gone", "--yes")
    assert open_kinds(ledger, 1) == {"report"}
    assert said(run("effect", "list", "--state", "parked", "-o", "json")) == []
    whats = [
        entry["what"]
        for entry in said(run("job", "show", job_id(1), "-o", "json"))["timeline"]
    ]
    assert "OperatorAbandonedEffect" in whats


def test_abandon__what_the_next_sweep_would_ask_for_again__is_refused(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    ledger.record(
        JobChange(job_id(1), ChainStatusObserved(ChainStatus.CANCELLED, (9, 0)))
    )
    cancel = park_one(ledger, EffectKind.CANCEL)
    refused = run(
        "effect", "abandon", str(cancel.id), "--reason", "x", "--yes", status=1
    )
    assert "SETTLED; expected QUEUED or RUNNING" in refused.stderr
    assert [
        row["kind"]
        for row in said(run("effect", "list", "--state", "parked", "-o", "json"))
    ] == ["cancel"]


def test_abandon__cancellation_of_what_slurm_may_not_have__is_done(
    run: Run, ledger: Ledger
) -> None:

    ledger.record(
        *(
            JobChange(job_id(1), event)
            for event in (claim(1), ScriptFetched("echo", ""), SubmitStarted(10))
        )
    )
    ledger.record(
        JobChange(job_id(1), ChainStatusObserved(ChainStatus.CANCELLED, (9, 0)))
    )
    cancel = park_one(ledger, EffectKind.CANCEL)
    run("effect", "abandon", str(cancel.id), "--reason", "x", "--yes")
    assert said(run("effect", "list", "--state", "parked", "-o", "json")) == []


@pytest.mark.parametrize("parked_again", [False, True])
def test_abandon__customer_cancels_while_it_asks__cancellation_stays(
    run: Run,
    ledger: Ledger,
    migrated_ledger: tuple[Engine, dict[str, str]],
    parked_again: bool,
) -> None:
    bring_to_queued(ledger, 1)
    ledger.record(JobChange(job_id(1), OperatorCancelled("the node goes")))
    cancel = park_one(ledger, EffectKind.CANCEL)
    words = ("effect", "abandon", str(cancel.id), "--reason", "x")
    with in_terminal(words, migrated_ledger[1]) as screen:
        screen.wait_for("Go on? [y/N]")
        ledger.record(JobChange(job_id(1), CancelRequested((9, 0))))
        if parked_again:
            park_one(ledger, EffectKind.CANCEL)
        screen.press("y\n", "changed meanwhile", "supervisor effect list")
        assert screen.process.wait(deadline(30)) == 1
    assert job_of(ledger, 1).cancel_requested
    left = said(run("effect", "list", "--kind", "cancel", "-o", "json"))
    assert [row["effect"] for row in left] == [cancel.id]
    story = said(run("job", "show", job_id(1), "-o", "json"))["timeline"]
    assert "OperatorAbandonedEffect" not in [entry["what"] for entry in story]
    (entry,) = said(run("log", "--command", "effect abandon", "-o", "json"))
    assert "changed meanwhile" in entry["outcome"]


def test_effect_list__kind_customer_since_sort_and_limit__narrow_and_order_it(
    run: Run, ledger: Ledger
) -> None:
    for number in (1, 2):
        bring_to_queued(ledger, number)
    ledger.record(JobChange(job_id(3), claim(3)))
    with ledger.engine.begin() as connection:
        connection.execute(
            text("UPDATE jobs SET customer = '0x55' WHERE slurm_id = 102")
        )
        connection.execute(
            text("UPDATE effects SET attempts = 7 WHERE job_id = :job"),
            {"job": job_id(1)},
        )
        connection.execute(
            text(
                "UPDATE effects SET created_at = now() - interval '3 h' WHERE job_id = :job"
            ),
            {"job": job_id(1)},
        )

    def listed(*words: str) -> list[str]:
        return [
            row["subject"] for row in said(run("effect", "list", "-o", "json", *words))
        ]

    assert set(listed()) == {job_id(1), job_id(2), job_id(3)}
    assert listed("--customer", "0x55") == [job_id(2)]
    assert set(listed("--since", "1h")) == {job_id(2), job_id(3)}
    assert listed("--sort", "tries")[0] == job_id(1)
    assert listed("--kind", "fetch", "--sort", "age") == [job_id(3)]
    assert len(listed("--limit", "2")) == 2
