"""How the values of facts become texts and values again; integration/ledger stores
them.
"""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from supervisor_tasks.ledger.facts import (
    BALANCE,
    DOCUMENT,
    FLAG,
    INT,
    OPTIONAL_INT,
    SLURM_START,
    TEXT,
    Balance,
    Codec,
    SlurmStart,
    dataclass_codec,
)
from supervisor_tasks.ledger.registrations import REGISTRATION_RECORD
from supervisor_tasks.provider.registration_rules import RegistrationRecord


@dataclass(frozen=True, slots=True)
class Pair:
    second: float
    first: str = "none"


PAIR = dataclass_codec(Pair)


@pytest.mark.parametrize(
    ("codec", "value", "stored"),
    [
        (TEXT, "", ""),
        (TEXT, " a\nb ", " a\nb "),
        (INT, 0, "0"),
        (INT, -7, "-7"),
        (INT, 2**70, "1180591620717411303424"),
        (FLAG, True, "true"),
        (FLAG, False, "false"),
        (OPTIONAL_INT, None, ""),
        (OPTIONAL_INT, 0, "0"),
        (OPTIONAL_INT, 123, "123"),
        (DOCUMENT, {}, "{}"),
        (DOCUMENT, {"é": [1, None, {"b": 0.5}]}, '{"\\u00e9": [1, null, {"b": 0.5}]}'),
        # the fields are sorted, so that equal values have equal texts
        (PAIR, Pair(1.5, "x"), '{"first": "x", "second": 1.5}'),
        (PAIR, Pair(1.5), '{"first": "none", "second": 1.5}'),
        (
            SLURM_START.codec,
            SlurmStart("100", 20.5, 7),
            '{"booted": "100", "first_id": 7, "silent_s": 20.5}',
        ),
        (
            BALANCE.codec,
            Balance("0xab", 10**30),
            f'{{"address": "0xab", "wei": 1{"0" * 30}}}',
        ),
    ],
)
def test_codec__value_of_each_kind__has_this_text_and_is_read_as_it_was(
    codec: Codec[Any], value: object, stored: str
) -> None:
    assert codec.encode(value) == stored
    read = codec.decode(stored)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("stored", ["", "True", "TRUE", "1", "yes", " true"])
def test_flag__other_text_than_true__is_false(stored: str) -> None:
    assert FLAG.decode(stored) is False


@pytest.mark.parametrize(
    ("codec", "stored"),
    [
        (INT, ""),
        (INT, "1.5"),
        (INT, "none"),
        (OPTIONAL_INT, "None"),
        (OPTIONAL_INT, " "),
        (DOCUMENT, ""),
        (DOCUMENT, "{"),
        (PAIR, "{"),
    ],
)
def test_codec__text_of_another_kind__is_an_error(
    codec: Codec[Any], stored: str
) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  the texts are Python's own
        codec.decode(stored)


@pytest.mark.parametrize(
    ("stored", "value"),
    [
        ('{"second": 2.5, "first": "a", "third": [1]}', Pair(2.5, "a")),
        ('{"second": 2.5}', Pair(2.5, "none")),
        ('{"second": 2.5, "third": 0}', Pair(2.5, "none")),
    ],
    ids=["of a later release", "of an earlier release", "of another release"],
)
def test_dataclass_codec__text_of_another_release__has_the_fields_of_this_one(
    stored: str, value: Pair
) -> None:
    assert PAIR.decode(stored) == value


def test_registration_record__text_of_a_later_release__has_the_fields_of_this_one() -> (
    None
):
    record = RegistrationRecord(
        sent="digest", rejected=("first", "second"), given=(("gpu", "a100"),)
    )
    codec = REGISTRATION_RECORD.codec
    assert codec.decode(codec.encode(record)) == record
    document = json.loads(codec.encode(record)) | {"of_a_later_release": 1}
    assert codec.decode(json.dumps(document)) == record


def test_dataclass_codec__field_without_a_default_is_missing__is_an_error() -> None:
    with pytest.raises(TypeError, match="second"):
        PAIR.decode('{"first": "a"}')
