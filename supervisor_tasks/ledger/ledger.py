"""The ledger: jobs, and the one way in which they change.

Every change of a job goes through `record`. The new job, the journal row, the effects
that follow and the end of the effect that was carried out are one transaction. Messages
are sent after the commit. A message only starts a worker: the work itself is stored in
the ledger.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ARRAY, Connection, Engine, Text, bindparam, func, select, text

from supervisor_tasks.crash_points import CrashPoint, crash_point
from supervisor_tasks.in_memory import changed_jobs
from supervisor_tasks.in_memory.local_runs import LocalRuns
from supervisor_tasks.jobs.events import (
    Claimed,
    EarlierRunsAwaited,
    Event,
    OperatorAbandonedEffect,
    ScriptFetched,
    SubmissionStillPossible,
    SubmitOutcomeUnknown,
)
from supervisor_tasks.jobs.model import (
    Effect,
    EffectKind,
    Job,
    JobId,
    SlurmId,
    is_final,
)
from supervisor_tasks.jobs.state_machine import advance
from supervisor_tasks.jobs.task_summary import with_news
from supervisor_tasks.ledger.alarm_store import Alarms
from supervisor_tasks.ledger.benchmark_queries import BenchmarkQueries
from supervisor_tasks.ledger.benchmarks import BenchmarkStore
from supervisor_tasks.ledger.block_reads import Cursors
from supervisor_tasks.ledger.bulk import as_rows, insert_rows
from supervisor_tasks.ledger.callbacks import CallbackReader
from supervisor_tasks.ledger.counters import Counters
from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.fact_store import Facts
from supervisor_tasks.ledger.foreign_claims import ForeignClaims
from supervisor_tasks.ledger.incidents import Incidents
from supervisor_tasks.ledger.journal import Journal
from supervisor_tasks.ledger.lock_names import cluster_lock
from supervisor_tasks.ledger.mapping import COLUMNS, job_from_row, row_from_job
from supervisor_tasks.ledger.outbox import (
    COUNTDOWN_S,
    DispatchEffects,
    EffectRequests,
    Effects,
    OpenEffect,
)
from supervisor_tasks.ledger.periodic_runs import PeriodicRuns
from supervisor_tasks.ledger.reconciliations import Reconciliations
from supervisor_tasks.ledger.switches import Switches
from supervisor_tasks.ledger.tables import JOBS
from supervisor_tasks.ledger.wallet_holders import WalletHolders
from supervisor_tasks.ledger.worker_sessions import WorkerSession

STORE_SCRIPTS = text(
    """
    UPDATE jobs SET script = given.script
    FROM unnest(CAST(:job_ids AS text[]), CAST(:scripts AS text[])) AS given(job_id, script)
    WHERE jobs.cluster = :cluster AND jobs.job_id = given.job_id
    """
)
HAS_SCRIPT = JOBS.c.script.is_not(None).label("has_script")
STORE = insert_rows(
    "jobs",
    ("cluster", *COLUMNS),
    "ON CONFLICT (cluster, job_id) DO UPDATE SET "
    + ", ".join(
        (*(f"{name} = excluded.{name}" for name in COLUMNS), "updated_at = now()")
    ),
)
# scripts may be long, and jobs many
A_JOB = *(column for column in JOBS.c if column is not JOBS.c.script), HAS_SCRIPT
# Each transaction and each batch asks these: SQLAlchemy would take longer to build them
# than to run them.
_THESE_JOBS = select(*A_JOB).where(
    JOBS.c.cluster == bindparam("cluster"),
    JOBS.c.job_id == func.any(bindparam("job_ids", type_=ARRAY(Text))),
)
_THESE_SLURM_IDS = select(JOBS.c.job_id, JOBS.c.slurm_id).where(
    JOBS.c.cluster == bindparam("cluster"),
    JOBS.c.job_id == func.any(bindparam("job_ids", type_=ARRAY(Text))),
)
_LOCK_JOBS = _THESE_JOBS.order_by(JOBS.c.job_id).with_for_update()


@dataclass(frozen=True, slots=True)
class JobChange:
    """An event of a job, and the effect `done` that the event ends, if it is the
    outcome of one.

    `failure_reason` is the reason why the effect was carried out without a result and
    is due again. Such an effect counts as failing since the first time in a row.
    """

    job_id: JobId
    event: Event
    done: OpenEffect | None = None
    failure_reason: str | None = None


Jobs = Mapping[JobId, Job]

# events that are journalled even if they change nothing
ALWAYS_JOURNALLED = (
    OperatorAbandonedEffect,
    SubmitOutcomeUnknown,
    SubmissionStillPossible,
    EarlierRunsAwaited,
)


@dataclass(slots=True)
class _Progress:
    """What the events of a transaction make of the jobs: the jobs before and after, the
    events to journal, and the requested effects.
    """

    before: Jobs
    after: dict[JobId, Job]
    events: list[tuple[Job, Event]] = field(default_factory=list)
    requested: EffectRequests = field(default_factory=EffectRequests)

    def add(
        self, change: JobChange, new: Job | None, effects: Sequence[Effect]
    ) -> None:
        """Note what a change has made of its job. None: there is no such job."""
        if new is None:
            return
        old, self.after[change.job_id] = self.after.get(change.job_id), new
        if new != old or isinstance(change.event, ALWAYS_JOURNALLED):
            self.events.append((new, change.event))
        for effect in effects:
            key = change.job_id, effect.kind
            due_in_s = self.requested.get(key, effect.due_in_s)
            self.requested[key] = min(due_in_s, effect.due_in_s)


InSameTransaction = Callable[[Connection], object]
OnEnded = Callable[[Sequence[Job]], None]


def _ignore(_: Sequence[Job]) -> None:
    """Do nothing about jobs that have ended."""


class Ledger:
    """The ledger of one cluster: its jobs, and beside them its parts by subject. After
    each commit it dispatches the effects that are due now or in a moment, and calls
    `ended` with the jobs whose end on chain it has just stored. Its methods raise
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """

    def __init__(
        self,
        engine: Engine,
        cluster: str,
        dispatch: DispatchEffects,
        ended: OnEnded = _ignore,
    ) -> None:
        self.engine = engine
        self._jobs_ended = ended
        self.cluster = cluster
        self.holder = WorkerSession(engine)
        self.effects = Effects(engine, cluster, self.holder, dispatch)
        self.journal = Journal(engine, cluster)
        self.counters = Counters(engine, cluster)
        self.periodic_runs = PeriodicRuns(engine, cluster)
        self.local_runs = LocalRuns()
        self.callbacks = CallbackReader(engine, cluster, self.periodic_runs)
        self.cursors = Cursors(engine, cluster)
        self.alarms = Alarms(engine, cluster)
        self.incidents = Incidents(engine, cluster)
        self.switches = Switches(engine, cluster)
        self.facts = Facts(engine, cluster)
        self.reconciliations = Reconciliations(engine, cluster)
        self.benchmarks = BenchmarkStore(engine, cluster)
        self.benchmark_queries = BenchmarkQueries(engine, cluster)
        self.foreign_claims = ForeignClaims(engine, cluster)
        self.wallets = WalletHolders(engine, cluster)

    def record(
        self,
        *changes: JobChange,
        held: Sequence[OpenEffect] = (),
        first: InSameTransaction | None = None,
        also: InSameTransaction | None = None,
    ) -> dict[JobId, Job]:
        """Apply the events to their jobs in the order given, and commit the result;
        returns the jobs as they are now.

        `also` adds to the same transaction. `first` does so before the events, when the
        jobs are locked; if it raises, nothing is committed. Recording an event again is
        safe. With `held`, nothing is committed unless this process still holds the
        leases of these effects: raises LeaseLostError, for which no retry helps.
        """
        with crash_point(CrashPoint.COMMIT), self.engine.begin() as connection:
            before = self._lock(connection, changes)
            if held:
                self.effects.require_held(connection, held)
            if first is not None:
                first(connection)
            progress = _Progress(before, dict(before))
            for change in changes:
                new, effects = advance(progress.after.get(change.job_id), change.event)
                progress.add(change, new, effects)
            due_soon = self._store(connection, changes, progress)
            if also is not None:
                also(connection)
        if due_soon:
            self.effects.dispatch_effects(due_soon)
        if ended := _newly_ended(before, progress.after):
            self._jobs_ended(ended)
        changed_jobs.add(
            [
                *with_news(before, progress.after),
                *_worked_on(changes, progress.after),
            ]
        )
        return progress.after

    def _lock(
        self, connection: Connection, changes: Sequence[JobChange]
    ) -> dict[JobId, Job]:
        if any(isinstance(change.event, Claimed) for change in changes):
            # There is no row to lock yet, and a receipt and the log scan may record the
            # same claim at once.
            connection.execute(
                select(
                    func.pg_advisory_xact_lock(
                        func.hashtext(cluster_lock(self.cluster, "claims"))
                    )
                )
            )
        given = {
            "cluster": self.cluster,
            "job_ids": sorted({change.job_id for change in changes}),
        }
        return {
            JobId(row["job_id"]): job_from_row(row)
            for row in connection.execute(_LOCK_JOBS, given).mappings()
        }

    def _store(
        self,
        connection: Connection,
        changes: Sequence[JobChange],
        progress: _Progress,
    ) -> list[OpenEffect]:
        """Store what the events have made of the jobs, and their effects. Returns the
        effects that are due now or in a moment.
        """
        before, after, events = progress.before, progress.after, progress.events
        changed = [job for job_id, job in after.items() if before.get(job_id) != job]
        self._store_jobs(connection, changed)
        self._store_scripts(connection, before, after, events)
        self.counters.count(connection, before, after, events)
        self.journal.write(connection, events)
        return self._update_effects(connection, changes, progress.requested, changed)

    def _update_effects(
        self,
        connection: Connection,
        changes: Sequence[JobChange],
        requested: EffectRequests,
        changed: Sequence[Job],
    ) -> list[OpenEffect]:
        """End the effects that were carried out, open those that follow, and close
        those without a purpose. Returns those that are due now or in a moment.
        """
        done = [
            (change.done, change.failure_reason)
            for change in changes
            if change.done is not None
        ]
        still_open = self.effects.end(connection, done, requested)
        opened = self.effects.open(connection, requested)
        self.effects.close_obsolete(connection, changed)
        return [
            effect
            for effect in (*still_open, *opened)
            if effect.due_in_s <= COUNTDOWN_S
        ]

    def _store_jobs(self, connection: Connection, changed: Sequence[Job]) -> None:
        if changed:
            connection.execute(
                STORE,
                as_rows(
                    [{"cluster": self.cluster, **row_from_job(job)} for job in changed]
                ),
            )

    def _store_scripts(
        self,
        connection: Connection,
        before: Jobs,
        after: Jobs,
        events: Sequence[tuple[Job, Event]],
    ) -> None:
        """Store scripts that were fetched, and delete scripts that are void because
        their job started over.
        """
        void = [
            job_id
            for job_id, job in before.items()
            if job.has_script and not after[job_id].has_script
        ]
        scripts: dict[JobId, str | None] = dict.fromkeys(void)
        for job, event in events:
            if isinstance(event, ScriptFetched) and after[job.job_id].has_script:
                scripts[job.job_id] = event.script
        if scripts:
            given = {"job_ids": list(scripts), "scripts": list(scripts.values())}
            connection.execute(STORE_SCRIPTS, {"cluster": self.cluster, **given})

    def jobs(self, job_ids: Iterable[str]) -> dict[JobId, Job]:
        """Those of these jobs that the ledger knows."""
        given = {"cluster": self.cluster, "job_ids": list(job_ids)}
        with read_connection(self.engine) as connection:
            rows = connection.execute(_THESE_JOBS, given).mappings()
            return {JobId(row["job_id"]): job_from_row(row) for row in rows}

    def slurm_ids(self, job_ids: Iterable[str]) -> dict[JobId, SlurmId | None]:
        """The SLURM ids of those of these jobs that the ledger knows; None before the
        submission was answered.
        """
        given = {"cluster": self.cluster, "job_ids": list(job_ids)}
        with read_connection(self.engine) as connection:
            return dict(connection.execute(_THESE_SLURM_IDS, given).all())

    def scripts(self, job_ids: Iterable[str]) -> dict[JobId, str]:
        """The scripts of these jobs. Jobs without a script are left out."""
        these = (
            JOBS.c.job_id == func.any(bindparam("job_ids", list(job_ids))),
            JOBS.c.script.is_not(None),
        )
        with read_connection(self.engine) as connection:
            rows = connection.execute(
                select(JOBS.c.job_id, JOBS.c.script).where(
                    JOBS.c.cluster == self.cluster, *these
                )
            )
            return dict(rows.all())

    def script_bytes(self, job_ids: Iterable[str]) -> dict[JobId, int]:
        """How many bytes the scripts of these jobs have. Jobs without a script are left
        out.
        """
        these = (
            JOBS.c.job_id == func.any(bindparam("job_ids", list(job_ids))),
            JOBS.c.script.is_not(None),
        )
        with read_connection(self.engine) as connection:
            rows = connection.execute(
                select(JOBS.c.job_id, func.octet_length(JOBS.c.script)).where(
                    JOBS.c.cluster == self.cluster, *these
                )
            )
            return dict(rows.all())

    def owners(self, submit_s: Mapping[SlurmId, int]) -> dict[SlurmId, set[JobId]]:
        """Which of the ledger's jobs these SLURM jobs are. `submit_s`: when SLURM got
        each.

        Only jobs whose submit time is known can match. An id alone proves nothing:
        SLURM may have given it again, even the id of a job that SLURM has lost and that
        is still active.
        """
        owners = dict[SlurmId, set[JobId]]()
        for row in self._identified(submit_s):
            if row.slurm_submit_s == submit_s[row.slurm_id]:
                owners.setdefault(SlurmId(row.slurm_id), set()).add(JobId(row.job_id))
        return owners

    def identified_as(self, slurm_ids: Iterable[SlurmId]) -> dict[SlurmId, set[JobId]]:
        """Which of the ledger's jobs a look at SLURM has identified under these ids."""
        owners = dict[SlurmId, set[JobId]]()
        for row in self._identified(slurm_ids):
            owners.setdefault(SlurmId(row.slurm_id), set()).add(JobId(row.job_id))
        return owners

    def _identified(self, slurm_ids: Iterable[SlurmId]) -> Sequence[Any]:
        """The jobs with these SLURM ids that a look has identified: their ids and the
        times SLURM got them.
        """
        asked = JOBS.c.slurm_id == func.any(bindparam("slurm_ids", list(slurm_ids)))
        query = select(JOBS.c.job_id, JOBS.c.slurm_id, JOBS.c.slurm_submit_s)
        query = query.where(
            JOBS.c.cluster == self.cluster, asked, JOBS.c.slurm_submit_s.is_not(None)
        )
        with read_connection(self.engine) as connection:
            return connection.execute(query).all()

    def highest_identified_id(self) -> int:
        """The highest SLURM id under which a look has identified a job of the ledger; 0
        when there is none.
        """
        identified = (
            JOBS.c.cluster == self.cluster,
            JOBS.c.slurm_id.is_not(None),
            JOBS.c.slurm_submit_s.is_not(None),
        )
        with read_connection(self.engine) as connection:
            query = (
                select(JOBS.c.slurm_id)
                .where(*identified)
                .order_by(JOBS.c.slurm_id.desc())
                .limit(1)
            )
            return int(connection.scalar(query) or 0)

    def count_in_states(self, states: Iterable[str]) -> int:
        """How many jobs are in these states."""
        chosen = JOBS.c.state.in_(list(states))
        with read_connection(self.engine) as connection:
            query = (
                select(func.count())
                .select_from(JOBS)
                .where(JOBS.c.cluster == self.cluster, chosen)
            )
            return int(connection.execute(query).scalar_one())


def _newly_ended(before: Jobs, after: Jobs) -> list[Job]:
    """The jobs whose end on chain was just stored."""
    ended_before = {job_id for job_id, job in before.items() if is_final(job)}
    return [
        job
        for job_id, job in after.items()
        if is_final(job) and job_id not in ended_before
    ]


def _worked_on(changes: Sequence[JobChange], after: Jobs) -> list[Job]:
    """The jobs that an effect was carried out for, other than a look at SLURM."""
    job_ids = {
        change.job_id
        for change in changes
        if change.done and change.done.kind is not EffectKind.POLL_SLURM
    }
    return [job for job_id, job in after.items() if job_id in job_ids]
