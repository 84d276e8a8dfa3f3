"""The fleet of a small site as one unit (`supervisor run`), by the how-to, on a Debian
whose first process is systemd.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from devgrid.grid import Grid
from devgrid.processes import wait_until
from supervisor_tasks.cli.run_fleet import FLEET
from supervisor_tasks.jobs.model import ChainStatus
from tests.images.machines import Machine
from tests.images.systemd_site import (
    ETC,
    JOBS,
    PAGE,
    SETTINGS,
    SHELL,
    SMALL_SITE,
    SSH_KEY,
    UNIT_OF,
    change_settings,
    has_ended,
    ready,
    settle_job,
    shown,
    unit,
    wait_until_ready,
)
from tests.support import chaos_jobs

# it installs a release, on a machine that may be busy
pytestmark = pytest.mark.timeout(1800)

UNIT = "grid-supervisor.service"
PROCESSES = {
    9465: "worker",
    9466: "beat",
    9467: "callbacks",
    9468: "flower",
    9464: "metrics",
}


@pytest.fixture(scope="module")
def small(machine: Machine) -> Iterator[Machine]:
    """The machine after the site has gone over to the one unit."""
    machine.run("systemctl start grid-supervisor.target")
    wait_until_ready(machine)
    machine.run(SMALL_SITE)
    machine.run("systemctl disable grid-supervisor.target")
    wait_until_ready(machine, PROCESSES)
    yield machine
    machine.run(f"systemctl disable --now {UNIT}")
    machine.run("systemctl enable --now grid-supervisor.target")
    wait_until_ready(machine)


def pids(machine: Machine) -> set[str]:
    """All processes of the unit."""
    group = shown(machine, UNIT, "ControlGroup")
    listed = f"find /sys/fs/cgroup -path '*{group}/cgroup.procs' -exec cat {{}} +"
    return set(machine.run(listed).split()) if group else set()


def settled(grid: Grid, job_ids: list[str]) -> None:
    """Wait until all have ended well, and each has run once."""
    wait_until(
        lambda: all(grid.chain.job(job_id).status.is_final for job_id in job_ids),
        "all jobs to be settled",
        300.0,
    )
    ended = {
        (grid.chain.job(job_id).status, grid.chain.job(job_id).exit_code)
        for job_id in job_ids
    }
    assert ended == {(ChainStatus.FINISHED, 0)}
    ran = [
        file.name.rpartition("-")[0]
        for file in chaos_jobs.start_records(grid).iterdir()
    ]
    assert all(ran.count(job_id) == 1 for job_id in job_ids)


def submitted(grid: Grid) -> list[str]:
    return grid.submit_scripts(
        grid.new_customer(), chaos_jobs.marking(grid, "sleep 1"), JOBS
    )


def test_small_site__one_unit__takes_a_job_to_its_end_and_stops_the_target(
    small: Machine, site_grid: Grid
) -> None:
    for process in UNIT_OF.values():
        assert shown(small, unit(process), "ActiveState") == "inactive", process
    assert small.run(f"systemctl is-enabled {UNIT}").strip() == "enabled"
    settle_job(site_grid)
    small.run(f"{SHELL}\nsupervisor health")
    journal = small.run(f"journalctl --no-pager --output cat -u {UNIT}").splitlines()
    assert [line for line in journal if "Traceback" in line] == []
    for process in FLEET:  # the logs are one
        assert any(f'"process": "{process}"' in line for line in journal) or (
            process == "flower"  # which tells warnings only
        ), process


def test_small_site__at_work__all_its_processes_are_confined(small: Machine) -> None:
    found = pids(small)
    assert len(found) > len(FLEET)  # the children, and the unit's first process
    for pid in found:
        status = small.run(f"cat /proc/{pid}/status")
        about = dict(
            line.split(":\t", 1) for line in status.splitlines() if ":\t" in line
        )
        assert about["Uid"].split()[0] != "0", pid
        assert int(about["CapEff"], 16) == 0, pid
        assert (about["NoNewPrivs"], about["Seccomp"]) == ("1", "2"), pid
        assert not small.succeeds(f"nsenter --target {pid} --mount touch /etc/written")


def test_small_site__killed_with_jobs_under_way__starts_again_and_loses_none(
    small: Machine, site_grid: Grid
) -> None:
    asked = submitted(site_grid)
    former, main = pids(small), shown(small, UNIT, "MainPID")
    small.run(f"kill -KILL {main}")
    wait_until(
        lambda: shown(small, UNIT, "MainPID") not in ("0", main),
        "the unit to be started again",
        60.0,
    )
    wait_until_ready(small, PROCESSES)
    assert former & pids(small) == set()
    assert int(shown(small, UNIT, "NRestarts")) == 1
    settled(site_grid, [*asked, *submitted(site_grid)])


def test_small_site__stopped_with_jobs_under_way__ends_in_order_and_loses_none(
    small: Machine, site_grid: Grid
) -> None:
    asked = submitted(site_grid)
    small.run(f"systemctl stop {UNIT}")
    ended = [
        shown(small, UNIT, name)
        for name in ("ActiveState", "Result", "ExecMainCode", "ExecMainStatus")
    ]
    assert ended == ["inactive", "success", "1", "0"]  # 1: it exited by itself
    assert pids(small) == set()
    assert not any(ready(small, port) for port in PROCESSES)
    small.run(f"systemctl start {UNIT}")
    settled(site_grid, asked)


def test_small_site__over_slurmrestd__a_job_ends_without_an_ssh_key(
    small: Machine, site_grid: Grid, jwt_key: Path, slurmrestd: dict[str, str]
) -> None:
    (edit,) = re.findall(r"^```\n(sed .*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    file, secret = small.root / SETTINGS.lstrip("/"), f"{ETC}/credentials/slurm_jwt_key"
    before = file.read_text()
    change_settings(small, slurmrestd)
    small.put(secret, jwt_key.read_bytes())
    small.run(f"chmod 600 {secret}\nmv {SSH_KEY} /root/kept\n{edit}")
    try:
        small.run(f"systemctl daemon-reload\nsystemctl restart {UNIT}")
        wait_until_ready(small, PROCESSES)
        settle_job(site_grid)
    finally:
        file.write_text(before)
        small.run(f"mv /root/kept {SSH_KEY}\n{SMALL_SITE}systemctl restart {UNIT}")


def test_small_site__the_target_is_started__the_unit_stops(
    small: Machine, site_grid: Grid
) -> None:
    small.run("systemctl start grid-supervisor.target")
    wait_until_ready(small)
    assert shown(small, UNIT, "ActiveState") == "inactive"
    small.run(f"systemctl start {UNIT}")
    for process in UNIT_OF.values():
        assert has_ended(small, process), process
    wait_until_ready(small, PROCESSES)
    settled(site_grid, submitted(site_grid))
