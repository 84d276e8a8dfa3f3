"""Check SLURM: does it answer? Without that nothing is claimed, registered or measured, and after a while the operator is
called; nobody gives up. Is it the SLURM that has the ledger's jobs (known_slurm.py)? And is it set up as our settings say?
"""

import structlog

from supervisor_tasks.errors import TransientError
from supervisor_tasks.jobs.oversize import forget_when_quiet
from supervisor_tasks.journey.drain import drain
from supervisor_tasks.journey.known_slurm import AnotherSlurmError, learn_start, recognise
from supervisor_tasks.journey.old_benchmarks import OLD_BENCHMARKS, cancel_old_benchmarks
from supervisor_tasks.ledger.facts import SLURM_REMEMBERS
from supervisor_tasks.ledger.operator import AlarmName, finished_tick
from supervisor_tasks.ledger.provider import NODES
from supervisor_tasks.ledger.store import Ledger
from supervisor_tasks.monitoring.slurm_tries import ANSWERED, FAILED_TRIES, SEEN, TRIES, check_is_due
from supervisor_tasks.site import Site

log = structlog.get_logger()

KNOWN_FOR_S = 90.0  # so old an answer still says that SLURM works
SILENT_S = 60.0  # slurmctld may be started anew: it is missed, and soon back; the operator is called after that
SENSIBLE_AGE_S = 90  # a slurmctld that forgets sooner what has ended may forget it between two sweeps


def slurm_works(ledger: Ledger) -> bool:
    """Whether SLURM is known to work: it has answered since this ledger began, not long ago, and nothing has failed since.
    Whoever begins something new asks this; what is under way goes on.
    """
    answered_s = ledger.ticks.age_s(ANSWERED)
    return answered_s is not None and answered_s <= KNOWN_FOR_S


def count_anew(ledger: Ledger) -> None:
    """A worker starts: SLURM is asked at once, its tries are counted anew, and old benchmarks are looked for."""
    ledger.facts.set(FAILED_TRIES, 0)
    ledger.facts.set(SEEN, False)
    ledger.facts.set(OLD_BENCHMARKS, True)


def check_slurm(site: Site) -> None:
    """Write down that SLURM answers, or that it does not; one worker at a time asks. Raises SlurmUnavailableError or
    SshUnavailableError.
    """
    if _due(site):
        drain(site.ledger, "check_slurm", lambda: _check(site))
    else:
        site.ledger.ticks.leave(finished_tick("check_slurm"))


def is_alarming(tries: int, seen: bool, silent_s: float | None) -> bool:
    """Whether the operator is called after so many tries; SLURM's last answer is `silent_s` ago."""
    return (silent_s is None or silent_s > SILENT_S) if seen else tries >= TRIES


def _due(site: Site) -> bool:
    ledger = site.ledger
    answered_s, seen = ledger.ticks.age_s(ANSWERED), ledger.facts.get(SEEN) or False
    return check_is_due(answered_s, seen, ledger.facts.read(FAILED_TRIES), site.slurm.try_every_s)


def _check(site: Site) -> bool:
    ledger = site.ledger
    try:
        controller, now_s = site.slurm.cluster.controller(), site.slurm.cluster.now_s()
    except TransientError as error:
        _missed(ledger, error)
        raise
    ledger.alarms.off(AlarmName.SLURM_NOT_ANSWERING)
    forget_when_quiet(ledger)
    try:
        recognise(site, controller)
    except AnotherSlurmError:
        ledger.ticks.remove(ANSWERED)  # nothing is claimed
        ledger.ticks.remove(NODES)
        raise
    ledger.ticks.leave(ANSWERED)
    if ledger.ticks.age_s(NODES) is None:
        site.sweep.wake("look_at_nodes")  # its nodes may be others now
    ledger.facts.set(FAILED_TRIES, 0)
    ledger.facts.set(SEEN, True)
    silent_s = ledger.ticks.age_s("check_slurm") or 0.0
    learn_start(ledger, controller, silent_s, now_s)
    _learn_memory(site, controller.min_job_age_s)
    if controller.accounting_unused:
        ledger.alarms.on(AlarmName.SLURM_ACCOUNTING_UNUSED, advice="SLURM has slurmdbd: set SLURM_ACCOUNTING=true")
    else:
        ledger.alarms.off(AlarmName.SLURM_ACCOUNTING_UNUSED)
    cancel_old_benchmarks(site)
    return False


def _learn_memory(site: Site, min_job_age_s: int) -> None:
    """Without accounting sweeps are as frequent as slurmctld is forgetful: the next one is not to be as late as the last one
    thought.
    """
    ledger = site.ledger
    if ledger.facts.get(SLURM_REMEMBERS) == min_job_age_s:
        return
    if site.slurm.cluster.paths.sacct is None:
        ledger.sweeps.ask(f"MinJobAge is {min_job_age_s} s")  # first: who dies in between has not learnt it
        if 0 < min_job_age_s < SENSIBLE_AGE_S:
            log.warning("min_job_age_is_short", min_job_age_s=min_job_age_s, expected_s=SENSIBLE_AGE_S)
    ledger.facts.set(SLURM_REMEMBERS, min_job_age_s)


def _missed(ledger: Ledger, error: TransientError) -> None:
    ledger.ticks.remove(ANSWERED)
    ledger.ticks.remove(NODES)
    tries = (ledger.facts.get(FAILED_TRIES) or 0) + 1
    ledger.facts.set(FAILED_TRIES, tries)
    silent_s = ledger.ticks.age_s("check_slurm")
    if is_alarming(tries, ledger.facts.get(SEEN) or False, silent_s):
        shown_s = None if silent_s is None else round(silent_s)
        ledger.alarms.on(AlarmName.SLURM_NOT_ANSWERING, silent_s=shown_s, tries=tries, error=str(error)[:500])
