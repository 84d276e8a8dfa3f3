"""A job is recognised by what its owner cannot write."""

import pytest

from supervisor_tasks.job import JobId, SlurmId
from supervisor_tasks.slurm.commands import script_mark
from supervisor_tasks.slurm.listing import Listed, listed_jobs
from supervisor_tasks.slurm.output import Answer, Seen, SlurmUnavailableError
from supervisor_tasks.slurm.recognise import (
    calls_itself,
    histories,
    marked_job,
    script_heads,
    submitted_as,
    was_rejected,
    worth_reading,
)
from tests.unit.test_slurm_listing import DATA

MARK = "4f1d0c9ab3"
OURS = JobId("0x" + "a" * 64)
OTHER = JobId("0x" + "b" * 64)


def recorded(name: str) -> str:
    return (DATA / f"{name}-slurm-22.05.8.txt").read_text()


def listing() -> dict[SlurmId, Listed]:
    return listed_jobs(Answer(0, recorded("squeue-listing"), ""), MARK)


def test_calls_itself__renamed__its_output_still_tells() -> None:
    assert listing()[SlurmId(3)].name == "renamed"
    assert [slurm_id for slurm_id, job in listing().items() if calls_itself(job, OURS)] == [3]


def test_script_heads__recorded__second_lines_of_the_scripts_that_there_are() -> None:
    heads = script_heads(Answer(0, recorded("scontrol-write-batch-script"), ""), MARK)
    assert heads == {3: script_mark(OURS), 4: "#marker", 7: "#marker", 9: "# This script was created by sbatch --wrap."}


@pytest.mark.parametrize("first", ["#!/bin/sh\x0b" + script_mark(OURS), "#!/bin/sh\r" + script_mark(OURS)])
def test_script_heads__line_that_only_looks_like_two__is_one(first: str) -> None:
    heads = script_heads(Answer(0, f"{MARK} 3 {first}\ntrue\n{MARK} end\n", ""), MARK)
    assert heads == {3: "true"}


def test_script_heads__cut_off__is_an_error() -> None:
    with pytest.raises(SlurmUnavailableError):
        script_heads(Answer(0, recorded("scontrol-write-batch-script")[:-3], ""), MARK)


def test_submitted_as__renamed_job__accounting_has_the_line_it_was_submitted_with() -> None:
    history = Answer(0, recorded("sacct-submit-lines"), "")
    assert [seen.slurm_id for seen in submitted_as(history, MARK, OURS)] == [3]
    assert submitted_as(history, MARK, OTHER) == []


@pytest.mark.parametrize("kept", [1, 30, -3])
def test_submitted_as__cut_off_or_failed__is_not_an_empty_history(kept: int) -> None:
    with pytest.raises(SlurmUnavailableError):
        submitted_as(Answer(0, recorded("sacct-submit-lines")[:kept], ""), MARK, OURS)
    with pytest.raises(SlurmUnavailableError):
        submitted_as(Answer(1, "", "sacct: error: slurmdbd: connection refused"), MARK, OURS)


def test_histories__of_several_users__each_has_its_own() -> None:
    both = f"USERMARK 0xa\n{recorded('sacct-submit-lines')}USERMARK 0xb\nUSERMARK end\n"
    told = histories(Answer(0, both, ""), "USERMARK")
    assert list(told) == ["0xa", "0xb"]
    assert [seen.slurm_id for seen in submitted_as(told["0xa"], MARK, OURS)] == [3]
    assert submitted_as(told["0xb"], MARK, OURS) == []


@pytest.mark.parametrize("answer", [Answer(0, "USERMARK 0xa\n", ""), Answer(1, "USERMARK 0xa\n", "no slurmdbd")])
def test_histories__cut_off_or_failed__is_an_error(answer: Answer) -> None:
    with pytest.raises(SlurmUnavailableError):
        histories(answer, "USERMARK")


def test_marked_job__only_our_own_line() -> None:
    assert marked_job(script_mark(OURS)) == OURS
    assert [marked_job(line) for line in ("true", "", f"{script_mark(OURS)} ", f"# another job {OURS}")] == [None] * 4


def test_worth_reading__batch_jobs_since_then() -> None:
    assert {job.slurm_id for job in worth_reading(listing().values(), 0)} == {1, 2, 3, 4, 5, 6, 7, 9, 10}
    late = listing()[SlurmId(9)].submit_s
    assert {job.slurm_id for job in worth_reading(listing().values(), late)} == {9, 10}


def test_was_rejected__only_what_never_ran() -> None:
    assert was_rejected(Seen(SlurmId(1), "FAILED", 0, 256, "BadConstraints"))
    assert not was_rejected(Seen(SlurmId(1), "FAILED", 5, 256, "BadConstraints"))
    assert not was_rejected(Seen(SlurmId(1), "FAILED", 0, 256, "NonZeroExitCode"))
