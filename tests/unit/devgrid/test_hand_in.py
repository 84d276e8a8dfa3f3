"""What a customer hands in to devgrid, and what the refusal says."""

import pytest

from devgrid.chain.model import ChainNode, ChainPrices, JobDefinition, Provider
from devgrid.hand_in import (
    CREDIT,
    MAX_FILE_BYTES,
    MAX_SCRIPT_BYTES,
    HandInError,
    check_balance,
    check_file_size,
    check_job,
    check_script_size,
    credits_text,
    job_named,
    wei_of,
    whole_number,
)

IDS = ["0xabc1" + "0" * 60, "0xabd2" + "0" * 60]
PROVIDER = Provider(
    "0x1", (ChainNode(2, 8, 16_000),) * 4, ChainPrices(), (), banned=False
)


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1.5", "two", "9" * 400, "11", "1e1", "٣"]
)
def test_whole_number__out_of_range_or_no_number__says_what_was_found(
    text: str,
) -> None:
    with pytest.raises(
        HandInError, match=r"--clusters: found .*; expected a whole number from 1 to 10"
    ):
        whole_number("--clusters", text, 10)


def test_whole_number__at_the_bounds__is_taken() -> None:
    assert (whole_number("n", "1", 10), whole_number("n", "10", 10)) == (1, 10)


@pytest.mark.parametrize(
    ("text", "wei"),
    [("1", CREDIT), ("0.000000000000000001", 1), ("2.5", 5 * CREDIT // 2)],
)
def test_wei_of__credits__are_exact(text: str, wei: int) -> None:
    assert wei_of(text) == wei


@pytest.mark.parametrize(
    "text",
    ["nan", "inf", "-inf", "-1", "0", "1e400", "ten", "", "1e-19", "1000000000001"],
)
def test_wei_of__no_amount__is_refused_in_credits(text: str) -> None:
    with pytest.raises(HandInError, match="credits: found "):
        wei_of(text)


def test_credits_text__an_amount__is_rounded_down() -> None:
    assert credits_text(1_234 * CREDIT + 99_999 * 10**13) == "1,234.9999 credits"


def test_job_named__beginning_of_one_id__is_that_job() -> None:
    assert job_named("0xABC", IDS) == IDS[0]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("0xab", "2 jobs"),
        ("0x", "no job"),
        ("", "no job"),
        ("nope", "no job"),
        (f"0x{'f' * 9000}", "no job"),
    ],
)
def test_job_named__unknown_or_ambiguous__says_so(name: str, says: str) -> None:
    with pytest.raises(HandInError, match=says) as raised:
        job_named(name, IDS)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 250


def test_check_job__more_than_any_cluster_has__says_what_there_is() -> None:
    definition = JobDefinition(cpus_per_task=2**70)
    with pytest.raises(
        HandInError,
        match=r"fits into a cluster: devgrid has 4 nodes with 32 CPUs, 64,000 MB and 8 GPUs",
    ):
        check_job(
            definition, 60, ChainPrices().of(definition), 10**40, {"devgrid": PROVIDER}
        )


def test_check_job__more_minutes_than_credits__says_how_many_can_be_paid() -> None:
    definition = JobDefinition(mem_per_cpu_mb=1024)
    with pytest.raises(
        HandInError,
        match=r"1,000 minutes of this job take 1,031.9200 credits .* expected 96 minutes",
    ):
        check_job(
            definition,
            1_000,
            ChainPrices().of(definition),
            100 * CREDIT,
            {"devgrid": PROVIDER},
        )


def test_check_job__that_fits_and_is_paid__passes() -> None:
    definition = JobDefinition()
    check_job(
        definition,
        60,
        ChainPrices().of(definition),
        100 * CREDIT,
        {"devgrid": PROVIDER},
    )


def test_check_balance__more_than_there_is__is_refused() -> None:
    with pytest.raises(
        HandInError,
        match=r"the top-up takes 2.0000 credits, and the customer has 1.0000 credits",
    ):
        check_balance(2 * CREDIT, CREDIT, "the top-up")


def test_check_file_size__at_and_above_the_bound__is_taken_and_refused() -> None:
    check_file_size("f", MAX_FILE_BYTES)
    with pytest.raises(HandInError, match="f: found more than 1,000,000 bytes"):
        check_file_size("f", MAX_FILE_BYTES + 1)


def test_check_script_size__at_and_above_the_bound__is_taken_and_refused() -> None:
    check_script_size(MAX_SCRIPT_BYTES)
    with pytest.raises(HandInError, match="4,000,001 bytes"):
        check_script_size(MAX_SCRIPT_BYTES + 1)
