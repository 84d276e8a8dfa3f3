"""What a sweep has found is recorded in a real ledger, also if that fails half-way."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlalchemy import text

from supervisor_tasks.errors import TransientError
from supervisor_tasks.jobs.model import ChainStatus
from supervisor_tasks.ledger.cursor_names import CONTRACT_STREAM
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.reconciliation import recording
from supervisor_tasks.reconciliation.recording import record_discrepancies
from supervisor_tasks.reconciliation.rules import find_discrepancies
from tests.support.snapshots import CLAIM, name, on_chain_job, seeing

CLAIMS = {
    name(number): replace(CLAIM, job_id=name(number), at=(40 + number, 0))
    for number in (1, 2)
}
TWO_CLAIMED = seeing(
    rows=[],
    claims=CLAIMS,
    chain={job_id: on_chain_job(ChainStatus.SCHEDULED) for job_id in CLAIMS},
    historical_matches={},
)


def scanned_to(ledger: Ledger, block: int) -> None:
    with ledger.engine.begin() as connection:
        ledger.cursors.set(connection, CONTRACT_STREAM, block, "0x1")


@contextmanager
def cursor_that_cannot_be_written(ledger: Ledger) -> Iterator[None]:
    refuse = """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'the disk is full' USING ERRCODE = '53100'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON cursors FOR EACH ROW EXECUTE FUNCTION refuse()
        """
    with ledger.engine.begin() as connection:
        connection.execute(text(refuse))
    try:
        yield
    finally:
        with ledger.engine.begin() as connection:
            connection.execute(text("DROP TRIGGER refuse ON cursors"))
            connection.execute(text("DROP FUNCTION refuse()"))


def test_record_discrepancies__jobs_are_new__are_there_with_the_scan_set_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the scan is not set back, no later sweep does it: the jobs are known then, and
    their cancellations and top-ups are never read.
    """
    monkeypatch.setattr(recording, "RECORDED_AT_ONCE", 1)
    scanned_to(ledger, 90)
    found = find_discrepancies(TWO_CLAIMED)
    with cursor_that_cannot_be_written(ledger), pytest.raises(TransientError):
        record_discrepancies(ledger, TWO_CLAIMED, found)
    assert ledger.jobs(CLAIMS) == {}
    record_discrepancies(ledger, TWO_CLAIMED, found)
    assert ledger.jobs(CLAIMS).keys() == CLAIMS.keys()
    assert ledger.cursors.of(CONTRACT_STREAM) == (40, "")


def test_record_discrepancies__scan_has_not_come_to_the_claims__goes_on_from_there(
    ledger: Ledger,
) -> None:
    scanned_to(ledger, 30)
    record_discrepancies(ledger, TWO_CLAIMED, find_discrepancies(TWO_CLAIMED))
    assert ledger.jobs(CLAIMS).keys() == CLAIMS.keys()
    assert ledger.cursors.of(CONTRACT_STREAM) == (30, "0x1")
