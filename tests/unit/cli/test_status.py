"""What `supervisor status` says of the claims, the chain, the queues and the wallet."""

from dataclasses import replace
from typing import Any

import pytest

from supervisor_tasks.alarms.alarm_names import Alarm, AlarmName
from supervisor_tasks.cli.claim_stops import why_no_claims
from supervisor_tasks.cli.status import StatusProblems, WalletSummary, facts_of
from supervisor_tasks.ledger.periodic_run_names import SCANNED, finished_key
from supervisor_tasks.ledger.reconciliations import Reconciliation
from supervisor_tasks.ledger.status_queries import StatusSummary, StoredReading
from supervisor_tasks.monitoring.slurm_tries import SLURM_ANSWERED
from supervisor_tasks.provider.registration_rules import RegistrationStatus
from tests.support.golden_cases import NOW, a_summary

EMPTY = WalletSummary(0, 0, 0)
RUN_AGES_S = {"claim": 0.5, finished_key("claim"): 0.5, SLURM_ANSWERED: 1.0}
CLAIMS = replace(
    a_summary(),
    claiming_paused=False,
    alarms=[],
    periodic_run_ages_s=RUN_AGES_S,
    claimable=StoredReading(0, 1.0),
)


def alarm(name: AlarmName) -> list[Alarm]:
    return [Alarm(name, {}, NOW)]


def shown(snapshot: StatusSummary, name: str) -> str:
    return facts_of(snapshot, StatusProblems([], why_no_claims(snapshot, 1.0), EMPTY))[
        name
    ].text


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "on"),
        ({"claiming_paused": True}, "paused by an operator"),
        ({"submissions_paused": True}, "stopped: submissions are paused"),
        ({"claimable": StoredReading(2, 1.0)}, "on; 2 jobs wait on the contract"),
        ({"claimable": None}, "on"),
        (
            {
                "alarms": alarm(AlarmName.WALLET_EMPTY),
                "claimable": StoredReading(1, 1.0),
            },
            "stopped: alarm wallet_empty; 1 job waits on the contract",
        ),
        (
            {"claiming_paused": True, "claimable": StoredReading(7, 95.0)},
            "paused by an operator; 7 jobs wait on the contract; seen 1m35s ago",
        ),
        ({"alarms": alarm(AlarmName.WALLET_EMPTY)}, "stopped: alarm wallet_empty"),
        (
            {"alarms": alarm(AlarmName.CLAIMS_FULL)},
            "stopped: as many jobs wait as may (CLAIM_MAX_WAITING)",
        ),
        (
            {"alarms": alarm(AlarmName.CLAIMS_REVERTING)},
            "one is tried a minute: alarm claims_reverting",
        ),
        ({"alarms": alarm(AlarmName.EFFECT_PARKED)}, "on"),
        (
            {"periodic_run_ages_s": RUN_AGES_S | {SLURM_ANSWERED: 91.0}},
            "stopped: SLURM does not answer",
        ),
        (
            {
                "periodic_run_ages_s": {"claim": 0.5, finished_key("claim"): 0.5},
                "alarms": alarm(AlarmName.SLURM_NOT_ANSWERING),
            },
            "stopped: SLURM does not answer",
        ),
        (
            {"periodic_run_ages_s": RUN_AGES_S | {"claim": 61.0}},
            "stopped: the chain does not answer (last 1m01s ago)",
        ),
        (
            {
                "periodic_run_ages_s": RUN_AGES_S
                | {"claim": 61.0, finished_key("claim"): 61.0}
            },
            "stopped: no worker looks at the chain (last 1m01s ago)",
        ),
        (
            {"periodic_run_ages_s": {SLURM_ANSWERED: 1.0}},
            "stopped: no worker looks at the chain",
        ),
        (
            {"registration_status": RegistrationStatus.BANNED},
            "stopped: the provider is banned",
        ),
        (
            {"registration_status": None},
            "stopped: the registration's status is not known yet",
        ),
        (
            {"submissions_paused": True, "alarms": alarm(AlarmName.TRANSACTION_STUCK)},
            "stopped: submissions are paused; alarm transaction_stuck",
        ),
    ],
)
def test_claims__each_state_that_stops_them__is_told(
    changes: dict[str, Any], told: str
) -> None:
    assert shown(replace(CLAIMS, **changes), "claims") == told


@pytest.mark.parametrize(
    ("changes", "head", "read_up_to"),
    [
        (
            {},
            "block 120045",
            "block 120042, 3 blocks behind the head; at the head 4s ago",
        ),
        (
            {"head": StoredReading(120043, 2.0)},
            "block 120043",
            "block 120042, 1 block behind the head; at the head 4s ago",
        ),
        (
            {"head": StoredReading(120041, 2.0)},
            "block 120042",
            "block 120042, 0 blocks behind the head; at the head 4s ago",
        ),
        (
            {"head": StoredReading(120045, 95.0)},
            "block 120045; seen 1m35s ago",
            "block 120042, 3 blocks behind the head; at the head 4s ago",
        ),
        (
            {"head": None},
            "no worker has seen it yet",
            "block 120042; at the head 4s ago",
        ),
        ({"cursors": {}}, "block 120045", "nothing yet"),
    ],
)
def test_chain__head_and_lag__are_in_blocks(
    changes: dict[str, Any], head: str, read_up_to: str
) -> None:
    snapshot = replace(a_summary(), **{"periodic_run_ages_s": {SCANNED: 4.0}} | changes)
    assert (shown(snapshot, "chain head"), shown(snapshot, "chain read up to")) == (
        head,
        read_up_to,
    )


@pytest.mark.parametrize(
    ("report", "told"),
    [
        ({}, "ended 14m00s ago"),
        ({"found": {}}, "ended 14m00s ago"),
        (
            {"found": {"missing": 2}},
            "ended 14m00s ago, found 2 missing in SLURM: `supervisor sweep show`",
        ),
    ],
)
def test_last_sweep__what_it_has_found__is_told(
    report: dict[str, Any], told: str
) -> None:
    assert (
        shown(
            replace(a_summary(), last_sweep=Reconciliation(NOW, NOW, report, 1)),
            "last sweep",
        )
        == told
    )


@pytest.mark.parametrize(
    ("queues", "told"),
    [
        ({}, "beat has not counted the messages yet"),
        (
            {"chain": StoredReading(2, 5.0), "slurm": StoredReading(310, 5.0)},
            "messages: chain 2, slurm 310",
        ),
        ({"chain": StoredReading(2, 31.0)}, "messages: chain 2; seen 31s ago"),
    ],
)
def test_queues__lengths__are_told_with_their_age_when_they_are_old(
    queues: dict[str, StoredReading], told: str
) -> None:
    assert shown(replace(a_summary(), queues=queues), "queues") == told


def test_status__of_a_wallet_that_has_signed_nothing__says_what_it_holds() -> None:
    assert (
        shown(replace(a_summary(), wallet=None), "wallet")
        == "has signed nothing yet, holds 0 wei for gas"
    )
