"""Collects what an audit compares: the chain, SLURM's own records, the spool, the records
that jobs left, the ledger's tables.

Nothing here uses the code under test. The ledger is read as rows, the chain by its RPC
and the contracts' ABI as devgrid built it, SLURM by `scontrol show job`, `sacct`, its
daemons' logs and the line that devgrid's completion hook leaves for each job.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hexbytes import HexBytes
from sqlalchemy import create_engine, text
from web3 import HTTPProvider, Web3

from devgrid.chain.chain import Chain
from devgrid.chain.deployment import BUILD
from tests.support import slurm_records
from tests.support.slurm_records import SlurmJob
from tests.support.slurmctld_log import UnsavedEnd, unsaved_ends

CALLS_A_REQUEST = 200
START_RECORDS = "start_records"
EXPECTED = "expected.jsonl"
ACKNOWLEDGED = "acknowledged.jsonl"
OF_LEDGER = "of_ledger"
OF_A_NODE = ("NODE_FAIL", "BOOT_FAIL")

Row = dict[str, Any]


@dataclass(frozen=True)
class OnChainJob:
    """A job as the contract keeps it."""

    job_id: str
    status: str
    customer: str
    provider: str
    final_cost_wei: int
    price_wei_per_min: int
    exit_code: int


@dataclass(frozen=True)
class Transition:
    """A change of a job's status, and the address that made it."""

    job_id: str
    before: str
    after: str
    sender: str


@dataclass(frozen=True)
class Claim:
    """A job that the contract gave to the provider."""

    job_id: str
    minutes: int
    tx_hash: str


@dataclass(frozen=True)
class Transaction:
    """A mined transaction of the provider; `call` is None when it did not go to the
    meta-scheduler.
    """

    hash: str
    nonce: int
    call: str | None
    arguments: tuple[Any, ...]
    succeeded: bool


@dataclass(frozen=True)
class Evidence:
    """Everything that an audit compares.

    `purged` counts, by SLURM id, the submissions whose files slurmctld found at its
    start and which it did not remember. `unsaved` are the ends that slurmctld logged
    and did not remember after its restart. The others are SLURM ids: `unlaunched` of
    jobs that a slurmd could not launch and had slurmctld cancel; `kill_requested` of
    jobs that slurmctld was asked to cancel; `lost_ends` of jobs whose end a hook could
    not write, and noted as lost. `hook_finished` are the ends for which our hook was
    called and finished; `hook_unfinished` are the SLURM ids of jobs for whose end it
    was called and did not finish, although slurmctld had not died.
    """

    provider: str
    jobs: dict[str, OnChainJob]
    transitions: list[Transition]
    claims: list[Claim]
    refused: list[str]
    cancel_requested: set[str]
    transactions: list[Transaction]
    waiting_nonces: list[int]
    next_nonce: int
    slurm: dict[int, SlurmJob]
    hook_finished: list[SlurmJob]
    hook_unfinished: list[int]
    spooled: list[str]
    drafts: list[str]
    rejected: list[str]
    start_records: dict[str, set[int]]
    ledger: dict[str, list[Row]]
    expected: dict[str, Row] = field(default_factory=dict)
    acknowledged: list[Row] = field(default_factory=list)
    purged: Counter[int] = field(default_factory=Counter)
    unsaved: list[UnsavedEnd] = field(default_factory=list)
    unlaunched: set[int] = field(default_factory=set)
    kill_requested: set[int] = field(default_factory=set)
    lost_ends: set[int] = field(default_factory=set)

    @cached_property
    def ours(self) -> list[OnChainJob]:
        """The jobs that the provider claimed at any time."""
        claimed = {claim.job_id for claim in self.claims}
        return [job for job in self.jobs.values() if job.job_id in claimed]

    @cached_property
    def ledger_jobs(self) -> dict[str, Row]:
        """The ledger's rows of jobs."""
        return {row["job_id"]: row for row in self.ledger["jobs"]}

    @cached_property
    def forgotten(self) -> set[str]:
        """The jobs that SLURM accepted, as its own log shows, and has no record of:
        slurmctld saves its state every few seconds, and was killed before that. A job
        that SLURM has under any id is not among them, nor one whose end the completion
        hook recorded.
        """
        by_id = defaultdict(list)
        for row in self.ledger["jobs"]:
            in_slurm = self.slurm_jobs(row["job_id"])
            if (
                row["slurm_id"] is not None
                and not in_slurm
                and self.start_records.get(row["job_id"], set()) <= {row["slurm_id"]}
            ):
                by_id[row["slurm_id"]].append(row["job_id"])
        return {
            name
            for number, names in by_id.items()
            if len(names) <= self.purged[number]
            for name in names
        }

    def slurm_jobs(self, job_id: str) -> list[SlurmJob]:
        """All that SLURM ever had for a job of the grid."""
        return [job for job in self.slurm.values() if job.job_id == job_id]

    def unsaved_ends(self, job_id: str) -> list[SlurmJob]:
        """The ends of a job that slurmctld logged, and had not saved when it was
        killed.
        """
        row = self.ledger_jobs.get(job_id)
        lost = {row["slurm_id"]} if row and job_id in self.forgotten else set()
        kept = {job.slurm_id for job in self.slurm_jobs(job_id)}
        return [
            SlurmJob(end.slurm_id, job_id, end.state, end.elapsed_s, end.exit_status)
            for end in self.unsaved
            if end.slurm_id in (lost if end.lost else kept)
        ]

    def ended_by_slurm(self, job_id: str) -> bool:
        """Whether SLURM ended the job by itself: its node was lost, or its node could
        not launch it and had it cancelled, or it was cancelled without a request. (A
        slurmctld that was killed can take a job that has run for one that waits.)
        """
        jobs = self.slurm_jobs(job_id)
        return bool(jobs) and all(
            job.state in OF_A_NODE
            or (
                job.state == "CANCELLED"
                and (
                    job.slurm_id in self.unlaunched
                    or job.slurm_id not in self.kill_requested
                )
            )
            for job in jobs
        )

    def ran(self, job_id: str) -> list[SlurmJob]:
        """The SLURM jobs of a job that were started."""
        marked = self.start_records.get(job_id, set())
        return [
            job
            for job in self.slurm_jobs(job_id)
            if job.elapsed_s > 0 or job.slurm_id in marked
        ]


def gather(folder: Path, *other_ledgers: str) -> Evidence:
    """Collect the evidence of the grid with this state folder. `other_ledgers` are the
    URLs of the databases of other fleets with the same wallet.
    """
    environment = json.loads((folder / "environment.json").read_text())
    chain = _ChainReader(folder)
    completed = list(slurm_records.completed(folder))
    return Evidence(
        provider=chain.provider,
        jobs=chain.jobs(),
        transitions=chain.transitions(),
        claims=chain.claims(),
        refused=chain.refused(),
        cancel_requested=chain.cancel_requested(),
        transactions=chain.transactions(),
        waiting_nonces=chain.waiting_nonces(),
        next_nonce=chain.next_nonce(),
        slurm=slurm_records.records(
            folder, completed, accounting=environment.get("SLURM_ACCOUNTING") == "true"
        ),
        hook_finished=list(slurm_records.completed(folder, "reported_ends")),
        hook_unfinished=slurm_records.hook_unfinished(folder),
        spooled=_files(folder / "spool"),
        drafts=_files(folder / "spool", r"\.\d+-\d+-(start|end)\.\d+"),
        rejected=_files(folder / "spool" / "rejected"),
        start_records=_start_records(folder / START_RECORDS),
        ledger=_ledgers([environment["DATABASE_URL"], *other_ledgers]),
        expected={row["job_id"]: row for row in _lines(folder / EXPECTED)},
        acknowledged=list(_lines(folder / ACKNOWLEDGED)),
        purged=slurm_records.purged(folder),
        unsaved=unsaved_ends(slurm_records.slurmctld_log(folder).splitlines()),
        unlaunched=slurm_records.unlaunched(folder),
        kill_requested=slurm_records.kill_requested(folder),
        lost_ends=_lost_ends(folder),
    )


def batched(entries: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Split into batches that a node answers in one request."""
    for first in range(0, len(entries), CALLS_A_REQUEST):
        yield entries[first : first + CALLS_A_REQUEST]


class _ChainReader:
    """Reads the chain, through its RPC alone."""

    def __init__(self, folder: Path) -> None:
        chain = Chain.load(folder)
        self._addresses = chain.addresses
        self.provider = chain.account("provider").address.lower()
        self._web3 = Web3(HTTPProvider(chain.rpc_url))
        self._metascheduler = self._contract(
            "MetaScheduler", chain.addresses.metascheduler
        )
        self._jobs = self._contract("JobRepository", chain.addresses.jobs)
        self._status = ["PENDING", "META_SCHEDULED", "SCHEDULED", "RUNNING"]
        self._status += [
            "CANCELLED",
            "FINISHED",
            "FAILED",
            "OUT_OF_CREDITS",
            "PANICKED",
        ]
        self._prices_read: dict[str, tuple[int, int, int]] = {}  # by provider
        self._mined = list(self._blocks())
        self._senders = {
            raw["hash"].lower(): raw["from"].lower() for raw in self._mined
        }

    def jobs(self) -> dict[str, OnChainJob]:
        job_ids = [
            entry["args"]["_jobId"] for entry in self._events(self._jobs, "JobCreated")
        ]
        jobs: list[Any] = []
        for part in batched(job_ids):
            with self._web3.batch_requests() as batch:
                for job_id in part:
                    batch.add(self._jobs.functions.get(job_id))
                jobs += batch.execute()
        return {"0x" + job[0].hex(): self._on_chain(job) for job in jobs}

    def transitions(self) -> list[Transition]:
        return [
            Transition(
                "0x" + entry["args"]["_jobId"].hex(),
                self._status[entry["args"]["_from"]],
                self._status[entry["args"]["_to"]],
                self._senders.get(entry["transactionHash"].to_0x_hex(), ""),
            )
            for entry in self._events(self._jobs, "JobTransitionEvent")
        ]

    def claims(self) -> list[Claim]:
        return [
            Claim(
                "0x" + args["jobId"].hex(),
                args["maxDurationMinute"],
                entry["transactionHash"].to_0x_hex(),
            )
            for entry in self._events(self._metascheduler, "ClaimJobEvent")
            for args in [entry["args"]]
            if args["providerAddr"].lower() == self.provider
        ]

    def refused(self) -> list[str]:
        return [
            "0x" + entry["args"]["_jobId"].hex()
            for entry in self._events(self._metascheduler, "JobRefusedEvent")
            if entry["args"]["_providerAddr"].lower() == self.provider
        ]

    def cancel_requested(self) -> set[str]:
        return {
            "0x" + entry["args"]["jobId"].hex()
            for entry in self._events(
                self._metascheduler, "ClaimNextCancellingJobEvent"
            )
        }

    def transactions(self) -> list[Transaction]:
        own = [raw for raw in self._mined if raw["from"].lower() == self.provider]
        receipts = self._answers(
            [("eth_getTransactionReceipt", [raw["hash"]]) for raw in own]
        )
        return [
            self._transaction(raw, receipt)
            for raw, receipt in zip(own, receipts, strict=True)
        ]

    def waiting_nonces(self) -> list[int]:
        pool = self._rpc("txpool_content")
        waiting = [
            int(nonce)
            for part in ("pending", "queued")
            for sender, by_nonce in pool[part].items()
            if sender.lower() == self.provider
            for nonce in by_nonce
        ]
        return sorted(waiting)

    def next_nonce(self) -> int:
        return int(
            self._web3.eth.get_transaction_count(
                Web3.to_checksum_address(self.provider)
            )
        )

    def _contract(self, name: str, address: str) -> Any:
        abi = json.loads((BUILD / f"{name}.json").read_text())["abi"]
        return self._web3.eth.contract(
            address=Web3.to_checksum_address(address), abi=abi
        )

    def _rpc(self, method: str, *params: Any) -> Any:
        answer = self._web3.provider.make_request(method, list(params))  # type: ignore[arg-type]
        if "result" not in answer:
            raise RuntimeError(f"{method}: {answer.get('error')}")
        return answer["result"]

    def _events(self, contract: Any, name: str) -> list[Any]:
        found = contract.events[name]().get_logs(from_block=0)
        return sorted(
            found, key=lambda entry: (entry["blockNumber"], entry["logIndex"])
        )

    def _on_chain(self, job: Any) -> OnChainJob:
        job_id, status, customer, provider, definition, cost, *_, exit_code = job
        gpus, mem_per_cpu_mb, cpus_per_task, ntasks, *_ = definition
        cpus = cpus_per_task * ntasks
        price = 0
        if int(provider, 16):
            gpu_price, cpu_price, mem_price = self._prices(provider)
            price = (
                gpus * gpu_price + cpus * cpu_price + cpus * mem_per_cpu_mb * mem_price
            )
        return OnChainJob(
            "0x" + job_id.hex(),
            self._status[status],
            customer.lower(),
            provider.lower(),
            cost[1],
            price,
            exit_code,
        )

    def _prices(self, provider: str) -> tuple[int, int, int]:
        if provider not in self._prices_read:
            manager = self._contract(
                "ProviderManager", self._addresses.provider_manager
            )
            self._prices_read[provider] = tuple(
                manager.functions.getProviderPrices(provider).call()
            )
        return self._prices_read[provider]

    def _blocks(self) -> Iterator[Any]:
        """All transactions, oldest first."""
        head = int(self._rpc("eth_blockNumber"), 16)
        for block in self._answers(
            [
                ("eth_getBlockByNumber", [hex(number), True])
                for number in range(head + 1)
            ]
        ):
            yield from block["transactions"]

    def _answers(self, calls: Sequence[tuple[str, list[Any]]]) -> Iterator[Any]:
        provider: Any = self._web3.provider
        for part in batched(calls):
            for answer in provider.make_batch_request(part):
                yield answer["result"]

    def _transaction(self, raw: Any, receipt: Any) -> Transaction:
        call, arguments = None, ()
        if (raw["to"] or "").lower() == self._metascheduler.address.lower():
            function, named = self._metascheduler.decode_function_input(
                HexBytes(raw["input"])
            )
            call, arguments = function.fn_name, tuple(named.values())
        return Transaction(
            raw["hash"].lower(),
            int(raw["nonce"], 16),
            call,
            arguments,
            int(receipt["status"], 16) == 1,
        )


# --- files and rows -------------------------------------------------------------------


def _files(spool: Path, pattern: str = r"\d+-\d+-(start|end)") -> list[str]:
    if not spool.exists():
        return []
    return sorted(
        file.name for file in spool.iterdir() if re.fullmatch(pattern, file.name)
    )


def _lost_ends(folder: Path) -> set[int]:
    """The SLURM ids in the spool's file `lost.log`, and in the lines of it that the
    reporter logged before it emptied the file.
    """
    files = [folder / "spool" / "lost.log", folder / "log" / "reporter.log"]
    lines = "".join(file.read_text(errors="replace") for file in files if file.exists())
    return {
        int(number)
        for number in re.findall(
            r'(?m)(?:^|"line": ?")\d+ end 0x[0-9a-f]{64} (\d+) ', lines
        )
    }


def _start_records(folder: Path) -> dict[str, set[int]]:
    """The SLURM ids under which each job ran: a job's record is a line `started <job id>
    <slurm id>`.
    """
    start_records: dict[str, set[int]] = {}
    for file in folder.iterdir() if folder.exists() else []:
        for line in file.read_text(errors="replace").splitlines():
            words = line.split()
            if len(words) == 3 and words[0] == "started":
                start_records.setdefault(words[1], set()).add(int(words[2]))
    return start_records


def _lines(file: Path) -> Iterator[Row]:
    if file.exists():
        yield from map(json.loads, file.read_text().splitlines())


def _ledgers(database_urls: Sequence[str]) -> dict[str, list[Row]]:
    """Every table, with the rows of all ledgers. OF_LEDGER is the number of a row's
    ledger (0, 1, ...).
    """
    tables: dict[str, list[Row]] = {}
    for number, url in enumerate(database_urls):
        for table, rows in _ledger(url).items():
            tables.setdefault(table, []).extend(
                {**row, OF_LEDGER: number} for row in rows
            )
    return tables


def _ledger(database_url: str) -> dict[str, list[Row]]:
    """Every table of one ledger."""
    engine = create_engine(
        database_url.replace("postgresql://", "postgresql+psycopg://", 1)
    )
    names = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version'"
    try:
        with engine.connect() as connection:
            tables = list(connection.scalars(text(names)))
            found = dict[str, list[Row]]()
            for table in tables:
                query = text(f'SELECT * FROM "{table}"')  # noqa: S608
                found[table] = list(map(dict, connection.execute(query).mappings()))
            return found
    finally:
        engine.dispose()
