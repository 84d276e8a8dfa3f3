"""The ledger's metrics for Prometheus. They are read from the ledger, so they are right
with any number of workers, and outlast each worker. instruments.py has the metrics that
a process measures by itself.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import inf
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.errors import TransientError
from supervisor_tasks.instruments import ClusterLabel
from supervisor_tasks.jobs.model import EffectKind, State
from supervisor_tasks.ledger import counters
from supervisor_tasks.ledger.counters import Total
from supervisor_tasks.ledger.figures import Figures
from supervisor_tasks.ledger.reconciliations import Reconciliation
from supervisor_tasks.ledger.status_queries import EffectCount, StatusSummary
from supervisor_tasks.ledger.transaction_names import OPEN_STATES
from supervisor_tasks.provider.offer import CREDIT
from supervisor_tasks.provider.registration_rules import RegistrationStatus

EFFECT_STATES = ("due", "waiting", "leased", "parked", "failing")
MESSAGE_STATES = ("due", "failing", "parked")
TRANSACTIONS_OF_A_JOB = 3  # its claim, RUNNING and its end
# scrapes within this time get the same reading, so that more of them cost the database
# nothing
KEPT_S = 5.0

Totals = Mapping[tuple[str, str], Decimal]


@dataclass(frozen=True, slots=True)
class LedgerReading:
    """What one scrape shows: the state and the figures of a cluster, and whether the
    supervisor is alive.
    """

    summary: StatusSummary
    figures: Figures
    healthy: bool


class CachedReading:
    """The last reading, read again after KEPT_S. Threads may share it."""

    def __init__(
        self,
        read: Callable[[], LedgerReading],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._last: tuple[float, LedgerReading] | None = None

    def __call__(self) -> LedgerReading:
        """Return a reading that is at most KEPT_S old. Raises TransientError while the
        ledger does not answer.
        """
        with self._lock:
            if self._last is None or self._clock() - self._last[0] > KEPT_S:
                self._last = self._clock(), self._read()
            return self._last[1]


class LedgerMetrics(Collector):
    """The ledger's metrics, each with the label `cluster`."""

    def __init__(self, cluster: str, read: Callable[[], LedgerReading]) -> None:
        self._labelled = ClusterLabel(cluster, _Unlabelled(read))

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of one scrape; only `ledger_up` while the ledger does not
        answer.
        """
        return self._labelled.collect()

    def describe(self) -> list[Metric]:
        """Return nothing, so that nothing queries the ledger before the first
        scrape.
        """
        return []


class _Unlabelled(Collector):
    def __init__(self, read: Callable[[], LedgerReading]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        try:
            reading = self._read()
        except TransientError:
            yield _gauge("ledger_up", "Whether the ledger's database answers.", 0)
            return
        yield _gauge("ledger_up", "Whether the ledger's database answers.", 1)
        yield from exposed(reading)


def exposed(reading: LedgerReading) -> Iterator[Metric]:
    """Return the metrics of a reading."""
    summary, figures = reading.summary, reading.figures
    yield _gauge(
        "healthy", "Whether everything periodic comes to an end.", int(reading.healthy)
    )
    yield _gauge(
        "claims_paused",
        "1 while an operator has paused the claiming of jobs.",
        int(summary.claiming_paused),
    )
    yield _gauge(
        "submissions_paused",
        "1 while an operator or a sweep has paused submissions.",
        int(summary.submissions_paused),
    )
    yield _gauge(
        "jobs_claimable",
        "Jobs that wait on the contract, as a worker last read them; NaN before the first look.",
        float("nan") if summary.claimable is None else summary.claimable.number,
    )
    yield from _work(summary, figures)
    yield from _failures(summary, figures)
    yield from _chain(summary, figures)
    yield from _wallet(summary, figures)
    yield from _provider(summary)
    yield from _sweep(summary.last_sweep, figures.moments.sweep_s)
    yield from _totals(figures.totals)


def _work(summary: StatusSummary, figures: Figures) -> Iterator[Metric]:
    unsettled = [state.value for state in State if state is not State.SETTLED]
    yield _family(
        "jobs",
        "Jobs that are neither settled nor given back.",
        "state",
        _with_zeros(unsettled, summary.jobs),
    )
    effects = GaugeMetricFamily(
        "supervisor_effects", "Things left to do.", labels=["kind", "state"]
    )
    counts: dict[str, Any] = {count.kind: count for count in summary.effects}
    for kind in EffectKind:
        for state in EFFECT_STATES:
            effects.add_metric(
                [kind.value, state], getattr(counts.get(kind.value), state, 0)
            )
    yield effects
    first = figures.moments
    about = (
        "When the first effect became due that no worker has begun; 0 if there is none."
    )
    yield _moment("oldest_due_effect", about, first.effect_s)
    unread = sum(summary.unread_callbacks.values())
    yield _gauge("callbacks_unread", "Callbacks that no worker has read.", unread)
    about = "When the first unread callback came; 0 if there is none."
    yield _moment("oldest_unread_callback", about, first.callback_s)


def _failures(summary: StatusSummary, figures: Figures) -> Iterator[Metric]:
    # an alarm of another release is shown while it is on
    raised = {alarm.name: alarm.raised_at.timestamp() for alarm in summary.alarms}
    names = [name.value for name in AlarmName]
    on = dict.fromkeys(raised, 1)
    yield _family(
        "alarm",
        "1 while the alarm is on.",
        "alarm",
        _with_zeros(names, on) | on,
    )
    yield _family(
        "alarm_raised_timestamp_seconds",
        "Since when an alarm is on; 0: it is off.",
        "alarm",
        _with_zeros(names, raised) | raised,
    )
    messages = _with_zeros(MESSAGE_STATES, figures.messages)
    yield _family(
        "alarm_messages",
        "Messages about alarms that are left to send.",
        "state",
        messages,
    )
    yield _family(
        "periodic_work_timestamp_seconds",
        "When periodic work last succeeded, or ended.",
        "work",
        figures.periodic_runs,
    )


def _chain(summary: StatusSummary, figures: Figures) -> Iterator[Metric]:
    states = {
        state.lower(): summary.transactions.get(state, 0) for state in OPEN_STATES
    }
    yield _family(
        "transactions_open",
        "Transactions that are not known to be mined.",
        "state",
        states,
    )
    yield _moment(
        "oldest_open_transaction",
        "When the first open transaction was signed; 0: none.",
        figures.moments.transaction_s,
    )
    yield _family(
        "chain_read_block",
        "How far the chain has been read.",
        "stream",
        summary.cursors,
    )
    alive = {name: int(health == "alive") for name, health in summary.endpoints.items()}
    yield _family(
        "rpc_endpoint_alive",
        "Whether an RPC endpoint answers and is used.",
        "endpoint",
        alive,
    )


def _wallet(summary: StatusSummary, figures: Figures) -> Iterator[Metric]:
    if summary.wallet is not None:
        nonces = {summary.wallet.address: summary.wallet.next_nonce}
        yield _family(
            "wallet_next_nonce",
            "The nonce that the next transaction gets.",
            "address",
            nonces,
        )
    address, wei = "", float("nan")
    if figures.balance is not None:
        address, wei = figures.balance.address, figures.balance.wei
    about = "The balance that a worker last read; NaN before the first reading."
    yield _family("wallet_balance_wei", about, "address", {address: wei})
    about = "How many jobs the balance pays for, at the mean cost of the last transactions; NaN before the first one."
    yield _family(
        "wallet_jobs", about, "address", {address: _jobs_paid(wei, figures.cost_wei)}
    )


def _jobs_paid(balance_wei: float, cost_wei: float | None) -> float:
    if not cost_wei:
        return float("nan")
    return balance_wei / (cost_wei * TRANSACTIONS_OF_A_JOB)


def _provider(summary: StatusSummary) -> Iterator[Metric]:
    statuses = dict.fromkeys((status.value for status in RegistrationStatus), 0)
    if summary.registration_status is not None:
        statuses[summary.registration_status.value] = 1
    about = "The status of the provider's registration: 1 at the one that is true."
    yield _family("registration_status", about, "status", statuses)


def _sweep(last: Reconciliation | None, at_s: float) -> Iterator[Metric]:
    yield _moment(
        "last_sweep", "When the last sweep ended; 0 before the first one.", at_s
    )
    if last is None:
        return
    report = last.report
    numbers = {
        name: value for name, value in report.items() if isinstance(value, int | float)
    }
    yield _family("sweep_found", "Figures of the last sweep's report.", "what", numbers)
    yield _family(
        "sweep_unseen_timestamp_seconds",
        "Since when sweeps have not seen a side.",
        "side",
        report.get("unreachable_since_s", {}),
    )


# --- totals ---------------------------------------------------------------------------


def _totals(totals: Totals) -> Iterator[Metric]:
    yield _total(totals, Total.JOBS_CLAIMED, "jobs_claimed", "Jobs that were claimed.")
    yield _by(
        totals,
        Total.JOBS_SETTLED,
        "jobs_settled",
        "Jobs that are over.",
        "outcome",
        counters.OUTCOMES,
    )
    yield _total(
        totals,
        Total.JOBS_REFUSED,
        "jobs_refused",
        "Jobs that were given back to the grid.",
    )
    yield _total(
        totals,
        Total.BILLED_S,
        "jobs_billed_seconds",
        "Whole minutes of run time that were billed.",
    )
    yield _total(
        totals,
        Total.CREDITS,
        "credits_earned",
        "Credits that our reports' transactions were paid.",
        CREDIT,
    )
    yield _by(
        totals,
        Total.SUBMISSIONS,
        "submissions",
        "Answers to submissions.",
        "result",
        counters.RESULT_OF.values(),
    )
    yield _by(
        totals,
        Total.CALLBACKS,
        "callbacks_read",
        "Callbacks that were read.",
        "verdict",
        counters.CALLBACK_MATCHES,
    )
    yield _by(
        totals,
        Total.TRANSACTIONS,
        "transactions",
        "Ends of transactions.",
        "result",
        counters.TRANSACTION_RESULTS,
    )
    yield _total(
        totals,
        Total.REPLACEMENTS,
        "transaction_replacements",
        "Transactions that were signed again.",
    )
    yield _total(
        totals, Total.GAS, "transaction_gas", "Gas that mined transactions used."
    )
    yield _total(
        totals, Total.FEES_WEI, "transaction_fees_wei", "What mined transactions cost."
    )
    yield _histogram(
        totals,
        Total.CLAIM_TO_SUBMIT,
        "job_submission",
        "From a job's claim to its SLURM id.",
    )
    yield _histogram(
        totals,
        Total.END_TO_SETTLE,
        "job_settlement",
        "From a job's end to its mined report.",
    )


def _total(
    totals: Totals, total: Total, name: str, about: str, unit: int = 1
) -> Metric:
    return CounterMetricFamily(
        f"supervisor_{name}",
        about,
        value=float(totals.get((total.value, ""), 0) / unit),
    )


def _by(
    totals: Totals,
    total: Total,
    name: str,
    about: str,
    label: str,
    values: Iterable[str],
) -> Metric:
    family = CounterMetricFamily(f"supervisor_{name}", about, labels=[label])
    for value in values:
        family.add_metric([value], float(totals.get((total.value, value), 0)))
    return family


def _histogram(totals: Totals, total: Total, name: str, about: str) -> Metric:
    family = HistogramMetricFamily(
        f"supervisor_{name}_duration_seconds", about, labels=[]
    )
    buckets = list[tuple[str, float]]()
    cumulative_count = 0.0
    for bound_s in (*counters.BOUNDS_S, inf):
        cumulative_count += float(
            totals.get((total.value, counters.bucket(bound_s)), 0)
        )
        bound = "+Inf" if bound_s == inf else str(bound_s)
        buckets.append((bound, cumulative_count))
    sum_s = float(totals.get((total.value, counters.SUM), 0)) / counters.MICROSECONDS
    family.add_metric([], buckets, sum_s)
    return family


# --- gauges ---------------------------------------------------------------------------


def oldest_due_s(effects: list[EffectCount]) -> float:
    """Return for how many seconds the first effect has been due."""
    return max((count.oldest_due_s for count in effects), default=0.0)


def untaken_s(effects: list[EffectCount]) -> float:
    """Return for how many seconds an effect has been due of a kind that no worker is
    at.
    """
    return max((count.untaken_s for count in effects), default=0.0)


def _with_zeros(names: Iterable[str], values: Mapping[str, float]) -> dict[str, float]:
    return {name: values.get(name, 0) for name in names}


def _family(
    name: str, about: str, label: str, values: Mapping[str, float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"supervisor_{name}", about, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"supervisor_{name}", about, value=value)


def _moment(name: str, about: str, at_s: float) -> GaugeMetricFamily:
    return _gauge(f"{name}_timestamp_seconds", about, at_s)
