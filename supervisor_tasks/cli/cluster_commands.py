"""`supervisor cluster`: the clusters of the ledger, and which SLURM has the cluster's
jobs.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import typer

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.cli import options
from supervisor_tasks.cli.alarm import names_of_raised
from supervisor_tasks.cli.cli_context import CliContext, cli_context
from supervisor_tasks.cli.exit_codes import CommandError
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.views import Cell, Column, View, span
from supervisor_tasks.cli.wording import counted, counted_jobs
from supervisor_tasks.jobs.model import IN_SLURM
from supervisor_tasks.ledger import operator_actions
from supervisor_tasks.ledger.clusters import AT_WORK, known_clusters, summary
from supervisor_tasks.ledger.facts import (
    SLURM_CLUSTER,
    SLURM_MIN_JOB_AGE,
    UNEXPECTED_CLUSTER,
)
from supervisor_tasks.ledger.switch_names import Switch, is_pause_of_sweep

CLUSTERS = View(
    "clusters",
    "cluster",
    (
        Column("CLUSTER", "cluster"),
        Column("OPEN_JOBS", "open_jobs", "number"),
        Column("ALARMS", "alarms", "number"),
        Column("LAST_RUN", "last_run_at", "age"),
        Column("PAUSED", "switches", flexible=True),
    ),
)
app = options.noun(
    "See the clusters of the ledger, accept a SLURM that is another one, and release a wallet.",
    example="cluster list",
)


@app.command("list")
def list_(
    context: typer.Context,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """List the clusters that the ledger knows; works also if CLUSTER_NAME is none of
    them.

    Example: supervisor cluster list
    """
    cli = cli_context(context)
    database = cli.database

    def rows() -> list[dict[str, object]]:
        return [asdict(summary(database, name)) for name in known_clusters(database)]

    cli.present(CLUSTERS, rows, output, watch, no_color)


@app.command()
def show(
    context: typer.Context,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """Show which SLURM has the cluster's jobs, which one was seen in its place, and
    what is paused.

    Example: supervisor cluster show
    """
    cli = cli_context(context)
    cli.present_by(lambda: _show(cli, output), watch, no_color)


def _show(cli: CliContext, output: Format) -> None:
    facts, switches = cli.ledger.facts, cli.ledger.switches
    wallet = cli.ledger.wallets.held()
    found = {
        "cluster": cli.settings.cluster_name,
        "slurm_cluster": facts.get(SLURM_CLUSTER),
        "unexpected_cluster": facts.get(UNEXPECTED_CLUSTER),
        "min_job_age_s": facts.get(SLURM_MIN_JOB_AGE),
        "wallet": None if wallet is None else wallet.address,
        "login_node": cli.settings.slurm_ssh_address,
        "partition": cli.settings.slurm_partition,
        "claims_paused": switches.reason(Switch.CLAIMING_PAUSED),
        "submissions_paused": switches.reason(Switch.SUBMISSIONS_PAUSED),
        "alarms": [alarm.name for alarm in cli.ledger.alarms.all()],
    }
    cli.shown.one(
        found, found["cluster"], output, lambda _: cli.shown.facts(facts_of(found))
    )


def facts_of(found: Mapping[str, Any]) -> dict[str, str | Cell | None]:
    """Return the lines about a cluster."""
    return {
        "cluster": found["cluster"],
        "SLURM cluster": found["slurm_cluster"]
        or "not known yet: no worker has seen it",
        "seen instead": _seen_instead(found["unexpected_cluster"]),
        "login node": found["login_node"],
        "partition": found["partition"],
        "ended jobs": _kept_for(found["min_job_age_s"]),
        "wallet": found["wallet"]
        or "none yet: no worker of the chain queue has started",
        "claims": _paused(found["claims_paused"], "claims"),
        "submissions": _paused(found["submissions_paused"], "submissions"),
        "alarms": names_of_raised(found["alarms"]),
    }


def _seen_instead(cluster: str | None) -> str | Cell:
    if not cluster:
        return ""
    return Cell(
        f"{cluster}: `supervisor cluster accept`, if it is the right one", "red"
    )


def _kept_for(age_s: int | None) -> str:
    if age_s is None:
        return ""
    if age_s:
        return f"slurmctld keeps them for {span(age_s)} (MinJobAge)"
    return "slurmctld keeps them for ever"


def _paused(reason: str | None, what: str) -> str | Cell:
    """Return whether this is paused, and why; `supervisor status` shows what else stops
    claims.
    """
    if reason is None:
        return "not paused by an operator"
    return Cell(
        f"paused: {reason or 'no reason given'} (`supervisor {what} resume`)", "yellow"
    )


@app.command()
def accept(
    context: typer.Context, reason: options.Reason = "", yes: options.Yes = False
) -> None:
    """Accept SLURM as it is: jobs that it does not know any more are lost. Workers
    submit jobs to it again, unless an operator has paused that.

    Example: supervisor cluster accept --reason "the cluster was set up again"
    """
    cli = cli_context(context)
    shown = cli.ledger.facts.get(UNEXPECTED_CLUSTER)
    will = _what_accept_does(cli, shown)
    with cli.change(
        "cluster accept", cli.settings.cluster_name, will, yes=yes, reason=reason
    ):
        # again: a worker may have found something else while the command asked
        _what_accept_does(cli, cli.ledger.facts.get(UNEXPECTED_CLUSTER))
        operator_actions.accept_slurm(cli.ledger, shown)
    typer.echo(
        "accepted; what ran and is forgotten waits for `supervisor job mark-lost`: see `supervisor sweep show`"
    )


def _what_accept_does(cli: CliContext, unexpected: str | None) -> str:
    """Return the plan of `accept`, if `unexpected` is the other SLURM that was found.
    Raises CommandError if there is nothing to accept.
    """
    expected = cli.ledger.facts.get(SLURM_CLUSTER)
    paused_for = cli.ledger.switches.reason(Switch.SUBMISSIONS_PAUSED)
    is_paused_by_sweep = is_pause_of_sweep(paused_for)
    pause = ""
    if paused_for is not None and not is_paused_by_sweep:
        pause = f"an operator has paused submissions ({paused_for})"
    raised = [alarm.name for alarm in cli.ledger.alarms.all()]
    has_lost_state = is_paused_by_sweep or AlarmName.SLURM_STATE_LOST in raised
    if unexpected is None and not has_lost_state:
        hint = f"; {pause}: `supervisor submissions resume`" if pause else ""
        raise CommandError(
            f"found no other SLURM, and none that has lost its state; there is nothing to accept{hint}"
        )
    jobs = cli.overview.snapshot().jobs
    in_slurm = counted_jobs(jobs, IN_SLURM)
    if unexpected is not None:
        return f"the cluster, which was {expected or 'unknown'}, will be {unexpected}; {in_slurm} in SLURM may be lost"
    forgotten = f"of {in_slurm} in SLURM, those that it has forgotten, and that never ran, will be submitted again"
    return "; ".join(filter(None, (forgotten, pause)))


@app.command("release-wallet")
def release_wallet(
    context: typer.Context, reason: options.Reason = "", yes: options.Yes = False
) -> None:
    """Let another cluster work with this cluster's wallet: this cluster is gone for
    good, or has another name now.

    Example: supervisor cluster release-wallet --reason "renamed to new" (with
    CLUSTER_NAME=old)
    """
    cli = cli_context(context)
    cluster, wallet = cli.settings.cluster_name, cli.ledger.wallets.held()
    if wallet is None:
        raise CommandError(
            f"found no wallet of the cluster {cluster!r}; there is nothing to release"
        )
    now, cluster_summary = cli.now(), summary(cli.database, cluster)
    last_run_at = cluster_summary.last_run_at
    if last_run_at is not None and now - last_run_at < AT_WORK:
        raise CommandError(
            f"found the fleet of {cluster!r} at work {(now - last_run_at).seconds} s ago; expected none for"
            f" {AT_WORK.seconds} s: stop its workers and beat first"
        )
    jobs = f"{counted(cluster_summary.open_jobs, 'job')} of {cluster!r} not settled"
    if last_run_at is None:
        fleet = "whose fleet has never worked"
    else:
        fleet = (
            f"whose fleet last worked {span((now - last_run_at).total_seconds())} ago"
        )
    will = f"other clusters may work with {wallet.address}, until the fleet starts again: {jobs}, {fleet}"
    with cli.change("cluster release-wallet", cluster, will, yes=yes, reason=reason):
        cli.ledger.wallets.release()
    typer.echo("released")


COMMANDS = {"cluster": app}
