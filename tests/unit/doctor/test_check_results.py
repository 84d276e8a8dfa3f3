"""What a probe finds: the level of each finding, and the worst of several."""

from collections.abc import Sequence

import pytest

from supervisor_tasks.doctor.check_results import (
    Finding,
    Level,
    green,
    red,
    skipped,
    worst,
    yellow,
)

GREEN, SKIPPED, YELLOW, RED = (
    green("a", "here"),
    skipped("b", "no key"),
    yellow("c", "slow", "wait"),
    red("d", "away", "start it"),
)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (GREEN, Finding("a", Level.GREEN, "here", "")),
        (SKIPPED, Finding("b", Level.SKIPPED, "no key", "")),
        (YELLOW, Finding("c", Level.YELLOW, "slow", "wait")),
        (RED, Finding("d", Level.RED, "away", "start it")),
    ],
)
def test_finding__made_for_each_level__has_the_level_and_the_advice(
    made: Finding, expected: Finding
) -> None:
    assert made == expected


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([], Level.GREEN),
        ([GREEN], Level.GREEN),
        ([GREEN, SKIPPED], Level.SKIPPED),
        ([SKIPPED, YELLOW], Level.YELLOW),
        ([YELLOW, SKIPPED, GREEN], Level.YELLOW),
        ([YELLOW, RED], Level.RED),
        ([RED, GREEN, YELLOW], Level.RED),
        ([SKIPPED, RED], Level.RED),
    ],
)
def test_worst__findings_in_any_order__is_the_worst_of_their_levels(
    findings: Sequence[Finding], expected: Level
) -> None:
    assert worst(findings) is expected
    assert worst(iter(findings)) is expected
