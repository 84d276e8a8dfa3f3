"""Made-up callbacks: about jobs that no ledger has, and about jobs of the ledger with
SLURM ids that are not theirs.
"""

import itertools
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from grpc_callbacks.callback_limits import (
    MAX_CALLBACKS,
    MAX_CALLBACKS_WHEN_OVER,
    CallbackOrigin,
)
from plugins.channel import SupervisorTarget, open_channel
from supervisor_tasks.config.embedded_servers import database_url
from supervisor_tasks.config.settings import load
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.grid.grpc_channels import Channels
from supervisor_tasks.grid.job_log import GridLogger
from supervisor_tasks.ledger.callbacks import DELETE_EVERY_S, UNKNOWN_KEPT_S
from supervisor_tasks.ledger.database import open_engine
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.monitoring.check_alarms import check_alarms
from tests.support.ports import (
    CallbackSite,
    Port,
    answer_to,
    random_job_id,
    report,
    started_site,
)

MADE_UP = 1_500
CALLERS = 8
HOUR_S = 3600.0


@pytest.fixture(scope="module")
def site() -> Iterator[CallbackSite]:
    with started_site() as started:
        yield started


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("key") / "callback.key"
    file.touch(mode=0o600)
    file.write_text(secrets.token_hex(32))
    return file


@pytest.fixture(scope="module")
def port(site: CallbackSite, key_file: Path) -> Port:
    return site.start("callbacks", CALLBACK_KEY_FILE=str(key_file))


@pytest.fixture(autouse=True)
def _nothing_said(site: CallbackSite) -> None:
    site.do("DELETE FROM callbacks")
    site.do("DELETE FROM jobs")


def flood(
    port: Port, number: int, about: Callable[[int], tuple[str, int]]
) -> set[grpc.StatusCode]:
    """Send so many made-up callbacks. Returns the statuses of the answers."""
    with (
        grpc.insecure_channel(port.address) as channel,
        ThreadPoolExecutor(CALLERS) as pool,
    ):
        return set(
            pool.map(
                lambda turn: answer_to(channel, *about(turn), timeout_s=30.0),
                range(number),
            )
        )


def test_callbacks__made_up_about_unknown_jobs__are_few_and_push_out_no_good_ones(
    site: CallbackSite, port: Port, key_file: Path
) -> None:
    ours = random_job_id()
    site.insert_job(ours, slurm_id=7)
    answers = flood(port, MADE_UP, lambda _: (random_job_id(), 7))
    assert answers == {grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND}
    assert site.rows() == MAX_CALLBACKS[CallbackOrigin.UNKNOWN_JOB]
    with grpc.insecure_channel(port.address) as channel:
        report(channel, ours)
    with open_channel(SupervisorTarget(port.address, key_file=key_file)) as channel:
        # of a job that the ledger had before it was restored
        report(channel, random_job_id())
    assert site.rows() == MAX_CALLBACKS[CallbackOrigin.UNKNOWN_JOB] + 2


def test_callbacks__made_up_ids_of_a_known_job__count_as_those_of_unknown_jobs(
    site: CallbackSite, port: Port
) -> None:
    ours = random_job_id()
    site.insert_job(ours, slurm_id=7)
    answers = flood(port, MADE_UP, lambda turn: (ours, 1000 + turn))
    assert answers == {grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND}
    assert site.rows() == MAX_CALLBACKS[CallbackOrigin.UNKNOWN_JOB]
    with grpc.insecure_channel(port.address) as channel:
        report(channel, ours, 7)


def test_callbacks__made_up_about_a_job_that_is_over__are_few_and_are_acknowledged(
    site: CallbackSite, port: Port, key_file: Path
) -> None:
    over = random_job_id()
    site.insert_job(over, slurm_id=7, state="SETTLED")
    with grpc.insecure_channel(port.address) as channel:
        answers = {answer_to(channel, over, duration=seconds) for seconds in range(60)}
    assert answers == {grpc.StatusCode.OK}
    assert site.rows() == MAX_CALLBACKS_WHEN_OVER
    with open_channel(SupervisorTarget(port.address, key_file=key_file)) as channel:
        report(channel, over, duration=60)
    assert site.rows() == MAX_CALLBACKS_WHEN_OVER + 1


def test_callbacks__made_up_for_a_job_without_an_id__push_out_nothing_that_is_proven(
    site: CallbackSite, port: Port, key_file: Path
) -> None:
    ours = random_job_id()
    site.insert_job(ours, state="SUBMITTING")
    answers = flood(
        port, 3 * MAX_CALLBACKS[CallbackOrigin.EARLY], lambda turn: (ours, 1000 + turn)
    )
    assert answers == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert site.rows() == MAX_CALLBACKS[CallbackOrigin.EARLY]
    with open_channel(SupervisorTarget(port.address, key_file=key_file)) as channel:
        report(channel, ours, 7)


def test_made_up_callbacks__are_forgotten_within_the_hour__and_there_is_room_again(
    site: CallbackSite, port: Port
) -> None:
    assert DELETE_EVERY_S + UNKNOWN_KEPT_S < HOUR_S
    found_later = random_job_id()
    with grpc.insecure_channel(port.address) as channel:
        report(channel, found_later)
    flood(port, MADE_UP, lambda _: (random_job_id(), 7))
    site.insert_job(found_later, slurm_id=7)  # a sweep has found it on chain
    site.do(
        "UPDATE callbacks SET read_at = now() - make_interval(secs => :ago_s)",
        ago_s=UNKNOWN_KEPT_S + 1,
    )
    assert site.rows() == MAX_CALLBACKS[CallbackOrigin.UNKNOWN_JOB]
    engine = open_engine(database_url(load(environment=site.environment)))
    ledger = Ledger(engine, "here", lambda _: None)
    logger = GridLogger(Channels(False, None, verified=False).open)
    check_alarms(WorkerContext(ledger, logger, None, None, dispatch=lambda _: None))
    engine.dispose()
    assert site.number_of("SELECT count(*) FROM callbacks WHERE unknown_job") == 0
    assert site.rows() == 1
    assert flood(port, 10, lambda _: (random_job_id(), 7)) == {grpc.StatusCode.OK}


def test_callback_of_our_job__twice_and_an_hour_late__is_one_row_that_is_read_again(
    site: CallbackSite, port: Port
) -> None:
    name = random_job_id()
    site.insert_job(name, slurm_id=7)
    unread = "SELECT count(*) FROM callbacks WHERE read_at IS NULL"
    with grpc.insecure_channel(port.address) as channel:
        report(channel, name, 7)
        report(channel, name, 7)
        assert (site.rows(), site.number_of(unread)) == (1, 1)
        site.do("UPDATE callbacks SET read_at = now()")
        report(channel, name, 7)
        assert (site.rows(), site.number_of(unread)) == (1, 0)
        site.do("UPDATE callbacks SET read_at = now() - interval '1 hour'")
        report(channel, name, 7)
    assert (site.rows(), site.number_of(unread)) == (1, 1)


def test_callback__repeated_when_its_job_has_another_id__is_not_read_again(
    site: CallbackSite, port: Port
) -> None:
    name = random_job_id()
    site.insert_job(name)
    with grpc.insecure_channel(port.address) as channel:
        report(channel, name, 7)
        site.do("UPDATE jobs SET slurm_id = 8")
        site.do("UPDATE callbacks SET read_at = now() - interval '1 hour'")
        report(channel, name, 7)
    unread = "SELECT count(*) FROM callbacks WHERE read_at IS NULL"
    assert (site.rows(), site.number_of(unread)) == (1, 0)


@pytest.mark.chaos
def test_callbacks__20000_made_up__have_no_more_room(
    site: CallbackSite, port: Port
) -> None:
    ours = random_job_id()
    site.insert_job(ours, slurm_id=7)
    names = itertools.cycle([random_job_id() for _ in range(20_000)])
    flood(port, 20_000, lambda _: (next(names), 7))
    assert site.rows() == MAX_CALLBACKS[CallbackOrigin.UNKNOWN_JOB]
    with grpc.insecure_channel(port.address) as channel:
        report(channel, ours)
