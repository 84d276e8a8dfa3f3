"""Which SLURM has the ledger's jobs. Before a worker works with SLURM, it makes sure that it reaches that one. A login
node of another cluster, or of none of ours, knows nothing of our jobs, and its answers about them do not count.
"""

import time

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import TransientError
from supervisor_tasks.ledger.alarms import AlarmName, Switch
from supervisor_tasks.ledger.facts import SLURM_BOOT_TIME, SLURM_CLUSTER, SLURM_START, UNEXPECTED_CLUSTER, SlurmStart
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.slurm.cluster_identity import ClusterIdentity
from supervisor_tasks.slurm.interface import Controller

JUST_STARTED_S = 60.0  # slurmctld is asked every 20 s
ASKED_AGAIN_S = 60.0  # a process asks again which SLURM it reaches


class AnotherSlurmError(TransientError):
    """It is another SLURM than the ledger's. Nothing is done there until the operator accepts it."""


class SubmissionsHeldError(TransientError):
    """Submissions are held. A retry helps once the operator, or the sweep that set the hold, has ended it."""


def require_expected_cluster(context: WorkerContext) -> None:
    """Make sure that this process reaches the ledger's SLURM; it asks SLURM once a minute. Raises AnotherSlurmError,
    SlurmUnavailableError or SshUnavailableError.
    """
    met = context.slurm.met
    if time.monotonic() - met.at_s >= ASKED_AGAIN_S:
        recognise(context, context.slurm.cluster.controller())


def recognise(context: WorkerContext, controller: Controller) -> None:
    """Compare a slurmctld that answered with the one that the ledger knows; the first one is stored. Raises
    AnotherSlurmError.
    """
    facts, found = context.ledger.facts, controller.identity
    known = facts.get(SLURM_CLUSTER)
    if known is not None and not found.is_the_same_as(ClusterIdentity.parse(known)):
        facts.set(UNEXPECTED_CLUSTER, str(found))
        address = context.slurm.cluster.address
        advice = "look at SLURM_SSH_ADDRESS or SLURMRESTD_URL; if the cluster is what it should be, `supervisor cluster accept`"
        context.ledger.alarms.on(
            AlarmName.SLURM_CLUSTER_MISMATCH, at=address, found=str(found), expected=known, advice=advice
        )
        context.slurm.met.at_s = float("-inf")
        raise AnotherSlurmError(f"found the SLURM cluster {found} at {address}; expected {known}")
    facts.set(SLURM_CLUSTER, str(found))
    if (seen := facts.get(UNEXPECTED_CLUSTER)) is not None:
        facts.clear_if(UNEXPECTED_CLUSTER, seen)
    context.ledger.alarms.off(AlarmName.SLURM_CLUSTER_MISMATCH)
    context.slurm.met.at_s = time.monotonic()


def record_controller_start(ledger: Ledger, controller: Controller, silent_s: float, now_s: float) -> None:
    """Store that slurmctld was started again, for how long it had not been asked before, and which id it began with.
    Ask for a sweep, which checks what slurmctld has forgotten. `now_s` is the site's time. The start itself is stored
    last. If the worker died after storing it first, no worker would see a new start and ask for a sweep, and what
    slurmctld had saved would stay unknown.
    """
    booted, known = controller.booted, ledger.facts.get(SLURM_BOOT_TIME)
    if is_to_be_learnt(booted, known, ledger.facts.get(SLURM_START)):
        ledger.facts.set(SLURM_START, SlurmStart(booted, float(round(silent_s)), first_id(controller, now_s)))
    if known != booted:
        ledger.sweeps.ask(f"slurmctld runs since {booted}")
    ledger.facts.set(SLURM_BOOT_TIME, booted)


def first_id(controller: Controller, now_s: float) -> int:
    """Return the id that a slurmctld began with; 0 if it was not asked soon enough. It may have given ids by then, also
    after it lost its state.
    """
    booted_s = int(controller.booted) if controller.booted.isdecimal() else 0
    return controller.next_id if abs(now_s - booted_s) <= JUST_STARTED_S else 0


def is_to_be_learnt(booted: str, known: str | None, start: SlurmStart | None) -> bool:
    """Whether the silence before a start of slurmctld must be stored: the start is new, or no start is known."""
    return known != booted or start is None


def require_not_held(ledger: Ledger) -> None:
    """Raises SubmissionsHeldError while submissions are held."""
    if ledger.switches.is_set(Switch.SUBMISSIONS_PAUSED):
        raise SubmissionsHeldError(
            "submissions are held: see `supervisor alarm list`, then `supervisor cluster accept`"
        )
