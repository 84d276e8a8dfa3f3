"""What a callback must look like before it is believed to be one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpc_callbacks.validation import CallbackPayload, MalformedCallbackError, validate

NAME = "0x" + "0a" * 32
STORED = {4: "RUNNING", 6: "CANCELLED", 7: "FINISHED", 8: "FAILED", 9: "OUT_OF_CREDITS"}
REFUSED = {
    0: "UNSPECIFIED",
    1: "PENDING",
    2: "META_SCHEDULED",
    3: "SCHEDULED",
    10: "PANICKED",
}


@pytest.mark.parametrize("status", STORED)
def test_validate__what_plugins_say__is_kept_as_it_was(status: int) -> None:
    report = validate(NAME, 7, 61, status, 768)
    assert report == CallbackPayload(NAME, 7, status, 61, 768)
    assert not report.ignored


@pytest.mark.parametrize("status", REFUSED)
def test_validate__status_that_no_plugin_reports__is_refused_by_name(
    status: int,
) -> None:
    with pytest.raises(
        MalformedCallbackError, match=f"status: found .*{REFUSED[status]}"
    ):
        validate(NAME, 7, 0, status, 0)


@pytest.mark.parametrize("status", [5, 11, 2**31 - 1, -1])
def test_validate__status_of_other_versions__is_ignored(status: int) -> None:
    assert validate(NAME, 7, 0, status, 0).ignored


@pytest.mark.parametrize(
    ("slurm_id", "duration_s", "exit_code"),
    [(1, 0, -(2**31)), (2**32 - 1, 2**31 - 1, 2**31 - 1)],
)
def test_validate__at_the_limits__is_taken(
    slurm_id: int, duration_s: int, exit_code: int
) -> None:
    validate(NAME, slurm_id, duration_s, 7, exit_code)


@pytest.mark.parametrize(
    ("slurm_id", "duration_s", "exit_code", "said"),
    [
        (0, 0, 0, "id: found 0;"),
        (2**32, 0, 0, "id: found 4294967296;"),
        (1, 2**31, 0, "duration: found 2147483648;"),
        (1, 0, 2**31, "exit_code: found 2147483648;"),
        (1, 0, -(2**31) - 1, "exit_code: found -2147483649;"),
    ],
)
def test_validate__beyond_the_limits__tells_field_and_value(
    slurm_id: int, duration_s: int, exit_code: int, said: str
) -> None:
    with pytest.raises(MalformedCallbackError, match=said):
        validate(NAME, slurm_id, duration_s, 7, exit_code)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0x",
        NAME[2:],
        NAME.upper(),
        NAME + "0",
        NAME[:-1],
        NAME + "\n",
        " " + NAME,
        "0x" + "٣" * 64,
    ],
)
def test_validate__name_that_is_none__is_refused(name: str) -> None:
    with pytest.raises(MalformedCallbackError, match="name: found"):
        validate(name, 7, 0, 7, 0)


@given(st.text())
def test_validate__any_text_for_a_name__makes_a_short_answer_of_one_printable_line(
    name: str,
) -> None:
    with pytest.raises(MalformedCallbackError) as caught:
        validate(name, 7, 0, 7, 0)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
