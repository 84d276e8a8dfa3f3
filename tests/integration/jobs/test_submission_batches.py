"""Many jobs of one customer in one SSH command: each has its own answer, none is in SLURM twice, and none is there that is said
not to be; with a real sshd and SLURM behind a network that is cut at chosen bytes.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest

from devgrid.faults.network_proxy import Direction, Fault, Proxy
from devgrid.processes import wait_until
from supervisor_tasks.errors import OutcomeUnknownError, TransientError
from supervisor_tasks.jobs.effect_timing import CLOCK_SKEW_S, KILL_GRACE_S, SUBMIT_TIMEOUT_S
from supervisor_tasks.jobs.model import Definition, JobId, SlurmId
from supervisor_tasks.slurm.cluster import Cluster
from supervisor_tasks.slurm.guarded_command import TooLateError
from supervisor_tasks.slurm.interface import Request
from supervisor_tasks.slurm.parsers import SlurmRejectedError
from supervisor_tasks.slurm.ssh import our_clock_s
from tests.support.ledger import job_id
from tests.support.marks import in_chaos
from tests.support.submitting import CUSTOMER, PATHS, PATIENCE_S, SubmissionEnv

DEFINITION = Definition(gpus=0, mem_per_cpu_mb=100, cpus_per_task=1, ntasks=1, batch_location_hash="hash")
BATCHES = [1, 2, 50]
SEEDED = random.Random(22_05)
NUMBERS = iter(range(1, 1_000_000))


@pytest.fixture(scope="module")
def world() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running() as world:
        world.slurm.run("scontrol", "update", "PartitionName=main", "State=DOWN")  # jobs are taken and do not begin
        yield world


@pytest.fixture
def proxy(world: SubmissionEnv) -> Iterator[Proxy]:
    with Proxy.start(world.sshd.address) as proxy:
        yield proxy


@pytest.fixture
def cluster(world: SubmissionEnv, proxy: Proxy) -> Iterator[Cluster]:
    """A worker's, behind the proxy, with connections that stand already."""
    cluster = world.cluster(proxy.address)
    cluster.clock(CUSTOMER)
    yield cluster
    cluster.ssh.close()
    world.slurm.run("scancel", f"--user={CUSTOMER}")


Outcome = SlurmId | Exception


@dataclass(slots=True)
class Told:
    """What was answered of each job, how often and when."""

    outcomes: dict[JobId, Outcome] = field(default_factory=dict)
    times: Counter[JobId] = field(default_factory=Counter)
    at_s: list[float] = field(default_factory=list)

    def answered(self, job: JobId, outcome: Outcome) -> None:
        self.outcomes[job] = outcome
        self.times[job] += 1
        self.at_s.append(time.monotonic())


def requests(number: int, script: str = "#!/bin/bash\nsleep 600\n") -> list[tuple[JobId, Request]]:
    jobs = [job_id(next(NUMBERS)) for _ in range(number)]
    return [(job, Request(definition=DEFINITION, limit_min=10, script=script, number=1)) for job in jobs]


def submit(cluster: Cluster, batch: list[tuple[JobId, Request]]) -> Told:
    told, clock = Told(), cluster.clock(CUSTOMER)
    cluster.submit_batch(CUSTOMER, batch, clock, our_clock_s(), told.answered)
    assert told.times == Counter(job for job, _ in batch)
    return told


def in_slurm(world: SubmissionEnv) -> dict[JobId, list[int]]:
    """The customer's jobs by their names."""
    found = dict[JobId, list[int]]()
    for line in world.slurm.run("squeue", "--noheader", "--states=all", "--format=%A %j").stdout.splitlines():
        number, name = line.split()
        found.setdefault(JobId(name), []).append(int(number))
    return found


def guard_runs(world: SubmissionEnv) -> bool:
    """Whether one of this login node does: what it may submit, it may submit yet."""
    home = str(world.slurm.users.home(CUSTOMER).resolve())
    found = psutil.process_iter(["cmdline", "cwd"])
    return any("guard" in (process.info["cmdline"] or []) and process.info["cwd"] == home for process in found)


def assert_each_outcome_is_true(world: SubmissionEnv, batch: list[tuple[JobId, Request]], told: Told) -> None:
    """Once nothing can come any more."""
    wait_until(
        lambda: not guard_runs(world), "the guard to end", SUBMIT_TIMEOUT_S + KILL_GRACE_S + CLOCK_SKEW_S + PATIENCE_S
    )
    there = in_slurm(world)
    for job, _ in batch:
        outcome, ids = told.outcomes[job], there.get(job, [])
        if isinstance(outcome, int):
            assert ids == [outcome]
        elif isinstance(outcome, TransientError):
            assert ids == []
        else:
            assert isinstance(outcome, OutcomeUnknownError)
            assert len(ids) <= 1


@pytest.mark.parametrize("number", BATCHES)
def test_submit__no_fault__each_job_has_its_script_in_slurm_and_reports_at_once(
    world: SubmissionEnv, cluster: Cluster, number: int
) -> None:
    batch = requests(number)
    batch = [(job, replace(request, script=f"#!/bin/bash\necho {job} é\n")) for job, request in batch]
    told = submit(cluster, batch)
    assert all(isinstance(outcome, int) for outcome in told.outcomes.values()), told.outcomes
    assert_each_outcome_is_true(world, batch, told)
    for job, slurm_id in list(told.outcomes.items())[:3]:
        assert isinstance(slurm_id, int)
        assert world.script(slurm_id) == f"#!/bin/bash\n# supervisor job {job}\ntrue\necho {job} é\n"
    assert list(told.outcomes) == [job for job, _ in batch]
    if number == max(BATCHES):
        assert told.at_s[-1] - told.at_s[0] > 10 * (
            told.at_s[1] - told.at_s[0]
        )  # one after the other, not all at the end


def test_one_that_slurm_refuses__the_others_are_taken(world: SubmissionEnv, cluster: Cluster) -> None:
    batch = requests(3)
    batch[1] = (batch[1][0], replace(batch[1][1], definition=replace(DEFINITION, cpus_per_task=5000)))
    told = submit(cluster, batch)
    refused = told.outcomes[batch[1][0]]
    assert isinstance(refused, SlurmRejectedError)
    assert "CPU" in str(refused) or "node" in str(refused)
    assert [isinstance(told.outcomes[job], int) for job, _ in batch] == [True, False, True]
    assert in_slurm(world).keys() >= {batch[0][0], batch[2][0]}


# --- the connection is cut ----------------------------------------------------------------------------------------------------

BYTES = {1: 1200, 2: 1800, 50: 40_000}  # about what goes there
BACK = {1: 500, 2: 700, 50: 12_000}
CUTS = [
    (number, direction, at)
    for number in BATCHES
    for direction, most in ((Direction.TO_SERVER, BYTES[number]), (Direction.TO_CLIENT, BACK[number]))
    for at in (0, *sorted(SEEDED.sample(range(most), 4)))
]


@pytest.mark.parametrize(("number", "direction", "at"), [cut if cut[0] > 1 else in_chaos(*cut) for cut in CUTS])
def test_connection_cut_at_a_byte__no_outcome_is_false(
    world: SubmissionEnv, cluster: Cluster, proxy: Proxy, number: int, direction: Direction, at: int
) -> None:
    batch = requests(number)
    proxy.inject(direction, at, Fault.CUT)
    assert_each_outcome_is_true(world, batch, submit(cluster, batch))


@pytest.mark.parametrize("number", BATCHES)
def test_cut_off_and_submitted_again__one_job_each(
    world: SubmissionEnv, cluster: Cluster, proxy: Proxy, number: int
) -> None:
    """As a worker does: what is not known is looked for, what was not run is submitted again."""
    batch = requests(number)
    proxy.inject(Direction.TO_CLIENT, BACK[number] // 2, Fault.CUT)
    left = dict(batch)
    told = submit(cluster, batch)
    while left:
        assert_each_outcome_is_true(world, list(left.items()), told)
        left = {job: left[job] for job in left.keys() - in_slurm(world).keys()}
        if left:
            told = submit(cluster, list(left.items()))
    assert all(len(ids) == 1 for ids in in_slurm(world).values())


def test_output_is_lost__the_jobs_are_unknown_when_time_is_over(
    world: SubmissionEnv, cluster: Cluster, proxy: Proxy
) -> None:
    batch, clock = requests(2), cluster.clock(CUSTOMER)
    proxy.fault(Fault.LOSE_TO_CLIENT)
    told = Told()
    cluster.submit_batch(CUSTOMER, batch, clock, our_clock_s(), told.answered)
    proxy.fault(None)
    assert all(isinstance(outcome, TransientError | OutcomeUnknownError) for outcome in told.outcomes.values())
    assert_each_outcome_is_true(world, batch, told)


# --- sbatch -------------------------------------------------------------------------------------------------------------------


def with_sbatch(world: SubmissionEnv, cluster: Cluster, text: str) -> Cluster:
    file = world.processes.folder / "sbatch"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return replace(cluster, paths=replace(PATHS, sbatch=str(file)))


def test_submit__one_hangs__those_before_it_report_and_those_behind_it_do_not_run(
    world: SubmissionEnv, cluster: Cluster, tmp_path: Path
) -> None:
    batch = requests(4)
    hangs = batch[2][0]
    wrapped = with_sbatch(
        world,
        cluster,
        f'case "$*" in *{hangs}*) trap "" TERM; while :; do sleep 0.1; done;; esac; exec /usr/bin/sbatch "$@"',
    )
    begun_s = time.monotonic()
    told = submit(wrapped, batch)
    outcomes = [told.outcomes[job] for job, _ in batch]
    assert [type(outcome) for outcome in outcomes] == [int, int, OutcomeUnknownError, TooLateError]
    assert told.at_s[1] - begun_s < SUBMIT_TIMEOUT_S / 2
    assert told.at_s[3] - begun_s < SUBMIT_TIMEOUT_S + KILL_GRACE_S + CLOCK_SKEW_S
    assert_each_outcome_is_true(world, batch, told)


def test_worker_that_stood_still__nothing_is_sent(world: SubmissionEnv, cluster: Cluster) -> None:
    batch, told, clock = requests(2), Told(), cluster.clock(CUSTOMER)
    cluster.submit_batch(CUSTOMER, batch, clock, our_clock_s() - SUBMIT_TIMEOUT_S, told.answered)
    assert [type(outcome) for outcome in told.outcomes.values()] == [TooLateError] * 2
    assert_each_outcome_is_true(world, batch, told)


def test_what_answered_raises__is_raised_and_the_connection_can_be_used(world: SubmissionEnv, cluster: Cluster) -> None:
    class ForgottenError(Exception):
        pass

    def answered(job: JobId, outcome: Outcome) -> None:
        raise ForgottenError

    with pytest.raises(ForgottenError):
        cluster.submit_batch(CUSTOMER, requests(2), cluster.clock(CUSTOMER), our_clock_s(), answered)
    batch = requests(1)
    assert_each_outcome_is_true(world, batch, submit(cluster, batch))
