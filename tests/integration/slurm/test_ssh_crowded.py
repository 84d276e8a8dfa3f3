"""A login node that lets few in at once: a burst of customers' jobs, refused at the
door by MaxStartups and on the line by MaxSessions, ends with one SLURM job each.
"""

import socket
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import pytest
from sqlalchemy import text

from devgrid.cluster.sshd import Sshd
from devgrid.machine import deadline
from devgrid.processes import wait_until
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.events import ScriptFetched
from supervisor_tasks.jobs.model import Address, JobId, State
from supervisor_tasks.ledger.ledger import JobChange
from tests.support.ledger import claim
from tests.support.submission_env import SubmissionEnv, authorized_keys_command

CUSTOMERS = 6
JOBS_EACH = 3
WORKERS = 12
ALL = 5  # strangers at the door: no other connection is let in
SOME = 3  # every second login is refused
SETTLES_S = 120.0


@pytest.fixture(scope="module")
def crowded_sshd(submission_env: SubmissionEnv) -> Sshd:
    options = [f"MaxStartups {SOME}:50:{ALL}", "MaxSessions 2", "LoginGraceTime 0"]
    return Sshd.start(
        submission_env.processes,
        submission_env.slurm.env(),
        authorized_keys_command(submission_env.key),
        name="crowded",
        options=options,
    )


def at_the_door(sshd: Sshd, door: ExitStack, number: int) -> list[socket.socket]:
    """So many strangers who are let in, and do not say who they are."""
    host, _, port = sshd.address.rpartition(":")
    waiting: list[socket.socket] = []

    def one_more() -> bool:
        stranger = socket.create_connection((host, int(port)), deadline(10.0))
        if stranger.recv(3) == b"SSH":
            waiting.append(door.enter_context(stranger))
        else:
            stranger.close()
        return len(waiting) == number

    wait_until(one_more, f"{number} strangers at the door", 60.0)
    return waiting


def new_jobs(submission_env: SubmissionEnv, site: WorkerContext) -> list[JobId]:
    """Ready to be submitted: some of each customer."""
    customers = [
        Address("0x" + f"{number:x}" * 40) for number in range(3, 3 + CUSTOMERS)
    ]
    for customer in customers:
        submission_env.slurm.users.add(customer)
    claims = [
        replace(claim(number), customer=customers[number % CUSTOMERS])
        for number in range(CUSTOMERS * JOBS_EACH)
    ]
    script = ScriptFetched("#!/bin/bash\nsleep 600\n", "")
    site.ledger.record(
        *(JobChange(job.job_id, event) for job in claims for event in (job, script))
    )
    return [job.job_id for job in claims]


def states(site: WorkerContext, jobs: Sequence[JobId]) -> Counter[State]:
    return Counter(job.state for job in site.ledger.jobs(jobs).values())


def try_all(
    submission_env: SubmissionEnv, site: WorkerContext, jobs: Sequence[JobId]
) -> None:
    """As many workers at once do what is due."""
    left = [
        job
        for job, known in site.ledger.jobs(jobs).items()
        if known.state is not State.QUEUED
    ]
    with ThreadPoolExecutor(WORKERS) as workers:
        list(workers.map(lambda job: submission_env.carry_out(site, job), left))


def refusals(submission_env: SubmissionEnv) -> list[str]:
    query = text("SELECT last_error FROM effects WHERE last_error IS NOT NULL")
    with submission_env.engine.connect() as connection:
        return list(connection.scalars(query))


def test_burst__login_node_lets_few_in__queues_each_job_once_and_parks_none(
    submission_env: SubmissionEnv, crowded_sshd: Sshd
) -> None:
    site = submission_env.site(submission_env.cluster(sshd=crowded_sshd))
    jobs = new_jobs(submission_env, site)
    with ExitStack() as door:
        strangers = at_the_door(crowded_sshd, door, ALL)

        def all_refused() -> bool:
            try_all(submission_env, site, jobs)
            return len(
                [why for why in refusals(submission_env) if "cannot log in" in why]
            ) == len(jobs)

        wait_until(all_refused, "all jobs to be refused", SETTLES_S, 0.2)
        # nothing has begun: there is nothing to look for
        assert states(site, jobs) == {State.READY: len(jobs)}
        for stranger in strangers[SOME:]:
            stranger.close()

        def all_queued() -> bool:
            try_all(submission_env, site, jobs)
            return states(site, jobs) == {State.QUEUED: len(jobs)}

        wait_until(all_queued, "all jobs to be queued", SETTLES_S, 0.2)
    names = submission_env.slurm.run(
        "squeue", "--noheader", "--states=all", "--format=%j"
    ).stdout.split()
    assert Counter(names) == dict.fromkeys(jobs, 1)
    assert {tuple(submission_env.journal(job)).count("Submitted") for job in jobs} == {
        1
    }
    with submission_env.engine.connect() as connection:
        assert (
            connection.scalar(
                text("SELECT count(*) FROM effects WHERE parked_at IS NOT NULL")
            )
            == 0
        )
    site.slurm.cluster.close()
    site.ledger.holder.close()
