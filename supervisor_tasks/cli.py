"""The operator's command: what the ledger knows, and the few things that are left to a person to decide.

It works with the ledger alone: no key, no chain, no SLURM. What strangers wrote is shown as data.
"""

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import click
from sqlalchemy import Engine
from sqlalchemy.exc import ProgrammingError

from supervisor_tasks import health as judgement
from supervisor_tasks.errors import SupervisorError, TransientError
from supervisor_tasks.events import OperatorDenied, OperatorForgot, OperatorSettled
from supervisor_tasks.job import ChainStatus, Job, JobId, Kind, Outcome, State, finished
from supervisor_tasks.ledger import word
from supervisor_tasks.ledger.blocks import Blocks
from supervisor_tasks.ledger.database import open_engine
from supervisor_tasks.ledger.operator import Switch
from supervisor_tasks.ledger.overview import Overview, Snapshot
from supervisor_tasks.ledger.store import Change, Ledger
from supervisor_tasks.ledger.sweeps import REWIND, Sweeps
from supervisor_tasks.metrics import LedgerMetrics, oldest_due_s, serve
from supervisor_tasks.queues import periods_s
from supervisor_tasks.settings import Settings, load_or_exit
from supervisor_tasks.show import Shown

COLD = [status.name for status in ChainStatus if status.cold]
FORGETTABLE = (Kind.TELL_USER, Kind.CANCEL, Kind.TOP_UP)  # without the others a job stands still
POLL_S = 0.2
JSON = click.option("--json", "as_json", is_flag=True, help="Machine-readable, one document.")
WITHOUT_QUESTION = click.option("--yes", is_flag=True, help="Do not ask.")


class Desk:
    """What a command works with."""

    @cached_property
    def settings(self) -> Settings:
        """No key is among them."""
        return load_or_exit()

    @cached_property
    def _engine(self) -> Engine:
        engine = open_engine(self.settings, connections=3)
        click.get_current_context().find_root().call_on_close(engine.dispose)
        return engine

    @cached_property
    def ledger(self) -> Ledger:
        """What the ledger is told. The clock wakes whoever is to act within a second."""
        return Ledger(self._engine, self.settings.cluster_name, wake=lambda _: None)

    @cached_property
    def overview(self) -> Overview:
        """What the ledger is asked."""
        return Overview(self._engine, self.settings.cluster_name)

    @cached_property
    def sweeps(self) -> Sweeps:
        """The sweeps, and who asks for one."""
        return Sweeps(self._engine, self.settings.cluster_name)

    @cached_property
    def blocks(self) -> Blocks:
        """The blocks of the chain that are kept."""
        return Blocks(self._engine, self.settings.cluster_name, self.settings.chain_confirmations)

    @cached_property
    def shown(self) -> Shown:
        """Where answers go."""
        return Shown(self.settings.secret_values())

    def job(self, beginning: str) -> Job:
        """The one job whose id begins so."""
        found = self.overview.matching(_prefix(beginning))
        if len(found) != 1:
            number = "no job" if not found else "several jobs"
            raise click.ClickException(
                f"found {number} of cluster {self.settings.cluster_name!r} whose id begins with {beginning!r}; expected"
                " one: see `supervisor jobs`, or give more of the id"
            )
        return self.ledger.jobs(found)[JobId(found[0])]

    def complaints(self, snapshot: Snapshot) -> list[str]:
        """What is wrong with the fleet."""
        wanted = periods_s(self.settings.chain_poll_s, accounts=self.settings.ldap_url is not None)
        periodic = [judgement.Periodic(name, every_s) for name, every_s in wanted.items()]
        return judgement.complaints(periodic, snapshot.ticks_s, oldest_due_s(snapshot.effects))


class Supervisor(click.Group):
    """The command; what is wrong is told in a line, and the exit status is 1 (2: wrong usage or settings)."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except TransientError as error:
            raise click.ClickException(f"{error}: try again when it answers") from error
        except ProgrammingError as error:
            raise click.ClickException("found other tables than expected: `alembic upgrade head` first") from error
        except SupervisorError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Supervisor)
@click.pass_context
def main(context: click.Context) -> None:
    """See and steer the supervisor of the cluster CLUSTER_NAME, by its ledger at DATABASE_URL."""
    context.obj = Desk()


@main.command()
@JSON
@click.pass_obj
def status(desk: Desk, as_json: bool) -> None:
    """How it stands: jobs, things to do, alarms, the wallet, the ticks."""
    snapshot = desk.overview.snapshot()
    complaints = desk.complaints(snapshot)
    if as_json:
        desk.shown.json(asdict(snapshot) | {"complaints": complaints})
        return
    desk.shown.facts("cluster", _facts(snapshot, complaints))
    desk.shown.table("jobs", [{"state": state, "jobs": number} for state, number in snapshot.jobs.items()])
    desk.shown.table("things to do", [asdict(count) for count in snapshot.effects])
    desk.shown.table("alarms", [asdict(alarm) for alarm in snapshot.alarms])
    desk.shown.table("ticks", [{"name": name, "age_s": round(age_s, 1)} for name, age_s in snapshot.ticks_s.items()])


def _facts(snapshot: Snapshot, complaints: Sequence[str]) -> dict[str, object]:
    wallet = snapshot.wallet
    return {
        "name": snapshot.cluster,
        "health": "; ".join(complaints) or "everything periodic comes to an end",
        "claiming": "stopped by the operator" if snapshot.drained else "on",
        "oldest due effect": f"{oldest_due_s(snapshot.effects):.1f} s",
        "unread callbacks": sum(snapshot.unread_callbacks.values()),
        "open transactions": f"{sum(snapshot.transactions.values())}, the oldest {snapshot.oldest_transaction_s:.1f} s",
        "wallet": "unused" if wallet is None else f"{wallet.address}, next nonce {wallet.next_nonce}",
        "last sweep": "none" if snapshot.last_sweep is None else f"ended {snapshot.since_sweep_s:.0f} s ago",
        "chain read up to": ", ".join(f"{stream} {block}" for stream, block in snapshot.cursors.items()),
    }


@main.command()
@click.option("--state", type=click.Choice([state.value for state in State], case_sensitive=False))
@JSON
@click.pass_obj
def jobs(desk: Desk, state: str | None, as_json: bool) -> None:
    """The jobs that are not settled, or those in a state."""
    desk.shown.rows("jobs", desk.overview.jobs(None if state is None else state.upper()), as_json)


@main.command()
@click.argument("job_id", metavar="JOB")
@JSON
@click.pass_obj
def job(desk: Desk, job_id: str, as_json: bool) -> None:
    """The whole story of a job, in the order in which it happened. The beginning of its id suffices."""
    found = desk.job(job_id)
    facts, story = desk.overview.job(found.job_id), desk.overview.story(found.job_id)
    if as_json:
        desk.shown.json({"job": facts, "story": story})
        return
    desk.shown.facts("job", facts)
    desk.shown.table("story", story)


@main.command()
@JSON
@click.pass_obj
def parked(desk: Desk, as_json: bool) -> None:
    """What cannot go on by itself, why, and what was seen."""
    desk.shown.rows("parked", desk.overview.parked(), as_json)


@main.command()
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


@main.command()
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
    _ask(yes, f"Give up {kind} of {found['job_id']}?")
    word.forget(desk.ledger, effect, JobId(found["job_id"]), OperatorForgot(kind, reason))
    click.echo("forgotten")


@main.command()
@click.argument("job_id", metavar="JOB")
@click.option("--status", "word", type=click.Choice(COLD, case_sensitive=False), required=True)
@click.option("--minutes", type=click.IntRange(0), required=True, help="What is billed.")
@click.option("--exit-status", type=click.IntRange(0), default=0, help="The raw status of wait(2).")
@click.option("--reason", required=True, help="The customer reads it.")
@click.option("--force", is_flag=True, help="Also what looks absurd.")
@WITHOUT_QUESTION
@click.pass_obj
def settle(
    desk: Desk, job_id: str, word: str, minutes: int, exit_status: int, reason: str, force: bool, yes: bool
) -> None:
    """End a job by your own word: it is reported to the contract, and what SLURM holds of it is cancelled."""
    found = desk.job(job_id)
    outcome = Outcome(status=ChainStatus[word.upper()], elapsed_s=minutes * 60, exit_status=exit_status, reason=reason)
    _refuse_absurd(desk, found, outcome, force)
    _ask(yes, f"{found.job_id} ({found.state}) ends as {outcome.status.name}, {minutes} minutes are billed. Sure?")
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


@main.command("not-in-slurm")
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
    _ask(yes, f"{found.job_id} is submitted again: if SLURM has or had it, the customer's script runs twice. Sure?")
    after = desk.ledger.record(Change(found.job_id, OperatorDenied(reason)))[found.job_id]
    click.echo(f"{after.job_id} is {after.state}")


@main.group()
def drain() -> None:
    """Stop and start the claiming of jobs. What is under way goes on."""


@drain.command("on")
@click.option("--reason", default="")
@click.pass_obj
def drain_on(desk: Desk, reason: str) -> None:
    """Claim no more jobs."""
    desk.ledger.switches.set(Switch.DRAINED, reason)
    click.echo("no more jobs are claimed; what is under way goes on")


@drain.command("off")
@click.pass_obj
def drain_off(desk: Desk) -> None:
    """Claim jobs again."""
    desk.ledger.switches.unset(Switch.DRAINED)
    click.echo("jobs are claimed again")


@main.command()
@JSON
@click.pass_obj
def alarms(desk: Desk, as_json: bool) -> None:
    """What the operator is called for."""
    desk.shown.rows("alarms", [asdict(alarm) for alarm in desk.ledger.alarms.all()], as_json)


@main.command()
@click.option("--wait-s", type=click.FloatRange(0), default=120.0, show_default=True, help="For the report.")
@JSON
@click.pass_obj
def sweep(desk: Desk, wait_s: float, as_json: bool) -> None:
    """Compare ledger, contract and SLURM now, and show what was found and done."""
    before = desk.sweeps.last()
    desk.sweeps.ask("the operator")
    deadline = time.monotonic() + wait_s
    while (found := desk.sweeps.last()) == before:
        if time.monotonic() > deadline:
            raise click.ClickException(
                f"found no report within {wait_s:g} s; expected one: see `supervisor health`, then `supervisor sweeps`"
            )
        time.sleep(POLL_S)  # the report is a row, which wakes nobody
    desk.shown.rows("sweep", [asdict(found[0])], as_json)


@main.command()
@click.option("--last", type=click.IntRange(1), default=20, show_default=True)
@JSON
@click.pass_obj
def sweeps(desk: Desk, last: int, as_json: bool) -> None:
    """The last sweeps, the newest first."""
    desk.shown.rows("sweeps", [asdict(one) for one in desk.sweeps.last(last)], as_json)


@main.command("confirm-lost")
@click.argument("job_ids", metavar="[JOB]...", nargs=-1)
@WITHOUT_QUESTION
@click.pass_obj
def confirm_lost(desk: Desk, job_ids: Sequence[str], yes: bool) -> None:
    """Confirm that SLURM has lost jobs which the last sweep held back, all or these: they are panicked, and cost nothing."""
    chosen = [desk.job(beginning).job_id for beginning in job_ids] or None
    _ask(
        yes, f"{'All jobs that are held' if chosen is None else ', '.join(chosen)} are PANICKED on the contract. Sure?"
    )
    lost = word.confirm_lost(desk.ledger, chosen)
    if not lost:
        raise click.ClickException(
            "found no such job in the last sweep; expected one that is held: see `supervisor sweeps`"
        )
    click.echo("\n".join(lost))


@main.command("take-over")
@click.argument("mark")
@WITHOUT_QUESTION
@click.pass_obj
def take_over(desk: Desk, mark: str, yes: bool) -> None:
    """Make ours what a ledger that is lost has claimed; the alarm another_ledgers_jobs tells its MARK."""
    others = desk.ledger.others
    known = {found.hex(): number for found, number in others.count().items()}
    chosen = mark.lower().removeprefix("0x")
    if chosen not in known:
        shown = ", ".join(f"{found} ({number} jobs)" for found, number in sorted(known.items())) or "none"
        raise click.ClickException(f"found no jobs claimed under the mark {mark!r}; known marks: {shown}")
    _ask(
        yes,
        f"{known[chosen]} jobs of another ledger become this one's. Is that ledger lost, and its fleet stopped for good? Two"
        " fleets would run each job twice",
    )
    others.take_over(bytes.fromhex(chosen))
    desk.sweeps.ask(f"the mark {chosen} was taken over")
    click.echo(f"{known[chosen]} jobs are taken in by the next sweep; `supervisor sweeps` tells what came of it")


@main.group()
def chain() -> None:
    """What was read of the chain."""


@chain.command()
@click.option(
    "--to-block", type=click.IntRange(0), help="Instead of the last block that ledger and node have in common."
)
@WITHOUT_QUESTION
@click.pass_obj
def rewind(desk: Desk, to_block: int | None, yes: bool) -> None:
    """After a reorganisation that was too deep: have a worker of the chain queue take back what was read of lost blocks."""
    target = "the last block in common" if to_block is None else f"block {to_block}"
    refusal = None if to_block is None else desk.blocks.why_not_back_to(to_block)
    if refusal is not None:
        raise click.ClickException(refusal)
    _ask(yes, f"Take back what was read of the chain above {target}?")
    desk.sweeps.learn(REWIND, "" if to_block is None else str(to_block))
    click.echo("asked; `supervisor alarms` and the log of the chain queue's worker tell what came of it")


@main.command()
@click.option("--open", "only_open", is_flag=True, help="Only those that are not known to be mined.")
@JSON
@click.pass_obj
def transactions(desk: Desk, only_open: bool, as_json: bool) -> None:
    """The wallet's transactions, the latest first."""
    desk.shown.rows("transactions", desk.overview.transactions(only_open), as_json)


@main.command()
@JSON
@click.pass_obj
def health(desk: Desk, as_json: bool) -> None:
    """Whether all goes on: exit status 0, or 1 with what is wrong. For probes."""
    complaints = desk.complaints(desk.overview.snapshot())
    if as_json:
        desk.shown.json({"healthy": not complaints, "complaints": complaints})
    else:
        click.echo("\n".join(complaints) or "healthy")
    sys.exit(1 if complaints else 0)


@main.command()
@click.option("--listen", help="host:port instead of METRICS_ADDRESS; port 0 is any free one.")
@click.pass_obj
def metrics(desk: Desk, listen: str | None) -> None:
    """Serve the metrics to Prometheus until the process is ended."""
    host, _, port = (listen or desk.settings.metrics_address).rpartition(":")
    collected = LedgerMetrics(desk.overview.snapshot, lambda snapshot: not desk.complaints(snapshot))
    try:
        server, thread = serve(collected, host.strip("[]") or "0.0.0.0", int(port))  # noqa: S104  as :port says
    except (OSError, ValueError) as error:
        raise click.ClickException(
            f"found {listen or desk.settings.metrics_address!r}; expected host:port ({error})"
        ) from error
    click.echo(f"metrics at http://{host or '0.0.0.0'}:{server.server_port}/metrics")  # noqa: S104
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        server.shutdown()
        thread.join()


def _prefix(beginning: str) -> str:
    """A job's id as it begins; nothing that a pattern could mean something else by."""
    text = beginning.lower()
    text = text if text.startswith("0x") else f"0x{text}"
    if len(text) > 66 or not set(text[2:]) <= set("0123456789abcdef"):
        raise click.ClickException(f"found {beginning!r}; expected a job's id, 0x and up to 64 hex digits")
    return text


def _ask(yes: bool, question: str) -> None:
    if not yes:
        click.confirm(question, abort=True)


if __name__ == "__main__":
    main()
