"""Which SLURM has the ledger's jobs. Before a worker works with SLURM, it makes sure
that it reaches that one.

A login node of another cluster has none of our jobs, and its answers about them do not
count.
"""

import time

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import TransientError
from supervisor_tasks.ledger.facts import (
    SLURM_BOOT_TIME,
    SLURM_CLUSTER,
    SLURM_START,
    UNEXPECTED_CLUSTER,
    SlurmStart,
)
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.switch_names import PAUSED_ERROR, Switch, is_pause_of_sweep
from supervisor_tasks.slurm.cluster_identity import ClusterIdentity
from supervisor_tasks.slurm.interface import Controller

# a slurmctld that started at most so long ago counts as just started
JUST_STARTED_S = 60.0
ASKED_AGAIN_S = 60.0  # after so long a process checks again which SLURM it reaches


class AnotherSlurmError(TransientError):
    """The worker reaches another SLURM than the ledger's. Workers do nothing there
    until the operator accepts it.
    """


class SubmissionsPausedError(TransientError):
    """Submissions are paused. A retry helps once the operator, or the sweep that paused
    them, has ended the pause.
    """


def require_expected_cluster(context: WorkerContext) -> None:
    """Make sure that this process reaches the ledger's SLURM; it asks SLURM every
    ASKED_AGAIN_S.

    Raises AnotherSlurmError (a retry helps once the operator accepts the cluster),
    SlurmUnavailableError or SshUnavailableError (a retry helps).
    """
    if time.monotonic() - context.slurm.last_check.checked_at_s >= ASKED_AGAIN_S:
        compare_cluster(context, context.slurm.cluster.site.controller())


def compare_cluster(context: WorkerContext, controller: Controller) -> None:
    """Compare the SLURM that answered with the one that the ledger has stored; store
    the first one.

    Raises AnotherSlurmError; a retry helps once the operator accepts the cluster.
    """
    facts = context.ledger.facts
    found, expected = controller.identity, facts.get(SLURM_CLUSTER)
    if expected is not None and not found.is_the_same_as(
        ClusterIdentity.parse(expected)
    ):
        facts.set(UNEXPECTED_CLUSTER, str(found))
        address = context.slurm.cluster.address
        advice = "check SLURM_SSH_ADDRESS or SLURMRESTD_URL; if this is the right cluster, `supervisor cluster accept`"
        context.ledger.alarms.on(
            AlarmName.SLURM_CLUSTER_MISMATCH,
            at=address,
            found=str(found),
            expected=expected,
            advice=advice,
        )
        context.slurm.last_check.checked_at_s = float("-inf")
        raise AnotherSlurmError(
            f"found the SLURM cluster {found} at {address}; expected {expected}"
        )
    facts.set(SLURM_CLUSTER, str(found))
    unexpected = facts.get(UNEXPECTED_CLUSTER)
    if unexpected is not None:
        facts.clear_if(UNEXPECTED_CLUSTER, unexpected)
    context.ledger.alarms.off(AlarmName.SLURM_CLUSTER_MISMATCH)
    context.slurm.last_check.checked_at_s = time.monotonic()


def record_controller_start(
    ledger: Ledger, controller: Controller, silent_s: float, now_s: float
) -> None:
    """Store that slurmctld has restarted, for how long no worker had checked it before,
    and the first id that it gives.

    Request a sweep, which checks what slurmctld has forgotten. `now_s` is the site's
    time. The boot time is stored last. If a worker stored it first and died, no worker
    would see a new start and request the sweep. What slurmctld had saved would stay
    unknown.

    Raises LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    booted, stored_boot = controller.booted, ledger.facts.get(SLURM_BOOT_TIME)
    if is_unrecorded_start(booted, stored_boot, ledger.facts.get(SLURM_START)):
        ledger.facts.set(
            SLURM_START,
            SlurmStart(booted, float(round(silent_s)), first_id(controller, now_s)),
        )
    if stored_boot != booted:
        ledger.reconciliations.request(f"slurmctld runs since {booted}")
    ledger.facts.set(SLURM_BOOT_TIME, booted)


def first_id(controller: Controller, now_s: float) -> int:
    """Return the first id that a slurmctld gives after its start; 0 if this check did
    not come within JUST_STARTED_S.

    A slurmctld that started earlier may have given ids since then, also after it lost
    its state.
    """
    booted_s = int(controller.booted) if controller.booted.isdecimal() else 0
    if abs(now_s - booted_s) > JUST_STARTED_S:
        return 0
    return controller.next_id


def is_unrecorded_start(
    booted: str, known: str | None, start: SlurmStart | None
) -> bool:
    """Return whether the silence before a start of slurmctld must be stored: the start
    is new, or none is stored.
    """
    return known != booted or start is None


def require_not_paused(ledger: Ledger) -> None:
    """Raise SubmissionsPausedError while submissions are paused; a retry helps when
    they no longer are.
    """
    reason = ledger.switches.reason(Switch.SUBMISSIONS_PAUSED)
    if reason is None:
        return
    if is_pause_of_sweep(reason):
        advice = "see `supervisor alarm list`, then `supervisor cluster accept`"
    else:
        advice = "`supervisor submissions resume` ends the pause"
    raise SubmissionsPausedError(f"{PAUSED_ERROR}{reason}): {advice}")
