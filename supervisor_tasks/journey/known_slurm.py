"""Which SLURM the ledger's jobs are in. Whoever is about to work with SLURM makes sure first that it is that one: a login node
of another cluster, or of none of ours, knows nothing of our jobs, and whatever it says of them is void.
"""

import time

from supervisor_tasks.errors import TransientError
from supervisor_tasks.ledger.facts import SLURM_BOOT, SLURM_IS, SLURM_SEEN, SLURM_START, SlurmStart
from supervisor_tasks.ledger.operator import AlarmName, Switch
from supervisor_tasks.ledger.store import Ledger
from supervisor_tasks.site import Site
from supervisor_tasks.slurm.cluster import Controller
from supervisor_tasks.slurm.which import Which

JUST_STARTED_S = 60.0  # it is asked every 20 s
ASKED_AGAIN_S = 60.0  # a process asks again which SLURM it reaches


class AnotherSlurmError(TransientError):
    """It is another SLURM than the ledger's; nothing is done there before the operator says so."""


class SubmissionsHeldError(TransientError):
    """Nothing is submitted before the operator says so."""


def require_known(site: Site) -> None:
    """Make sure that this process reaches the ledger's SLURM; it asks once a minute. Raises AnotherSlurmError,
    SlurmUnavailableError or SshUnavailableError.
    """
    met = site.slurm.met
    if time.monotonic() - met.at_s >= ASKED_AGAIN_S:
        recognise(site, site.slurm.cluster.controller())


def recognise(site: Site, controller: Controller) -> None:
    """Compare a slurmctld that answered with what the ledger knows; the first one is learnt. Raises AnotherSlurmError."""
    facts, found = site.ledger.facts, controller.which
    known = facts.get(SLURM_IS)
    if known is not None and not found.is_the_same_as(Which.told(known)):
        facts.set(SLURM_SEEN, str(found))
        address = site.slurm.cluster.ssh.address
        advice = "look at SLURM_SSH_ADDRESS; if the cluster is what it should be, `supervisor slurm accept`"
        site.ledger.alarms.on(AlarmName.SLURM_IS_ANOTHER, at=address, found=str(found), expected=known, advice=advice)
        site.slurm.met.at_s = float("-inf")
        raise AnotherSlurmError(f"found the SLURM cluster {found} at {address}; expected {known}")
    facts.set(SLURM_IS, str(found))
    if (seen := facts.get(SLURM_SEEN)) is not None:
        facts.clear_if(SLURM_SEEN, seen)
    site.ledger.alarms.off(AlarmName.SLURM_IS_ANOTHER)
    site.slurm.met.at_s = time.monotonic()


def learn_start(ledger: Ledger, controller: Controller, silent_s: float, now_s: float) -> None:
    """Write down that slurmctld was started again, for how long it had not been asked before, and which id it began with; a
    sweep is to look what it has forgotten. `now_s` is the site's time. The first comes last: without the others nothing is
    taken for granted of what slurmctld had saved, and it is no news any more, for which nobody would ask for a sweep.
    """
    booted, known = controller.booted, ledger.facts.get(SLURM_BOOT)
    if is_to_be_learnt(booted, known, ledger.facts.get(SLURM_START)):
        ledger.facts.set(SLURM_START, SlurmStart(booted, float(round(silent_s)), first_id(controller, now_s)))
    if known != booted:
        ledger.sweeps.ask(f"slurmctld runs since {booted}")
    ledger.facts.set(SLURM_BOOT, booted)


def first_id(controller: Controller, now_s: float) -> int:
    """The id that a slurmctld began with; 0 when it was not asked soon enough: one that lost its memory gives ids, too."""
    booted_s = int(controller.booted) if controller.booted.isdecimal() else 0
    return controller.next_id if abs(now_s - booted_s) <= JUST_STARTED_S else 0


def is_to_be_learnt(booted: str, known: str | None, start: SlurmStart | None) -> bool:
    """Whether the silence before a start of slurmctld must be written down: of a new start, or where none is known."""
    return known != booted or start is None


def require_not_held(ledger: Ledger) -> None:
    """Raises SubmissionsHeldError while submissions are held."""
    if ledger.switches.is_set(Switch.SUBMISSIONS_HELD):
        raise SubmissionsHeldError("submissions are held: see `supervisor alarms`, then `supervisor slurm accept`")
