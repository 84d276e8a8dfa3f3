"""SLURM's health, its nodes, and what an earlier run left there: on a real SLURM behind
a real sshd or slurmrestd.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from devgrid.processes import wait_until
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.benchmarking.benchmark_run import (
    PlannedBenchmark,
    job_name,
    name_beginning,
)
from supervisor_tasks.benchmarking.cleanup import (
    BENCHMARK_CLEANUP_REQUESTED,
    cancel_old_benchmarks,
)
from supervisor_tasks.chain.contract import Contract
from supervisor_tasks.context import ReconciliationServices, WorkerContext
from supervisor_tasks.jobs.model import Address
from supervisor_tasks.ledger.benchmarks import BenchmarkStore
from supervisor_tasks.ledger.facts import PROVIDER
from supervisor_tasks.ledger.registrations import NODES, Registrations
from supervisor_tasks.monitoring.slurm_health import (
    check_slurm,
    reset_failure_count,
    slurm_is_healthy,
)
from supervisor_tasks.monitoring.slurm_tries import (
    FAILED_TRIES,
    MAX_TRIES_AT_START,
    SLURM_ANSWERED,
)
from supervisor_tasks.provider.inventory import refresh_inventory
from supervisor_tasks.provider.registration_rules import RegistrationStatus
from supervisor_tasks.slurm.hardware import PartitionHardware, SlurmNode
from supervisor_tasks.slurm.node_query import Nodes
from supervisor_tasks.slurm.parsers import SlurmUnavailableError
from supervisor_tasks.slurm.rest_nodes import RestNodes
from tests.support.commands import supervisor
from tests.support.ledger import emptied
from tests.support.slurmctld_state import configured
from tests.support.submission_env import (
    CUSTOMER,
    LIVE,
    PATIENCE_S,
    SubmissionEnv,
    nodes_of,
)
from tests.support.transports import rest_in_chaos

SLURM_CONF = (
    "PartitionName=main-large Nodes=node2",
    "PartitionName=mai Nodes=node1 Hidden=YES",
)
GIVES_UP_SOON = "MessageTimeout=2"  # without slurmctld, a command tries for half of it
# scontrol; of slurmrestd's list
NOT_FOUND = "Partition {0} not found|no partition '{0}'"
# Without accounting CfgTRES has no GPUs.
NODE1, NODE2 = (
    SlurmNode(name=name, cpus=64, gpus=2, mem_mb=16_000) for name in ("node1", "node2")
)
NodesOfEither = Nodes | RestNodes
OURS = name_beginning("0x" + "3" * 40, "here")
FORMER = "former"  # whom benchmarks ran as before BENCHMARK_RUN_AS was changed


@pytest.fixture(scope="module")
def submission_env() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running(*SLURM_CONF, rest=True) as submission_env:
        yield submission_env


@pytest.fixture
def dispatched() -> list[str]:
    """What was sent for."""
    return []


@pytest.fixture
def site(
    submission_env: SubmissionEnv, transport: str, dispatched: list[str]
) -> Iterator[WorkerContext]:
    """A worker of the slurm queue that is soon done with waiting."""
    emptied(submission_env.engine)
    site = submission_env.site(submission_env.cluster_over(transport))
    assert site.slurm_services is not None
    sweep = ReconciliationServices(
        no_contract, every_s=900.0, grace_s=60.0, start_block=0
    )
    yield replace(
        site,
        slurm_services=replace(site.slurm_services, try_every_s=0.2),
        dispatch=dispatched.append,
        reconciliation_services=sweep,
    )
    site.slurm.cluster.close()
    site.ledger.holder.close()


def no_contract(provider: Address) -> Contract:
    raise AssertionError(f"expected no question to the contract about {provider}")


@pytest.fixture
def nodes(site: WorkerContext) -> NodesOfEither:
    return nodes_of(site.slurm.cluster)


def update(submission_env: SubmissionEnv, node: str, *changes: str) -> None:
    done = submission_env.slurm.run("scontrol", "update", f"NodeName={node}", *changes)
    assert done.returncode == 0, done.stderr


def state(submission_env: SubmissionEnv, slurm_id: int) -> str:
    return submission_env.field(slurm_id, "state")


# --- hardware -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partition", "expected"),
    [("main", (NODE1, NODE2)), ("main-large", (NODE2,)), ("mai", (NODE1,))],
)
def test_hardware__partitions_with_similar_names__each_has_its_own_nodes(
    nodes: NodesOfEither, partition: str, expected: tuple[SlurmNode, ...]
) -> None:
    assert replace(nodes, partition=partition).hardware() == PartitionHardware(expected)


def test_hardware__no_such_partition__says_so(nodes: NodesOfEither) -> None:
    with pytest.raises(SlurmUnavailableError, match=NOT_FOUND.format("ma")):
        replace(nodes, partition="ma").hardware()


def test_hardware__drained_for_a_reason_that_looks_like_a_node__is_left_out(
    submission_env: SubmissionEnv, nodes: NodesOfEither
) -> None:
    update(
        submission_env,
        "node1",
        "State=DRAIN",
        "Reason=x = y\nNodeName=node3 State=IDLE CfgTRES=cpu=1,mem=1M Partitions=main",
    )
    update(submission_env, "node2", "Comment=State=DOWN CfgTRES=cpu=999")
    try:
        hardware = nodes.hardware()
        assert (hardware, hardware.excluded_nodes) == (
            PartitionHardware((NODE2,)),
            (NODE1,),
        )
        assert hardware.excluded_nodes[0].state == "IDLE+DRAIN"
        assert replace(nodes, unresponsive=True).hardware() == PartitionHardware(
            (NODE1, NODE2)
        )
    finally:
        update(submission_env, "node1", "State=RESUME")
    wait_until(
        lambda: nodes.hardware() == PartitionHardware((NODE1, NODE2)),
        "node1 to count again",
        PATIENCE_S,
        0.2,
    )


def test_hardware__nodes_work__are_the_same(
    submission_env: SubmissionEnv, nodes: NodesOfEither
) -> None:
    before = nodes.hardware()
    slurm_id = sbatch(submission_env, "busy", "--nodes=2", "--mem-per-cpu=10")
    wait_until(
        lambda: state(submission_env, slurm_id) == "RUNNING",
        "the job to run",
        PATIENCE_S,
        0.2,
    )

    # the job of the other way to SLURM may still be completing there
    def both_work() -> bool:
        return [node.state for node in nodes.hardware().nodes] == ["MIXED", "MIXED"]

    wait_until(both_work, "the nodes to work at this job alone", PATIENCE_S, 0.2)
    assert nodes.hardware() == before
    submission_env.slurm.run("scancel", str(slurm_id))


def test_hardware__slurmctld_starts_again__are_unknown_for_a_while_but_never_others(
    submission_env: SubmissionEnv, nodes: NodesOfEither
) -> None:
    before, found = nodes.hardware(), list[PartitionHardware | None]()
    submission_env.processes.stop(submission_env.processes.find("slurmctld"))
    found.append(specs_or_none(nodes))
    submission_env.slurm.start_controller()

    def known_again() -> bool:
        found.append(specs_or_none(nodes))
        return found[-1] is not None

    wait_until(known_again, "slurmctld to hear from its nodes", PATIENCE_S, 0.1)
    assert found[0] is None
    assert {hardware for hardware in found if hardware is not None} == {before}


def specs_or_none(nodes: NodesOfEither) -> PartitionHardware | None:
    try:
        return nodes.hardware()
    except SlurmUnavailableError:
        return None


# --- health ---------------------------------------------------------------------------


@rest_in_chaos
def test_check_slurm__away_at_start__ten_tries_and_an_alarm_and_it_goes_on(
    submission_env: SubmissionEnv, site: WorkerContext, dispatched: list[str]
) -> None:
    registrations = Registrations(site.ledger.facts)
    wait_until(
        lambda: has_looked(site), "slurmctld to hear from its nodes", PATIENCE_S, 0.2
    )
    assert site.ledger.periodic_runs.age_s(NODES) is not None
    assert registrations.hardware()[0]
    submission_env.processes.stop(submission_env.processes.find("slurmctld"))
    reset_failure_count(site.ledger)
    failures, alarmed_after = 0, 0

    def tried() -> bool:
        nonlocal failures, alarmed_after
        try:
            check_slurm(site, cancel_old_benchmarks)
        except SlurmUnavailableError:
            failures += 1
        if not alarmed_after and alarms(site):
            alarmed_after = failures
        return failures > MAX_TRIES_AT_START

    with configured(submission_env.slurm, GIVES_UP_SOON):
        wait_until(tried, "eleven tries", PATIENCE_S, 0.02)
    assert alarmed_after == MAX_TRIES_AT_START
    assert site.ledger.facts.get(FAILED_TRIES) == MAX_TRIES_AT_START + 1
    assert not slurm_is_healthy(site.ledger)
    assert site.ledger.periodic_runs.age_s(NODES) is None
    since_s = registrations.hardware()[1]
    dispatched.clear()
    submission_env.slurm.start_controller()

    def works() -> bool:
        # slurmrestd does not show since when slurmctld runs in its first second
        with suppress(SlurmUnavailableError):
            check_slurm(site, cancel_old_benchmarks)
        return slurm_is_healthy(site.ledger)

    wait_until(works, "SLURM to be known", PATIENCE_S, 0.1)
    assert not alarms(site)
    assert site.ledger.facts.get(FAILED_TRIES) == 0
    assert dispatched[-1] == "refresh_inventory"
    wait_until(
        lambda: has_looked(site), "slurmctld to hear from its nodes", PATIENCE_S, 0.2
    )
    assert registrations.hardware()[1] < since_s, (
        "the age of this set of nodes restarts"
    )


def has_looked(site: WorkerContext) -> bool:
    try:
        refresh_inventory(site)
    except SlurmUnavailableError:
        return False
    return True


def alarms(site: WorkerContext) -> bool:
    return AlarmName.SLURM_NOT_ANSWERING in {
        alarm.name for alarm in site.ledger.alarms.all()
    }


# --- nodes that no look has seen ------------------------------------------------------


def six_minutes_pass(submission_env: SubmissionEnv) -> None:
    with submission_env.engine.begin() as connection:
        connection.execute(text("UPDATE facts SET since = since - interval '6 min'"))


def calls_for_nodes(site: WorkerContext) -> Any:
    return {alarm.name: alarm.details for alarm in site.ledger.alarms.all()}.get(
        AlarmName.NO_USABLE_NODES
    )


def provider(submission_env: SubmissionEnv, *words: str) -> str:
    result = supervisor("provider", "show", *words, env=submission_env.environment)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_refresh_inventory__partition_is_misspelt__alarm_says_why_until_it_is_right(
    submission_env: SubmissionEnv, site: WorkerContext, nodes: NodesOfEither
) -> None:
    offers: dict[str, Any] = {
        "registered": None,
        "waiting": None,
        "offered": None,
        "warnings": [],
    }
    registrations = Registrations(site.ledger.facts)
    registrations.store_status(RegistrationStatus.UNREGISTERED)
    registrations.record_decision(
        {"address": "0x", "decision": "wait", "why": "no node", "measuring": False}
        | offers
    )
    check_slurm(site, cancel_old_benchmarks)
    wrong = replace(
        site, slurm_services=replace(site.slurm, nodes=replace(nodes, partition="mian"))
    )
    assert not has_looked(wrong)
    assert calls_for_nodes(site) is None, "it may pass"
    six_minutes_pass(submission_env)
    assert not has_looked(wrong)
    called = calls_for_nodes(site)
    assert called["partition"] == "mian"
    assert re.search(NOT_FOUND.format("mian"), called["error"])
    assert re.search(NOT_FOUND.format("mian"), provider(submission_env))
    assert (
        json.loads(provider(submission_env, "-o", "json"))["no_usable_nodes"]["for_s"]
        > 300
    )
    wait_until(
        lambda: has_looked(site), "slurmctld to hear from its nodes", PATIENCE_S, 0.2
    )
    assert calls_for_nodes(site) is None
    assert json.loads(provider(submission_env, "-o", "json"))["no_usable_nodes"] is None


def test_refresh_inventory__no_node_works__alarm_tells_their_states(
    submission_env: SubmissionEnv, site: WorkerContext, nodes: NodesOfEither
) -> None:
    wait_until(
        lambda: has_looked(site), "slurmctld to hear from its nodes", PATIENCE_S, 0.2
    )
    update(submission_env, "node[1-2]", "State=DRAIN", "Reason=test")
    try:
        check_slurm(site, cancel_old_benchmarks)
        refresh_inventory(site)
        six_minutes_pass(submission_env)
        refresh_inventory(site)
        assert (
            calls_for_nodes(site)["error"]
            == "no node of the partition 'main' works: it has 2 IDLE+DRAIN"
        )
        site.ledger.alarms.off(AlarmName.NO_USABLE_NODES)
        site.ledger.periodic_runs.remove(SLURM_ANSWERED)
        refresh_inventory(site)
        assert calls_for_nodes(site) is None, (
            "while SLURM does not answer, that is what he is called for"
        )
        check_slurm(site, cancel_old_benchmarks)
        refresh_inventory(site)
        assert calls_for_nodes(site) is None, "the time restarts"
    finally:
        update(submission_env, "node[1-2]", "State=RESUME")
    wait_until(
        lambda: nodes.hardware() == PartitionHardware((NODE1, NODE2)),
        "the nodes to count again",
        PATIENCE_S,
        0.2,
    )


# --- old benchmarks -------------------------------------------------------------------


def test_check_slurm__at_start__old_benchmarks_are_cancelled_and_nothing_else(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    benchmarks = BenchmarkStore(submission_env.engine, "here")
    benchmarks.ask("a test")
    run = benchmarks.under_way()
    assert run is not None
    benchmarks.begin(
        run, [PlannedBenchmark(benchmark="hpl", script="#!/bin/sh\n")], OURS, {}
    )
    (under_way,) = benchmarks.measurements(run)
    benchmarks.start_submission(under_way, FORMER)
    old = [
        sbatch(submission_env, job_name(OURS, 1, token, "hpl"))
        for token in ("0" * 16, "abcdef0123456789")
    ]
    old.append(sbatch(submission_env, job_name(OURS, 1, "1" * 16, "hpl"), user=FORMER))
    held = sbatch(submission_env, job_name(OURS, 2, "0" * 16, "osu"), "--hold")
    others = [
        sbatch(submission_env, under_way.job_name),
        sbatch(
            submission_env,
            job_name(name_beginning("0x" + "3" * 40, "here-too"), 1, "0" * 16, "hpl"),
        ),
        sbatch(submission_env, "benchmark"),
        sbatch(submission_env, job_name(OURS, 1, "0" * 16, "hpl"), user=CUSTOMER),
    ]
    running = {*old, *others}
    wait_until(
        lambda: {state(submission_env, one) for one in running} == {"RUNNING"},
        "the jobs to run",
        PATIENCE_S,
        0.2,
    )
    reset_failure_count(site.ledger)
    site.ledger.facts.set(BENCHMARK_CLEANUP_REQUESTED, True)
    check_slurm(site, cancel_old_benchmarks)
    # the ledger does not know the provider yet
    assert {state(submission_env, one) for one in running} == {"RUNNING"}
    site.ledger.facts.set(PROVIDER, "0x" + "3" * 40)
    reset_failure_count(site.ledger)
    site.ledger.facts.set(BENCHMARK_CLEANUP_REQUESTED, True)
    check_slurm(site, cancel_old_benchmarks)
    gone = {*old, held}
    wait_until(
        lambda: {state(submission_env, one) for one in gone} == {"CANCELLED"},
        "the old ones to end",
        PATIENCE_S,
        0.2,
    )
    assert {state(submission_env, one) for one in others} == {"RUNNING"}
    late = sbatch(submission_env, job_name(OURS, 3, "0" * 16, "hpl"))
    site.ledger.periodic_runs.remove("slurm")
    check_slurm(site, cancel_old_benchmarks)  # no worker has started since
    assert state(submission_env, late) in LIVE
    submission_env.slurm.run("scancel", *(str(one) for one in (*others, late)))


def sbatch(
    submission_env: SubmissionEnv, name: str, *options: str, user: str | None = None
) -> int:
    """A job of root's, or of another user."""
    uid = None if user is None else submission_env.slurm.users.add(user)
    done = subprocess.run(
        [
            "sbatch",
            "--parsable",
            f"--job-name={name}",
            "--output=/dev/null",
            "--mem-per-cpu=10",
            *options,
        ],
        env={"PATH": "/usr/bin:/bin", **submission_env.slurm.env()},
        user=uid,
        group=uid,
        extra_groups=None if uid is None else [],
        cwd="/",
        input="#!/bin/sh\nsleep 600\n",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)
