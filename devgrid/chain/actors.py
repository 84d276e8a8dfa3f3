"""The calls that customers, providers and the grid's administrators make on the chain.

Each call waits until it is mined, and raises ChainError with the contract's reason if
it reverts. Amounts are in wei.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from devgrid.chain.client import ChainClient
from devgrid.chain.model import (
    Account,
    ChainError,
    ChainNode,
    ChainPrices,
    JobDefinition,
    Provider,
    job_id_bytes,
)
from supervisor_tasks.chain.abi_codec import event

UNLIMITED = 2**256 - 1


@dataclass(frozen=True, slots=True)
class Customers:
    """Customers request, extend and cancel jobs."""

    client: ChainClient

    def request_job(
        self,
        customer: Account,
        definition: JobDefinition,
        locked_wei: int,
        name: str = "",
        delegate: bool = False,
    ) -> str:
        """Request a job and lock credits for it. Returns the job's id. `name` has 32
        bytes at most in UTF-8.
        """
        return self._request(customer, definition, 1, locked_wei, name, delegate)[0]

    def request_jobs(
        self, customer: Account, definition: JobDefinition, n: int, locked_wei: int
    ) -> list[str]:
        """Request n equal jobs at once, each with its own locked credits. Returns their
        ids.
        """
        return self._request(customer, definition, n, locked_wei, "", False)

    def cancel_job(self, customer: Account, job_id: str) -> None:
        """Cancel a job."""
        self.client.send(customer, "MetaScheduler", "cancelJob", job_id_bytes(job_id))

    def top_up_job(self, customer: Account, job_id: str, wei: int) -> None:
        """Lock more credits for a job."""
        self.approve(customer, wei)
        self.client.send(
            customer, "MetaScheduler", "topUpJob", job_id_bytes(job_id), wei
        )

    def jobs_of(self, customer: str) -> list[str]:
        """The ids of a customer's jobs, oldest first."""
        return [
            "0x" + job_id.hex()
            for job_id in self.client.call("JobRepository", "getByCustomer", customer)[
                0
            ]
        ]

    def _request(
        self,
        customer: Account,
        definition: JobDefinition,
        n: int,
        locked_wei: int,
        name: str,
        delegate: bool,
    ) -> list[str]:
        self.approve(customer, n * locked_wei)
        arguments = (
            definition.to_abi(),
            locked_wei,
            name.encode().ljust(32, b"\0"),
            delegate,
        )
        receipts = self.client.send_many(
            customer, [("MetaScheduler", "requestNewJob", arguments)] * n
        )
        requested = event("MetaScheduler", "NewJobRequestEvent")
        logs = [
            log
            for receipt in receipts
            for log in receipt["logs"]
            if log["topics"][0] == requested.topic
        ]
        return ["0x" + requested.decode(log["data"])[0].hex() for log in logs]

    def approve(self, customer: Account, wei: int) -> None:
        """Let the contract take that many credits of the customer. Many calls need one
        approval.
        """
        if (
            self.client.call(
                "Credit",
                "allowance",
                customer.address,
                self.client.addresses.metascheduler,
            )[0]
            < wei
        ):
            self.client.send(
                customer,
                "Credit",
                "approve",
                self.client.addresses.metascheduler,
                UNLIMITED,
            )


@dataclass(frozen=True, slots=True)
class Providers:
    """Providers register; anyone may read what they have registered."""

    client: ChainClient

    def register(
        self,
        account: Account,
        nodes: Sequence[ChainNode],
        prices: ChainPrices,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Register a provider, who then waits for approval."""
        hardware = (
            len(nodes),
            [n.gpus for n in nodes],
            [n.cpus for n in nodes],
            [n.memory_mb for n in nodes],
        )
        price = (prices.gpu_wei_per_min, prices.cpu_wei_per_min, prices.mem_wei_per_min)
        self.client.send(
            account,
            "ProviderManager",
            "register",
            hardware,
            price,
            sorted((labels or {}).items()),
        )

    def waits_for_approval(self, address: str) -> bool:
        """Whether a registration of the provider waits for approval."""
        waits: bool = self.client.call(
            "ProviderManager", "isWaitingForApproval", address
        )[0]
        return waits

    def get(self, address: str) -> Provider:
        """An approved provider. Raises ChainError when there is none."""
        return self._read("getProvider", address)

    def waiting(self, address: str) -> Provider:
        """The registration of a provider that waits for approval. Raises ChainError
        when there is none.
        """
        return self._read("getWaitingForApprovalProvider", address)

    def _read(self, view: str, address: str) -> Provider:
        owner, (_, gpus, cpus, memory), prices, labels, banned = self.client.call(
            "ProviderManager", view, address
        )[0]
        if not int(owner, 16):
            raise ChainError(f"ProviderManager.{view}: {address} is unknown")
        nodes = tuple(ChainNode(*node) for node in zip(gpus, cpus, memory, strict=True))
        return Provider(
            owner.lower(), nodes, ChainPrices(*prices), tuple(labels), banned
        )


@dataclass(frozen=True, slots=True)
class Administrators:
    """The accounts "admin" and "metascheduler", which the grid itself holds. `account`
    finds one by its role.
    """

    client: ChainClient
    account: Callable[[str], Account]

    def grant_metascheduler(self, account: Account) -> None:
        """Let an account assign jobs to providers."""
        role = self.client.call("MetaScheduler", "METASCHEDULER_ROLE")[0]
        self.client.send(
            self.account("admin"), "MetaScheduler", "grantRole", role, account.address
        )

    def mint_credits(self, address: str, wei: int) -> None:
        """Give credits to an address."""
        self.client.send(self.account("admin"), "Credit", "mint", address, wei)

    def approve_provider(self, address: str) -> None:
        """Approve a provider that has registered."""
        self.client.send(self.account("admin"), "ProviderManager", "approve", address)

    def remove_provider(self, address: str) -> None:
        """Reject a registration, or remove an approved provider."""
        self.client.send(self.account("admin"), "ProviderManager", "remove", address)

    def ban_provider(self, address: str, banned: bool = True) -> None:
        """Ban a provider, or lift the ban."""
        self.client.send(
            self.account("admin"),
            "ProviderManager",
            "ban" if banned else "unban",
            address,
        )

    def meta_schedule(self, job_ids: Sequence[str], provider: str) -> None:
        """Assign jobs to a provider, as the account "metascheduler"."""
        calls = [
            ("MetaScheduler", "metaSchedule", (job_id_bytes(job_id), provider))
            for job_id in job_ids
        ]
        self.client.send_many(self.account("metascheduler"), calls)
