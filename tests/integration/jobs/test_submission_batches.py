"""Many jobs of one customer at once, in one SSH command or in a request each: each has
its own answer, none is in SLURM twice, and none is there that is said not to be; with a
real sshd, slurmrestd and SLURM behind a network that is cut at chosen bytes.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from socket import AF_INET

import psutil
import pytest

from devgrid.faults.network_proxy import Direction, Fault, Proxy
from devgrid.machine import deadline
from devgrid.options import Transport
from devgrid.processes import wait_until
from supervisor_tasks.errors import OutcomeUnknownError, TransientError
from supervisor_tasks.jobs.effect_timing import (
    CLOCK_SKEW_S,
    KILL_GRACE_S,
    SUBMIT_TIMEOUT_S,
)
from supervisor_tasks.jobs.model import Definition, JobId, SlurmId
from supervisor_tasks.slurm.cluster import Cluster, over_ssh
from supervisor_tasks.slurm.guarded_command import LoginClock, TooLateError
from supervisor_tasks.slurm.interface import Request
from supervisor_tasks.slurm.parsers import SlurmRejectedError
from supervisor_tasks.slurm.rest import RestCluster
from supervisor_tasks.slurm.ssh import our_clock_s
from tests.support.ledger import job_id
from tests.support.marks import in_chaos
from tests.support.submission_env import (
    CUSTOMER,
    PATHS,
    PATIENCE_S,
    SubmissionEnv,
    with_paths,
)
from tests.support.transports import REST, SSH, OnlySsh, only_ssh

DEFINITION = Definition(
    gpus=0, mem_per_cpu_mb=100, cpus_per_task=1, ntasks=1, batch_location_hash="hash"
)
BATCHES = [1, 2, 50]
SEEDED = random.Random(22_05)
NUMBERS = iter(range(1, 1_000_000))
# much less than SLURM needs for a job, and more than the answers need that come
# together
APART_S = 0.001
PARTS = 4  # in which the answers of a large batch come at least


@pytest.fixture(scope="module")
def submission_env() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running(rest=True) as submission_env:
        # Jobs are taken and do not begin. In a partition that is down, 24.11 also takes
        # sizes that no node has.
        submission_env.slurm.run(
            "scontrol", "update", "NodeName=ALL", "State=DRAIN", "Reason=test"
        )
        yield submission_env


@pytest.fixture
def proxy(submission_env: SubmissionEnv, transport: Transport) -> Iterator[Proxy]:
    with Proxy.start(submission_env.server(transport)) as proxy:
        yield proxy


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


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker behind the proxy, with connections that stand already, and the site's
    clock as it has read it.
    """

    cluster: Cluster | RestCluster
    clock: LoginClock

    def submit(
        self, batch: list[tuple[JobId, Request]], begun_ago_s: float = 0.0
    ) -> Told:
        told = Told()
        self.cluster.submissions.submit_batch(
            CUSTOMER, batch, self.clock, our_clock_s() - begun_ago_s, told.answered
        )
        assert told.times == Counter(job for job, _ in batch)
        return told


@pytest.fixture
def worker(
    submission_env: SubmissionEnv, transport: Transport, proxy: Proxy
) -> Iterator[Worker]:
    cluster = submission_env.cluster_over(transport, proxy.address)
    yield Worker(cluster, cluster.clock.of(CUSTOMER))
    cluster.close()
    submission_env.slurm.run("scancel", f"--user={CUSTOMER}")


def submit_until_taken(
    worker: Worker, batch: list[tuple[JobId, Request]]
) -> list[Told]:
    """What was answered to each submission. What came too late for one, on a machine
    that is busy, is submitted again, as a worker does.
    """
    told = [worker.submit(batch)]

    def none_came_too_late() -> bool:
        late = {
            job
            for job, outcome in told[-1].outcomes.items()
            if isinstance(outcome, TooLateError)
        }
        if late:
            told.append(worker.submit([entry for entry in batch if entry[0] in late]))
        return not late

    wait_until(none_came_too_late, "SLURM to take all in time", PATIENCE_S)
    return told


def requests(
    number: int, script: str = "#!/bin/bash\nsleep 600\n"
) -> list[tuple[JobId, Request]]:
    jobs = [job_id(next(NUMBERS)) for _ in range(number)]
    return [
        (job, Request(definition=DEFINITION, limit_min=10, script=script, number=1))
        for job in jobs
    ]


def in_slurm(submission_env: SubmissionEnv) -> dict[JobId, list[int]]:
    """The customer's jobs by their names."""
    found = dict[JobId, list[int]]()
    for line in submission_env.slurm.run(
        "squeue", "--noheader", "--states=all", "--format=%A %j"
    ).stdout.splitlines():
        number, name = line.split()
        found.setdefault(JobId(name), []).append(int(number))
    return found


def guard_runs(submission_env: SubmissionEnv) -> bool:
    """Whether one of this login node does: what it may submit, it may submit yet."""
    home = str(submission_env.slurm.users.home(CUSTOMER).resolve())
    found = psutil.process_iter(["cmdline", "cwd"])
    return any(
        "guard" in (process.info["cmdline"] or []) and process.info["cwd"] == home
        for process in found
    )


def slurmrestd_works(submission_env: SubmissionEnv) -> bool:
    """Whether it is asking slurmctld, or has a connection whose other end is gone: what
    it has read, it may submit yet.
    """
    assert submission_env.slurmrestd is not None
    process = submission_env.slurmrestd.running.process()
    assert process is not None
    connections = process.net_connections("all")
    asked = {
        connection.raddr.port
        for connection in connections
        if connection.family == AF_INET and connection.raddr
    }
    sockets = [
        descriptor
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir()
        if is_socket(descriptor)
    ]
    return submission_env.slurm.layout.controller_port in asked or len(sockets) > len(
        connections
    )


def is_socket(descriptor: Path) -> bool:
    try:
        return descriptor.readlink().name.startswith("socket:")
    except FileNotFoundError:  # closed meanwhile
        return False


def assert_each_outcome_is_true(
    submission_env: SubmissionEnv, batch: list[tuple[JobId, Request]], told: Told
) -> None:
    """Once nothing can come any more."""
    wait_until(
        lambda: not guard_runs(submission_env) and not slurmrestd_works(submission_env),
        "all submissions to be over",
        SUBMIT_TIMEOUT_S + KILL_GRACE_S + CLOCK_SKEW_S + PATIENCE_S,
    )
    there = in_slurm(submission_env)
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
    submission_env: SubmissionEnv, worker: Worker, number: int
) -> None:
    batch = requests(number)
    batch = [
        (job, replace(request, script=f"#!/bin/bash\necho {job} é\n"))
        for job, request in batch
    ]
    submitted = submit_until_taken(worker, batch)
    told = Told()
    for answers in submitted:
        told.outcomes |= answers.outcomes
    assert all(isinstance(outcome, int) for outcome in told.outcomes.values()), (
        told.outcomes
    )
    assert_each_outcome_is_true(submission_env, batch, told)
    for job, slurm_id in list(told.outcomes.items())[:3]:
        assert isinstance(slurm_id, int)
        assert (
            submission_env.script(slurm_id)
            == f"#!/bin/bash\n# supervisor job {job}\ntrue\necho {job} é\n"
        )
    assert list(told.outcomes) == [job for job, _ in batch]
    if number == max(BATCHES):
        between_s = [
            later_s - at_s
            for answers in submitted
            for at_s, later_s in pairwise(answers.at_s)
        ]
        # In parts, and not all at the end. A machine that is busy reads several at once.
        assert sum(gap_s > APART_S for gap_s in between_s) >= PARTS


def test_submit__slurm_rejects_one__the_others_are_taken(
    submission_env: SubmissionEnv, worker: Worker
) -> None:
    batch = requests(3)
    batch[1] = (
        batch[1][0],
        replace(batch[1][1], definition=replace(DEFINITION, cpus_per_task=5000)),
    )
    told = worker.submit(batch)
    refused = told.outcomes[batch[1][0]]
    assert isinstance(refused, SlurmRejectedError)
    assert "More processors requested than permitted" in str(refused)
    assert [isinstance(told.outcomes[job], int) for job, _ in batch] == [
        True,
        False,
        True,
    ]
    assert in_slurm(submission_env).keys() >= {batch[0][0], batch[2][0]}


# --- the connection is cut ------------------------------------------------------------

BYTES = {  # about what passes, by the number of jobs
    (SSH, Direction.TO_SERVER): {1: 1200, 2: 1800, 50: 40_000},
    (SSH, Direction.TO_CLIENT): {1: 500, 2: 700, 50: 12_000},
    (REST, Direction.TO_SERVER): {1: 1600, 2: 2900, 50: 64_000},
    (REST, Direction.TO_CLIENT): {1: 4200, 2: 4600, 50: 24_000},
}
CUTS = [
    (number, direction, share)
    for number in BATCHES
    for direction in (Direction.TO_SERVER, Direction.TO_CLIENT)
    for share in (0, *sorted(SEEDED.sample(range(100), 4)))
]


@pytest.mark.parametrize(
    ("number", "direction", "share"),
    [cut if cut[0] > 1 else in_chaos(*cut) for cut in CUTS],
)
def test_submit__connection_cut_at_a_byte__no_outcome_is_false(
    submission_env: SubmissionEnv,
    worker: Worker,
    proxy: Proxy,
    transport: Transport,
    number: int,
    direction: Direction,
    share: int,
) -> None:
    batch = requests(number)
    proxy.inject(
        direction, BYTES[transport, direction][number] * share // 100, Fault.CUT
    )
    assert_each_outcome_is_true(submission_env, batch, worker.submit(batch))


@pytest.mark.parametrize(
    ("number", "answers"),
    [
        (2, 1),
        (50, 1),
        (50, 7),
        *(in_chaos(50, answers) for answers in range(2, 50) if answers != 7),
    ],
)
def test_submit__connection_cut_after_an_answer__no_outcome_is_false(
    submission_env: SubmissionEnv,
    worker: Worker,
    proxy: Proxy,
    number: int,
    answers: int,
) -> None:
    batch, told = requests(number), Told()

    def answered(job: JobId, outcome: Outcome) -> None:
        told.answered(job, outcome)
        if len(told.outcomes) == answers:
            proxy.fault(Fault.CUT)

    worker.cluster.submissions.submit_batch(
        CUSTOMER, batch, worker.clock, our_clock_s(), answered
    )
    assert told.times == Counter(job for job, _ in batch)
    assert all(isinstance(told.outcomes[job], int) for job, _ in batch[:answers])
    assert_each_outcome_is_true(submission_env, batch, told)


@pytest.mark.parametrize("number", BATCHES)
def test_submit__cut_off_and_submitted_again__each_job_is_in_slurm_once(
    submission_env: SubmissionEnv,
    worker: Worker,
    proxy: Proxy,
    transport: Transport,
    number: int,
) -> None:
    """As a worker does: what is not known is looked for, what was not run is submitted
    again.
    """
    batch = requests(number)
    proxy.inject(
        Direction.TO_CLIENT,
        BYTES[transport, Direction.TO_CLIENT][number] // 2,
        Fault.CUT,
    )
    left = dict(batch)
    told = worker.submit(batch)
    while left:
        assert_each_outcome_is_true(submission_env, list(left.items()), told)
        left = {job: left[job] for job in left.keys() - in_slurm(submission_env).keys()}
        if left:
            told = worker.submit(list(left.items()))
    assert all(len(ids) == 1 for ids in in_slurm(submission_env).values())


def test_submit__output_is_lost__the_jobs_are_unknown_when_time_is_over(
    submission_env: SubmissionEnv, worker: Worker, proxy: Proxy
) -> None:
    batch = requests(2)
    proxy.fault(Fault.LOSE_TO_CLIENT)
    told = worker.submit(batch)
    proxy.fault(None)
    assert all(
        isinstance(outcome, TransientError | OutcomeUnknownError)
        for outcome in told.outcomes.values()
    )
    assert_each_outcome_is_true(submission_env, batch, told)


# --- sbatch ---------------------------------------------------------------------------


def with_sbatch(submission_env: SubmissionEnv, worker: Worker, text: str) -> Worker:
    file = submission_env.processes.folder / "sbatch"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return replace(
        worker,
        cluster=with_paths(over_ssh(worker.cluster), replace(PATHS, sbatch=str(file))),
    )


@only_ssh(OnlySsh.LOGIN_NODE)
def test_submit__one_hangs__those_before_it_report_and_those_behind_it_do_not_run(
    submission_env: SubmissionEnv, worker: Worker
) -> None:
    batch = requests(4)
    hangs = batch[2][0]
    wrapped = with_sbatch(
        submission_env,
        worker,
        f'case "$*" in *{hangs}*) trap "" TERM; while :; do sleep 0.1; done;; esac; exec /usr/bin/sbatch "$@"',
    )
    begun_s = time.monotonic()
    told = wrapped.submit(batch)
    outcomes = [told.outcomes[job] for job, _ in batch]
    assert [type(outcome) for outcome in outcomes] == [
        int,
        int,
        OutcomeUnknownError,
        TooLateError,
    ]
    assert told.at_s[1] - begun_s < deadline(SUBMIT_TIMEOUT_S / 2)
    assert told.at_s[3] - begun_s < deadline(
        SUBMIT_TIMEOUT_S + KILL_GRACE_S + CLOCK_SKEW_S
    )
    assert_each_outcome_is_true(submission_env, batch, told)


def test_submit__worker_stood_still__sends_nothing(
    submission_env: SubmissionEnv, worker: Worker
) -> None:
    batch = requests(2)
    told = worker.submit(batch, begun_ago_s=SUBMIT_TIMEOUT_S)
    assert [type(outcome) for outcome in told.outcomes.values()] == [TooLateError] * 2
    assert_each_outcome_is_true(submission_env, batch, told)


def test_submit__answered_callback_raises__raises_it_and_the_connection_can_be_used(
    submission_env: SubmissionEnv, worker: Worker
) -> None:
    class ForgottenError(Exception):
        pass

    def answered(job: JobId, outcome: Outcome) -> None:
        raise ForgottenError

    with pytest.raises(ForgottenError):
        worker.cluster.submissions.submit_batch(
            CUSTOMER, requests(2), worker.clock, our_clock_s(), answered
        )
    batch = requests(1)
    assert_each_outcome_is_true(submission_env, batch, worker.submit(batch))
