"""The table of rules: which events it knows, and that what it does not know changes
nothing.
"""

from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor_tasks.jobs.events import (
    CallbackReceived,
    CancelRequested,
    ChainStatusObserved,
    Claimed,
    EarlierRunsAwaited,
    EarlierRunsReported,
    EffectCompleted,
    EffectMissing,
    Event,
    ExistingSlurmJobAdopted,
    FalseSlurmId,
    LaterRunEnded,
    LaunchFailed,
    LimitApplied,
    MoreThanPaid,
    OperatorAbandonedEffect,
    OperatorCancelled,
    OperatorConfirmedNotSubmitted,
    OperatorSettledJob,
    Reorganised,
    RequeueForbidden,
    RequeueNotForbidden,
    RunsAfterItsEnd,
    ScriptFetched,
    ScriptUnavailable,
    SlurmCompleted,
    SlurmJobIdentified,
    SlurmJobMissing,
    SlurmPendingObserved,
    SlurmRunningObserved,
    SubmissionLostBySlurm,
    SubmissionNotFound,
    SubmissionStillPossible,
    SubmitNotExecuted,
    SubmitOutcomeUnknown,
    SubmitRejected,
    SubmitStarted,
    Submitted,
    ToppedUp,
)
from supervisor_tasks.jobs.model import Job, State
from supervisor_tasks.jobs.state_machine import IGNORED, RULES, advance, rule_for
from tests.support.examples import examples

EVENTS = get_args(Event)
SIMPLE: Mapping[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 4),  # few values, so that they meet
    float: st.sampled_from([0.0, 1.5]),
    bool: st.booleans(),
    str: st.sampled_from(["", "a", "b"]),
    NoneType: st.none(),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that jobs and events are made of."""
    kind = getattr(kind, "__supertype__", kind)
    if kind in SIMPLE:
        return SIMPLE[kind]
    if get_origin(kind) in (Union, UnionType):
        return st.one_of([values(one) for one in get_args(kind)])
    if get_origin(kind) is tuple:
        return tuples(get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    assert isinstance(kind, type)
    assert is_dataclass(kind) or issubclass(kind, tuple), kind
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: values(hint) for name, hint in hints.items()})


def tuples(kinds: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    if kinds[1:] == (...,):
        return st.lists(values(kinds[0]), max_size=2).map(tuple)
    return st.tuples(*(values(kind) for kind in kinds))


JOBS = values(Job)


IN_SLURM = {State.QUEUED, State.RUNNING}
ALL = set(State)
STATES_OF = {
    Claimed: ALL,
    ScriptFetched: {State.CLAIMED},
    ScriptUnavailable: {State.CLAIMED},
    SubmitStarted: {State.READY},
    Submitted: ALL,  # an id may come late
    SubmitRejected: {State.SUBMITTING},
    SubmitNotExecuted: {State.SUBMITTING},
    SubmitOutcomeUnknown: {State.SUBMITTING},
    SubmissionNotFound: {State.SUBMITTING},
    SubmissionStillPossible: ALL,
    CallbackReceived: IN_SLURM | {State.SETTLED},
    SlurmJobIdentified: {State.CLAIMED, State.READY, State.SUBMITTING} | IN_SLURM,
    SlurmPendingObserved: IN_SLURM,
    SlurmRunningObserved: IN_SLURM,
    EarlierRunsReported: IN_SLURM,
    EarlierRunsAwaited: IN_SLURM,
    MoreThanPaid: IN_SLURM,
    SlurmCompleted: IN_SLURM,
    RunsAfterItsEnd: {State.ENDED, State.SETTLED},
    LaterRunEnded: {State.ENDED},
    RequeueForbidden: {State.ENDED, State.REFUSED, State.SETTLED},
    RequeueNotForbidden: {State.ENDED},
    CancelRequested: {State.CLAIMED, State.READY, State.SUBMITTING} | IN_SLURM,
    ToppedUp: ALL,
    LimitApplied: ALL,
    ChainStatusObserved: ALL,
    Reorganised: ALL,
    EffectMissing: ALL,
    ExistingSlurmJobAdopted: {State.CLAIMED, State.READY, State.SUBMITTING} | IN_SLURM,
    SlurmJobMissing: IN_SLURM,
    SubmissionLostBySlurm: {State.QUEUED},
    LaunchFailed: {State.QUEUED},
    FalseSlurmId: {State.QUEUED},
    EffectCompleted: ALL,
    OperatorCancelled: {State.CLAIMED, State.READY} | IN_SLURM,
    OperatorConfirmedNotSubmitted: {State.SUBMITTING},
    OperatorSettledJob: ALL,
    OperatorAbandonedEffect: ALL,
}


def test_rules__every_event__has_at_least_one() -> None:
    assert {event for event, _ in RULES} == set(EVENTS)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_table__each_event_in_each_state__has_a_rule_or_is_ignored(
    kind: type, state: State
) -> None:
    assert ((kind, state) in RULES) != ((kind, state) in IGNORED)


def test_table__ignored_events__name_only_events_and_states() -> None:
    assert IGNORED.keys() <= {(kind, state) for kind in EVENTS for state in State}


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_rules__of_an_event__are_in_the_states_that_it_can_change(kind: type) -> None:
    assert {state for state in State if (kind, state) in RULES} == STATES_OF[kind]


@given(JOBS, values(Event))
@settings(max_examples=examples(200))
def test_event__without_a_rule_that_holds__changes_nothing(
    job: Job, event: Event
) -> None:
    if rule_for(job, event) is None:
        assert advance(job, event) == (job, ())


@given(values(Event))
@settings(max_examples=examples(30))
def test_event__of_a_job_that_is_not_known__begins_it_only_by_a_claim(
    event: Event,
) -> None:
    job, effects = advance(None, event)
    assert (job is not None) == isinstance(event, Claimed)
    assert bool(effects) == isinstance(event, Claimed)
