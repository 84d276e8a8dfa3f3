"""Work that one process at a time does, by a lock of a real Postgres."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine
from sqlalchemy import event as sqlalchemy_event

from supervisor_tasks.execution.exclusive_run import run_exclusive
from supervisor_tasks.ledger.ledger import Ledger


def test_run_exclusive__asked_again_while_it_runs__runs_once_more_without_queries(
    ledger: Ledger,
) -> None:
    runs = list[str]()

    def work() -> bool:
        runs.append("begun")
        if len(runs) == 1:
            with ThreadPoolExecutor(1) as other, _statements(ledger.engine) as asked:
                other.submit(run_exclusive, ledger, "work", work).result()
            assert asked == []
        return False

    run_exclusive(ledger, "work", work)
    assert len(runs) == 2


def test_run_exclusive__fails_while_it_was_asked_again__can_run_afterwards(
    ledger: Ledger,
) -> None:
    def fail() -> bool:
        ledger.local_runs.begin("work")
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        run_exclusive(ledger, "work", fail)
    goes_on = [True, False]
    run_exclusive(ledger, "work", lambda: goes_on.pop(0))
    assert goes_on == []


@contextmanager
def _statements(engine: Engine) -> Iterator[list[str]]:
    """The statements that the engine sends meanwhile."""
    seen = list[str]()

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    sqlalchemy_event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sqlalchemy_event.remove(engine, "before_cursor_execute", note)
