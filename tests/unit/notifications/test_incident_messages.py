"""An alarm's silence, the keys of the messages about its incident, and its page."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from supervisor_tasks.notifications.incident_messages import (
    MessageKind,
    Notice,
    Silence,
    page_of,
)

BEGIN, END = (
    datetime(2026, 11, 22, 12, tzinfo=UTC),
    datetime(2026, 11, 22, 14, tzinfo=UTC),
)
INSTANT = timedelta(microseconds=1)
IN_TOKYO = timezone(timedelta(hours=9))


@pytest.mark.parametrize(
    ("moment", "covered"),
    [
        (BEGIN - INSTANT, False),
        (BEGIN, True),
        (BEGIN + INSTANT, True),
        (END - INSTANT, True),
        (END, False),
        (END + INSTANT, False),
        (datetime(2026, 11, 22, 22, tzinfo=IN_TOKYO), True),
        (datetime(2026, 11, 22, 13, tzinfo=IN_TOKYO), False),
    ],
)
def test_covers__each_moment__is_true_from_the_start_until_before_the_end(
    moment: datetime, covered: bool
) -> None:
    assert Silence(BEGIN, END).covers(moment) is covered


def test_covers__silence_that_was_ended_at_once__covers_no_moment() -> None:
    assert not Silence(BEGIN, BEGIN).covers(BEGIN)


def notice(key: str, kind: MessageKind) -> Notice:
    return Notice(
        key=key,
        kind=kind,
        cluster="main",
        alarm="wallet_empty",
        critical=True,
        cause="",
        advice="",
        details={},
        raised_at=BEGIN,
        cleared_at=None,
        raises=1,
        runbook_url="",
    )


@pytest.mark.parametrize(
    ("key", "kind", "incident_key"),
    [
        ("main-7-raised", MessageKind.RAISED, "main-7"),
        ("main-7-resolved", MessageKind.RESOLVED, "main-7"),
        ("main-7-test", MessageKind.TEST, "main-7"),
        ("main-raised-7-raised", MessageKind.RAISED, "main-raised-7"),
        ("main-raised-raised", MessageKind.RAISED, "main-raised"),
        ("main-7-raised", MessageKind.RESOLVED, "main-7-raised"),
    ],
)
def test_incident_key__each_kind_of_message__is_the_key_without_the_kind(
    key: str, kind: MessageKind, incident_key: str
) -> None:
    assert notice(key, kind).incident_key == incident_key


@pytest.mark.parametrize(
    ("kind", "other", "key"),
    [
        (MessageKind.RESOLVED, MessageKind.RAISED, "main-7-raised"),
        (MessageKind.RAISED, MessageKind.RESOLVED, "main-7-resolved"),
        (MessageKind.RAISED, MessageKind.RAISED, "main-7-raised"),
    ],
)
def test_key_of__other_message_of_the_incident__has_that_messages_kind(
    kind: MessageKind, other: MessageKind, key: str
) -> None:
    assert notice(f"main-7-{kind}", kind).key_of(other) == key


@pytest.mark.parametrize(
    "runbook_url", ["https://x/alarms", "https://x/alarms/", "https://x/alarms//"]
)
def test_page_of__url_with_or_without_a_slash__is_the_alarms_file(
    runbook_url: str,
) -> None:
    assert page_of(runbook_url, "wallet_empty") == "https://x/alarms/wallet_empty.md"
