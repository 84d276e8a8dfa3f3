"""What the names and values of the ledger are in front of an operator."""

from typing import Any

import pytest

from supervisor_tasks.cli.sweep import KIND_TEXTS, compared, next_at
from supervisor_tasks.cli.tx import STATES, TransactionState
from supervisor_tasks.cli.wording import coins, for_display, gas_price, listed
from supervisor_tasks.reconciliation.snapshot import DiscrepancyKind

JOB = "0x7903" + "a" * 60


@pytest.mark.parametrize(
    ("details", "shown"),
    [
        ({"silent_s": 92, "tries": 3}, {"silent": "1m32s", "tries": "3"}),
        (
            {"balance_wei": 12000, "needed_wei": 340000000000000},
            {"balance": "12000 wei", "needed": "0.00034 coins"},
        ),
        ({"needed_wei": "12000"}, {"needed": "12000 wei"}),
        ({"unseen_s": {"slurm": 4000}}, {"unseen": "slurm 1h06m"}),
        ({"job_id": JOB, "some": [JOB]}, {"job": "0x7903aaaa", "these": "0x7903aaaa"}),
        ({"address": "0x" + "b" * 40}, {"address": "0x" + "b" * 40}),
        ({"for_s": None, "is_new": True}, {"for": "None", "is new": "yes"}),
        ({"limit_min": 60, "mem_mb": 2000}, {"limit": "60 minutes", "mem": "2000 MB"}),
    ],
)
def test_for_display__names_and_values__are_words_with_units(
    details: dict[str, Any], shown: dict[str, str]
) -> None:
    assert for_display(details) == shown


def test_listed__details__are_one_line() -> None:
    assert listed({"silent_s": 92, "tries": 3}) == "silent 1m32s, tries 3"


@pytest.mark.parametrize(
    ("wei", "shown"),
    [
        (0, "0 wei"),
        (10**12 - 1, "999999999999 wei"),
        (10**12, "0.000001 coins"),
        (10**18, "1 coins"),
    ],
)
def test_coins__small_amounts__are_in_wei(wei: int, shown: str) -> None:
    assert coins(wei) == shown


@pytest.mark.parametrize(
    ("wei", "shown"),
    [
        (1, "0.000000001"),
        (1_500_000_000, "1.5"),
        (10**9, "1"),
        (3 * 10**12, "3,000"),
        (0, "0"),
    ],
)
def test_gas_price__of_wei__is_in_gwei(wei: int, shown: str) -> None:
    assert gas_price(wei) == f"{shown} gwei per gas"


def test_found__each_kind_of_a_sweep__has_words() -> None:
    assert set(KIND_TEXTS) == set(DiscrepancyKind)
    assert len(set(KIND_TEXTS.values())) == len(KIND_TEXTS)


def test_states__each_state_of_a_transaction__has_words() -> None:
    assert set(STATES) == set(TransactionState)


def test_compared__a_side_that_was_not_seen__is_left_out() -> None:
    assert compared({"jobs": 1, "slurm_jobs": None, "on_chain": 2, "block": 7}) == (
        "1 job of the ledger, 2 jobs of the contract, at block 7"
    )


@pytest.mark.parametrize(
    ("age_s", "shown"),
    [(100.0, "due in 13m20s at the latest"), (960.0, "due for 1m00s")],
)
def test_next_at__before_and_after_it_is_due__says_when(
    age_s: float, shown: str
) -> None:
    assert next_at(age_s, 900.0) == shown
