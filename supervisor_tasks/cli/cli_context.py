"""What the operator's commands work with: the settings, the ledger, the output."""

import os
import pwd
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any

import typer
from sqlalchemy import Engine

from supervisor_tasks.cli.claim_stops import why_no_claims
from supervisor_tasks.cli.exit_codes import CommandError, NotConfirmedError
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.output import Output
from supervisor_tasks.cli.target import target
from supervisor_tasks.cli.views import View
from supervisor_tasks.cli.wording import joined
from supervisor_tasks.config.embedded_servers import (
    NoDatabaseError,
    running_database_url,
)
from supervisor_tasks.config.settings import Settings, SettingsError, load
from supervisor_tasks.errors import LedgerUnavailableError
from supervisor_tasks.jobs.model import Job, JobId
from supervisor_tasks.ledger.block_reads import Blocks
from supervisor_tasks.ledger.clusters import known_clusters
from supervisor_tasks.ledger.database import open_engine
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.operator_log import DONE, OperatorLog
from supervisor_tasks.ledger.reconciliations import Reconciliations
from supervisor_tasks.ledger.status_queries import Overview, StatusSummary
from supervisor_tasks.ledger.undispatched import not_dispatched
from supervisor_tasks.observability.health import periodic_work, problems
from supervisor_tasks.observability.metrics import untaken_s

MAX_OPERATOR_CHARS = 64  # of SUPERVISOR_OPERATOR
MAX_NAMED_CANDIDATES = 5  # candidates that an ambiguous name lists


class CliContext:
    """The settings, the ledger and the output of a command; each is made at its first
    use.
    """

    @cached_property
    def settings(self) -> Settings:
        """The settings, without any key. Raises SettingsError: no retry helps."""
        return load()

    @cached_property
    def database(self) -> Engine:
        """The database; the first use prints which one it is. Use it for what is not
        about one cluster.
        """
        url = running_database_url(self.settings)
        engine = open_engine(url, connections=3)
        self.shown.target = target(self.settings.cluster_name, url)
        typer.echo(self.shown.target, err=True)
        return engine

    def print_target(self) -> None:
        """Print which ledger the settings name, if they name one: for commands that
        also try settings that are wrong.
        """
        # which they report in their own way
        with suppress(SettingsError, NoDatabaseError):
            typer.echo(
                target(self.settings.cluster_name, running_database_url(self.settings)),
                err=True,
            )

    @cached_property
    def _engine(self) -> Engine:
        """The database, after a check that its ledger knows the cluster. Raises
        CommandError.
        """
        name, clusters = self.settings.cluster_name, known_clusters(self.database)
        if name not in clusters:
            listed = joined(clusters, "none: no fleet has ever worked with it")
            raise CommandError(
                f"CLUSTER_NAME: found {name!r}; expected a cluster that this ledger knows ({listed})"
            )
        return self.database

    def now(self) -> datetime:
        """The database's time, from which ages count."""
        return Overview(self.database, self.settings.cluster_name).now()

    def begin_of(self, younger: timedelta | None) -> datetime | None:
        """Return the moment from which rows of an age are shown; None for all."""
        return None if younger is None else self.now() - younger

    def present(
        self,
        view: View,
        rows: Callable[[], Sequence[Mapping[str, Any]]],
        form: Format,
        watch_s: float | None,
        no_color: bool,
    ) -> None:
        """Print rows in a form, once or again and again."""
        self.present_by(
            lambda: self.shown.rows(view, rows(), form, self.now()), watch_s, no_color
        )

    def present_by(
        self, show: Callable[[], None], watch_s: float | None, no_color: bool
    ) -> None:
        """Call `show`, which prints, once or again and again."""
        self.shown.color = not no_color
        self.shown.repeated(show, watch_s)

    def close(self) -> None:
        """Close the database's connections."""
        if "database" in self.__dict__:
            self.database.dispose()

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger, for changes.

        A command sends no messages: an effect that it opens counts as not dispatched,
        and beat dispatches it within a second.
        """
        return Ledger(
            self._engine,
            self.settings.cluster_name,
            dispatch=partial(not_dispatched, self._engine),
        )

    @cached_property
    def overview(self) -> Overview:
        """The queries of the ledger."""
        return Overview(self._engine, self.settings.cluster_name)

    @cached_property
    def reconciliations(self) -> Reconciliations:
        """The reconciliations and the requests for one."""
        return Reconciliations(self._engine, self.settings.cluster_name)

    @cached_property
    def blocks(self) -> Blocks:
        """The blocks of the chain that the ledger keeps."""
        return Blocks(
            self._engine, self.settings.cluster_name, self.settings.chain_confirmations
        )

    @cached_property
    def log(self) -> OperatorLog:
        """What operators have changed."""
        return OperatorLog(self._engine, self.settings.cluster_name)

    @cached_property
    def shown(self) -> Output:
        """The output, which hides the secrets of the settings."""
        return Output(self.settings.secret_values())

    def job(self, name: str) -> Job:
        """Return the job with this name: the beginning of its id, slurm:123 or
        customer:0x... Raises CommandError; a retry does not help.
        """
        job_ids = self.overview.named(name)
        if len(job_ids) != 1:
            number = "no job" if not job_ids else "several jobs"
            candidates = "".join(
                f"\n  {job_id}" for job_id in job_ids[:MAX_NAMED_CANDIDATES]
            )
            raise CommandError(
                f"found {number} of cluster {self.settings.cluster_name!r} that {name!r} names; expected one, by the"
                f" beginning of its id, slurm:NUMBER or customer:ADDRESS: see `supervisor job list`{candidates}"
            )
        return self.ledger.jobs(job_ids)[JobId(job_ids[0])]

    def problems(self, snapshot: StatusSummary) -> list[str]:
        """Return a line for each problem of the fleet."""
        periodic = periodic_work(
            self.settings.chain_poll_s, accounts=self.settings.ldap_url is not None
        )
        return problems(
            periodic, snapshot.periodic_run_ages_s, untaken_s(snapshot.effects)
        )

    def claim_stops(self, snapshot: StatusSummary) -> list[str]:
        """Return a line for each reason for which no job is claimed now."""
        return why_no_claims(snapshot, self.settings.chain_poll_s)

    @contextmanager
    def change(
        self,
        command: str,
        subject: str | Sequence[str],
        plan: str,
        *,
        yes: bool,
        reason: str = "",
        is_confirmed: bool = False,
    ) -> Iterator[None]:
        """Make a change: print what will happen, ask, and store the operator, the
        reason and the outcome.

        `subject` names what is changed, such as a job, or several jobs. If it
        `is_confirmed`, the caller has printed and asked. Raises NotConfirmedError; a
        retry does not help.
        """
        # first: this prints which ledger it is, and refuses a cluster that the ledger
        # does not know
        log = self.log
        if not is_confirmed:
            self.confirm(plan, yes=yes)
        subjects = [subject] if isinstance(subject, str) else subject
        entries = log.begin(
            *subjects, operator=operator(), command=command, change=plan, reason=reason
        )
        try:
            yield
        except LedgerUnavailableError:
            raise  # the log cannot be written either: the outcome stays unknown
        except BaseException as error:
            log.end(entries, f"{type(error).__name__}: {error}")
            raise
        log.end(entries, DONE)

    def confirm(self, plan: str, *, yes: bool) -> None:
        """Print what will happen, and ask the operator; `yes` is his answer. Raises
        NotConfirmedError; a retry does not help.
        """
        typer.echo(self.shown.line(f"{plan}."), err=True)
        if yes:
            return
        if not sys.stdin.isatty():
            raise NotConfirmedError(
                "found no terminal to ask at; expected one, or --yes: nothing was changed"
            )
        try:
            confirmed = typer.confirm("Go on?", err=True)
        except typer.Abort as error:  # Ctrl-C, or Ctrl-D
            typer.echo(err=True)  # the question's line ends
            raise NotConfirmedError("nothing was changed") from error
        if not confirmed:
            raise NotConfirmedError("nothing was changed")


def cli_context(context: typer.Context) -> CliContext:
    """Return what the command works with. Its connections are closed when the command
    ends.
    """
    cli: Any = context.find_root().obj
    assert isinstance(cli, CliContext)  # noqa: S101  the root command makes it
    context.call_on_close(cli.close)
    return cli


def operator() -> str:
    """Return the operator who runs the command, as user@host. Under sudo, it is the
    user who called sudo. In a container all operators are one user, so a name that the
    operator gives in SUPERVISOR_OPERATOR comes before that.
    """
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = f"uid {os.getuid()}"
    caller = os.environ.get("SUDO_USER", "") if os.getuid() == 0 else ""
    here = f"{caller or user}@{socket.gethostname()}"
    given = re.sub(r"[^\w.@+-]", "", os.environ.get("SUPERVISOR_OPERATOR", ""))
    if not given:
        return here
    return f"{given[:MAX_OPERATOR_CHARS]} ({here})"


def some_of(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many more there are."""
    text, rest = ", ".join(names[:most]), len(names) - most
    return f"{text} and {rest} more" if rest > 0 else text
