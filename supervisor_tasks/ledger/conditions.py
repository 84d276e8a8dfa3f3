"""Conditions: what is wrong only when it lasts, and the alarm that follows."""

from typing import Protocol

from supervisor_tasks.ledger.facts import TEXT, Fact, Facts
from supervisor_tasks.ledger.operator import AlarmName, Alarms
from supervisor_tasks.ledger.ticks import Ticks


class Watched(Protocol):
    """What a condition needs of the ledger."""

    facts: Facts
    alarms: Alarms
    ticks: Ticks


class Duration:
    """For how long something has been so, by the database's clock. It is stored as a fact: workers that are started again,
    and other workers, go on with it.
    """

    def __init__(self, facts: Facts, name: str) -> None:
        self._facts = facts
        self._fact = Fact(f"condition.{name}", TEXT)

    def update(self, is_so: bool, subject: str = "") -> float:
        """Store whether it is so, and of what; returns for how many seconds it has been so. With another subject, and after
        it was not so, the time begins anew.
        """
        stored = self._facts.read(self._fact)
        if not is_so:
            if stored is not None:
                self._facts.clear(self._fact)
            return 0.0
        if stored is not None and stored.value == subject:
            return stored.age_s
        self._facts.set(self._fact, subject)
        return 0.0

    def seconds(self, subject: str | None = None) -> float:
        """For how many seconds it has been so, of that subject or of any."""
        stored = self._facts.read(self._fact)
        return 0.0 if stored is None or subject not in (None, stored.value) else stored.age_s

    def subject(self) -> str | None:
        """Of what it is so; None when it is not so."""
        return self._facts.get(self._fact)


class Condition:
    """Raises an alarm when something has been wrong for `after_s` seconds without a break, and ends it as soon as it is right.

    Conditions with the same `name` share their duration. With `tick`, it has been wrong since that tick was last left; where
    that never was, for ever.
    """

    def __init__(
        self, ledger: Watched, alarm: AlarmName, after_s: float = 0.0, *, name: str = "", tick: str = ""
    ) -> None:
        self._ledger = ledger
        self._alarm = alarm
        self._after_s = after_s
        self._tick = tick
        self.duration = Duration(ledger.facts, name or alarm.value)

    def update(self, is_bad: bool, subject: str = "", **details: object) -> float:
        """Store what was seen, and raise or end the alarm; returns for how many seconds it has been wrong. `subject` is what
        it is about: with another one the time begins anew. The alarm shows the last `details`, and `for_s`.
        """
        lasted_s = self._lasted_s(is_bad, subject)
        if not is_bad:
            self._ledger.alarms.off(self._alarm)
        elif lasted_s >= self._after_s:
            for_s = None if lasted_s == float("inf") else round(lasted_s)
            self._ledger.alarms.on(self._alarm, for_s=for_s, **details)
        return lasted_s

    def _lasted_s(self, is_bad: bool, subject: str) -> float:
        if not self._tick:
            return self.duration.update(is_bad, subject)
        age_s = self._ledger.ticks.age_s(self._tick) if is_bad else 0.0
        return float("inf") if age_s is None else age_s
