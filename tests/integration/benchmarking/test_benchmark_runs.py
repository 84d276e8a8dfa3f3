"""Benchmark runs on real parts: Postgres, sshd and SLURM. The benchmarks themselves are
small.
"""

import base64
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import text

from benchmarks.plan import Plan
from benchmarks.registry import SUITE
from devgrid.cluster.linux_users import admin
from devgrid.cluster.sshd import Sshd
from devgrid.machine import deadline
from devgrid.processes import wait_until
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.benchmarking.benchmark_run import NICE, BenchmarkState
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.execution.effect_failures import update_effect_alarms
from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.ledger.benchmark_queries import BenchmarkQueries
from supervisor_tasks.ledger.outbox import PARKED_AFTER
from supervisor_tasks.ledger.status_queries import OpenEffectFilter, Overview
from supervisor_tasks.ledger.switch_names import Switch
from supervisor_tasks.slurm.certificates import CertificateAuthority
from supervisor_tasks.slurm.cluster import Cluster, over_ssh
from supervisor_tasks.slurm.hardware import PartitionHardware
from supervisor_tasks.slurm.login_node import LoginNode
from supervisor_tasks.slurm.ssh import Ssh, load_key
from tests.support.benchmark_env import (
    PATIENCE_S,
    POLL_INTERVAL_S,
    PROVIDER_ADDRESS,
    RUNNER,
    body_of,
    finite,
    in_slurm,
    let_end,
    measuring,
    results,
    run_benchmark_task,
    start_worker,
    until_done,
    until_stage,
)
from tests.support.commands import supervisor
from tests.support.ledger import emptied, let_time_pass
from tests.support.marks import in_chaos
from tests.support.submission_env import CUSTOMER, PATHS, SLURM_SETTINGS, SubmissionEnv

ANOTHER = "another"  # Linux user
UCX_OF_THREE = {"BENCHMARK_UCX": "true", "BENCHMARK_UCX_AFFINITY": "a:1|b:1|c:1"}


@pytest.fixture(scope="module")
def submission_env() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running() as running:
        running.slurm.users.add(RUNNER)
        yield running


@pytest.fixture(autouse=True)
def nothing_measured(submission_env: SubmissionEnv) -> None:
    emptied(submission_env.engine)


def a_site(submission_env: SubmissionEnv, *names: str) -> WorkerContext:
    cluster = submission_env.cluster()
    return measuring(submission_env.site(cluster), cluster, names)


def home(submission_env: SubmissionEnv) -> list[Path]:
    return list(submission_env.slurm.users.home(RUNNER).iterdir())


def test_run__with_benchmarks_that_do_not_work__records_why_and_measures_the_others(
    submission_env: SubmissionEnv,
) -> None:
    site = a_site(
        submission_env,
        "good",
        "fails",
        "garbage",
        "silent",
        "nan",
        "zero",
        "gone",
        "missing",
        "chatty",
        "words",
    )
    number = site.ledger.benchmarks.ask("a test")
    run = until_done(site)
    assert (run["id"], run["state"], run["cancel_reason"]) == (number, "DONE", None)
    assert [node["name"] for node in run["hardware"]["nodes"]] == ["node1", "node2"]
    found = results(site)
    assert {name: row["state"] for name, row in found.items()} == {
        **dict.fromkeys(("good", "chatty", "words"), BenchmarkState.MEASURED),
        **dict.fromkeys(
            ("fails", "garbage", "silent", "nan", "zero", "gone"), BenchmarkState.FAILED
        ),
        "missing": BenchmarkState.LEFT_OUT,
    }
    assert found["fails"]["reason"] == "exit code 3"
    assert "signal 9" in found["gone"]["reason"]
    assert "no line with a value" in found["garbage"]["reason"]
    assert found["nan"]["reason"] == "nan.number is nan"
    assert found["missing"]["reason"] == "no osu_latency on the node"
    assert found["words"]["notes"] == ["said by uname"]
    assert site.ledger.benchmarks.labels() == {
        "good.number": 12.5,
        "chatty.number": 3.0,
        "words.word": "Linux",
    }
    assert all(finite(row["labels"]) for row in found.values())
    assert number is not None
    assert site.ledger.benchmark_queries.output(number, "fails") == (
        body_of("fails"),
        b"this must fail\n",
    )
    assert 9_900_000 < found["chatty"]["output_bytes"] <= 10_000_000
    assert home(submission_env) == []
    (alarm,) = site.ledger.alarms.all()
    assert alarm.name == AlarmName.BENCHMARK_FAILED
    assert set(alarm.details["benchmarks"]) == {
        "fails",
        "garbage",
        "silent",
        "nan",
        "zero",
        "gone",
    }
    assert alarm.details["benchmarks"]["fails"] == "exit code 3"
    after = a_site(submission_env, "good")
    after.ledger.benchmarks.ask("a test")
    until_done(after)
    assert after.ledger.alarms.all() == []


def test_job__submitted__is_the_runners_and_behind_the_customers(
    submission_env: SubmissionEnv,
) -> None:
    site = a_site(submission_env, "endless")
    site = replace(
        site,
        benchmark_services=replace(site.benchmarking, sbatch_flags=("--account=grid",)),
    )
    site.ledger.benchmarks.ask("a test")
    job = until_stage(site, "endless", "SUBMITTED", slurm_state="RUNNING")
    slurm_id, name = job["slurm_id"], job["job_name"]
    assert name.startswith(f"benchmark-{PROVIDER_ADDRESS}-here-")
    assert submission_env.field(slurm_id, "UserName") == RUNNER
    assert submission_env.field(slurm_id, "Name") == name
    assert submission_env.field(slurm_id, "Comment").split()[0] == "benchmark"
    assert submission_env.field(slurm_id, "Nice") == str(NICE)
    assert submission_env.field(slurm_id, "TimeLimit") == "1:00"
    assert submission_env.field(slurm_id, "Partition") == "main"
    assert submission_env.field(slurm_id, "Account") == "grid"
    site.ledger.benchmarks.cancel("seen enough")
    run = until_done(site)
    assert (run["state"], run["cancel_reason"]) == ("CANCELLED", "seen enough")
    assert (results(site)["endless"]["state"], results(site)["endless"]["reason"]) == (
        "CANCELLED",
        "seen enough",
    )
    assert in_slurm(submission_env, name) == ["CANCELLED"]
    assert site.ledger.benchmarks.labels() == {}
    assert home(submission_env) == []


def test_cancelled_run__one_of_three_measured__keeps_that_and_begins_nothing_more(
    submission_env: SubmissionEnv,
) -> None:
    site = a_site(submission_env, "good", "endless", "words")
    site.ledger.benchmarks.ask("a test")
    until_stage(site, "endless", "SUBMITTED")
    site.ledger.benchmarks.cancel("enough")
    until_done(site)
    assert {name: row["state"] for name, row in results(site).items()} == {
        "good": "MEASURED",
        "endless": "CANCELLED",
        "words": "CANCELLED",
    }
    assert site.ledger.benchmarks.labels() == {"good.number": 12.5}
    assert in_slurm(submission_env, results(site)["words"]["job_name"]) == []


def test_run__without_a_step__says_why_and_alarms_when_it_cannot_be_planned(
    submission_env: SubmissionEnv,
) -> None:
    site = a_site(submission_env, "good")

    def plan_of(hardware: PartitionHardware, nonce: str) -> Plan:
        raise ValueError("3 entries of UCX affinity")

    impossible = replace(
        site, benchmark_services=replace(site.benchmarking, plan_of=plan_of)
    )
    number = site.ledger.benchmarks.ask("a test")
    site.ledger.switches.set(Switch.SUBMISSIONS_PAUSED)
    assert "paused" in run_benchmark_task(site)
    assert site.ledger.alarms.all() == []
    (shown,) = Overview(submission_env.engine, "here").effects(
        OpenEffectFilter(kind=EffectKind.BENCHMARK)
    )
    assert shown["subject"] == str(number)
    assert "paused" in shown["last_error"]
    site.ledger.switches.unset(Switch.SUBMISSIONS_PAUSED)
    assert "cannot be planned" in run_benchmark_task(impossible, at_once=True)
    update_effect_alarms(site.ledger)
    assert [alarm.name for alarm in site.ledger.alarms.all()] == [
        AlarmName.BENCHMARK_STALLED
    ]
    assert until_done(site)["state"] == "DONE"
    update_effect_alarms(site.ledger)
    assert site.ledger.alarms.all() == []


def test_run__benchmarks_disabled_meanwhile__ends_and_keeps_what_it_has_measured(
    submission_env: SubmissionEnv,
) -> None:
    site = a_site(submission_env, "good", "endless")
    site.ledger.benchmarks.ask("a test")
    until_stage(site, "endless", "SUBMITTED", slurm_state="RUNNING")
    run = until_done(
        replace(site, benchmark_services=replace(site.benchmarking, disabled=True))
    )
    assert (run["state"], run["cancel_reason"]) == (
        "CANCELLED",
        "BENCHMARK_DISABLE is set",
    )
    assert in_slurm(submission_env, results(site)["endless"]["job_name"]) == [
        "CANCELLED"
    ]
    assert site.ledger.benchmarks.labels() == {"good.number": 12.5}


def test_run__partition_without_a_working_node__waits_for_one(
    submission_env: SubmissionEnv,
) -> None:
    site = a_site(submission_env, "good")
    site.ledger.benchmarks.ask("a test")
    submission_env.slurm.run(
        "scontrol", "update", "NodeName=node[1-2]", "State=DRAIN", "Reason=test"
    )
    assert "found 2 nodes, and none works" in run_benchmark_task(site)
    submission_env.slurm.run("scontrol", "update", "NodeName=node[1-2]", "State=RESUME")
    assert until_done(site)["state"] == "DONE"
    assert site.ledger.benchmarks.labels() == {"good.number": 12.5}


def test_run__unlike_node_works_again_meanwhile__its_job_runs_on_a_planned_one(
    submission_env: SubmissionEnv,
) -> None:
    alike = a_site(submission_env, "good")

    def plan_of(hardware: PartitionHardware, nonce: str) -> Plan:
        plan = alike.benchmarking.plan_of(hardware, nonce)
        return plan.model_copy(update={"unlike_nodes": ("node1",)})

    services = replace(alike.benchmarking, plan_of=plan_of)
    site = replace(alike, benchmark_services=services)
    site.ledger.benchmarks.ask("a test")
    submission_env.slurm.run(
        "scontrol", "update", "NodeName=node2", "State=DRAIN", "Reason=test"
    )
    try:  # node1 is free
        job = until_stage(site, "good", "SUBMITTED", slurm_state="PENDING")
    finally:
        submission_env.slurm.run("scontrol", "update", "NodeName=node2", "State=RESUME")
    assert until_done(site)["state"] == "DONE"
    assert in_slurm(submission_env, job["job_name"], "%N") == ["node2"]


def test_job__held__has_failed_and_is_cancelled(submission_env: SubmissionEnv) -> None:
    site = a_site(submission_env, "endless")
    site.ledger.benchmarks.ask("a test")
    submission_env.slurm.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    job = until_stage(site, "endless", "SUBMITTED", slurm_state="PENDING")
    held = submission_env.slurm.run("scontrol", "hold", str(job["slurm_id"]))
    submission_env.slurm.run("scontrol", "update", "PartitionName=main", "State=UP")
    assert held.returncode == 0, held.stderr
    until_done(site)
    assert results(site)["endless"]["state"] == "FAILED"
    assert "JobHeld" in results(site)["endless"]["reason"]
    assert in_slurm(submission_env, job["job_name"]) == ["CANCELLED"]


@pytest.mark.parametrize("place", [in_chaos("before-sbatch"), "after-sbatch"])
def test_job__worker_killed_while_submitting__is_found_again_and_runs_once(
    submission_env: SubmissionEnv, place: str
) -> None:
    site = a_site(submission_env, "slow", "good")
    site.ledger.benchmarks.ask("a test")
    order = submission_env.processes.folder / "crash"
    order.write_text(f"{place} 1")
    worker = start_worker(submission_env, ["slow", "good"], order)
    assert worker.wait(deadline(60)) == -signal.SIGKILL
    assert results(site)["slow"]["state"] == "SUBMITTING"
    name = results(site)["slow"]["job_name"]
    until_stage(site, "slow", "SUBMITTED", slurm_state="RUNNING")
    let_end(submission_env, site)
    run = until_done(site)
    assert run["state"] == "DONE"
    assert in_slurm(submission_env, name) == ["COMPLETED"]
    assert site.ledger.benchmarks.labels() == {"slow.number": 7.0, "good.number": 12.5}


@pytest.mark.chaos
def test_job__worker_killed_while_it_runs__is_read_by_another_worker(
    submission_env: SubmissionEnv,
) -> None:
    site = a_site(submission_env, "slow")
    site.ledger.benchmarks.ask("a test")
    worker = start_worker(
        submission_env, ["slow"], submission_env.processes.folder / "no-crash"
    )
    try:
        wait_until(
            lambda: results(site)["slow"]["state"] == "SUBMITTED",
            "the submission",
            60.0,
            0.05,
        )
    finally:
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait(deadline(10))
    let_end(submission_env, site)
    until_done(site)
    assert in_slurm(submission_env, results(site)["slow"]["job_name"]) == ["COMPLETED"]
    assert site.ledger.benchmarks.labels() == {"slow.number": 7.0}


@pytest.mark.extended
def test_run__slurmctld_away_in_the_middle__waits_for_it(
    submission_env: SubmissionEnv,
) -> None:
    site = a_site(submission_env, "slow", "good")
    site.ledger.benchmarks.ask("a test")
    until_stage(site, "slow", "SUBMITTED", slurm_state="RUNNING")
    processes = submission_env.slurm.processes
    processes.stop(processes.find("slurmctld"))
    wait_until(lambda: run_benchmark_task(site) != "", "a look at SLURM", 60.0, 0.2)
    assert results(site)["slow"]["state"] == "SUBMITTED"
    submission_env.slurm.start_controller()
    let_end(submission_env, site)
    run = until_done(site)
    assert run["state"] == "DONE"
    assert site.ledger.benchmarks.labels() == {"slow.number": 7.0, "good.number": 12.5}
    assert [
        in_slurm(submission_env, row["job_name"]) for row in results(site).values()
    ] == [["COMPLETED"]] * 2


def test_job__no_longer_found_in_slurm__is_judged_by_its_output(
    submission_env: SubmissionEnv,
) -> None:
    site = a_site(submission_env, "slow")
    site.ledger.benchmarks.ask("a test")
    job = until_stage(site, "slow", "SUBMITTED", slurm_state="RUNNING")
    renamed = submission_env.slurm.run(
        "scontrol", "update", f"JobId={job['slurm_id']}", "JobName=another"
    )
    assert renamed.returncode == 0, renamed.stderr
    let_end(submission_env, site)
    until_done(site)
    assert site.ledger.benchmarks.labels() == {"slow.number": 7.0}


def moved_back(
    submission_env: SubmissionEnv, benchmark: str, *, called: int = 0, ended: int = 0
) -> None:
    """As if that much time had passed: the next look is due, it was handed over and
    ended that many minutes earlier.
    """
    change = """
        UPDATE benchmark_results SET
            called_at = called_at - :called * interval '1 minute', ended_at = ended_at - :ended * interval '1 minute'
        WHERE benchmark = :benchmark
    """
    with submission_env.engine.begin() as connection:
        connection.execute(
            text(change), {"called": called, "ended": ended, "benchmark": benchmark}
        )
        connection.execute(
            text(
                "UPDATE effects SET due_at = now() WHERE kind = 'benchmark' AND done_at IS NULL"
            )
        )


def until_done_without_waiting(
    submission_env: SubmissionEnv, site: WorkerContext, benchmark: str
) -> None:
    """What was handed over long ago is looked at once a minute; here at every run of the task."""

    def done() -> bool:
        moved_back(submission_env, benchmark)
        run_benchmark_task(site)
        return site.ledger.benchmarks.under_way() is None

    wait_until(done, "the run to end", PATIENCE_S, POLL_INTERVAL_S)


def alarms(site: WorkerContext) -> list[str]:
    return [alarm.name for alarm in site.ledger.alarms.all()]


def test_run__node_lost_in_the_middle__fails_what_needs_it_and_measures_the_others(
    submission_env: SubmissionEnv,
) -> None:
    site = a_site(submission_env, "both", "good")
    site.ledger.benchmarks.ask("a test")
    submission_env.slurm.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    job = until_stage(site, "both", "SUBMITTED", slurm_state="PENDING")
    submission_env.slurm.run(
        "scontrol", "update", "NodeName=node2", "State=DRAIN", "Reason=test"
    )
    try:
        submission_env.slurm.run("scontrol", "update", "PartitionName=main", "State=UP")
        moved_back(submission_env, "both", called=14)
        run_benchmark_task(site)
        assert results(site)["both"]["state"] == "SUBMITTED"
        moved_back(submission_env, "both", called=2)
        assert until_done(site)["state"] == "DONE"
    finally:
        submission_env.slurm.run("scontrol", "update", "NodeName=node2", "State=RESUME")
    found = results(site)["both"]
    assert found["state"] == "FAILED"
    assert found["reason"].startswith("it needs 2 nodes, 1 work; SLURM: PENDING")
    assert in_slurm(submission_env, job["job_name"]) == ["CANCELLED"]
    assert site.ledger.benchmarks.labels() == {"good.number": 12.5}


def test_benchmark__waits_for_an_hour__calls_the_operator_until_it_begins(
    submission_env: SubmissionEnv,
) -> None:
    site = a_site(submission_env, "good")
    site.ledger.benchmarks.ask("a test")
    submission_env.slurm.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        until_stage(site, "good", "SUBMITTED", slurm_state="PENDING")
        moved_back(submission_env, "good", called=61)
        run_benchmark_task(site)
        assert alarms(site) == [AlarmName.BENCHMARK_WAITS]
        moved_back(submission_env, "good")
        run_benchmark_task(site)
        assert alarms(site) == [AlarmName.BENCHMARK_WAITS]
    finally:
        submission_env.slurm.run("scontrol", "update", "PartitionName=main", "State=UP")
    until_done_without_waiting(submission_env, site, "good")
    assert alarms(site) == []
    assert site.ledger.benchmarks.labels() == {"good.number": 12.5}


def test_benchmark__suspended_for_an_hour__calls_the_operator_and_can_be_left(
    submission_env: SubmissionEnv,
) -> None:
    site = a_site(submission_env, "endless")
    site.ledger.benchmarks.ask("a test")
    job = until_stage(site, "endless", "SUBMITTED", slurm_state="RUNNING")
    suspended = submission_env.slurm.run("scontrol", "suspend", str(job["slurm_id"]))
    assert suspended.returncode == 0, suspended.stderr
    try:
        moved_back(submission_env, "endless")
        run_benchmark_task(site)
        assert results(site)["endless"]["slurm_state"] == "SUSPENDED"
        assert alarms(site) == []
        let_time_pass(submission_env.engine, 3601, "condition.benchmark%")
        moved_back(submission_env, "endless")
        run_benchmark_task(site)
        assert alarms(site) == [AlarmName.BENCHMARK_WAITS]
        site.ledger.benchmarks.cancel("enough")
        until_done(site)
    finally:
        submission_env.slurm.run("scancel", str(job["slurm_id"]))
    found = results(site)["endless"]
    assert found["state"] == "CANCELLED"
    assert found["reason"].startswith("enough; SLURM has shown SUSPENDED for 60 min")
    assert alarms(site) == []


@pytest.fixture
def kept_files(submission_env: SubmissionEnv) -> Iterator[Path]:
    """The runner's home while only root can remove what root owns there."""
    folder = submission_env.slurm.users.home(RUNNER)
    before = folder.stat()
    os.chown(folder, 0, 0)
    folder.chmod(0o1777)
    yield folder
    os.chown(folder, before.st_uid, before.st_gid)
    folder.chmod(before.st_mode)
    for file in folder.iterdir():
        file.unlink()


def until_kept(
    submission_env: SubmissionEnv, site: WorkerContext, folder: Path
) -> None:
    """The benchmark `slow` runs and may end, and its output cannot be removed."""
    until_stage(site, "slow", "SUBMITTED", slurm_state="RUNNING")
    file = folder / f"{results(site)['slow']['job_name']}.log"
    wait_until(file.exists, "the job's output", 60.0, 0.1)
    os.chown(file, 0, 0)
    let_end(submission_env, site)


def test_output__cannot_be_removed__delays_no_other_benchmark_and_is_given_up(
    submission_env: SubmissionEnv, kept_files: Path
) -> None:
    site = a_site(submission_env, "slow", "good")
    site.ledger.benchmarks.ask("a test")
    until_kept(submission_env, site, kept_files)
    until_stage(site, "good", "MEASURED")
    assert site.ledger.benchmarks.labels() == {"slow.number": 7.0, "good.number": 12.5}
    assert site.ledger.benchmarks.under_way() is not None
    moved_back(submission_env, "slow", ended=16)
    assert until_done(site)["state"] == "DONE"
    notes = results(site)["slow"]["notes"]
    assert [note.partition(":")[0] for note in notes] == [
        "its output stays on the login node"
    ]
    assert "not permitted" in notes[0]
    assert results(site)["good"]["notes"] == []


@pytest.mark.chaos
def test_cancelled_run__output_cannot_be_removed__ends_and_keeps_what_it_measured(
    submission_env: SubmissionEnv, kept_files: Path
) -> None:
    site = a_site(submission_env, "slow")
    site.ledger.benchmarks.ask("a test")
    until_kept(submission_env, site, kept_files)
    until_stage(site, "slow", "MEASURED")
    site.ledger.benchmarks.cancel("enough")
    assert until_done(site)["state"] == "CANCELLED"
    assert site.ledger.benchmarks.labels() == {"slow.number": 7.0}


def without_rights(submission_env: SubmissionEnv, *names: str) -> WorkerContext:
    """A site whose admin user may not cancel the jobs of others."""
    login_node = replace(submission_env.cluster().login_node, admin=CUSTOMER)
    cluster = Cluster.of(login_node, SLURM_SETTINGS)
    return measuring(submission_env.site(cluster), cluster, names)


def test_job__held_and_may_not_be_cancelled__has_failed_all_the_same(
    submission_env: SubmissionEnv,
) -> None:
    site = without_rights(submission_env, "endless", "good")
    site.ledger.benchmarks.ask("a test")
    submission_env.slurm.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    job = until_stage(site, "endless", "SUBMITTED", slurm_state="PENDING")
    submission_env.slurm.run("scontrol", "hold", str(job["slurm_id"]))
    submission_env.slurm.run("scontrol", "update", "PartitionName=main", "State=UP")
    assert until_done(site)["state"] == "DONE"
    assert results(site)["endless"]["state"] == "FAILED"
    assert "JobHeld" in results(site)["endless"]["reason"]
    assert "could not be cancelled" in results(site)["endless"]["reason"]
    assert site.ledger.benchmarks.labels() == {"good.number": 12.5}
    submission_env.slurm.run("scancel", str(job["slurm_id"]))


def test_job__running_and_may_not_be_cancelled__is_awaited(
    submission_env: SubmissionEnv,
) -> None:
    site = without_rights(submission_env, "endless", "good")
    site.ledger.benchmarks.ask("a test")
    job = until_stage(site, "endless", "SUBMITTED", slurm_state="RUNNING")
    site.ledger.benchmarks.cancel("enough")
    run_benchmark_task(site)
    found = results(site)["endless"]
    assert (found["state"], "could not be cancelled" in found["reason"]) == (
        "SUBMITTED",
        True,
    )
    assert in_slurm(submission_env, job["job_name"]) == ["RUNNING"]
    submission_env.slurm.run("scancel", str(job["slurm_id"]))  # as its time limit would
    until_done_without_waiting(submission_env, site, "endless")
    assert {name: row["state"] for name, row in results(site).items()} == {
        "endless": "CANCELLED",
        "good": "CANCELLED",
    }
    assert results(site)["endless"]["reason"] == "enough"


def test_run__unexpected_error__is_shown_and_raises_an_alarm(
    submission_env: SubmissionEnv,
) -> None:
    site = a_site(submission_env, "good")

    def plan_of(hardware: PartitionHardware, nonce: str) -> Plan:
        raise KeyError("a mistake of ours")

    wrong = replace(
        site, benchmark_services=replace(site.benchmarking, plan_of=plan_of)
    )
    number = site.ledger.benchmarks.ask("a test")
    for _ in range(PARKED_AFTER):
        with pytest.raises(KeyError):
            run_benchmark_task(wrong, at_once=True)
    assert run_benchmark_task(wrong, at_once=True) == ""
    update_effect_alarms(site.ledger)
    assert alarms(site) == [AlarmName.EFFECT_PARKED]
    (parked,) = Overview(submission_env.engine, "here").parked()
    assert (parked["kind"], parked["subject"]) == ("benchmark", str(number))
    assert parked["last_error"] == "KeyError('a mistake of ours')"
    site.ledger.benchmarks.resume()  # as the start of a worker does
    assert until_done(site)["state"] == "DONE"
    update_effect_alarms(site.ledger)
    assert alarms(site) == []


def test_cancelled_run__its_job_has_completed__keeps_what_it_measured(
    submission_env: SubmissionEnv,
) -> None:
    site = a_site(submission_env, "slow")
    site.ledger.benchmarks.ask("a test")
    job = until_stage(site, "slow", "SUBMITTED", slurm_state="RUNNING")
    let_end(submission_env, site)
    wait_until(
        lambda: in_slurm(submission_env, job["job_name"]) == ["COMPLETED"],
        "the job to end",
        60.0,
        0.2,
    )
    site.ledger.benchmarks.cancel("enough")
    assert until_done(site)["state"] == "CANCELLED"
    assert (results(site)["slow"]["state"], results(site)["slow"]["reason"]) == (
        "MEASURED",
        None,
    )
    assert site.ledger.benchmarks.labels() == {"slow.number": 7.0}


def test_run__user_changes_in_the_middle__job_is_found_and_the_next_has_the_new_user(
    submission_env: SubmissionEnv,
) -> None:
    site = a_site(submission_env, "slow", "good")
    site.ledger.benchmarks.ask("a test")
    job = until_stage(site, "slow", "SUBMITTED", slurm_state="RUNNING")
    submission_env.slurm.users.add(ANOTHER)
    changed = measuring(
        site, over_ssh(site.slurm.cluster), ["slow", "good"], user=ANOTHER
    )
    let_end(submission_env, site)
    next_one = until_stage(changed, "good", "SUBMITTED", "ENDED", "MEASURED")
    until_done(changed)
    assert in_slurm(submission_env, job["job_name"]) == ["COMPLETED"]
    assert site.ledger.benchmarks.labels() == {"slow.number": 7.0, "good.number": 12.5}
    assert submission_env.field(job["slurm_id"], "UserName") == RUNNER
    assert submission_env.field(next_one["slurm_id"], "UserName") == ANOTHER
    assert home(submission_env) == []


@pytest.mark.chaos
def test_cancelled_run__user_changed_in_the_middle__ends_the_former_users_job(
    submission_env: SubmissionEnv,
) -> None:
    site = a_site(submission_env, "endless")
    site.ledger.benchmarks.ask("a test")
    job = until_stage(site, "endless", "SUBMITTED", slurm_state="RUNNING")
    site.ledger.benchmarks.cancel("enough")
    submission_env.slurm.users.add(ANOTHER)
    until_done(measuring(site, over_ssh(site.slurm.cluster), ["endless"], user=ANOTHER))
    assert in_slurm(submission_env, job["job_name"]) == ["CANCELLED"]


@pytest.fixture(scope="module")
def rejecting_sshd(submission_env: SubmissionEnv) -> Sshd:
    """An sshd that lets in all but the benchmarks' user."""
    allows_others = (
        f'[ "$0" = {RUNNER} ] || exec cat {submission_env.key.with_suffix(".pub")}'
    )
    command = ["/bin/sh", "-c", allows_others, "%u"]
    return Sshd.start(
        submission_env.processes,
        submission_env.slurm.env(),
        command,
        name="refusing-sshd",
    )


def signing_for_another(submission_env: SubmissionEnv) -> Cluster:
    """A client of SLURM whose authority signs for another user of benchmarks, and no
    more for the former one.
    """
    key = load_key(submission_env.key.read_text())
    users = {admin(), ANOTHER}
    authority = CertificateAuthority(Ed25519PrivateKey.generate(), users, "supervisor")
    ssh = Ssh(
        submission_env.sshd.address,
        lambda user: key if user == admin() else authority.key_for(user),
        submission_env.sshd.known_hosts,
        connect_timeout_s=deadline(5.0),
    )
    return Cluster.of(LoginNode(ssh=ssh, admin=admin(), paths=PATHS), SLURM_SETTINGS)


@pytest.mark.parametrize(
    ("signs_for_another", "forgotten"),
    [
        pytest.param(False, False, id="key refused, job ended"),
        pytest.param(False, True, id="key refused, job forgotten"),
        pytest.param(True, False, id="no certificate, job ended"),
    ],
)
def test_cancelled_run__user_can_no_longer_log_in__ends_with_a_note(
    submission_env: SubmissionEnv,
    rejecting_sshd: Sshd,
    signs_for_another: bool,
    forgotten: bool,
) -> None:
    site = a_site(submission_env, "slow")
    site.ledger.benchmarks.ask("a test")
    job = until_stage(site, "slow", "SUBMITTED", slurm_state="RUNNING")
    name = job["job_name"]
    if forgotten:
        name = "another"
        renamed = submission_env.slurm.run(
            "scontrol", "update", f"JobId={job['slurm_id']}", f"JobName={name}"
        )
        assert renamed.returncode == 0, renamed.stderr
    let_end(submission_env, site)
    wait_until(
        lambda: set(in_slurm(submission_env, name)) == {"COMPLETED"},
        "the job to end",
        60.0,
        0.2,
    )
    if signs_for_another:
        later = measuring(
            site, signing_for_another(submission_env), ["slow"], user=ANOTHER
        )
    else:
        later = measuring(site, submission_env.cluster(sshd=rejecting_sshd), ["slow"])
    wait_until(
        lambda: RUNNER in run_benchmark_task(later, at_once=True),
        "a refused login",
        PATIENCE_S,
        POLL_INTERVAL_S,
    )
    assert later.ledger.benchmarks.under_way() is not None
    later.ledger.benchmarks.cancel("enough")
    assert until_done(later)["state"] == "CANCELLED"
    result = results(later)["slow"]
    assert (result["state"], result["reason"]) == ("CANCELLED", "enough")
    unread, left = result["notes"]
    assert unread.startswith("its output was not read: ")
    assert left.startswith("its output stays on the login node: ")
    assert alarms(later) == []
    for file in home(submission_env):
        file.unlink()


def test_run__login_is_refused__is_retried_ever_less_often_with_an_alarm(
    submission_env: SubmissionEnv, rejecting_sshd: Sshd
) -> None:
    cluster = submission_env.cluster(sshd=rejecting_sshd)
    site = measuring(submission_env.site(cluster), cluster, ["good"])
    number = site.ledger.benchmarks.ask("a test")
    until_stage(site, "good", "WAITING")
    wait_until(
        lambda: f"as {RUNNER}" in run_benchmark_task(site),
        "a refused login",
        PATIENCE_S,
        POLL_INTERVAL_S,
    )
    ends_s, refused = time.monotonic() + 10.0, 0
    while time.monotonic() < ends_s:
        refused += bool(run_benchmark_task(site))
        time.sleep(POLL_INTERVAL_S)
    assert 1 <= refused <= 5
    assert alarms(site) == []
    an_hour_passes = (
        "UPDATE facts SET since = since - interval '1 h' WHERE name = :name"
    )
    with submission_env.engine.begin() as connection:
        connection.execute(
            text(an_hour_passes), {"name": "condition.benchmark_user_rejected"}
        )
    assert f"as {RUNNER}" in run_benchmark_task(site, at_once=True)
    assert run_benchmark_task(site) == ""
    assert results(site)["good"]["state"] == "WAITING"
    (alarm,) = site.ledger.alarms.all()
    assert alarm.name == AlarmName.BENCHMARK_USER_REJECTED
    assert (alarm.details["user"], alarm.details["run"]) == (RUNNER, number)
    assert "Authentication failed" in alarm.details["reason"]
    after = a_site(submission_env, "good")
    after.ledger.benchmarks.resume()  # the worker starts with other settings
    assert until_done(after)["state"] == "DONE"
    assert after.ledger.alarms.all() == []


def jobs_of_slurm(submission_env: SubmissionEnv) -> set[str]:
    shown = submission_env.slurm.run(
        "squeue", "--noheader", "--states=all", "--format=%A"
    )
    assert shown.returncode == 0, shown.stderr
    return set(shown.stdout.split())


def test_benchmark_plan__on_two_nodes__shows_what_a_run_submits_and_submits_nothing(
    submission_env: SubmissionEnv,
) -> None:
    environment = submission_env.environment | {
        "SLURM_SSH_ADDRESS": submission_env.sshd.address,
        "SLURM_SSH_ADMIN_USER": admin(),
        "SLURM_SSH_PRIVATE_KEY": base64.b64encode(
            submission_env.key.read_bytes()
        ).decode(),
        "SLURM_SSH_KNOWN_HOSTS": str(submission_env.sshd.known_hosts),
        "BENCHMARK_SBATCH_FLAGS": "--account=grid",
    }
    before = jobs_of_slurm(submission_env)
    printed = supervisor("benchmark", "plan", env=environment)
    assert printed.exit_code == 0, printed.output
    for words in (
        "node2",
        "--- hpl: sbatch --account=grid --nodes=2",
        "#!/bin/bash\n# HPL: N ",
    ):
        assert words in printed.stdout
    document = json.loads(
        supervisor("benchmark", "plan", "-o", "json", env=environment).stdout
    )
    assert [node["name"] for node in document["nodes"]] == ["node1", "node2"]
    assert [job["benchmark"] for job in document["jobs"]] == list(SUITE)
    refused = supervisor("benchmark", "plan", env=environment | UCX_OF_THREE)
    assert (
        refused.exit_code,
        "cannot be planned: 3 entries of UCX affinity" in refused.stderr,
    ) == (1, True)
    assert (
        jobs_of_slurm(submission_env) <= before
    )  # slurmctld may have forgotten some of them
    assert BenchmarkQueries(submission_env.engine, "here").runs(1) == []
