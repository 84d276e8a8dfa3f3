"""The ledger: jobs, journal, outbox and inbox, and the few questions that are asked of them.

Every change of a job goes through `record`: the new job, the journal row, the effects that follow and the end of the
effect that was carried out are one transaction. Messages are sent after the commit, and only to wake somebody up.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Table,
    bindparam,
    delete,
    exists,
    func,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from supervisor_tasks.crash import Point, around
from supervisor_tasks.errors import SupervisorError
from supervisor_tasks.events import Claimed, Event, OperatorForgot, SlurmLost, SlurmStarted
from supervisor_tasks.job import Effect, Job, JobId, Kind, SlurmId, State, closes
from supervisor_tasks.ledger import outbox
from supervisor_tasks.ledger.benchmarks import Benchmarks
from supervisor_tasks.ledger.leases import ALIVE_HOLDERS, Holder
from supervisor_tasks.ledger.models import Callback, Cursor, EventRow, JobRow, Tick, TransactionRow
from supervisor_tasks.ledger.operator import Alarms, Switches
from supervisor_tasks.ledger.others import Others
from supervisor_tasks.ledger.rows import details, job_from_row, row_from_job, storable
from supervisor_tasks.ledger.submissions import Submission, submissions
from supervisor_tasks.ledger.sweeps import Sweeps
from supervisor_tasks.life import advance

log = structlog.get_logger()

_STRANGE = text(
    """
    DELETE FROM callbacks WHERE cluster = :cluster AND read_at < now() - :kept_s * interval '1 second'
        AND NOT EXISTS (
            SELECT FROM jobs WHERE jobs.cluster = callbacks.cluster AND jobs.job_id = callbacks.job_id
                AND (jobs.slurm_id IS NULL OR jobs.slurm_id = callbacks.slurm_id)
        )
    """
)

JOBS = JobRow.metadata.tables["jobs"]
EVENTS = EventRow.metadata.tables["events"]
CALLBACKS = Callback.metadata.tables["callbacks"]
CURSORS = Cursor.metadata.tables["cursors"]
TICKS = Tick.metadata.tables["ticks"]
TRANSACTIONS = TransactionRow.metadata.tables["transactions"]

LEASE_S = 120.0  # longer than any step takes; the lease of a dead holder is free at once
WAKE_AGAIN_S = 5.0  # a message that had no consequence for so long is taken for lost
LATE_AFTER_S = 300.0  # an effect that has failed for so long, or so often, is worth a call to the operator
LATE_AFTER_TRIES = 50
SUSPECT_AFTER = 2  # failures that nobody foresaw; from then on an effect is taken alone, to spare the rest of its batch
TRIES_OF_THE_UNFORESEEN = 5  # failures in a row that nobody foresaw; then an effect is parked
WORKER_ENDED = "its worker ended, or stood still, while it was carrying this out"
STRANGE_FORGOTTEN = "strange callbacks forgotten"  # a tick
FORGET_EVERY_S = 3600.0
STRANGE_KEPT_S = 86_400.0
SHOWN_JOBS = 5  # in a line of the log
MOST = 1000  # effects and callbacks that are taken at a time
TICK_S = 1.0  # two ticks of one name within that time are one
OVER = (State.ENDED, State.REFUSED, State.SETTLED)  # SLURM is done with the job
COUNTDOWN_S = 2.0  # an effect due later than this is woken by the clock and not by a message
CONFIRMED_LOST = "SLURM has lost the job, as the operator confirmed"


class LeaseLostError(SupervisorError):
    """Another taking has the effect by now; what was about to be written was not."""


@dataclass(frozen=True, slots=True)
class OpenEffect:
    """An effect that somebody is to carry out. `wakes` is the count of demands at the time it was read; `holder` and
    `taking` name the lease under which it was taken.
    """

    id: int
    job_id: JobId
    kind: Kind
    wakes: int
    attempts: int
    due_in_s: float = 0.0
    unforeseen: int = 0  # failures in a row that nobody foresaw
    holder: int = 0
    taking: int = 0


@dataclass(frozen=True, slots=True)
class Trouble:
    """What an operator is to know of the effects. The figures and the error are those of the late ones."""

    parked: int
    late: int
    most_tries: int
    longest_s: float
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """An event of a job, and the effect that it ends if it is the outcome of one."""

    job_id: JobId
    event: Event
    done: OpenEffect | None = None


@dataclass(frozen=True, slots=True)
class CallbackSeen:
    """A row of the inbox."""

    id: int
    job_id: JobId
    slurm_id: int
    status: int
    duration_s: int
    exit_code: int
    received_s: float = 0.0  # Unix time


WakeUp = Callable[[Sequence[OpenEffect]], None]
Also = Callable[[Connection], object]


class Ledger:
    """The ledger of one cluster. `wake` is told, after each commit, which effects are due now or in a moment."""

    def __init__(self, engine: Engine, cluster: str, wake: WakeUp) -> None:
        self.engine = engine
        self.cluster = cluster
        self.holder = Holder(engine)
        self.wake = wake
        self.alarms = Alarms(engine, cluster)
        self.switches = Switches(engine, cluster)
        self.sweeps = Sweeps(engine, cluster)
        self.benchmarks = Benchmarks(engine, cluster)
        self.others = Others(engine, cluster)
        self._ticked_s: dict[str, float] = {}

    # --- what happened ----------------------------------------------------------------------------------------------

    def record(self, *changes: Change, held: OpenEffect | None = None, also: Also | None = None) -> dict[JobId, Job]:
        """Commit what the events make of their jobs, in the order given; returns the jobs as they are now. `also` adds
        to the same transaction. Recording an event again is safe. With `held`, nothing is committed unless this taking
        still holds that effect: raises LeaseLostError.
        """
        with around(Point.COMMIT), self.engine.begin() as connection:
            before = self._lock(connection, changes)
            if held is not None:
                self._require_held(connection, held)
            after, journal, wanted = _play(before, changes)
            changed = [job for job_id, job in after.items() if before.get(job_id) != job]
            self._store(connection, changed, journal)
            again = self._end(connection, [change.done for change in changes if change.done is not None], wanted)
            opened = self._open(connection, wanted)
            self._close_pointless(connection, changed)
            if also is not None:
                also(connection)
        soon = [effect for effect in (*again, *opened) if effect.due_in_s <= COUNTDOWN_S]
        if soon:
            self.wake(soon)
        return after

    def _lock(self, connection: Connection, changes: Sequence[Change]) -> dict[JobId, Job]:
        if any(isinstance(change.event, Claimed) for change in changes):
            # There is no row to lock yet, and a receipt and the log scan may bring the same claim at once.
            connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(f"claims of {self.cluster}"))))
        job_ids = sorted({change.job_id for change in changes})
        mine = JOBS.c.cluster == self.cluster, JOBS.c.job_id == func.any(bindparam("job_ids", job_ids))
        query = select(JOBS).where(*mine).order_by(JOBS.c.job_id).with_for_update()
        return {JobId(row["job_id"]): job_from_row(row) for row in connection.execute(query).mappings()}

    def _require_held(self, connection: Connection, effect: OpenEffect) -> None:
        taking = {"id": effect.id, "holder": effect.holder, "taking": effect.taking}
        if connection.execute(outbox.HELD, taking).first() is None:
            raise LeaseLostError(f"the lease of effect {effect.id} ({effect.kind} of {effect.job_id}) is another's now")

    def _store(self, connection: Connection, changed: Sequence[Job], journal: list[dict[str, Any]]) -> None:
        if changed:
            rows = [row_from_job(job) | {"cluster": self.cluster} for job in changed]
            new = insert(JOBS)
            columns = {name: new.excluded[name] for name in rows[0]} | {"updated_at": func.now()}
            connection.execute(new.on_conflict_do_update(index_elements=["cluster", "job_id"], set_=columns), rows)
        if journal:
            connection.execute(insert(EVENTS), [row | {"cluster": self.cluster} for row in journal])

    def _end(
        self, connection: Connection, done: Sequence[OpenEffect], wanted: dict[tuple[JobId, Kind], float]
    ) -> list[OpenEffect]:
        """End effects that are still held; one whose kind is wanted again is made due again and taken out of `wanted`."""
        if not done:
            return []
        dues = [wanted.get((effect.job_id, effect.kind)) for effect in done]
        rows = list(connection.execute(outbox.END, _takings(done) | {"dues": dues}))
        for row in rows:
            wanted.pop((JobId(row.job_id), Kind(row.kind)), None)
        return _effects(row for row in rows if row.done_at is None and row.parked_at is None)

    def _open(self, connection: Connection, wanted: dict[tuple[JobId, Kind], float]) -> list[OpenEffect]:
        if not wanted:
            return []
        parameters = {
            "cluster": self.cluster,
            "job_ids": [job_id for job_id, _ in wanted],
            "kinds": [kind.value for _, kind in wanted],
            "dues": list(wanted.values()),
        }
        rows = connection.execute(outbox.OPEN, parameters)
        return _effects(row for row in rows if row.lease is None and row.parked_at is None)

    def _close_pointless(self, connection: Connection, changed: Sequence[Job]) -> None:
        pairs = [(job.job_id, kind.value) for job in changed for kind in closes(job)]
        if pairs:
            job_ids, kinds = map(list, zip(*pairs, strict=True))
            parameters = {"cluster": self.cluster, "job_ids": job_ids, "kinds": kinds}
            connection.execute(outbox.CLOSE, parameters)

    def confirm_lost(self, job_ids: Collection[str] | None = None) -> list[JobId]:
        """The operator's word that jobs which the last sweep held back, all or these, are lost: they are panicked. Returns
        those that were; the others were not held, or have moved on meanwhile.
        """
        last = self.sweeps.last()
        held: dict[str, int | None] = last[0].report.get("held", {}) if last else {}
        chosen = {JobId(name): number for name, number in held.items() if job_ids is None or name in job_ids}
        before = self.jobs(chosen)
        events = {
            job_id: SlurmLost(None if number is None else SlurmId(number), CONFIRMED_LOST)
            for job_id, number in chosen.items()
        }
        after = self.record(*(Change(job_id, event) for job_id, event in events.items()))
        self.sweeps.ask("the operator confirmed that jobs are lost")
        return [job_id for job_id, job in after.items() if job != before.get(job_id)]

    # --- what is to be done -----------------------------------------------------------------------------------------

    def lease(self, kinds: Iterable[Kind], effect_id: int | None = None, most: int = MOST) -> list[OpenEffect]:
        """Take due effects of these kinds (or the one with that id) that nobody works on. They are ours until they
        are recorded as done, postponed or parked, or until this process ends.
        """
        parameters = {
            "cluster": self.cluster,
            "holder": self.holder.number(),
            "lease_s": LEASE_S,
            "kinds": [kind.value for kind in kinds],
            "effect_id": effect_id,
            "most": most,
            "suspect": SUSPECT_AFTER,
        }
        with around(Point.LEASE), self.engine.begin() as connection:
            rows = connection.execute(outbox.LEASE, parameters)
            return _effects(rows)

    def postpone(
        self,
        effects: Sequence[OpenEffect],
        due_in_s: float,
        error: str | None = None,
        *,
        unforeseen: bool = False,
        waits: bool = False,
    ) -> None:
        """Give effects back, to be tried again in a while. Failures are counted from the first one in a row; without an
        error nothing has failed. What `waits` has not failed, but nothing progresses either, and the error says what for.
        """
        if not effects:
            return
        parameters = {
            **_takings(effects),
            "due_in_s": due_in_s,
            "error": None if error is None else storable(error),
            "unforeseen": unforeseen,
            "waits": waits,
        }
        with around(Point.POSTPONE), self.engine.begin() as connection:
            rows = list(connection.execute(outbox.POSTPONE, parameters))
        soon = _effects(row for row in rows if row.parked_at is None and row.due_in_s <= COUNTDOWN_S)
        if soon:
            self.wake(soon)

    def hurry(self, job_ids: Sequence[str], kinds: Iterable[Kind], error: str | None = None) -> None:
        """Bring effects forward that wait for something which will not come; the clock wakes them. With an error it has come
        to nothing in a way that nobody foresaw.
        """
        parameters = {
            "cluster": self.cluster,
            "job_ids": list(job_ids),
            "kinds": [kind.value for kind in kinds],
            "error": None if error is None else storable(error),
        }
        with self.engine.begin() as connection:
            connection.execute(outbox.HURRY, parameters)

    def park(self, effect: OpenEffect, reason: str, evidence: dict[str, Any] | None = None) -> bool:
        """Leave an effect to the operator. False when a demand came in meanwhile: then it is tried once more with what
        is new; and when the effect is another's now.
        """
        parameters = {
            "id": effect.id,
            "holder": effect.holder,
            "taking": effect.taking,
            "wakes": effect.wakes,
            "error": storable(reason),
            "evidence": json.dumps({name: _evidence(value) for name, value in (evidence or {}).items()}),
        }
        with self.engine.begin() as connection:
            rows = list(connection.execute(outbox.PARK, parameters))
        again = _effects(row for row in rows if row.parked_at is None)
        if again:
            self.wake(again)
        return bool(rows) and not again

    def retry(self, effect_id: int | None = None, job_id: JobId | None = None) -> list[OpenEffect]:
        """Let effects that are parked, or that fail again and again, begin anew: that one, those of a job, or all."""
        parameters = {"cluster": self.cluster, "effect_id": effect_id, "job_id": job_id}
        with self.engine.begin() as connection:
            return _effects(connection.execute(outbox.RETRY, parameters))

    def forget(self, effect_id: int, job_id: JobId, event: OperatorForgot) -> None:
        """End a parked effect, and write that down in the journal of its job."""
        parameters = {"cluster": self.cluster, "id": effect_id}
        self.record(Change(job_id, event), also=lambda connection: connection.execute(outbox.FORGET, parameters))

    def trouble(self) -> Trouble:
        """The effects that are parked, and those that have failed for long without being parked."""
        parameters = {"cluster": self.cluster, "late_s": LATE_AFTER_S, "late_tries": LATE_AFTER_TRIES}
        with self.engine.connect() as connection:
            return Trouble(**connection.execute(outbox.TROUBLE, parameters).mappings().one())

    def forgotten(self) -> list[OpenEffect]:
        """Due effects that need a message: it was lost, its worker died, or their time has come."""
        with self.engine.begin() as connection:
            alive = list(connection.scalars(ALIVE_HOLDERS))
            self._free(connection, alive)
            parameters = {"cluster": self.cluster, "again_s": WAKE_AGAIN_S, "most": MOST}
            rows = connection.execute(outbox.FORGOTTEN, parameters)
            return _effects(rows)

    def _free(self, connection: Connection, alive: Sequence[int]) -> None:
        parameters = {
            "cluster": self.cluster,
            "alive": alive,
            "lease_s": LEASE_S,
            "suspect": SUSPECT_AFTER,
            "bound": TRIES_OF_THE_UNFORESEEN,
            "error": WORKER_ENDED,
        }
        freed = list(connection.execute(outbox.FREE_LEASES, parameters))
        if freed:
            log.warning("effects_freed", effects=len(freed), jobs=[row.job_id for row in freed[:SHOWN_JOBS]])
        for row in freed:
            if row.parked_at is not None:  # the watch calls the operator
                log.error("effect_parked", job_id=row.job_id, kind=row.kind, attempts=row.attempts, reason=WORKER_ENDED)

    # --- questions --------------------------------------------------------------------------------------------------

    def jobs(self, job_ids: Iterable[str]) -> dict[JobId, Job]:
        """The jobs that the ledger knows among these."""
        wanted = JOBS.c.job_id == func.any(bindparam("job_ids", list(job_ids)))
        with self.engine.connect() as connection:
            rows = connection.execute(select(JOBS).where(JOBS.c.cluster == self.cluster, wanted)).mappings()
            return {JobId(row["job_id"]): job_from_row(row) for row in rows}

    def seconds_since_event(self, job_id: JobId, event: type[Event]) -> float | None:
        """How long ago that last happened to the job, by the database's clock; None when it never did."""
        age = func.extract("epoch", func.clock_timestamp() - EVENTS.c.at)
        about = EVENTS.c.cluster == self.cluster, EVENTS.c.job_id == job_id, EVENTS.c.name == event.__name__
        query = select(age).where(*about).order_by(EVENTS.c.id.desc()).limit(1)
        with self.engine.connect() as connection:
            found = connection.scalar(query)
        return None if found is None else float(found)

    def times(self, job_id: JobId, event: type[Event]) -> int:
        """How often that has happened to the job."""
        about = EVENTS.c.cluster == self.cluster, EVENTS.c.job_id == job_id, EVENTS.c.name == event.__name__
        with self.engine.connect() as connection:
            return int(connection.scalar(select(func.count()).select_from(EVENTS).where(*about)) or 0)

    def ever_suspended(self, job_ids: Iterable[str]) -> set[JobId]:
        """Which of these jobs SLURM has shown as SUSPENDED at a look."""
        about = EVENTS.c.cluster == self.cluster, EVENTS.c.job_id == func.any(bindparam("job_ids", list(job_ids)))
        seen = EVENTS.c.name == SlurmStarted.__name__, EVENTS.c.details["seen"].astext == "SUSPENDED"
        with self.engine.connect() as connection:
            return {JobId(name) for name in connection.scalars(select(EVENTS.c.job_id).where(*about, *seen).distinct())}

    def slurm_ids_of_others(self, job_id: JobId, submit_s: Mapping[SlurmId, int]) -> set[SlurmId]:
        """Which of these SLURM jobs (with the time that SLURM got each) are other jobs' than this one. SLURM may give an id
        a second time, also that of a job which it has lost and which is hot still: where the time is known, it tells.
        """
        asked = JOBS.c.slurm_id == func.any(bindparam("slurm_ids", list(submit_s)))
        query = select(JOBS.c.slurm_id, JOBS.c.slurm_submit_s, JOBS.c.state.in_(OVER).label("over"))
        query = query.where(JOBS.c.cluster == self.cluster, asked, JOBS.c.job_id != job_id)
        with self.engine.connect() as connection:
            rows = list(connection.execute(query))
        return {
            SlurmId(row.slurm_id)
            for row in rows
            if row.slurm_submit_s == submit_s[row.slurm_id] or (row.slurm_submit_s is None and not row.over)
        }

    def count_in_states(self, states: Iterable[str]) -> int:
        """How many jobs are in these states."""
        chosen = JOBS.c.state.in_(list(states))
        with self.engine.connect() as connection:
            query = select(func.count()).select_from(JOBS).where(JOBS.c.cluster == self.cluster, chosen)
            return int(connection.scalar(query) or 0)

    # --- the inbox --------------------------------------------------------------------------------------------------

    def unread_callbacks(self) -> list[CallbackSeen]:
        """What plugins said and nobody has read, oldest first."""
        query = (
            select(CALLBACKS)
            .where(CALLBACKS.c.cluster == self.cluster, CALLBACKS.c.read_at.is_(None))
            .order_by(CALLBACKS.c.id)
            .limit(MOST)
        )
        with self.engine.connect() as connection:
            return [_callback(row) for row in connection.execute(query)]

    def has_unread_callbacks(self) -> bool:
        """Whether the inbox holds something that nobody has read."""
        return self._exists(CALLBACKS, CALLBACKS.c.read_at.is_(None))

    def has_open_transactions(self) -> bool:
        """Whether a transaction is to be followed."""
        return self._exists(TRANSACTIONS, TRANSACTIONS.c.state.in_(("SIGNED", "SENT")))

    def _exists(self, table: Table, condition: ColumnElement[bool]) -> bool:
        with self.engine.connect() as connection:
            return bool(connection.scalar(select(exists().where(table.c.cluster == self.cluster, condition))))

    def heard(self, about: Collection[tuple[JobId, int]]) -> dict[tuple[JobId, int], int]:
        """How many different callbacks came of each of these jobs under these SLURM ids."""
        mine = CALLBACKS.c.cluster == self.cluster, tuple_(CALLBACKS.c.job_id, CALLBACKS.c.slurm_id).in_(list(about))
        query = select(CALLBACKS.c.job_id, CALLBACKS.c.slurm_id, func.count().label("number")).where(*mine)
        with self.engine.connect() as connection:
            rows = connection.execute(query.group_by(CALLBACKS.c.job_id, CALLBACKS.c.slurm_id))
            return {(JobId(row.job_id), row.slurm_id): row.number for row in rows}

    def forget_strange_callbacks(self) -> int:
        """Once an hour: what was read a day ago and is about no job of ours under its SLURM id was a stranger's. Returns how
        many went.
        """
        ago_s = self.seconds_since(STRANGE_FORGOTTEN)
        if ago_s is not None and ago_s < FORGET_EVERY_S:
            return 0
        with self.engine.begin() as connection:
            gone = connection.execute(_STRANGE, {"cluster": self.cluster, "kept_s": STRANGE_KEPT_S}).rowcount
        self.tick(STRANGE_FORGOTTEN)
        return gone

    def callbacks_of(self, slurm_ids: Mapping[JobId, SlurmId]) -> dict[JobId, list[CallbackSeen]]:
        """All that plugins said of these jobs under these SLURM ids, oldest first."""
        about = tuple_(CALLBACKS.c.job_id, CALLBACKS.c.slurm_id).in_(list(slurm_ids.items()))
        query = select(CALLBACKS).where(CALLBACKS.c.cluster == self.cluster, about).order_by(CALLBACKS.c.id)
        found: dict[JobId, list[CallbackSeen]] = {job_id: [] for job_id in slurm_ids}
        with self.engine.connect() as connection:
            for row in connection.execute(query):
                found[JobId(row.job_id)].append(_callback(row))
        return found

    def submissions(self, slurm_ids: Collection[SlurmId]) -> dict[JobId, Submission]:
        """The last submissions of all jobs that were ever given one of these ids."""
        with self.engine.connect() as connection:
            return submissions(connection, self.cluster, slurm_ids)

    def callbacks_since(self, job_id: JobId, seconds: float) -> list[CallbackSeen]:
        """All that plugins said of a job in the last seconds, under whatever SLURM id."""
        young = CALLBACKS.c.received_at > func.now() - func.make_interval(0, 0, 0, 0, 0, 0, seconds)
        about = CALLBACKS.c.cluster == self.cluster, CALLBACKS.c.job_id == job_id
        with self.engine.connect() as connection:
            rows = connection.execute(select(CALLBACKS).where(*about, young).order_by(CALLBACKS.c.id))
            return [_callback(row) for row in rows]

    def read_callbacks(self, seen: Sequence[CallbackSeen], changes: Sequence[Change]) -> None:
        """Commit what callbacks make of their jobs, and that they were read."""

        def mark(connection: Connection) -> None:
            ids = func.any(bindparam("ids", [row.id for row in seen]))
            connection.execute(update(CALLBACKS).where(CALLBACKS.c.id == ids).values(read_at=func.now()))

        self.record(*changes, also=mark)

    # --- cursors and ticks ------------------------------------------------------------------------------------------

    def cursor(self, stream: str) -> tuple[int, str] | None:
        """Up to which block, and which hash of it, a stream was read."""
        here = CURSORS.c.cluster == self.cluster, CURSORS.c.stream == stream
        with self.engine.connect() as connection:
            row = connection.execute(select(CURSORS.c.block_number, CURSORS.c.block_hash).where(*here)).first()
        return None if row is None else (row.block_number, row.block_hash)

    def set_cursor(self, connection: Connection, stream: str, block_number: int, block_hash: str) -> None:
        """Write down, within a transaction, how far a stream was read."""
        place = {"block_number": block_number, "block_hash": block_hash}
        row = insert(CURSORS).values(cluster=self.cluster, stream=stream, **place)
        connection.execute(row.on_conflict_do_update(index_elements=["cluster", "stream"], set_=place))

    def tick(self, *names: str) -> None:
        """Pieces of periodic work have just succeeded; said at most once a second."""
        now_s = time.monotonic()
        new = [name for name in names if now_s - self._ticked_s.get(name, float("-inf")) >= TICK_S]
        if not new:
            return
        row = insert(TICKS).values(
            [{"cluster": self.cluster, "name": name, "succeeded_at": func.now()} for name in new]
        )
        now = {"succeeded_at": func.now()}
        with self.engine.begin() as connection:
            connection.execute(row.on_conflict_do_update(index_elements=["cluster", "name"], set_=now))
        self._ticked_s |= dict.fromkeys(new, now_s)

    def forget_tick(self, name: str) -> None:
        """A piece of periodic work does not succeed any more."""
        self._ticked_s.pop(name, None)
        with self.engine.begin() as connection:
            connection.execute(delete(TICKS).where(TICKS.c.cluster == self.cluster, TICKS.c.name == name))

    def seconds_since(self, name: str) -> float | None:
        """How long ago a piece of periodic work succeeded, by the database's clock; None when it never did."""
        age = func.extract("epoch", func.now() - TICKS.c.succeeded_at)
        with self.engine.connect() as connection:
            found = connection.scalar(select(age).where(TICKS.c.cluster == self.cluster, TICKS.c.name == name))
        return None if found is None else float(found)


def _play(
    before: dict[JobId, Job], changes: Sequence[Change]
) -> tuple[dict[JobId, Job], list[dict[str, Any]], dict[tuple[JobId, Kind], float]]:
    """Let the jobs live through the changes: jobs after, journal rows, and the effects wanted with their seconds."""
    after, journal, wanted = dict(before), [], dict[tuple[JobId, Kind], float]()
    for change in changes:
        old = after.get(change.job_id)
        new, effects = advance(old, change.event)
        if new is None:
            continue
        after[change.job_id] = new
        if new != old or isinstance(change.event, OperatorForgot):
            journal.append(_journal_row(new, change.event))
        for effect in effects:
            _want(wanted, change.job_id, effect)
    return after, journal, wanted


def _want(wanted: dict[tuple[JobId, Kind], float], job_id: JobId, effect: Effect) -> None:
    due_in_s = wanted.get((job_id, effect.kind), effect.due_in_s)
    wanted[job_id, effect.kind] = min(due_in_s, effect.due_in_s)


def _journal_row(job: Job, event: Event) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "name": type(event).__name__,
        "details": details(event),
        "state": job.state.value,
    }


def _takings(effects: Sequence[OpenEffect]) -> dict[str, Any]:
    return {
        "ids": [effect.id for effect in effects],
        "wakes": [effect.wakes for effect in effects],
        "holders": [effect.holder for effect in effects],
        "takings": [effect.taking for effect in effects],
    }


def _effects(rows: Iterable[Any]) -> list[OpenEffect]:
    return [
        OpenEffect(
            row.id,
            JobId(row.job_id),
            Kind(row.kind),
            row.wakes,
            row.attempts,
            getattr(row, "due_in_s", 0.0),
            getattr(row, "unforeseen", 0),
            getattr(row, "holder", 0),
            getattr(row, "taking", 0),
        )
        for row in rows
    ]


def _evidence(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float) else storable(str(value))


def _callback(row: Any) -> CallbackSeen:
    about = row.id, JobId(row.job_id), row.slurm_id
    return CallbackSeen(*about, row.status, row.duration_s, row.exit_code, row.received_at.timestamp())
