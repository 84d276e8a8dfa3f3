"""The ledger as Prometheus reads it. Each scrape asks the ledger; nothing is counted in the processes, of which any may die."""

import threading
from collections.abc import Callable, Iterator
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from supervisor_tasks.errors import TransientError
from supervisor_tasks.job import State
from supervisor_tasks.ledger.operator import AlarmName
from supervisor_tasks.ledger.overview import EffectCount, Snapshot
from supervisor_tasks.ledger.sweeps import Swept
from supervisor_tasks.registration import Standing

PLACES = ("due", "waiting", "leased", "parked", "failing")


class LedgerMetrics(Collector):
    """What is collected. `healthy` says whether the supervisor is alive, judged from the same snapshot."""

    def __init__(self, snapshot: Callable[[], Snapshot], healthy: Callable[[Snapshot], bool]) -> None:
        self._snapshot = snapshot
        self._healthy = healthy

    def collect(self) -> Iterator[Metric]:
        """The metrics of one scrape; while the ledger does not answer only that."""
        try:
            snapshot = self._snapshot()
        except TransientError:
            yield _gauge("ledger_up", "Whether the ledger's database answers.", 0)
            return
        yield _gauge("ledger_up", "Whether the ledger's database answers.", 1)
        yield _gauge("healthy", "Whether everything periodic comes to an end.", int(self._healthy(snapshot)))
        yield _gauge("drained", "Whether the operator has stopped the claiming of jobs.", int(snapshot.drained))
        yield from _work(snapshot)
        yield from _trouble(snapshot)
        yield from _chain(snapshot)
        yield from _provider(snapshot)
        if snapshot.last_sweep is not None:
            yield from _sweep(snapshot.last_sweep, snapshot.since_sweep_s)

    def describe(self) -> list[Metric]:
        """Nothing is asked before the first scrape."""
        return []


def serve(metrics: LedgerMetrics, host: str, port: int) -> tuple[WSGIServer, threading.Thread]:
    """Answer scrapes at an address, on a thread of its own; port 0 is any free one (`server_port` tells which)."""
    registry = CollectorRegistry()
    registry.register(metrics)
    return start_http_server(port, host, registry)


def _work(snapshot: Snapshot) -> Iterator[Metric]:
    jobs = _family("jobs", "Jobs that are not settled.", "state")
    for state in State:
        if state is not State.SETTLED:
            jobs.add_metric([state.value], snapshot.jobs.get(state.value, 0))
    yield jobs
    effects = GaugeMetricFamily("supervisor_effects", "Things left to do.", labels=["kind", "place"])
    for count in snapshot.effects:
        for place in PLACES:
            effects.add_metric([count.kind, place], getattr(count, place))
    yield effects
    yield _gauge("oldest_due_effect_seconds", "How long the first effect has been due.", oldest_due_s(snapshot.effects))
    unread = _family("callbacks_unread", "Callbacks that nobody has read.", "status")
    for status, number in snapshot.unread_callbacks.items():
        unread.add_metric([str(status)], number)
    yield unread
    yield _gauge("oldest_unread_callback_seconds", "How long the first one waits.", snapshot.oldest_unread_s)


def _trouble(snapshot: Snapshot) -> Iterator[Metric]:
    on = {alarm.name for alarm in snapshot.alarms}
    alarms = _family("alarm", "What the operator is called for.", "name")
    for name in AlarmName:
        alarms.add_metric([name.value], int(name in on))
    yield alarms
    ticks = _family("tick_age_seconds", "How long ago periodic work succeeded, or came to an end.", "name")
    for tick, age_s in snapshot.ticks_s.items():
        ticks.add_metric([tick], age_s)
    yield ticks


def _sweep(last: Swept, since_s: float) -> Iterator[Metric]:
    yield _gauge("sweep_age_seconds", "How long ago the last sweep ended.", since_s)
    found = _family("sweep_found", "Figures of the last sweep's report.", "what")
    for what, number in last.report.items():
        if isinstance(number, int | float):
            found.add_metric([what], number)
    yield found
    unseen = _family("sweep_unseen_seconds", "For how long sweeps have not seen a side, up to the last one.", "side")
    for side, began_s in last.report.get("blind_since_s", {}).items():
        unseen.add_metric([side], last.begun_at.timestamp() - began_s)
    yield unseen


def _chain(snapshot: Snapshot) -> Iterator[Metric]:
    transactions = _family("transactions_open", "Transactions that are not known to be mined.", "state")
    for state, number in snapshot.transactions.items():
        transactions.add_metric([state], number)
    yield transactions
    yield _gauge("oldest_open_transaction_seconds", "How old the first is.", snapshot.oldest_transaction_s)
    blocks = _family("chain_block_read", "How far the chain has been read.", "stream")
    for stream, block in snapshot.cursors.items():
        blocks.add_metric([stream], block)
    yield blocks
    endpoints = _family("rpc_endpoint_alive", "Whether an RPC endpoint answers and is used.", "endpoint")
    for name, health in snapshot.endpoints.items():
        endpoints.add_metric([name], int(health == "alive"))
    yield endpoints
    if snapshot.wallet is not None:
        nonce = _family("wallet_next_nonce", "The nonce that the next transaction gets.", "address")
        nonce.add_metric([snapshot.wallet.address], snapshot.wallet.next_nonce)
        yield nonce


def _provider(snapshot: Snapshot) -> Iterator[Metric]:
    standings = _family(
        "provider_standing", "How the provider stands with the grid: 1 at the one that is true.", "standing"
    )
    for standing in Standing:
        standings.add_metric([standing.value], int(snapshot.standing is standing))
    yield standings


def oldest_due_s(effects: list[EffectCount]) -> float:
    """How long the first effect has been due."""
    return max((count.oldest_due_s for count in effects), default=0.0)


def _family(name: str, text: str, label: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"supervisor_{name}", text, labels=[label])


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"supervisor_{name}", text, value=value)
