"""`supervisor alarm`: what the operator is called for, and whether the messages about it arrive."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from supervisor_tasks.cli import options
from supervisor_tasks.cli.context import counted, desk_of
from supervisor_tasks.cli.exit_codes import CommandError
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.views import Column, View, plain, span
from supervisor_tasks.ledger.alarm_meanings import MEANINGS
from supervisor_tasks.ledger.alarms import AlarmName
from supervisor_tasks.ledger.incidents import ChannelOutcome, Incidents

POLL_S = 0.2
ALARMS = View(
    "alarms",
    "name",
    (
        Column("ALARM", "name"),
        Column("SINCE", "raised_at", "age"),
        Column("DETAILS", "summary", flexible=True),
    ),
)
app = options.noun("See what you are called for.")


@app.command("list")
def list_(
    context: typer.Context,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """List the alarms that are on, the oldest first.

    Example: supervisor alarm list
    """
    desk = desk_of(context)
    desk.present(ALARMS, lambda: [_row(asdict(alarm)) for alarm in desk.ledger.alarms.all()], output, watch, no_color)


@app.command()
def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="ALARM", help="Its name; `supervisor alarm list` has it.")],
    output: options.Output = Format.TABLE,
) -> None:
    """Show an alarm with all that is known of its cause, and what to do.

    Example: supervisor alarm show wallet_empty
    """
    desk = desk_of(context)
    found = {alarm.name.value: asdict(alarm) for alarm in desk.ledger.alarms.all()}
    if name not in found:
        raise CommandError(f"found no alarm {name!r} that is on; those that are: {', '.join(found) or 'none'}")
    meaning = MEANINGS[AlarmName(name)]
    found[name] |= {"cause": meaning.cause, "do": meaning.advice}
    if output in (Format.JSON, Format.YAML):
        desk.shown.document(found[name], output)
    elif output is Format.NAME:
        typer.echo(name)
    else:
        since = span((desk.now() - found[name]["raised_at"]).total_seconds())
        details = {key: plain(value) for key, value in found[name]["details"].items()}
        desk.shown.facts({"alarm": name, "on for": since, "means": meaning.cause, "do": meaning.advice} | details)


def _row(alarm: Mapping[str, Any]) -> dict[str, Any]:
    return {**alarm, "summary": summary_of(alarm["details"])}


def summary_of(details: Mapping[str, Any]) -> str:
    """Return the details in one line, what to do first."""
    rest = {name: value for name, value in details.items() if name != "advice"}
    return "; ".join(filter(None, (plain(details.get("advice", "")), plain(rest))))


@app.command("test")
def try_channels(
    context: typer.Context,
    wait_s: Annotated[float, typer.Option(min=0, help="Wait so long until each channel has answered.")] = 60.0,
    reason: options.Reason = "",
    yes: options.Yes = False,
) -> None:
    """Have a worker send a test message to each channel, and tell which of them has taken it.

    A channel that takes the test then also gets the messages that it did not take before.

    Example: supervisor alarm test --yes
    """
    desk = desk_of(context)
    incidents = desk.ledger.incidents
    will = "Each channel of the workers' settings NOTIFY_* will get a test message"
    with desk.change("alarm test", "all channels", will, yes=yes, reason=reason):
        test_id = incidents.ask_test()
    outcomes = _outcomes(incidents, test_id, wait_s)
    desk.shown.facts({outcome.channel: _shown(outcome) for outcome in outcomes})
    failed = [outcome.channel for outcome in outcomes if outcome.after_s is None]
    if failed:
        raise CommandError(f"found {counted(len(failed), 'channel')} without the test: {', '.join(failed)}")


@app.command()
def drop(context: typer.Context, reason: options.Reason = "", yes: options.Yes = False) -> None:
    """Give up the messages that no channel has taken for a day; the alarms that they tell of stay.

    Example: supervisor alarm drop --reason "that chat is gone"
    """
    desk = desk_of(context)
    parked = desk.ledger.incidents.trouble(late_s=0.0).parked
    if not parked:
        raise CommandError("found no message that is parked; expected one: see notifications_failing in `alarm list`")
    will = f"{counted(parked, 'message')} will never be sent"
    with desk.change("alarm drop", "parked messages", will, yes=yes, reason=reason):
        desk.ledger.incidents.drop_parked()


def _outcomes(incidents: Incidents, test_id: int, wait_s: float) -> Sequence[ChannelOutcome]:
    """Wait until each channel has taken the test or failed. Raises CommandError if no worker sends it."""
    deadline = time.monotonic() + wait_s
    found = incidents.test_outcomes(test_id)
    while found is None or not all(outcome.is_known for outcome in found):
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_S)  # the outcome is a row, and no event reports a changed row
        found = incidents.test_outcomes(test_id)
    if found is None:
        raise CommandError(
            f"found no worker that has sent the test within {wait_s:g} s; expected one: see `supervisor health`"
        )
    if not found:
        raise CommandError("found no channel in the workers' settings; expected NOTIFY_*: see docs/how-to/operate.md")
    return found


def _shown(outcome: ChannelOutcome) -> str:
    if outcome.after_s is not None:
        return f"has taken it after {outcome.after_s:.1f} s"
    return outcome.error or "has not answered yet; the worker waits for it"


COMMANDS = {"alarm": app}
