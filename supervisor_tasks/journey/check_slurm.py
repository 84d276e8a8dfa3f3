"""Check SLURM: does it answer? Without that nothing is claimed, and after a while the operator is called. Is it the
SLURM that has the ledger's jobs (known_slurm.py)? And is it set up as our settings say?
"""

from supervisor_tasks.errors import TransientError
from supervisor_tasks.journey.drain import drain
from supervisor_tasks.journey.known_slurm import AnotherSlurmError, learn_start, recognise
from supervisor_tasks.ledger.operator import AlarmName, finished_tick
from supervisor_tasks.site import Site

ANSWERED = "slurm"  # the tick that is there while SLURM answers
CHECK_EVERY_S = 20.0  # while it answers; while it does not, whenever the clock says so: it is missed, and soon back
SILENT_S = 60.0  # a restart of slurmctld is no alarm


def check_slurm(site: Site) -> None:
    """Write down that SLURM answers, or that it does not; one worker at a time asks. Raises SlurmUnavailableError or
    SshUnavailableError.
    """
    answered_s = site.ledger.ticks.age_s(ANSWERED)
    if answered_s is None or answered_s >= CHECK_EVERY_S:
        drain(site.ledger, "check_slurm", lambda: _check(site))
    else:
        site.ledger.ticks.leave(finished_tick("check_slurm"))


def _check(site: Site) -> bool:
    ledger = site.ledger
    try:
        controller = site.slurm.cluster.controller()
    except TransientError as error:
        ledger.ticks.remove(ANSWERED)
        silent_s = ledger.ticks.age_s("check_slurm")
        if silent_s is None or silent_s > SILENT_S:
            shown_s = None if silent_s is None else round(silent_s)
            ledger.alarms.on(AlarmName.SLURM_NOT_ANSWERING, silent_s=shown_s, error=str(error)[:500])
        raise
    ledger.alarms.off(AlarmName.SLURM_NOT_ANSWERING)
    try:
        recognise(site, controller)
    except AnotherSlurmError:
        ledger.ticks.remove(ANSWERED)  # nothing is claimed
        raise
    ledger.ticks.leave(ANSWERED)
    if learn_start(ledger, controller, ledger.ticks.age_s("check_slurm") or 0.0):
        ledger.sweeps.ask(f"slurmctld runs since {controller.booted}")
    if controller.accounting_unused:
        ledger.alarms.on(AlarmName.SLURM_ACCOUNTING_UNUSED, advice="SLURM has slurmdbd: set SLURM_ACCOUNTING=true")
    else:
        ledger.alarms.off(AlarmName.SLURM_ACCOUNTING_UNUSED)
    return False
