"""The token of a submission: what it signs, how it is removed from a comment, and for
how long it counts; integration/slurm checks it in Lua.
"""

from dataclasses import replace
from typing import Any

import pytest

from supervisor_tasks.jobs.model import Definition, JobId
from supervisor_tasks.slurm.submit_token import (
    Submission,
    expires_s,
    usable_s,
    with_token,
    without_token,
)

KEY = "0123456789abcdef" * 4
NOW_S = 1_800_000_000
DEFINITION = Definition(
    gpus=2, mem_per_cpu_mb=500, cpus_per_task=4, ntasks=3, batch_location_hash="hash"
)
SUBMISSION = Submission(
    job_id=JobId("0x" + "a" * 64),
    user="0x" + "Bc" * 20,
    definition=DEFINITION,
    limit_min=60,
    partition="main",
    comment="supervisor h:1",
    number=7,
    expires_s=NOW_S + 80,
)
# by Python's hmac, of the lines that integration/slurm/test_submit_token.py expects
CODE = "5a9d714a2a614c0966538eccbe5b99fc14fc4d0e7d2194241930d310eab0d111"
TOKEN = f" token=7.1800000080.{CODE}"


def code(submission: Submission, key: str = KEY) -> str:
    return with_token(submission, key).rpartition(".")[2]


def test_with_token__known_key__is_comment_number_expiry_and_code() -> None:
    assert with_token(SUBMISSION, KEY) == f"supervisor h:1{TOKEN}"


@pytest.mark.parametrize(
    "changes",
    [
        {"job_id": JobId("0x" + "b" * 64)},
        {"user": "0x" + "Bd" * 20},
        {"definition": replace(DEFINITION, gpus=3)},
        {"definition": replace(DEFINITION, mem_per_cpu_mb=501)},
        {"definition": replace(DEFINITION, cpus_per_task=3, ntasks=4)},
        {"limit_min": 61},
        {"partition": "gpu"},
        {"comment": "supervisor h:2"},
        {"number": 8},
        {"expires_s": NOW_S + 81},
        {"number": 71, "expires_s": 800_000_080},  # the same digits in a row
    ],
)
def test_with_token__other_value_of_what_a_job_costs__has_another_code(
    changes: dict[str, Any],
) -> None:
    assert code(replace(SUBMISSION, **changes)) != CODE


@pytest.mark.parametrize(
    "changes",
    [
        {"user": "0x" + "bc" * 20},
        {"user": "0X" + "BC" * 20},
        {"definition": replace(DEFINITION, batch_location_hash="other")},
    ],
)
def test_with_token__user_in_other_letters_or_another_script__has_the_same_code(
    changes: dict[str, Any],
) -> None:
    assert code(replace(SUBMISSION, **changes)) == CODE


@pytest.mark.parametrize("key", ["", KEY[:-1], KEY.upper(), KEY[::-1]])
def test_with_token__another_key__has_another_code(key: str) -> None:
    assert code(SUBMISSION, key) != CODE


@pytest.mark.parametrize(
    ("comment", "left"),
    [
        (f"supervisor h:1{TOKEN}", "supervisor h:1"),
        (f"{TOKEN}", ""),
        ("supervisor h:1", "supervisor h:1"),
        ("", ""),
        (f"supervisor h:1{TOKEN}{TOKEN}", f"supervisor h:1{TOKEN}"),
        (f"supervisor h:1{TOKEN} x", f"supervisor h:1{TOKEN} x"),
        (f"supervisor h:1{TOKEN}0", f"supervisor h:1{TOKEN}0"),
        (f"supervisor h:1{TOKEN[:-1]}", f"supervisor h:1{TOKEN[:-1]}"),
        (f"supervisor h:1{TOKEN.upper()}", f"supervisor h:1{TOKEN.upper()}"),
        (f"x token=.1.{CODE}", f"x token=.1.{CODE}"),
        (f"x token=1.{CODE}", f"x token=1.{CODE}"),
        (f"xtoken=7.1.{CODE}", f"xtoken=7.1.{CODE}"),
    ],
    ids=[
        "token",
        "token alone",
        "no token",
        "empty",
        "two tokens",
        "not at the end",
        "a digit more",
        "a digit less",
        "capital letters",
        "no number",
        "no expiry",
        "no space before",
    ],
)
def test_without_token__each_comment__loses_only_a_whole_token_at_its_end(
    comment: str, left: str
) -> None:
    assert without_token(comment) == left


@pytest.mark.parametrize(
    ("in_time_s", "message_timeout_s", "lasts_s", "usable"),
    [
        (0.0, 0.0, 60, 182.0),
        (10.0, 10.0, 80, 202.0),
        (10.0, 10.4, 80, 202.0),
        (10.0, 10.6, 81, 203.0),
        (10.0, 100.0, 170, 292.0),
    ],
)
def test_usable_s__each_time_of_a_message__lasts_longer_by_what_clocks_differ(
    in_time_s: float, message_timeout_s: float, lasts_s: int, usable: float
) -> None:
    assert expires_s(NOW_S, in_time_s, message_timeout_s) == NOW_S + lasts_s
    assert usable_s(in_time_s, message_timeout_s) == usable
