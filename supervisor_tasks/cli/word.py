"""The operator's word on a job that cannot go on by itself."""

from collections.abc import Sequence
from dataclasses import asdict

import click

from supervisor_tasks.cli.desk import JSON, WITHOUT_QUESTION, Desk, ask
from supervisor_tasks.events import OperatorDenied, OperatorForgot, OperatorSettled
from supervisor_tasks.job import ChainStatus, Job, JobId, Kind, Outcome, State, finished
from supervisor_tasks.ledger import word
from supervisor_tasks.ledger.store import Change
from supervisor_tasks.view import IN_SLURM

COLD = [status.name for status in ChainStatus if status.cold]
FORGETTABLE = (Kind.TELL_USER, Kind.CANCEL, Kind.TOP_UP)  # without the others a job stands still


@click.command()
@click.argument("effect", type=int, required=False)
@click.option("--job", "job_id", help="What is parked of a job.")
@click.option("--all", "everything", is_flag=True, help="All that is parked.")
@JSON
@click.pass_obj
def retry(desk: Desk, effect: int | None, job_id: str | None, everything: bool, as_json: bool) -> None:
    """Let what is parked, or fails again and again, begin anew at once."""
    if sum((effect is not None, job_id is not None, everything)) != 1:
        raise click.UsageError("expected one of EFFECT, --job JOB and --all")
    about = None if job_id is None else desk.job(job_id).job_id
    again = desk.ledger.effects.retry(effect_id=effect, job_id=about)
    if not again and not everything:
        raise click.ClickException("found nothing parked or failing there; see `supervisor parked`")
    desk.shown.rows("tried again", [asdict(one) for one in again], as_json)


@click.command()
@click.argument("effect", type=int)
@click.option("--reason", required=True)
@WITHOUT_QUESTION
@click.pass_obj
def forget(desk: Desk, effect: int, reason: str, yes: bool) -> None:
    """Give up a parked effect without which the job goes on: a line to the user, a cancellation, a top-up."""
    found = next((row for row in desk.overview.parked() if row["effect"] == effect), None)
    if found is None:
        raise click.ClickException(f"found no parked effect {effect}; see `supervisor parked`")
    kind = Kind(found["kind"])
    if kind not in FORGETTABLE:
        expected = ", ".join(FORGETTABLE)
        raise click.ClickException(
            f"found {kind} of a job in {found['state']}; expected {expected}: without it the job stands still, so `supervisor"
            " retry` or `supervisor settle`"
        )
    job = desk.job(found["job_id"])
    if kind is Kind.CANCEL and job.state not in IN_SLURM and job.slurm_id is not None:
        raise click.ClickException(
            f"found {kind} of a job in {job.state}; expected QUEUED or RUNNING: it is decided, and as long as SLURM runs it,"
            f" each sweep asks for that again; end {job.slurm_id} in SLURM, then `supervisor retry`"
        )
    ask(yes, f"Give up {kind} of {found['job_id']}?")
    word.forget(desk.ledger, effect, JobId(found["job_id"]), OperatorForgot(kind, reason))
    click.echo("forgotten")


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("--status", type=click.Choice(COLD, case_sensitive=False), required=True)
@click.option("--minutes", type=click.IntRange(0), required=True, help="What is billed.")
@click.option("--exit-status", type=click.IntRange(0), default=0, help="The raw status of wait(2).")
@click.option("--reason", required=True, help="The customer reads it.")
@click.option("--force", is_flag=True, help="Also what looks absurd.")
@WITHOUT_QUESTION
@click.pass_obj
def settle(
    desk: Desk, job_id: str, status: str, minutes: int, exit_status: int, reason: str, force: bool, yes: bool
) -> None:
    """End a job by your own word: it is reported to the contract, and what SLURM holds of it is cancelled."""
    found = desk.job(job_id)
    outcome = Outcome(
        status=ChainStatus[status.upper()], elapsed_s=minutes * 60, exit_status=exit_status, reason=reason
    )
    _refuse_absurd(desk, found, outcome, force)
    ask(yes, f"{found.job_id} ({found.state}) ends as {outcome.status.name}, {minutes} minutes are billed. Sure?")
    after = desk.ledger.record(Change(found.job_id, OperatorSettled(outcome)))[found.job_id]
    click.echo(f"{after.job_id} is {after.state}; `supervisor job {after.job_id[:12]}` shows how it goes on")


def _refuse_absurd(desk: Desk, job: Job, outcome: Outcome, force: bool) -> None:
    if finished(job):
        raise click.ClickException(
            f"found {job.state}, {job.chain_status.name} on chain; expected a job that is not decided: it cannot be settled"
        )
    under_way = [row for row in desk.overview.transactions(only_open=True) if row["job_id"] == job.job_id]
    if under_way:
        raise click.ClickException(
            f"found the open transaction {under_way[0]['hash']} ({under_way[0]['purpose']}) of the job; expected none: wait"
            " until it is mined, and look again"
        )
    if outcome.minutes > job.limit_min and not force:
        raise click.ClickException(
            f"found {outcome.minutes} minutes; expected at most {job.limit_min}, which is the job's limit (--force)"
        )
    if outcome.minutes > 0 and job.slurm_id is None and not force:
        raise click.ClickException(
            f"found {outcome.minutes} minutes for a job of which no SLURM id is known; expected 0 (--force)"
        )


@click.command("not-in-slurm")
@click.argument("job_id", metavar="JOB")
@click.option("--reason", required=True, help="How you know.")
@WITHOUT_QUESTION
@click.pass_obj
def not_in_slurm(desk: Desk, job_id: str, reason: str, yes: bool) -> None:
    """Say that SLURM neither has nor had a job whose submission was cut off and is parked: it is submitted again."""
    found = desk.job(job_id)
    parked_here = [
        row for row in desk.overview.parked() if row["job_id"] == found.job_id and row["kind"] == Kind.SUBMIT
    ]
    if found.state is not State.SUBMITTING or not parked_here:
        raise click.ClickException(
            f"found {found.state}, and {len(parked_here)} parked submissions; expected SUBMITTING and one: what is not parked"
            " is looked for still, see `supervisor parked`"
        )
    ask(yes, f"{found.job_id} is submitted again: if SLURM has or had it, the customer's script runs twice. Sure?")
    after = desk.ledger.record(Change(found.job_id, OperatorDenied(reason)))[found.job_id]
    click.echo(f"{after.job_id} is {after.state}")


@click.command("confirm-lost")
@click.argument("job_ids", metavar="[JOB]...", nargs=-1)
@WITHOUT_QUESTION
@click.pass_obj
def confirm_lost(desk: Desk, job_ids: Sequence[str], yes: bool) -> None:
    """Confirm that SLURM has lost jobs which the last sweep held back, all or these: they are panicked, and cost nothing."""
    chosen = [desk.job(beginning).job_id for beginning in job_ids] or None
    ask(yes, f"{'All jobs that are held' if chosen is None else ', '.join(chosen)} are PANICKED on the contract. Sure?")
    lost = word.confirm_lost(desk.ledger, chosen)
    if not lost:
        raise click.ClickException(
            "found no such job in the last sweep; expected one that is held: see `supervisor sweeps`"
        )
    click.echo("\n".join(lost))


COMMANDS = (retry, forget, settle, not_in_slurm, confirm_lost)
