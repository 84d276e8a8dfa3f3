"""The typed key/value store, on a real Postgres."""

import importlib
import pkgutil
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, text

import supervisor_tasks
from supervisor_tasks.benchmarking.cleanup import BENCHMARK_CLEANUP_REQUESTED
from supervisor_tasks.execution.claim_backoff import REVERT_STREAKS
from supervisor_tasks.ledger import facts as module
from supervisor_tasks.ledger import migrations
from supervisor_tasks.ledger.fact_store import Facts
from supervisor_tasks.ledger.facts import (
    DOCUMENT,
    FLAG,
    INT,
    OPTIONAL_INT,
    PROVIDER,
    REWIND,
    SLURM_START,
    TEXT,
    Fact,
    SlurmStart,
    Stored,
    dataclass_codec,
)
from supervisor_tasks.ledger.registrations import REGISTRATION_REQUESTED, Registrations
from supervisor_tasks.monitoring.slurm_tries import ANSWERED_SINCE_START, FAILED_TRIES
from supervisor_tasks.provider.offer import Machine
from tests.support.ledger import emptied


@dataclass(frozen=True, slots=True)
class Pair:
    first: str
    second: float


PAIR = Fact("test.pair", dataclass_codec(Pair))
NUMBER = Fact("test.number", INT)


@pytest.fixture
def facts(engine: Engine) -> Facts:
    emptied(engine)
    return Facts(engine, "here")


def make_older(engine: Engine, seconds: float) -> None:
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE facts SET since = since - :s * interval '1 second'"),
            {"s": seconds},
        )


def test_dataclass_codec__field_of_a_later_release__is_left_out() -> None:
    stored = '{"first": "a", "second": 2.5, "third": "of a later release"}'
    assert PAIR.codec.decode(stored) == Pair("a", 2.5)


@pytest.mark.parametrize(
    ("fact", "value", "stored"),
    [
        (Fact("test.text", TEXT), "a b ; 'c'", "a b ; 'c'"),
        (Fact("test.int", INT), -7, "-7"),
        (Fact("test.flag", FLAG), True, "true"),
        (Fact("test.flag", FLAG), False, "false"),
        (Fact("test.optional", OPTIONAL_INT), None, ""),
        (Fact("test.optional", OPTIONAL_INT), 0, "0"),
        (Fact("test.document", DOCUMENT), {"a": [1, None]}, '{"a": [1, null]}'),
        (PAIR, Pair("x", 1.5), '{"first": "x", "second": 1.5}'),
    ],
)
def test_fact__set__is_read_as_what_it_was(
    facts: Facts, engine: Engine, fact: Fact[Any], value: object, stored: str
) -> None:
    facts.set(fact, value)
    read = facts.read(fact)
    assert isinstance(read, Stored)
    assert read.value == value
    assert type(read.value) is type(value)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT value FROM facts")) == stored


def test_facts__set_again__keep_their_age_and_say_whether_they_are_new(
    facts: Facts, engine: Engine
) -> None:
    assert facts.set(NUMBER, 1)
    make_older(engine, 100.0)
    assert not facts.set(NUMBER, 1)
    old = facts.read(NUMBER)
    assert old is not None
    assert old.value == 1
    assert 100.0 <= old.age_s < 130.0
    assert facts.set(NUMBER, 2)
    new = facts.read(NUMBER)
    assert new is not None
    assert new.age_s < 50.0


def test_facts__not_set_or_cleared__are_none(facts: Facts) -> None:
    assert (facts.get(NUMBER), facts.read(NUMBER)) == (None, None)
    facts.set(NUMBER, 0)
    assert facts.get(NUMBER) == 0
    facts.clear(NUMBER)
    assert facts.read(NUMBER) is None


def test_clear_if__another_value_by_now__stays(facts: Facts) -> None:
    facts.set(NUMBER, 2)
    facts.clear_if(NUMBER, 1)
    assert facts.get(NUMBER) == 2
    facts.clear_if(NUMBER, 2)
    assert facts.get(NUMBER) is None


def test_clear_if__transaction_rolled_back__the_fact_stays(
    facts: Facts, engine: Engine
) -> None:
    facts.set(NUMBER, 2)
    with engine.connect() as connection:
        facts.clear_if(NUMBER, 2, connection)
        connection.rollback()
    assert facts.get(NUMBER) == 2


def test_facts__another_cluster__does_not_see_them(
    facts: Facts, engine: Engine
) -> None:
    facts.set(NUMBER, 2)
    there = Facts(engine, "there")
    assert there.get(NUMBER) is None
    there.clear(NUMBER)
    assert facts.get(NUMBER) == 2


def declared() -> list[tuple[str, Fact[Any]]]:
    """All facts that any module of the program declares, by where they are."""
    found = dict[int, tuple[str, Fact[Any]]]()
    for info in pkgutil.walk_packages(supervisor_tasks.__path__, "supervisor_tasks."):
        if ".migrations" in info.name or info.name.endswith("__main__"):
            continue
        for name, value in vars(importlib.import_module(info.name)).items():
            several = (
                value.values()
                if isinstance(value, dict) and not name.startswith("__")
                else (value,)
            )
            for fact in several:
                if isinstance(fact, Fact):
                    found.setdefault(id(fact), (f"{info.name}.{name}", fact))
    return list(found.values())


def test_facts__declared__have_short_machine_names_of_their_own() -> None:
    names = [fact.name for _, fact in declared()]
    assert len(names) > len([name for name in vars(module) if name.isupper()]) / 2
    assert sorted(names) == sorted(set(names))
    assert [
        name for name in names if not re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", name)
    ] == []


def test_migration__facts_under_old_names__are_renamed_and_its_reverse_restores_them(
    facts: Facts, engine: Engine
) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["url"] = engine.url.render_as_string(hide_password=False)
    command.downgrade(config, "0014")
    before = {
        "provider": "0x33",
        "slurmctld silent before": "1700000000 20 17",
        "SLURM is missed, tries": "3",
        "SLURM has answered since the start": "yes",
        "old benchmarks": "wanted",
        "rewind wanted": "",
        "registration wanted": "the operator",
        "in vain: claim-top-up": "4",
        "hardware": "[[0, 2, 16000]]",
    }
    with engine.begin() as connection:
        for name, value in before.items():
            connection.execute(
                text(
                    "INSERT INTO facts (cluster, name, value) VALUES ('here', :name, :value)"
                ),
                {"name": name, "value": value},
            )
    command.upgrade(config, "head")
    assert facts.get(PROVIDER) == "0x33"
    assert facts.get(SLURM_START) == SlurmStart("1700000000", 20.0, 17)
    assert (
        facts.get(FAILED_TRIES),
        facts.get(ANSWERED_SINCE_START),
        facts.get(BENCHMARK_CLEANUP_REQUESTED),
    ) == (
        3,
        True,
        True,
    )
    assert facts.read(REWIND) is not None
    assert facts.get(REVERT_STREAKS["claim-top-up"]) == 4
    registrations = Registrations(facts)
    assert registrations.asked(REGISTRATION_REQUESTED) == "the operator"
    assert registrations.hardware()[0] == (Machine(0, 2, 16000),)
    command.downgrade(config, "0014")
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT name, value FROM facts"))
        after = {row.name: row.value for row in rows}
    command.upgrade(config, "head")
    assert after == before
