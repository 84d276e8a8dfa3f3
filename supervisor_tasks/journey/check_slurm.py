"""Check SLURM: does it answer? Without that nothing is claimed, and after a while the operator is called. And is it set up as
our settings say?
"""

from supervisor_tasks.errors import TransientError
from supervisor_tasks.journey.drain import drain
from supervisor_tasks.ledger.operator import AlarmName, finished_tick
from supervisor_tasks.ledger.store import Ledger
from supervisor_tasks.ledger.sweeps import SLURM_BOOT
from supervisor_tasks.site import Site

ANSWERED = "slurm"  # the tick that is there while SLURM answers
CHECK_EVERY_S = 20.0  # while it answers; while it does not, whenever the clock says so: it is missed, and soon back
KNOWN_FOR_S = 90.0  # so old an answer still says that SLURM works
SILENT_S = 60.0  # a restart of slurmctld is no alarm


def slurm_works(ledger: Ledger) -> bool:
    """Whether SLURM is known to work: it has answered since this ledger began, not long ago, and nothing has failed since.
    Whoever begins something new asks this; what is under way goes on.
    """
    answered_s = ledger.ticks.age_s(ANSWERED)
    return answered_s is not None and answered_s <= KNOWN_FOR_S


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
    ledger.ticks.leave(ANSWERED)
    if ledger.sweeps.learn(SLURM_BOOT, controller.booted):
        ledger.sweeps.ask(f"slurmctld runs since {controller.booted}")
    ledger.alarms.off(AlarmName.SLURM_NOT_ANSWERING)
    if controller.accounting_unused:
        ledger.alarms.on(AlarmName.SLURM_ACCOUNTING_UNUSED, advice="SLURM has slurmdbd: set SLURM_ACCOUNTING=true")
    else:
        ledger.alarms.off(AlarmName.SLURM_ACCOUNTING_UNUSED)
    return False
