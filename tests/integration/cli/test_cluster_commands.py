"""The commands for a cluster: which SLURM is the expected one, and which one has the
wallet.
"""

import re
from collections.abc import Callable

import pytest
from sqlalchemy import Engine

from devgrid.machine import deadline
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.ledger.facts import (
    SLURM_ACCEPTED,
    SLURM_CLUSTER,
    UNEXPECTED_CLUSTER,
)
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.switch_names import Switch
from tests.support.operator_commands import WALLET, Run, in_terminal, left_by_a_fleet


def test_accept__operator_has_paused_submissions__leaves_that_pause(
    run: Run, ledger: Ledger
) -> None:
    run("submissions", "pause", "--reason", "upgrade", "--yes")
    assert "submissions resume" in run("cluster", "accept", "--yes", status=1).stderr
    assert ledger.switches.reason(Switch.SUBMISSIONS_PAUSED) == "upgrade"
    ledger.alarms.on(AlarmName.SLURM_STATE_LOST)  # SLURM loses its state meanwhile
    run("cluster", "accept", "--yes")
    assert AlarmName.SLURM_STATE_LOST not in {
        alarm.name for alarm in ledger.alarms.all()
    }
    assert ledger.switches.reason(Switch.SUBMISSIONS_PAUSED) == "upgrade"


def sees_another(cluster: str) -> Callable[[Ledger], None]:
    def see(ledger: Ledger) -> None:
        ledger.facts.set(UNEXPECTED_CLUSTER, cluster)

    return see


def sees_the_right_one_again(ledger: Ledger) -> None:
    ledger.facts.clear(UNEXPECTED_CLUSTER)


def loses_its_state(ledger: Ledger) -> None:
    ledger.alarms.on(AlarmName.SLURM_STATE_LOST)


def knows_its_jobs_again(ledger: Ledger) -> None:
    ledger.alarms.off(AlarmName.SLURM_STATE_LOST)


@pytest.mark.parametrize(
    ("before", "meanwhile", "refusal"),
    [
        (
            sees_another("bern 2"),
            sees_another("zug 3"),
            "found zug 3; expected bern 2, which the command has shown",
        ),
        (
            sees_another("bern 2"),
            sees_the_right_one_again,
            "found no other SLURM, and none that has lost its state",
        ),
        (
            loses_its_state,
            sees_another("zug 3"),
            "found zug 3; expected no other SLURM, which the command has shown",
        ),
        (
            loses_its_state,
            knows_its_jobs_again,
            "found no other SLURM, and none that has lost its state",
        ),
    ],
    ids=["another", "the right one", "another after a loss", "no loss"],
)
def test_accept__slurm_is_another_while_the_command_asks__is_refused(
    ledger: Ledger,
    migrated_ledger: tuple[Engine, dict[str, str]],
    before: Callable[[Ledger], None],
    meanwhile: Callable[[Ledger], None],
    refusal: str,
) -> None:
    """The command accepted what a worker had found meanwhile, and had shown another."""
    ledger.facts.set(SLURM_CLUSTER, "geneva 1")
    before(ledger)
    with in_terminal(("cluster", "accept"), migrated_ledger[1]) as screen:
        screen.wait_for("Go on? [y/N]")
        meanwhile(ledger)
        seen = ledger.facts.get(UNEXPECTED_CLUSTER)
        screen.press("y\n", refusal)
        assert screen.process.wait(deadline(30)) == 1
    assert ledger.facts.get(SLURM_CLUSTER) == "geneva 1"
    assert ledger.facts.get(UNEXPECTED_CLUSTER) == seen
    assert ledger.facts.get(SLURM_ACCEPTED) is None


def test_accept__slurm_is_as_shown__becomes_the_expected_one(
    run: Run, ledger: Ledger
) -> None:
    ledger.facts.set(SLURM_CLUSTER, "geneva 1")
    ledger.facts.set(UNEXPECTED_CLUSTER, "bern 2")
    ledger.alarms.on(AlarmName.SLURM_CLUSTER_MISMATCH)
    run("cluster", "accept", "--yes")
    assert ledger.facts.get(SLURM_CLUSTER) == "bern 2"
    assert ledger.facts.get(UNEXPECTED_CLUSTER) is None
    assert ledger.facts.get(SLURM_ACCEPTED) is not None
    assert ledger.alarms.all() == []


def test_cluster_release_wallet__its_fleet_is_gone__another_cluster_may_have_it(
    run: Run, ledger: Ledger
) -> None:
    left_by_a_fleet(ledger, 61)
    assert WALLET in run("cluster", "show").stdout
    run("cluster", "release-wallet", "--yes", "--reason", "renamed")
    assert ledger.wallets.held() is None
    Ledger(ledger.engine, "there", lambda _: None).wallets.hold(1, WALLET, shared=False)


def test_cluster_release_wallet__its_fleet_is_at_work__is_refused(
    run: Run, ledger: Ledger
) -> None:
    left_by_a_fleet(ledger, 5)
    refused = run("cluster", "release-wallet", "--yes", status=1)
    told = r"at work \d+ s ago; expected none for 60 s: stop its workers and beat first"
    assert re.search(told, refused.output)  # the command takes its time
    assert ledger.wallets.held() is not None


def test_cluster_release_wallet__it_holds_none__is_told(run: Run) -> None:
    assert (
        "there is nothing to release"
        in run("cluster", "release-wallet", "--yes", status=1).output
    )
