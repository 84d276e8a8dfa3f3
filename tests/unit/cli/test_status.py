"""What `supervisor status` says of the claims and of the wallet."""

from dataclasses import replace

from supervisor_tasks.cli.status import Purse, facts_of
from tests.support.golden_cases import a_summary

EMPTY = Purse(0, 0, 0)


def test_status__with_an_alarm_that_stops_claims__does_not_say_on() -> None:
    snapshot = replace(a_summary(), claiming_paused=False)
    assert facts_of(snapshot, [], EMPTY)["claims"].text == "stopped while an alarm is on: wallet_empty"
    assert facts_of(replace(snapshot, alarms=[]), [], EMPTY)["claims"].text == "on"


def test_status__of_a_wallet_that_has_signed_nothing__says_what_it_holds() -> None:
    snapshot = replace(a_summary(), wallet=None)
    assert facts_of(snapshot, [], EMPTY)["wallet"].text == "has signed nothing yet, holds 0 for gas"
