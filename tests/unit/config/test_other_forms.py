"""The Go program's variables that hold our settings in another form: what each text
becomes, and which text is malformed.
"""

import pytest

from supervisor_tasks.config.other_forms import in_our_form

PAIRS, PERCENT = "BENCHMARK_ENV", "BENCHMARK_HPL_MEMORY_PERCENT"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A=b", "A=b"),
        ("A=b,C=d", "A=b C=d"),
        ("A=b,C=d,", "A=b C=d"),
        ("A=b, C=d", "A=b C=d"),
        (" A =b", "A=b"),
        ("A=b=c", "A=b=c"),
        ("A=", "A=''"),
        ("A=b c", "A='b c'"),
        ("A= b", "A=' b'"),
        ("A=$(id);`id`", "A='$(id);`id`'"),
        ("A=it's", "A='it'\"'\"'s'"),
        (" , ,", ""),
    ],
)
def test_in_our_form__pairs_with_commas__are_quoted_words(
    text: str, words: str
) -> None:
    assert in_our_form({PAIRS: text}) == ({"benchmark_environment": words}, [])


@pytest.mark.parametrize("text", ["A", "=b", " =b", "A=b,C", "A=b,=d", "A:b"])
def test_in_our_form__pair_without_name_or_equals_sign__is_malformed(text: str) -> None:
    line = f"BENCHMARK_ENV: found {text!r}; expected NAME=value,NAME=value"
    assert in_our_form({PAIRS: text}) == ({}, [line])


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("100", "1.0"),
        ("100.0", "1.0"),
        ("80", "0.8"),
        ("080", "0.8"),
        ("12.5", "0.125"),
        ("1", "0.01"),
        ("0.5", "0.005"),
    ],
)
def test_in_our_form__number_of_per_cent__is_a_share_of_one(
    text: str, share: str
) -> None:
    found = in_our_form({PERCENT: text})
    assert found == ({"benchmark_hpl_memory_share": share}, [])


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "0.0",
        "000",
        "100.1",
        "101",
        "999",
        "1000",
        "-1",
        "+5",
        "80%",
        "80.",
        ".5",
        "1e1",
        "1_0",
        " 80",
        "80\n",
        "٨٠",
        "nan",
        "inf",
        "half",
    ],
)
def test_in_our_form__no_number_of_per_cent__is_malformed(text: str) -> None:
    line = (
        f"{PERCENT}: found {text!r}; expected a number of per cent above 0, up to 100"
    )
    assert in_our_form({PERCENT: text}) == ({}, [line])


@pytest.mark.parametrize(
    ("environment", "given"),
    [
        ({}, {}),
        ({PAIRS: "", PERCENT: ""}, {}),
        ({PAIRS: "A=b", "BENCHMARK_ENVIRONMENT": "X=y"}, {}),
        ({PAIRS: "malformed", "BENCHMARK_ENVIRONMENT": "X=y"}, {}),
        (
            {PAIRS: "A=b", "BENCHMARK_ENVIRONMENT": ""},
            {"benchmark_environment": "A=b"},
        ),
        (
            {PAIRS: "A=b", "BENCHMARK_HPL_MEMORY_SHARE": "0.3", PERCENT: "80"},
            {"benchmark_environment": "A=b"},
        ),
        (
            {PAIRS: "A=b", PERCENT: "80", "SLURM_PARTITION": "main"},
            {"benchmark_environment": "A=b", "benchmark_hpl_memory_share": "0.8"},
        ),
        ({"BENCHMARK_ENVIRONMENT": "X=y"}, {}),
    ],
    ids=[
        "none",
        "empty",
        "both, ours counts",
        "both, the other one malformed",
        "ours is empty",
        "one of two settings is ours",
        "two settings",
        "ours alone is left to the settings",
    ],
)
def test_in_our_form__either_variable_or_both__is_given_unless_ours_is_set(
    environment: dict[str, str], given: dict[str, str]
) -> None:
    assert in_our_form(environment) == (given, [])


def test_in_our_form__one_of_two_malformed__the_other_one_is_given() -> None:
    given, lines = in_our_form({PAIRS: "A", PERCENT: "80"})
    assert given == {"benchmark_hpl_memory_share": "0.8"}
    assert lines == ["BENCHMARK_ENV: found 'A'; expected NAME=value,NAME=value"]
    given, lines = in_our_form({PAIRS: "A", PERCENT: "half"})
    assert given == {}
    assert [line.partition(":")[0] for line in lines] == [PAIRS, PERCENT]
