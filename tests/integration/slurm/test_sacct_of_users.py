"""The command that asks accounting for several users, in a shell with a made-up sacct:
what each failure of one user's question does to the others.
"""

import subprocess
from pathlib import Path

import pytest

from supervisor_tasks.jobs.model import Address
from supervisor_tasks.slurm.parsers import (
    CommandAnswer,
    QuestionRejectedError,
    SlurmUnavailableError,
)
from supervisor_tasks.slurm.sacct import (
    accounted_jobs,
    sacct_histories,
    submissions_by_user,
)
from tests.support.slurm_samples import DELIMITER, NO_SIZE, printed

BAD, GOOD, LAST = Address("0xa"), Address("0xb"), Address("0xc")
RECORD = ("7", "FAILED", "9", "1:0", GOOD, "1", "10", "sbatch", *NO_SIZE)
LINE = printed(RECORD).rstrip("\n")
UNKNOWN = "sacct: error: Invalid user id: "
SACCT = """#!/bin/sh
case "$*" in
*--user={bad}*) printf '%s\\n' "{error}" >&2; exit {status} ;;
*--user={good}*) echo "a warning" >&2; echo "{line}" ;;
esac
"""


def asked(folder: Path, error: str, status: int) -> dict[str, CommandAnswer]:
    """Ask for three users with a sacct that fails for the first."""
    sacct = folder / "sacct"
    sacct.write_text(
        SACCT.format(bad=BAD, good=GOOD, line=LINE, error=error, status=status)
    )
    sacct.chmod(0o755)
    argv = sacct_histories(str(sacct), dict.fromkeys((BAD, GOOD, LAST), 5), DELIMITER)
    ended = subprocess.run(
        argv, input="USERMARK\n", capture_output=True, text=True, check=False
    )
    assert error in ended.stderr
    answer = CommandAnswer(ended.returncode, ended.stdout, ended.stderr)
    return submissions_by_user(answer, "USERMARK")


@pytest.mark.parametrize("before", ["", "sacct: error: a warning\n"])
def test_sacct_histories__login_node_does_not_know_a_user__others_are_answered(
    tmp_path: Path, before: str
) -> None:
    histories = asked(tmp_path, before + UNKNOWN + BAD, 1)
    assert list(histories) == [BAD, GOOD, LAST]
    with pytest.raises(QuestionRejectedError):
        accounted_jobs(histories[BAD], DELIMITER)
    (row,) = accounted_jobs(histories[GOOD], DELIMITER)
    assert row.record.slurm_id == 7
    assert accounted_jobs(histories[LAST], DELIMITER) == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("sacct: error: Problem talking to the database: Connection refused", 1),
        (UNKNOWN + BAD, 2),
        (UNKNOWN + GOOD, 1),
        ("sacct: error: Invalid group id: 0xa", 1),
        ("", 1),
    ],
)
def test_sacct_histories__one_fails_in_another_way__all_fail(
    tmp_path: Path, error: str, status: int
) -> None:
    with pytest.raises(SlurmUnavailableError):
        asked(tmp_path, error, status)
