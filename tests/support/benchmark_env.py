"""Benchmark runs on real parts (Postgres, sshd, SLURM), with short benchmarks that do
what a test wants.

As a program it is a worker that carries on the open run until it ends: python -m
tests.support.benchmark_env WORLD.json
"""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import text

from benchmarks.plan import Mode, Plan, PlannedNode
from benchmarks.registry import Benchmark
from benchmarks.rendering import JobScript
from benchmarks.result import MeasuredValue, Reading, UnreadableOutputError
from devgrid.cluster.linux_users import admin
from devgrid.processes import wait_until
from supervisor_tasks.benchmarking.runner import benchmark
from supervisor_tasks.config.embedded_servers import database_url
from supervisor_tasks.config.settings import load
from supervisor_tasks.context import BenchmarkServices, WorkerContext
from supervisor_tasks.ledger.database import open_engine
from supervisor_tasks.ledger.facts import PROVIDER
from supervisor_tasks.monitoring.slurm_tries import SLURM_ANSWERED
from supervisor_tasks.slurm.benchmark_jobs import BenchmarkJobs
from supervisor_tasks.slurm.cluster import Cluster
from supervisor_tasks.slurm.hardware import PartitionHardware
from supervisor_tasks.slurm.login_node import LoginNode
from supervisor_tasks.slurm.ssh import Ssh, load_key
from tests.support.submission_env import PATHS, SLURM_SETTINGS, SubmissionEnv, site_of

PROVIDER_ADDRESS = "0x" + "a" * 40
PATIENCE_S = 120.0
POLL_INTERVAL_S = 0.2
RUNNER = "benchmark"  # the Linux user
GATE = "go-"  # beside the homes; the job's name follows

BODIES = {
    "good": "echo value 12.5",
    "both": "echo value 2",  # on two nodes
    "words": 'echo word "$(uname -s)"',
    "fails": "echo 'this must fail'; exit 3",
    "garbage": "head -c 3000 /dev/urandom",
    "silent": "true",
    "nan": "echo value nan",
    "zero": "echo value 0",
    "gone": "kill -9 $$",
    "missing": "echo missing osu_latency",
    # a worker looks at it while it runs, until `let_end`
    "slow": f'until [ -e ~/../{GATE}"$SLURM_JOB_NAME" ]; do sleep 0.1; done; echo value 7',
    "endless": "echo begun; sleep 600",
    "chatty": "head -c 12000000 /dev/zero | tr '\\0' x; echo; echo value 3",
}


def body_of(name: str) -> str:
    """The script of a benchmark that acts as its name says."""
    return f"#!/bin/bash\n{BODIES[name]}\n"


def let_end(submission_env: SubmissionEnv, site: WorkerContext) -> None:
    """Let the job of the benchmark `slow` end."""
    name = results(site)["slow"]["job_name"]
    (submission_env.slurm.users.homes / f"{GATE}{name}").touch()


def _benchmark(name: str) -> Benchmark:
    def render(plan: Plan) -> JobScript:
        return JobScript(
            script=body_of(name),
            nodes=2 if name == "both" else 1,
            ntasks_per_node=1,
            cpus_per_task=1,
            gpus_per_node=0,
            time_limit_min=30 if name == "slow" else 1,
            mem_mb_per_node=50,
            exclusive=False,
        )

    def parse(output: bytes, nonce: str) -> Reading:
        what, _, value = (
            output.decode(errors="replace").strip().rpartition("\n")[2].partition(" ")
        )
        if what == "missing":
            return Reading(left_out={f"{name}.number": f"no {value} on the node"})
        if what == "word":
            return Reading(texts={f"{name}.word": value}, notes=("said by uname",))
        if what != "value":
            raise UnreadableOutputError("no line with a value")
        return Reading(
            numbers={f"{name}.number": MeasuredValue(float(value), "things")}
        )

    return Benchmark(name, render, parse)


def _plan(hardware: PartitionHardware, nonce: str) -> Plan:
    nodes = tuple(
        PlannedNode(name=node.name, cpus=node.cpus, gpus=node.gpus, mem_mb=node.mem_mb)
        for node in hardware.nodes
    )
    return Plan(mode=Mode.NATIVE, partition="main", nodes=nodes, nonce=nonce)


def measuring(
    site: WorkerContext, cluster: Cluster, names: Sequence[str], user: str = RUNNER
) -> WorkerContext:
    """The context of a worker of the benchmark queue, with these benchmarks."""
    site.ledger.facts.set(PROVIDER, PROVIDER_ADDRESS)
    suite: Mapping[str, Benchmark] = {name: _benchmark(name) for name in names}
    return replace(
        site,
        benchmark_services=BenchmarkServices(
            BenchmarkJobs(cluster, user), suite, _plan
        ),
    )


def run_benchmark_task(site: WorkerContext, *, at_once: bool = False) -> str:
    """Carry on the run once, if its effect is due; with `at_once`, even if it is not.
    Returns the error of a service that did not answer, or an empty text.
    """
    site.ledger.periodic_runs.record(SLURM_ANSWERED)  # another task probes SLURM
    if at_once:
        with site.ledger.engine.begin() as connection:
            connection.execute(
                text(
                    "UPDATE effects SET due_at = now() WHERE kind = 'benchmark' AND done_at IS NULL"
                )
            )
    # frees the lease of a worker that was killed
    site.ledger.effects.due_without_message()
    before = _last_lease(site)
    benchmark(site)
    after = _last_lease(site)
    return after[1] if after[0] != before[0] else ""


def _last_lease(site: WorkerContext) -> tuple[int, str]:
    """The last lease token of the run's effect, and its last error."""
    query = text(
        "SELECT lease_token, last_error FROM effects WHERE kind = 'benchmark' ORDER BY id DESC LIMIT 1"
    )
    with site.ledger.engine.connect() as connection:
        row = connection.execute(query).one_or_none()
    return (0, "") if row is None else (row.lease_token, row.last_error or "")


def until_done(site: WorkerContext, patience_s: float = PATIENCE_S) -> dict[str, Any]:
    """Carry on the run until it has ended. Returns it."""

    def done() -> bool:
        run_benchmark_task(site)
        return site.ledger.benchmarks.under_way() is None

    wait_until(done, "the run to end", patience_s, POLL_INTERVAL_S)
    run = site.ledger.benchmark_queries.run()
    assert run is not None
    return run


def until_stage(
    site: WorkerContext, benchmark: str, *states: str, slurm_state: str = ""
) -> dict[str, Any]:
    """Carry on the run until the benchmark is in one of the states. Returns its row."""
    found: dict[str, Any] = {}

    def is_reached() -> bool:
        run_benchmark_task(site)
        found.update(results(site)[benchmark])
        return found["state"] in states and found["slurm_state"].startswith(slurm_state)

    try:
        wait_until(
            is_reached, f"{benchmark} to be {states}", PATIENCE_S, POLL_INTERVAL_S
        )
    except TimeoutError as error:
        raise AssertionError(f"{error}; it is {found}") from error
    return found


def results(site: WorkerContext) -> dict[str, dict[str, Any]]:
    """The rows of the run's results by benchmark. Without any, each benchmark has an
    empty state.
    """
    run = site.ledger.benchmark_queries.run()
    assert run is not None
    found = {
        row["benchmark"]: row
        for row in site.ledger.benchmark_queries.results(run["id"])
    }
    return found or {name: {"state": "", "slurm_state": ""} for name in BODIES}


def in_slurm(submission_env: SubmissionEnv, name: str, field: str = "%T") -> list[str]:
    """A field of squeue, the state or another, of all SLURM jobs of that name, with
    ended ones.
    """
    return submission_env.slurm.run(
        "squeue", "--noheader", "--states=all", f"--name={name}", f"--format={field}"
    ).stdout.split()


def start_worker(
    submission_env: SubmissionEnv, names: Sequence[str], crash_at: Path
) -> "subprocess.Popen[bytes]":
    """Start a worker in a process of its own, which dies at the crash point in the file
    `crash_at`.
    """
    config = submission_env.processes.folder / "benchmarking.json"
    parameters = {
        "environment": submission_env.environment,
        "address": submission_env.sshd.address,
        "key": str(submission_env.key),
    }
    config.write_text(
        json.dumps(
            parameters
            | {
                "known_hosts": str(submission_env.sshd.known_hosts),
                "names": list(names),
            }
        )
    )
    with (submission_env.processes.folder / "benchmarking.log").open("ab") as log:
        argv = [sys.executable, "-m", "tests.support.benchmark_env", str(config)]
        environment = {"PATH": os.environ["PATH"], "CRASH_AT": str(crash_at)}
        return subprocess.Popen(argv, env=environment, stdout=log, stderr=log)


def main(config: Path) -> None:
    """Be a worker that measures until no run is under way."""
    parameters = json.loads(config.read_text())
    ssh = Ssh(
        parameters["address"],
        load_key(Path(parameters["key"]).read_text()),
        Path(parameters["known_hosts"]),
    )
    cluster = Cluster.of(LoginNode(ssh=ssh, admin=admin(), paths=PATHS), SLURM_SETTINGS)
    engine = open_engine(database_url(load(environment=parameters["environment"])))
    site = measuring(site_of(engine, cluster), cluster, parameters["names"])
    while site.ledger.benchmarks.under_way() is not None:
        run_benchmark_task(site)
        time.sleep(POLL_INTERVAL_S)  # the clock of this worker


def finite(labels: Mapping[str, Any]) -> bool:
    """Whether each label is a text, or a number above 0 that is finite."""
    return all(
        isinstance(value, str) or (math.isfinite(value) and value > 0)
        for value in labels.values()
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
