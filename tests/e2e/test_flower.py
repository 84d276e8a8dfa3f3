"""Flower over a whole grid: jobs' tasks without idle runs, columns that fit, failures that
are not green, a picture of each page.

`make screenshots` (SCREENSHOTS=write) puts the pictures into docs/images.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By

from devgrid import REPOSITORY
from devgrid.chain.model import Account
from devgrid.fleet import Fleet
from devgrid.grid import Grid
from devgrid.machine import deadline
from devgrid.processes import wait_until
from supervisor_tasks.messaging.queues import QUEUE_OF_TASK
from supervisor_tasks.messaging.task_events import HELD_S
from tests.support.browser import browser
from tests.support.grid_assertions import rows, state_of, wait_for_end

WIDTH = 1280  # pixels
IMAGES = REPOSITORY / "docs" / "images"
NAVIGATION = {  # by page
    "jobs": "jobs",
    "job": "jobs",
    "tasks": "tasks",
    "task": "tasks",
    "workers": "workers",
    "worker": "workers",
    "broker": "broker",
}


@pytest.fixture(scope="module")
def flower(grid: Grid) -> Fleet:
    fleet = grid.fleet
    # the tests read the tasks as JSON
    fleet.environment["FLOWER_UNAUTHENTICATED_API"] = "true"
    fleet.start_flower()
    fleet.wait_for_flower()
    wait_until(
        lambda: bool(fleet.shown_workers()),
        "Flower to see the worker",
        30.0,
        every_s=0.2,
    )
    return fleet


@pytest.fixture(scope="module")
def jobs(grid: Grid, flower: Fleet, customer: Account) -> dict[str, str]:
    """A job that finishes, one that fails and one that runs, with Flower there from the
    start.
    """
    scripts = {
        "finished": "sleep 1",
        "failed": "sleep 1; exit 3",
        "running": "sleep 600",
    }
    ids = {
        name: grid.submit_script(customer, f"#!/bin/bash\n{script}\n")
        for name, script in scripts.items()
    }
    for name in ("finished", "failed"):
        wait_for_end(grid, ids[name])
        wait_until(
            lambda name=name: state_of(grid, ids[name]) == "SETTLED",  # type: ignore[misc]
            f"{name} to settle",
            30.0,
            every_s=0.2,
        )
    wait_until(
        lambda: state_of(grid, ids["running"]) == "RUNNING",
        "the third one to run",
        30.0,
        every_s=0.2,
    )
    return ids


@pytest.fixture(scope="module")
def driver() -> Iterator[WebDriver]:
    with browser(WIDTH) as running:
        yield running


def tasks(flower: Fleet, search: str = "") -> list[dict[str, Any]]:
    answer = requests.get(
        f"{flower.flower_url}/api/tasks",
        params={"search": search},
        timeout=deadline(10),
    )
    return list(answer.json().values())


def test_tasks__of_jobs__are_shown_by_short_names_and_idle_runs_are_not(
    flower: Fleet, jobs: dict[str, str]
) -> None:
    wait_until(
        lambda: any(task["state"] == "JOB-FAILED" for task in tasks(flower)),
        "the report of the failure",
        30.0,
        0.5,
    )
    shown = tasks(flower)
    names = {task["name"] for task in shown}
    assert {"fetch", "submit", "report"} <= names <= set(QUEUE_OF_TASK)
    quick = [task for task in shown if was_quick(task)]
    assert {task["name"] for task in quick}.isdisjoint(
        {"check_slurm", "check_alarms", "dispatch_due_effects", "retention", "notify"}
    )
    assert [
        task
        for task in quick
        if task["args"] in ("()", "", None) and task["result"] in (None, "None")
    ] == []
    assert len(quick) < 20 * len(jobs)


def was_quick(task: dict[str, Any]) -> bool:
    """Whether the task succeeded before it had run for so long that it is shown in any
    case.
    """
    if task["state"] != "SUCCESS" or task["started"] is None:
        return False
    return bool(task["succeeded"] - task["started"] < HELD_S)


def test_tasks__job_failed__says_so_and_is_not_green(
    flower: Fleet, jobs: dict[str, str]
) -> None:
    def states() -> set[str]:
        return {
            task["state"]
            for task in tasks(flower, jobs["failed"])
            if "job FAILED" in str(task["result"])
        }

    # a task's own event comes first, the mark up to half a second later
    wait_until(
        lambda: states() == {"JOB-FAILED"}, "each failure to be marked", 30.0, 0.5
    )
    assert all(
        "job FAILED" not in str(task["result"])
        for task in tasks(flower, jobs["finished"])
        if jobs["failed"] not in str(task)  # one look may be at both
    )


def test_tasks__one_search__finds_id_customer_and_slurm_id(
    grid: Grid, flower: Fleet, customer: Account, jobs: dict[str, str]
) -> None:
    slurm_id = rows(
        grid, "SELECT slurm_id FROM jobs WHERE job_id = :id", id=jobs["failed"]
    )[0].slurm_id
    for words in (jobs["failed"], f"slurm:{slurm_id}", f"customer:{customer.address}"):
        page = requests.get(
            f"{flower.flower_url}/jobs", params={"q": words}, timeout=deadline(10)
        )
        assert jobs["failed"] in page.text, words
    for words in (jobs["failed"], f"slurm:{slurm_id}", customer.address):
        assert any(
            jobs["failed"] in str(task["result"]) + str(task["args"])
            for task in tasks(flower, words)
        ), words


@pytest.mark.parametrize("page", NAVIGATION)
def test_page__at_1280_pixels__fits_and_has_a_picture(
    grid: Grid,
    flower: Fleet,
    jobs: dict[str, str],
    driver: WebDriver,
    tmp_path: Path,
    page: str,
) -> None:
    driver.get(f"{flower.flower_url}/{_path(grid, flower, jobs, page)}")
    wait_until(
        lambda: bool(driver.find_elements(By.CSS_SELECTOR, "tbody tr td, dl dd")),
        "the table",
        20.0,
        every_s=0.2,
    )
    assert NAVIGATION[page] in [
        active.text.lower()
        for active in driver.find_elements(By.CSS_SELECTOR, ".app-nav .active")
    ]
    widths = driver.execute_script(
        "return [...document.querySelectorAll('html, table, .dataTables_scrollBody')]"
        ".map(part => [part.tagName, part.scrollWidth, part.getBoundingClientRect().right])"
    )
    assert [width for width in widths if width[1] > WIDTH or width[2] > WIDTH] == []
    if page == "tasks":
        wait_until(
            lambda: bool(_red(driver)), "the rows of the failed job", 20.0, every_s=0.2
        )
        assert _red(driver) == {"JOB-FAILED"}
        assert driver.find_elements(
            By.CSS_SELECTOR, "button[data-task-state='JOB-FAILED']"
        )
    folder = IMAGES if os.environ.get("SCREENSHOTS") == "write" else tmp_path
    picture = folder / f"flower-{page}.png"
    assert driver.save_screenshot(str(picture))
    assert picture.stat().st_size > 10_000


def _red(driver: WebDriver) -> set[str]:
    """The texts of the red badges, read in one step: the page replaces its rows."""
    script = "return [...document.querySelectorAll('td .badge.text-bg-danger')].map(badge => badge.innerText)"
    return {str(badge).strip() for badge in driver.execute_script(script)}


def _path(grid: Grid, flower: Fleet, jobs: dict[str, str], page: str) -> str:
    if page == "job":
        return f"jobs/{grid.cluster.name}/{jobs['failed']}"
    if page == "task":
        return f"task/{next(task['uuid'] for task in tasks(flower, jobs['failed']) if task['state'] == 'JOB-FAILED')}"
    return f"worker/{flower.shown_workers()[0]}" if page == "worker" else page


def test_pictures__of_each_page__are_in_the_documentation() -> None:
    text = (REPOSITORY / "docs" / "how-to" / "flower.md").read_text()
    for page in NAVIGATION:
        assert f"../images/flower-{page}.png" in text
        assert (IMAGES / f"flower-{page}.png").exists()
