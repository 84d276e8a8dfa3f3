"""A job's timeline: every event has words, repetitions are folded, links are those of
the explorer.
"""

from dataclasses import replace
from datetime import timedelta

import pytest

from supervisor_tasks.cli import timeline
from supervisor_tasks.cli.timeline import (
    EFFECTS,
    EVENT_TEXTS,
    MISSING,
    ONLY_IN_WIDE,
    exit_text,
    lines_of,
    next_of,
    outcome_text,
)
from supervisor_tasks.jobs.events import STORED_NAMES, EarlierRunsReported, stored_name
from supervisor_tasks.jobs.model import JOB_EFFECTS, State
from supervisor_tasks.jobs.runs import RunEnd
from supervisor_tasks.jobs.stalled import NOT_LISTED
from supervisor_tasks.ledger import operator_log
from supervisor_tasks.ledger.mapping import event_to_json
from tests.support.golden_cases import JOB, NOW, entry, story


def texts(*entries: dict[str, object], **options: str) -> list[str]:
    return [line[-1].text for line in lines_of(entries, details=False, **options)]


def test_event_texts__each_event__has_words() -> None:
    assert set(STORED_NAMES.values()) == set(EVENT_TEXTS)


def test_next_of__each_kind_of_effect_of_a_job__has_words() -> None:
    assert set(EFFECTS) == JOB_EFFECTS


def test_line__of_an_event_without_details__is_told_all_the_same() -> None:
    for name in EVENT_TEXTS.keys() - set(ONLY_IN_WIDE):
        (text,) = texts(entry(NOW, "journal", name))
        assert text


def test_lines__of_the_same_words__are_folded_and_others_are_not() -> None:
    def seen(second: int, state: str) -> dict[str, object]:
        return entry(
            NOW + timedelta(seconds=second),
            "journal",
            "SlurmRunningObserved",
            seen=state,
        )

    told = texts(
        *(seen(n, "RUNNING") for n in range(4)),
        seen(5, "SUSPENDED"),
        seen(7, "RUNNING"),
    )
    assert told == ["seen RUNNING, 4 times in 3.00s", "seen SUSPENDED", "seen RUNNING"]


def test_lines_of__submission_fails_again_and_again__is_two_lines() -> None:
    def failed(tries: int) -> list[dict[str, object]]:
        story = []
        for second in range(0, 5 * tries, 5):
            at = NOW + timedelta(seconds=second)
            story.append(entry(at, "journal", "SubmitStarted", limit_min=5))
            at += timedelta(seconds=0.25)
            story.append(entry(at, "journal", "SubmitNotExecuted", reason="no user"))
        return story

    submitted = entry(NOW + timedelta(seconds=21), "journal", "Submitted", slurm_id=7)
    lines = lines_of([*failed(4), submitted], details=False)
    assert [(after.text, what.text) for _, after, _, what in lines] == [
        ("", "submission begins, for 5 minutes, 4 times in 15s"),
        ("+0.25s", "certainly not submitted: no user, 4 times in 15s"),
        ("+5.75s", "submitted as 7"),
    ]
    assert len(lines_of(failed(1), details=False)) == 2


def test_effect__done_or_parked__is_told_only_if_it_is_parked() -> None:
    done = entry(NOW, "effect", "submit", effect=1, attempts=1, done_at=NOW.isoformat())
    parked = entry(
        NOW,
        "effect",
        "submit",
        effect=2,
        attempts=9,
        parked_at=NOW.isoformat(),
        last_error="no",
    )
    assert texts(done, parked) == ["submit is parked after 9 failed tries: no"]


def test_details__of_the_wide_form__leave_out_what_is_empty_and_have_short_moments() -> (
    None
):
    run = {"qos": "", "since_s": None, "start_s": 7}
    seen = entry(
        NOW,
        "journal",
        "SlurmRunningObserved",
        seen="RUNNING",
        run=run,
        read_at="2026-11-23T02:59:58.5+00:00",
    )
    (told,) = (line[-1].text for line in lines_of([seen], details=True)[1:])
    assert told.startswith("seen RUNNING, run start_s 7, read_at 11-2")
    assert "qos" not in told


@pytest.mark.parametrize(
    ("earlier_s", "told"),
    [
        (None, "ended: FINISHED after 6m10s, exit code 0"),
        (50, "ended: FINISHED after 6m10s, exit code 0; earlier runs took 50s"),
    ],
)
def test_lines__end_of_the_last_run__has_no_minutes_as_all_runs_are_paid(
    earlier_s: int | None, told: str
) -> None:
    outcome = {"status": "FINISHED", "elapsed_s": 370}
    ended = entry(
        NOW, "journal", "SlurmCompleted", outcome=outcome, earlier_s=earlier_s
    )
    assert texts(ended) == [told]


def test_lines__earlier_runs_that_the_hooks_reported__have_their_seconds() -> None:
    reported = EarlierRunsReported(
        (RunEnd(50, 1_700_000_000), RunEnd(6, 1_700_000_100))
    )
    told = entry(NOW, "journal", stored_name(reported), **event_to_json(reported))
    assert texts(told) == ["earlier runs took 50, 6 s"]


def test_callback__its_event__is_told_in_the_wide_form_only() -> None:
    called = entry(NOW, "journal", "CallbackReceived", state="RUNNING")
    assert texts(called) == []
    assert lines_of([called], details=True) != []


def test_transaction__with_an_explorer__has_a_link() -> None:
    sent = entry(NOW, "transaction", "claim", hash="0xabc", nonce=4, state="SENT")
    assert texts(sent) == ["claim: SENT, nonce 4, 0xabc"]
    (line,) = lines_of(
        [sent], details=False, transaction_url="https://x.example/tx/{hash}"
    )
    assert line[-1].link == "https://x.example/tx/0xabc"
    assert (
        line[-1].with_link == "claim: SENT, nonce 4, 0xabc https://x.example/tx/0xabc"
    )


@pytest.mark.parametrize(
    ("command", "outcome", "told"),
    [
        ("job cancel", "done", "ann@login1 gives the command job cancel"),
        ("job retry", "done", "ann@login1 gives the command job retry: why"),
        (
            "job retry",
            "CommandError: no",
            "ann@login1 gives the command job retry: why (CommandError: no)",
        ),
        (
            "job retry",
            None,
            "ann@login1 gives the command job retry: why (how it ended is not known)",
        ),
    ],
)
def test_command__given_by_an_operator__tells_who_gave_it_and_what_came_of_it(
    command: str, outcome: str | None, told: str
) -> None:
    assert texts(
        entry(
            NOW,
            "command",
            command,
            operator="ann@login1",
            reason="why",
            outcome=outcome,
        )
    ) == [told]


def test_command__that_is_done__is_stored_by_the_word_that_the_story_expects() -> None:
    assert operator_log.DONE == timeline.DONE


def test_callback__of_an_unknown_status__is_told_as_it_came() -> None:
    assert (
        "says status 99 of 7"
        in texts(entry(NOW, "callback", "status 99", slurm_id=7, duration_s=1))[0]
    )


def test_lines__wide__have_the_details_below() -> None:
    plain, wide = lines_of(story(), details=False), lines_of(story(), details=True)
    assert len(wide) > len(plain)
    assert any("peer 10.0.0.7" in line[-1].text for line in wide)


def test_outcome_text__finished_or_panicked__tells_what_the_customer_pays_for() -> None:
    assert (
        outcome_text({"status": "FINISHED", "elapsed_s": 119})
        == "FINISHED after 1m59s, 1 min paid, exit code 0"
    )
    assert outcome_text({"status": 8, "elapsed_s": 119, "reason": "lost"}).startswith(
        "PANICKED after 1m59s, 0 min paid"
    )


def test_exit_text__of_an_exit_status__is_a_code_or_a_signal() -> None:
    assert (exit_text(1280), exit_text(9), exit_text(0)) == (
        "exit code 5",
        "signal 9",
        "exit code 0",
    )


def test_next__of_a_running_job_that_slurm_does_not_list__tells_of_the_sweep() -> None:
    def told(state: State, *seen: str) -> bool:
        looks = [
            entry(NOW, "journal", "SlurmRunningObserved", seen=word) for word in seen
        ]
        lines = next_of(replace(JOB, state=state), looks, NOW)
        return MISSING in [cell.text for line in lines for cell in line]

    assert told(State.RUNNING, "RUNNING", NOT_LISTED)
    assert not told(State.RUNNING, NOT_LISTED, "RUNNING")
    assert not told(State.ENDED, "RUNNING", NOT_LISTED)
