"""What `make chaos` prints at its end."""

from tests.support.chaos_report import CrashSeries, LongTest, Outcome, Run, read_report

REPORT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.chaos.test_faults" name="test_fault[redis stopped]" time="61.5"/>
<testcase classname="tests.chaos.test_faults" name="test_fault[sshd slow]" time="300.1">
<failure message="AssertionError: 0x12 is wrong&#10;more">trace</failure></testcase>
<testcase classname="tests.chaos.test_down" name="test_down[field]" time="2"><error message="no grid">trace</error></testcase>
<testcase classname="tests.chaos.test_down" name="test_down[spool]" time="700"/>
</testsuite></testsuites>"""


def outcome(seed: int, place: str, reached: bool = True) -> Outcome:
    return Outcome(
        Run(seed, place, 1, ("finishing",)),
        reached,
        1.5,
        ("worker",) if reached else (),
    )


def test_report__of_pytest__the_failed_come_last_with_the_first_line_of_their_error() -> (
    None
):
    assert read_report(REPORT) == [
        LongTest("test_fault[redis stopped]", "passed", 61.5),
        LongTest("test_down[spool]", "passed", 700.0),
        LongTest(
            "test_fault[sshd slow]", "FAILED", 300.1, "AssertionError: 0x12 is wrong"
        ),
        LongTest("test_down[field]", "ERROR", 2.0, "no grid"),
    ]


def test_series__all_reached_and_no_violation__passes() -> None:
    series = CrashSeries(2)
    series.add(outcome(1, "before-sbatch"))
    series.add(outcome(2, "after-sbatch"))
    assert series.passed
    assert series.summary()[0].startswith("crash runs: 2 deaths in 2 runs, at 2 of ")
    assert "       1 at before-sbatch" in series.summary()


def test_series__a_place_that_was_reached_once__is_reached() -> None:
    series = CrashSeries(2)
    series.add(outcome(1, "before-sbatch", reached=False))
    assert not series.passed
    assert "    never reached: before-sbatch" in series.summary()
    series.add(outcome(2, "before-sbatch"))
    assert series.passed


def test_series__a_violation__fails_and_is_listed_once_a_grid() -> None:
    series = CrashSeries(2)
    series.add(outcome(1, "before-sbatch"))
    series.add_violations("seed 1", ["0x12 ran twice"])
    series.add_violations("seed 2", ["0x12 ran twice", "0x13 ran twice"])
    assert not series.passed
    assert series.summary()[-2:] == [
        "    WRONG seed 1: 0x12 ran twice",
        "    WRONG seed 2: 0x13 ran twice",
    ]
