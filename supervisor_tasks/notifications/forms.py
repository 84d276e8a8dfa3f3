"""The forms of a message: JSON, Slack, Alertmanager and mail. Pure.

Each form contains the message's key, so that a receiver can distinguish a repeated
message from a new one.
"""

import json
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

from supervisor_tasks.notifications.incident_messages import MessageKind, Notice

VERSION = 1
STATUS = {
    MessageKind.RAISED: "firing",
    MessageKind.RESOLVED: "resolved",
    MessageKind.TEST: "test",
}
# Alertmanager loses its alerts when it restarts, and ends those that are not repeated
# before their `endsAt`.
ALERTMANAGER_REPEAT_S = 60.0
ALERTMANAGER_ENDS_AFTER = timedelta(hours=1)
TEST_ENDS_AFTER = timedelta(minutes=5)


def json_form(notice: Notice) -> dict[str, Any]:
    """The message as a JSON object: what NOTIFY_WEBHOOK_URL and NOTIFY_COMMAND get."""
    return {
        "version": VERSION,
        "id": notice.key,
        "incident": notice.incident_key,
        "status": STATUS[notice.kind],
        "cluster": notice.cluster,
        "alarm": notice.alarm,
        "severity": _severity(notice),
        "cause": notice.cause,
        "advice": notice.advice,
        "runbook_url": notice.runbook_url,
        "details": dict(notice.details),
        "raised_at": notice.raised_at.isoformat(),
        "resolved_at": _resolved_at(notice),
        "raises": notice.raises,
    }


def slack_form(notice: Notice) -> dict[str, Any]:
    """The message for Slack's incoming webhooks, and for others that take their
    form.
    """
    lines = [f"*{_slack(headline(notice))}*", *map(_slack, _body(notice))]
    return {"text": "\n".join([*lines, f"_{notice.key}_"])}


def alertmanager_form(notice: Notice, now: datetime) -> list[dict[str, Any]]:
    """The alert for Alertmanager's API v2. Alertmanager identifies an alert by its
    labels: no label may change.
    """
    annotations = {
        "summary": headline(notice),
        "description": f"{notice.cause} {notice.advice}",
        "id": notice.key,
        "runbook_url": notice.runbook_url,
    }
    labels = {
        "alertname": "SupervisorAlarm",
        "alarm": notice.alarm,
        "cluster": notice.cluster,
        "severity": _severity(notice),
    }
    details = {name: _text(value) for name, value in notice.details.items()}
    alert = {
        "labels": labels,
        "annotations": details | annotations,
        "startsAt": notice.raised_at.isoformat(),
        "endsAt": _ends_at(notice, now).isoformat(),
    }
    return [alert]


def mail_form(
    notice: Notice, sender: str, receiver: str, now: datetime
) -> EmailMessage:
    """The message as a mail. The mail about the end of an alarm is an answer to the one
    about its raise.
    """
    mail = EmailMessage()
    mail["From"] = sender
    mail["To"] = receiver
    mail["Subject"] = headline(notice)
    mail["Date"] = format_datetime(now)
    mail["Message-ID"] = _mail_id(notice, notice.kind)
    if notice.kind is MessageKind.RESOLVED:
        mail["In-Reply-To"] = mail["References"] = _mail_id(notice, MessageKind.RAISED)
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content("\n".join([*_body(notice), "", f"id: {notice.key}"]) + "\n")
    return mail


def headline(notice: Notice) -> str:
    """One line: what, where, and how urgent."""
    if notice.kind is MessageKind.TEST:
        return f"[{notice.cluster}] test of the alarms"
    state = _severity(notice).upper()
    if notice.kind is MessageKind.RESOLVED:
        state = "RESOLVED"
    return f"[{notice.cluster}] {state}: {notice.alarm}"


def _body(notice: Notice) -> list[str]:
    lines = [notice.cause]
    if notice.kind is MessageKind.RAISED:
        lines.append(f"Do: {notice.advice}")
    lines.append(f"Page: {notice.runbook_url}")
    for name, value in notice.details.items():
        if value is not None:
            lines.append(f"{name}: {_text(value)}")
    lines.append(f"on since: {_moment(notice.raised_at)}")
    if notice.cleared_at is not None and notice.kind is not MessageKind.TEST:
        lines.append(f"off since: {_moment(notice.cleared_at)}")
    if notice.raises > 1:
        lines.append(f"raised {notice.raises} times")
    return lines


def _severity(notice: Notice) -> str:
    if notice.kind is MessageKind.TEST:
        return "info"
    if notice.critical:
        return "critical"
    return "warning"


def _resolved_at(notice: Notice) -> str | None:
    if notice.kind is not MessageKind.RESOLVED or notice.cleared_at is None:
        return None
    return notice.cleared_at.isoformat()


def _ends_at(notice: Notice, now: datetime) -> datetime:
    if notice.kind is MessageKind.TEST:
        return notice.raised_at + TEST_ENDS_AFTER
    if notice.kind is MessageKind.RESOLVED and notice.cleared_at is not None:
        return notice.cleared_at
    return now + ALERTMANAGER_ENDS_AFTER


def _mail_id(notice: Notice, kind: MessageKind) -> str:
    return f"<{notice.key_of(kind)}@{notice.cluster}.supervisor.invalid>"


def _slack(text: str) -> str:
    """Escape what Slack reads as a link, a mention or a command."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value)
