"""What is left to do: effects that are taken, given back, parked and freed. Statements are in outbox.py.

An effect is held by a taking of a process; what another taking has by now, nobody writes to.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, TextClause

from supervisor_tasks.crash import Point, around
from supervisor_tasks.errors import SupervisorError
from supervisor_tasks.job import Address, Job, JobId, Kind, closes
from supervisor_tasks.ledger import outbox
from supervisor_tasks.ledger.database import asking
from supervisor_tasks.ledger.leases import ALIVE_HOLDERS, GONE, TURNS, Holder
from supervisor_tasks.ledger.rows import storable

log = structlog.get_logger()

# Longer than any step takes, also the longest search for a job in a SLURM that needs all of each command's time-out: who is
# only slow is not parked. The lease of a dead holder is free at once.
LEASE_S = 420.0
WAKE_AGAIN_S = 5.0  # a message that had no consequence for so long is taken for lost
LATE_AFTER_S = 300.0  # an effect that has failed for so long, or so often, is worth a call to the operator
LATE_AFTER_TRIES = 50
SUSPECT_AFTER = 2  # failures that nobody foresaw; from then on an effect is carried out alone, to spare the others
ALONE_WITHIN_S = 30.0  # a suspect waits for the end of what its holder carries out besides, and begins all the same
ALONE_FOR_S = 60.0  # who has taken a suspect takes nothing besides for so long: one that hangs does not stop a worker
LOOK_EVERY_S = 0.05
TRIES_OF_THE_UNFORESEEN = 5  # failures in a row that nobody foresaw; then an effect is parked
WORKER_ENDED = "its worker ended, or stood still, while it was carrying this out"
SHOWN_JOBS = 5  # in a line of the log
MOST = 1000  # that are taken at a time
OF_ONE_CUSTOMER = 2  # submissions that are under way at once, in all workers together
COUNTDOWN_S = 2.0  # an effect due later than this is woken by the clock and not by a message

Wanted = dict[tuple[JobId, Kind], float]  # in how many seconds


class LeaseLostError(SupervisorError):
    """Another taking has the effect by now; what was about to be written was not."""


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
    unforeseen: int = 0  # failures in a row that nobody foresaw
    holder: int = 0
    taking: int = 0
    woken: bool = False
    refusals: int = 0  # by the contract, with nothing that worked in between


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

    def lease(self, kinds: Iterable[Kind], effect_id: int | None = None, most: int = MOST) -> list[OpenEffect]:
        """Take due effects of these kinds (or the one with that id) that nobody works on. They are ours until they
        are recorded as done, postponed or parked, or until this process ends. Waits until a suspect is all that we hold.
        A submission is not taken while its customer has OF_ONE_CUSTOMER under way.
        """
        parameters = self._taking(kinds) | {"effect_id": effect_id, "most": most}
        with around(Point.LEASE), self._engine.begin() as connection:
            if effect_id is None:
                taken = _effects(connection.execute(outbox.LEASE, parameters))
            else:
                connection.execute(outbox.ONE_TAKER, {"turns": TURNS, "effect_id": effect_id})
                taken = _effects(connection.execute(outbox.LEASE_ONE, parameters))
        return self._alone(taken)

    def lease_next(self, customer: Address) -> list[OpenEffect]:
        """Take the submission of this customer that is due and has waited longest, if it is the customer's turn."""
        of_customer = {"cluster": self._cluster, "customer": customer}
        parameters = self._taking([Kind.SUBMIT])
        with around(Point.LEASE), self._engine.begin() as connection:
            connection.execute(outbox.ONE_TAKER_OF, of_customer | {"turns": TURNS})
            effect_id = connection.scalar(outbox.NEXT_TURN, of_customer)
            if effect_id is None:
                return []
            chosen = parameters | {"effect_id": effect_id, "most": 1}
            taken = _effects(connection.execute(outbox.LEASE_ONE, chosen))
        return self._alone(taken)

    def wake_next(self, customer: Address) -> None:
        """Send a message for that submission, behind those that wait."""
        of_customer = {"cluster": self._cluster, "customer": customer}
        with self._engine.begin() as connection:
            effect_id = connection.scalar(outbox.NEXT_TURN, of_customer)
            following = [] if effect_id is None else _effects(connection.execute(outbox.WOKEN, {"id": effect_id}))
        if following:
            self.wake(following)

    def _taking(self, kinds: Iterable[Kind]) -> dict[str, Any]:
        return {
            "cluster": self._cluster,
            "holder": self._holder.number(),
            "lease_s": LEASE_S,
            "kinds": [kind.value for kind in kinds],
            "suspect": SUSPECT_AFTER,
            "alone_s": ALONE_FOR_S,
            "at_once": OF_ONE_CUSTOMER,
        }

    def _alone(self, taken: list[OpenEffect]) -> list[OpenEffect]:
        """Wait until a suspect is all that this process holds."""
        if taken and taken[0].unforeseen >= SUSPECT_AFTER:
            try:
                self._wait_until_alone(taken[0])
            except GONE as error:
                self.postpone(taken, 0.0, str(error))
                raise
        return taken

    def put_off(self, customer: Address, due_in_s: float) -> None:
        """Let the submissions of this customer that have not begun wait so long: none of them can be made before."""
        parameters = {"cluster": self._cluster, "customer": customer, "due_in_s": due_in_s}
        with self._engine.begin() as connection:
            connection.execute(outbox.PUT_OFF, parameters)

    def _wait_until_alone(self, suspect: OpenEffect) -> None:
        """If it kills its worker, that is to count. Where it does not get alone in time, it is carried out uncounted."""
        deadline_s = time.monotonic() + ALONE_WITHIN_S
        holding = {"cluster": self._cluster, "holder": suspect.holder, "id": suspect.id}
        while time.monotonic() < deadline_s:
            with asking(self._engine) as connection:
                if connection.scalar(outbox.ALONE, holding):
                    return
            time.sleep(LOOK_EVERY_S)  # nobody tells when another thread has done

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
        soon = _effects(row for row in rows if row.parked_at is None and row.due_in_s <= COUNTDOWN_S)
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
        again = _effects(row for row in rows if row.parked_at is None)
        if again:
            self.wake(again)
        return bool(rows) and not again

    def retry(self, effect_id: int | None = None, job_id: JobId | None = None) -> list[OpenEffect]:
        """Let effects that are parked, or that fail again and again, begin anew: that one, those of a job, or all."""
        parameters = {"cluster": self._cluster, "effect_id": effect_id, "job_id": job_id}
        with self._engine.begin() as connection:
            return _effects(connection.execute(outbox.RETRY, parameters))

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
            parameters = {
                "cluster": self._cluster,
                "again_s": WAKE_AGAIN_S,
                "most": MOST,
                "at_once": OF_ONE_CUSTOMER,
            }
            rows = list(connection.execute(outbox.FORGOTTEN, parameters))
        return [replace(effect, woken=row.woken) for effect, row in zip(_effects(rows), rows, strict=True)]

    def _free(self, connection: Connection, alive: Sequence[int]) -> None:
        parameters = {
            "cluster": self._cluster,
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

    # --- within the transaction of an event -------------------------------------------------------------------------

    def require_held(self, connection: Connection, effect: OpenEffect) -> None:
        """Raises LeaseLostError unless the taking still holds the effect, which it does until the transaction's end."""
        taking = {"id": effect.id, "holder": effect.holder, "taking": effect.taking}
        if connection.execute(outbox.HELD, taking).first() is None:
            raise LeaseLostError(f"the lease of effect {effect.id} ({effect.kind} of {effect.job_id}) is another's now")

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
        return _effects(row for row in rows if row.done_at is None and row.parked_at is None)

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
        return _effects(row for row in rows if row.lease is None and row.parked_at is None)

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


def _effects(rows: Iterable[Any]) -> list[OpenEffect]:
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
