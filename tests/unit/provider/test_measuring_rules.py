"""When a run of the benchmarks is due: a row for each reason, and for each that stands
against it.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from supervisor_tasks.provider.measuring_rules import after_asking_for_a_run, run_due
from supervisor_tasks.provider.offer import Prices, machines_digest
from supervisor_tasks.provider.registration_rules import (
    MeasuredState,
    RegistrationInput,
    RegistrationRecord,
)
from tests.support.registration_inputs import (
    ALL,
    BIG,
    DEARER,
    HALF,
    NODE,
    OFFER,
    chain,
    ended,
    inputs,
    of_all,
    offer,
    situations,
    with_runs,
)

# two nodes are registered as offered, and were measured a day ago
BEFORE = of_all(measured_days_ago=1)
REGISTERED = BEFORE.on_chain
BANNED = replace(REGISTERED, banned=True)
THERE = {"name": "there"}
CPU_IS_DEARER = (
    "the cpu price was 0.00000000000000001 credits a minute, is 0.000000000000000012"
)
OTHER_TERMS = "the prices or the operator's labels are others than when it was measured"


def measured(**changes: Any) -> MeasuredState:
    return replace(BEFORE.benchmarks, **changes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"prices": DEARER}, CPU_IS_DEARER),
        ({"operator": THERE}, "the label name was 'here', is 'there'"),
        (
            {"operator": {"name": "here", "zone": "ch"}},
            "the label zone was absent, is 'ch'",
        ),
        (
            {
                "operator": {"name": "here", "cpu": "fast"},
                "override": frozenset({"cpu"}),
            },
            "the label cpu was 'epyc', is 'fast'",
        ),
        # a result of a benchmark counts more, so only the digest is another one
        ({"operator": {"name": "here", "cpu": "fast"}}, OTHER_TERMS),
        ({"override": frozenset({"cpu"})}, OTHER_TERMS),
        ({"machines": (*ALL, BIG)}, "1 nodes more with 128 CPUs, 8 GPUs, 512000 MB"),
        ({"machines": (*ALL, BIG), "is_hardware_stable": False}, ""),
        (
            {"machines": (NODE, BIG), "prices": DEARER, "operator": THERE},
            "1 nodes less with 8 CPUs, 2 GPUs, 16000 MB; "
            "1 nodes more with 128 CPUs, 8 GPUs, 512000 MB; "
            f"{CPU_IS_DEARER}; the label name was 'here', is 'there'",
        ),
        (
            {"machines": (NODE, BIG), "prices": DEARER, "is_hardware_stable": False},
            CPU_IS_DEARER,
        ),
        ({"on_chain": chain()}, ""),
        ({"on_chain": chain(), "machines": (BIG,)}, "nothing is registered"),
        # what waits for approval counts, and not what is in force
        ({"on_chain": chain(offer(BIG), offer(*ALL))}, ""),
        (
            {"on_chain": chain(offer(*ALL), offer(*ALL, prices=DEARER))},
            "",
        ),
    ],
)
def test_run_due__each_change_since_the_registration__is_the_reason(
    changes: dict[str, Any], why: str
) -> None:
    assert run_due(replace(BEFORE, **changes)) == why


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        (
            {"measured_machines": frozenset({machines_digest((BIG,))})},
            "other nodes work than were measured",
        ),
        ({"measured_machines": frozenset()}, ""),
        ({"pricing_digest": "of other prices"}, OTHER_TERMS),
        ({"pricing_digest": ""}, ""),
        ({"every_s": 60.0, "ended_ago_s": 60.0}, "on schedule"),
        ({"every_s": 60.0, "ended_ago_s": 59.9}, ""),
        ({"every_s": 60.0, "ended_ago_s": None}, "on schedule"),
        ({"every_s": 0.0, "ended_ago_s": 1e9}, ""),
        ({"every_s": 0.0, "ended_ago_s": None}, ""),
        ({"every_s": 60.0, "ended_ago_s": 60.0, "under_way": True}, ""),
        ({"pricing_digest": "of other prices", "every_s": 60.0}, OTHER_TERMS),
    ],
    ids=[
        "as measured",
        "measured on others",
        "no run is known",
        "measured at other prices",
        "no prices are known",
        "its time has come",
        "its time has not come",
        "never measured",
        "no schedule",
        "no schedule and never measured",
        "under way",
        "a reason before the schedule",
    ],
)
def test_run_due__each_state_of_the_benchmarks__is_due_for_this_reason(
    changes: dict[str, Any], why: str
) -> None:
    assert run_due(replace(BEFORE, benchmarks=measured(**changes))) == why


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"on_chain": BANNED}, "new cooling"),
        ({"on_chain": chain()}, "new cooling"),
        ({"is_hardware_stable": False, "prices": DEARER}, "new cooling"),
        ({"machines": ()}, ""),
        ({"asked_to_measure": "", "on_chain": BANNED, "prices": DEARER}, ""),
        (
            {
                "asked_to_measure": "",
                "on_chain": BANNED,
                "benchmarks": measured(every_s=60.0),
            },
            "",
        ),
        ({"asked_to_measure": "", "machines": (), "prices": DEARER}, ""),
        (
            {
                "asked_to_measure": "",
                "machines": (),
                "benchmarks": measured(every_s=60.0),
            },
            "",
        ),
    ],
    ids=[
        "asked while banned",
        "asked before a registration",
        "asked while other things change",
        "asked while SLURM is away",
        "banned and other prices",
        "banned and its time has come",
        "SLURM is away and other prices",
        "SLURM is away and its time has come",
    ],
)
def test_run_due__banned_or_slurm_away__is_due_only_if_that_allows_it(
    changes: dict[str, Any], why: str
) -> None:
    asked = replace(BEFORE, asked_to_measure="new cooling")
    assert run_due(replace(asked, **changes)) == why


def test_after_asking_for_a_run__asked_by_the_operator__changes_only_the_run() -> None:
    asked = replace(BEFORE, asked_to_measure="new cooling", prices=DEARER)
    after = after_asking_for_a_run(asked)
    assert after.benchmarks == measured(
        under_way=True, pricing_digest=asked.pricing_digest
    )
    assert asked.pricing_digest != BEFORE.pricing_digest
    assert replace(after, benchmarks=asked.benchmarks) == replace(
        asked, asked_to_measure=""
    )


# --- from run to run ------------------------------------------------------------------


def test_run_due__price_changed_and_cannot_be_registered__is_due_once() -> None:
    found = inputs(
        chain(OFFER),
        prices=DEARER,
        benchmarks=with_runs(),
        record=RegistrationRecord(rejected=("x",)),
    )
    done = ended(after_asking_for_a_run(found))
    assert run_due(done) == ""
    assert run_due(replace(done, prices=Prices(1, 1, 1))) != ""


def test_run_due__node_away_while_measured_on_schedule__all_are_measured_then() -> None:
    found = of_all()
    scheduled = replace(
        found,
        benchmarks=replace(found.benchmarks, every_s=3600.0),
        machines=(NODE,),
        is_hardware_stable=False,
    )
    assert run_due(scheduled) == "on schedule"
    done = ended(after_asking_for_a_run(scheduled), NODE, **HALF)
    back = replace(
        done,
        machines=ALL,
        is_hardware_stable=True,
        benchmarks=replace(done.benchmarks, ended_ago_s=1.0),
    )
    assert run_due(back) == "other nodes work than were measured"


@pytest.mark.parametrize(
    ("ended_ago_s", "due"), [(None, True), (3600.0, True), (3599.0, False)]
)
def test_run_due__schedule_of_an_hour__is_due_an_hour_after_the_last_run(
    ended_ago_s: float | None, due: bool
) -> None:
    benchmarks = with_runs(every_s=3600.0, ended_ago_s=ended_ago_s)
    assert run_due(inputs(chain(OFFER), benchmarks=benchmarks)) == (
        "on schedule" if due else ""
    )


def test_run_due__the_operator_asks__is_due_unless_off_or_under_way() -> None:
    found = inputs(chain(OFFER), asked_to_measure="new cooling", benchmarks=with_runs())
    assert run_due(found) == "new cooling"
    assert run_due(replace(found, benchmarks=with_runs(under_way=True))) == ""
    assert run_due(replace(found, benchmarks=MeasuredState(enabled=False))) == ""


@given(situations)
def test_run_due__asked_for__is_not_asked_for_again(found: RegistrationInput) -> None:
    if run_due(found):
        assert found.benchmarks.enabled
        asked = after_asking_for_a_run(found)
        assert run_due(asked) == ""
        assert run_due(ended(asked)) == ""
