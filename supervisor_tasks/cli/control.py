"""The commands that control the fleet: claims, submissions, the reporter, the chain's
logs.
"""

from typing import Annotated

import typer

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.cli import options
from supervisor_tasks.cli.cli_context import cli_context
from supervisor_tasks.cli.exit_codes import CommandError
from supervisor_tasks.cli.status import LOGS
from supervisor_tasks.cli.views import span
from supervisor_tasks.cli.wording import counted, counted_jobs
from supervisor_tasks.jobs.model import BEFORE_SLURM, IN_SLURM
from supervisor_tasks.ledger.facts import REWIND, UNEXPECTED_CLUSTER
from supervisor_tasks.ledger.heartbeats import (
    delete_reporter_heartbeats,
    known_reporters,
    reporter_of,
)
from supervisor_tasks.ledger.switch_names import Switch

claims = options.noun(
    "Stop and start the claiming of jobs; what is under way goes on.",
    example="claims pause --reason maintenance",
)
submissions = options.noun(
    "Stop and start the submission of jobs to SLURM; what SLURM has goes on.",
    example="submissions pause --reason maintenance",
)
reporter = options.noun(
    "Change what the fleet expects of the reporters on slurmctld's hosts.",
    example="reporter disable ctl2",
)
chain = options.noun("Read a part of the chain again.", example="chain rewind")


@claims.command("pause")
def pause_claims(
    context: typer.Context, reason: options.Reason = "", yes: options.Yes = False
) -> None:
    """Claim no more jobs until `supervisor claims resume`.

    Example: supervisor claims pause --reason "maintenance until noon"
    """
    cli = cli_context(context)
    under_way = counted(sum(cli.overview.snapshot().jobs.values()), "job")
    will = f"no more jobs will be claimed for {cli.settings.cluster_name}; {under_way} under way will go on"
    with cli.change("claims pause", "claims", will, yes=yes, reason=reason):
        cli.ledger.switches.set(Switch.CLAIMING_PAUSED, reason)
    typer.echo("no more jobs are claimed; what is under way goes on")


@claims.command("resume")
def resume_claims(
    context: typer.Context, reason: options.Reason = "", yes: options.Yes = False
) -> None:
    """Claim jobs again.

    Example: supervisor claims resume
    """
    cli = cli_context(context)
    why = cli.ledger.switches.reason(Switch.CLAIMING_PAUSED)
    if why is None:
        raise CommandError(
            "found claims that are not paused; there is nothing to resume"
        )
    under_way = counted(sum(cli.overview.snapshot().jobs.values()), "job")
    will = (
        f"jobs will be claimed for {cli.settings.cluster_name} again, beside {under_way} under way; claims were paused"
        f" ({why or 'no reason given'})"
    )
    with cli.change("claims resume", "claims", will, yes=yes, reason=reason):
        cli.ledger.switches.unset(Switch.CLAIMING_PAUSED)
    typer.echo("jobs are claimed again")


@submissions.command("pause")
def pause_submissions(
    context: typer.Context, reason: options.Reason = "", yes: options.Yes = False
) -> None:
    """Submit no more jobs to SLURM, and claim none, until `supervisor submissions
    resume`.

    Example: supervisor submissions pause --reason "SLURM is upgraded"
    """
    cli = cli_context(context)
    jobs = cli.overview.snapshot().jobs
    waiting = counted_jobs(jobs, BEFORE_SLURM)
    in_slurm = counted_jobs(jobs, IN_SLURM)
    will = f"no more jobs will be submitted or claimed: {waiting} will wait, {in_slurm} in SLURM will go on"
    with cli.change("submissions pause", "submissions", will, yes=yes, reason=reason):
        cli.ledger.switches.set(Switch.SUBMISSIONS_PAUSED, reason or "the operator")
    typer.echo("no more jobs are given to SLURM; what it has goes on")


@submissions.command("resume")
def resume_submissions(
    context: typer.Context, reason: options.Reason = "", yes: options.Yes = False
) -> None:
    """Submit jobs to SLURM again after an operator's pause; `supervisor cluster accept`
    ends a pause of the fleet itself.

    Example: supervisor submissions resume
    """
    cli = cli_context(context)
    why = cli.ledger.switches.reason(Switch.SUBMISSIONS_PAUSED)
    if why is None:
        raise CommandError(
            "found submissions that are not paused; there is nothing to resume"
        )
    raised = {alarm.name for alarm in cli.ledger.alarms.all()}
    if (
        AlarmName.SLURM_STATE_LOST in raised
        or cli.ledger.facts.get(UNEXPECTED_CLUSTER) is not None
    ):
        raise CommandError(
            f"found submissions that a sweep has paused ({why}); expected a pause of an operator: see `supervisor cluster"
            " show`, then `supervisor cluster accept`"
        )
    waiting = counted_jobs(cli.overview.snapshot().jobs, BEFORE_SLURM)
    will = f"{waiting} that waited, and later ones, will be submitted to SLURM; submissions were paused ({why})"
    with cli.change("submissions resume", "submissions", will, yes=yes, reason=reason):
        cli.ledger.switches.unset(Switch.SUBMISSIONS_PAUSED, why)
    typer.echo("jobs are given to SLURM again")


@reporter.command("disable")
def disable_reporter(
    context: typer.Context,
    node: Annotated[
        str,
        typer.Argument(
            metavar="[NODE]", help="The reporter of this node; all if none is given."
        ),
    ] = "",
    reason: options.Reason = "",
    yes: options.Yes = False,
) -> None:
    """Expect no reporter until its next heartbeat: for a site that has removed it; the
    events in its spool are lost.

    Example: supervisor reporter disable ctl2 --reason "slurmctld has one host now"
    """
    cli = cli_context(context)
    snapshot = cli.overview.snapshot()
    in_slurm = counted_jobs(snapshot.jobs, IN_SLURM)
    ages_s = snapshot.periodic_run_ages_s
    chosen, subject = known_reporters(ages_s), "reporter"
    if node:
        subject = reporter_of(node)
        if subject not in chosen:
            raise CommandError(
                f"found no heartbeat of a reporter on {node}; expected one of: {', '.join(chosen) or 'none'}"
            )
        chosen = [subject]
    last = [f"{name}: the last one was {span(ages_s[name])} ago" for name in chosen]
    will = (
        f"the fleet will wait for no {subject} until its next heartbeat ({'; '.join(last) or 'there was none yet'}); what its"
        f" spool has of {in_slurm} in SLURM is lost"
    )
    with cli.change("reporter disable", subject, will, yes=yes, reason=reason):
        delete_reporter_heartbeats(cli.ledger.periodic_runs, chosen)
    typer.echo(f"no {subject} is expected until its next heartbeat")


@chain.command()
def rewind(
    context: typer.Context,
    to_block: Annotated[
        int | None,
        typer.Option(
            min=0, help="Instead of the last block that ledger and node have in common."
        ),
    ] = None,
    reason: options.Reason = "",
    yes: options.Yes = False,
) -> None:
    """Have a worker of the chain queue undo what it read in lost blocks, after a
    reorganisation that was too deep.

    Example: supervisor chain rewind --to-block 120000 --reason "the nodes agree again"
    """
    cli = cli_context(context)
    read = cli.overview.snapshot().cursors.get(LOGS, 0)
    target, blocks = "the last block in common", "blocks"
    if to_block is not None:
        refusal = cli.blocks.rewind_obstacle(to_block)
        if refusal is not None:
            raise CommandError(refusal)
        target, blocks = f"block {to_block}", counted(max(read - to_block, 0), "block")
    will = f"the {blocks} above {target}, up to {read}, will be taken back as far as they were read, and read again"
    with cli.change("chain rewind", target, will, yes=yes, reason=reason):
        cli.ledger.facts.set(REWIND, to_block)
    typer.echo(
        "asked; `supervisor alarm list` and the log of the chain queue's worker show the outcome"
    )


COMMANDS = {
    "claims": claims,
    "submissions": submissions,
    "reporter": reporter,
    "chain": chain,
}
