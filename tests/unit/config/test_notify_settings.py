"""The settings of the messages about alarms: their forms, what belongs together, and
which processes keep their secrets.
"""

from datetime import time

import pytest

from supervisor_tasks.config.needs import NOTIFY_KEYS, Need
from supervisor_tasks.config.settings import Settings, SettingsError, load
from supervisor_tasks.from_settings.notification_channels import notifier_of
from supervisor_tasks.notifications.delivery_rules import QuietHours
from supervisor_tasks.notifications.incident_messages import TEST
from supervisor_tasks.site_services.channels import Command, Mail, SmtpSecurity, Webhook

MAIL = {
    "NOTIFY_MAIL_TO": "ops@example.org, boss@example.org",
    "NOTIFY_MAIL_FROM": "fleet@example.org",
    "NOTIFY_SMTP_ADDRESS": "mail.example.org:587",
}


def given(**environment: str) -> Settings:
    return load(Need.NOTIFY, environment=environment)


def test_notifier_of__no_settings__has_no_channel() -> None:
    assert notifier_of(given()).channels == {}


def test_notifier_of__all_settings__has_a_channel_for_each() -> None:
    wanted = notifier_of(
        given(
            NOTIFY_WEBHOOK_URL="https://hooks.example.org/x",
            NOTIFY_WEBHOOK_TOKEN="the-token",
            NOTIFY_SLACK_URL="https://hooks.slack.example/services/T1/B2/abc123",
            NOTIFY_ALERTMANAGER_URL="https://am.example.org/prefix/",
            NOTIFY_SMTP_USER="fleet",
            NOTIFY_SMTP_PASSWORD="correct-horse",
            NOTIFY_COMMAND="/usr/bin/page --to 'the team'",
            NOTIFY_STABLE_S="60",
            **MAIL,
        )
    )
    mails = ["mail ops@example.org", "mail boss@example.org"]
    assert list(wanted.channels) == [
        "webhook",
        "slack",
        "alertmanager",
        *mails,
        "command",
    ]
    webhook, alertmanager = wanted.channels["webhook"], wanted.channels["alertmanager"]
    assert isinstance(webhook, Webhook)
    assert isinstance(alertmanager, Webhook)
    assert (webhook.token, webhook.repeat_s) == ("the-token", None)
    assert (alertmanager.url, alertmanager.repeat_s) == (
        "https://am.example.org/prefix/api/v2/alerts",
        60.0,
    )
    assert wanted.channels["command"] == Command(("/usr/bin/page", "--to", "the team"))
    mail = wanted.channels["mail boss@example.org"]
    assert isinstance(mail, Mail)
    assert (mail.server, mail.tls, mail.user) == (
        "mail.example.org:587",
        SmtpSecurity.STARTTLS,
        "fleet",
    )
    assert wanted.policy.stable_s == 60.0
    assert wanted.hide("a correct-horse and abc123") == "a [redacted] and [redacted]"


@pytest.mark.parametrize(
    ("base", "alarm", "page"),
    [
        ("", "wallet_empty", "docs/how-to/alarms/wallet_empty.md"),
        (
            "https://git.example.org/alarms/",
            "wallet_empty",
            "https://git.example.org/alarms/wallet_empty.md",
        ),
        (
            "https://git.example.org/alarms",
            TEST,
            "https://git.example.org/alarms/README.md",
        ),
        (
            "https://git.example.org/alarms",
            "of another/version",
            "https://git.example.org/alarms/of%20another%2Fversion.md",
        ),
    ],
)
def test_runbook_url__with_an_alarm__is_its_page(
    base: str, alarm: str, page: str
) -> None:
    assert notifier_of(given(RUNBOOK_URL=base)).page_of(alarm) == page


@pytest.mark.parametrize(
    "base", ["alarms", "ftp://x/y", "https://x/y?z=1", "https://x/y#z", "https://x/a b"]
)
def test_runbook_url__no_page_can_follow__is_refused(base: str) -> None:
    with pytest.raises(SettingsError, match="RUNBOOK_URL: found"):
        given(RUNBOOK_URL=base)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("22:00-07:00", QuietHours(time(22), time(7), "UTC")),
        (
            "22:00-07:30 Europe/Zurich",
            QuietHours(time(22), time(7, 30), "Europe/Zurich"),
        ),
    ],
)
def test_quiet_hours__well_formed__are_read(text: str, expected: QuietHours) -> None:
    assert given(NOTIFY_QUIET_HOURS=text).notify_quiet_hours == expected


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        (
            {"NOTIFY_QUIET_HOURS": "22-7"},
            "NOTIFY_QUIET_HOURS: found '22-7'; expected hours and a time zone",
        ),
        (
            {"NOTIFY_QUIET_HOURS": "22:00-25:00"},
            "NOTIFY_QUIET_HOURS: found '22:00-25:00'; expected hours and",
        ),
        (
            {"NOTIFY_QUIET_HOURS": "22:00-07:00 Mars/Olympus"},
            "NOTIFY_QUIET_HOURS: found '22:00-07:00 Mars/Olympus'",
        ),
        (
            {"NOTIFY_QUIET_HOURS": "22:00-07:00 ../../etc/passwd"},
            "NOTIFY_QUIET_HOURS: found",
        ),
        (
            {"NOTIFY_QUIET_HOURS": "07:00-07:00"},
            "NOTIFY_QUIET_HOURS: found '07:00-07:00'; expected hours and",
        ),
        ({"NOTIFY_STABLE_S": "-1"}, "NOTIFY_STABLE_S: found '-1'"),
        (
            {"NOTIFY_MAIL_TO": "ops"},
            "NOTIFY_MAIL_TO: found 'ops'; expected addresses as ops@example.org",
        ),
        ({"NOTIFY_MAIL_TO": "ops@example.org\nBcc: x@y.z"}, "NOTIFY_MAIL_TO: found"),
        (
            {"NOTIFY_MAIL_TO": "ops@example.org"},
            "NOTIFY_MAIL_FROM: found nothing; expected the sender's address",
        ),
        (
            {"NOTIFY_MAIL_TO": "ops@example.org"},
            "NOTIFY_SMTP_ADDRESS: found nothing; expected the SMTP server",
        ),
        (
            MAIL | {"NOTIFY_SMTP_USER": "fleet"},
            "NOTIFY_SMTP_PASSWORD: found nothing; expected that user's password",
        ),
        (
            MAIL
            | {
                "NOTIFY_SMTP_USER": "fleet",
                "NOTIFY_SMTP_PASSWORD": "secret",
                "NOTIFY_SMTP_TLS": "none",
            },
            "NOTIFY_SMTP_TLS: found 'none'; expected starttls or tls",
        ),
        (
            {"NOTIFY_SMTP_TLS": "ssl"},
            "NOTIFY_SMTP_TLS: found 'ssl'; expected starttls, tls or none",
        ),
        (
            {"NOTIFY_COMMAND": "page --me"},
            "NOTIFY_COMMAND: found 'page --me'; expected a command that begins with",
        ),
        ({"NOTIFY_COMMAND": "/usr/bin/page 'x"}, "NOTIFY_COMMAND: found"),
        (
            {"NOTIFY_WEBHOOK_URL": "hooks/T0K3N"},
            "NOTIFY_WEBHOOK_URL: found a value that is not shown; expected a URL",
        ),
    ],
)
def test_notify_settings__malformed__have_a_line_that_says_what_is_expected(
    environment: dict[str, str], line: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load(Need.NOTIFY, environment=environment)
    assert [found for found in caught.value.lines if found.startswith(line)]
    assert "T0K3N" not in str(caught.value)


def test_password__over_the_loopback__needs_no_tls() -> None:
    local = MAIL | {"NOTIFY_SMTP_ADDRESS": "127.0.0.1:25", "NOTIFY_SMTP_TLS": "none"}
    assert (
        given(
            **local, NOTIFY_SMTP_USER="fleet", NOTIFY_SMTP_PASSWORD="secret"
        ).notify_smtp_tls
        == "none"
    )


@pytest.mark.parametrize("needs", [(), (Need.SSH_PUBLIC,)])
def test_secrets__of_processes_that_are_no_workers__are_dropped(
    needs: tuple[Need, ...],
) -> None:
    environment = {
        name.upper(): "https://example.org/s3cr3t-path" for name in NOTIFY_KEYS
    }
    public = {
        "SLURM_SSH_PUBLIC_KEY": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ9QWmY0V9pTtHkHl0cQ3vU1o4yC7nB0p8i3zJmW6C0f x"
    }
    settings = load(*needs, environment=environment | public)
    assert [getattr(settings, name) for name in NOTIFY_KEYS] == [None] * len(
        NOTIFY_KEYS
    )


def test_secret_values__of_a_webhook__are_the_parts_that_can_be_a_key() -> None:
    settings = given(
        NOTIFY_SLACK_URL="https://hooks.slack.example/services/T1234/B2345/abcdef123"
    )
    assert {"T1234", "B2345", "abcdef123"} <= set(settings.secret_values())
