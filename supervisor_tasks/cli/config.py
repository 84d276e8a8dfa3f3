"""The command for the configuration of this program."""

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from pydantic import SecretStr

from supervisor_tasks.cli import options
from supervisor_tasks.cli.cli_context import cli_context
from supervisor_tasks.cli.exit_codes import UnusableError
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.views import Column, View
from supervisor_tasks.config.needs import CHAIN_URLS, Need, needs_of_queues
from supervisor_tasks.config.other_forms import OTHER_FORMS
from supervisor_tasks.config.settings import (
    IN_FILES,
    NOT_SHOWN,
    Settings,
    SettingsError,
    load,
)
from supervisor_tasks.config.url_secrets import shown
from supervisor_tasks.config.variables import mistyped
from supervisor_tasks.messaging.queues import Queue
from supervisor_tasks.observability.flower_login import FlowerOpenError, check_login

HIDDEN = "(set, not shown)"
SETTINGS = View(
    "settings",
    "setting",
    (
        Column("SETTING", "setting", flexible=True),
        Column("FROM", "from", flexible=True),
        Column("VALUE", "value", flexible=True),
    ),
)


class ConfiguredProcess(StrEnum):
    """The processes whose settings can be checked."""

    WORKER = "worker"
    CHAIN = "chain"
    SLURM = "slurm"
    CALLBACKS = "callbacks"
    BEAT = "beat"
    FLOWER = "flower"
    METRICS = "metrics"
    REPORTER = "reporter"


NEEDS: Mapping[ConfiguredProcess, Sequence[Need]] = {
    ConfiguredProcess.WORKER: needs_of_queues(list(Queue)),
    ConfiguredProcess.CHAIN: needs_of_queues([Queue.CHAIN]),
    ConfiguredProcess.SLURM: needs_of_queues([Queue.SLURM]),
    ConfiguredProcess.CALLBACKS: (Need.SSH_PUBLIC,),
    ConfiguredProcess.BEAT: (),
    ConfiguredProcess.FLOWER: (),
    ConfiguredProcess.METRICS: (),
    ConfiguredProcess.REPORTER: (),
}
app = options.noun(
    "See and check what this program is configured with.", example="config check"
)


@app.command()
def show(
    context: typer.Context,
    output: options.Output = Format.TABLE,
    no_color: options.NoColor = False,
) -> None:
    """Show every setting, where it came from and what it is; secrets are not shown.

    Example: supervisor config show -o json
    """
    cli = cli_context(context)
    rows = [
        {
            "setting": name.upper(),
            "from": _source(name, os.environ),
            "value": _value(name, cli.settings),
        }
        for name in Settings.model_fields
    ]
    cli.shown.color = not no_color
    cli.shown.rows(SETTINGS, rows, output, datetime.now(UTC))
    _warn_of_mistyped()


@app.command()
def check(
    context: typer.Context,
    process: Annotated[
        ConfiguredProcess,
        typer.Argument(
            metavar="PROCESS",
            help="The process whose settings are checked; chain and slurm are workers of that queue. Of flower and reporter"
            " only what the environment says, and not the options of their command lines.",
        ),
    ] = ConfiguredProcess.WORKER,
    form_only: Annotated[
        bool,
        typer.Option(
            "--form-only",
            help="Only whether they are complete and well-formed; ask no server.",
        ),
    ] = False,
    output: options.Output = Format.TABLE,
    no_color: options.NoColor = False,
) -> None:
    """Check that a process could start with the settings of this environment, and that
    what they name answers.

    Status 2 and a line for each setting that is wrong, status 1 if something does not
    answer. `supervisor doctor` tries the running fleet too.

    Example: supervisor config check callbacks
    """
    try:
        settings = load(*NEEDS[process])
        if process is ConfiguredProcess.FLOWER:
            check_login(os.environ, settings.flower_basic_auth)
    except (SettingsError, FlowerOpenError) as error:
        raise UnusableError(str(error)) from error
    finally:
        _warn_of_mistyped()
    result = f"the settings of {process.value} are complete and well-formed"
    if form_only:
        typer.echo(result)
        return
    # imports what only doctor needs
    from supervisor_tasks.cli.doctor import show_findings
    from supervisor_tasks.doctor.probe_sets import try_settings

    cli = cli_context(context)
    cli.print_target()
    typer.echo(result, err=True)
    cli.shown.color = not no_color
    show_findings(cli, try_settings(settings, process.value), output)


def _warn_of_mistyped() -> None:
    for name, nearest in mistyped(os.environ).items():
        typer.echo(f"{name}: no setting; expected {nearest}?", err=True)


def _source(name: str, environment: Mapping[str, str]) -> str:
    """Return where a setting comes from, by the rule of settings.py: the variable has
    priority over the file.
    """
    if environment.get(name.upper()):
        return "environment"
    file = environment.get(f"{name.upper()}_FILE")
    if name in IN_FILES and file:
        return f"file {file}"
    if name in OTHER_FORMS:
        other_variable = OTHER_FORMS[name][0]
        if environment.get(other_variable):
            return f"environment, {other_variable}"
    return "default"


def _value(name: str, settings: Settings) -> Any:
    """Return the part of a setting that may be shown. A command has no keys: it only
    knows whether one is set.
    """
    value = getattr(settings, name)
    if name in CHAIN_URLS:
        urls = value.get_secret_value().split(",")
        return " ".join(
            shown(url.strip(), number) for number, url in enumerate(urls, 1)
        )
    if name in NOT_SHOWN or isinstance(value, SecretStr):
        is_set = _source(name, os.environ) != "default"
        return HIDDEN if is_set else None
    if isinstance(value, tuple | frozenset):
        return ",".join(map(str, value))
    if isinstance(value, bool | int | float | dict | None):
        return value
    return str(value)


COMMANDS = {"config": app}
