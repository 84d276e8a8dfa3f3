"""The names under which the journal stores events: a row of the table for each
class.
"""

import re
from typing import get_args

import pytest
from sqlalchemy import TextClause

from supervisor_tasks.jobs import events
from supervisor_tasks.jobs.events import STORED_NAMES, Claimed, Event, stored_name
from supervisor_tasks.ledger import journal

# Journals have these names: to change one takes a migration.
STORED = {
    events.Claimed: "Claimed",
    events.ScriptFetched: "ScriptFetched",
    events.ScriptUnavailable: "ScriptUnavailable",
    events.SubmitStarted: "SubmitStarted",
    events.Submitted: "Submitted",
    events.SubmitRejected: "SubmitRejected",
    events.SubmitNotExecuted: "SubmitNotExecuted",
    events.SubmitOutcomeUnknown: "SubmitOutcomeUnknown",
    events.SubmissionNotFound: "SubmissionNotFound",
    events.SubmissionStillPossible: "SubmissionStillPossible",
    events.CallbackReceived: "CallbackReceived",
    events.SlurmJobIdentified: "SlurmJobIdentified",
    events.SlurmPendingObserved: "SlurmPendingObserved",
    events.SlurmRunningObserved: "SlurmRunningObserved",
    events.EarlierRunsReported: "EarlierRunsReported",
    events.EarlierRunsAwaited: "EarlierRunsAwaited",
    events.MoreThanPaid: "MoreThanPaid",
    events.SlurmCompleted: "SlurmCompleted",
    events.RunsAfterItsEnd: "RunsAfterItsEnd",
    events.LaterRunEnded: "LaterRunEnded",
    events.RequeueForbidden: "RequeueForbidden",
    events.RequeueNotForbidden: "RequeueNotForbidden",
    events.CancelRequested: "CancelRequested",
    events.ToppedUp: "ToppedUp",
    events.LimitApplied: "LimitApplied",
    events.ChainStatusObserved: "ChainStatusObserved",
    events.EffectMissing: "EffectMissing",
    events.ExistingSlurmJobAdopted: "ExistingSlurmJobAdopted",
    events.SlurmJobMissing: "SlurmJobMissing",
    events.SubmissionLostBySlurm: "SubmissionLostBySlurm",
    events.LaunchFailed: "LaunchFailed",
    events.FalseSlurmId: "FalseSlurmId",
    events.Reorganised: "Reorganised",
    events.EffectCompleted: "EffectCompleted",
    events.OperatorConfirmedNotSubmitted: "OperatorConfirmedNotSubmitted",
    events.OperatorSettledJob: "OperatorSettledJob",
    events.OperatorCancelled: "OperatorCancelled",
    events.OperatorAbandonedEffect: "OperatorAbandonedEffect",
}


@pytest.mark.parametrize(("event", "name"), STORED.items())
def test_stored_name__each_event__is_the_name_of_the_journal(
    event: type[Event], name: str
) -> None:
    assert stored_name(event) == name


def test_stored_names__all_events__have_one_of_their_own() -> None:
    assert set(STORED_NAMES) == set(get_args(Event)) == set(STORED)
    assert len(set(STORED_NAMES.values())) == len(STORED_NAMES)


def test_stored_name__renamed_class__stays() -> None:
    Claimed.__name__ = "Taken"
    try:
        assert stored_name(Claimed) == "Claimed"
    finally:
        Claimed.__name__ = "Claimed"


def test_journal__names_in_its_sql__are_stored_names() -> None:
    statements = [
        str(value) for value in vars(journal).values() if isinstance(value, TextClause)
    ]
    named = {
        name
        for statement in statements
        for name in re.findall(r"'([A-Z][a-z]\w+)'", statement)
    }
    assert {"Claimed", "Submitted"} <= named <= set(STORED_NAMES.values())
