"""What an operator decides about a job, and what refuses it."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, text

from devgrid.machine import deadline
from supervisor_tasks.cli.cli_context import operator
from supervisor_tasks.execution.effect_failures import park
from supervisor_tasks.jobs.events import (
    ChainStatusObserved,
    Event,
    ScriptFetched,
    SlurmCompleted,
    SlurmRunningObserved,
    SubmitStarted,
    Submitted,
)
from supervisor_tasks.jobs.model import ChainStatus, EffectKind, Outcome, SlurmId, State
from supervisor_tasks.ledger.facts import SWEEP_REQUESTED
from supervisor_tasks.ledger.foreign_claims import ForeignClaim
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from tests.support.ledger import bring_to_queued, claim, job_id, park_one
from tests.support.operator_commands import (
    Run,
    in_terminal,
    job_of,
    open_kinds,
    open_report,
    said,
)

AS_FAILED = ("--status", "FAILED", "--minutes", "0", "--reason", "x")


def test_retry__one_effect__starts_again_from_its_first_attempt(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    effect = park_one(ledger)
    assert [
        row["effect"]
        for row in said(run("effect", "list", "--state", "parked", "-o", "json"))
    ] == [effect.id]
    assert [
        row["id"]
        for row in said(
            run("job", "retry", "--effect", str(effect.id), "--yes", "-o", "json")
        )
    ] == [effect.id]
    assert [
        again.attempts for again in ledger.effects.lease([EffectKind.POLL_SLURM])
    ] == [1]
    assert said(run("effect", "list", "--state", "parked", "-o", "json")) == []
    assert (
        f"{operator()} gives the command job retry"
        in run("job", "show", job_id(1)).stdout
    )


def test_retry__of_a_job_or_all__retries_what_is_parked(
    run: Run, ledger: Ledger
) -> None:
    for number in (1, 2, 3):
        bring_to_queued(ledger, number)
    for _ in range(3):
        with ledger.engine.begin() as connection:
            connection.execute(
                text(
                    "UPDATE effects SET due_at = now() - interval '1 s' WHERE done_at IS NULL"
                )
            )
        effect = ledger.effects.lease([EffectKind.POLL_SLURM], most=1)[0]
        park(ledger, effect, "no")
    assert [
        row["subject"]
        for row in said(run("job", "retry", job_id(2), "--yes", "-o", "json"))
    ] == [job_id(2)]
    assert (
        f"{operator()} gives the command job retry"
        in run("job", "show", job_id(2)).stdout
    )
    assert len(said(run("job", "retry", "--all", "--yes", "-o", "json"))) == 2
    assert (
        "found nothing parked"
        in run("job", "retry", job_id(2), "--yes", status=1).stderr
    )
    assert "found 0 of JOB" in run("job", "retry", status=2).stderr


def test_cancel__in_slurm__slurm_ends_it_and_its_minutes_are_billed(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    ledger.record(JobChange(job_id(1), SlurmRunningObserved()))
    run("job", "cancel", "slurm:101", "--reason", "the node is taken out", "--yes")
    assert "cancel" in open_kinds(ledger, 1)
    assert (
        "cancelled already"
        in run("job", "cancel", job_id(1), "--reason", "x", "--yes", status=1).stderr
    )
    ledger.record(
        JobChange(
            job_id(1),
            SlurmCompleted(Outcome(status=ChainStatus.CANCELLED, elapsed_s=125)),
        )
    )
    outcome = Outcome(
        status=ChainStatus.CANCELLED, elapsed_s=125, reason="the node is taken out"
    )
    assert (job_of(ledger, 1).state, job_of(ledger, 1).outcome) == (
        State.ENDED,
        outcome,
    )
    assert {"report", "notify_customer"} <= open_kinds(ledger, 1)
    assert (
        "expected CLAIMED"
        in run("job", "cancel", job_id(1), "--reason", "x", "--yes", status=1).stderr
    )
    told = run("job", "show", job_id(1)).stdout
    assert f"{operator()} gives the command job cancel" in told
    assert "cancels the job: the node is taken out" in told


def test_cancel__before_its_submission__ends_and_costs_nothing(
    run: Run, ledger: Ledger
) -> None:
    from supervisor_tasks.jobs.events import ScriptFetched, SubmitStarted

    ledger.record(JobChange(job_id(1), claim(1)))
    ledger.record(
        *(
            JobChange(job_id(2), event)
            for event in (claim(2), ScriptFetched("echo", ""), SubmitStarted(10))
        )
    )
    run("job", "cancel", job_id(1), "--reason", "broken site", "--yes")
    assert job_of(ledger, 1).outcome == Outcome(
        status=ChainStatus.CANCELLED, reason="broken site"
    )
    assert (
        "found SUBMITTING"
        in run("job", "cancel", job_id(2), "--reason", "x", "--yes", status=1).stderr
    )


def test_settle__parked_job__is_reported_and_cancelled_as_the_operator_says(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    park_one(ledger)
    run(
        "job",
        "settle",
        job_id(1),
        "--status",
        "failed",
        "--minutes",
        "7",
        "--reason",
        "node burnt down",
        "--yes",
    )
    job = job_of(ledger, 1)
    assert (job.state, job.settled_by_operator) == (State.ENDED, True)
    assert job.outcome == Outcome(
        status=ChainStatus.FAILED, elapsed_s=420, reason="node burnt down"
    )
    assert open_kinds(ledger, 1) == {"report", "cancel", "notify_customer"}
    story = said(run("job", "show", job_id(1), "-o", "json"))["timeline"]
    (word,) = [entry for entry in story if entry["what"] == "OperatorSettledJob"]
    assert word["details"]["outcome"]["reason"] == "node burnt down"
    ledger.record(JobChange(job_id(1), ChainStatusObserved(ChainStatus.FAILED, (9, 0))))
    assert open_kinds(ledger, 1) == {"cancel", "notify_customer"}


def test_settle__slurm_took_it_after_all__is_cancelled(
    run: Run, ledger: Ledger
) -> None:
    from supervisor_tasks.jobs.events import ScriptFetched, SubmitStarted

    events = (claim(1), ScriptFetched("echo", ""), SubmitStarted(10))
    ledger.record(*(JobChange(job_id(1), event) for event in events))
    run(
        "job",
        "settle",
        job_id(1),
        "--status",
        "CANCELLED",
        "--minutes",
        "0",
        "--reason",
        "stuck",
        "--yes",
    )
    ledger.record(JobChange(job_id(1), Submitted(SlurmId(9))))
    assert job_of(ledger, 1).slurm_id == 9
    assert "cancel" in open_kinds(ledger, 1)


def test_settle__not_confirmed__changes_nothing(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    before = job_of(ledger, 1)
    words = ("job", "settle", job_id(1), *AS_FAILED)
    assert "--yes" in run(*words, status=4).stderr
    assert job_of(ledger, 1) == before
    run(*words, "--yes")
    assert job_of(ledger, 1).state is State.ENDED


def test_settle__panicked_with_minutes__is_refused_as_the_contract_bills_none(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    settle = ("job", "settle", job_id(1), "--reason", "x", "--yes", "--minutes")
    refused = run(*settle, "7", "--status", "panicked", status=2)
    assert "found 7 with PANICKED; expected 0" in refused.stderr
    assert job_of(ledger, 1).state is State.QUEUED
    run(*settle, "0", "--status", "PANICKED")
    assert job_of(ledger, 1).state is State.ENDED


def test_settle__absurd__is_refused(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    ledger.record(JobChange(job_id(2), claim(2)))
    settle = ("job", "settle", job_id(1), "--reason", "x", "--yes", "--status")
    assert (
        "expected at most 10"
        in run(*settle, "FINISHED", "--minutes", "11", status=1).stderr
    )
    run(*settle, "RUNNING", "--minutes", "1", status=2)
    run(*settle, "FINISHED", "--minutes", "-1", status=2)
    never = run(
        "job",
        "settle",
        job_id(2),
        "--reason",
        "x",
        "--yes",
        "--status",
        "FAILED",
        "--minutes",
        "1",
        status=1,
    )
    assert "without a known SLURM id" in never.stderr
    assert job_of(ledger, 1).state is State.QUEUED
    run(*settle, "FINISHED", "--minutes", "11", "--force")
    ledger.record(
        JobChange(job_id(1), ChainStatusObserved(ChainStatus.FINISHED, (9, 0)))
    )
    assert (
        "cannot be settled"
        in run(*settle, "FAILED", "--minutes", "0", "--force", status=1).stderr
    )


def test_settle__report_under_way__is_refused(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    ended = Outcome(status=ChainStatus.FINISHED, elapsed_s=60)
    ledger.record(
        JobChange(job_id(1), SlurmRunningObserved()),
        JobChange(job_id(1), SlurmCompleted(ended)),
    )
    open_report(ledger, job_id(1))
    refused = run("job", "settle", job_id(1), *AS_FAILED, "--yes", status=1)
    assert "0xabc" in refused.stderr
    (transaction,) = said(run("tx", "list", "--open", "-o", "json"))
    assert (transaction["nonce"], transaction["purpose"]) == (4, "report FINISHED")
    assert said(run("status", "-o", "json"))["wallet"] == {
        "address": "0x1",
        "chain_id": 1,
        "next_nonce": 5,
    }


@pytest.mark.usefixtures("lists_of_one")
def test_settle__report_that_a_full_list_leaves_out__is_refused(
    run: Run, ledger: Ledger
) -> None:
    """The report was looked for among the first 1000 open transactions, and the job was
    settled beside it.
    """
    bring_to_queued(ledger, 1)
    open_report(ledger, job_id(2), nonce=4)
    open_report(ledger, job_id(1), nonce=5)
    words = ("--status", "CANCELLED", "--minutes", "0", "--reason", "x", "--yes")
    refused = run("job", "settle", job_id(1), *words, status=1)
    assert "found the open transaction 0xabc5 (report FINISHED)" in refused.stderr
    assert job_of(ledger, 1).state is State.QUEUED


@pytest.mark.usefixtures("lists_of_one")
def test_resubmit__submission_that_a_full_list_leaves_out__is_made_again(
    run: Run, ledger: Ledger
) -> None:
    for number in (1, 2):
        events = (claim(number), ScriptFetched("echo", ""), SubmitStarted(10))
        ledger.record(*(JobChange(job_id(number), event) for event in events))
        park_one(ledger, EffectKind.SUBMIT)
    run("job", "resubmit", job_id(2), "--reason", "slurmctld.log", "--yes")
    states = (job_of(ledger, 1).state, job_of(ledger, 2).state)
    assert states == (State.SUBMITTING, State.READY)


@pytest.mark.usefixtures("lists_of_one")
def test_retry__more_effects_than_a_list_has__says_how_many(
    run: Run, ledger: Ledger
) -> None:
    for number in (1, 2):
        bring_to_queued(ledger, number)
        park_one(ledger)
    ledger.record(JobChange(job_id(3), claim(3)))
    park_one(ledger, EffectKind.FETCH)
    announced = run("job", "retry", "--all", "--yes", "-o", "json")
    assert "3 effects (fetch, poll_slurm) will be tried again" in announced.stderr
    assert len(said(announced)) == 3


def test_not_in_slurm__parked_submission__is_made_again(
    run: Run, ledger: Ledger
) -> None:
    from supervisor_tasks.jobs.events import ScriptFetched, SubmitStarted

    ledger.record(
        *(
            JobChange(job_id(1), event)
            for event in (claim(1), ScriptFetched("echo", ""), SubmitStarted(10))
        )
    )
    words = ("job", "resubmit", job_id(1), "--reason", "slurmctld.log")
    assert "0 parked submissions" in run(*words, "--yes", status=1).stderr
    park_one(ledger, EffectKind.SUBMIT, "its log was written")
    run(*words, status=4)
    assert job_of(ledger, 1).state is State.SUBMITTING
    run(*words, "--yes")
    assert job_of(ledger, 1).state is State.READY
    assert open_kinds(ledger, 1) == {"submit"}
    assert "expected SUBMITTING" in run(*words, "--yes", status=1).stderr


def ends_meanwhile(ledger: Ledger) -> None:
    observed = ChainStatusObserved(ChainStatus.CANCELLED, (9, 0))
    ledger.record(JobChange(job_id(1), observed))


def is_submitted_meanwhile(ledger: Ledger) -> None:
    ledger.record(JobChange(job_id(1), SubmitStarted(10)))


def is_tried_and_parked_meanwhile(ledger: Ledger) -> None:
    (effect,) = ledger.effects.retry()
    park_one(ledger, EffectKind.SUBMIT, "SLURM may have it")
    assert effect.kind is EffectKind.SUBMIT


@pytest.mark.parametrize(
    ("begun", "words", "meanwhile", "refusal"),
    [
        ([], ["cancel"], is_submitted_meanwhile, "found SUBMITTING; expected CLAIMED"),
        (
            [],
            ["settle", "--status", "FAILED", "--minutes", "0"],
            ends_meanwhile,
            "found SETTLED, CANCELLED on chain",
        ),
        (
            [SubmitStarted(10)],
            ["resubmit"],
            is_tried_and_parked_meanwhile,
            "tried again meanwhile",
        ),
    ],
    ids=["cancel", "settle", "resubmit"],
)
def test_job__changes_while_the_command_asks__is_left_as_it_is(
    ledger: Ledger,
    run: Run,
    migrated_ledger: tuple[Engine, dict[str, str]],
    begun: list[SubmitStarted],
    words: list[str],
    meanwhile: Callable[[Ledger], None],
    refusal: str,
) -> None:
    """A decision that came too late was logged as done, and nothing followed."""
    events: list[Event] = [claim(1), ScriptFetched("echo", ""), *begun]
    ledger.record(*(JobChange(job_id(1), event) for event in events))
    if begun:
        park_one(ledger, EffectKind.SUBMIT, "SLURM may have it")
    verb, *more = words
    with in_terminal(
        ("job", verb, job_id(1), *more, "--reason", "x"), migrated_ledger[1]
    ) as screen:
        screen.wait_for("Go on? [y/N]")
        meanwhile(ledger)
        before = job_of(ledger, 1)
        screen.press("y\n", refusal)
        assert screen.process.wait(deadline(30)) == 1
    assert job_of(ledger, 1) == before
    (entry,) = said(run("log", "--command", f"job {verb}", "-o", "json"))
    assert refusal in entry["outcome"]


def test_mark_lost__a_job_that_needs_a_decision__is_panicked_and_no_other(
    run: Run, ledger: Ledger
) -> None:
    assert (
        "expected one that needs your decision"
        in run("job", "mark-lost", "--yes", status=1).stderr
    )
    lost, other = bring_to_queued(ledger, 1), bring_to_queued(ledger, 2)
    ledger.reconciliations.store(
        ledger.reconciliations.begin(""),
        {"needs_operator": {lost: 101, other: 102}, "again_s": 900.0},
        {},
    )
    run("job", "mark-lost", lost, status=4)
    assert job_of(ledger, 1).state is State.QUEUED
    assert lost in run("job", "mark-lost", lost, "--yes").stdout
    assert (
        f"{operator()} gives the command job mark-lost"
        in run("job", "show", lost).stdout
    )
    assert (job_of(ledger, 1).outcome.status, job_of(ledger, 2).state) == (
        ChainStatus.PANICKED,
        State.QUEUED,
    )
    run("job", "mark-lost", lost, "--yes", status=1)


def test_adopt__known_tag__its_jobs_become_ours_and_a_sweep_is_requested(
    run: Run, ledger: Ledger
) -> None:
    tag = b"\x0a" * 8
    ledger.foreign_claims.store(
        [ForeignClaim(tag, claim(1)), ForeignClaim(b"\x0b" * 8, claim(2))]
    )
    assert (
        "0a0a0a0a0a0a0a0a (1 jobs)"
        in run("job", "adopt", "00", "--yes", status=1).stderr
    )
    # the chain of these settings is nowhere
    refused = run("job", "adopt", tag.hex(), "--yes", status=1)
    assert "the chain cannot be looked at" in refused.stderr
    assert "expected no activity" in refused.stderr
    run("job", "adopt", tag.hex(), "--yes-it-is-dead", status=4)
    assert (
        ledger.foreign_claims.adopted_tags(),
        ledger.facts.get(SWEEP_REQUESTED),
    ) == (
        set(),
        None,
    )
    run("job", "adopt", f"0x{tag.hex().upper()}", "--yes", "--yes-it-is-dead")
    assert (
        ledger.foreign_claims.adopted_tags(),
        ledger.facts.get(SWEEP_REQUESTED) is not None,
    ) == ({tag}, True)
    run("job", "adopt", tag.hex(), "--yes", status=1)
