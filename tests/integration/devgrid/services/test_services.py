"""The grid's services with a real chain, asked by the supervisor's own clients and by
strangers.
"""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from eth_account import Account as Keys
from eth_account.messages import encode_defunct

from devgrid.chain.chain import Chain
from devgrid.chain.deployment import start_chain
from devgrid.chain.model import Account, ChainNode, ChainPrices, JobDefinition
from devgrid.machine import deadline
from devgrid.processes import Processes
from devgrid.services import script_store
from devgrid.services.grid_logger import logged_lines
from devgrid.services.job_definitions import Challenges, RefusedError
from devgrid.services.start import start_services
from devgrid.state_folder import private_processes
from devgrid.tls import make_certificates
from protos.sbatchapi.v1alpha1.sbatch_pb2 import ChallengeRequest, GetSBatchRequest
from protos.sbatchapi.v1alpha1.sbatch_pb2_grpc import AuthAPIStub, SBatchAPIStub
from supervisor_tasks.grid.grpc_channels import Channels
from supervisor_tasks.grid.job_definitions import (
    JobDefinitions,
    JobDefinitionsDownError,
    ScriptRejectedError,
    ScriptUnavailableError,
)
from supervisor_tasks.grid.job_log import GridLogger
from supervisor_tasks.jobs.model import Address, Definition, Job, JobId

SCRIPT = "#!/bin/bash\necho \N{SNOWMAN}\n"


@dataclass
class Services:
    processes: Processes
    chain: Chain
    channels: Channels
    address: str
    provider: Account
    customer: Account
    location: str

    def job(self, location: str | None = None) -> Job:
        definition = JobDefinition(
            gpus=0,
            mem_per_cpu_mb=1,
            cpus_per_task=1,
            ntasks=1,
            batch_location_hash=location or self.location,
        )
        job_id = self.chain.customers.request_job(self.customer, definition, 10**21)
        self.chain.admin.meta_schedule([job_id], self.provider.address)
        return Job(
            job_id=JobId(job_id),
            customer=Address(self.customer.address),
            provider=Address(self.provider.address),
            claim_key="",
            definition=Definition(
                gpus=0,
                mem_per_cpu_mb=1,
                cpus_per_task=1,
                ntasks=1,
                batch_location_hash=location or self.location,
            ),
            time_limit_min=1,
        )

    def client(self, key: str | None = None) -> JobDefinitions:
        return JobDefinitions(
            lambda: self.channels.open(self.address),
            signer(key or self.provider.private_key),
        )


def signer(key: str) -> Callable[[bytes], bytes]:
    return lambda message: bytes(
        Keys.sign_message(encode_defunct(primitive=message), key).signature
    )


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with private_processes() as processes:
        chain = start_chain(processes)
        certificates = make_certificates(processes.folder / "tls")
        location = script_store.store_script(processes.folder / "scripts", SCRIPT)
        address = start_services(processes, chain, certificates)
        processes.stop(processes.find("metascheduler"))
        provider, customer = chain.new_account(), chain.new_account()
        chain.register_provider(provider, [ChainNode(0, 8, 1000)], ChainPrices())
        chain.admin.mint_credits(customer.address, 10**24)
        yield Services(
            processes,
            chain,
            Channels(authority=certificates.ca),
            address,
            provider,
            customer,
            location,
        )


def test_fetch__own_job__gives_the_script_and_the_logger(services: Services) -> None:
    script = services.client().fetch(services.job())
    assert (script.text, script.grid_logger_url) == (SCRIPT, services.address)


def test_fetch__signed_by_another__is_unauthenticated(services: Services) -> None:
    with pytest.raises(
        ScriptRejectedError,
        match="UNAUTHENTICATED: the signature is not the provider's",
    ):
        services.client(services.customer.private_key).fetch(services.job())


def test_fetch__job_of_another_provider__is_denied(services: Services) -> None:
    other = services.chain.new_account()
    job = services.job()
    stranger = Job(**{name: getattr(job, name) for name in ("job_id", "customer", "claim_key", "definition")},
                   provider=Address(other.address), time_limit_min=1)  # fmt: skip
    with pytest.raises(ScriptRejectedError, match="PERMISSION_DENIED"):
        services.client(other.private_key).fetch(stranger)


def test_fetch__no_such_script__is_not_found(services: Services) -> None:
    with pytest.raises(ScriptUnavailableError, match="NOT_FOUND"):
        services.client().fetch(services.job("e" * 64))


def test_fetch__ended_job__is_denied(services: Services) -> None:
    job = services.job()
    services.chain.customers.cancel_job(services.customer, job.job_id)
    with pytest.raises(ScriptRejectedError, match="the job has ended"):
        services.client().fetch(job)


def ask(services: Services, job: Job, **changed: object) -> Any:
    """Fetch a script as a stranger's program might, with other fields than the
    supervisor's own client sends.
    """
    with services.channels.open(services.address) as channel:
        challenge = (
            AuthAPIStub(channel)
            .Challenge(ChallengeRequest(), timeout=deadline(10))
            .challenge
        )
        fields: dict[str, Any] = {
            "batch_location_hash": services.location,
            "challenge": challenge,
            "signed_challenge": signer(services.provider.private_key)(challenge),
            "provider_address": bytes.fromhex(job.provider[2:]),
            "customer_address": bytes.fromhex(job.customer[2:]),
            "job_id": job.job_id,
        }
        return SBatchAPIStub(channel).GetSBatch(
            GetSBatchRequest(**(fields | changed)), timeout=deadline(10)
        )


@pytest.mark.parametrize(
    ("changed", "status", "said"),
    [
        (
            {"customer_address": bytes(20)},
            grpc.StatusCode.PERMISSION_DENIED,
            "not this customer's and provider's",
        ),
        (
            {"batch_location_hash": "e" * 64},
            grpc.StatusCode.PERMISSION_DENIED,
            "another batch location hash",
        ),
        (
            {"job_id": "0x" + "e" * 64},
            grpc.StatusCode.NOT_FOUND,
            "there is no job 0xeee",
        ),
        (
            {"job_id": "7"},
            grpc.StatusCode.INVALID_ARGUMENT,
            "expected 0x and 64 hex digits",
        ),
    ],
)
def test_get_sbatch__one_field_wrong__is_refused_for_that(
    services: Services, changed: dict[str, object], status: grpc.StatusCode, said: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        ask(services, services.job(), **changed)
    assert caught.value.code() is status
    assert said in str(caught.value.details())


def test_get_sbatch__challenge_used_twice_or_made_up__is_unauthenticated(
    services: Services,
) -> None:
    job, sign = services.job(), signer(services.provider.private_key)

    def ask(channel: grpc.Channel, challenge: bytes) -> Any:
        return SBatchAPIStub(channel).GetSBatch(
            GetSBatchRequest(
                batch_location_hash=services.location,
                challenge=challenge,
                signed_challenge=sign(challenge),
                provider_address=bytes.fromhex(job.provider[2:]),
                customer_address=bytes.fromhex(job.customer[2:]),
                job_id=job.job_id,
            ),
            timeout=deadline(10),
        )

    with services.channels.open(services.address) as channel:
        challenge = (
            AuthAPIStub(channel)
            .Challenge(ChallengeRequest(), timeout=deadline(10))
            .challenge
        )
        assert ask(channel, challenge).sbatch == SCRIPT
        for bad in (
            challenge,
            b'{"nonce": "mine"}',
            b"\xff",
            b"[]",
            b'{"nonce": []}',
            b"[" * 100_000,
        ):
            with pytest.raises(grpc.RpcError) as caught:
                ask(channel, bad)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    "signature",
    [
        b"",
        b"\1" * 64,
        b"\0" * 65,
        b"\xff" * 65,
        b"\1" * 64 + b"\5",
        b"\1" * 65,
        b"\1" * 66,
    ],
)
def test_get_sbatch__hostile_signature__is_unauthenticated(
    services: Services, signature: bytes
) -> None:
    with services.channels.open(services.address) as channel:
        challenge = (
            AuthAPIStub(channel)
            .Challenge(ChallengeRequest(), timeout=deadline(10))
            .challenge
        )
        request = GetSBatchRequest(
            challenge=challenge, signed_challenge=signature, provider_address=b"1" * 20
        )
        with pytest.raises(grpc.RpcError) as caught:
            SBatchAPIStub(channel).GetSBatch(request, timeout=deadline(10))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_get_sbatch__both_forms_of_v__are_accepted(services: Services) -> None:
    job = services.job()
    for v in (0, 27):

        def sign(message: bytes, least: int = v) -> bytes:
            signature = signer(services.provider.private_key)(message)
            return signature[:64] + bytes([signature[64] % 27 + least])

        assert (
            JobDefinitions(lambda: services.channels.open(services.address), sign)
            .fetch(job)
            .text
            == SCRIPT
        )


def test_challenges__ten_minutes__then_too_old() -> None:
    now = 0.0
    challenges = Challenges(clock=lambda: now)
    early, late = challenges.issue(), challenges.issue()
    now = 599.0
    challenges.use(early)
    now = 601.0
    with pytest.raises(RefusedError, match="older than ten minutes"):
        challenges.use(late)


def test_challenges__never_used__are_forgotten() -> None:
    now = 0.0
    challenges = Challenges(clock=lambda: now)
    old = challenges.issue()
    now = 601.0
    challenges.issue()
    with pytest.raises(RefusedError, match="none of ours"):
        challenges.use(old)


def test_logger__hostile_names__stay_in_their_folder(services: Services) -> None:
    logs = services.processes.folder / "user-logs"
    logger = GridLogger(services.channels.open)
    user, name = Address("../../etc"), JobId("a/../b\n")
    logger.write(services.address, user, name, ["one", "two\nthree"])
    assert logged_lines(logs, user, name) == ["one", "two three"]
    assert all(
        Path(file).resolve().is_relative_to(logs.resolve()) for file in logs.rglob("*")
    )


def test_logger__names_alike__keep_their_lines_apart(services: Services) -> None:
    logs = services.processes.folder / "user-logs"
    logger = GridLogger(services.channels.open)
    names = ["/a", "\u02fa", "%2Fa", "x" * 300 + "1", "x" * 300 + "2", ".", ".."]
    for name in names:
        logger.write(services.address, Address(name), JobId("log"), [f"for {name}"])
    assert [logged_lines(logs, name, "log") for name in names] == [
        [f"for {name}"] for name in names
    ]


def test_logger__line_with_other_separators__is_one_line(services: Services) -> None:
    line = "a\rb\x0cc\u2028d"
    GridLogger(services.channels.open).write(
        services.address, Address("separators"), JobId("log"), [line]
    )
    assert logged_lines(
        services.processes.folder / "user-logs", "separators", "log"
    ) == [line]


def test_fetch__chain_away__is_down_and_never_a_refusal(services: Services) -> None:
    job = services.job()
    anvil = services.processes.find("anvil")
    services.processes.kill(anvil, signal.SIGKILL)
    with pytest.raises(JobDefinitionsDownError, match="UNAVAILABLE"):
        services.client().fetch(job)
    services.processes.stop(services.processes.find("services"))
    with pytest.raises(JobDefinitionsDownError):
        services.client().fetch(job)
