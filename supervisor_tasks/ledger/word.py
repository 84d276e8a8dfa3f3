"""The operator's word on what no program can decide."""

import secrets
from collections.abc import Collection

from supervisor_tasks.events import OperatorForgot, SlurmLost
from supervisor_tasks.job import JobId, SlurmId
from supervisor_tasks.ledger import outbox
from supervisor_tasks.ledger.facts import SLURM_ACCEPTED, SLURM_IS, SLURM_SEEN
from supervisor_tasks.ledger.operator import AlarmName, Switch
from supervisor_tasks.ledger.store import Change, Ledger

ACCEPTED = "the operator accepted SLURM as it is"
CONFIRMED_LOST = "SLURM has lost the job, as the operator confirmed"


def forget(ledger: Ledger, effect_id: int, job_id: JobId, event: OperatorForgot) -> None:
    """End a parked effect, and write that down in the journal of its job."""
    parameters = {"cluster": ledger.cluster, "id": effect_id}
    ledger.record(Change(job_id, event), also=lambda connection: connection.execute(outbox.FORGET, parameters))


def confirm_lost(ledger: Ledger, job_ids: Collection[str] | None = None) -> list[JobId]:
    """Jobs that the last sweep held back, all or these, are lost: they are panicked. Returns those that were; the others were
    not held, or have moved on meanwhile.
    """
    last = ledger.sweeps.last()
    held: dict[str, int | None] = last[0].report.get("held", {}) if last else {}
    chosen = {JobId(name): number for name, number in held.items() if job_ids is None or name in job_ids}
    before = ledger.jobs(chosen)
    events = {
        job_id: SlurmLost(None if number is None else SlurmId(number), CONFIRMED_LOST)
        for job_id, number in chosen.items()
    }
    after = ledger.record(*(Change(job_id, event) for job_id, event in events.items()))
    ledger.sweeps.ask("the operator confirmed that jobs are lost")
    return [job_id for job_id, job in after.items() if job != before.get(job_id)]


def accept_slurm(ledger: Ledger) -> None:
    """SLURM is what was found in its place, and what it has forgotten up to now is lost: submissions go on."""
    seen = ledger.facts.get(SLURM_SEEN)
    if seen is not None:
        ledger.facts.set(SLURM_IS, seen)
        ledger.facts.clear_if(SLURM_SEEN, seen)
    ledger.facts.set(SLURM_ACCEPTED, secrets.token_hex(8))  # another value each time: it is the moment that counts
    ledger.switches.unset(Switch.SUBMISSIONS_HELD)
    for alarm in (AlarmName.SLURM_IS_ANOTHER, AlarmName.SLURM_FORGOT):
        ledger.alarms.off(alarm)
    ledger.sweeps.ask(ACCEPTED)
