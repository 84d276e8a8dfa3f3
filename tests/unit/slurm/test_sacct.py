"""Accounting says with which line a job was submitted, even if its owner has renamed it
since.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_tasks.jobs.model import Address
from supervisor_tasks.slurm.parsers import (
    CommandAnswer,
    QuestionRejectedError,
    SlurmUnavailableError,
)
from supervisor_tasks.slurm.sacct import (
    FIELDS,
    accounted_jobs,
    sacct_by_id,
    sacct_histories,
    sacct_named,
    submissions_by_user,
    submitted_as,
)
from tests.support.slurm_samples import (
    DELIMITER,
    NO_SIZE,
    OTHER,
    OURS,
    printed,
    sacct_sample,
)

UNKNOWN = "sacct: error: Invalid user id: 0xa\n"
RECORD = ("7", "COMPLETED", "60", "0:0", "0xc", "1700000000", "1700000060")


def test_submitted_as__renamed_job__accounting_has_the_line_it_was_submitted_with() -> (
    None
):
    history = CommandAnswer(0, sacct_sample("sacct-submit-lines"), "")
    assert [seen.slurm_id for seen in submitted_as(history, DELIMITER, OURS)] == [3]
    assert submitted_as(history, DELIMITER, OTHER) == []


@pytest.mark.parametrize("kept", [1, 30, -3])
def test_submitted_as__cut_off_or_failed__is_not_an_empty_history(kept: int) -> None:
    with pytest.raises(SlurmUnavailableError):
        submitted_as(
            CommandAnswer(0, sacct_sample("sacct-submit-lines")[:kept], ""),
            DELIMITER,
            OURS,
        )
    with pytest.raises(SlurmUnavailableError):
        submitted_as(
            CommandAnswer(1, "", "sacct: error: slurmdbd: connection refused"),
            DELIMITER,
            OURS,
        )


def test_submissions_by_user__of_several_users__each_has_its_own() -> None:
    both = f"USERMARK 0xa\n{sacct_sample('sacct-submit-lines')}USERMARK 0xb\nUSERMARK end\n"
    told = submissions_by_user(CommandAnswer(0, both, ""), "USERMARK")
    assert list(told) == ["0xa", "0xb"]
    assert [seen.slurm_id for seen in submitted_as(told["0xa"], DELIMITER, OURS)] == [3]
    assert submitted_as(told["0xb"], DELIMITER, OURS) == []


@pytest.mark.parametrize(
    "answer",
    [
        CommandAnswer(0, "USERMARK 0xa\n", ""),
        CommandAnswer(1, "USERMARK 0xa\n", "no slurmdbd"),
        CommandAnswer(0, "USERMARK 0xa\nUSERMARK unknown 0xa\n", UNKNOWN),
        CommandAnswer(0, "USERMARK 0xa\nUSERMARK unknown 0xa\nUSERMARK en", UNKNOWN),
        CommandAnswer(
            1, "USERMARK 0xa\nUSERMARK unknown 0xa\nUSERMARK 0xb\n", "no slurmdbd"
        ),
    ],
)
def test_submissions_by_user__cut_off_or_failed__is_an_error(
    answer: CommandAnswer,
) -> None:
    with pytest.raises(SlurmUnavailableError):
        submissions_by_user(answer, "USERMARK")


def test_submissions_by_user__one_user_is_unknown__his_alone_is_refused() -> None:
    both = (
        "USERMARK 0xa\nUSERMARK unknown 0xa\n"
        f"USERMARK 0xb\n{sacct_sample('sacct-submit-lines')}USERMARK end\n"
    )
    told = submissions_by_user(CommandAnswer(0, both, UNKNOWN), "USERMARK")
    assert list(told) == ["0xa", "0xb"]
    with pytest.raises(QuestionRejectedError, match="Invalid user id: 0xa"):
        submitted_as(told["0xa"], DELIMITER, OURS)
    assert [seen.slurm_id for seen in submitted_as(told["0xb"], DELIMITER, OURS)] == [3]


def test_accounted_jobs__any_text_in_a_line__is_one_record() -> None:
    hostile = f"sbatch --job-name={OURS} --output={OURS}.log\n7|COMPLETED|60|0:0|0xc|1|2|x|\n|{'0' * len(DELIMITER)}"
    (record,) = accounted_jobs(
        CommandAnswer(0, printed((*RECORD, hostile, *NO_SIZE)), ""), DELIMITER
    )
    assert record.submit_line == hostile
    assert record.job_id is None


@pytest.mark.parametrize(
    "line",
    [
        f"sbatch --job-name={OURS}",
        f"sbatch --output={OURS}.log",
        f"sbatch x--job-name={OURS} --output={OURS}.log",
        f"sbatch --job-name={OURS}1 --output={OURS}.log",
        "",
    ],
)
def test_job_id__of_a_line_that_is_not_ours__is_not_ours(line: str) -> None:
    (record,) = accounted_jobs(
        CommandAnswer(0, printed((*RECORD, line, *NO_SIZE)), ""), DELIMITER
    )
    assert record.job_id != OURS


def test_recorded__just_requeued_or_suspended__has_no_line_for_a_moment() -> None:
    records = accounted_jobs(
        CommandAnswer(0, sacct_sample("sacct-requeued-at-once"), ""), DELIMITER
    )
    assert [
        (one.record.state, one.record.user) for one in records if not one.submit_line
    ]
    assert not [one for one in records if not one.submit_line and one.job_id]


def test_submitted_as__run_again__is_its_last_run() -> None:
    line = f"sbatch --job-name={OURS} --output={OURS}.log"
    first = (
        "7",
        "REQUEUED",
        "9",
        "0:0",
        "0xc",
        "1700000000",
        "1700000009",
        line,
        *NO_SIZE,
    )
    both = printed((*RECORD[:5], "1700000010", "1700000070", line, *NO_SIZE), first)
    assert [
        seen.state for seen in submitted_as(CommandAnswer(0, both, ""), DELIMITER, OURS)
    ] == ["COMPLETED"]


@pytest.mark.parametrize("place", [0, 2, 3, 5])
def test_accounted_jobs__record_that_cannot_be_read__is_named(place: int) -> None:
    wrong = (*RECORD[:place], "what", *RECORD[place + 1 :], "sbatch", *NO_SIZE)
    with pytest.raises(SlurmUnavailableError, match="what"):
        accounted_jobs(CommandAnswer(0, printed(wrong), ""), DELIMITER)


@given(st.text(max_size=300), st.text(max_size=100), st.integers(0, 255))
def test_accounted_jobs__any_output__gives_a_result_or_an_error_of_ours(
    stdout: str, stderr: str, status: int
) -> None:
    try:
        accounted_jobs(CommandAnswer(status, stdout, stderr), DELIMITER)
    except SlurmUnavailableError:
        return


def test_sacct__by_id_by_name_or_histories__asks_for_the_same_fields_of_each_run() -> (
    None
):
    shape = [
        "--noheader",
        "--parsable",
        "--allocations",
        "--duplicates",
        f"--delimiter=|{DELIMITER}",
    ]
    shared = [
        "env",
        "SLURM_TIME_FORMAT=%s",
        "sacct",
        *shape,
        f"--format={','.join(FIELDS)}",
    ]
    assert sacct_by_id("sacct", "1,2", DELIMITER) == [*shared, "--jobs=1,2"]
    assert sacct_named("sacct", "n", "0xc", 9, DELIMITER) == [
        *shared,
        "--name=n",
        "--user=0xc",
        "--starttime=now-9minutes",
    ]
    of_two = sacct_histories("sacct", {Address("0xd"): 3, Address("0xc"): 9}, DELIMITER)
    assert of_two[3:] == ["histories", "0xc:9 0xd:3", *shared]
