"""The grid's meta-scheduler: assigns pending jobs to providers that can run them.

`python -m devgrid.services.metascheduler --folder STATE`, with the account that holds
METASCHEDULER_ROLE in the chain.json of that state folder. A provider that refused a job
does not get it again.
"""

import argparse
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from devgrid.chain.chain import Chain
from devgrid.chain.model import ChainError, ChainJob, JobDefinition, Provider
from supervisor_tasks.chain.abi_codec import event
from supervisor_tasks.errors import TransientError
from supervisor_tasks.jobs.model import ChainStatus

POLL_S = 0.2  # while jobs wait
IDLE_POLL_S = 30.0
PATIENCE_S = 10.0
REQUESTED = event("MetaScheduler", "NewJobRequestEvent")
REFUSED = event("MetaScheduler", "JobRefusedEvent")
APPROVED = event("ProviderManager", "ProviderApproved")
REMOVED = event("ProviderManager", "ProviderRemoved")
BANNED = event("ProviderManager", "ProviderBanChanged")
TOPICS = [kind.topic for kind in (REQUESTED, REFUSED, APPROVED, REMOVED, BANNED)]
SUBSCRIBE = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "eth_subscribe",
        "params": ["logs", {"topics": [TOPICS]}],
    }
)


def choose(
    job: ChainJob, providers: Sequence[Provider], refused_by: frozenset[str]
) -> str | None:
    """The cheapest provider that can run a job, or None. Pure."""
    fitting = [
        provider
        for provider in providers
        if provider.address not in refused_by
        and not provider.banned
        and fits(job.definition, job.max_cost_wei, provider)
    ]
    return (
        min(fitting, key=lambda provider: provider.prices.of(job.definition)).address
        if fitting
        else None
    )


def fits(definition: JobDefinition, locked_wei: int, provider: Provider) -> bool:
    """Whether a provider has the hardware and the labels, and the locked credits pay
    for a minute.
    """
    hardware = (
        sum(node.cpus for node in provider.nodes) >= definition.cpus
        and sum(node.gpus for node in provider.nodes) >= definition.gpus
        and sum(node.memory_mb for node in provider.nodes) >= definition.memory_mb
        and any(
            node.cpus >= definition.cpus_per_task
            and node.memory_mb >= definition.cpus_per_task * definition.mem_per_cpu_mb
            for node in provider.nodes
        )
    )
    labels = dict(provider.labels)
    used = all(labels.get(key) == value for key, value in definition.uses)
    matched = all(
        holds(labels.get(key), operator, value)
        for key, operator, value in definition.affinity
    )
    return (
        hardware and used and matched and locked_wei >= provider.prices.of(definition)
    )


def holds(found: str | None, operator: str, wanted: str) -> bool:
    """Whether a label's value satisfies an affinity. The two are compared as numbers if
    both are numbers, else as text.
    """
    if found is None:
        return False
    if operator == "in":
        return found in [choice.strip() for choice in wanted.split(",")]
    left, right = _comparable(found, wanted)
    return {
        "<": left < right,
        "<=": left <= right,
        "=": left == right,
        "==": left == right,
        ">": left > right,
        ">=": left >= right,
    }.get(operator, False)


def _comparable(found: str, wanted: str) -> tuple[tuple[float, str], tuple[float, str]]:
    try:
        return (float(found), ""), (float(wanted), "")
    except ValueError:
        return (0.0, found), (0.0, wanted)


@dataclass(slots=True)
class MetaScheduler:
    """Watches the chain and assigns jobs."""

    chain: Chain
    _next_block: int = 0
    _waiting: dict[str, None] = field(default_factory=dict)
    _refused_by: dict[str, frozenset[str]] = field(default_factory=dict)
    _providers: dict[str, Provider | None] = field(default_factory=dict)

    @property
    def has_waiting_jobs(self) -> bool:
        """Whether there are jobs that no provider has got yet."""
        return bool(self._waiting)

    def poll(self) -> None:
        """Read the events since the last poll, and assign the jobs that can be
        assigned.
        """
        head = self.chain.block_number()
        if head < self._next_block:
            return
        self._read(self._next_block, head)
        self._next_block = head + 1
        self._assign()

    def _read(self, first: int, last: int) -> None:
        query = {"fromBlock": hex(first), "toBlock": hex(last), "topics": [TOPICS]}
        for log in self.chain.rpc.call("eth_getLogs", query):
            topic = log["topics"][0]
            if topic == REQUESTED.topic:
                self._waiting["0x" + REQUESTED.decode(log["data"])[0].hex()] = None
            elif topic == REFUSED.topic:
                job_id, provider, _ = REFUSED.decode(log["data"])
                key = "0x" + job_id.hex()
                self._waiting[key] = None
                self._refused_by[key] = self._refused_by.get(key, frozenset()) | {
                    provider.lower()
                }
            else:
                self._providers[APPROVED.decode(log["data"][:66])[0].lower()] = None

    def _assign(self) -> None:
        providers = self._known_providers() if self._waiting else []
        chosen: dict[str, list[str]] = {}
        waiting = list(self._waiting)
        for job_id, job in zip(waiting, self.chain.jobs(waiting), strict=True):
            if job.status is not ChainStatus.PENDING:
                del self._waiting[job_id]
                continue
            provider = choose(job, providers, self._refused_by.get(job_id, frozenset()))
            if provider is not None:
                chosen.setdefault(provider, []).append(job_id)
                del self._waiting[job_id]
        for provider, job_ids in chosen.items():
            self.chain.admin.meta_schedule(job_ids, provider)

    def _known_providers(self) -> list[Provider]:
        """The providers. One is read again only after an event about it."""
        for address, provider in list(self._providers.items()):
            if provider is None:
                try:
                    self._providers[address] = self.chain.providers.get(address)
                except ChainError:
                    del self._providers[address]  # removed
        return [
            provider for provider in self._providers.values() if provider is not None
        ]


def follow(scheduler: MetaScheduler, url: str) -> NoReturn:
    """Poll after each event that the scheduler reads, until the node's WebSocket ends.
    So it does nothing while nothing happens: six idle grids of a test run share two
    cores.

    Raises OSError or WebSocketException when the connection cannot be opened or is
    lost, and what `poll` raises.
    """
    with connect(url, proxy=None, open_timeout=PATIENCE_S) as node:
        node.send(SUBSCRIBE)
        while True:
            scheduler.poll()
            timeout_s = IDLE_POLL_S
            if scheduler.has_waiting_jobs:
                timeout_s = POLL_S
            with suppress(TimeoutError):
                node.recv(timeout_s)


def main() -> None:
    """Assign jobs until SIGTERM ends the process."""
    parser = argparse.ArgumentParser(
        prog="devgrid.services.metascheduler",
        description="Gives pending jobs to providers.",
    )
    parser.add_argument(
        "--folder", type=Path, required=True, help="state folder of the grid"
    )
    scheduler = MetaScheduler(Chain.load(parser.parse_args().folder))
    while True:
        try:
            follow(scheduler, scheduler.chain.ws_url)
        except (ChainError, OSError, TransientError, WebSocketException) as error:
            print(f"metascheduler: {error}", flush=True)
            time.sleep(POLL_S)  # until it connects again


if __name__ == "__main__":
    main()
