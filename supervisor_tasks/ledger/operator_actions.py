"""Decisions of the operator that no program can make."""

import secrets
from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Connection

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.errors import SupervisorError
from supervisor_tasks.jobs.events import OperatorAbandonedEffect, SlurmJobMissing
from supervisor_tasks.jobs.model import JobId, SlurmId
from supervisor_tasks.ledger import outbox_sql
from supervisor_tasks.ledger.facts import (
    SLURM_ACCEPTED,
    SLURM_CLUSTER,
    TRANSACTION_REQUESTS,
    UNEXPECTED_CLUSTER,
)
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.switch_names import Switch, is_pause_of_sweep

ACCEPTED = "the operator accepted SLURM as it is"
NO_OTHER_SLURM = "no other SLURM"
MARKED_LOST = "SLURM has lost the job, as the operator confirmed"


class EffectChangedError(SupervisorError):
    """The effect is not parked any more, or was tried and parked again. A retry does
    not help: the operator looks at the effect again.
    """


class AnotherSlurmFoundError(SupervisorError):
    """Workers have found another SLURM than the operator was shown. A retry does not
    help: the operator looks at the cluster again.
    """

    def __init__(self, found: str, shown: str) -> None:
        super().__init__(
            f"found {found}; expected {shown}, which the command has shown: nothing was changed; see `supervisor cluster"
            " show`, and repeat the command if the SLURM that it shows is the right one"
        )


def abandon(
    ledger: Ledger,
    effect_id: int,
    parked_at: datetime,
    job_id: JobId,
    event: OperatorAbandonedEffect,
) -> None:
    """End an effect that has been parked since `parked_at`, and record this in the
    journal of its job.

    Raises EffectChangedError, and changes nothing, when the effect has changed since; a
    retry does not help: the operator looks at the effect again. It may serve a demand
    that he has not seen, such as the customer's cancellation. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    parameters = {"cluster": ledger.cluster, "id": effect_id, "parked_at": parked_at}

    def end_parked(connection: Connection) -> None:
        if connection.execute(outbox_sql.ABANDON, parameters).first() is None:
            raise EffectChangedError(f"effect {effect_id} of {job_id} has changed")

    ledger.record(JobChange(job_id, event), first=end_parked)


def needs_operator(ledger: Ledger) -> dict[JobId, SlurmId | None]:
    """The jobs that need the operator's decision, by the last sweep, because they seem
    to be lost; and their SLURM ids. Raises LedgerUnavailableError, when the database
    does not answer; a retry helps.
    """
    return ledger.reconciliations.last_entry("needs_operator")


def mark_lost(ledger: Ledger, job_ids: Collection[str] | None = None) -> list[JobId]:
    """Panic jobs that need the operator's decision, all or these: he confirms that they
    are lost.

    Returns the jobs that were panicked. The others did not need a decision, or have
    changed meanwhile. Raises LedgerUnavailableError, when the database does not answer;
    a retry helps.
    """
    confirmed = needs_operator(ledger)
    if job_ids is not None:
        confirmed = {
            job_id: slurm_id
            for job_id, slurm_id in confirmed.items()
            if job_id in job_ids
        }
    before = ledger.jobs(confirmed)
    changes = list[JobChange]()
    for job_id, slurm_id in confirmed.items():
        changes.append(JobChange(job_id, SlurmJobMissing(slurm_id, MARKED_LOST)))
    after = ledger.record(*changes)
    ledger.reconciliations.request("the operator confirmed that jobs are lost")
    return [job_id for job_id, job in after.items() if job != before.get(job_id)]


def request_of_transaction(ledger: Ledger, transaction_id: int, what: str) -> None:
    """Have a worker of the chain queue bump or cancel a transaction; it has the
    wallet's key. A later request replaces an earlier one about the same transaction.
    Raises LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    requests = ledger.facts.get_or(TRANSACTION_REQUESTS, {})
    ledger.facts.set(TRANSACTION_REQUESTS, requests | {str(transaction_id): what})


def accept_slurm(ledger: Ledger, shown: str | None) -> None:
    """Accept the SLURM cluster that was found, and that the operator was shown; None if
    it is the expected one. Submissions go on, unless an operator has paused them. Jobs
    that it has forgotten up to now, and that never ran, are submitted again; the
    operator decides about those that ran (`mark_lost`).

    Raises AnotherSlurmFoundError, and changes nothing, when workers have found another
    one since; a retry does not help: the operator looks at the cluster again. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    facts = ledger.facts
    with ledger.engine.begin() as connection:
        if shown is None:
            is_as_shown = facts.get(UNEXPECTED_CLUSTER) is None
        else:
            is_as_shown = facts.clear_if(UNEXPECTED_CLUSTER, shown, connection)
        if not is_as_shown:
            raise AnotherSlurmFoundError(
                facts.get(UNEXPECTED_CLUSTER) or NO_OTHER_SLURM,
                shown or NO_OTHER_SLURM,
            )
        if shown is not None:
            facts.set(SLURM_CLUSTER, shown, connection)
        # a new value each time: the age of the fact is what counts
        facts.set(SLURM_ACCEPTED, secrets.token_hex(8), connection)
    paused_for = ledger.switches.reason(Switch.SUBMISSIONS_PAUSED)
    if is_pause_of_sweep(paused_for):
        ledger.switches.unset(Switch.SUBMISSIONS_PAUSED, paused_for)
    for alarm in (AlarmName.SLURM_CLUSTER_MISMATCH, AlarmName.SLURM_STATE_LOST):
        ledger.alarms.off(alarm)
    ledger.reconciliations.request(ACCEPTED)
