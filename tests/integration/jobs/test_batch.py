"""Batches of effects on a real ledger: what is answered is recorded at once, even if
others hang, fail or are lost.
"""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import grpc
import pytest
from sqlalchemy import Engine, event, text
from structlog.testing import capture_logs

from devgrid.machine import deadline
from devgrid.processes import wait_until
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.grid import job_log
from supervisor_tasks.grid.grpc_channels import Channels
from supervisor_tasks.grid.job_log import GridLogger
from supervisor_tasks.jobs.batch import RECORD_EVERY_S, Batch
from supervisor_tasks.jobs.events import ScriptFetched, SubmitRejected, SubmitStarted
from supervisor_tasks.jobs.model import Address, EffectKind, JobId
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.outbox import (
    GROUPS_OF_ONE_CUSTOMER,
    ISOLATED_AFTER,
    LEASE_S,
    WORKER_ENDED,
    OpenEffect,
)
from tests.support.ledger import claim, job_id

POISON = "poison:1"
MANY = 50
WITHIN_S = 0.5  # the longest that an answer waits to be recorded
TRIES = 10


@pytest.fixture
def silent_service() -> Iterator[str]:
    """The address of a service that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def open_channel(address: str) -> grpc.Channel:
    if address == POISON:
        raise ZeroDivisionError("this was not foreseen")
    return Channels(tls=False).open(address)


def site_of(ledger: Ledger) -> WorkerContext:
    return WorkerContext(
        ledger, GridLogger(open_channel), None, None, dispatch=lambda _: None
    )


def to_be_told(ledger: Ledger, *numbers: int, logger: str = "") -> list[JobId]:
    """Jobs that SLURM has rejected, whose owners must be notified; without a grid logger
    that is done at once.
    """
    for number in numbers:
        events = (
            claim(number),
            ScriptFetched("echo", logger),
            SubmitStarted(10),
            SubmitRejected("no"),
        )
        ledger.record(*(JobChange(job_id(number), event) for event in events))
    return [job_id(number) for number in numbers]


def done(engine: Engine, kind: EffectKind = EffectKind.NOTIFY_CUSTOMER) -> set[str]:
    with engine.connect() as connection:
        query = text(
            "SELECT job_id FROM effects WHERE kind = :kind AND done_at IS NOT NULL"
        )
        return set(connection.scalars(query, {"kind": kind.value}))


def leased(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(
            connection.scalar(
                text("SELECT count(*) FROM effects WHERE lease IS NOT NULL")
            )
            or 0
        )


@contextmanager
def at_work(batch: Batch) -> Iterator[ThreadPoolExecutor]:
    """A worker that is told to end when this ends."""
    stop = threading.Event()
    with ThreadPoolExecutor(4) as threads:
        threads.submit(batch.run, lambda: not stop.is_set())
        try:
            yield threads
        finally:
            stop.set()
    batch.close()


@contextmanager
def commits(engine: Engine) -> Iterator[list[None]]:
    found: list[None] = []

    def count(_: object) -> None:
        found.append(None)

    event.listen(engine, "commit", count)
    try:
        yield found
    finally:
        event.remove(engine, "commit", count)


def test_batch__many__few_transactions(ledger: Ledger, engine: Engine) -> None:
    jobs = to_be_told(ledger, *range(1, MANY + 1))
    batch = Batch(site_of(ledger), EffectKind.NOTIFY_CUSTOMER)
    begun_s = time.monotonic()
    with commits(engine) as made:
        batch.run(lambda: True)
    elapsed_s = time.monotonic() - begun_s
    batch.close()
    assert done(engine) == set(jobs)
    # On a slow machine one of each is due after each pause, however little it has found.
    due = 2 * elapsed_s / RECORD_EVERY_S
    assert len(made) <= MANY / 2 + due, "leases and records"


def test_batch__one_hangs__others_are_recorded_and_new_ones_taken_meanwhile(
    ledger: Ledger, engine: Engine, silent_service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # it hangs to the end of this test
    monkeypatch.setattr(job_log, "TIMEOUT_S", deadline(job_log.TIMEOUT_S))
    (hangs,) = to_be_told(ledger, 1, logger=silent_service)
    first = to_be_told(ledger, *range(2, 12))
    batch = Batch(site_of(ledger), EffectKind.NOTIFY_CUSTOMER)
    with at_work(batch) as threads:
        wait_until(
            lambda: done(engine) == set(first),
            "the others to be done",
            20 * RECORD_EVERY_S,
            0.02,
        )
        later = to_be_told(ledger, *range(12, 20))
        # as a message: returns at once
        threads.submit(batch.run, lambda: True).result(deadline(5.0))
        wait_until(
            lambda: done(engine) == {*first, *later},
            "the new ones to be done",
            20 * RECORD_EVERY_S,
            0.02,
        )
        with engine.connect() as connection:
            held = text("SELECT job_id FROM effects WHERE lease IS NOT NULL")
            assert list(connection.scalars(held)) == [hangs]


def test_batch__several_hang__an_answer_is_recorded_within_half_a_second(
    ledger: Ledger, engine: Engine, silent_service: str
) -> None:
    # most of the groups under way: none of them makes a commit urgent
    to_be_told(ledger, *range(1, 5), logger=silent_service)
    batch = Batch(site_of(ledger), EffectKind.NOTIFY_CUSTOMER)
    numbers = iter(range(5, 5 + TRIES))

    def recording_s() -> float:
        """How long an answer takes until it is recorded."""
        (answered,) = to_be_told(ledger, next(numbers))
        begun_s = time.monotonic()
        batch.run(lambda: True)  # as a message: returns at once
        wait_until(
            partial(_is_done, engine, answered), "the answer to be recorded", 10.0, 0.01
        )
        return time.monotonic() - begun_s

    with at_work(batch):
        wait_until(
            lambda: leased(engine) == 4, "the silent ones to be under way", 10.0, 0.01
        )
        recording_s()  # the first is recorded at once, others wait for a commit's turn
        # a busy machine may leave the batch without a core in most of the tries
        assert any(recording_s() < WITHIN_S for _ in range(TRIES - 1))


def _is_done(engine: Engine, job: JobId) -> bool:
    return job in done(engine)


def test_batch__logger_that_can_never_be_reached__is_no_logger_and_logged_once_a_job(
    ledger: Ledger, engine: Engine
) -> None:
    jobs = to_be_told(ledger, 1, 2, logger="https://logger")
    logger = GridLogger(Channels(verified=False).open)
    site = WorkerContext(ledger, logger, None, None, dispatch=lambda _: None)
    with capture_logs() as lines:
        for _ in range(3):
            Batch(site, EffectKind.NOTIFY_CUSTOMER).run(lambda: True)
    assert done(engine) == set(jobs)
    unusable = [line for line in lines if line["event"] == "grid_logger_unusable"]
    assert sorted(line["job_id"] for line in unusable) == sorted(jobs)


def test_batch__one_fails_unexpectedly__others_are_done_and_it_is_parked_after_three(
    ledger: Ledger, engine: Engine
) -> None:
    (poison,) = to_be_told(ledger, 1, logger=POISON)
    others = to_be_told(ledger, *range(2, 12))
    batch = Batch(site_of(ledger), EffectKind.NOTIFY_CUSTOMER)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for tries in (1, 2, 3):
            connection.execute(
                text("UPDATE effects SET due_at = now() WHERE done_at IS NULL")
            )
            batch.run(lambda: True)
            query = "SELECT unexpected_failures, parked_at IS NOT NULL AS parked FROM effects WHERE job_id = :id"
            row = connection.execute(
                text(f"{query} AND done_at IS NULL AND kind = 'notify_customer'"),
                {"id": poison},
            ).one()
            assert row.parked == (tries == 3)
            assert row.parked or row.unexpected_failures == tries
    batch.close()
    assert done(engine) == set(others)


CANNOT_BE_WRITTEN = """
    CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
    CREATE TRIGGER no BEFORE UPDATE ON effects FOR EACH ROW WHEN (NEW.done_at IS NOT NULL AND NEW.job_id = '{}')
        EXECUTE FUNCTION no();
"""


def test_batch__one_whose_outcome_cannot_be_recorded__others_are(
    ledger: Ledger, engine: Engine
) -> None:
    jobs = to_be_told(ledger, *range(1, 12))
    with engine.begin() as connection:
        connection.execute(text(CANNOT_BE_WRITTEN.format(jobs[4])))
    batch = Batch(site_of(ledger), EffectKind.NOTIFY_CUSTOMER)
    try:
        batch.run(lambda: True)
    finally:
        batch.close()
        with engine.begin() as connection:
            connection.execute(text("DROP TRIGGER no ON effects; DROP FUNCTION no"))
    assert done(engine) == {*jobs} - {jobs[4]}
    with engine.connect() as connection:
        query = text(
            "SELECT lease, unexpected_failures, last_error FROM effects WHERE job_id = :id AND kind = 'notify_customer'"
        )
        row = connection.execute(query, {"id": jobs[4]}).one()
    assert (row.lease, row.unexpected_failures) == (None, 1)
    assert "not this one" in row.last_error


# The holder tries to give an effect back until its lease is over, so only the end of
# the lease may do it.
CANNOT_BE_GIVEN_BACK = f"""
    CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$;
    CREATE TRIGGER no BEFORE UPDATE ON effects FOR EACH ROW
        WHEN (NEW.last_error IS DISTINCT FROM OLD.last_error AND NEW.last_error <> '{WORKER_ENDED}') EXECUTE FUNCTION no();
"""


# Not if the database has started since: its tests share one, which may have been up for
# longer than a lease.
LEASE_THAT_RAN_OUT_COUNTS = text(
    "SELECT (now() - (1 + :lease_s) * interval '1 s' > pg_postmaster_start_time())::int"
)


def test_batch__a_failed_one_cannot_be_released__is_tried_when_its_lease_has_expired(
    ledger: Ledger, engine: Engine
) -> None:
    (poison,) = to_be_told(ledger, 1, logger=POISON)
    batch = Batch(site_of(ledger), EffectKind.NOTIFY_CUSTOMER)
    query = text(
        "SELECT lease, unexpected_failures, attempts FROM effects WHERE job_id = :id AND kind = 'notify_customer'"
    )
    expire = text(
        "UPDATE effects SET lease_until = now() - interval '1 s' WHERE lease IS NOT NULL"
    )
    with engine.begin() as connection:
        connection.execute(text(CANNOT_BE_GIVEN_BACK))
    try:
        batch.run(lambda: True)
        later = to_be_told(ledger, *range(2, 12))
        batch.run(lambda: True)
        assert done(engine) == set(later)
        with engine.begin() as connection:
            assert connection.execute(query, {"id": poison}).one().lease is not None
            connection.execute(expire)
            counts = connection.scalar(LEASE_THAT_RAN_OUT_COUNTS, {"lease_s": LEASE_S})
        ledger.effects.due_without_message()
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP TRIGGER no ON effects; DROP FUNCTION no"))
    batch.run(lambda: True)
    batch.close()
    with engine.connect() as connection:
        lease, unexpected_failures, attempts = connection.execute(
            query, {"id": poison}
        ).one()
    assert lease is None
    assert attempts >= 2
    # each failure but the one that could not be recorded
    assert unexpected_failures == attempts - 1 + counts


def test_batch__all_failed_twice__are_carried_out_one_after_the_other(
    ledger: Ledger, engine: Engine
) -> None:
    to_be_told(ledger, *range(1, 6))
    with engine.begin() as connection:
        failed = text(
            "UPDATE effects SET unexpected_failures = :n, failing_since = now()"
        )
        connection.execute(failed, {"n": ISOLATED_AFTER})
    under_way = []

    def take(ledger: Ledger, most: int) -> list[OpenEffect]:
        taken = ledger.effects.lease([EffectKind.NOTIFY_CUSTOMER], most)
        under_way.extend([leased(engine)] * bool(taken))
        return taken

    batch = Batch(site_of(ledger), EffectKind.NOTIFY_CUSTOMER, take)
    batch.run(lambda: True)
    batch.close()
    assert under_way == [1] * 5
    assert len(done(engine)) == 5


# --- submissions, by customers --------------------------------------------------------


def customer(number: int) -> Address:
    return Address(f"0x{number:040x}")


def ready(ledger: Ledger, owner: Address, *numbers: int) -> None:
    for number in numbers:
        claimed = replace(claim(number), customer=owner)
        ledger.record(
            JobChange(job_id(number), claimed),
            JobChange(job_id(number), ScriptFetched("echo", "")),
        )


def owners(ledger: Ledger, most_groups: int, of_one: int) -> dict[Address, int]:
    """How many submissions of each customer are taken now."""
    found = dict[Address, int]()
    taken = ledger.effects.lease_groups(most_groups, of_one)
    jobs = ledger.jobs({effect.job_id for effect in taken})
    for effect in taken:
        owner = jobs[effect.job_id].customer
        found[owner] = found.get(owner, 0) + 1
    return found


def test_lease_groups__two_of_one_customer_at_once_in_all_workers__and_others_first(
    ledger: Ledger, engine: Engine
) -> None:
    other = Ledger(engine, "here", lambda _: None)
    ready(ledger, customer(1), *range(1, 101))
    ready(ledger, customer(2), 101, 102, 103)
    ready(ledger, customer(3), 104)
    assert owners(ledger, 2, 20) == {customer(1): 20, customer(2): 3}
    assert owners(other, 2, 20) == {customer(3): 1, customer(1): 20}, (
        "who has fewer under way is first"
    )
    assert GROUPS_OF_ONE_CUSTOMER == 2
    assert owners(ledger, 16, 20) == {}
    other.holder.close()
    wait_until(
        lambda: bool(ledger.effects.due_without_message()),
        "the leases of the dead to be free",
        30.0,
        0.05,
    )
    assert owners(ledger, 1, 5) == {customer(3): 1}
    assert owners(ledger, 1, 5) == {customer(1): 5}


def test_lease_groups__takers_at_the_same_time__no_customer_has_more_than_two(
    ledger: Ledger,
) -> None:
    ready(ledger, customer(1), *range(1, 101))
    with ThreadPoolExecutor(8) as threads:
        taken = list(threads.map(lambda _: owners(ledger, 1, 10), range(8)))
    assert sum(len(groups) for groups in taken) == GROUPS_OF_ONE_CUSTOMER


def test_lease_groups__a_group_ends_one_by_one__is_one_group_until_its_last(
    ledger: Ledger,
) -> None:
    ready(ledger, customer(1), *range(1, 31))
    first = ledger.effects.lease_groups(16, 10)
    ledger.effects.lease_groups(16, 10)
    ledger.record(
        *(
            JobChange(effect.job_id, SubmitRejected("no"), done=effect)
            for effect in first[:9]
        )
    )
    assert ledger.effects.lease_groups(16, 10) == []
    ledger.record(JobChange(first[9].job_id, SubmitRejected("no"), done=first[9]))
    assert len(ledger.effects.lease_groups(16, 10)) == 10


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError("and its text fails, too")


def test_batch__the_recorder_itself_fails__later_ones_of_the_kind_are_carried_out(
    ledger: Ledger, engine: Engine
) -> None:
    to_be_told(ledger, 1, logger=POISON)

    def opened(address: str) -> grpc.Channel:
        raise UnprintableError

    site = WorkerContext(
        ledger, GridLogger(opened), None, None, dispatch=lambda _: None
    )
    batch = Batch(site, EffectKind.NOTIFY_CUSTOMER)
    with pytest.raises(ZeroDivisionError):
        batch.run(lambda: True)
    to_be_told(ledger, 2)
    batch.run(lambda: True)
    assert done(engine) == {job_id(2)}
    batch.close()


def test_batch__an_effect_without_its_job__is_given_back(ledger: Ledger) -> None:
    to_be_told(ledger, 1)

    def of_no_job(ledger: Ledger, most: int) -> list[OpenEffect]:
        return [
            replace(effect, subject=job_id(9))
            for effect in ledger.effects.lease([EffectKind.NOTIFY_CUSTOMER], most)
        ]

    batch = Batch(site_of(ledger), EffectKind.NOTIFY_CUSTOMER, of_no_job)
    with pytest.raises(KeyError):
        batch.run(lambda: True)
    assert leased(ledger.engine) == 0
    batch.close()
