"""Which missing jobs slurmctld had saved before it was started."""

import math

from supervisor_tasks.jobs.model import JobId
from supervisor_tasks.ledger.facts import (
    SLURM_ACCEPTED,
    SLURM_BOOT_TIME,
    SLURM_START,
    SlurmStart,
)
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.reconciliations import Begun
from supervisor_tasks.reconciliation.snapshot import Snapshot

SAVED_WITHIN_S = 60.0  # slurmctld writes its state down every few seconds


def find_persisted(
    ledger: Ledger, snapshot: Snapshot, begun: Begun
) -> frozenset[JobId]:
    """The missing jobs that slurmctld had on its disk when it was started, by the
    database's clock. They were submitted well before the last answer of the slurmctld
    that ran then. Jobs from before the operator last accepted a loss do not count.
    Raises LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    slurm_ids = {job.slurm_id for job in snapshot.missing if job.slurm_id is not None}
    if not slurm_ids:
        return frozenset()
    now_s = begun.at.timestamp()
    until_s = _saved_until_s(ledger, now_s)
    accepted = ledger.facts.read(SLURM_ACCEPTED)
    since_s = -math.inf
    if accepted is not None:
        since_s = now_s - accepted.age_s
    submissions = ledger.journal.submissions(slurm_ids)
    persisted = set[JobId]()
    for job_id in {job.job_id for job in snapshot.missing} & submissions.keys():
        if since_s < submissions[job_id].answered_s <= until_s:
            persisted.add(job_id)
    return frozenset(persisted)


def _saved_until_s(ledger: Ledger, now_s: float) -> float:
    """Until when the slurmctld that ran before had the time to save what it took. If
    the start is unknown, all jobs count as saved.
    """
    boot, start = ledger.facts.read(SLURM_BOOT_TIME), last_start(ledger)
    if boot is None or boot.value != start.booted:
        return math.inf
    return now_s - boot.age_s - start.silent_s - SAVED_WITHIN_S


def last_start(ledger: Ledger) -> SlurmStart:
    """The last start of slurmctld that a worker has recorded. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    return ledger.facts.get_or(SLURM_START, SlurmStart())
