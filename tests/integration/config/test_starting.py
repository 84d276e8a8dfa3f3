"""How the processes start: with what they need, or not at all."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from eth_account import Account
from redis import Redis
from sqlalchemy import Engine, create_engine, make_url, text

from devgrid import REPOSITORY
from devgrid.faults.network_proxy import Fault, Proxy
from devgrid.fleet import CELERY, Fleet
from devgrid.machine import deadline
from devgrid.processes import Processes, wait_until
from devgrid.services.start import start_server
from devgrid.state_folder import new_state_folder
from supervisor_tasks.benchmarking.cleanup import BENCHMARK_CLEANUP_REQUESTED
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.ledger.block_reads import Cursors
from supervisor_tasks.ledger.cursor_names import CONTRACT_STREAM
from supervisor_tasks.ledger.fact_store import Facts
from supervisor_tasks.ledger.facts import SWEEP_REQUESTED
from supervisor_tasks.ledger.periodic_runs import PeriodicRuns
from supervisor_tasks.ledger.wallet_holders import WalletHolders
from supervisor_tasks.lifecycle import AT_START
from supervisor_tasks.monitoring.slurm_tries import ANSWERED_SINCE_START, FAILED_TRIES
from tests.support.refusals import reasons

PUBLIC_LINE = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti"
)
PATIENCE_S = 60.0
CHAIN_ID = 179188  # by default
pytestmark = pytest.mark.slow  # starts whole workers


@pytest.fixture(scope="module")
def fleet(processes: Processes) -> Fleet:
    """A broker, a ledger that is up to date, and no process at work."""
    servers = {"postgres": embedded_servers.postgres, "redis": embedded_servers.redis}
    for name in servers:
        (processes.folder / name).mkdir()
    described = {
        name: describe(processes.folder / name) for name, describe in servers.items()
    }
    for name, server in described.items():
        start_server(processes, name, server)
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(processes.folder),
        "STATE_DIR": str(processes.folder),
        "DATABASE_URL": described["postgres"].url,
        "BROKER_URL": described["redis"].url,
        "ETH_PRIVATE_KEY": f"{1:064x}",
        "METASCHEDULER_ENDPOINT_RPC": "http://127.0.0.1:1",
    }
    fleet = Fleet(processes, environment)
    fleet.migrate()
    return fleet


@pytest.fixture(scope="module")
def engine(fleet: Fleet) -> Iterator[Engine]:
    engine = create_engine(fleet.environment["DATABASE_URL"])
    yield engine
    engine.dispose()


def ended(
    argv: Sequence[str | Path], state: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    given = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(state.parent),
        "STATE_DIR": str(state),
        **environment,
    }
    return subprocess.run(
        argv,
        cwd=REPOSITORY,
        env=given,
        capture_output=True,
        text=True,
        timeout=deadline(PATIENCE_S),
    )


def test_worker__no_site_can_be_built__says_why_in_a_line_and_ends_with_2() -> None:
    """Redis runs there, so Celery has begun; Postgres does not."""
    outer = new_state_folder()
    # Postgres finds none of its files
    (outer / "postgres" / "data").mkdir(parents=True)
    try:
        done = ended([*CELERY, "worker", "-Q", "main.default"], outer)
    finally:
        subprocess.run(["rm", "-rf", str(outer)], check=True)
    (last,) = reasons(done.stderr.splitlines()[-1])
    assert done.returncode == 2, done.stderr
    assert (
        f"STATE_DIR: the postgres of {outer} does not answer; see {outer}/postgres/server.log"
        in last
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "argv",
    [
        [*CELERY, "worker", "-Q", "main.default"],
        [*CELERY, "beat"],
        [*CELERY, "flower"],
        [sys.executable, "-m", "grpc_callbacks"],
        [
            sys.executable,
            "-m",
            "supervisor_tasks.cli",
            "db",
            "upgrade",
            "--embedded",
            "--yes",
        ],
    ],
)
def test_state_folder__cannot_be__is_told_in_a_line_with_status_2(
    argv: Sequence[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    done = ended(
        argv,
        tmp_path / "file" / "state",
        SLURM_SSH_PUBLIC_KEY=PUBLIC_LINE,
        LISTEN_ADDRESS="127.0.0.1:0",
    )
    assert done.returncode == 2, done.stderr
    (line,) = (
        done.stderr.splitlines() if "upgrade" in argv else reasons(done.stderr)
    )  # a command tells it in plain text
    assert line.startswith(
        f"STATE_DIR: found '{tmp_path}/file/state'; expected a folder where servers can run ("
    )


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root runs a program as another user"
)
def test_user__without_an_entry_in_passwd__is_told_in_a_line_with_status_2() -> None:
    outer = new_state_folder()
    program = [
        sys.executable,
        "-m",
        "supervisor_tasks.cli",
        "db",
        "upgrade",
        "--embedded",
        "--yes",
    ]
    try:
        outer.chmod(0o1777)
        done = ended(
            ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", *program],
            outer / "state",
        )
        made = stat.S_IMODE((outer / "state").stat().st_mode)
    finally:
        shutil.rmtree(outer)
    assert (done.returncode, made) == (2, 0o700), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("DATABASE_URL: found nothing; expected a database")
    assert "uid 54321 has none" in line


@pytest.mark.parametrize("mode", [0o777, 0o2775])
def test_state_folder__others_write_there__is_told_with_what_to_do(mode: int) -> None:
    """As Kubernetes makes a volume, without and with an fsGroup."""
    if os.geteuid() != 0 and mode == 0o2775:
        pytest.skip("a user's folders may be open to the user's own group")
    outer = new_state_folder()
    program = [
        sys.executable,
        "-m",
        "supervisor_tasks.cli",
        "db",
        "upgrade",
        "--embedded",
        "--yes",
    ]
    try:
        outer.chmod(mode)
        done = ended(program, outer)
    finally:
        shutil.rmtree(outer)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert f"chmod go-w {outer} (of a Kubernetes volume: in an initContainer)" in line
    assert f"(chmod +t {outer})" in line


def test_worker__of_the_chain_queue_alone__does_the_default_queues_work_too(
    fleet: Fleet, engine: Engine
) -> None:
    fleet.start_worker("worker", "-Q", "main.chain")
    try:
        wait_until(
            lambda: (
                PeriodicRuns(engine, "main").age_s("dispatch_due_effects") is not None
            ),
            "a dispatch_due_effects",
            PATIENCE_S,
            0.1,
        )
    finally:
        fleet.processes.kill(fleet.find("worker"))


def test_worker__broker_refuses_messages_at_start__its_requests_are_in_the_ledger(
    processes: Processes, fleet: Fleet, engine: Engine
) -> None:
    another = Fleet(
        processes,
        fleet.environment | {"CLUSTER_NAME": "another", "ETH_PRIVATE_KEY": f"{2:064x}"},
    )

    facts = Facts(engine, "another")

    with Redis(
        unix_socket_path=fleet.environment["BROKER_URL"].removeprefix("redis+socket://")
    ) as broker:
        broker.acl_setuser("default", enabled=True, commands=["-lpush"])
        another.start_worker("another", "-Q", "another.chain")
        try:
            wait_until(
                lambda: lost_messages(processes) == AT_START,
                "all messages to be lost",
                PATIENCE_S,
                0.1,
            )
            assert facts.get(SWEEP_REQUESTED) is None
            broker.acl_setuser("default", enabled=True, commands=["+lpush"])
            another.start_beat("clock")
            wait_until(
                lambda: "a worker has started" in (facts.get(SWEEP_REQUESTED) or ""),
                "a sweep to be asked for",
                PATIENCE_S,
                0.1,
            )
        finally:
            for name in ("another", "clock"):
                processes.kill(processes.find(name))
    assert (
        facts.get(FAILED_TRIES),
        facts.get(ANSWERED_SINCE_START),
        facts.get(BENCHMARK_CLEANUP_REQUESTED),
    ) == (
        0,
        False,
        True,
    )


def lost_messages(processes: Processes) -> tuple[str, ...]:
    lines = (processes.logs / "another.log").read_text().splitlines()
    entries = [
        json.loads(line)
        for line in lines
        if line.startswith("{") and line.endswith("}")
    ]
    return tuple(
        entry["task"] for entry in entries if entry["event"] == "task_publish_failed"
    )


@pytest.mark.parametrize(
    ("cluster", "holder", "chain_id", "event", "reason"),
    [
        pytest.param(
            "late",
            "other",
            CHAIN_ID,
            "wallet_used_by_other_cluster",
            "the cluster 'other' of this ledger works",
            id="the wallet of another cluster",
        ),
        pytest.param(
            "moved",
            "moved",
            1,
            "ledger_read_other_chain",
            "expected 1, the chain that the ledger has read for the cluster 'moved'",
            id="another chain",
        ),
    ],
)
def test_worker__not_its_wallet_or_chain__ends_with_2_before_any_task(
    fleet: Fleet,
    engine: Engine,
    processes: Processes,
    cluster: str,
    holder: str,
    chain_id: int,
    event: str,
    reason: str,
) -> None:
    """The ledger does not answer when the worker starts; so its first task is the first
    that can ask.
    """
    key = f"{3:064x}"
    address = Account.from_key(key).address.lower()
    WalletHolders(engine, holder).hold(chain_id, address, shared=False)
    with engine.begin() as connection:
        Cursors(engine, holder).set(connection, CONTRACT_STREAM, 7, "0x0")
    postgres = processes.folder / "postgres"
    with Proxy.start(
        next(str(path) for path in postgres.rglob(".s.PGSQL.*") if path.is_socket())
    ) as network:
        host, _, port = network.address.partition(":")
        url = make_url(fleet.environment["DATABASE_URL"]).set(
            host=host, port=int(port), query={}
        )
        network.fault(Fault.REFUSE)
        late = Fleet(
            processes,
            fleet.environment
            | {"DATABASE_URL": url.render_as_string(hide_password=False)},
        )
        late.environment |= {"CLUSTER_NAME": cluster, "ETH_PRIVATE_KEY": key}
        worker = late.start_worker(f"{cluster}-worker", "-Q", f"{cluster}.chain")
        log = processes.logs / f"{cluster}-worker.log"
        wait_until(
            lambda: "wallet_not_checked_yet" in log.read_text(),
            "the worker to start",
            PATIENCE_S,
        )
        network.fault(None)
        wait_until(lambda: worker.process() is None, "the worker to end", PATIENCE_S)
    told = log.read_text()
    assert f'"event": "{event}"' in told
    assert reason in told
    with engine.connect() as connection:
        assert (
            list(
                connection.scalars(
                    text("SELECT name FROM periodic_runs WHERE cluster = :cluster"),
                    {"cluster": cluster},
                )
            )
            == []
        )
