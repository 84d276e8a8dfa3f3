"""The operator's decisions about jobs that do not go on by themselves."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from sqlalchemy import Connection

from supervisor_tasks.cli import options
from supervisor_tasks.cli.cli_context import CliContext, cli_context, some_of
from supervisor_tasks.cli.exit_codes import CommandError, UnusableError
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.views import Column, View
from supervisor_tasks.cli.wording import counted, joined
from supervisor_tasks.jobs.events import (
    OperatorCancelled,
    OperatorConfirmedNotSubmitted,
    OperatorSettledJob,
)
from supervisor_tasks.jobs.model import (
    MAX_LIMIT_MIN,
    ChainStatus,
    EffectKind,
    Job,
    Outcome,
    State,
    is_final,
)
from supervisor_tasks.ledger import operator_actions
from supervisor_tasks.ledger.facts import PROVIDER
from supervisor_tasks.ledger.ledger import JobChange

MAX_WAIT_STATUS = 2**31 - 1  # an int of C
CANCELLABLE = (State.CLAIMED, State.READY, State.QUEUED, State.RUNNING)
FINAL = [status.name for status in ChainStatus if status.is_final]
RETRIED = View(
    "tried again",
    "job_id",
    (
        Column("EFFECT", "id", "number"),
        Column("KIND", "kind"),
        Column("SUBJECT", "subject", "id"),
    ),
)

JobName = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="The beginning of its id, slurm:NUMBER or customer:ADDRESS."
    ),
]


def retry(
    context: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help="Only the effects of this job."),
    ] = None,
    effect: Annotated[
        int | None,
        typer.Option(
            max=options.MAX_NUMBER,
            help="Only this effect; `supervisor effect list` has its number.",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All effects that are parked or fail.")
    ] = False,
    reason: options.Reason = "",
    yes: options.Yes = False,
    output: options.Output = Format.TABLE,
    no_color: options.NoColor = False,
) -> None:
    """Try effects again at once that are parked, or that fail again and again.

    Example: supervisor job retry 0x7903 --reason "the login node is back"
    """
    given = sum((effect is not None, job is not None, everything))
    if given != 1:
        raise UnusableError(
            f"found {given} of JOB, --effect NUMBER and --all; expected one"
        )
    cli = cli_context(context)
    cli.shown.color = not no_color
    job_id = None if job is None else cli.job(job).job_id
    found = cli.overview.retryable(effect_id=effect, job_id=job_id)
    if not found and not everything:
        raise CommandError(
            "found nothing parked or failing there; see `supervisor effect list --state parked`"
        )
    will = f"{_counted_effects(found, effect)} will be tried again at once"
    # For one effect, too, the subject is its job: the line is in the job's timeline.
    subject = "all" if everything else found[0]["subject"]
    with cli.change("job retry", subject, will, yes=yes, reason=reason):
        retried = cli.ledger.effects.retry(effect_id=effect, job_id=job_id)
    cli.shown.rows(
        RETRIED, [asdict(one) for one in retried], output, cli.overview.now()
    )


def _counted_effects(found: Sequence[Mapping[str, Any]], effect: int | None) -> str:
    """Return the effects in words: this one, or their number; with their kinds."""
    kinds = some_of(sorted(row["kind"] for row in found), 8) or "none"
    if effect is not None:
        return f"effect {effect} ({kinds})"
    return f"{counted(sum(row['n'] for row in found), 'effect')} ({kinds})"


def cancel(
    context: typer.Context,
    job: JobName,
    reason: options.RequiredReason,
    yes: options.Yes = False,
) -> None:
    """Cancel a job: SLURM ends it, the customer reads the reason, and pays for the
    minutes that it has run.

    Example: supervisor job cancel slurm:1234 --reason "the node is taken out of
    service"
    """
    cli = cli_context(context)
    found = cli.job(job)
    _refuse_to_cancel(found)
    most = counted(found.limit_min, "minute")
    will = f"{found.job_id} ({found.state}) will be cancelled; the customer pays for what it has run, {most} at most"
    with cli.change("job cancel", found.job_id, will, yes=yes, reason=reason):
        after = _record(
            cli, JobChange(found.job_id, OperatorCancelled(reason)), _refuse_to_cancel
        )
    typer.echo(
        f"{after.job_id} is {after.state}; `supervisor job show {after.job_id[:12]}` shows how it goes on"
    )


def _refuse_to_cancel(job: Job) -> None:
    if job.state not in CANCELLABLE:
        raise CommandError(
            f"found {job.state}; expected {', '.join(CANCELLABLE)}: while a submission is open, SLURM may have the job or"
            " not, and after the end there is nothing to cancel"
        )
    if job.wants_cancel:
        raise CommandError(
            "found a job that is being cancelled already; `supervisor job show` shows its progress"
        )


def _record(cli: CliContext, change: JobChange, refuse: Callable[[Job], None]) -> Job:
    """Commit the operator's decision; returns the job as it is then. Commits nothing if
    `refuse` raises for the job as it is now: it may have changed while the command
    asked whether to go on.
    """

    def check_again(_: Connection) -> None:
        # by another connection, which sees the same, as this one has locked the job
        refuse(cli.ledger.jobs([change.job_id])[change.job_id])

    return cli.ledger.record(change, first=check_again)[change.job_id]


def settle(
    context: typer.Context,
    job: JobName,
    status: Annotated[
        str, typer.Option(metavar="|".join(FINAL), help="How the job ended.")
    ],
    minutes: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_LIMIT_MIN, help="The minutes that the customer pays for."
        ),
    ],
    reason: Annotated[str, typer.Option(help="Why; the customer reads it.")],
    exit_status: Annotated[
        int,
        typer.Option(min=0, max=MAX_WAIT_STATUS, help="The raw status of wait(2)."),
    ] = 0,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also minutes above the limit, or without a SLURM id."
        ),
    ] = False,
    yes: options.Yes = False,
) -> None:
    """End a job with this outcome: workers report it to the contract, and SLURM cancels
    what it has of the job.

    Example: supervisor job settle 0x7903 --status FAILED --minutes 7 --reason "node
    lost"
    """
    if status.upper() not in FINAL:
        raise UnusableError(
            f"--status: found {status!r}; expected one of {', '.join(FINAL)}"
        )
    if status.upper() == ChainStatus.PANICKED.name and minutes:
        raise UnusableError(
            f"--minutes: found {minutes} with PANICKED; expected 0, because the contract"
            " lets the customer pay nothing for a panicked job (FAILED has minutes)"
        )
    cli = cli_context(context)
    found = cli.job(job)
    outcome = Outcome(
        status=ChainStatus[status.upper()],
        elapsed_s=minutes * 60,
        exit_status=exit_status,
        reason=reason,
    )
    _refuse_absurd(cli, found, outcome, force)
    will = f"{found.job_id} ({found.state}) will end as {outcome.status.name}; the customer pays {counted(minutes, 'minute')}"
    with cli.change("job settle", found.job_id, will, yes=yes, reason=reason):
        after = _record(
            cli,
            JobChange(found.job_id, OperatorSettledJob(outcome)),
            lambda now: _refuse_absurd(cli, now, outcome, force),
        )
    typer.echo(
        f"{after.job_id} is {after.state}; `supervisor job show {after.job_id[:12]}` shows how it goes on"
    )


def _refuse_absurd(cli: CliContext, job: Job, outcome: Outcome, force: bool) -> None:
    if is_final(job):
        raise CommandError(
            f"found {job.state}, {job.chain_status.name} on chain; expected a job that is not decided: it cannot be settled"
        )
    open_ones = cli.overview.open_transactions_of(job.job_id)
    if open_ones:
        raise CommandError(
            f"found the open transaction {open_ones[0]['hash']} ({open_ones[0]['purpose']}) of the job; expected none: wait"
            " until it is mined, and look again"
        )
    if force:
        return
    if outcome.minutes > job.limit_min:
        raise CommandError(
            f"found {outcome.minutes} minutes; expected at most {job.limit_min}, which is the job's limit (--force)"
        )
    if outcome.minutes > 0 and job.slurm_id is None:
        raise CommandError(
            f"found {outcome.minutes} minutes for a job without a known SLURM id; expected 0 (--force)"
        )


def resubmit(
    context: typer.Context,
    job: JobName,
    reason: options.RequiredReason,
    yes: options.Yes = False,
) -> None:
    """Submit a job again whose submission was cut off and is parked, if you know that
    SLURM neither has nor had it.

    Example: supervisor job resubmit 0x7903 --reason "slurmctld.log has no trace of it"
    """
    cli = cli_context(context)
    found = cli.job(job)
    submission = _parked_submission(cli, found)
    tries = counted(submission["attempts"], "try", "tries")
    will = f"{found.job_id} will be submitted again after {tries}; if SLURM has or had it, the customer's script runs twice"

    def refuse(now: Job) -> None:
        if _parked_submission(cli, now)["parked_at"] != submission["parked_at"]:
            raise CommandError(
                "found that the submission was tried again meanwhile, and nothing was changed; see whether SLURM has the job"
                " now, and repeat the command if it has not"
            )

    with cli.change("job resubmit", found.job_id, will, yes=yes, reason=reason):
        after = _record(
            cli,
            JobChange(found.job_id, OperatorConfirmedNotSubmitted(reason)),
            refuse,
        )
    typer.echo(f"{after.job_id} is {after.state}")


def _parked_submission(cli: CliContext, job: Job) -> Mapping[str, Any]:
    submissions = [
        row
        for row in cli.overview.parked(job_id=job.job_id)
        if row["kind"] == EffectKind.SUBMIT
    ]
    if job.state is not State.SUBMITTING or not submissions:
        raise CommandError(
            f"found {job.state}, and {len(submissions)} parked submissions; expected SUBMITTING and one: what is not parked"
            " is searched for still, see `supervisor effect list --state parked`"
        )
    return submissions[0]


def mark_lost(
    context: typer.Context,
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB]...", help="Only these; else all that need your decision."
        ),
    ] = None,
    reason: options.Reason = "",
    yes: options.Yes = False,
) -> None:
    """Confirm that SLURM has lost jobs that need your decision: they end as PANICKED, and cost the customer nothing.

    Example: supervisor job mark-lost 0x7903 --reason "slurmctld lost its state folder"
    """
    cli = cli_context(context)
    undecided = operator_actions.needs_operator(cli.ledger)
    chosen = [cli.job(name).job_id for name in jobs or ()] or list(undecided)
    others = [job_id for job_id in chosen if job_id not in undecided]
    if not chosen or others:
        if others:
            found = f"{some_of(others)}, which needs no decision"
        else:
            found = "no such job"
        raise CommandError(
            f"found {found} in the last sweep; expected one that needs your decision: see `supervisor sweep show`"
        )
    will = f"{counted(len(chosen), 'job')} ({some_of(chosen)}) will end as PANICKED on the contract, and will not be paid"
    with cli.change("job mark-lost", chosen, will, yes=yes, reason=reason):
        lost = operator_actions.mark_lost(cli.ledger, chosen)
        if not lost:
            raise CommandError(
                "found that these jobs have changed meanwhile; expected some that need your decision: look again"
            )
    typer.echo("\n".join(lost))


def adopt(
    context: typer.Context,
    tag: Annotated[
        str,
        typer.Argument(
            metavar="TAG",
            help="The instance tag of the lost ledger; the alarm foreign_claims has it.",
        ),
    ],
    yes_it_is_dead: Annotated[
        bool,
        typer.Option(
            "--yes-it-is-dead", help="Also if something shows that its fleet lives."
        ),
    ] = False,
    reason: options.Reason = "",
    yes: options.Yes = False,
) -> None:
    """Take in the jobs that a lost ledger has claimed; refused while its fleet is
    active, as two fleets would run each job twice.

    Example: supervisor job adopt 0a1b2c3d4e5f6071 --reason "restored from no backup"
    """
    cli = cli_context(context)
    others = cli.ledger.foreign_claims
    known = {found.hex(): number for found, number in others.count().items()}
    chosen = tag.lower().removeprefix("0x")
    if chosen not in known:
        tags = (f"{found} ({number} jobs)" for found, number in sorted(known.items()))
        raise CommandError(
            f"found no jobs claimed under the instance tag {tag!r}; known tags: {joined(tags)}"
        )
    _require_dead(cli, bytes.fromhex(chosen), yes_it_is_dead)
    number = counted(known[chosen], "job")
    will = f"{number} of the ledger {chosen} will become this one's; if its fleet still lives, both run each job"
    with cli.change("job adopt", chosen, will, yes=yes, reason=reason):
        others.adopt_tag(bytes.fromhex(chosen))
        cli.reconciliations.request(f"the instance tag {chosen} was adopted")
    typer.echo(
        f"{number} will be taken in by the next sweep; `supervisor sweep show` shows the result"
    )


def _require_dead(cli: CliContext, tag: bytes, yes_it_is_dead: bool) -> None:
    # in here: it imports web3, which takes long
    from supervisor_tasks.chain.rpc.failover import Endpoints
    from supervisor_tasks.recovery.fleet_liveness import liveness_evidence

    provider = cli.ledger.facts.get(PROVIDER)
    rpc = Endpoints(cli.settings.rpc_urls, cli.settings.chain_id)
    ledger = cli.ledger
    evidence = liveness_evidence(
        ledger.engine, ledger.cluster, rpc, provider or "", tag
    )
    for fact in evidence:
        typer.echo(f"{tag.hex()}: {fact}", err=True)
    if evidence and not yes_it_is_dead:
        raise CommandError(
            "expected no activity of the other ledger's fleet: stop it for good and look again, or --yes-it-is-dead"
        )
