"""Which discrepancies are doubts, for how long they are remembered, and which jobs are undecided
for the operator.
"""

from dataclasses import replace

import pytest

from supervisor_tasks.jobs.model import JobId, SlurmId
from supervisor_tasks.reconciliation.doubts import doubts, needs_operator
from supervisor_tasks.reconciliation.rules import Discrepancy, find_discrepancies
from supervisor_tasks.reconciliation.snapshot import DiscrepancyKind
from tests.support.snapshots import GRACE_S, gone, known, name, row, seeing

MISSING, DUPLICATE, REASSIGNED = (
    f"missing {name(1)}",
    f"duplicate {name(1)} 7",
    f"reassigned_on_chain {name(1)}",
)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (DiscrepancyKind.MISSING, MISSING),
        (DiscrepancyKind.LOST, MISSING),
        (DiscrepancyKind.NEEDS_OPERATOR, MISSING),
        (DiscrepancyKind.CONTRADICTED, MISSING),
        (DiscrepancyKind.REASSIGNED_ON_CHAIN, REASSIGNED),
        (DiscrepancyKind.DUPLICATE, DUPLICATE),
    ],
)
@pytest.mark.parametrize(
    ("before", "age_s"),
    [
        ({}, 0.0),
        ({MISSING: 70.0, DUPLICATE: 70.0, REASSIGNED: 70.0}, 70.0),
        ({f"missing {name(2)}": 70.0, f"duplicate {name(1)} 8": 70.0}, 0.0),
    ],
    ids=["new", "seen before", "others were seen before"],
)
def test_doubts__finding_that_must_be_seen_again__has_the_age_of_the_first_time(
    kind: DiscrepancyKind, key: str, before: dict[str, float], age_s: float
) -> None:
    discrepancy = Discrepancy(kind, name(1), SlurmId(7))
    assert doubts(seeing(previous_doubts=before), [discrepancy]) == {key: age_s}


@pytest.mark.parametrize(
    "kind",
    [
        DiscrepancyKind.FINAL_ON_CHAIN,
        DiscrepancyKind.FORGOTTEN,
        DiscrepancyKind.ADOPTED,
        DiscrepancyKind.ORPHAN_RUNNING,
        DiscrepancyKind.UNIDENTIFIED,
    ],
)
def test_doubts__finding_that_counts_at_once__is_none(kind: DiscrepancyKind) -> None:
    assert doubts(seeing(), [Discrepancy(kind, name(1), SlurmId(7))]) == {}


BEFORE = {MISSING: 70.0, DUPLICATE: 80.0, REASSIGNED: 90.0}


@pytest.mark.parametrize(
    ("slurm_answers", "chain_answers", "left"),
    [
        (True, True, set()),
        (True, False, {REASSIGNED}),
        (False, True, {MISSING, DUPLICATE}),
        (False, False, {MISSING, DUPLICATE, REASSIGNED}),
    ],
)
def test_doubts__side_that_does_not_answer__keeps_the_doubts_about_that_side(
    slurm_answers: bool, chain_answers: bool, left: set[str]
) -> None:
    view = seeing(known(), rows=[row()], previous_doubts=BEFORE)
    if not slurm_answers:
        view = replace(view, slurm=None)
    if not chain_answers:
        view = replace(view, chain=None)
    assert doubts(view, []) == {key: BEFORE[key] for key in left}


def test_doubts__no_second_endpoint_shows_the_job_elsewhere__keeps_that_doubt() -> None:
    view = seeing(
        known(),
        rows=[row()],
        previous_doubts=BEFORE,
        unconfirmed_on_chain={name(1)},
    )
    assert doubts(view, []) == {REASSIGNED: BEFORE[REASSIGNED]}
    assert doubts(replace(view, previous_doubts={}), []) == {}


def test_doubts__accounting_does_not_answer__keeps_only_the_doubt_that_there_was() -> (
    None
):
    unasked = replace(gone(known(), age_s=70.0), confirmed_lookups={})
    assert doubts(unasked, []) == {MISSING: 70.0}
    assert doubts(replace(unasked, previous_doubts={}), []) == {}


@pytest.mark.parametrize(
    ("kind", "before", "undecided"),
    [
        (DiscrepancyKind.NEEDS_OPERATOR, {}, {name(1): 8}),
        (DiscrepancyKind.CONTRADICTED, {}, {name(1): 8}),
        (DiscrepancyKind.NEEDS_OPERATOR, {name(1): SlurmId(7)}, {name(1): 8}),
        (DiscrepancyKind.NEEDS_OPERATOR, {name(2): SlurmId(2)}, {name(1): 8}),
        (DiscrepancyKind.MISSING, {}, {}),
        (DiscrepancyKind.MISSING, {name(1): SlurmId(7)}, {name(1): 7}),
        (DiscrepancyKind.MISSING, {name(1): None}, {name(1): None}),
        (DiscrepancyKind.LOST, {name(1): SlurmId(7)}, {}),
        (DiscrepancyKind.DUPLICATE, {name(1): SlurmId(7)}, {}),
        (DiscrepancyKind.ADOPTED, {name(1): SlurmId(7)}, {}),
    ],
)
def test_needs_operator__each_discrepancy__is_what_needs_him_or_stays_in_doubt(
    kind: DiscrepancyKind,
    before: dict[JobId, SlurmId | None],
    undecided: dict[JobId, SlurmId | None],
) -> None:
    discrepancy = Discrepancy(kind, name(1), SlurmId(8))
    assert needs_operator(seeing(), [discrepancy], before) == undecided


# --- from sweep to sweep --------------------------------------------------------------


def test_needs_operator__job_cannot_be_looked_at__stays() -> None:
    job, before = known(), {name(1): SlurmId(1), name(2): SlurmId(2)}
    # accounting does not answer
    away = replace(gone(job, age_s=GRACE_S, slurm={}), confirmed_lookups={})
    assert needs_operator(away, find_discrepancies(away), before) == {
        name(1): SlurmId(1)
    }
    blind = replace(away, slurm=None)
    assert needs_operator(blind, find_discrepancies(blind), before) == {
        name(1): SlurmId(1)
    }
    lost = gone(job, age_s=GRACE_S)
    assert needs_operator(lost, find_discrepancies(lost), before) == {}
    back = seeing(job, rows=[row()], previous_doubts=away.previous_doubts)
    assert needs_operator(back, find_discrepancies(back), before) == {}


def test_doubts__finding_could_not_be_checked__stays_as_it_was() -> None:
    previous = {f"missing {name(1)}": 500.0, f"reassigned_on_chain {name(2)}": 400.0}
    blind = seeing(known(1), known(2), previous_doubts=previous, slurm=None, chain=None)
    assert doubts(blind, find_discrepancies(blind)) == previous
    unanswered = seeing(known(1), rows=[row(99)], previous_doubts=previous)
    assert doubts(unanswered, find_discrepancies(unanswered)) == {
        f"missing {name(1)}": 500.0
    }
    seen = seeing(known(1), known(2), rows=[row(1), row(2)], previous_doubts=previous)
    assert doubts(seen, find_discrepancies(seen)) == {}
