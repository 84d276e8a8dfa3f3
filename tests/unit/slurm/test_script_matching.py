"""A job is recognised by what its owner cannot write."""

import pytest

from supervisor_tasks.jobs.model import Address, JobId, SlurmId
from supervisor_tasks.slurm.commands import script_header
from supervisor_tasks.slurm.parsers import (
    CommandAnswer,
    JobRecord,
    SlurmUnavailableError,
)
from supervisor_tasks.slurm.script_matching import (
    MAX_SCRIPTS,
    ScriptSearch,
    batch_jobs_since,
    has_job_name,
    job_id_in_header,
    matches_script,
    script_heads,
    was_rejected,
    written_at,
)
from supervisor_tasks.slurm.squeue import SqueueRow, listed_jobs
from tests.support.slurm_samples import DELIMITER, OTHER, OURS, sample, squeue_sample


def listing() -> dict[SlurmId, SqueueRow]:
    return listed_jobs(CommandAnswer(0, squeue_sample("squeue-listing"), ""), DELIMITER)


def test_has_job_name__renamed__its_output_still_tells() -> None:
    assert listing()[SlurmId(3)].name == "renamed"
    assert [
        slurm_id for slurm_id, job in listing().items() if has_job_name(job, OURS)
    ] == [3]


def test_script_heads__recorded__second_lines_of_the_scripts_that_there_are() -> None:
    heads = script_heads(
        CommandAnswer(0, sample("scontrol-write-batch-script"), ""), DELIMITER
    )
    assert heads == {
        3: script_header(OURS),
        4: "#marker",
        7: "#marker",
        9: "# This script was created by sbatch --wrap.",
    }


@pytest.mark.parametrize(
    "first",
    ["#!/bin/sh\x0b" + script_header(OURS), "#!/bin/sh\r" + script_header(OURS)],
)
def test_script_heads__line_that_only_looks_like_two__is_one(first: str) -> None:
    heads = script_heads(
        CommandAnswer(0, f"{DELIMITER} 3 {first}\ntrue\n{DELIMITER} end\n", ""),
        DELIMITER,
    )
    assert heads == {3: "true"}


def test_script_heads__cut_off__is_an_error() -> None:
    with pytest.raises(SlurmUnavailableError):
        script_heads(
            CommandAnswer(0, sample("scontrol-write-batch-script")[:-3], ""),
            DELIMITER,
        )


def sought(job_id: JobId = OURS, **owners: JobId) -> ScriptSearch:
    user = Address("0x" + "ab" * 20)
    return ScriptSearch(
        job_id,
        user,
        100.0,
        {SlurmId(int(number[1:])): {owner} for number, owner in owners.items()},
    )


def test_candidates__jobs_with_the_name_or_submitted_later__but_no_other_of_ours() -> (
    None
):
    rows, late = listing().values(), listing()[SlurmId(9)].submit_s + 100.0
    assert {job.slurm_id for job in sought().suspects(rows, late)} == {3, 9, 10}
    assert {job.slurm_id for job in sought(_3=OURS, _9=OTHER).suspects(rows, late)} == {
        3,
        10,
    }
    assert {job.slurm_id for job in sought(OTHER).suspects(rows, late)} == {9, 10}


def test_matches_script__by_the_header_of_a_script__or_by_its_word_without_one() -> (
    None
):
    jobs = [listing()[SlurmId(number)] for number in (3, 9)]
    assert (
        matches_script(
            OURS, jobs, {SlurmId(3): script_header(OURS), SlurmId(9): "true"}, set()
        )
        is True
    )
    assert (
        matches_script(
            OURS, jobs, {SlurmId(9): script_header(OURS), SlurmId(3): "true"}, set()
        )
        is True
    )
    assert (
        matches_script(OURS, jobs, {SlurmId(9): "true"}, {SlurmId(3)}) is True
    )  # it calls itself so, and has no script
    assert (
        matches_script(
            OURS, jobs, {SlurmId(3): script_header(OTHER), SlurmId(9): "true"}, set()
        )
        is False
    )
    # what 9 is, is not known
    assert matches_script(OTHER, jobs, {SlurmId(3): "true"}, {SlurmId(9)}) is None
    # 9 is forgotten by now
    assert matches_script(OTHER, jobs, {SlurmId(3): "true"}, set()) is False
    assert matches_script(OTHER, jobs * MAX_SCRIPTS, {}, set()) is None


def test_written_at__start_up_files_print__is_the_time_of_the_exact_file() -> None:
    answer = CommandAnswer(
        0,
        "welcome\nwritten 17 0xa.log.old\nnot written 19 0xa.log\nwritten 1700000000 0xa.log\n",
        "",
    )
    assert written_at(answer, "0xa.log") == 1_700_000_000
    assert written_at(answer, "0xb.log") is None


def test_job_id_in_header__several_lines__is_read_from_our_own_line_only() -> None:
    assert job_id_in_header(script_header(OURS)) == OURS
    assert [
        job_id_in_header(line)
        for line in ("true", "", f"{script_header(OURS)} ", f"# another job {OURS}")
    ] == [None] * 4


def test_batch_jobs_since__listing__has_the_batch_jobs_submitted_since_then() -> None:
    assert {job.slurm_id for job in batch_jobs_since(listing().values(), 0)} == {
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        9,
        10,
    }
    late = listing()[SlurmId(9)].submit_s
    assert {job.slurm_id for job in batch_jobs_since(listing().values(), late)} == {
        9,
        10,
    }


def test_was_rejected__failed_jobs__is_true_only_of_what_never_ran() -> None:
    assert was_rejected(JobRecord(SlurmId(1), "FAILED", 0, 256, "BadConstraints"))
    assert not was_rejected(JobRecord(SlurmId(1), "FAILED", 5, 256, "BadConstraints"))
    assert not was_rejected(JobRecord(SlurmId(1), "FAILED", 0, 256, "NonZeroExitCode"))
