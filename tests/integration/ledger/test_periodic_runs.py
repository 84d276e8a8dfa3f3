"""Periodic runs on a real database: written one by one, or together by one statement."""

import pytest
from sqlalchemy import Engine, event

from supervisor_tasks.ledger.periodic_runs import PeriodicRuns


def test_together__runs_of_several_parts__are_written_by_one_statement(
    database: Engine,
) -> None:
    runs, statements = PeriodicRuns(database, "one"), list[str]()
    event.listen(
        database, "before_cursor_execute", lambda *about: statements.append(about[2])
    )
    with runs.together():
        runs.record("chain")
        runs.record("claim finished", "claim", readings=lambda: {"chain head": 7})
        assert runs.ages_s() == {}
    assert sum("INTO periodic_runs" in statement for statement in statements) == 1
    assert runs.ages_s().keys() == {"chain", "claim finished", "claim", "chain head"}


def test_together__work_fails__its_runs_are_written_all_the_same(
    database: Engine,
) -> None:
    runs = PeriodicRuns(database, "two")

    def work() -> None:
        with runs.together():
            runs.record("claim finished")
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        work()
    assert runs.ages_s().keys() == {"claim finished"}
    runs.record("chain")  # outside, a run is written at once
    assert runs.ages_s().keys() == {"claim finished", "chain"}
