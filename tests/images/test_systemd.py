"""The part of docs/how-to/deploy.md about systemd, followed to the letter on a Debian
whose first process is systemd.
"""

import json
from functools import partial

import pytest

from devgrid.grid import Grid
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.images.machines import RELEASE, Machine
from tests.images.systemd_site import (
    FORMER,
    HELLO,
    JOBS,
    LOOK,
    NEW_RELEASE,
    NEW_VERSION,
    REPORTER,
    SHELL,
    UNIT_OF,
    UPGRADE,
    give_version,
    has_ended,
    ready,
    release,
    restarted,
    shown,
    unit,
    wait_until_ready,
)
from tests.support import chaos_jobs

# it installs a release, on a machine that may be busy
pytestmark = pytest.mark.timeout(1800)


def test_page__followed_word_by_word__takes_a_job_to_its_end(
    machine: Machine, site_grid: Grid
) -> None:
    wait_until_ready(machine)
    customer = site_grid.new_customer()
    job_id = site_grid.submit(customer, HELLO.read_text())
    wait_until(
        lambda: site_grid.chain.job(job_id).status.is_final,
        "the job to be settled",
        180.0,
    )
    assert (
        site_grid.chain.job(job_id).status,
        site_grid.chain.job(job_id).exit_code,
    ) == (
        ChainStatus.FINISHED,
        0,
    )
    assert f"hello world, from {customer.address}" in site_grid.output(
        customer.address, job_id
    )
    wait_until(
        lambda: machine.succeeds(f"{SHELL}\n{LOOK}"),
        "the last look of the page to be well",
        120.0,
        1.0,
    )
    assert job_id[:10] in machine.run(f"{SHELL}\nsupervisor job show {job_id[:10]}")
    journal = machine.run("journalctl --no-pager -u 'grid-supervisor-*'").splitlines()
    assert [line for line in journal if "Traceback" in line] == []


def test_units__at_work__are_enabled_and_their_processes_confined(
    machine: Machine,
) -> None:
    wait_until_ready(machine)
    assert (
        machine.run("systemctl is-enabled grid-supervisor.target").strip() == "enabled"
    )
    waited_for = [
        shown(machine, unit("migrate"), name)
        for name in ("Type", "Restart", "ActiveState", "SubState")
    ]
    assert waited_for == ["oneshot", "on-failure", "active", "exited"]
    for process in UNIT_OF.values():
        pid = shown(machine, unit(process), "MainPID")
        status = machine.run(f"cat /proc/{pid}/status")
        about = dict(
            line.split(":\t", 1) for line in status.splitlines() if ":\t" in line
        )
        assert about["Uid"].split()[0] != "0", process
        assert int(about["CapEff"], 16) == 0, process
        assert about["NoNewPrivs"] == "1", process
        assert about["Seccomp"] == "2", process
        environment = machine.run(f"tr '\\0' '\\n' </proc/{pid}/environ")
        assert "postgresql://" not in environment, process
        assert not machine.succeeds(
            f"nsenter --target {pid} --mount touch /etc/written"
        ), process


def test_units__killed_and_restarted_with_jobs_under_way__lose_none(
    machine: Machine, site_grid: Grid
) -> None:
    wait_until_ready(machine)
    customer = site_grid.new_customer()
    asked = site_grid.submit_scripts(
        customer, chaos_jobs.marking(site_grid, "sleep 1"), JOBS
    )
    for process in ("worker-slurm", "worker-chain", "beat", "callbacks"):
        killed = shown(machine, unit(process), "MainPID")
        machine.run(f"kill -KILL {killed}")
        again = partial(restarted, machine, process, killed)
        wait_until(again, f"{process} to be started again", 60.0)
    wait_until_ready(machine)
    asked += site_grid.submit_scripts(
        customer, chaos_jobs.marking(site_grid, "sleep 1"), JOBS
    )
    before = {
        process: shown(machine, unit(process), "MainPID")
        for process in UNIT_OF.values()
    }
    machine.run("systemctl restart grid-supervisor.target")
    for process in UNIT_OF.values():
        again = partial(restarted, machine, process, before[process])
        wait_until(again, f"{process} to be restarted", 180.0, 0.5)
    wait_until_ready(machine)
    wait_until(
        lambda: all(site_grid.chain.job(job).status.is_final for job in asked),
        "all jobs to be settled",
        300.0,
    )
    ended = {
        (site_grid.chain.job(job).status, site_grid.chain.job(job).exit_code)
        for job in asked
    }
    assert ended == {(ChainStatus.FINISHED, 0)}
    ran = [
        file.name.rpartition("-")[0]
        for file in chaos_jobs.start_records(site_grid).iterdir()
    ]
    assert sorted(ran) == sorted(asked)  # each once


def test_unit__ends_again_and_again__waits_longer_before_each_start(
    machine: Machine,
) -> None:
    """Debian 12's systemd by itself starts it each 2 s."""
    wrong = f"/etc/systemd/system/{unit('flower')}.d/wrong.conf"
    machine.run(f"systemctl stop {unit('flower')}")  # it counts from 0 then
    machine.put(wrong, "[Service]\nEnvironment=CHAIN_POLL_S=often\n")
    machine.run(f"systemctl daemon-reload && systemctl start {unit('flower')}")

    def waits_s() -> list[float]:
        lines = machine.run(
            f"journalctl --no-pager --output cat -u {unit('flower')}"
        ).splitlines()
        return [
            json.loads(line)["wait_s"] for line in lines if '"start_delayed"' in line
        ]

    wait_until(lambda: len(waits_s()) > 2, "the third wait", 180.0, 1.0)
    assert waits_s()[:3] == [2.0, 6.0, 14.0]
    machine.run(
        f"rm {wrong} && systemctl daemon-reload && systemctl restart {unit('flower')}"
    )
    wait_until_ready(machine)


def test_reporter__as_the_unit_of_slurmctlds_host__delivers_its_spool(
    machine: Machine, site_grid: Grid
) -> None:
    wait_until_ready(machine)
    machine.run("useradd --system slurm")  # which slurmctld's host has
    machine.run(REPORTER.replace("supervisor.example.com", "localhost"))
    wait_until(lambda: ready(machine, 9470), "the reporter to be ready", 60.0, 0.5)
    event = f"event=ended\njob_id=0x{7:064x}\nslurm_id=7\nstate=FAILED\nexit=3:0\nstart_s=5\nend_s=9\ncomplete=1\n"
    name = f"{1:019d}-7-end"
    machine.put(RELEASE / "event", event)
    spool = "/var/spool/supervisor"
    machine.run(
        f"install -o slurm -m 600 event {spool}/.{name} && mv {spool}/.{name} {spool}/{name}"
    )  # as the hooks do
    gone = f"test ! -e {spool}/{name}"
    wait_until(lambda: machine.succeeds(gone), "the event to be delivered", 60.0, 0.5)
    figures = machine.run("curl --silent --fail http://127.0.0.1:9470/metrics")
    # The supervisor knows no such job, and keeps its callback for a while.
    assert (
        'supervisor_reporter_events_total{cluster="main",outcome="delivered"} 1'
        in figures
    )
    assert (
        'supervisor_reporter_events_total{cluster="main",outcome="rejected"} 0'
        in figures
    )


def test_upgrade__followed_word_by_word_with_jobs_under_way__loses_none(
    machine: Machine, site_grid: Grid
) -> None:
    """Only the number of the new release is another one: what was changed in its files
    before shows that the upgrade replaced them.
    """
    wait_until_ready(machine)
    (package,) = machine.root.glob(
        "opt/grid-supervisor/venvs/*/lib/python3*/site-packages/supervisor_tasks"
    )
    of_the_unit = machine.root / "etc/systemd/system" / unit("beat")
    replaced = [package / "__init__.py", of_the_unit]
    for file in replaced:
        file.write_text(file.read_text() + FORMER)
    release(machine, NEW_RELEASE)
    give_version(machine.root / NEW_RELEASE.relative_to("/"), NEW_VERSION)
    asked = site_grid.submit_scripts(
        site_grid.new_customer(), chaos_jobs.marking(site_grid, "sleep 5"), JOBS
    )
    before = {
        process: shown(machine, unit(process), "MainPID")
        for process in UNIT_OF.values()
    }
    # The machine has no way to an index of packages: pip has that of this one.
    by_pip, units, rest = UPGRADE.partition("cp -r systemd/")
    machine.install_again(by_pip, NEW_RELEASE)
    machine.run(units + rest, NEW_RELEASE)
    for process in UNIT_OF.values():
        again = partial(restarted, machine, process, before[process])
        wait_until(again, f"{process} to be restarted", 180.0, 0.5)
    wait_until_ready(machine)
    assert [file for file in replaced if FORMER in file.read_text()] == []
    wait_until(
        lambda: all(site_grid.chain.job(job).status.is_final for job in asked),
        "all jobs to be settled",
        300.0,
    )
    ended = {
        (site_grid.chain.job(job).status, site_grid.chain.job(job).exit_code)
        for job in asked
    }
    assert ended == {(ChainStatus.FINISHED, 0)}
    ran = [
        file.name.rpartition("-")[0]
        for file in chaos_jobs.start_records(site_grid).iterdir()
    ]
    assert all(ran.count(job) == 1 for job in asked)  # each once


def test_target__stopped__ends_each_process_in_order(machine: Machine) -> None:
    wait_until_ready(machine)
    # it does not wait for the units
    machine.run("systemctl stop grid-supervisor.target")
    for process in UNIT_OF.values():
        wait_until(
            partial(has_ended, machine, process), f"{process} to end", 150.0, 0.5
        )
        found = (
            shown(machine, unit(process), "ActiveState"),
            shown(machine, unit(process), "Result"),
        )
        assert found == ("inactive", "success"), process
