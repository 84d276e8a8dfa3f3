"""Check SLURM: does it answer? Without that nothing is claimed, registered or measured, and after a while the operator is
called; nobody gives up. And is it set up as our settings say?
"""

from supervisor_tasks.errors import TransientError
from supervisor_tasks.journey.drain import drain
from supervisor_tasks.journey.old_benchmarks import OLD_BENCHMARKS, cancel_old_benchmarks
from supervisor_tasks.ledger.operator import AlarmName, finished_tick
from supervisor_tasks.ledger.store import Ledger
from supervisor_tasks.ledger.sweeps import SLURM_BOOT
from supervisor_tasks.site import Site

ANSWERED = "slurm"  # the tick that is there while SLURM answers
MISSED = "SLURM is missed, tries"  # the fact that so many tries since the last answer, or since a start, were in vain
CHECK_EVERY_S = 20.0  # while it answers
KNOWN_FOR_S = 90.0  # so old an answer still says that SLURM works
SILENT_S = 60.0  # slurmctld may be started anew: it is missed, tried whenever the clock says so, and soon back
TRIES = 10  # SLURM_TRY_EVERY_S apart; then the operator is called
SLOWLY = 3  # so much longer are the intervals from then on


def slurm_works(ledger: Ledger) -> bool:
    """Whether SLURM is known to work: it has answered since this ledger began, not long ago, and nothing has failed since.
    Whoever begins something new asks this; what is under way goes on.
    """
    answered_s = ledger.ticks.age_s(ANSWERED)
    return answered_s is not None and answered_s <= KNOWN_FOR_S


def check_slurm(site: Site, *, starting: bool = False) -> None:
    """Write down that SLURM answers, or that it does not; one worker at a time asks. A worker that is `starting` begins to
    count anew. Raises SlurmUnavailableError or SshUnavailableError.
    """
    if starting:
        site.ledger.sweeps.learn(MISSED, "0")
        site.ledger.sweeps.learn(OLD_BENCHMARKS, "wanted")
    if starting or _due(site):
        drain(site.ledger, "check_slurm", lambda: _check(site))
    else:
        site.ledger.ticks.leave(finished_tick("check_slurm"))


def next_try_s(tries: int, silent_s: float | None, every_s: float) -> float:
    """How long after a try in vain, of so many, the next one is made; SLURM's last answer is `silent_s` ago."""
    if not tries or _may_be_a_restart(silent_s):
        return 0.0
    return every_s if tries < TRIES else SLOWLY * every_s


def is_alarming(tries: int, silent_s: float | None) -> bool:
    """Whether the operator is called after so many tries."""
    return tries >= TRIES and not _may_be_a_restart(silent_s)


def _may_be_a_restart(silent_s: float | None) -> bool:
    return silent_s is not None and silent_s <= SILENT_S


def _due(site: Site) -> bool:
    answered_s = site.ledger.ticks.age_s(ANSWERED)
    if answered_s is not None:
        return answered_s >= CHECK_EVERY_S
    tries, tried_s = _tries(site.ledger)
    return tried_s >= next_try_s(tries, site.ledger.ticks.age_s("check_slurm"), site.slurm.try_every_s)


def _tries(ledger: Ledger) -> tuple[int, float]:
    """How many tries in a row were in vain, and how long ago the last one was."""
    value, age_s = ledger.sweeps.fact(MISSED) or ("0", 0.0)
    return int(value), age_s


def _check(site: Site) -> bool:
    ledger = site.ledger
    try:
        controller = site.slurm.cluster.controller()
    except TransientError as error:
        _missed(ledger, error)
        raise
    ledger.ticks.leave(ANSWERED)
    ledger.sweeps.learn(MISSED, "0")
    if ledger.sweeps.learn(SLURM_BOOT, controller.booted):
        ledger.sweeps.ask(f"slurmctld runs since {controller.booted}")
    ledger.alarms.off(AlarmName.SLURM_NOT_ANSWERING)
    if controller.accounting_unused:
        ledger.alarms.on(AlarmName.SLURM_ACCOUNTING_UNUSED, advice="SLURM has slurmdbd: set SLURM_ACCOUNTING=true")
    else:
        ledger.alarms.off(AlarmName.SLURM_ACCOUNTING_UNUSED)
    cancel_old_benchmarks(site)
    return False


def _missed(ledger: Ledger, error: TransientError) -> None:
    ledger.ticks.remove(ANSWERED)
    tries = _tries(ledger)[0] + 1
    ledger.sweeps.learn(MISSED, str(tries))
    silent_s = ledger.ticks.age_s("check_slurm")
    if is_alarming(tries, silent_s):
        shown_s = None if silent_s is None else round(silent_s)
        ledger.alarms.on(AlarmName.SLURM_NOT_ANSWERING, silent_s=shown_s, tries=tries, error=str(error)[:500])
