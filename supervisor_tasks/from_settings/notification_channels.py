"""The channels of a worker, as its settings want them."""

from datetime import UTC, datetime

from pydantic import SecretStr

from supervisor_tasks.config.redaction import hiding
from supervisor_tasks.config.settings import Settings
from supervisor_tasks.notifications.delivery_rules import Policy
from supervisor_tasks.notifications.forms import (
    ALERTMANAGER_REPEAT_S,
    alertmanager_form,
    json_form,
    slack_form,
)
from supervisor_tasks.site_services.channels import (
    Channel,
    Command,
    Mail,
    Notifier,
    SmtpSecurity,
    Webhook,
)

ALERTS = "/api/v2/alerts"  # of Alertmanager


def notifier_of(settings: Settings) -> Notifier:
    """The channels, and when they are used. The messages show no secret of this
    process.
    """
    return Notifier(
        channels={**_webhooks(settings), **_mails(settings), **_command(settings)},
        policy=Policy(settings.notify_quiet_hours, settings.notify_stable_s),
        hide=hiding(settings.secret_values()),
        runbook_url=settings.runbook_url,
    )


def _webhooks(settings: Settings) -> dict[str, Channel]:
    channels = dict[str, Channel]()
    ca = settings.notify_ca
    if url := _text(settings.notify_webhook_url):
        channels["webhook"] = Webhook(
            url, json_form, _text(settings.notify_webhook_token), ca
        )
    if url := _text(settings.notify_slack_url):
        channels["slack"] = Webhook(url, slack_form, ca=ca)
    if url := _text(settings.notify_alertmanager_url):
        channels["alertmanager"] = Webhook(
            url.rstrip("/").removesuffix(ALERTS) + ALERTS,
            lambda notice: alertmanager_form(notice, datetime.now(UTC)),
            ca=ca,
            repeat_s=ALERTMANAGER_REPEAT_S,
        )
    return channels


def _mails(settings: Settings) -> dict[str, Channel]:
    """One channel for each address: an address that the server rejects delays no mail
    to the others.
    """
    return {
        f"mail {receiver}": Mail(
            server=settings.notify_smtp_address or "",
            tls=SmtpSecurity(settings.notify_smtp_tls),
            sender=settings.notify_mail_from or "",
            receiver=receiver,
            user=settings.notify_smtp_user or "",
            password=_text(settings.notify_smtp_password),
            ca=settings.notify_ca,
        )
        for receiver in settings.notify_mail_to
    }


def _command(settings: Settings) -> dict[str, Channel]:
    if not settings.notify_command:
        return {}
    return {"command": Command(settings.notify_command)}


def _text(secret: SecretStr | None) -> str:
    if secret is None:
        return ""
    return secret.get_secret_value()
