"""The compiled contracts against the grid's wire format, whose signatures stand here as
they were written by hand.
"""

import json
from functools import cache
from importlib import resources
from typing import Any

import pytest
from eth_abi.abi import encode
from eth_utils.abi import abi_to_signature
from eth_utils.crypto import keccak

from supervisor_tasks.chain.abi_codec import KEPT_LOG_CHARACTERS, event

LABEL = "(string,string)"
AFFINITY = f"({LABEL},bytes2)"
DEFINITION = f"(uint64,uint64,uint64,uint64,string,uint8,{LABEL}[],{AFFINITY}[])"
COST = "(uint256,uint256,uint256,bool)"
TIME = "(uint256,uint256,uint256,uint256,uint256,uint256)"
JOB = f"(bytes32,uint8,address,address,{DEFINITION},{COST},{TIME},bytes32,bool,string,int64)"
HARDWARE = "(uint64,uint64[],uint64[],uint64[])"
PRICES = "(uint256,uint256,uint256)"
PROVIDER = f"(address,{HARDWARE},{PRICES},{LABEL}[],bool)"

# contract -> signature -> (what it returns, whether it is a view)
FUNCTIONS: dict[str, dict[str, tuple[str, bool]]] = {
    "MetaScheduler": {
        "jobs()": ("address", True),
        "providerJobQueues()": ("address", True),
        "providerManager()": ("address", True),
        "credit()": ("address", True),
        "constants()": ("address", True),
        "claimNextJob()": ("", False),
        "claimNextCancellingJob()": ("", False),
        "claimNextTopUpJob()": ("", False),
        "refuseJob(bytes32)": ("", False),
        "providerSetJobStatus(bytes32,uint8,uint64,string,int64)": ("", False),
        f"requestNewJob({DEFINITION},uint256,bytes32,bool)": ("bytes32", False),
        "cancelJob(bytes32)": ("", False),
        "topUpJob(bytes32,uint256)": ("", False),
        "topUpJobDelegate(bytes32)": ("", False),
        "panicJob(bytes32,string)": ("", False),
        "timeoutJob(bytes32)": ("", False),
        "metaSchedule(bytes32,address)": ("", False),
        "setEnableRequestNewJob(bool)": ("", False),
        "withdrawAdmin(uint256)": ("", False),
        "setDelegateSpendingAuthority(bytes32,bool)": ("", False),
        "enableRequestNewJob()": ("bool", True),
        "METASCHEDULER_ROLE()": ("bytes32", True),
        "hasRole(bytes32,address)": ("bool", True),
        "grantRole(bytes32,address)": ("", False),
        "revokeRole(bytes32,address)": ("", False),
        "renounceRole(bytes32,address)": ("", False),
        "getRoleAdmin(bytes32)": ("bytes32", True),
        "supportsInterface(bytes4)": ("bool", True),
    },
    "JobRepository": {
        "get(bytes32)": (JOB, True),
        "getByCustomer(address)": ("bytes32[]", True),
    },
    "ProviderJobQueues": {
        "hasNextClaimableJob(address)": ("bool", True),
        "hasCancellingJob(address)": ("bool", True),
        "hasTopUpJob(address)": ("bool", True),
        "getClaimableJobQueueSize(address)": ("uint256", False),
        "getCancellingJobQueueSize(address)": ("uint256", False),
        "getTopUpJobQueueSize(address)": ("uint256", False),
    },
    "ProviderManager": {
        f"register({HARDWARE},{PRICES},{LABEL}[])": ("", False),
        "approve(address)": ("", False),
        "remove(address)": ("", False),
        "ban(address)": ("", False),
        "unban(address)": ("", False),
        "getProvider(address)": (PROVIDER, True),
        "getWaitingForApprovalProvider(address)": (PROVIDER, True),
        "isWaitingForApproval(address)": ("bool", True),
        "isValidForScheduling(address)": ("bool", True),
        "isBanned(address)": ("bool", True),
        "getJobCount(address)": ("uint64", True),
        "getLabels(address)": (f"{LABEL}[]", True),
        "getProviderHardware(address)": (HARDWARE, True),
        "getProviderPrices(address)": (PRICES, True),
    },
    "Credit": {
        "decimals()": ("uint8", True),
        "totalSupply()": ("uint256", True),
        "balanceOf(address)": ("uint256", True),
        "allowance(address,address)": ("uint256", True),
        "approve(address,uint256)": ("bool", False),
        "transfer(address,uint256)": ("bool", False),
        "transferFrom(address,address,uint256)": ("bool", False),
        "mint(address,uint256)": ("", False),
    },
    "Constants": {
        "minimumAmount()": ("uint256", True),
        "deepsquareCut()": ("uint256", True),
        "cancellationFeeMinute()": ("uint256", True),
        "billDurationDeltaMinute()": ("uint256", True),
        "claimJobTimeout()": ("uint64", True),
        "topUpSliceDurationMin()": ("uint64", True),
        "setMinimumAmount(uint256)": ("", False),
        "setDeepsquareCut(uint256)": ("", False),
        "setCancellationFeeMinute(uint256)": ("", False),
        "setBillDurationDeltaMinute(uint256)": ("", False),
        "setClaimJobTimeout(uint64)": ("", False),
        "setTopUpSliceDurationMin(uint64)": ("", False),
    },
}

EVENTS = {
    "MetaScheduler": [
        "NewJobRequestEvent(bytes32,address)",
        f"ClaimJobEvent(address,address,bytes32,uint64,{DEFINITION})",
        "ClaimNextCancellingJobEvent(address,address,bytes32)",
        "ClaimNextTopUpJobEvent(bytes32,address,uint64)",
        "JobRefusedEvent(bytes32,address,address)",
        "BilledTooMuchEvent(bytes32,address,uint256)",
    ],
    "JobRepository": ["JobTransitionEvent(bytes32,uint8,uint8)", "JobCreated(bytes32)"],
    "ProviderJobQueues": [],
    "ProviderManager": [
        "ProviderWaitingForApproval(address)",
        "ProviderApproved(address)",
        "ProviderRemoved(address)",
        "ProviderBanChanged(address,bool)",
    ],
}

# of OpenZeppelin's AccessControl, which each contract is
ROLE_EVENTS = [
    "RoleAdminChanged(bytes32,bytes32,bytes32)",
    "RoleGranted(bytes32,address,address)",
    "RoleRevoked(bytes32,address,address)",
]

ERRORS = [
    "CustomerMetaSchedulerProviderOnly()",
    "CustomerOnly(address,address)",
    "InsufficientFunds(uint256,uint256)",
    "InvalidJobDefinition()",
    "JobHotStatusOnly(uint8)",
    "JobProviderOnly(address,address)",
    "MetaScheduledScheduledStatusOnly(uint8)",
    "NewJobRequestDisabled()",
    "NoSpendingAuthority()",
    "ProviderNotJoined()",
    "RemainingTimeAboveLimit(uint256,uint256)",
    "RunningColdStatusOnly(uint8)",
    "RunningScheduledStatusOnly(uint8)",
    "InvalidTransition(uint8,uint8)",
    "SameStatusError()",
    "Empty()",
    "OutOfBounds()",
    "InvalidJob()",
    "NoJob()",
    "InvalidNodesCount()",
    "ArrayLengthMismatch()",
    "InvalidTotalMem()",
    "InvalidTotalCpus()",
    "NoProvider()",
    "WaitingApprovalOnly()",
    "Banned()",
    "AlreadyDone()",
]

HASHES = {
    ("MetaScheduler", "claimNextJob"): "5d3a7180",
    ("MetaScheduler", "claimNextCancellingJob"): "5e1b2d65",
    ("MetaScheduler", "claimNextTopUpJob"): "ebd4bf00",
    ("MetaScheduler", "refuseJob"): "1f92a63f",
    ("MetaScheduler", "providerSetJobStatus"): "e1c0fdd4",
    ("MetaScheduler", "requestNewJob"): "d9943788",
    ("MetaScheduler", "enableRequestNewJob"): "4c6dad12",
    ("MetaScheduler", "ClaimJobEvent"): "c8d7c7c2",
    ("MetaScheduler", "ClaimNextCancellingJobEvent"): "290fa751",
    ("MetaScheduler", "ClaimNextTopUpJobEvent"): "a42f2b4a",
    ("MetaScheduler", "InvalidTransition"): "2fef82f8",
    ("MetaScheduler", "JobHotStatusOnly"): "8c6824c2",
    ("JobRepository", "get"): "8eaa6ac0",
    ("ProviderJobQueues", "hasNextClaimableJob"): "6502e50b",
    ("ProviderJobQueues", "getClaimableJobQueueSize"): "79490261",
    ("ProviderManager", "register"): "94f9b055",
    ("ProviderManager", "getProvider"): "55f21eb7",
}


@cache
def abi(contract: str) -> list[dict[str, Any]]:
    text = (
        resources.files("supervisor_tasks.chain") / "abi" / f"{contract}.json"
    ).read_text()
    entries: list[dict[str, Any]] = json.loads(text)
    return entries


def signatures(contract: str, kind: str) -> dict[str, dict[str, Any]]:
    return {
        abi_to_signature(entry): entry  # type: ignore[arg-type]
        for entry in abi(contract)
        if entry["type"] == kind
    }


def type_of(parameter: dict[str, Any]) -> str:
    if not parameter["type"].startswith("tuple"):
        return str(parameter["type"])
    inside = ",".join(type_of(component) for component in parameter["components"])
    return f"({inside}){parameter['type'].removeprefix('tuple')}"


@pytest.mark.parametrize(
    ("contract", "signature"),
    [(contract, name) for contract, names in FUNCTIONS.items() for name in names],
)
def test_function__of_the_grid__is_compiled_with_its_types(
    contract: str, signature: str
) -> None:
    returns, is_view = FUNCTIONS[contract][signature]
    entry = signatures(contract, "function")[signature]
    assert ",".join(type_of(output) for output in entry["outputs"]) == returns
    assert (entry["stateMutability"] in ("view", "pure")) is is_view


@pytest.mark.parametrize("contract", EVENTS)
def test_events__of_the_grid__are_all_there_and_those_of_roles_alone_are_indexed(
    contract: str,
) -> None:
    found = signatures(contract, "event")
    assert set(found) == {*EVENTS[contract], *ROLE_EVENTS}
    indexed = {}
    for name, entry in found.items():
        indexed[name] = [argument["indexed"] for argument in entry["inputs"]]
    assert all(all(indexed[name]) for name in ROLE_EVENTS)
    assert not any(any(indexed[name]) for name in EVENTS[contract])


def test_errors__of_the_grid__are_all_in_the_entry_point() -> None:
    assert set(signatures("MetaScheduler", "error")) == set(ERRORS)


@pytest.mark.parametrize(("contract", "name"), HASHES)
def test_hash__of_a_name__is_the_one_in_the_field(contract: str, name: str) -> None:
    (signature,) = {
        abi_to_signature(entry)  # type: ignore[arg-type]
        for entry in abi(contract)
        if entry.get("name") == name
    }
    assert keccak(text=signature).hex()[:8] == HASHES[contract, name]


def components(contract: str, function: str, kind: str) -> dict[str, list[str]]:
    """The names of a struct and of the structs in it, in their order."""
    (entry,) = [entry for entry in abi(contract) if entry.get("name") == function]
    found: dict[str, list[str]] = {}

    def walk(parameter: dict[str, Any]) -> None:
        if "components" in parameter:
            name = parameter["internalType"].removeprefix("struct ").removesuffix("[]")
            found[name] = [component["name"] for component in parameter["components"]]
            for component in parameter["components"]:
                walk(component)

    walk(entry[kind][0])
    return found


def test_job__fields__have_the_order_of_the_grid() -> None:
    assert components("JobRepository", "get", "outputs") == {
        "Job": [
            *(
                "jobId",
                "status",
                "customerAddr",
                "providerAddr",
                "definition",
                "cost",
                "time",
            ),
            *("jobName", "hasCancelRequest", "lastError", "exitCode"),
        ],
        "JobDefinition": [
            *(
                "gpus",
                "memPerCpu",
                "cpusPerTask",
                "ntasks",
                "batchLocationHash",
                "storageType",
            ),
            *("uses", "affinity"),
        ],
        "Label": ["key", "value"],
        "Affinity": ["label", "op"],
        "JobCost": [
            "maxCost",
            "finalCost",
            "pendingTopUp",
            "delegateSpendingAuthority",
        ],
        "JobTime": [
            "submit",
            "start",
            "end",
            "cancelRequestTimestamp",
            "blockNumberStateChange",
            "panicTimestamp",
        ],
    }


def test_provider__fields__have_the_order_of_the_grid() -> None:
    assert components("ProviderManager", "getProvider", "outputs") == {
        "Provider": [
            "addr",
            "providerHardware",
            "providerPrices",
            "labels",
            "isBanned",
        ],
        "ProviderHardware": ["nodes", "gpusPerNode", "cpusPerNode", "memPerNode"],
        "ProviderPrices": ["gpuPricePerMin", "cpuPricePerMin", "memPricePerMin"],
        "Label": ["key", "value"],
    }


@pytest.mark.parametrize(
    ("characters", "kept"), [(10, True), (KEPT_LOG_CHARACTERS, False)]
)
def test_decode__same_log_again__is_decoded_once_unless_it_is_long(
    characters: int, *, kept: bool
) -> None:
    claimed = event("MetaScheduler", "ClaimJobEvent")
    text = "x" * characters
    definition = (0, 100, 1, 1, text, 0, (), ())
    data = _encoded(claimed.types, definition)
    first, second = claimed.decode(data), claimed.decode(data)
    assert first == second
    assert text in str(first)
    assert (first is second) is kept


def _encoded(types: tuple[str, ...], definition: tuple[Any, ...]) -> str:
    """The data of a log whose definition is this, and whose other arguments are
    zeros.
    """
    zeros = {
        "bytes32": bytes(32),
        "address": "0x" + "00" * 20,
        "uint64": 0,
        "uint256": 0,
        "bool": False,
    }
    return "0x" + encode(types, [zeros.get(kind, definition) for kind in types]).hex()
