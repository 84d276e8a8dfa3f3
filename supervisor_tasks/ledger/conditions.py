"""Conditions: states that are wrong only when they last, and the alarms that follow."""

from typing import TYPE_CHECKING, Protocol

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.ledger.facts import INT, Fact, condition_fact
from supervisor_tasks.ledger.periodic_run_names import is_in_the_future

if TYPE_CHECKING:
    from supervisor_tasks.ledger.alarm_store import Alarms
    from supervisor_tasks.ledger.fact_store import Facts
    from supervisor_tasks.ledger.periodic_runs import PeriodicRuns


class Watched(Protocol):
    """The parts of the ledger that a condition needs."""

    facts: "Facts"
    alarms: "Alarms"
    periodic_runs: "PeriodicRuns"


class Duration:
    """For how long a state has lasted, by the database's clock. It is stored as a fact,
    so that a restarted worker and all other workers continue it. Its methods raise
    LedgerUnavailableError, when the database does not answer; a retry helps.

    With `gap_s`, the time restarts at 0 when no worker has found the state for longer
    than that: it may have ended meanwhile. It restarts at 0, too, when the state began in
    the future, because the database's clock was set back.
    """

    def __init__(self, facts: "Facts", name: str, gap_s: float | None = None) -> None:
        self._facts = facts
        self._fact = condition_fact(name)
        # how often a worker has found the state; its age is that of the last time
        self._found = Fact(f"condition.{name}.found", INT)
        self._gap_s = gap_s

    def update(self, is_so: bool, subject: str = "") -> float:
        """Store whether the state holds, and for which subject. Returns for how many
        seconds it has lasted.

        The time restarts at 0 with another subject, and after the state did not hold.
        """
        stored = self._facts.read(self._fact)
        if not is_so:
            if stored is not None:
                self._facts.clear(self._fact)
            return 0.0
        found_lately = self._record_found()
        if stored is not None and stored.value == subject:
            if found_lately and not is_in_the_future(stored.age_s):
                return stored.age_s
            self._facts.clear(self._fact)  # a fact that is set again keeps its age
        self._facts.set(self._fact, subject)
        return 0.0

    def _record_found(self) -> bool:
        """Store that a worker finds the state now. Returns whether one found it at most
        `gap_s` ago.
        """
        if self._gap_s is None:
            return True
        last = self._facts.read(self._found)
        self._facts.set(self._found, 1 if last is None else last.value + 1)
        return last is not None and last.age_s <= self._gap_s

    def seconds(self, subject: str | None = None) -> float:
        """For how many seconds the state has lasted, for this subject or, with None,
        for any.
        """
        stored = self._facts.read(self._fact)
        if stored is None or subject not in (None, stored.value):
            return 0.0
        return stored.age_s

    def subject(self) -> str | None:
        """The subject for which the state holds; None when it does not hold."""
        return self._facts.get(self._fact)


class Condition:
    """Raises an alarm when a state has been bad for `after_s` seconds without a break.
    Ends it when the state is good.

    Conditions with the same `name` share their duration, and `gap_s` is as in
    `Duration`. With `run_name`, the state has not been bad for longer than since that
    periodic run was last recorded; if it never was, the duration is infinite. Its
    methods raise LedgerUnavailableError, when the database does not answer; a retry
    helps.
    """

    def __init__(
        self,
        ledger: Watched,
        alarm: AlarmName,
        after_s: float = 0.0,
        *,
        name: str = "",
        run_name: str = "",
        gap_s: float | None = None,
    ) -> None:
        self._ledger = ledger
        self._alarm = alarm
        self._after_s = after_s
        self._run_name = run_name
        self.duration = Duration(ledger.facts, name or alarm.value, gap_s)

    def update(self, is_bad: bool, subject: str = "", **details: object) -> float:
        """Store whether the state is bad, and raise or end the alarm. Returns for how
        many seconds it has been bad.

        The time restarts at 0 with another `subject`. The alarm shows the last
        `details`, and the duration as `for_s`.
        """
        lasted_s = self._lasted_s(is_bad, subject)
        if not is_bad:
            self._ledger.alarms.off(self._alarm)
        elif lasted_s >= self._after_s:
            for_s = None if lasted_s == float("inf") else round(lasted_s)
            self._ledger.alarms.on(self._alarm, for_s=for_s, **details)
        return lasted_s

    def _lasted_s(self, is_bad: bool, subject: str) -> float:
        lasted_s = self.duration.update(is_bad, subject)
        if not is_bad or not self._run_name:
            return lasted_s
        age_s = self._ledger.periodic_runs.age_s(self._run_name)
        return float("inf") if age_s is None else min(age_s, lasted_s)
