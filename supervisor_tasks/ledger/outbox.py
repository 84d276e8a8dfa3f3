"""What is left to do: effects that are leased, given back, parked and freed. The SQL
statements are in outbox_sql.py.

A process that leases an effect gets a lease token. It writes only to effects whose last
token is its own.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, TextClause

from supervisor_tasks.crash_points import CrashPoint, crash_point
from supervisor_tasks.errors import SupervisorError
from supervisor_tasks.jobs.effect_timing import DISPATCH_AGAIN_S
from supervisor_tasks.jobs.model import (
    JOB_EFFECTS,
    EffectKind,
    Job,
    JobId,
    obsolete_effects,
)
from supervisor_tasks.ledger import outbox_sql
from supervisor_tasks.ledger.database import DATABASE_ERRORS, read_connection
from supervisor_tasks.ledger.lock_names import LEASING_EFFECTS
from supervisor_tasks.ledger.stored_text import sanitize_and_truncate, sanitize_optional
from supervisor_tasks.ledger.switch_names import PAUSED_ERROR
from supervisor_tasks.ledger.worker_sessions import WorkerSession

log = structlog.get_logger()

# Longer than any effect takes, even the longest search for a job in a SLURM that needs
# the whole time-out of each command. An effect that is only slow must not be parked.
# The lease of a dead holder is free at once.
LEASE_S = 420.0
# an effect that fails for longer, or more often, raises an alarm
OVERDUE_AFTER_S = 300.0
OVERDUE_AFTER_TRIES = 50
# Unexpected failures in a row after which an effect is isolated (leased without another one), and after which it
# is parked.
ISOLATED_AFTER, PARKED_AFTER = 2, 3
WORKER_ENDED = "its worker ended, or stood still, while it was carrying this out"
MAX_SUBJECTS_IN_LOG = 5  # of one line
MAX_EFFECTS = 1000  # effects that are leased at a time
# effects of one message; the worker that gets it leases all that are due
MAX_DISPATCHED_OF_A_KIND = 200
GROUPS_OF_ONE_CUSTOMER = 2  # of submissions under way at once, in all workers together
COUNTDOWN_S = 2.0  # beat dispatches an effect that is due later; no message is sent

# the arrays of the statements about leases, and what of each effect is in them
LEASES = {
    "ids": "id",
    "generation": "generation",
    "holders": "holder",
    "lease_token": "lease_token",
}

# in how many seconds each effect is due
EffectRequests = dict[tuple[JobId, EffectKind], float]


class LeaseLostError(SupervisorError):
    """Another lease holds the effects by now. Nothing was written."""

    def __init__(self, lost: "Sequence[OpenEffect]") -> None:
        shown = ", ".join(
            f"{effect.kind} of {effect.subject}"
            for effect in lost[:MAX_SUBJECTS_IN_LOG]
        )
        super().__init__(
            f"the leases of {len(lost)} effects are another's now: {shown}"
        )
        self.lost = frozenset(effect.id for effect in lost)


@dataclass(frozen=True, slots=True)
class OpenEffect:
    """An effect that a worker must carry out. `subject` is the job's id, or what the
    kind says. `generation` is the count of demands when it was read. `holder` and
    `lease_token` name its lease. `notified`: a message was
    already sent for it, and may still be in the queue.
    """

    id: int
    subject: str
    kind: EffectKind
    generation: int
    attempts: int
    due_in_s: float = 0.0
    unexpected_failures: int = 0  # unexpected failures in a row
    holder: int = 0
    lease_token: int = 0
    notified: bool = False
    contract_rejections: int = 0  # by the contract, without a success in between

    @property
    def job_id(self) -> JobId:
        """The job. Raises TypeError, when the subject is none; a retry does not help."""
        if not self.kind.of_job:
            raise TypeError(f"{self.kind} of {self.subject} is no effect of a job")
        return JobId(self.subject)

    @property
    def named(self) -> dict[str, str]:
        """The subject, as a log line names it."""
        return _named(self.kind, self.subject)

    @property
    def is_isolated(self) -> bool:
        """Whether it is isolated: it may be the cause of the unexpected failures
        before.
        """
        return self.unexpected_failures >= ISOLATED_AFTER


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an effect is left to the operator, with what was seen."""

    effect: OpenEffect
    reason: str
    evidence: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EffectAlarmSummary:
    """What an operator must know about the effects. `most_tries`, `longest_s` and
    `last_error` are of the overdue ones.
    """

    parked: int
    overdue: int
    most_tries: int
    longest_s: float
    last_error: str | None


@dataclass(frozen=True, slots=True)
class AlikeFailures:
    """How many effects fail for the same reason, a few of their errors, and a few of
    their subjects.
    """

    effects: int
    errors: list[str]
    subjects: list[str]


DispatchEffects = Callable[[Sequence[OpenEffect]], None]


class Effects:
    """The effects of one cluster. `dispatch_effects` gets those that are due now or
    soon, after the commit that made them due, and sends the task of each
    (`TASK_OF_KIND` in messaging/queues.py). Its methods raise LedgerUnavailableError,
    when the database does not answer; a retry helps.
    """

    def __init__(
        self,
        engine: Engine,
        cluster: str,
        holder: WorkerSession,
        dispatch: DispatchEffects,
    ) -> None:
        self._engine = engine
        self._cluster = cluster
        self._holder = holder
        self.dispatch_effects = dispatch

    def lease(
        self, kinds: Iterable[EffectKind], most: int = MAX_EFFECTS
    ) -> list[OpenEffect]:
        """Lease due effects of these kinds that no worker works on. If there are none,
        lease one isolated effect whose worker ended, or that failed unexpectedly,
        ISOLATED_AFTER times in a row.

        This process holds them until it records them as done, postpones or parks them,
        or ends.
        """
        return self._lease(outbox_sql.LEASE, kinds, most)

    def lease_cancellations(self, most: int) -> list[OpenEffect]:
        """Lease due cancellations as `lease` does. Those of jobs with a SLURM id come a
        minute before others.
        """
        return self._lease(outbox_sql.LEASE_CANCELLATIONS, [EffectKind.CANCEL], most)

    def _lease(
        self, statement: TextClause, kinds: Iterable[EffectKind], most: int
    ) -> list[OpenEffect]:
        parameters = self._lease_parameters(kinds) | {"most": most}
        with crash_point(CrashPoint.LEASE), read_connection(self._engine) as connection:
            found = open_effects(connection.execute(statement, parameters))
        return found or self._lease_isolated(parameters)

    def lease_groups(self, most_groups: int, of_one: int) -> list[OpenEffect]:
        """Lease submissions of at most `most_groups` customers, at most `of_one` of
        each; if there are none, one as in `lease`.

        A customer may have GROUPS_OF_ONE_CUSTOMER groups under way at once. Customers
        with the fewest groups under way come first, then those that have waited
        longest.
        """
        parameters = self._lease_parameters([EffectKind.SUBMIT]) | {
            "most_groups": most_groups,
            "of_one": of_one,
            "at_once": GROUPS_OF_ONE_CUSTOMER,
        }
        with crash_point(CrashPoint.LEASE), self._engine.begin() as connection:
            connection.execute(
                outbox_sql.LEASING_LOCK,
                {"lock_class": LEASING_EFFECTS, "cluster": self._cluster},
            )
            found = open_effects(
                connection.execute(outbox_sql.LEASE_GROUPS, parameters)
            )
        return found or self._lease_isolated(parameters)

    def _lease_parameters(self, kinds: Iterable[EffectKind]) -> dict[str, Any]:
        return {
            "cluster": self._cluster,
            "holder": self._holder.number(),
            "lease_s": LEASE_S,
            "kinds": _values(kinds),
            "isolated_after": ISOLATED_AFTER,
        }

    def _lease_isolated(self, parameters: dict[str, Any]) -> list[OpenEffect]:
        """Two workers must not lease one each at the same time, as neither would see
        what the other leases.
        """
        with read_connection(self._engine) as connection:
            if not connection.scalar(outbox_sql.ANY_TO_ISOLATE, parameters):
                return []
        with crash_point(CrashPoint.LEASE), self._engine.begin() as connection:
            connection.execute(
                outbox_sql.LEASING_LOCK,
                {"lock_class": LEASING_EFFECTS, "cluster": self._cluster},
            )
            return open_effects(
                connection.execute(outbox_sql.LEASE_ISOLATED, parameters)
            )

    def any_due(self, kinds: Iterable[EffectKind]) -> bool:
        """Whether effects of these kinds are due that no worker works on; not each of
        them can be leased.
        """
        parameters = {"cluster": self._cluster, "kinds": _values(kinds)}
        with read_connection(self._engine) as connection:
            return bool(connection.scalar(outbox_sql.ANY_DUE, parameters))

    def extend(self, effects: Sequence[OpenEffect]) -> None:
        """Let the leases of these effects last as long as if they began now. The
        last effect has not begun yet.
        """
        with self._engine.begin() as connection:
            connection.execute(
                outbox_sql.EXTEND, _leases(effects) | {"lease_s": LEASE_S}
            )

    def postpone(
        self,
        effects: Sequence[OpenEffect],
        due_in_s: float,
        error: str | None = None,
        *,
        unexpected: bool = False,
        waits: bool = False,
        rejected: bool = False,
    ) -> None:
        """Give effects back. They are due again in `due_in_s` seconds.

        With an `error` they have failed; the failures in a row are counted, and the
        time since the first one. With `waits` they have not failed, but they do not
        progress either, and the error says what they wait for. With `rejected` the
        contract rejected them; rejections also have a count of their own.
        """
        if not effects:
            return
        parameters = {
            **_leases(effects),
            "due_in_s": due_in_s,
            "error": sanitize_optional(error),
            "unexpected": unexpected,
            "waits": waits,
            "rejected": rejected,
        }
        with crash_point(CrashPoint.POSTPONE):
            rows = self._give_back(outbox_sql.POSTPONE, parameters)
        soon = open_effects(
            row for row in rows if row.parked_at is None and row.due_in_s <= COUNTDOWN_S
        )
        if soon:
            self.dispatch_effects(soon)

    def _give_back(
        self, statement: TextClause, parameters: dict[str, Any]
    ) -> list[Any]:
        """Give effects back. If the database is away, the holder gives them back later,
        and they need not wait for the end of the lease. Raises the database's error all
        the same.
        """
        try:
            with self._engine.begin() as connection:
                return list(connection.execute(statement, parameters))
        except DATABASE_ERRORS:
            self._holder.defer_release(statement, parameters)
            raise

    def reschedule_now(
        self,
        job_ids: Sequence[str],
        kinds: Iterable[EffectKind],
        error: str | None = None,
    ) -> None:
        """Bring forward effects that wait for something that will not happen; beat
        dispatches them. With an error, the contract has rejected their transactions.
        """
        parameters = {
            "cluster": self._cluster,
            "job_ids": list(job_ids),
            "kinds": _values(kinds),
            "error": sanitize_optional(error),
        }
        with self._engine.begin() as connection:
            connection.execute(outbox_sql.RESCHEDULE_NOW, parameters)

    def park(self, failures: Sequence[Failure]) -> frozenset[int]:
        """Leave effects to the operator. Returns the ids of those that are parked. If a
        demand came in meanwhile, an effect is tried once more with the new information
        instead. An effect that another lease holds now stays as it is.
        """
        parameters = {
            **_leases([failure.effect for failure in failures]),
            "errors": [sanitize_and_truncate(failure.reason) for failure in failures],
            "evidence": [_evidence_text(failure.evidence) for failure in failures],
        }
        rows = self._give_back(outbox_sql.PARK, parameters)
        again = open_effects(row for row in rows if row.parked_at is None)
        if again:
            self.dispatch_effects(again)
        return frozenset(row.id for row in rows if row.parked_at is not None)

    def bring_forward(self, kinds: Iterable[EffectKind]) -> None:
        """Make all open effects of these kinds due, also parked ones: this worker may
        have other settings.
        """
        with self._engine.begin() as connection:
            bring_forward(connection, self._cluster, kinds)

    def finish(self, effect: OpenEffect) -> None:
        """End an effect whose outcome changes no job."""
        with self._engine.begin() as connection:
            self.end(connection, [(effect, None)], {})

    def retry(
        self, effect_id: int | None = None, job_id: JobId | None = None
    ) -> list[OpenEffect]:
        """Start effects over that are parked, or that fail again and again: this one,
        those of this job, or all. Effects of kinds that another release has opened
        stay as they are.
        """
        parameters = {
            "cluster": self._cluster,
            "effect_id": effect_id,
            "job_id": job_id,
            "kinds": _values(EffectKind),
        }
        with self._engine.begin() as connection:
            return open_effects(connection.execute(outbox_sql.RETRY, parameters))

    def alarm_summary(self) -> EffectAlarmSummary:
        """How many effects are parked, and how many have failed for long without being
        parked.
        """
        parameters = {
            "cluster": self._cluster,
            "overdue_s": OVERDUE_AFTER_S,
            "overdue_tries": OVERDUE_AFTER_TRIES,
            "paused": PAUSED_ERROR,
        }
        with read_connection(self._engine) as connection:
            return EffectAlarmSummary(
                **connection.execute(outbox_sql.ALARM_SUMMARY, parameters)
                .mappings()
                .one()
            )

    def failing_with(self, beginning: str, for_s: float = 0.0) -> AlikeFailures:
        """The effects that have failed for at least `for_s` seconds, for a reason with this
        beginning.
        """
        parameters = {"cluster": self._cluster, "beginning": beginning, "for_s": for_s}
        with read_connection(self._engine) as connection:
            return AlikeFailures(
                **connection.execute(outbox_sql.FAILING_WITH, parameters)
                .mappings()
                .one()
            )

    def due_without_message(self) -> list[OpenEffect]:
        """Due effects that need a message: the first message was lost, the worker died,
        or their time has come.
        """
        with self._engine.begin() as connection:
            self._free(connection)
            parameters = {
                "cluster": self._cluster,
                "again_s": DISPATCH_AGAIN_S,
                "most": MAX_DISPATCHED_OF_A_KIND,
                # a worker of another release takes its own kinds
                "kinds": _values(EffectKind),
            }
            rows = list(connection.execute(outbox_sql.DUE_WITHOUT_MESSAGE, parameters))
        return [
            replace(effect, notified=row.notified)
            for effect, row in zip(open_effects(rows), rows, strict=True)
        ]

    def _free(self, connection: Connection) -> None:
        parameters = {
            "cluster": self._cluster,
            "lease_s": LEASE_S,
            "bound": PARKED_AFTER,
            "error": WORKER_ENDED,
        }
        freed = list(connection.execute(outbox_sql.FREE_LEASES, parameters))
        if freed:
            log.warning(
                "leases_reclaimed",
                effects=len(freed),
                subjects=[row.subject for row in freed[:MAX_SUBJECTS_IN_LOG]],
            )
        for row in freed:
            if row.parked_at is not None:  # check_alarms raises the alarm
                about = _named(row.kind, row.subject)
                log.error(
                    "effect_parked",
                    **about,
                    kind=row.kind,
                    attempts=row.attempts,
                    reason=WORKER_ENDED,
                )

    # --- within the transaction of an event -------------------------------------------

    def require_held(
        self, connection: Connection, effects: Sequence[OpenEffect]
    ) -> None:
        """Lock these effects for their leases until the transaction ends. Raises
        LeaseLostError, when a lease has lost its effect; a retry does not help: another
        worker has the effect.
        """
        held = set(connection.scalars(outbox_sql.HELD, _leases(effects)))
        lost = [effect for effect in effects if effect.id not in held]
        if lost:
            raise LeaseLostError(lost)

    def end(
        self,
        connection: Connection,
        done: Sequence[tuple[OpenEffect, str | None]],
        requested: EffectRequests,
    ) -> list[OpenEffect]:
        """End effects that are still held. Each comes with the reason why it was
        carried out without a result, or None.

        An effect that is requested again becomes due again, and is removed from
        `requested`. Returns those that stay open.
        """
        if not done:
            return []
        effects, dues = list[OpenEffect](), list[float | None]()
        failure_reason = list[str | None]()
        for effect, why in done:
            effects.append(effect)
            dues.append(requested.get((JobId(effect.subject), effect.kind)))
            failure_reason.append(sanitize_optional(why))
        rows = connection.execute(
            outbox_sql.END,
            _leases(effects) | {"dues": dues, "failure_reason": failure_reason},
        )
        still_open = list[Any]()
        for row in rows:
            requested.pop((JobId(row.subject), EffectKind(row.kind)), None)
            if row.done_at is None and row.parked_at is None:
                still_open.append(row)
        return open_effects(still_open)

    def open(
        self, connection: Connection, requested: EffectRequests
    ) -> list[OpenEffect]:
        """Open effects, or bring forward those that are open. Returns those that a
        worker may lease.
        """
        if not requested:
            return []
        job_ids, kinds = zip(*requested, strict=True)
        parameters = {
            "cluster": self._cluster,
            "job_ids": list(job_ids),
            "kinds": _values(kinds),
            "dues": list(requested.values()),
        }
        rows = connection.execute(outbox_sql.OPEN, parameters)
        return open_effects(
            row for row in rows if row.lease is None and row.parked_at is None
        )

    def close_obsolete(self, connection: Connection, changed: Sequence[Job]) -> None:
        """Close the effects that have no purpose in the present state of their jobs."""
        job_ids, kinds = list[JobId](), list[str]()
        for job in changed:
            for kind in obsolete_effects(job):
                job_ids.append(job.job_id)
                kinds.append(kind.value)
        if job_ids:
            parameters = {"cluster": self._cluster, "job_ids": job_ids, "kinds": kinds}
            connection.execute(outbox_sql.CLOSE, parameters)


def request(
    connection: Connection, cluster: str, kind: EffectKind, subjects: Sequence[str]
) -> None:
    """Open an effect for each of these subjects, which are no jobs, unless it ever had
    one of this kind. Beat dispatches it.
    """
    if subjects:
        parameters = {
            "cluster": cluster,
            "kind": kind.value,
            "subjects": list(subjects),
        }
        connection.execute(outbox_sql.REQUEST, parameters)


def request_accounts_of_waiting_jobs(connection: Connection, cluster: str) -> None:
    """Open the effect `account` for each customer whose job waits for its submission,
    unless the customer ever had one. Beat dispatches it.
    """
    connection.execute(outbox_sql.REQUEST_ACCOUNTS, {"cluster": cluster})


def bring_forward(
    connection: Connection, cluster: str, kinds: Iterable[EffectKind]
) -> None:
    """Make all open effects of these kinds due, also parked ones. Beat
    dispatches them.
    """
    parameters = {"cluster": cluster, "kinds": _values(kinds)}
    connection.execute(outbox_sql.BRING_FORWARD, parameters)


def _named(kind: str, subject: str) -> dict[str, str]:
    """Name a subject for the log; the kind can be one of another release."""
    return {"job_id" if kind in JOB_EFFECTS else "subject": subject}


def _leases(effects: Sequence[OpenEffect]) -> dict[str, Any]:
    return {
        parameter: list(map(attrgetter(name), effects))
        for parameter, name in LEASES.items()
    }


def _values(kinds: Iterable[EffectKind]) -> list[str]:
    return [kind.value for kind in kinds]


def open_effects(rows: Iterable[Any]) -> list[OpenEffect]:
    """The effects of rows as the statements of outbox_sql.py return them."""
    return [
        OpenEffect(
            row.id,
            row.subject,
            EffectKind(row.kind),
            row.generation,
            row.attempts,
            row.due_in_s,
            row.unexpected_failures,
            row.holder,
            row.lease_token,
            contract_rejections=row.contract_rejections,
        )
        for row in rows
    ]


def _evidence_text(evidence: Mapping[str, object]) -> str:
    return json.dumps({name: _plain(value) for name, value in evidence.items()})


def _plain(value: object) -> object:
    if isinstance(value, bool | int | float | None):
        return value
    return sanitize_and_truncate(str(value))
