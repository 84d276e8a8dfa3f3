"""Fetch, as the fleet does it: the real job definition service, which is restarted and
whose node lags, and a real ledger.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest
from sqlalchemy import text

from devgrid.chain.deployment import start_chain
from devgrid.chain.model import Account, ChainNode, ChainPrices, JobDefinition
from devgrid.machine import deadline
from devgrid.processes import wait_until
from devgrid.services import script_store
from devgrid.services.start import start_services
from devgrid.state_folder import private_processes
from devgrid.tls import make_certificates
from protos.sbatchapi.v1alpha1.sbatch_pb2 import ChallengeRequest
from protos.sbatchapi.v1alpha1.sbatch_pb2_grpc import AuthAPIStub
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.grid.grpc_channels import Channels
from supervisor_tasks.grid.job_definitions import JobDefinitions
from supervisor_tasks.jobs.batch import MAX_UNRECORDED_BYTES, Batch
from supervisor_tasks.jobs.batch_policies import BATCH_POLICIES
from supervisor_tasks.jobs.events import Claimed
from supervisor_tasks.jobs.fetch_script import REJECTED_FOR_S, REJECTED_TRIES
from supervisor_tasks.jobs.model import (
    Address,
    ChainStatus,
    Definition,
    EffectKind,
    Job,
    JobId,
    State,
)
from supervisor_tasks.ledger.ledger import JobChange
from tests.support.effect_batches import carry_out
from tests.support.wallet_harness import ChainHarness, databases

SCRIPT = "#!/bin/bash\necho hello\n"


@dataclass
class Fetching:
    """A claimed job, and a site that can fetch its script. `before_answer` happens
    between challenge and answer.
    """

    site: WorkerContext
    harness: ChainHarness
    customer: Account
    provider: Account
    scripts: Path
    location: str
    restart: Callable[[], None]
    before_answer: Callable[[], None] = lambda: None

    def claim(self, customer: str | None = None, location: str | None = None) -> JobId:
        """The ledger hears of a claim; the service's node has it as the contract has,
        or not, with another customer.
        """
        location = location or self.location
        mine = JobDefinition(
            gpus=0,
            mem_per_cpu_mb=1,
            cpus_per_task=1,
            ntasks=1,
            batch_location_hash=location,
        )
        job_id = JobId(
            self.harness.chain.customers.request_job(self.customer, mine, 10**21)
        )
        self.harness.chain.admin.meta_schedule([job_id], self.provider.address)
        claimed = Claimed(
            job_id=job_id,
            customer=Address(customer or self.customer.address),
            provider=Address(self.provider.address),
            claim_key=f"claim:{job_id}",
            definition=Definition(
                gpus=0,
                mem_per_cpu_mb=1,
                cpus_per_task=1,
                ntasks=1,
                batch_location_hash=location,
            ),
            time_limit_min=1,
            at=(7, 1),
        )
        self.site.ledger.record(JobChange(job_id, claimed))
        return job_id

    def try_once(self, job_id: JobId) -> Job:
        """One try; the job after it."""
        with self.harness.engine.begin() as connection:
            due = "UPDATE effects SET due_at = now() - interval '1 s' WHERE job_id = :id AND done_at IS NULL"
            connection.execute(text(due), {"id": job_id})
            fetch = "SELECT id FROM effects WHERE job_id = :id AND kind = :kind"
            effect_id = connection.scalar(
                text(fetch), {"id": job_id, "kind": EffectKind.FETCH}
            )
        carry_out(self.site, effect_id)
        return self.site.ledger.jobs([job_id])[job_id]

    def last_error(self, job_id: JobId) -> str:
        """What the last try came to."""
        with self.harness.engine.connect() as connection:
            query = text(
                "SELECT last_error FROM effects WHERE job_id = :id AND kind = :kind"
            )
            return str(
                connection.scalar(query, {"id": job_id, "kind": EffectKind.FETCH})
            )

    def was_down(self, job_id: JobId) -> None:
        """The service, for more tries than a refusal must have had to count."""
        with self.harness.engine.begin() as connection:
            tried = "UPDATE effects SET attempts = :tries WHERE job_id = :id"
            connection.execute(text(tried), {"tries": REJECTED_TRIES, "id": job_id})

    def let_time_pass(self, job_id: JobId, age_s: float = REJECTED_FOR_S) -> None:
        """The claim is as old as this; without, as a refusal must be to count."""
        with self.harness.engine.begin() as connection:
            aged = "UPDATE events SET at = now() - :age * interval '1 s' WHERE job_id = :id"
            connection.execute(text(aged), {"age": age_s, "id": job_id})


@pytest.fixture(scope="module")
def fetching() -> Iterator[Fetching]:
    with (
        private_processes() as processes,
        databases(processes, "fetching") as (engine,),
    ):
        chain = start_chain(processes)
        certificates = make_certificates(processes.folder / "tls")
        address = start_services(processes, chain, certificates)
        processes.stop(processes.find("metascheduler"))
        location = script_store.store_script(processes.folder / "scripts", SCRIPT)
        provider, customer = chain.new_account(), chain.new_account()
        chain.register_provider(provider, [ChainNode(0, 8, 1000)], ChainPrices())
        chain.admin.mint_credits(customer.address, 10**24)
        channels = Channels(authority=certificates.ca)

        def answers() -> bool:
            with channels.open(address) as channel:
                try:
                    AuthAPIStub(channel).Challenge(
                        ChallengeRequest(), timeout=deadline(5)
                    )
                except grpc.RpcError:
                    return False
            return True

        def restart() -> None:
            processes.kill(processes.find("services"))
            processes.start_again("services")
            wait_until(answers, "the job definition service", 60.0)

        def sign(challenge: bytes) -> bytes:
            here.before_answer()
            return harness.account.sign_message(challenge)

        harness = ChainHarness.of(chain, provider, engine)
        services = replace(
            harness.site.chain,
            job_definitions=JobDefinitions(lambda: channels.open(address), sign),
        )
        folder = processes.folder / "scripts"
        here = Fetching(
            replace(harness.site, chain_services=services),
            harness,
            customer,
            provider,
            folder,
            location,
            restart,
        )
        wait_until(answers, "the job definition service", 60.0)
        yield here
        harness.site.ledger.holder.close()


def test_fetch__service_restarted_between_challenge_and_answer__succeeds_later(
    fetching: Fetching,
) -> None:
    job_id = fetching.claim()
    fetching.before_answer = fetching.restart

    def refused() -> bool:  # a connection that has just broken may be told of first
        assert fetching.try_once(job_id).state is State.CLAIMED
        return "UNAUTHENTICATED: the challenge is none of ours" in fetching.last_error(
            job_id
        )

    wait_until(refused, "the service not to know its challenge any more", 60.0)
    fetching.before_answer = lambda: None
    wait_until(
        lambda: fetching.try_once(job_id).state is State.READY, "the script", 60.0
    )
    assert fetching.site.ledger.scripts([job_id]) == {job_id: SCRIPT}


def test_fetch__service_restarted_after_a_long_outage__its_one_refusal_ends_nothing(
    fetching: Fetching,
) -> None:
    job_id = fetching.claim()
    fetching.let_time_pass(job_id)
    fetching.was_down(job_id)

    def restart_once() -> None:
        fetching.before_answer = lambda: None
        fetching.restart()

    fetching.before_answer = restart_once

    def is_ready() -> bool:  # a connection that has just broken may be told of first
        state = fetching.try_once(job_id).state
        assert state in (State.CLAIMED, State.READY)
        return state is State.READY

    wait_until(is_ready, "the script", 60.0)


def test_fetch__script_longer_than_slurm_takes__ends_the_job_at_the_first_try(
    fetching: Fetching,
) -> None:
    much = "#!/bin/sh\n" + "# much\n" * (5 * 2**20 // 7)
    job_id = fetching.claim(location=script_store.store_script(fetching.scripts, much))

    def is_told() -> bool:  # a connection that has just broken may be told of first
        return fetching.try_once(job_id).state is State.ENDED

    wait_until(is_told, "the job to end", 60.0)
    outcome = fetching.site.ledger.jobs([job_id])[job_id].outcome
    assert outcome is not None
    assert outcome.status is ChainStatus.FAILED
    assert "larger than max" in outcome.reason


def test_fetch__large_scripts_that_cannot_be_recorded_yet__no_more_are_fetched(
    fetching: Fetching,
) -> None:
    """Scripts of 4 MiB would fill the memory of the worker."""
    mib = 2**20
    large = "#!/bin/sh\n" + "#" * mib
    policy = BATCH_POLICIES[EffectKind.FETCH]
    most = policy.parallel + MAX_UNRECORDED_BYTES // mib
    assert most < policy.max_groups
    location = script_store.store_script(fetching.scripts, large)
    job_ids = [fetching.claim(location=location) for _ in range(most + 4)]
    answers = list[None]()
    fetching.before_answer = lambda: answers.append(None)
    batch = Batch(fetching.site, EffectKind.FETCH)
    try:
        with (
            ThreadPoolExecutor(1) as threads,
            fetching.harness.engine.begin() as connection,
        ):
            connection.execute(text("LOCK TABLE events IN SHARE ROW EXCLUSIVE MODE"))
            threads.submit(batch.run, lambda: True)
            wait_until(lambda: len(answers) >= policy.parallel, "scripts", 60.0)
            with pytest.raises(TimeoutError):
                wait_until(lambda: len(answers) > most, "one more", 2.0)
    finally:
        fetching.before_answer = lambda: None
        batch.close()
    jobs = fetching.site.ledger.jobs(job_ids)
    assert {jobs[job_id].state for job_id in job_ids} == {State.READY}


def test_fetch__service_denies_the_job_for_good__ends_it_after_the_last_try(
    fetching: Fetching,
) -> None:
    job_id = fetching.claim(customer="0x" + "2" * 40)
    for _ in range(REJECTED_TRIES + 1):
        fetching.let_time_pass(job_id, 0.0)
        assert fetching.try_once(job_id).state is State.CLAIMED  # it is too young
        assert "PERMISSION_DENIED" in fetching.last_error(job_id)
    fetching.let_time_pass(job_id)
    job = fetching.try_once(job_id)
    assert (job.state, job.outcome and job.outcome.status) == (
        State.ENDED,
        ChainStatus.FAILED,
    )


def test_fetch__service_denies_an_old_claim__ends_the_job_only_after_all_tries(
    fetching: Fetching,
) -> None:
    job_id = fetching.claim(customer="0x" + "2" * 40)
    fetching.let_time_pass(job_id)
    for _ in range(REJECTED_TRIES - 1):
        assert fetching.try_once(job_id).state is State.CLAIMED
    assert fetching.try_once(job_id).state is State.ENDED


def test_fetch__script_is_not_there__ends_the_job_at_once(fetching: Fetching) -> None:
    job_id = fetching.claim(location="e" * 64)
    assert fetching.try_once(job_id).state is State.ENDED
