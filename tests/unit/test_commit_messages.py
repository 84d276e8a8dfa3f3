"""The hook that checks commit messages."""

import subprocess
from pathlib import Path

import pytest

BODY = "The node rejects more, as test_fees.py shows.\n"
SCISSORS = "# ------------------------ >8 ------------------------\n"
HOOK = Path(__file__).resolve().parents[2] / ".githooks" / "commit-msg"


def checked(tmp_path: Path, message: str) -> tuple[int, str]:
    file = tmp_path / "message"
    file.write_text(message)
    done = subprocess.run(
        [str(HOOK), str(file)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "message",
    [
        "wallet: cap the replacement fee at the node's limit\n\nWhy, and which test shows it.\n",
        f"slurm/squeue: read one field more\n\n{BODY}",
        f"logs, cli: tell the ledger everywhere\n\n{BODY}",
        f"# a comment of git's\ndocs: name the files\n\n{BODY}",
        "cli: list jobs\n\nThe operator asks (often!).\n\n* rows: ten\n",
        "cli: list jobs\n\nThe operator reads the list\nof `all_jobs()`.\n",
        f"cli: list jobs\n\n{BODY}\nCo-authored-by: A B <a@example.org>\n",
        "Merge branch 'a'\n",
        'Revert "wallet: cap the fee"\n',
        "fixup! wallet: cap the fee\n",
        "squash! wallet: cap the fee\n",
    ],
)
def test_message__as_the_project_writes_them__is_taken(
    tmp_path: Path, message: str
) -> None:
    assert checked(tmp_path, message) == (0, "")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("wallet: " + "x" * 65 + "\n", "at most 72 characters"),
        ("Cap the fee\n", "an area first"),
        ("wallet: Cap the fee\n", "an area first"),
        ("wallet,: cap the fee\n", "an area first"),
        ("wallet: cap the fee.\n", "no full stop"),
        ("wallet: cap the fee\nbecause\n", "an empty line"),
        ("", "an area first"),
        ("wallet: cap the fee\n", "a body below it"),
        ("wallet: cap the fee\n\n\n", "a body below it"),
        ("wallet: cap the fee\n\n# The node rejects more.\n", "a body below it"),
        ("wallet: cap the fee\n\nbecause the node rejects more\n", "a body below it"),
        ("wallet: cap the fee\n\nFee.\n", "a body below it"),
        ("wallet: cap the fee\n\nfees.py 1.5\n", "a body below it"),
        (
            "wallet: cap the fee\n\nSigned-off-by: A B. C. <a@example.org>\n",
            "a body below it",
        ),
        (
            f"wallet: cap the fee\n\n{SCISSORS}+# A line of the diff.\n",
            "a body below it",
        ),
    ],
)
def test_message__otherwise__is_refused_with_what_is_expected(
    tmp_path: Path, message: str, expected: str
) -> None:
    status, told = checked(tmp_path, message)
    assert status == 1
    assert expected in told
