"""Runs the contracts' own tests (devgrid/contracts/test/*.t.sol) on a chain: one case a
function test_*.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from eth_utils.crypto import keccak

from devgrid import REPOSITORY
from devgrid.chain.deployment import start_anvil
from devgrid.processes import wait_until
from devgrid.state_folder import private_processes
from supervisor_tasks.chain.abi_codec import decode_revert
from supervisor_tasks.chain.rpc.client import Rpc, RpcError

# compiles all contracts
pytestmark = [pytest.mark.slow, pytest.mark.extended]

CONTRACTS = REPOSITORY / "devgrid/contracts"
CASES = [
    (source.name.removesuffix(".t.sol") + "Test", function)
    for source in sorted((CONTRACTS / "test").glob("*.t.sol"))
    for function in re.findall(r"function (test_\w+)\(", source.read_text())
]


class Runner:
    """Test contracts on a chain, each deployed once; a test is a call whose changes are
    not kept.
    """

    def __init__(self, rpc: Rpc, compiled: Path) -> None:
        self.rpc = rpc
        self._sender = rpc.call("eth_accounts")[0]
        self._deployed = {
            file.stem: self._deploy(file) for file in compiled.glob("*.json")
        }

    def run(self, contract: str, function: str) -> None:
        data = "0x" + keccak(text=f"{function}()")[:4].hex()
        try:
            self.rpc.call(
                "eth_call",
                {"from": self._sender, "to": self._deployed[contract], "data": data},
                "latest",
            )
        except RpcError as error:
            pytest.fail(
                f"{contract}.{function}: {decode_revert(error.data) if error.data else error}"
            )

    def _deploy(self, file: Path) -> str:
        bytecode = json.loads(file.read_text())["bytecode"]
        transaction = {"from": self._sender, "data": bytecode, "gas": hex(29_000_000)}
        hash_ = self.rpc.call("eth_sendTransaction", transaction)
        wait_until(
            lambda: self.rpc.call("eth_getTransactionReceipt", hash_) is not None,
            "the deployment",
            10.0,
        )
        receipt = self.rpc.call("eth_getTransactionReceipt", hash_)
        assert receipt["status"] == "0x1", f"{file.stem} was not deployed: {receipt}"
        address: str = receipt["contractAddress"]
        return address


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    compiled = tmp_path_factory.mktemp("solidity")
    subprocess.run(
        ["node", CONTRACTS / "build.mjs", "--tests", "--into", compiled], check=True
    )
    with private_processes() as processes:
        port = start_anvil(processes, None, "--disable-code-size-limit")
        yield Runner(Rpc.at(f"http://127.0.0.1:{port}"), compiled)


def test_runner__the_sources__have_cases() -> None:
    assert {contract for contract, _ in CASES} == {
        "BillingTest",
        "LifeCycleTest",
        "ProvidersTest",
        "RolesTest",
    }


@pytest.mark.parametrize(("contract", "function"), CASES)
def test_contracts__each_case_written_in_solidity__passes(
    runner: Runner, contract: str, function: str
) -> None:
    runner.run(contract, function)
