"""Our pages inside Flower: behind its password, read-only, and strangers' text stays
text.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import requests
from selenium.webdriver.common.by import By
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from devgrid.fleet import Fleet
from devgrid.machine import deadline
from devgrid.processes import Processes, wait_until
from devgrid.services.start import start_server
from devgrid.state_folder import private_processes
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.config.settings import load
from supervisor_tasks.dashboard.ledger_reader import LedgerReader
from supervisor_tasks.errors import LedgerUnavailableError
from supervisor_tasks.jobs.events import SlurmCompleted
from supervisor_tasks.jobs.model import ChainStatus, JobId, Outcome
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from tests.support.browser import browser
from tests.support.ledger import bring_to_queued, migrated

PASSWORD = "operator:correct-horse-battery"
EXPLORER = "https://explorer.example.org/tx/{hash}"
TRANSACTION = """
    INSERT INTO transactions (cluster, chain_id, address, nonce, purpose, job_id, idempotency_key, gas, max_fee_wei,
        priority_fee_wei, raw, hash, state)
    VALUES ('here', 1, '0xab', 4, 'report FINISHED', :job_id, 'key', 21000, 1, 1, '', '0x77', 'SENT')"""
HOSTILE = "</td><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> {{ 7*7 }}"


@dataclass
class Pages:
    url: str
    environment: dict[str, str]
    engine: Engine
    job_id: JobId

    def get(self, path: str, password: str | None = PASSWORD) -> requests.Response:
        auth = None if password is None else tuple(password.split(":"))
        return requests.get(f"{self.url}{path}", auth=auth, timeout=deadline(30))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    with migrated() as (engine, environment), private_processes() as processes:
        environment |= {
            "BROKER_URL": redis(processes),
            "FLOWER_BASIC_AUTH": PASSWORD,
            "EXPLORER_URL": EXPLORER,
        }
        ledger = Ledger(engine, "here", dispatch=lambda _: None)
        job_id = bring_to_queued(ledger, 7)
        outcome = Outcome(
            status=ChainStatus.FAILED, elapsed_s=70, exit_status=256, reason=HOSTILE
        )
        ledger.record(JobChange(job_id, SlurmCompleted(outcome)))
        with engine.begin() as connection:
            connection.execute(text(TRANSACTION), {"job_id": job_id})
        bring_to_queued(ledger, 8)
        fleet = Fleet(processes, environment)
        fleet.start_flower()
        fleet.wait_for_flower()
        yield Pages(fleet.flower_url, environment, engine, job_id)


def redis(processes: Processes) -> str:
    folder = processes.folder / "redis"
    folder.mkdir()
    server = embedded_servers.redis(folder)
    start_server(processes, "redis", server)
    return server.url


@pytest.mark.parametrize("path", ["/jobs", "/jobs?q=107", "/jobs/here/JOB"])
def test_pages__without_the_password__are_refused(pages: Pages, path: str) -> None:
    path = path.replace("JOB", pages.job_id)
    assert pages.get(path, password=None).status_code == 401
    assert pages.get(path, password="operator:wrong").status_code == 401
    assert pages.get(path).status_code == 200


@pytest.mark.parametrize(
    "words",
    ["107", "slurm:107", "JOB", "0x0000", "customer:0x" + "2" * 40, "0x" + "2" * 40],
)
def test_jobs__found_by_id_slurm_id_or_customer__in_one_search(
    pages: Pages, words: str
) -> None:
    found = pages.get(f"/jobs?q={words.replace('JOB', pages.job_id)}").text
    assert f"/jobs/here/{pages.job_id}" in found


def test_jobs__search_for_another__finds_none(pages: Pages) -> None:
    assert "No job has such an id" in pages.get("/jobs?q=0xdead").text


def test_jobs__words_that_name_none__are_refused_as_text(pages: Pages) -> None:
    answer = pages.get("/jobs?q=<script>alert(1)</script>")
    assert answer.status_code == 400
    assert "expected a SLURM id" in answer.text
    assert "<script>alert" not in answer.text


def test_job__unknown__is_404(pages: Pages) -> None:
    assert pages.get(f"/jobs/here/0x{'e' * 64}").status_code == 404
    assert pages.get(f"/jobs/nowhere/{pages.job_id}").status_code == 404


def test_job__its_page__tells_the_story(pages: Pages) -> None:
    page = pages.get(f"/jobs/here/{pages.job_id}").text
    for words in (
        "claimed for 10 minutes at most",
        "submitted as 107",
        "What comes next",
        "FAILED after 1m10s, 1 min paid",
    ):
        assert words in page


def test_job__its_transactions__link_to_the_explorer(pages: Pages) -> None:
    page = pages.get(f"/jobs/here/{pages.job_id}").text
    assert '<a href="https://explorer.example.org/tx/0x77"' in page


@pytest.mark.parametrize("path", ["/jobs", "/jobs/here/JOB"])
def test_pages__hostile_text__is_shown_and_not_run(pages: Pages, path: str) -> None:
    path = path.replace("JOB", pages.job_id)
    answer = pages.get(path)
    assert "<script>document" not in answer.text
    assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
    with browser() as driver:
        driver.get(f"{pages.url.replace('//', f'//{PASSWORD}@')}{path}")
        assert "owned" not in driver.title
        assert HOSTILE in driver.find_element(By.TAG_NAME, "main").text
        assert driver.find_elements(By.CSS_SELECTOR, "main script, main img") == []


def test_pages__secrets__are_not_shown(pages: Pages) -> None:
    everything = pages.get("/jobs").text + pages.get(f"/jobs/here/{pages.job_id}").text
    assert PASSWORD.partition(":")[2] not in everything
    assert pages.environment["DATABASE_URL"] not in everything


def test_reader__writes__are_refused_by_the_database(pages: Pages) -> None:
    reader = LedgerReader(load(environment=pages.environment))
    with (
        reader.engine.connect() as connection,
        pytest.raises(LedgerUnavailableError, match="read-only transaction"),
    ):
        connection.execute(text("DELETE FROM events"))
    reader.engine.dispose()


def test_reader__with_a_role_that_only_reads__shows_all(pages: Pages) -> None:
    """The role of docs/how-to/flower.md."""
    with pages.engine.begin() as connection:
        for statement in (
            "CREATE ROLE flower LOGIN PASSWORD 'reads-only'",
            "GRANT pg_read_all_data TO flower",
            "ALTER ROLE flower SET default_transaction_read_only = on",
        ):
            connection.execute(text(statement))
    try:
        with pages.engine.begin() as connection:
            connection.execute(text("SET LOCAL ROLE flower"))
            assert connection.scalar(text("SELECT count(*) FROM jobs")) == 2
            with pytest.raises(DBAPIError, match="permission denied"):
                connection.execute(text("DELETE FROM events"))
    finally:
        with pages.engine.begin() as connection:
            connection.execute(text("DROP ROLE flower"))


def test_pages__no_database__say_so_and_flower_goes_on() -> None:
    with private_processes() as processes:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(processes.folder),
            "STATE_DIR": str(processes.folder),
        }
        fleet = Fleet(processes, environment | {"BROKER_URL": redis(processes)})
        fleet.start_flower()
        fleet.wait_for_flower()
        answer = requests.get(f"{fleet.flower_url}/jobs", timeout=deadline(30))
        assert answer.status_code == 503
        assert "DATABASE_URL: found nothing" in answer.text
        assert requests.get(f"{fleet.flower_url}/tasks", timeout=deadline(30)).ok
        log = processes.logs / "flower.log"
        assert "Traceback" not in log.read_text()


def test_jobs__while_the_ledger_does_not_answer__says_so(pages: Pages) -> None:
    """A lock that another session holds: the query ends after its time."""
    with pages.engine.connect() as connection:
        connection.execute(text("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE"))
        answer = pages.get("/jobs")
    assert answer.status_code == 503
    assert "canceling statement due to statement timeout" in answer.text
    wait_until(
        lambda: pages.get("/jobs").status_code == 200,
        "the page to come back",
        20.0,
        every_s=0.5,
    )
