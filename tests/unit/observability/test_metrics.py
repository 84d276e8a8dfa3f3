"""What the ledger's exporter shows for a reading, as tables."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from supervisor_tasks.alarms.alarm_names import Alarm, AlarmName
from supervisor_tasks.errors import TransientError
from supervisor_tasks.jobs.model import EffectKind, State
from supervisor_tasks.ledger.facts import Balance
from supervisor_tasks.ledger.figures import Figures, Moments
from supervisor_tasks.ledger.reconciliations import Reconciliation
from supervisor_tasks.ledger.status_queries import (
    EffectCount,
    StatusSummary,
    StoredReading,
    Writer,
)
from supervisor_tasks.ledger.transaction_names import OPEN_STATES
from supervisor_tasks.observability.metrics import (
    EFFECT_STATES,
    KEPT_S,
    MESSAGE_STATES,
    CachedReading,
    LedgerMetrics,
    LedgerReading,
)
from supervisor_tasks.provider.registration_rules import RegistrationStatus

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
EMPTY = StatusSummary(
    cluster="main",
    jobs={},
    effects=[],
    unread_callbacks={},
    oldest_unread_s=0.0,
    transactions={},
    oldest_transaction_s=0.0,
    wallet=None,
    cursors={},
    periodic_run_ages_s={},
    alarms=[],
    claiming_paused=False,
    submissions_paused=False,
    last_sweep=None,
    since_sweep_s=0.0,
)
FULL = StatusSummary(
    cluster="main",
    jobs={"QUEUED": 2},
    effects=[EffectCount(EffectKind.SUBMIT.value, 3, 1, 0, 2, 1, 40.0, 40.0)],
    unread_callbacks={4: 2, 7: 5},
    oldest_unread_s=1.0,
    transactions={"SENT": 3},
    oldest_transaction_s=1.0,
    wallet=Writer("0xab", 1, 12),
    cursors={"contract": 40},
    periodic_run_ages_s={},
    alarms=[
        Alarm(AlarmName.WALLET_EMPTY, {}, NOON),
        Alarm("alarm_of_another_release", {}, NOON),
    ],
    claiming_paused=True,
    submissions_paused=False,
    last_sweep=Reconciliation(
        NOON,
        NOON,
        {"lost": 3, "why": "asked", "unreachable_since_s": {"slurm": 1700.5}},
    ),
    since_sweep_s=0.0,
    registration_status=RegistrationStatus.WAITING,
    endpoints={
        "https://rpc.example.org#1": "alive",
        "https://rpc.example.org#2": "behind",
    },
    claimable=StoredReading(5, 1.0),
)
TOTALS = {
    ("jobs_claimed", ""): Decimal(9),
    ("jobs_settled", "finished"): Decimal(7),
    ("billed_s", ""): Decimal(240),
    ("credits", ""): Decimal(25) * 10**17,
    ("submissions", "accepted"): Decimal(8),
    ("callbacks", "unknown_job"): Decimal(1),
    ("transactions", "mined"): Decimal(30),
    ("replacements", ""): Decimal(2),
    ("gas", ""): Decimal(3000),
    ("fees_wei", ""): Decimal(9000),
    ("claim_to_submit", "0.5"): Decimal(4),
    ("claim_to_submit", "2.5"): Decimal(2),
    ("claim_to_submit", "+Inf"): Decimal(1),
    ("claim_to_submit", "sum"): Decimal(4000 * 10**6),
}
FIGURES = Figures(
    Moments(100.0, 200.0, 300.0, 400.0),
    {"scan": 500.0},
    Balance("0xab", 6000),
    200.0,
    TOTALS,
    {"failing": 2},
)


def exposition(
    summary: StatusSummary, figures: Figures, *, healthy: bool = True
) -> list[str]:
    registry = CollectorRegistry()
    registry.register(
        LedgerMetrics("main", lambda: LedgerReading(summary, figures, healthy))
    )
    return [
        line
        for line in generate_latest(registry).decode().splitlines()
        if not line.startswith("#")
    ]


@pytest.mark.parametrize(
    "line",
    [
        'supervisor_ledger_up{cluster="main"} 1.0',
        'supervisor_healthy{cluster="main"} 1.0',
        'supervisor_claims_paused{cluster="main"} 1.0',
        'supervisor_submissions_paused{cluster="main"} 0.0',
        'supervisor_jobs_claimable{cluster="main"} 5.0',
        'supervisor_jobs{cluster="main",state="QUEUED"} 2.0',
        'supervisor_jobs{cluster="main",state="RUNNING"} 0.0',
        'supervisor_effects{cluster="main",kind="submit",state="due"} 3.0',
        'supervisor_effects{cluster="main",kind="submit",state="parked"} 2.0',
        'supervisor_effects{cluster="main",kind="report",state="parked"} 0.0',
        'supervisor_oldest_due_effect_timestamp_seconds{cluster="main"} 100.0',
        'supervisor_callbacks_unread{cluster="main"} 7.0',
        'supervisor_oldest_unread_callback_timestamp_seconds{cluster="main"} 200.0',
        'supervisor_alarm{alarm="wallet_empty",cluster="main"} 1.0',
        'supervisor_alarm{alarm="slurm_state_lost",cluster="main"} 0.0',
        'supervisor_alarm{alarm="alarm_of_another_release",cluster="main"} 1.0',
        'supervisor_alarm_raised_timestamp_seconds{alarm="wallet_empty",cluster="main"} 1.7954352e+09',
        'supervisor_alarm_messages{cluster="main",state="failing"} 2.0',
        'supervisor_alarm_messages{cluster="main",state="parked"} 0.0',
        'supervisor_periodic_work_timestamp_seconds{cluster="main",work="scan"} 500.0',
        'supervisor_transactions_open{cluster="main",state="sent"} 3.0',
        'supervisor_transactions_open{cluster="main",state="signed"} 0.0',
        'supervisor_oldest_open_transaction_timestamp_seconds{cluster="main"} 300.0',
        'supervisor_chain_read_block{cluster="main",stream="contract"} 40.0',
        'supervisor_rpc_endpoint_alive{cluster="main",endpoint="https://rpc.example.org#1"} 1.0',
        'supervisor_rpc_endpoint_alive{cluster="main",endpoint="https://rpc.example.org#2"} 0.0',
        'supervisor_wallet_next_nonce{address="0xab",cluster="main"} 12.0',
        'supervisor_wallet_balance_wei{address="0xab",cluster="main"} 6000.0',
        # 6,000 wei, and three transactions of 200 wei a job
        'supervisor_wallet_jobs{address="0xab",cluster="main"} 10.0',
        'supervisor_registration_status{cluster="main",status="waiting"} 1.0',
        'supervisor_registration_status{cluster="main",status="approved"} 0.0',
        'supervisor_last_sweep_timestamp_seconds{cluster="main"} 400.0',
        'supervisor_sweep_found{cluster="main",what="lost"} 3.0',
        'supervisor_sweep_unseen_timestamp_seconds{cluster="main",side="slurm"} 1700.5',
        'supervisor_jobs_claimed_total{cluster="main"} 9.0',
        'supervisor_jobs_settled_total{cluster="main",outcome="finished"} 7.0',
        'supervisor_jobs_settled_total{cluster="main",outcome="panicked"} 0.0',
        'supervisor_jobs_refused_total{cluster="main"} 0.0',
        'supervisor_jobs_billed_seconds_total{cluster="main"} 240.0',
        'supervisor_credits_earned_total{cluster="main"} 2.5',
        'supervisor_submissions_total{cluster="main",result="accepted"} 8.0',
        'supervisor_submissions_total{cluster="main",result="unclear"} 0.0',
        'supervisor_callbacks_read_total{cluster="main",verdict="unknown_job"} 1.0',
        'supervisor_transactions_total{cluster="main",result="mined"} 30.0',
        'supervisor_transactions_total{cluster="main",result="foreign"} 0.0',
        'supervisor_transaction_replacements_total{cluster="main"} 2.0',
        'supervisor_transaction_gas_total{cluster="main"} 3000.0',
        'supervisor_transaction_fees_wei_total{cluster="main"} 9000.0',
        'supervisor_job_submission_duration_seconds_bucket{cluster="main",le="0.5"} 4.0',
        'supervisor_job_submission_duration_seconds_bucket{cluster="main",le="1.0"} 4.0',
        'supervisor_job_submission_duration_seconds_bucket{cluster="main",le="2.5"} 6.0',
        'supervisor_job_submission_duration_seconds_bucket{cluster="main",le="+Inf"} 7.0',
        'supervisor_job_submission_duration_seconds_count{cluster="main"} 7.0',
        'supervisor_job_submission_duration_seconds_sum{cluster="main"} 4000.0',
        'supervisor_job_settlement_duration_seconds_count{cluster="main"} 0.0',
    ],
)
def test_exposition__of_a_reading_with_everything__has_the_line(line: str) -> None:
    assert line in exposition(FULL, FIGURES)


def test_exposition__of_an_empty_ledger__has_a_zero_for_each_kind_state_and_alarm() -> (
    None
):
    lines = exposition(EMPTY, Figures(), healthy=False)
    zeros = [
        f'supervisor_jobs{{cluster="main",state="{state}"}}'
        for state in State
        if state is not State.SETTLED
    ]
    zeros += [
        f'supervisor_effects{{cluster="main",kind="{kind}",state="{state}"}}'
        for kind in EffectKind
        for state in EFFECT_STATES
    ]
    zeros += [
        f'supervisor_alarm{{alarm="{name}",cluster="main"}}' for name in AlarmName
    ]
    zeros += [
        f'supervisor_alarm_messages{{cluster="main",state="{state}"}}'
        for state in MESSAGE_STATES
    ]
    zeros += [
        'supervisor_healthy{cluster="main"}',
        'supervisor_callbacks_unread{cluster="main"}',
    ]
    zeros += [
        f'supervisor_transactions_open{{cluster="main",state="{state.lower()}"}}'
        for state in OPEN_STATES
    ]
    unread = {
        f'supervisor_wallet_{name}{{address="",cluster="main"}} NaN'
        for name in ("balance_wei", "jobs")
    }
    assert {f"{zero} 0.0" for zero in zeros} | unread <= set(lines)


def test_exposition__every_sample__has_the_cluster() -> None:
    assert all('cluster="main"' in line for line in exposition(FULL, FIGURES))


def test_wallet_jobs__before_the_first_transaction__is_not_a_number() -> None:
    lines = exposition(FULL, Figures(balance=Balance("0xab", 6000)))
    assert 'supervisor_wallet_jobs{address="0xab",cluster="main"} NaN' in lines


def test_exposition__ledger_away__says_only_that() -> None:
    def away() -> LedgerReading:
        raise TransientError("away")

    registry = CollectorRegistry()
    registry.register(LedgerMetrics("main", away))
    lines = [
        line
        for line in generate_latest(registry).decode().splitlines()
        if not line.startswith("#")
    ]
    assert lines == ['supervisor_ledger_up{cluster="main"} 0.0']


def test_kept__scrapes_in_a_row__read_the_ledger_once_in_five_seconds() -> None:
    now_s, readings = (
        [100.0],
        [LedgerReading(EMPTY, Figures(), True), LedgerReading(FULL, FIGURES, True)],
    )
    kept = CachedReading(lambda: readings.pop(0), lambda: now_s[0])
    first = kept()
    now_s[0] += KEPT_S
    assert kept() is first
    now_s[0] += 0.1
    assert kept().summary is FULL
