"""What is left to do: effects that are taken, given back, parked and freed. Statements are in outbox.py.

An effect is held by a taking of a process; what another taking has by now, nobody writes to.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, TextClause

from supervisor_tasks.crash import Point, around
from supervisor_tasks.errors import SupervisorError
from supervisor_tasks.job import Job, JobId, Kind, closes
from supervisor_tasks.ledger import outbox
from supervisor_tasks.ledger.database import asking
from supervisor_tasks.ledger.leases import ALIVE_HOLDERS, GONE, TURNS, Holder
from supervisor_tasks.ledger.rows import storable

log = structlog.get_logger()

# Longer than any effect takes, also the longest search for a job in a SLURM that needs all of each command's time-out: who is
# only slow is not parked. The lease of a dead holder is free at once.
LEASE_S = 420.0
WAKE_AGAIN_S = 5.0  # a message that had no consequence for so long is taken for lost
LATE_AFTER_S = 300.0  # an effect that has failed for so long, or so often, is worth a call to the operator
LATE_AFTER_TRIES = 50
SUSPECT_AFTER = (
    2  # failures in a row that were not foreseen; from then on an effect is leased alone, to spare the others
)
PARKED_AFTER = 3
WORKER_ENDED = "its worker ended, or stood still, while it was carrying this out"
SHOWN_JOBS = 5  # in a line of the log
MOST = 1000  # that are taken at a time
GROUPS_OF_ONE_CUSTOMER = 2  # of submissions that are under way at once, in all workers together
COUNTDOWN_S = 2.0  # an effect due later than this is woken by the clock and not by a message

Wanted = dict[tuple[JobId, Kind], float]  # in how many seconds


class LeaseLostError(SupervisorError):
    """Another taking has the effects by now; what was about to be written was not."""

    def __init__(self, lost: "Sequence[OpenEffect]") -> None:
        shown = ", ".join(f"{effect.kind} of {effect.job_id}" for effect in lost[:SHOWN_JOBS])
        super().__init__(f"the leases of {len(lost)} effects are another's now: {shown}")
        self.lost = frozenset(effect.id for effect in lost)


@dataclass(frozen=True, slots=True)
class OpenEffect:
    """An effect that somebody is to carry out. `wakes` is the count of demands at the time it was read; `holder` and
    `taking` name the lease under which it was taken. `woken`: a message was sent for it already, and may wait still.
    """

    id: int
    job_id: JobId
    kind: Kind
    wakes: int
    attempts: int
    due_in_s: float = 0.0
    unforeseen: int = 0  # failures in a row that were not foreseen
    holder: int = 0
    taking: int = 0
    woken: bool = False
    refusals: int = 0  # by the contract, with nothing that worked in between

    @property
    def is_suspect(self) -> bool:
        """Whether it is carried out alone: what failed unforeseen before may be its doing."""
        return self.unforeseen >= SUSPECT_AFTER


@dataclass(frozen=True, slots=True)
class Trouble:
    """What an operator is to know of the effects. The figures and the error are those of the late ones."""

    parked: int
    late: int
    most_tries: int
    longest_s: float
    last_error: str | None


WakeUp = Callable[[Sequence[OpenEffect]], None]


class Effects:
    """The effects of one cluster. `wake` is told which are due now or in a moment, after the commit that made them so."""

    def __init__(self, engine: Engine, cluster: str, holder: Holder, wake: WakeUp) -> None:
        self._engine = engine
        self._cluster = cluster
        self._holder = holder
        self.wake = wake

    def lease(self, kinds: Iterable[Kind], most: int = MOST, *, suspects: bool = True) -> list[OpenEffect]:
        """Take due effects of these kinds that no worker works on; where there are none, one suspect, if that is wanted. They
        are ours until they are recorded as done, postponed or parked, or until this process ends.
        """
        return self._lease(outbox.LEASE, kinds, {"most": most}, suspects)

    def lease_groups(self, most_groups: int, of_one: int, *, suspects: bool = True) -> list[OpenEffect]:
        """Take submissions of as many customers as `most_groups`, `of_one` of each at the most; where there are none, one
        suspect. A customer has GROUPS_OF_ONE_CUSTOMER under way at once. Who has the fewest, and has waited longest, is first.
        """
        groups = {"most_groups": most_groups, "of_one": of_one, "at_once": GROUPS_OF_ONE_CUSTOMER}
        return self._lease(outbox.LEASE_GROUPS, [Kind.SUBMIT], groups, suspects)

    def _lease(
        self, statement: TextClause, kinds: Iterable[Kind], how_many: dict[str, int], suspects: bool
    ) -> list[OpenEffect]:
        parameters = {
            "cluster": self._cluster,
            "holder": self._holder.number(),
            "lease_s": LEASE_S,
            "kinds": [kind.value for kind in kinds],
            "suspect": SUSPECT_AFTER,
            **how_many,
        }
        turn = {"turns": TURNS, "cluster": self._cluster}
        with around(Point.LEASE), self._engine.begin() as connection:
            if statement is outbox.LEASE_GROUPS:
                connection.execute(outbox.ONE_TAKER, turn)
            leased = taken(connection.execute(statement, parameters))
            if suspects and not leased and connection.scalar(outbox.HAS_SUSPECTS, parameters):
                connection.execute(outbox.ONE_TAKER, turn)
                leased = taken(connection.execute(outbox.LEASE_SUSPECT, parameters))
        return leased

    def extend(self, effects: Sequence[OpenEffect]) -> None:
        """Have the leases of these, of which the last has not begun yet, last as long as if they were taken now."""
        with self._engine.begin() as connection:
            connection.execute(outbox.EXTEND, _takings(effects) | {"lease_s": LEASE_S})

    def postpone(
        self,
        effects: Sequence[OpenEffect],
        due_in_s: float,
        error: str | None = None,
        *,
        unforeseen: bool = False,
        waits: bool = False,
        refused: bool = False,
    ) -> None:
        """Give effects back, to be tried again in a while. Failures are counted from the first one in a row; without an
        error nothing has failed. What `waits` has not failed, but nothing progresses either, and the error says what for.
        What was `refused` by the contract is counted by itself, too.
        """
        if not effects:
            return
        parameters = {
            **_takings(effects),
            "due_in_s": due_in_s,
            "error": None if error is None else storable(error),
            "unforeseen": unforeseen,
            "waits": waits,
            "refused": refused,
        }
        with around(Point.POSTPONE):
            rows = self._give_back(outbox.POSTPONE, parameters)
        soon = taken(row for row in rows if row.parked_at is None and row.due_in_s <= COUNTDOWN_S)
        if soon:
            self.wake(soon)

    def _give_back(self, statement: TextClause, parameters: dict[str, Any]) -> list[Any]:
        """What cannot be given back now, the holder gives back as soon as it can be: nobody waits for the lease's end."""
        try:
            with self._engine.begin() as connection:
                return list(connection.execute(statement, parameters))
        except GONE:
            self._holder.owe(statement, parameters)
            raise

    def hurry(self, job_ids: Sequence[str], kinds: Iterable[Kind], error: str | None = None) -> None:
        """Bring effects forward that wait for something which will not come; the clock wakes them. With an error the
        contract has refused it.
        """
        parameters = {
            "cluster": self._cluster,
            "job_ids": list(job_ids),
            "kinds": [kind.value for kind in kinds],
            "error": None if error is None else storable(error),
        }
        with self._engine.begin() as connection:
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
        rows = self._give_back(outbox.PARK, parameters)
        again = taken(row for row in rows if row.parked_at is None)
        if again:
            self.wake(again)
        return bool(rows) and not again

    def retry(self, effect_id: int | None = None, job_id: JobId | None = None) -> list[OpenEffect]:
        """Let effects that are parked, or that fail again and again, begin anew: that one, those of a job, or all."""
        parameters = {"cluster": self._cluster, "effect_id": effect_id, "job_id": job_id}
        with self._engine.begin() as connection:
            return taken(connection.execute(outbox.RETRY, parameters))

    def trouble(self) -> Trouble:
        """The effects that are parked, and those that have failed for long without being parked."""
        parameters = {"cluster": self._cluster, "late_s": LATE_AFTER_S, "late_tries": LATE_AFTER_TRIES}
        with asking(self._engine) as connection:
            return Trouble(**connection.execute(outbox.TROUBLE, parameters).mappings().one())

    def failing_with(self, words: str) -> tuple[int, list[str]]:
        """How many effects fail for a reason that begins with these words, and a few of the reasons."""
        with asking(self._engine) as connection:
            row = connection.execute(outbox.FAILING_WITH, {"cluster": self._cluster, "words": words}).one()
        return row.effects, list(row.errors)

    def forgotten(self) -> list[OpenEffect]:
        """Due effects that need a message: it was lost, its worker died, or their time has come."""
        with self._engine.begin() as connection:
            alive = list(connection.scalars(ALIVE_HOLDERS))
            self._free(connection, alive)
            parameters = {"cluster": self._cluster, "again_s": WAKE_AGAIN_S, "most": MOST}
            rows = list(connection.execute(outbox.FORGOTTEN, parameters))
        return [replace(effect, woken=row.woken) for effect, row in zip(taken(rows), rows, strict=True)]

    def _free(self, connection: Connection, alive: Sequence[int]) -> None:
        parameters = {
            "cluster": self._cluster,
            "alive": alive,
            "lease_s": LEASE_S,
            "bound": PARKED_AFTER,
            "error": WORKER_ENDED,
        }
        freed = list(connection.execute(outbox.FREE_LEASES, parameters))
        if freed:
            log.warning("effects_freed", effects=len(freed), jobs=[row.job_id for row in freed[:SHOWN_JOBS]])
        for row in freed:
            if row.parked_at is not None:  # the watch calls the operator
                log.error("effect_parked", job_id=row.job_id, kind=row.kind, attempts=row.attempts, reason=WORKER_ENDED)

    # --- within the transaction of an event -------------------------------------------------------------------------

    def require_held(self, connection: Connection, effects: Sequence[OpenEffect]) -> None:
        """Raises LeaseLostError unless these takings still hold their effects, which they do until the transaction's end."""
        held = set(connection.scalars(outbox.HELD, _takings(effects)))
        lost = [effect for effect in effects if effect.id not in held]
        if lost:
            raise LeaseLostError(lost)

    def end(
        self, connection: Connection, done: Sequence[tuple[OpenEffect, str | None]], wanted: Wanted
    ) -> list[OpenEffect]:
        """End effects that are still held, each with the reason why it was carried out in vain, if it was; one whose kind is
        wanted again is made due again and taken out of `wanted`.
        """
        if not done:
            return []
        effects = [effect for effect, _ in done]
        dues = [wanted.get((effect.job_id, effect.kind)) for effect in effects]
        in_vain = [None if why is None else storable(why) for _, why in done]
        rows = list(connection.execute(outbox.END, _takings(effects) | {"dues": dues, "in_vain": in_vain}))
        for row in rows:
            wanted.pop((JobId(row.job_id), Kind(row.kind)), None)
        return taken(row for row in rows if row.done_at is None and row.parked_at is None)

    def open(self, connection: Connection, wanted: Wanted) -> list[OpenEffect]:
        """Open effects, or bring forward those that are open; returns those that somebody may take."""
        if not wanted:
            return []
        parameters = {
            "cluster": self._cluster,
            "job_ids": [job_id for job_id, _ in wanted],
            "kinds": [kind.value for _, kind in wanted],
            "dues": list(wanted.values()),
        }
        rows = connection.execute(outbox.OPEN, parameters)
        return taken(row for row in rows if row.lease is None and row.parked_at is None)

    def close_pointless(self, connection: Connection, changed: Sequence[Job]) -> None:
        """Close the effects that have no purpose in what the jobs have become."""
        pairs = [(job.job_id, kind.value) for job in changed for kind in closes(job)]
        if pairs:
            job_ids, kinds = map(list, zip(*pairs, strict=True))
            parameters = {"cluster": self._cluster, "job_ids": job_ids, "kinds": kinds}
            connection.execute(outbox.CLOSE, parameters)


def _takings(effects: Sequence[OpenEffect]) -> dict[str, Any]:
    return {
        "ids": [effect.id for effect in effects],
        "wakes": [effect.wakes for effect in effects],
        "holders": [effect.holder for effect in effects],
        "takings": [effect.taking for effect in effects],
    }


def taken(rows: Iterable[Any]) -> list[OpenEffect]:
    """The effects of rows as outbox.py returns them."""
    return [
        OpenEffect(
            row.id,
            JobId(row.job_id),
            Kind(row.kind),
            row.wakes,
            row.attempts,
            row.due_in_s,
            row.unforeseen,
            row.holder,
            row.taking,
            refusals=row.refusals,
        )
        for row in rows
    ]


def _evidence(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float) else storable(str(value))
