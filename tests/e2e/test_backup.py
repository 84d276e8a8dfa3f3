"""docs/how-to/back-up.md on a fleet with jobs under way: its commands run as they stand
on the page.

The machine has no systemd, so `systemctl` is a program of the test, which has the test
stop and start what it names.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from devgrid import REPOSITORY
from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.machine import deadline
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.audit import audit, violations
from tests.support.audit_evidence import gather
from tests.support.end_states import PATIENCE_S, id_of, running, scontrol
from tests.support.grid_assertions import (
    all_slurm_ids,
    parked,
    rows,
    slurm_of,
    wait_for_end,
)
from tests.support.grids import BLOCK_TIME_S

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]  # minutes

PAGE = REPOSITORY / "docs" / "how-to" / "back-up.md"
KEEP_THE_LOG, EACH_NIGHT, RESTORE, START_AGAIN, RESTORE_THE_DUMP, GO_ON = re.findall(
    r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE
)
LONG = "#!/bin/bash\nsleep 900\n"
SHORT = "#!/bin/bash\nsleep 2\n"
UNTIL_TOLD = "#!/bin/bash\nuntil [ -e ~/may-end ]; do sleep 0.1; done\n"
# SLURM forgets the jobs that ended so long ago, as it does after five minutes at a site
MIN_JOB_AGE_S = 20
FLEET = ("worker", "beat", "callbacks")
# What was written after the moment to which the ledger is restored is not in the
# ledger: transactions and callbacks.
NOT_IN_THE_BACKUP = (
    "signed_bytes",
    "nonces",
    "fates",
    "acknowledged",
    "hook_events_stored",
)
SYSTEMCTL = """#!/bin/sh
echo "$*" > "{requests}/.request" && mv "{requests}/.request" "{requests}/request"
while [ -e "{requests}/request" ]; do sleep 0.1; done
[ ! -e "{requests}/failed" ]
"""


class Site:
    """The machine of Postgres and of the fleet, with the commands of the page."""

    def __init__(self, grid: Grid, folder: Path) -> None:
        self.grid = grid
        self.folder = folder
        self.data = grid.folder / "postgres" / "data"
        self.url = make_url(grid.environment["DATABASE_URL"]).set(
            drivername="postgresql"
        )
        self.requests, self.programs, self.backups = (
            folder / name for name in ("requests", "bin", "backups")
        )
        for each in (self.requests, self.programs, self.backups):
            each.mkdir()
        systemctl = self.programs / "systemctl"
        systemctl.write_text(SYSTEMCTL.format(requests=self.requests))
        systemctl.chmod(0o755)
        self.asked: list[str] = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def close(self) -> None:
        self.over.set()
        self.thread.join()

    def follow(self, commands: str, **variables: str) -> str:
        """Run the commands of one block of the page."""
        given = {
            **self.grid.environment,
            "PATH": f"{self.programs}:{self._binaries()}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "LEDGER": self.url.render_as_string(hide_password=False),
            "ADMIN": self.url.set(database="template1").render_as_string(
                hide_password=False
            ),
            "BACKUPS": str(self.backups),
            "UNIT": "grid-supervisor.target",
            "PGDATA": str(self.data),
            **variables,
        }
        argv = ["bash", "-eu", "-c", commands]
        done = subprocess.run(
            argv,
            env=given,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=deadline(240),
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _binaries(self) -> Path:
        (found,) = self.data.parent.glob("*/pginstall/bin")
        return found

    def _serve(self) -> None:
        while not self.over.wait(0.1):
            request = self.requests / "request"
            if request.exists():
                self._act(request.read_text().strip())
                request.unlink()

    def _act(self, words: str) -> None:
        actions: dict[str, Callable[[], object]] = {
            "stop grid-supervisor.target": self._stop_fleet,
            "start grid-supervisor.target": lambda: self.grid.fleet.start(flower=False),
            "stop postgresql": self._stop_postgres,
            "start postgresql": self._start_postgres,
            "restart postgresql": self._restart_postgres,
        }
        self.asked.append(words)
        try:
            actions[words]()
        except Exception as error:  # noqa: BLE001  the command fails
            (self.requests / "failed").write_text(repr(error))

    def _stop_fleet(self) -> None:
        for name in FLEET:
            self.grid.processes.kill(self.grid.fleet.find(name), signal.SIGKILL)

    def _stop_postgres(self) -> None:
        self.grid.processes.kill(self.grid.processes.find("postgres"), signal.SIGINT)

    def _restart_postgres(self) -> None:
        self._stop_postgres()
        self._start_postgres()

    def _start_postgres(self) -> None:
        self.grid.processes.start_again("postgres")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    options = GridOptions(
        block_time_s=BLOCK_TIME_S,
        overrides={"SWEEP_GRACE_S": "2"},
        job_submit=False,
        min_job_age_s=MIN_JOB_AGE_S,
    )
    grid = Grid.start(options)
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    with (grid.folder / "postgres" / "pg_hba.conf").open("a") as file:
        file.write("local replication all peer map=fleet\n")
    site = Site(grid, folder)
    try:
        grid.fleet.start(flower=False)
        yield site
    finally:
        site.close()
        grid.stop()
        shutil.rmtree(folder)


def test_page__followed_word_by_word__the_fleet_finds_everything_again(
    site: Site,
) -> None:
    grid, customer = site.grid, site.grid.new_customer()
    # so the ledger has an instance tag
    wait_for_end(grid, grid.submit_script(customer, SHORT), PATIENCE_S)
    site.follow(KEEP_THE_LOG)
    site.follow(EACH_NIGHT)
    before, forgotten = (
        grid.submit_script(customer, LONG),
        grid.submit_script(customer, UNTIL_TOLD),
    )
    running(grid, before)
    running(grid, forgotten)
    until = str(rows(grid, "SELECT clock_timestamp() AS now")[0].now)
    after = _jobs_after(grid, customer)
    known = {
        name: id_of(grid, job_id) for name, job_id in after.items() if name != "ended"
    } | {"before": id_of(grid, before)}
    later = str(rows(grid, "SELECT clock_timestamp() AS now")[0].now)
    in_slurm = set(all_slurm_ids(slurm_of(grid)))
    _ends_and_is_forgotten(grid, customer, forgotten)

    site.follow(RESTORE, UNTIL=until)
    site.follow(START_AGAIN, UNTIL=until)
    _found_again(grid, {**after, "before": before}, known)
    wait_until(
        lambda: forgotten not in _open_jobs(grid),
        "the forgotten job to be settled",
        PATIENCE_S,
        0.2,
    )
    assert grid.chain.job(forgotten).status is ChainStatus.FINISHED
    assert set(all_slurm_ids(slurm_of(grid))) <= in_slurm  # none is submitted again
    scontrol(grid, "update", "nodename=node[1-4]", "state=resume")
    assert wait_for_end(grid, after["waits"], PATIENCE_S).status is ChainStatus.FINISHED
    grid.chain.customers.cancel_job(customer, after["runs"])
    assert wait_for_end(grid, after["runs"], PATIENCE_S).status is ChainStatus.CANCELLED

    _restored_once_more(site, later, {before, forgotten, *after.values()})
    wait_until(
        lambda: _open_jobs(grid) == [before],
        "the ends of the other jobs to be found again",
        2 * PATIENCE_S,
        0.2,
    )
    assert set(all_slurm_ids(slurm_of(grid))) <= in_slurm

    # the ledger's role at a site; the fleet has been a superuser up to here
    site.follow('psql "$ADMIN" -c "CREATE ROLE supervisor LOGIN"')
    of_the_role = site.url.set(database="restored", username="supervisor")
    restored = of_the_role.render_as_string(hide_password=False)
    site.follow(RESTORE_THE_DUMP, RESTORED=restored)
    # as the page has the operator set it
    grid.environment["DATABASE_URL"] = restored
    (grid.folder / "environment.json").write_text(json.dumps(grid.environment))
    site.follow(GO_ON, RESTORED=restored)
    _found_again(grid, {"before": before}, {"before": known["before"]})
    owners = rows(
        grid, "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'"
    )
    assert [row.tableowner for row in owners] == ["supervisor"]
    grid.chain.customers.cancel_job(customer, before)
    assert wait_for_end(grid, before, PATIENCE_S).status is ChainStatus.CANCELLED
    assert set(all_slurm_ids(slurm_of(grid))) <= in_slurm
    wait_until(lambda: not _open_jobs(grid), "all jobs to be settled", PATIENCE_S, 0.2)
    assert parked(grid) == []
    found = audit(gather(grid.folder))
    assert (
        violations(
            [entry for entry in found if entry.check.name not in NOT_IN_THE_BACKUP]
        )
        == []
    )


def _restored_once_more(site: Site, until: str, jobs: set[str]) -> None:
    """Restore to a later moment than before, which the restored ledger never had."""
    assert "recovery_target" not in (site.data / "postgresql.auto.conf").read_text()
    kept, asked = Path(f"{site.data}.before"), list(site.asked)
    with pytest.raises(AssertionError, match=re.escape(f"found {kept}")):
        site.follow(RESTORE, UNTIL=until)
    assert site.asked == asked  # neither the fleet nor Postgres was stopped
    shutil.rmtree(kept)
    site.follow(RESTORE, UNTIL=until)
    recovering = "SELECT pg_is_in_recovery() AS is_true"
    wait_until(
        lambda: not rows(site.grid, recovering)[0].is_true, "the end of recovery", 60.0
    )
    assert jobs <= {row.job_id for row in rows(site.grid, "SELECT job_id FROM jobs")}
    site.follow(START_AGAIN, UNTIL=until)
    archived = rows(site.grid, "SELECT failed_count FROM pg_stat_archiver")
    assert [row.failed_count for row in archived] == [0]


def _jobs_after(grid: Grid, customer: Account) -> dict[str, str]:
    """Jobs that the restored ledger does not know: one that ended, one that runs and
    one that waits.
    """
    ended = grid.submit_script(customer, SHORT)
    assert wait_for_end(grid, ended, PATIENCE_S).status is ChainStatus.FINISHED
    runs = grid.submit_script(customer, LONG)
    running(grid, runs)
    scontrol(grid, "update", "nodename=node[1-4]", "state=drain", "reason=test")
    waits = grid.submit_script(customer, SHORT)
    id_of(grid, waits)
    return {"ended": ended, "runs": runs, "waits": waits}


def _ends_and_is_forgotten(grid: Grid, customer: Account, job_id: str) -> None:
    """A job that the restored ledger knows as running ends, is settled, and SLURM
    forgets it.
    """
    slurm_id = id_of(grid, job_id)
    (grid.users.home(customer.address) / "may-end").touch()
    assert wait_for_end(grid, job_id, PATIENCE_S).status is ChainStatus.FINISHED
    slurm = slurm_of(grid)
    wait_until(
        lambda: slurm_id not in all_slurm_ids(slurm),
        "SLURM to forget the job",
        5 * PATIENCE_S,
        0.5,
    )


def _found_again(grid: Grid, jobs: dict[str, str], known: dict[str, int]) -> None:
    """The ledger has all these jobs, with the SLURM ids that they had."""

    def ids() -> dict[str, int]:
        found = {
            row.job_id: row.slurm_id
            for row in rows(grid, "SELECT job_id, slurm_id FROM jobs")
        }
        return {
            name: found[job_id]
            for name, job_id in jobs.items()
            if found.get(job_id) and name in known
        }

    wait_until(
        lambda: ids() == known,
        f"the jobs to be found again as {known}",
        2 * PATIENCE_S,
        0.2,
    )


def _open_jobs(grid: Grid) -> list[str]:
    return [
        row.job_id
        for row in rows(grid, "SELECT job_id FROM jobs WHERE state <> 'SETTLED'")
    ]
