"""The document about a sweep that the ledger stores."""

from collections import Counter
from collections.abc import Sequence, Sized
from typing import Any

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.events import stored_name
from supervisor_tasks.reconciliation.rules import Discrepancy
from supervisor_tasks.reconciliation.snapshot import Snapshot
from supervisor_tasks.reconciliation.sweep_interval import next_sweep_s
from supervisor_tasks.reconciliation.sweep_report import ReconciliationReport

MAX_DISCREPANCIES = 200  # discrepancies in a report


def _number(seen: Sized | None) -> int | None:
    """How much a side has; None if the sweep has not seen it."""
    if seen is None:
        return None
    return len(seen)


def document_of(
    context: WorkerContext,
    report: ReconciliationReport,
    snapshot: Snapshot,
    discrepancies: Sequence[Discrepancy],
) -> dict[str, Any]:
    """The entries that follow from the report, the snapshot and the discrepancies."""
    return {
        "why": report.why,
        "jobs": len(snapshot.jobs),
        "slurm_jobs": _number(snapshot.slurm),
        "on_chain": _number(snapshot.chain),
        "block": snapshot.block,
        "found": dict(Counter(discrepancy.kind for discrepancy in discrepancies)),
        "discrepancies": [
            _shown(discrepancy) for discrepancy in discrepancies[:MAX_DISCREPANCIES]
        ],
        "cancelled": report.cancelled,
        "not_cancelled": report.not_cancelled,
        "stale": report.stale,
        "unseen": report.unseen,
        "seconds": report.seconds,
        "again_s": next_sweep_s(context, report, snapshot, discrepancies),
    }


def _shown(discrepancy: Discrepancy) -> dict[str, Any]:
    return {
        "found": discrepancy.kind,
        "job_id": discrepancy.job_id,
        "slurm_id": discrepancy.slurm_id,
        "done": [stored_name(event) for event in discrepancy.events],
        "cancelled": discrepancy.cancel,
    }
