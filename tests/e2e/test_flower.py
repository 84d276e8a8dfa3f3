"""What the operator sees: Flower in a real browser."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from devgrid.chain import Account
from devgrid.grid import Grid
from devgrid.machine import deadline
from devgrid.process import wait_until
from tests.watching import wait_for_end


@pytest.fixture(scope="module")
def flower(grid: Grid) -> Iterator[str]:
    fleet = grid.fleet
    running = fleet.start_flower()
    fleet.wait_for_flower()
    yield fleet.flower_url
    grid.processes.stop(running)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    profile = tmp_path_factory.mktemp("chromium")
    for flag in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        f"--user-data-dir={profile}",
        "--window-size=1600,1000",
    ):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    yield driver
    driver.quit()


def workers(flower: str) -> int:
    with urllib.request.urlopen(f"{flower}/workers?json=1", timeout=deadline(10)) as answer:  # noqa: S310
        return sum(1 for worker in json.load(answer)["data"] if worker["status"])


def test_flower__job_by_its_id__shows_each_task_that_is_about_it(
    grid: Grid, customer: Account, flower: str, browser: webdriver.Chrome, tmp_path: Path
) -> None:
    wait_until(lambda: workers(flower) > 0, "Flower to see the worker", 30.0, 0.2)
    job_id = grid.submit_script(customer, "#!/bin/bash\ntrue\n")
    wait_for_end(grid, job_id)
    browser.get(f"{flower}/tasks")
    wait = WebDriverWait(
        browser, deadline(60), ignored_exceptions=(StaleElementReferenceException,)
    )  # the page draws its table anew
    search = wait.until(lambda page: page.find_element(By.CSS_SELECTOR, "input[type=search]"))
    search.send_keys(job_id)

    def names_shown(page: webdriver.Chrome) -> set[str]:
        rows = page.find_elements(By.CSS_SELECTOR, "#tasks-table tbody tr")
        about = [row.text for row in rows if job_id in row.text]
        return {name for name in ("fetch", "submit", "report", "witness") for text in about if f"tasks.{name}" in text}

    wait.until(lambda page: {"fetch", "submit", "witness"} <= names_shown(page))
    assert browser.save_screenshot(str(tmp_path / "flower.png"))


def test_flower__broker_page__shows_the_queues_of_the_cluster(flower: str, browser: webdriver.Chrome) -> None:
    browser.get(f"{flower}/broker")
    text = WebDriverWait(browser, deadline(30)).until(lambda page: page.find_element(By.TAG_NAME, "body").text)
    for queue in ("devgrid.chain", "devgrid.slurm", "devgrid.default"):
        assert queue in text
