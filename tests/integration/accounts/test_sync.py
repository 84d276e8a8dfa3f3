"""Accounts that are due: the directory is away, busy or refuses, and a fleet that makes
them later.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ldap3 import Connection, Server, Tls
from sqlalchemy import create_engine, text

from devgrid.chain.model import JobDefinition
from devgrid.cluster.ldap import ADMIN, GROUP, PEOPLE, Ldap
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.accounts.sync import MAX_BUSY_IN_A_ROW, make_due
from supervisor_tasks.jobs.model import Address, EffectKind
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.outbox import request
from tests.support.commands import supervisor
from tests.support.grid_assertions import rows
from tests.support.ldap_accounts import (
    FORM,
    customer,
    directory_of,
    entries,
    found,
    running_slapd,
)
from tests.support.ledger import migrated


@pytest.fixture(scope="module")
def ldap() -> Iterator[Ldap]:
    with running_slapd() as ldap:
        yield ldap


# --- what is due ----------------------------------------------------------------------


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with migrated() as (engine, _):
        ledger = Ledger(engine, "here", lambda _: None)
        yield ledger
        ledger.holder.close()


@contextmanager
def busy(ldap: Ldap, *customers: Address) -> Iterator[None]:
    """slapd answers 52 (unavailable) for these entries: it passes what is asked about
    them on to a server that is away.
    """
    conf = ldap.processes.folder / "ldap" / "slapd.conf"
    before = conf.read_text()
    elsewhere = [
        "moduleload back_ldap",
        "database ldap",
        *(f'suffix "{FORM.dn(one)}"' for one in customers),
        "uri ldap://127.0.0.1:1",
    ]
    text_of_it = "\n".join([*elsewhere, "database mdb"])
    start_again(ldap, before.replace("database mdb", text_of_it, 1))
    try:
        yield
    finally:
        start_again(ldap, before)


def start_again(ldap: Ldap, conf: str) -> None:
    ldap.processes.stop(ldap.processes.find("slapd"))
    (ldap.processes.folder / "ldap" / "slapd.conf").write_text(conf)
    ldap.start_server()


def ask_for(ledger: Ledger, *customers: Address) -> None:
    """They need accounts, the first of them first."""
    for one in customers:
        with ledger.engine.begin() as connection:
            request(connection, ledger.cluster, EffectKind.ACCOUNT, [one])


def left(ledger: Ledger) -> dict[str, Any]:
    """The effects that are open, by customer, in the order in which they are due."""
    query = "SELECT subject, last_error, due_at FROM effects WHERE done_at IS NULL ORDER BY due_at"
    with ledger.engine.connect() as connection:
        return {row.subject: row for row in connection.execute(text(query))}


def test_make_due__directory_is_busy_for_one__others_get_their_accounts(
    ldap: Ldap, ledger: Ledger
) -> None:
    unlucky, others = customer(), [customer() for _ in range(3)]
    ask_for(ledger, others[0], unlucky, *others[1:])
    with busy(ldap, unlucky):
        assert make_due(ledger, directory_of(ldap))
        assert list(left(ledger)) == [unlucky]
        assert "unavailable (52)" in left(ledger)[unlucky].last_error
        assert not make_due(ledger, directory_of(ldap))
    for one in others:
        assert entries(ldap, f"(uid={one})")


def test_make_due__directory_is_busy_for_all__asks_for_a_few_only(
    ldap: Ldap, ledger: Ledger
) -> None:
    """Those that it was not asked for come first the next time."""
    unlucky, other = [customer() for _ in range(MAX_BUSY_IN_A_ROW)], customer()
    ask_for(ledger, *unlucky, other)
    with busy(ldap, *unlucky):
        assert make_due(ledger, directory_of(ldap))
        assert not entries(ldap, f"(uid={other})")
        assert next(iter(left(ledger))) == other
        assert set(left(ledger)) == {other, *unlucky}
        wait_until(
            lambda: make_due(ledger, directory_of(ldap)), "the next try", 10.0, 0.1
        )
    assert set(left(ledger)) == set(unlucky)
    assert entries(ldap, f"(uid={other})")


# --- the fleet ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    running = Grid.start(GridOptions(block_time_s=0.25, ldap=True))
    try:
        running.fleet.start(flower=False)
        running.fleet.start_worker("second-worker")
        wait_until(lambda: listening(running), "the fleet to listen", 60.0, 0.1)
        yield running
    finally:
        running.stop()


def accounts(grid: Grid, search: str = "(uidNumber=*)") -> list[dict[str, Any]]:
    environment = grid.environment
    ca = Path(environment["LDAP_CA_PATH"])
    return found(
        environment["LDAP_URL"], environment["LDAP_BIND_PASSWORD"], ca, PEOPLE, search
    )


def change(grid: Grid, statement: str) -> None:
    engine = create_engine(grid.environment["DATABASE_URL"])
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


OPEN = "SELECT 1 FROM effects WHERE kind = 'account' AND done_at IS NULL"
ADD = """
    INSERT INTO effects (cluster, kind, subject, due_at, attempts, last_error, failing_since)
    SELECT cluster, 'account', {subject}, {due_at}, 1, {error}, now() FROM effects WHERE kind = 'account' LIMIT 1"""


def request_jobs(grid: Grid, number: int) -> list[str]:
    """That many customers ask for a job each that no provider here has room for."""
    customers = [grid.chain.new_account() for _ in range(number)]
    wanted = JobDefinition(gpus=10**6, batch_location_hash="f" * 64)
    for one in customers:
        grid.chain.admin.mint_credits(one.address, 10**18)
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda one: grid.chain.customers.request_job(one, wanted, 10**18),
                customers,
            )
        )
    return [one.address for one in customers]


def listening(grid: Grid) -> bool:
    """The first look of a new ledger begins at the present block."""
    return bool(rows(grid, "SELECT 1 FROM cursors WHERE stream = 'customers'"))


def test_fleet__directory_is_away__customers_get_accounts_with_unique_numbers_later(
    grid: Grid,
) -> None:
    slapd = grid.processes.find("slapd")
    grid.processes.kill(slapd)
    customers = request_jobs(grid, 8)
    left = "SELECT 1 FROM effects WHERE kind = 'account' AND done_at IS NULL AND failing_since IS NOT NULL"
    wait_until(
        lambda: bool(rows(grid, left)),
        "the fleet to find the directory away",
        60.0,
        0.1,
    )
    change(
        grid,
        "UPDATE effects SET failing_since = now() - interval '4 min' WHERE kind = 'account' AND done_at IS NULL",
    )
    alarm = "SELECT details FROM alarms WHERE name = 'ldap_unavailable'"
    wait_until(lambda: bool(rows(grid, alarm)), "the alarm", 60.0, 0.1)
    grid.processes.start_again("slapd")
    wait_until(
        lambda: {entry["uid"][0] for entry in accounts(grid)} >= set(customers),
        "all accounts",
        60.0,
        0.2,
    )
    numbers = [entry["uidNumber"] for entry in accounts(grid)]
    assert len(numbers) == len(set(numbers))
    wait_until(lambda: not rows(grid, OPEN), "the ledger to know", 30.0, 0.1)
    wait_until(lambda: not rows(grid, alarm), "the alarm to be off", 30.0, 0.1)


def test_fleet__claimed_job_was_requested_before_the_first_look__has_an_account(
    grid: Grid,
) -> None:
    """A new provider's first jobs, and those of a fleet that gets LDAP_URL later."""
    early = grid.chain.new_account()
    grid.chain.admin.mint_credits(early.address, 10**24)
    move = (
        "UPDATE cursors SET block_number = block_number {by} WHERE stream = 'customers'"
    )
    change(grid, move.format(by="+ 1000000"))
    grid.submit_script(early, "#!/bin/sh\ntrue\n")
    wait_until(
        lambda: bool(accounts(grid, f"(uid={early.address})")), "the account", 60.0, 0.2
    )
    change(grid, move.format(by="- 1000000"))


def test_fleet__one_is_refused_and_others_are_not__the_alarm_stays(grid: Grid) -> None:
    words = "'the directory rejects: no'"
    change(
        grid,
        ADD.format(subject="'another'", due_at="now() + interval '1 h'", error=words),
    )
    alarm = "SELECT raised_at, details FROM alarms WHERE name = 'ldap_request_rejected'"
    wait_until(lambda: bool(rows(grid, alarm)), "the alarm", 60.0, 0.1)
    before = rows(grid, alarm)
    assert before[0].details == {
        "effects": 1,
        "errors": ["the directory rejects: no"],
        "subjects": ["another"],
    }
    (one,) = request_jobs(grid, 1)
    wait_until(
        lambda: bool(accounts(grid, f"(uid={one})")), "another's account", 60.0, 0.1
    )
    done = "SELECT 1 FROM effects WHERE kind = 'account' AND subject = :one AND done_at IS NOT NULL"
    wait_until(lambda: bool(rows(grid, done, one=one)), "the ledger to know", 60.0, 0.1)
    assert rows(grid, alarm) == before
    change(grid, "DELETE FROM effects WHERE subject = 'another'")
    wait_until(lambda: not rows(grid, alarm), "the alarm to be off", 60.0, 0.1)


def test_fleet__one_fails_unexpectedly_each_time__is_parked_and_others_are_made(
    grid: Grid,
) -> None:
    """No address can be made of it: an error of our own, and not of the directory."""
    change(grid, ADD.format(subject="'no address'", due_at="now()", error="NULL"))
    of_it = "SELECT id, attempts, last_error, parked_at FROM effects WHERE subject = 'no address'"
    wait_until(
        lambda: rows(grid, of_it)[0].parked_at is not None,
        "the effect to be parked",
        60.0,
        0.1,
    )
    (one,) = request_jobs(grid, 1)
    wait_until(
        lambda: bool(accounts(grid, f"(uid={one})")), "another's account", 60.0, 0.1
    )
    alarm = "SELECT 1 FROM alarms WHERE name = 'effect_parked'"
    wait_until(lambda: bool(rows(grid, alarm)), "the alarm", 30.0, 0.1)
    parked = rows(grid, of_it)[0]
    shown = supervisor(
        "effect",
        "list",
        "--state",
        "parked",
        "--kind",
        "account",
        "-o",
        "json",
        env=grid.environment,
    )
    (row,) = json.loads(shown.stdout)
    assert (row["effect"], row["subject"], row["state"]) == (
        parked.id,
        "no address",
        None,
    )
    assert "is not an address" in row["last_error"]
    refused = supervisor(
        "effect",
        "abandon",
        str(parked.id),
        "--reason",
        "?",
        "--yes",
        env=grid.environment,
    )
    assert "expected an effect of a job" in refused.stderr
    retried = supervisor(
        "job",
        "retry",
        "--effect",
        str(parked.id),
        "--yes",
        "-o",
        "json",
        env=grid.environment,
    )
    assert [again["subject"] for again in json.loads(retried.stdout)] == ["no address"]
    wait_until(
        lambda: rows(grid, of_it)[0].parked_at not in (None, parked.parked_at),
        "it to be parked again",
        60.0,
        0.1,
    )
    change(grid, "DELETE FROM effects WHERE subject = 'no address'")
    wait_until(lambda: not rows(grid, alarm), "the alarm to be off", 30.0, 0.1)


@pytest.mark.chaos
def test_fleet__directory_rejects__alarm_until_it_does_not(grid: Grid) -> None:
    """The group is gone: an alarm is raised. Once it is back and the time has come, the
    alarm is off.
    """
    server = Server(
        grid.environment["LDAP_URL"],
        tls=Tls(ca_certs_file=grid.environment["LDAP_CA_PATH"]),
    )
    with Connection(
        server, ADMIN, grid.environment["LDAP_BIND_PASSWORD"]
    ) as connection:
        connection.delete(GROUP)  # type: ignore[no-untyped-call]
        (one,) = request_jobs(grid, 1)
        alarm = "SELECT details FROM alarms WHERE name = 'ldap_request_rejected'"
        wait_until(lambda: bool(rows(grid, alarm)), "the alarm", 60.0, 0.1)
        details = rows(grid, alarm)[0].details
        assert details["subjects"] == [one]
        assert (
            f"member uid={one},{PEOPLE} of {GROUP}: noSuchObject (32)"
            in details["errors"][0]
        )
        connection.add(GROUP, ["groupOfNames"], {"member": ADMIN})  # type: ignore[no-untyped-call]
    wait_until(lambda: not rows(grid, alarm), "the alarm to be off", 90.0, 0.2)
    assert len(accounts(grid, f"(uid={one})")) == 1
