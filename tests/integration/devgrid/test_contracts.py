"""The committed contracts, and the chain that they are deployed to."""

import stat
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from eth_utils.crypto import keccak

from devgrid import REPOSITORY
from devgrid.chain.chain import Chain
from devgrid.chain.deployment import BLOCK_GAS, BUILD, CHAIN_ID, start_chain
from devgrid.chain.model import (
    Account,
    ChainError,
    ChainNode,
    ChainPrices,
    JobDefinition,
)
from devgrid.state_files import StateFileError
from devgrid.state_folder import private_processes
from supervisor_tasks.chain.abi_codec import Revert, event
from supervisor_tasks.jobs.model import ChainStatus

CREDITS = 10**18
OWNERSHIP_TRANSFERRED = "OwnershipTransferred(address,address)"
DEFINITION = JobDefinition(
    gpus=1,
    mem_per_cpu_mb=1000,
    cpus_per_task=2,
    ntasks=2,
    batch_location_hash="f" * 64,
    storage_type=2,
    uses=(("network", "wireguard"),),
    affinity=(("os", "==", "debian"), ("zone", "in", "a,b")),
)
PER_MINUTE = ChainPrices().of(DEFINITION)


def test_build__the_sources_compiled_again__give_what_is_committed(
    tmp_path: Path,
) -> None:
    build = REPOSITORY / "devgrid/contracts/build.mjs"
    subprocess.run(
        ["node", build, "--into", tmp_path], check=True, stdout=subprocess.DEVNULL
    )
    for committed, fresh in (
        (BUILD, "build"),
        (REPOSITORY / "supervisor_tasks/chain/abi", "abi"),
    ):
        expected = {file.name: file.read_text() for file in committed.glob("*.json")}
        found = {
            file.name: file.read_text() for file in (tmp_path / fresh).glob("*.json")
        }
        assert found == expected, "run: node devgrid/contracts/build.mjs"


@pytest.fixture
def customer(chain: Chain) -> Account:
    account = chain.new_account()
    chain.admin.mint_credits(account.address, 10_000 * CREDITS)
    return account


@pytest.fixture
def provider(chain: Chain) -> Account:
    account = chain.new_account()
    chain.register_provider(
        account,
        [ChainNode(2, 8, 16000), ChainNode(0, 4, 8000)],
        ChainPrices(),
        {"zone": "a", "os": "debian"},
    )
    return account


def sets(
    chain: Chain, provider: Account, job_id: str, status: ChainStatus, minutes: int = 0
) -> None:
    raw = bytes.fromhex(job_id[2:])
    chain.send(
        provider,
        "MetaScheduler",
        "providerSetJobStatus",
        raw,
        status,
        minutes,
        "a reason",
        256,
    )


def last(
    chain: Chain, name: str, contract: str = "MetaScheduler"
) -> tuple[object, ...]:
    return chain.events(contract, name)[-1]


def test_chain__its_file__is_private_and_loads(chain: Chain) -> None:
    assert stat.S_IMODE((chain.folder / "chain.json").stat().st_mode) == 0o600
    known = chain.new_account(role="someone")
    loaded = Chain.load(chain.folder)
    assert (loaded.addresses, loaded.chain_id, loaded.ws_url) == (
        chain.addresses,
        CHAIN_ID,
        chain.ws_url,
    )
    assert loaded.account("someone") == known
    assert known.private_key not in repr(known)
    with pytest.raises(
        StateFileError, match=r"no account with the role 'unknown' \(known: .*someone"
    ):
        loaded.account("unknown")


def test_entry_point__its_getters__name_the_deployed_contracts(chain: Chain) -> None:
    getters = ("jobs", "providerJobQueues", "providerManager", "credit", "constants")
    found = [chain.call("MetaScheduler", getter)[0].lower() for getter in getters]
    at = chain.addresses
    assert found == [at.jobs, at.queues, at.provider_manager, at.credit, at.constants]


def test_provider__registered__reads_back(chain: Chain, provider: Account) -> None:
    found = chain.providers.get(provider.address)
    assert found.nodes == (ChainNode(2, 8, 16000), ChainNode(0, 4, 8000))
    assert found.prices == ChainPrices()
    assert found.labels == (("os", "debian"), ("zone", "a"))
    with pytest.raises(
        ChainError,
        match=r"ProviderManager\.getWaitingForApprovalProvider: 0x\w+ is unknown",
    ):
        chain.providers.waiting(provider.address)


@pytest.mark.parametrize("view", ["getProvider", "getWaitingForApprovalProvider"])
def test_provider__unknown__is_all_zero(chain: Chain, view: str) -> None:
    """As in the field, whose clients end on a revert."""
    zero = "0x" + "0" * 40
    assert chain.call("ProviderManager", view, "0x" + "1" * 40) == (
        (zero, (0, (), (), ()), (0, 0, 0), (), False),
    )


def test_roles__granted_and_revoked__are_events(
    chain: Chain, customer: Account
) -> None:
    admin, role = chain.account("admin"), b"\x07" * 32
    for name in ("grantRole", "grantRole", "revokeRole", "revokeRole"):
        chain.send(admin, "MetaScheduler", name, role, customer.address)
    arguments = [
        role.hex(),
        *(
            address.removeprefix("0x").rjust(64, "0")
            for address in (customer.address, admin.address)
        ),
    ]
    # a role that is given twice is told once
    for name in ("RoleGranted", "RoleRevoked"):
        topic = "0x" + keccak(text=f"{name}(bytes32,address,address)").hex()
        query = {
            "address": chain.addresses.metascheduler,
            "fromBlock": "0x0",
            "topics": [topic, "0x" + role.hex()],
        }
        found = [log["topics"] for log in chain.rpc.call("eth_getLogs", query)]
        assert found == [[topic, *("0x" + argument for argument in arguments)]]


def test_ownership__handed_over_and_given_up__are_events() -> None:
    """On a chain of its own, which is without an owner afterwards."""
    zero = "0x" + "0" * 40
    with private_processes() as processes:
        chain = start_chain(processes)
        admin, heir = chain.account("admin"), chain.new_account()
        chain.send(admin, "Constants", "transferOwnership", heir.address)
        assert chain.call("Constants", "owner") == (heir.address,)
        with pytest.raises(ChainError, match="Ownable: caller is not the owner"):
            chain.send(admin, "Constants", "setMinimumAmount", 1)
        with pytest.raises(ChainError, match="new owner is the zero address"):
            chain.send(heir, "Constants", "transferOwnership", zero)
        chain.send(heir, "Constants", "renounceOwnership")
        assert chain.call("Constants", "owner") == (zero,)
        query = {
            "address": chain.addresses.constants,
            "fromBlock": "0x0",
            "topics": ["0x" + keccak(text=OWNERSHIP_TRANSFERRED).hex()],
        }
        found = [log["topics"][1:] for log in chain.rpc.call("eth_getLogs", query)]
    owners = [zero, admin.address, heir.address, zero]
    padded = ["0x" + address.removeprefix("0x").rjust(64, "0") for address in owners]
    assert found == [list(pair) for pair in pairwise(padded)]


def test_withdraw_admin__what_was_earned__is_the_owners(
    chain: Chain, customer: Account, provider: Account
) -> None:
    admin = chain.account("admin")
    chain.send(admin, "Constants", "setDeepsquareCut", 1000)
    try:
        job_id = chain.customers.request_job(customer, DEFINITION, 10 * PER_MINUTE)
        chain.admin.meta_schedule([job_id], provider.address)
        chain.send(provider, "MetaScheduler", "claimNextJob")
        sets(chain, provider, job_id, ChainStatus.RUNNING)
        sets(chain, provider, job_id, ChainStatus.FINISHED, 10)
    finally:
        chain.send(admin, "Constants", "setDeepsquareCut", 0)
    with pytest.raises(ChainError, match="InsufficientFunds"):
        chain.send(admin, "MetaScheduler", "withdrawAdmin", PER_MINUTE + 1)
    (before,) = chain.call("Credit", "balanceOf", admin.address)
    chain.send(admin, "MetaScheduler", "withdrawAdmin", PER_MINUTE)
    assert chain.call("Credit", "balanceOf", admin.address) == (before + PER_MINUTE,)


def test_journey__its_events_and_final_job__say_what_happened(
    chain: Chain, customer: Account, provider: Account
) -> None:
    job_id = chain.customers.request_job(
        customer, DEFINITION, 10 * PER_MINUTE + 1, name="hello", delegate=True
    )
    raw = bytes.fromhex(job_id[2:])
    chain.admin.meta_schedule([job_id], provider.address)
    chain.send(provider, "MetaScheduler", "claimNextJob")
    owner, owned_by, claimed, minutes, definition = chain.events(
        "MetaScheduler", "ClaimJobEvent"
    )[-1]
    assert (owner, owned_by) == (customer.address, provider.address)
    assert (claimed, minutes) == (raw, 10)
    assert JobDefinition.from_abi(definition) == DEFINITION
    sets(chain, provider, job_id, ChainStatus.RUNNING)
    chain.customers.top_up_job(customer, job_id, 3 * PER_MINUTE)
    chain.send(provider, "MetaScheduler", "claimNextTopUpJob")
    assert last(chain, "ClaimNextTopUpJobEvent") == (raw, provider.address, 3)
    chain.customers.cancel_job(customer, job_id)
    chain.send(provider, "MetaScheduler", "claimNextCancellingJob")
    assert last(chain, "ClaimNextCancellingJobEvent") == (
        customer.address,
        provider.address,
        raw,
    )
    sets(chain, provider, job_id, ChainStatus.CANCELLED, 12)

    job = chain.job(job_id)
    assert (job.job_id, job.status, job.name) == (
        job_id,
        ChainStatus.CANCELLED,
        b"hello",
    )
    assert (job.customer, job.provider) == (customer.address, provider.address)
    assert (job.max_cost_wei, job.final_cost_wei) == (
        13 * PER_MINUTE + 1,
        12 * PER_MINUTE,
    )
    assert (job.last_error, job.exit_code, job.has_cancel_request) == (
        "a reason",
        256,
        True,
    )
    assert job.definition == DEFINITION
    assert chain.customers.jobs_of(customer.address) == [job_id]
    assert chain.credit_balance(provider.address) == 12 * PER_MINUTE
    assert chain.credit_balance(customer.address) == 10_000 * CREDITS - 12 * PER_MINUTE
    path = [
        entry[1:]
        for entry in chain.events("JobRepository", "JobTransitionEvent")
        if entry[0] == raw
    ]
    assert path == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_top_up__that_makes_a_minute_of_a_remainder__announces_it(
    chain: Chain, customer: Account, provider: Account
) -> None:
    job_id = chain.customers.request_job(customer, DEFINITION, 2 * PER_MINUTE - 1)
    chain.admin.meta_schedule([job_id], provider.address)
    chain.send(provider, "MetaScheduler", "claimNextJob")
    assert last(chain, "ClaimJobEvent")[3] == 1
    chain.customers.top_up_job(customer, job_id, 1)
    chain.send(provider, "MetaScheduler", "claimNextTopUpJob")
    assert last(chain, "ClaimNextTopUpJobEvent")[2] == 1


def test_job__refused_or_overbilled__is_announced(
    chain: Chain, customer: Account, provider: Account
) -> None:
    refused, kept = chain.customers.request_jobs(
        customer, DEFINITION, 2, 2 * PER_MINUTE
    )
    chain.admin.meta_schedule([refused, kept], provider.address)
    chain.send_many(provider, [("MetaScheduler", "claimNextJob", ())] * 2)
    raw = bytes.fromhex(refused[2:])
    chain.send(provider, "MetaScheduler", "refuseJob", raw)
    assert last(chain, "JobRefusedEvent") == (raw, provider.address, customer.address)
    assert last(chain, "JobTransitionEvent", "JobRepository") == (raw, 2, 0)
    sets(chain, provider, kept, ChainStatus.RUNNING)
    sets(chain, provider, kept, ChainStatus.FINISHED, 3)
    assert last(chain, "BilledTooMuchEvent") == (
        bytes.fromhex(kept[2:]),
        provider.address,
        3 * PER_MINUTE,
    )


def test_revert__of_any_call__is_told_by_name(
    chain: Chain, customer: Account, provider: Account
) -> None:
    job_id = chain.customers.request_job(customer, DEFINITION, PER_MINUTE)
    chain.customers.cancel_job(customer, job_id)
    with pytest.raises(
        ChainError, match=r"MetaScheduler\.cancelJob reverts: JobHotStatusOnly\(4\)"
    ) as caught:
        chain.customers.cancel_job(customer, job_id)
    assert caught.value.revert == Revert("JobHotStatusOnly", (4,))
    with pytest.raises(ChainError, match="InvalidJob"):
        chain.job("0x" + "0" * 64)
    with pytest.raises(ChainError, match="InsufficientFunds"):
        chain.customers.request_job(provider, DEFINITION, PER_MINUTE)


def test_revert__within_a_burst__is_told_by_name(
    chain: Chain, customer: Account, provider: Account
) -> None:
    job_id = chain.customers.request_job(customer, DEFINITION, PER_MINUTE)
    with pytest.raises(
        ChainError, match=r"MetaScheduler\.metaSchedule reverts: SameStatusError"
    ):
        chain.admin.meta_schedule([job_id, job_id], provider.address)


def test_burst__of_200_jobs__each_step_fits_a_block(
    chain: Chain, customer: Account, provider: Account
) -> None:
    job_ids = chain.customers.request_jobs(customer, DEFINITION, 200, 2 * PER_MINUTE)
    assert len(set(job_ids)) == 200
    assert chain.customers.jobs_of(customer.address) == job_ids
    chain.admin.meta_schedule(job_ids, provider.address)
    raw = [bytes.fromhex(job_id[2:]) for job_id in job_ids]
    steps: dict[str, list[tuple[str, str, tuple[object, ...]]]] = {
        "claim": [("MetaScheduler", "claimNextJob", ())] * 200,
        "running": [
            (
                "MetaScheduler",
                "providerSetJobStatus",
                (id_, ChainStatus.RUNNING, 0, "", 0),
            )
            for id_ in raw
        ],
        "finished": [
            (
                "MetaScheduler",
                "providerSetJobStatus",
                (id_, ChainStatus.FINISHED, 1, "", 0),
            )
            for id_ in raw
        ],
    }
    gas = {}
    for step, calls in steps.items():
        receipts = chain.send_many(provider, calls)
        gas[step] = sum(int(receipt["gasUsed"], 16) for receipt in receipts)
    assert max(gas.values()) < BLOCK_GAS, gas
    assert chain.credit_balance(provider.address) == 200 * PER_MINUTE


def test_claims__of_a_burst__come_in_the_order_of_the_queue(
    chain: Chain, customer: Account, provider: Account
) -> None:
    job_ids = chain.customers.request_jobs(customer, DEFINITION, 5, PER_MINUTE)
    chain.admin.meta_schedule(job_ids, provider.address)
    claimed = event("MetaScheduler", "ClaimJobEvent")
    receipts = chain.send_many(provider, [("MetaScheduler", "claimNextJob", ())] * 5)
    logs = [
        log
        for receipt in receipts
        for log in receipt["logs"]
        if log["topics"][0] == claimed.topic
    ]
    assert ["0x" + claimed.decode(log["data"])[2].hex() for log in logs] == job_ids


def test_grant_metascheduler__another_account__may_assign_jobs(
    chain: Chain, customer: Account, provider: Account
) -> None:
    newcomer = chain.new_account()
    job_id = chain.customers.request_job(customer, DEFINITION, PER_MINUTE)
    arguments = (bytes.fromhex(job_id[2:]), provider.address)
    with pytest.raises(ChainError, match="missing the role"):
        chain.send(newcomer, "MetaScheduler", "metaSchedule", *arguments)
    chain.admin.grant_metascheduler(newcomer)
    chain.send(newcomer, "MetaScheduler", "metaSchedule", *arguments)
    assert chain.job(job_id).status is ChainStatus.META_SCHEDULED


def test_mine__three_blocks__adds_them(chain: Chain) -> None:
    before = chain.block_number()
    chain.mine(3)
    assert chain.block_number() == before + 3


def test_chain__with_a_block_time__mines_by_the_clock() -> None:
    with private_processes() as processes:
        chain = start_chain(processes, block_time_s=0.1)
        customer = chain.new_account()
        chain.admin.mint_credits(customer.address, 100 * PER_MINUTE)
        job_ids = chain.customers.request_jobs(customer, DEFINITION, 20, PER_MINUTE)
        assert chain.customers.jobs_of(customer.address) == job_ids
        assert chain.rpc.call("anvil_getAutomine") is False
