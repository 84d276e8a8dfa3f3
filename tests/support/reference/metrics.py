"""docs/reference/metrics.md: what `supervisor metrics` and each process's /metrics
serve.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from plugins import reporter_health
from plugins.probes.progress import Progress
from supervisor_tasks import instruments
from supervisor_tasks.instruments import BuildInfo
from supervisor_tasks.ledger.facts import Balance
from supervisor_tasks.ledger.figures import Figures
from supervisor_tasks.ledger.reconciliations import Reconciliation
from supervisor_tasks.ledger.status_queries import EffectCount, StatusSummary, Writer
from supervisor_tasks.observability.metrics import LedgerReading, exposed
from supervisor_tasks.observability.probes import ProcessMetrics, services
from tests.support.reference.markdown import head, item, paragraph
from tests.support.reference.markdown import page as text_of

ABOUT = """Prometheus scrapes them; the alert rules and the dashboard (`docker/helm/grid-supervisor/files`) use them. Each
has the label `cluster`. A counter's name ends in `_total`; a time is a Unix time, and 0 means never. What the totals count is
kept in the ledger, so they survive each process; what a process measures itself begins at 0 with the process."""
LEDGER = "`supervisor metrics` serves these at `METRICS_ADDRESS`. While the ledger does not answer, only the first is there."
INSTRUMENTS = tuple(instruments.REGISTRY._collector_to_names)
WORDS = ("name", "type", "documentation")
SUFFIXES = {"counter": "_total", "info": "_info"}
PROCESS = """Each process serves these at `HEALTH_ADDRESS` under `/metrics`, with the usual `process_` and `python_gc_`
metrics of the Prometheus client."""

REPORTER = "The reporter serves these at its `HEALTH_ADDRESS`; `--cluster` or `CLUSTER_NAME` names the cluster."


def page() -> str:
    """The page's text."""
    lines = head("Metrics", ABOUT)
    lines += ["## Of the ledger", "", *paragraph(LEDGER), ""]
    up = "Whether the ledger's database answers."
    lines += list(item(f"`supervisor_ledger_up` (gauge): {up}"))
    lines += _items(exposed(LedgerReading(_snapshot(), _figures(), True)))
    lines += ["", "## Of each process", "", *paragraph(PROCESS), ""]
    lines += _items(ProcessMetrics(Progress(), services()).collect())
    lines += _items(BuildInfo("worker").collect())
    lines += _items(INSTRUMENTS)
    lines += ["", "## Of the reporter", "", *paragraph(REPORTER), ""]
    for name, (kind, about) in reporter_health.METRICS.items():
        lines += list(item(f"`{name}` ({kind}): {about}"))
    return text_of(lines)


def _items(metrics: Iterable[Any]) -> list[str]:
    return [line for metric in metrics for line in item(_described(metric))]


def _described(metric: Any) -> str:
    name, kind, about = (
        getattr(metric, word, None) or getattr(metric, f"_{word}") for word in WORDS
    )
    labels = f"{{{', '.join(metric._labelnames)}}}" if metric._labelnames else ""
    return f"`{name}{SUFFIXES.get(kind, '')}{labels}` ({kind}): {about}"


def _figures() -> Figures:
    return Figures(balance=Balance("0x", 0), cost_wei=1.0)


def _snapshot() -> StatusSummary:
    """A summary in which everything is there, so that the exporter shows all that it
    has.
    """
    now = datetime.now(UTC)
    return StatusSummary(
        cluster="main",
        jobs={},
        effects=[EffectCount("submit", 0, 0, 0, 0, 0, 0.0, 0.0)],
        unread_callbacks={},
        oldest_unread_s=0.0,
        transactions={},
        oldest_transaction_s=0.0,
        wallet=Writer("0x", 1, 0),
        cursors={},
        periodic_run_ages_s={},
        alarms=[],
        claiming_paused=False,
        submissions_paused=False,
        last_sweep=Reconciliation(now, now, {}),
        since_sweep_s=0.0,
    )
