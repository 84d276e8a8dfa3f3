"""The forms of a message: each has the key, and a stranger's text stays text."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from supervisor_tasks.alarms.alarm_meanings import MEANINGS
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.notifications.forms import (
    alertmanager_form,
    headline,
    json_form,
    mail_form,
    slack_form,
)
from supervisor_tasks.notifications.incident_messages import MessageKind, Notice

BEGAN = datetime(2026, 11, 22, 3, 0, tzinfo=UTC)
ENDED = BEGAN + timedelta(minutes=20)
NOW = BEGAN + timedelta(minutes=1)
RAISED = Notice(
    key="4711-raised",
    kind=MessageKind.RAISED,
    cluster="main",
    alarm="wallet_empty",
    critical=True,
    cause="The wallet is empty.",
    advice="Pay into it.",
    details={
        "balance_wei": 12,
        "error": "<!channel> & <http://evil|click>",
        "for_s": None,
    },
    raised_at=BEGAN,
    cleared_at=None,
    raises=1,
    runbook_url="https://docs.example.org/alarms/wallet_empty.md",
)
RESOLVED = replace(
    RAISED, key="4711-resolved", kind=MessageKind.RESOLVED, cleared_at=ENDED, raises=3
)
TEST = replace(
    RAISED, key="4711-test", kind=MessageKind.TEST, alarm="test", cleared_at=BEGAN
)


def test_json_form__raised__says_all() -> None:
    assert json_form(RAISED) == {
        "version": 1,
        "id": "4711-raised",
        "incident": "4711",
        "status": "firing",
        "cluster": "main",
        "alarm": "wallet_empty",
        "severity": "critical",
        "cause": "The wallet is empty.",
        "advice": "Pay into it.",
        "runbook_url": "https://docs.example.org/alarms/wallet_empty.md",
        "details": RAISED.details,
        "raised_at": "2026-11-22T03:00:00+00:00",
        "resolved_at": None,
        "raises": 1,
    }


def test_json_form__resolved__has_the_same_incident_and_its_end() -> None:
    form = json_form(RESOLVED)
    assert (form["status"], form["incident"], form["id"]) == (
        "resolved",
        "4711",
        "4711-resolved",
    )
    assert (form["resolved_at"], form["raises"]) == ("2026-11-22T03:20:00+00:00", 3)


def test_json_form__raised_late_when_it_is_over__still_fires() -> None:
    assert json_form(replace(RAISED, cleared_at=ENDED))["resolved_at"] is None


def test_slack_form__strangers_text__mentions_and_links_nothing() -> None:
    text = slack_form(RAISED)["text"]
    assert "<" not in text
    assert "error: &lt;!channel&gt; &amp; &lt;http://evil|click&gt;" in text
    assert text.startswith(
        "*[main] CRITICAL: wallet_empty*\nThe wallet is empty.\nDo: Pay into it.\nPage: https://"
    )
    assert text.endswith("_4711-raised_")


def test_alertmanager_form__raised_and_resolved__are_one_alert_by_their_labels() -> (
    None
):
    (raised,), (resolved,) = (
        alertmanager_form(RAISED, NOW),
        alertmanager_form(RESOLVED, NOW),
    )
    assert raised["labels"] == resolved["labels"]
    assert raised["labels"] == {
        "alertname": "SupervisorAlarm",
        "alarm": "wallet_empty",
        "cluster": "main",
        "severity": "critical",
    }
    assert raised["startsAt"] == resolved["startsAt"] == BEGAN.isoformat()
    assert datetime.fromisoformat(raised["endsAt"]) == NOW + timedelta(hours=1)
    assert resolved["endsAt"] == ENDED.isoformat()
    assert all(isinstance(value, str) for value in raised["annotations"].values())


def test_alertmanager_form__test__ends_by_itself_and_is_not_critical() -> None:
    (alert,) = alertmanager_form(TEST, NOW)
    assert alert["labels"]["severity"] == "info"
    assert datetime.fromisoformat(alert["endsAt"]) == BEGAN + timedelta(minutes=5)


def test_mail_form__resolved__answers_the_mail_of_the_raise() -> None:
    raised, resolved = (
        mail_form(notice, "a@b.c", "d@e.f", NOW) for notice in (RAISED, RESOLVED)
    )
    assert raised["Message-ID"] == "<4711-raised@main.supervisor.invalid>"
    assert resolved["In-Reply-To"] == raised["Message-ID"]
    assert resolved["Message-ID"] != raised["Message-ID"]
    assert raised["Auto-Submitted"] == "auto-generated"
    assert "off since: 2026-11-22 03:20:00 UTC" in resolved.get_content()


def test_mail_form__strangers_text_with_lines__adds_no_header() -> None:
    mail = mail_form(
        replace(RAISED, details={"error": "x\r\nBcc: all@example.org\r\n\r\nhello"}),
        "a@b.c",
        "d@e.f",
        NOW,
    )
    head = mail.as_bytes().partition(b"\n\n")[0]
    assert b"Bcc" not in head
    assert mail["Bcc"] is None


FORMS: list[Callable[[Notice], Any]] = [
    json_form,
    slack_form,
    lambda notice: alertmanager_form(notice, NOW),
    lambda notice: mail_form(notice, "a@b.c", "d@e.f", NOW).as_string(),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "notice", [RAISED, RESOLVED, TEST], ids=lambda notice: notice.kind
)
def test_forms__every_message__carry_its_key(
    form: Callable[[Notice], Any], notice: Notice
) -> None:
    assert notice.key in json.dumps(form(notice))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "notice", [RAISED, RESOLVED, TEST], ids=lambda notice: notice.kind
)
def test_forms__every_message__links_to_the_alarms_page(
    form: Callable[[Notice], Any], notice: Notice
) -> None:
    assert "https://docs.example.org/alarms/wallet_empty.md" in json.dumps(form(notice))


def test_alertmanager_form__details_named_as_annotations__replace_the_link_never() -> (
    None
):
    (alert,) = alertmanager_form(
        replace(RAISED, details={"runbook_url": "http://evil"}), NOW
    )
    assert alert["annotations"]["runbook_url"] == RAISED.runbook_url


def test_headline__each_kind__is_one_line() -> None:
    assert [headline(notice) for notice in (RAISED, RESOLVED, TEST)] == [
        "[main] CRITICAL: wallet_empty",
        "[main] RESOLVED: wallet_empty",
        "[main] test of the alarms",
    ]


def test_meanings__every_alarm__has_one() -> None:
    assert MEANINGS.keys() == set(AlarmName)
