"""Records the events of a sweep's discrepancies."""

from collections.abc import Sequence

from sqlalchemy import Connection

from supervisor_tasks.ledger.advisory_locks import advisory_lock
from supervisor_tasks.ledger.cursor_names import CONTRACT_STREAM
from supervisor_tasks.ledger.ledger import InSameTransaction, JobChange, Ledger
from supervisor_tasks.ledger.lock_names import cluster_lock
from supervisor_tasks.reconciliation.rules import Discrepancy, of_kind
from supervisor_tasks.reconciliation.snapshot import DiscrepancyKind, Snapshot

RECORDED_AT_ONCE = 500


def record_discrepancies(
    ledger: Ledger, snapshot: Snapshot, discrepancies: Sequence[Discrepancy]
) -> None:
    """Record the events of the discrepancies, 500 in a transaction. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.

    The transaction that takes in a job which the ledger did not know sets the scan back
    to its claim, so that the scan reads its cancellation and its top-ups. No later
    sweep would do so: the ledger knows the job then. Reading other jobs' events a
    second time changes nothing.
    """
    new = DiscrepancyKind.NEVER_SEEN
    taken_in = of_kind(discrepancies, new)
    if taken_in:
        first = min(snapshot.claims[found.job_id].at[0] for found in taken_in)
        with advisory_lock(ledger.engine, cluster_lock(ledger.cluster, "scan")):
            _record(ledger, taken_in, also=_set_scan_back(ledger, first))
    _record(ledger, [found for found in discrepancies if found.kind is not new])


def _set_scan_back(ledger: Ledger, first: int) -> InSameTransaction | None:
    """Return what sets the scan back to the block `first`; None if the scan has not
    read it yet. The caller has the scan's lock.
    """
    scanned = ledger.cursors.of(CONTRACT_STREAM)
    if scanned is None or scanned[0] < first:
        return None

    def set_back(connection: Connection) -> None:
        ledger.cursors.set(connection, CONTRACT_STREAM, first - 1, "")

    return set_back


def _record(
    ledger: Ledger,
    discrepancies: Sequence[Discrepancy],
    also: InSameTransaction | None = None,
) -> None:
    changes = [
        JobChange(found.job_id, event)
        for found in discrepancies
        for event in found.events
    ]
    for start in range(0, len(changes), RECORDED_AT_ONCE):
        ledger.record(*changes[start : start + RECORDED_AT_ONCE], also=also)
