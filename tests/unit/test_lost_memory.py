"""A slurmctld that has lost its memory: what is written down of its start, and who ends the hold."""

from supervisor_tasks.journey.known_slurm import is_to_be_learnt
from supervisor_tasks.journey.sweep import FORGOT, lifts


def test_lifts__the_sweeps_own_hold__and_not_the_operators() -> None:
    assert lifts(f"{FORGOT} 5 jobs that it had saved")
    assert not lifts("the operator")
    assert not lifts("")
    assert not lifts(None)


def test_is_to_be_learnt__a_new_start__or_one_whose_silence_is_not_known() -> None:
    assert is_to_be_learnt("100", None, None)
    assert is_to_be_learnt("200", "100", "100 20")
    assert is_to_be_learnt("100", "100", None)
    assert not is_to_be_learnt("100", "100", "100 20")
