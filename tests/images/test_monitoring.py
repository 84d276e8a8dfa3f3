"""Alert rules and dashboard, judged by promtool and by a real Prometheus that scrapes real exporters of the product."""

import json
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from devgrid import REPOSITORY
from devgrid.processes import free_port, wait_until
from plugins.probes.dependencies import Dependency
from plugins.probes.progress import Progress
from plugins.probes.server import ProbeServer
from supervisor_tasks.jobs.events import ChainStatusObserved, SlurmCompleted, SlurmRunningObserved
from supervisor_tasks.jobs.model import ChainStatus, Outcome
from supervisor_tasks.ledger.alarms import AlarmName
from supervisor_tasks.ledger.facts import BALANCE, ENDPOINTS, Balance
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.registrations import Registrations
from supervisor_tasks.ledger.transactions import TransactionStore
from supervisor_tasks.monitoring import instruments
from supervisor_tasks.monitoring.probes import log_failed_page, pages, register_process, services
from supervisor_tasks.provider.registration_rules import RegistrationStatus
from tests.support.ledger import bring_to_queued, migrated

MONITORING = REPOSITORY / "docker" / "monitoring"
CHART_FILES = REPOSITORY / "docker" / "helm" / "grid-supervisor" / "files"
DASHBOARD: dict[str, Any] = json.loads((CHART_FILES / "dashboard.json").read_text())
QUERIES = sorted({target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())})
RANGE = "10s"
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - {{job_name: ledger, static_configs: [{{targets: ["{ledger}"]}}]}}
  - {{job_name: workers, static_configs: [{{targets: ["{worker}"]}}]}}
"""


def promtool(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *words], input=stdin, capture_output=True, text=True, check=False)


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310  this machine's
        return str(answer.read().decode())


def fill(ledger: Ledger) -> None:
    """Bring something of everything into a ledger: jobs, a transaction, an alarm, the wallet, the chain's endpoints."""
    for number in (1, 2):
        bring_to_queued(ledger, number)
    job = bring_to_queued(ledger, 3)
    ended = SlurmCompleted(Outcome(status=ChainStatus.FINISHED, elapsed_s=120))
    for event in (SlurmRunningObserved(), ended, ChainStatusObserved(ChainStatus.FINISHED, (9, 0))):
        ledger.record(JobChange(job, event))
    row = {
        "address": "0xab",
        "nonce": 1,
        "purpose": "claim",
        "job_id": None,
        "intent": "claim:1",
        "gas": 9,
        "hash": "0x1",
    }
    fees = {"max_fee_wei": 20, "priority_fee_wei": 1, "raw": b"\x02"}
    TransactionStore(ledger.engine, "here", 1).add([row | fees], head=1)
    ledger.alarms.on(AlarmName.WALLET_EMPTY)
    ledger.facts.set(BALANCE, Balance("0xab", 10**18))
    ledger.facts.set(ENDPOINTS, {"http://node#1": "alive"})
    Registrations(ledger.facts).learn_standing(RegistrationStatus.APPROVED)
    ledger.ticks.record("scan")
    with ledger.engine.begin() as connection:
        ledger.cursors.set(connection, "contract", 7, "0x7")
    ledger.sweeps.keep(ledger.sweeps.begin("asked"), {"lost": 1}, {})


def measure() -> None:
    """Measure something with each instrument, as a worker does."""
    for histogram in (instruments.SSH_COMMANDS, instruments.RPC_REQUESTS, instruments.BATCHES):
        with instruments.timed(histogram, "squeue"):
            pass
    with instruments.timed(instruments.SSH_LOGINS):
        pass
    instruments.CLAIM_WAITS.observe(3.0)
    instruments.RPC_CALLS.labels("http://node#1", "eth_call").inc()
    instruments.CALLBACKS.labels("stored").inc()
    instruments.CHAIN_HEAD.labels("1").set(8)
    instruments.CHAIN_LAG.labels("1").set(1)


@pytest.fixture(scope="module")
def ledger_exporter() -> Iterator[str]:
    """The address of `supervisor metrics`, a process of its own, on a ledger with something of everything."""
    with migrated() as (engine, environment):
        ledger = Ledger(engine, "here", lambda _: None)
        fill(ledger)
        ledger.holder.close()
        argv = [sys.executable, "-m", "supervisor_tasks.cli", "metrics", "--listen", "127.0.0.1:0"]
        with subprocess.Popen(argv, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield urllib.parse.urlsplit(process.stdout.readline().split()[-1]).netloc
            finally:
                process.terminate()


@pytest.fixture(scope="module")
def worker_exporter() -> Iterator[str]:
    """The address of a process's own page, with the instruments that all processes have."""
    loop, registry = Progress(), CollectorRegistry()
    dependencies = services(Dependency("database", lambda: None))
    dependencies.start()
    register_process(registry, "here", "worker", loop, dependencies)
    server = ProbeServer("127.0.0.1:0", pages(loop, dependencies, registry), log_failed_page)
    server.start()
    measure()
    yield f"127.0.0.1:{server.server_port}"
    server.stop()
    dependencies.stop()


@pytest.fixture(scope="module")
def prometheus(ledger_exporter: str, worker_exporter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Prometheus with our rules, which scrapes both exporters each second."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = CONFIG.format(rules=CHART_FILES / "rules.yaml", ledger=ledger_exporter, worker=worker_exporter)
    (folder / "prometheus.yaml").write_text(config)
    with _running(folder, free_port()) as url:
        wait_until(partial(_is_ready, url), "two scrapes of both exporters", 60.0)
        yield url


@contextmanager
def _running(folder: Path, port: int) -> Iterator[str]:
    argv = ["prometheus", f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"]
    argv.append(f"--web.listen-address=127.0.0.1:{port}")
    with (folder / "log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _is_ready(url: str) -> bool:
    try:
        measure()  # what rises between two scrapes has a rate
        return len(asked(url, f"count_over_time(up[{RANGE}]) >= 4")) == 2
    except OSError:
        return False


def asked(url: str, query: str) -> list[Any]:
    """The result of a query; a query that Prometheus refuses raises HTTPError."""
    answer = json.loads(read(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"))
    assert answer["status"] == "success"
    result: list[Any] = answer["data"]["result"]
    return result


def test_exporters__by_promtool__have_no_fault(ledger_exporter: str, worker_exporter: str) -> None:
    for address in (ledger_exporter, worker_exporter):
        checked = promtool("check", "metrics", stdin=read(f"http://{address}/metrics"))
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_exporters__every_sample__has_the_cluster(ledger_exporter: str, worker_exporter: str) -> None:
    for address in (ledger_exporter, worker_exporter):
        lines = [line for line in read(f"http://{address}/metrics").splitlines() if not line.startswith("#")]
        assert [line for line in lines if 'cluster="here"' not in line] == []


def test_alert_rules__by_promtool__are_right_and_pass_their_tests() -> None:
    for command, file in (("check", CHART_FILES / "rules.yaml"), ("test", MONITORING / "alerts_test.yaml")):
        checked = promtool(command, "rules", str(file))
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_alert_rules__in_prometheus__are_evaluated_without_error(prometheus: str) -> None:
    def rules() -> list[dict[str, Any]]:
        (group,) = json.loads(read(f"{prometheus}/api/v1/rules"))["data"]["groups"]
        found: list[dict[str, Any]] = group["rules"]
        return found

    wait_until(lambda: all(rule["health"] != "unknown" for rule in rules()), "an evaluation of each rule", 60.0)
    assert {rule["name"]: rule.get("lastError") for rule in rules() if rule["health"] != "ok"} == {}
    assert {rule["name"] for rule in rules() if rule["state"] == "pending"} >= {"SupervisorAlarm"}


@pytest.mark.parametrize("query", QUERIES)
def test_dashboard__each_query__finds_something(prometheus: str, query: str) -> None:
    concrete = re.sub(
        r"\[\d+[hd]\]", f"[{RANGE}]", query.replace("$__rate_interval", RANGE).replace("$cluster", "here")
    )
    assert asked(prometheus, concrete)
