"""`supervisor effect`: what is left to do for jobs and other subjects, and the effects
that an operator gives up.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from supervisor_tasks.cli import options
from supervisor_tasks.cli.cli_context import CliContext, cli_context
from supervisor_tasks.cli.exit_codes import CommandError
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.views import Column, View
from supervisor_tasks.jobs.events import OperatorAbandonedEffect
from supervisor_tasks.jobs.model import IN_SLURM, EffectKind, Job, JobId
from supervisor_tasks.ledger import operator_actions
from supervisor_tasks.ledger.status_queries import OpenEffectFilter

EFFECTS = View(
    "effects",
    "effect",
    (
        Column("EFFECT", "effect", "number"),
        Column("KIND", "kind"),
        Column("PLACE", "place", "state"),
        Column("SUBJECT", "subject", "id"),
        Column("STATE", "state", "state", wide=True),
        Column("DUE", "due_at", "age"),
        Column("FAILS", "failing_since", "age", wide=True),
        Column("TRIES", "attempts", "number", wide=True),
        Column("LAST_ERROR", "last_error", flexible=True),
        Column("EVIDENCE", "evidence", wide=True),
    ),
)
NOT_NEEDED = (
    EffectKind.NOTIFY_CUSTOMER,
    EffectKind.CANCEL,
    EffectKind.TOP_UP,
)  # a job does not continue without the other kinds


class EffectFilter(StrEnum):
    """Where an effect is."""

    DUE = "due"
    WAITING = "waiting"
    LEASED = "leased"
    PARKED = "parked"


class EffectSort(StrEnum):
    """The orders of a list of effects."""

    DUE = "due"
    AGE = "age"
    KIND = "kind"
    STATE = "state"
    TRIES = "tries"


app = options.noun(
    "See what is left to do, and give up what cannot be done.",
    example="effect list --state parked",
)


@app.command("list")
def list_(
    context: typer.Context,
    state: Annotated[
        EffectFilter | None,
        typer.Option(help="Only in this state; parked effects wait for you."),
    ] = None,
    kind: Annotated[
        EffectKind | None,
        typer.Option(
            metavar="KIND", help=f"Only of this kind: {', '.join(EffectKind)}."
        ),
    ] = None,
    customer: Annotated[
        str | None,
        typer.Option(help="Only of the customer whose address begins like this."),
    ] = None,
    since: options.Since = None,
    sort: Annotated[EffectSort, typer.Option(help="The order.")] = EffectSort.DUE,
    limit: options.Limit = 100,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """List what is left to do, in the order in which it is due, with the last error and
    (wide) the evidence.

    Example: supervisor effect list --state parked -o wide
    """
    cli = cli_context(context)
    wanted = OpenEffectFilter(
        state and state.value,
        kind and kind.value,
        options.age(since),
        options.hex_beginning(customer),
        sort.value,
        limit,
    )
    cli.present(EFFECTS, lambda: cli.overview.effects(wanted), output, watch, no_color)


@app.command()
def abandon(
    context: typer.Context,
    effect: Annotated[
        int,
        typer.Argument(
            metavar="EFFECT",
            max=options.MAX_NUMBER,
            help="Its number; `supervisor effect list` has it.",
        ),
    ],
    reason: options.RequiredReason,
    yes: options.Yes = False,
) -> None:
    """Give up a parked effect without which the job goes on: a line to the customer, a
    cancellation, a top-up.

    Example: supervisor effect abandon 17 --reason "the logger is gone"
    """
    cli = cli_context(context)
    found = _parked(cli, effect)
    kind = _known_kind(found["kind"])
    if not kind.of_job:
        raise CommandError(
            f"found {kind} of {found['subject']}; expected an effect of a job: mend what its error says"
        )
    job = cli.job(found["subject"])
    _refuse_what_is_needed(kind, job)
    will = f"{kind} of {job.job_id} ({job.state}) will be given up, after {found['attempts']} tries"
    with cli.change(
        "effect abandon",
        f"effect {effect} of {job.job_id}",
        will,
        yes=yes,
        reason=reason,
    ):
        try:
            operator_actions.abandon(
                cli.ledger,
                effect,
                found["parked_at"],
                JobId(found["subject"]),
                OperatorAbandonedEffect(kind, reason),
            )
        except operator_actions.EffectChangedError as error:
            raise CommandError(
                f"effect {effect} has changed meanwhile, and nothing was given up: it is done, or was tried again; see"
                " `supervisor effect list`, and repeat the command if it is still parked"
            ) from error
    typer.echo("abandoned")


def _known_kind(kind: str) -> EffectKind:
    if kind not in set(EffectKind):
        raise CommandError(
            f"found an effect of the kind {kind}, which another release of the supervisor has opened; expected"
            f" {', '.join(NOT_NEEDED)}: use the command of that release"
        )
    return EffectKind(kind)


def _parked(cli: CliContext, effect: int) -> Mapping[str, Any]:
    found = cli.overview.parked(effect_id=effect)
    if not found:
        raise CommandError(
            f"found no parked effect {effect}; see `supervisor effect list --state parked`"
        )
    return found[0]


def _refuse_what_is_needed(kind: EffectKind, job: Job) -> None:
    if kind not in NOT_NEEDED:
        expected = ", ".join(NOT_NEEDED)
        raise CommandError(
            f"found {kind} of a job in {job.state}; expected {expected}: without it the job stands still, so `supervisor job"
            " retry` or `supervisor job settle`"
        )
    has_left_slurm = job.state not in IN_SLURM and job.slurm_id is not None
    if kind is EffectKind.CANCEL and has_left_slurm:
        raise CommandError(
            f"found {kind} of a job in {job.state}; expected QUEUED or RUNNING: it is decided, and as long as SLURM runs it,"
            f" each sweep asks for that again; end {job.slurm_id} in SLURM, then `supervisor job retry`"
        )


COMMANDS = {"effect": app}
