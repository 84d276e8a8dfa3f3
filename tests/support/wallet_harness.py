"""A wallet, its ledger and its chain, without the rest of a grid."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, create_engine, text

from devgrid.chain.chain import Chain
from devgrid.chain.model import Account, ChainNode, ChainPrices, JobDefinition
from devgrid.processes import Processes, wait_until
from devgrid.services.start import start_server
from supervisor_tasks.chain.contract import CLAIM, Contract
from supervisor_tasks.chain.rpc.client import Rpc
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.context import ChainServices, WorkerContext
from supervisor_tasks.grid.grpc_channels import Channels
from supervisor_tasks.grid.job_definitions import JobDefinitions
from supervisor_tasks.grid.job_log import GridLogger
from supervisor_tasks.jobs.model import JobId
from supervisor_tasks.ledger.block_reads import Blocks
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.tables import METADATA
from supervisor_tasks.ledger.transactions import Sent
from supervisor_tasks.open_transactions.receipts import follow_once
from supervisor_tasks.wallet.account import WalletAccount
from supervisor_tasks.wallet.fees import Bounds, Fees, Market, replacement
from supervisor_tasks.wallet.sent_transactions import SentTransactions
from supervisor_tasks.wallet.transaction_writer import TransactionWriter, Write

DEFINITION = JobDefinition(
    gpus=0, mem_per_cpu_mb=100, cpus_per_task=1, ntasks=1, batch_location_hash="hash"
)
GWEI = 10**9
GAS = 300_000


@contextmanager
def databases(processes: Processes, *names: str) -> Iterator[list[Engine]]:
    """A Postgres with databases of these names, each with the ledger's tables."""
    folder = processes.folder / "postgres"
    folder.mkdir()
    server = embedded_servers.postgres(folder)
    start_server(processes, "postgres", server)
    admin = create_engine(server.url, isolation_level="AUTOCOMMIT")
    engines = []
    with admin.connect() as connection:
        for name in names:
            connection.execute(text(f"CREATE DATABASE {name}"))
            engines.append(create_engine(admin.url.set(database=name)))
            METADATA.create_all(engines[-1])
    yield engines
    for engine in (admin, *engines):
        engine.dispose()


def registered(chain: Chain) -> Account:
    """A new provider that has been accepted, with one node."""
    account = chain.new_account()
    chain.register_provider(account, [ChainNode(2, 32, 64_000)], ChainPrices())
    return account


LEDGERS = list[Ledger]()  # each keeps a connection once it has leased an effect


def empty(engine: Engine) -> None:
    """Delete all rows of the ledger, and close the connections of the earlier
    ledgers.
    """
    while LEDGERS:
        LEDGERS.pop().holder.close()
    with engine.begin() as connection:
        tables = ", ".join(METADATA.tables)
        connection.execute(text(f"TRUNCATE {tables} RESTART IDENTITY CASCADE"))


@dataclass
class ChainHarness:
    """The chain services of a fleet. Tests call them step by step."""

    site: WorkerContext
    account: WalletAccount
    writer: TransactionWriter
    sent_transactions: SentTransactions
    engine: Engine
    chain: Chain

    @classmethod
    def of(
        cls,
        chain: Chain,
        signer: Account,
        engine: Engine,
        rpc: Rpc | None = None,
        *,
        cluster: str = "here",
        cap_wei: int = 10**12,
        most_wei_per_tx: int = 10**18,
        stuck_after_s: float = 0.2,
        min_wei: int = 0,
    ) -> "ChainHarness":
        """A fleet with the key of that signer and that ledger, whose cluster is `cluster`."""
        address, rpc = chain.addresses.metascheduler, rpc or Rpc.at(chain.rpc_url)
        ledger = Ledger(engine, cluster, lambda _: None)
        LEDGERS.append(ledger)
        bounds = Bounds(cap_wei, most_wei_per_tx)
        account = WalletAccount(
            engine, cluster, rpc, chain.chain_id, signer.private_key, bounds
        )
        writer = TransactionWriter(account, address)
        sent_transactions = SentTransactions(account)
        channels = Channels(False, None, verified=False)
        services = ChainServices(
            contract=Contract(rpc, chain.chain_id, address, account.address),
            account=account,
            transaction_writer=writer,
            sent_transactions=sent_transactions,
            job_definitions=JobDefinitions(
                lambda: channels.open("127.0.0.1:9"), account.sign_message
            ),
            claim_batch=200,
            claim_max_waiting=1000,
            claim_customer_share=0.25,
            wallet_min_wei=min_wei,
            blocks=Blocks(engine, cluster, 0),
            confirmations=0,
            stuck_after_s=stuck_after_s,
        )
        ledger.periodic_runs.record("slurm")
        return cls(
            WorkerContext(
                ledger,
                GridLogger(channels.open),
                services,
                None,
                dispatch=lambda _: None,
            ),
            account,
            writer,
            sent_transactions,
            engine,
            chain,
        )

    def follow(self) -> bool:
        """Run one pass of the tracker. Returns whether a transaction is still open."""
        return follow_once(self.site)

    def age_transactions(self, interval: str = "1 minute") -> None:
        """Make all transactions look as if they were last sent so long ago."""
        with self.engine.begin() as connection:
            connection.execute(
                text("UPDATE transactions SET sent_at = now() - CAST(:i AS interval)"),
                {"i": interval},
            )

    def rows(
        self, columns: str = "nonce, idempotency_key, state"
    ) -> list[tuple[Any, ...]]:
        """The transactions of the ledger, by nonce."""
        with self.engine.connect() as connection:
            result = connection.execute(
                text(f"SELECT {columns} FROM transactions ORDER BY nonce, id")  # noqa: S608  our own words
            )
            return [tuple(row) for row in result]

    def states(self) -> list[str]:
        """The states of the transactions, by nonce."""
        return [state for (state,) in self.rows("state")]

    def signatures(self) -> int:
        """How many signatures were made."""
        with self.engine.connect() as connection:
            return int(connection.scalar(text("SELECT count(*) FROM signatures")) or 0)

    def alarms(self) -> set[str]:
        """The alarms that are on."""
        return {alarm.name for alarm in self.site.ledger.alarms.all()}


def settled(harness: ChainHarness, timeout_s: float = 60.0) -> None:
    """Follow until nothing is open."""
    wait_until(
        lambda: not harness.follow(), "all transactions to be closed", timeout_s, 0.05
    )


def wait_for_receipts(harness: ChainHarness) -> None:
    """Wait until all that the ledger has sent is mined; a node that mines at once does
    it a moment after its answer. The ledger does not read the receipts.
    """

    def all_mined() -> bool:
        asked = [
            ("eth_getTransactionReceipt", (tx_hash,))
            for (tx_hash,) in harness.rows("hash")
        ]
        return None not in harness.chain.rpc.batch(asked)

    wait_until(all_mined, "all that was sent to be mined", 60.0, 0.05)


def dearer(account: WalletAccount, sent: Sent, market: Market) -> Fees:
    """What a replacement pays: the same when the bound allows no higher price."""
    return replacement(sent.fees, market, account.bounds.of(sent.gas)) or sent.fees


def sign_again(account: WalletAccount) -> None:
    """Sign each open transaction again with a higher fee."""
    state = account.fetch_account_state()
    sent_transactions = SentTransactions(account)
    replaced = [
        (entry, dearer(account, entry, state.market))
        for entry in sent_transactions.all()
    ]
    sent_transactions.replace(replaced, state.head)


def claims(number: int, first: int = 0) -> list[Write]:
    """So many claims, each with an idempotency key of its own."""
    return [
        Write(f"claim:{n}", "claim", CLAIM.encode(), gas=GAS)
        for n in range(first, first + number)
    ]


CUSTOMERS: dict[str, Account] = {}  # of `scheduled_jobs`, by job id


def scheduled_jobs(
    chain: Chain,
    provider: Account,
    number: int,
    definition: JobDefinition = DEFINITION,
) -> list[JobId]:
    """Create jobs that wait to be claimed by the provider."""
    customer = chain.new_account()
    chain.admin.mint_credits(customer.address, 10**24)
    job_ids = chain.customers.request_jobs(customer, definition, number, 10**20)
    chain.admin.meta_schedule(job_ids, provider.address)
    CUSTOMERS.update(dict.fromkeys(job_ids, customer))
    return [JobId(job_id) for job_id in job_ids]


@contextmanager
def gas_limit(chain: Chain, gas: int) -> Iterator[None]:
    """Inside this, the gas limit of a block is `gas`. (The deployment of the contracts
    needs more.)
    """
    usual = chain.rpc.call("eth_getBlockByNumber", "latest", False)["gasLimit"]
    chain.rpc.call("evm_setBlockGasLimit", hex(gas))
    chain.mine()
    try:
        yield
    finally:
        chain.rpc.call("evm_setBlockGasLimit", usual)
        chain.mine()


@contextmanager
def held(chain: Chain) -> Iterator[None]:
    """Inside this, transactions wait; they are mined at the end."""
    chain.rpc.call("evm_setAutomine", False)
    try:
        yield
    finally:
        chain.rpc.call("evm_setAutomine", True)
        chain.mine()


def sent(harness: ChainHarness, *writes: Write) -> None:
    """Send these, and follow until none is open."""
    harness.writer.send(writes)
    while harness.follow():
        pass
