"""`supervisor alarm`: which alarms are on, and whether the messages about them
arrive.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Any

import typer

from supervisor_tasks.alarms.alarm_meanings import is_known, meaning_of
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.cli import options
from supervisor_tasks.cli.cli_context import CliContext, cli_context
from supervisor_tasks.cli.exit_codes import CommandError, UnusableError
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.views import Cell, Column, View, plain, span
from supervisor_tasks.cli.wording import counted, for_display, joined, listed
from supervisor_tasks.ledger.incidents import ChannelOutcome, Incidents
from supervisor_tasks.notifications.incident_messages import Silence, page_of

POLL_S = 0.2
# an operator who wants a longer one must remove the cause
MAX_SILENCE = timedelta(days=31)
AnyAlarm = Annotated[
    str,
    typer.Argument(
        metavar="ALARM",
        help="Its name, also if it is off.",
        autocompletion=lambda incomplete: [
            name.value for name in AlarmName if name.value.startswith(incomplete)
        ],
    ),
]
ALARMS = View(
    "alarms",
    "name",
    (
        Column("ALARM", "name"),
        Column("SINCE", "raised_at", "age"),
        Column("SILENT", "silenced_until", "age"),
        Column("DETAILS", "summary", flexible=True),
    ),
)
SILENCES = View(
    "silences",
    "name",
    (
        Column("SILENCED", "name"),
        Column("SINCE", "begun_at", "age"),
        Column("ENDS", "ends_at", "age"),
        Column("REASON", "reason", flexible=True),
    ),
)
MESSAGES = View(
    "messages",
    "channel",
    (
        Column("CHANNEL", "channel"),
        Column("KIND", "kind"),
        Column("STATE", "state", "state"),
        Column("PLANNED", "created_at", "age", wide=True),
        Column("SENT", "sent_at", "age"),
        Column("NEXT", "next_at", "age"),
        Column("FAILED", "failed_tries", "number"),
        Column("LAST ERROR", "last_error", flexible=True),
    ),
)


class AlarmSort(StrEnum):
    """The orders of the list of alarms."""

    AGE = "age"
    NAME = "name"


app = options.noun(
    "See what needs an operator, silence alarms, and test the channels of their messages.",
    example="alarm list",
)


@app.command("list")
def list_(
    context: typer.Context,
    since: options.Since = None,
    sort: Annotated[AlarmSort, typer.Option(help="The order.")] = AlarmSort.AGE,
    limit: options.Limit = 100,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """List the alarms that are on, the oldest first; a table also has those that are
    silenced.

    Example: supervisor alarm list --since 1h
    """
    cli = cli_context(context)
    cli.shown.color = not no_color
    younger = options.age(since)
    cli.shown.repeated(lambda: _show_list(cli, output, younger, sort, limit), watch)


def _show_list(
    cli: CliContext,
    output: Format,
    younger: timedelta | None,
    sort: AlarmSort,
    limit: int,
) -> None:
    silences, now = cli.ledger.incidents.silences(), cli.now()
    alarms = list(cli.ledger.alarms.all())
    if younger is not None:
        alarms = [alarm for alarm in alarms if alarm.raised_at >= now - younger]
    if sort is AlarmSort.NAME:  # else they are in the order of their age
        alarms.sort(key=lambda alarm: alarm.name)
    rows = [_row(asdict(alarm), silences.get(alarm.name)) for alarm in alarms[:limit]]
    cli.shown.rows(ALARMS, rows, output, now)
    if silences and output in (Format.TABLE, Format.WIDE):
        cli.shown.blank()
        silence_rows = [
            {"name": name, **asdict(silence)} for name, silence in silences.items()
        ]
        cli.shown.table(SILENCES, silence_rows, now, wide=output is Format.WIDE)


@app.command()
def show(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="ALARM", help="Its name; `supervisor alarm list` has it."
        ),
    ],
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """Show an alarm: what it means, its details, what to do, and the messages of its
    last incident by channel.

    Example: supervisor alarm show wallet_empty
    """
    cli = cli_context(context)
    cli.present_by(lambda: _show_alarm(cli, name, output), watch, no_color)


def _show_alarm(cli: CliContext, name: str, output: Format) -> None:
    raised = {alarm.name: asdict(alarm) for alarm in cli.ledger.alarms.all()}
    if name not in raised and not is_known(name):
        resembled = "".join(
            f" {one}?" for one in get_close_matches(name, list(AlarmName))
        )
        raise CommandError(
            f"found no alarm {name!r}; expected one of docs/reference/alarms.md{resembled}"
        )
    alarm = raised.get(name) or {"name": name, "details": {}, "raised_at": None}
    meaning = meaning_of(name)
    silence = cli.ledger.incidents.silences().get(name)
    alarm |= {"cause": meaning.cause, "do": meaning.advice} | _silenced(silence)
    messages = [
        asdict(message) for message in cli.ledger.incidents.messages_of_last(name)
    ]
    alarm["messages"] = messages

    def show(wide: bool) -> None:
        now = cli.now()
        cli.shown.facts(facts_of(alarm, silence, now, cli.settings.runbook_url))
        cli.shown.blank()
        cli.shown.table(MESSAGES, messages, now, wide=wide)

    cli.shown.one(alarm, name, output, show)


def facts_of(
    alarm: Mapping[str, Any], silence: Silence | None, now: datetime, runbook_url: str
) -> dict[str, str]:
    """Return the lines about an alarm: how long it is on, what it means, what to do,
    and its details in words.
    """
    name, raised_at, on_for = alarm["name"], alarm["raised_at"], "it is off"
    if raised_at is not None:
        on_for = span((now - raised_at).total_seconds())
    meaning = meaning_of(name)
    facts = {
        "alarm": name,
        "on for": on_for,
        "means": meaning.cause,
        "do": meaning.advice,
        "page": page_of(runbook_url, name),
    }
    if silence is not None:
        facts["silenced"] = f"until {_shown_moment(silence.ends_at)}: {silence.reason}"
    return facts | for_display(alarm["details"])


@app.command()
def silence(
    context: typer.Context,
    name: AnyAlarm,
    reason: Annotated[
        str,
        typer.Option(
            "--reason",
            help="Why; `supervisor alarm list` and `supervisor log` show it.",
        ),
    ],
    span_: Annotated[
        str | None,
        typer.Option("--for", metavar="AGE", help="How long: 90s, 15m, 2h, 3d or 1w."),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"],
            help="When it ends, in this machine's time.",
        ),
    ] = None,
    yes: options.Yes = False,
) -> None:
    """Send no messages of one alarm until a time; it goes on and off as before, and if
    it is on then, its message is sent.

    Example: supervisor alarm silence slurm_not_answering --for 2h --reason "slurmctld
    is upgraded"
    """
    cli = cli_context(context)
    alarm, now = _known(cli, name), cli.now()
    ends_at = _end_of(now, span_, until)
    if not reason.strip():
        raise UnusableError(
            "--reason: found nothing; expected why the alarm is silenced: give --reason TEXT"
        )
    will = f"no message of {alarm} will be sent until {_shown_moment(ends_at)} ({span((ends_at - now).total_seconds())})"
    with cli.change("alarm silence", alarm, will, yes=yes, reason=reason):
        cli.ledger.incidents.silence(alarm, ends_at, reason)
    typer.echo(f"{alarm} is silent; `supervisor alarm unsilence {alarm}` ends that")


@app.command()
def unsilence(
    context: typer.Context,
    name: AnyAlarm,
    reason: options.Reason = "",
    yes: options.Yes = False,
) -> None:
    """Send messages of an alarm again, before its silence is over.

    Example: supervisor alarm unsilence slurm_not_answering
    """
    cli = cli_context(context)
    alarm, silences = _known(cli, name), cli.ledger.incidents.silences()
    if alarm not in silences:
        raise CommandError(
            f"found {alarm!r}, which is not silenced; those that are: {joined(silences)}"
        )
    left = span((silences[alarm].ends_at - cli.now()).total_seconds())
    will = f"messages of {alarm} will be sent again, {left} before its silence ends ({silences[alarm].reason})"
    with cli.change("alarm unsilence", alarm, will, yes=yes, reason=reason):
        cli.ledger.incidents.unsilence(alarm)
    typer.echo(f"messages of {alarm} are sent again")


def _known(cli: CliContext, name: str) -> str:
    """Return the name of an alarm, which another version can have raised. Raises
    UnusableError.
    """
    of_ledger = {alarm.name for alarm in cli.ledger.alarms.all()}
    of_ledger.update(cli.ledger.incidents.silences())
    names = list(AlarmName)
    if name not in names and name not in of_ledger:
        near = joined(get_close_matches(name, names), "see docs/reference/alarms.md")
        raise UnusableError(
            f"found no alarm {name!r}; expected the name of one ({near})"
        )
    return name


def _end_of(now: datetime, span_: str | None, until: datetime | None) -> datetime:
    """Return when a silence ends. Raises UnusableError."""
    if (span_ is None) == (until is None):
        found = "neither" if span_ is None else "both"
        raise UnusableError(
            f"found {found} of --for AGE and --until TIME; expected one"
        )
    if until is not None:
        ends_at = until.astimezone()
    else:
        length = options.age(span_, "--for") or timedelta()
        # a much longer one would end after datetime.max
        ends_at = now + min(length, 2 * MAX_SILENCE)
    if not now < ends_at <= now + MAX_SILENCE:
        raise UnusableError(
            f"found a silence until {_shown_moment(ends_at)}; expected a time from now on, in {MAX_SILENCE.days} days"
            " at most"
        )
    return ends_at


def names_of_raised(names: Sequence[str]) -> Cell:
    """Return the names of the alarms that are on, for a line of facts."""
    return Cell(", ".join(names), "red") if names else Cell("none")


def _shown_moment(moment: datetime) -> str:
    return f"{moment.astimezone():%Y-%m-%d %H:%M %Z}"


def _silenced(silence: Silence | None) -> dict[str, Any]:
    """Return an alarm's silence for programs."""
    if silence is None:
        return {"silenced_until": None, "silence_reason": None}
    return {"silenced_until": silence.ends_at, "silence_reason": silence.reason}


def _row(alarm: Mapping[str, Any], silence: Silence | None) -> dict[str, Any]:
    summary = summary_of(alarm["name"], alarm["details"])
    return {**alarm, "summary": summary} | _silenced(silence)


def summary_of(name: str, details: Mapping[str, Any]) -> str:
    """Return an alarm's details in one line: first the advice, then the rest. An alarm
    of another version is said to be one.
    """
    rest = dict(details)
    advice = plain(rest.pop("advice", ""))
    origin = "" if is_known(name) else meaning_of(name).cause.rstrip(".")
    return "; ".join(filter(None, (origin, advice, listed(rest))))


@app.command("test")
def try_channels(
    context: typer.Context,
    wait_s: Annotated[
        float,
        typer.Option(
            min=0, help="Wait this many seconds at most for each channel's answer."
        ),
    ] = 60.0,
    reason: options.Reason = "",
    yes: options.Yes = False,
) -> None:
    """Have a worker send a test message to each channel, and show which channels have
    taken it.

    A channel that takes the test then also gets the messages that it did not take
    before.

    Example: supervisor alarm test --yes
    """
    cli = cli_context(context)
    incidents = cli.ledger.incidents
    will = "each channel of the workers' settings NOTIFY_* will get 1 test message"
    with cli.change("alarm test", "all channels", will, yes=yes, reason=reason):
        test_id = incidents.ask_test()
    outcomes = _outcomes(incidents, test_id, wait_s)
    cli.shown.facts({outcome.channel: _shown(outcome) for outcome in outcomes})
    failed = [outcome.channel for outcome in outcomes if outcome.after_s is None]
    if failed:
        raise CommandError(
            f"found {counted(len(failed), 'channel')} without the test: {', '.join(failed)}"
        )


@app.command()
def drop(
    context: typer.Context, reason: options.Reason = "", yes: options.Yes = False
) -> None:
    """Give up the messages that no channel has taken for a day; their alarms stay.

    Example: supervisor alarm drop --reason "that chat is gone"
    """
    cli = cli_context(context)
    parked = cli.ledger.incidents.undelivered(late_s=0.0).parked
    if not parked:
        raise CommandError(
            "found no message that is parked; expected one: see notifications_failing in `alarm list`"
        )
    will = f"{counted(parked, 'message')} will never be sent"
    with cli.change("alarm drop", "parked messages", will, yes=yes, reason=reason):
        cli.ledger.incidents.drop_parked()


def _outcomes(
    incidents: Incidents, test_id: int, wait_s: float
) -> Sequence[ChannelOutcome]:
    """Wait until each channel has taken the test or failed. Raises CommandError if no
    worker sends it.
    """
    deadline_s = time.monotonic() + wait_s
    outcomes = incidents.test_outcomes(test_id)
    while not _all_known(outcomes) and time.monotonic() <= deadline_s:
        time.sleep(POLL_S)  # the outcome is a row, and no event reports a changed row
        outcomes = incidents.test_outcomes(test_id)
    if outcomes is None:
        raise CommandError(
            f"found no worker that has sent the test within {wait_s:g} s; expected one: see `supervisor health`"
        )
    if not outcomes:
        raise CommandError(
            "found no channel in the workers' settings; expected NOTIFY_*: see docs/how-to/operate.md"
        )
    return outcomes


def _all_known(outcomes: Sequence[ChannelOutcome] | None) -> bool:
    return outcomes is not None and all(outcome.is_known for outcome in outcomes)


def _shown(outcome: ChannelOutcome) -> str:
    if outcome.after_s is not None:
        return f"has taken it after {outcome.after_s:.1f} s"
    return outcome.error or "has not answered yet; the worker waits for it"


COMMANDS = {"alarm": app}
