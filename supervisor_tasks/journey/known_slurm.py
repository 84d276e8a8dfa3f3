"""Which SLURM the ledger's jobs are in. Whoever is about to work with SLURM makes sure first that it is that one: a login node
of another cluster, or of none of ours, knows nothing of our jobs, and whatever it says of them is void.
"""

import time

from supervisor_tasks.errors import TransientError
from supervisor_tasks.ledger.operator import AlarmName, Switch
from supervisor_tasks.ledger.store import Ledger
from supervisor_tasks.ledger.sweeps import SLURM_BOOT, SLURM_IS, SLURM_SEEN, SLURM_SILENT
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
    sweeps, found = site.ledger.sweeps, controller.which
    known = sweeps.fact(SLURM_IS)
    if known is not None and not found.is_the_same_as(Which.told(known[0])):
        sweeps.learn(SLURM_SEEN, str(found))
        address = site.slurm.cluster.ssh.address
        advice = "look at SLURM_SSH_ADDRESS; if the cluster is what it should be, `supervisor slurm accept`"
        site.ledger.alarms.on(
            AlarmName.SLURM_IS_ANOTHER, at=address, found=str(found), expected=known[0], advice=advice
        )
        site.slurm.met.at_s = float("-inf")
        raise AnotherSlurmError(f"found the SLURM cluster {found} at {address}; expected {known[0]}")
    sweeps.learn(SLURM_IS, str(found))
    if (seen := sweeps.fact(SLURM_SEEN)) is not None:
        sweeps.forget(SLURM_SEEN, seen[0])
    site.ledger.alarms.off(AlarmName.SLURM_IS_ANOTHER)
    site.slurm.met.at_s = time.monotonic()


def learn_start(ledger: Ledger, controller: Controller, silent_s: float, now_s: float) -> None:
    """Write down that slurmctld was started again, for how long it had not been asked before, and which id it began with; a
    sweep is to look what it has forgotten. `now_s` is the site's time. The first comes last: without the others nothing is
    taken for granted of what slurmctld had saved, and it is no news any more, for which nobody would ask for a sweep.
    """
    booted = controller.booted
    known, silent = ledger.sweeps.fact(SLURM_BOOT), ledger.sweeps.fact(SLURM_SILENT)
    if is_to_be_learnt(booted, known and known[0], silent and silent[0]):
        ledger.sweeps.learn(SLURM_SILENT, f"{booted} {silent_s:.0f} {first_id(controller, now_s)}")
    if known is None or known[0] != booted:
        ledger.sweeps.ask(f"slurmctld runs since {booted}")
    ledger.sweeps.learn(SLURM_BOOT, booted)


def first_id(controller: Controller, now_s: float) -> int:
    """The id that a slurmctld began with; 0 when it was not asked soon enough: one that lost its memory gives ids, too."""
    booted_s = int(controller.booted) if controller.booted.isdecimal() else 0
    return controller.next_id if abs(now_s - booted_s) <= JUST_STARTED_S else 0


def is_to_be_learnt(booted: str, known: str | None, silent: str | None) -> bool:
    """Whether the silence before a start of slurmctld is to be written down: of a new one, or where nothing is known of any."""
    return known != booted or silent is None


def require_not_held(ledger: Ledger) -> None:
    """Raises SubmissionsHeldError while submissions are held."""
    if ledger.switches.is_set(Switch.SUBMISSIONS_HELD):
        raise SubmissionsHeldError("submissions are held: see `supervisor alarms`, then `supervisor slurm accept`")
