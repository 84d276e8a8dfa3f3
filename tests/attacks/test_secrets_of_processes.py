"""An attacker reads logs, databases, Flower and the environments of processes, and
looks for the provider's keys.
"""

import base64
import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psutil
import psycopg
import pytest
import redis.exceptions
from redis import Redis

from devgrid import REPOSITORY
from devgrid.chain.model import Account
from devgrid.cluster.slurmrestd import NAME as SLURMRESTD
from devgrid.grid import Grid
from devgrid.machine import deadline
from devgrid.options import GridOptions
from devgrid.ports import free_port
from devgrid.processes import answers, wait_until
from supervisor_tasks.config.settings import IN_FILES
from supervisor_tasks.messaging.queues import TASKS
from tests.support.grid_assertions import wait_for_end

TOKEN = "token-of-the-node-4711"
TOKEN_OF_LOGS = "token-of-the-logs-4710"
FLOWERS_PASSWORD = "operator:correct-horse-battery"
BEARER = "bearer-of-bad-news-4712"
DATABASES_PASSWORD = "password-of-the-database-4718"
BROKERS_PASSWORD = "password-of-the-broker-4719"
NOWHERE = "127.0.0.1:9"  # nothing listens there
MAIL_PASSWORD = "mail-password-4713"
NOTIFIED = {
    "NOTIFY_WEBHOOK_URL": "path-of-the-webhook-4714",
    "NOTIFY_SLACK_URL": "path-of-slack-4715",
    "NOTIFY_ALERTMANAGER_URL": "path-of-alertmanager-4716",
}
TRACES = "OTEL_EXPORTER_OTLP_ENDPOINT"
KEY_OF_TRACES = "key-of-the-traces-4717"
# Settings that may hold a secret, and that this grid does not have, or has without a
# secret.
NOT_HERE = {
    "LDAP_URL": "the password is LDAP_BIND_PASSWORD",
    "LDAP_BIND_DN": "a name",
}
# The key to SLURM: each kind of site has one of them.
SLURM_KEYS = ("SLURM_SSH_PRIVATE_KEY", "SLURM_SSH_CA_KEY", "SLURM_JWT_KEY")
WORKFLOW = Path("devgrid/workflows/hello-world.yaml")
BLOCK_TIME_S = 0.25
BODY = re.compile('"body": ?"([A-Za-z0-9+/=]+)"')

SERVERS = {"DATABASE_URL", "BROKER_URL"}
CHAIN = {
    *SERVERS,
    "ETH_PRIVATE_KEY",
    "METASCHEDULER_ENDPOINT_RPC",
    "METASCHEDULER_ENDPOINT_WS",
    "LDAP_BIND_PASSWORD",
    "NOTIFY_WEBHOOK_TOKEN",
    "NOTIFY_SMTP_PASSWORD",
    *NOTIFIED,
    TRACES,
}
# The secrets that each process of the fleet uses. All others of the grid get no secret
# at all. The worker has the site's key to SLURM, too.
WORKS_WITH = {
    "worker": {"SLURM_SUBMIT_KEY", *CHAIN},
    "chain-worker": CHAIN,
    "beat": SERVERS,
    "callbacks": {"CALLBACK_KEY", TRACES, *SERVERS},
    "flower": {"FLOWER_BASIC_AUTH", *SERVERS},
    "metrics": {"DATABASE_URL"},
}


SITES = {
    "key": GridOptions(),
    "certificates": GridOptions(ssh_certificates=True),
    "slurmrestd": GridOptions(transport="rest"),
}


@pytest.fixture(
    scope="module",
    params=[
        "key",
        pytest.param("certificates", marks=pytest.mark.extended),
        pytest.param("slurmrestd", marks=pytest.mark.extended),
    ],
)
def recorded(request: pytest.FixtureRequest) -> Iterator[tuple[Grid, "Messages"]]:
    """A grid whose RPC endpoint requires a token, with every kind of process that a
    site runs, and each kind of access to SLURM.
    """
    overrides = {
        "FLOWER_BASIC_AUTH": FLOWERS_PASSWORD,
        "NOTIFY_WEBHOOK_TOKEN": BEARER,
        "NOTIFY_SMTP_ADDRESS": NOWHERE,
        "NOTIFY_SMTP_TLS": "none",
        "NOTIFY_SMTP_USER": "supervisor",
        "NOTIFY_SMTP_PASSWORD": MAIL_PASSWORD,
        "NOTIFY_MAIL_FROM": "supervisor@example.org",
        "NOTIFY_MAIL_TO": "operator@example.org",
        **{name: f"http://{NOWHERE}/{path}" for name, path in NOTIFIED.items()},
        TRACES: f"http://{NOWHERE}/{KEY_OF_TRACES}",
    }
    running = Grid.start(
        replace(
            SITES[request.param],
            block_time_s=BLOCK_TIME_S,
            ldap=True,
            overrides=overrides,
        )
    )
    try:
        for name, token in (
            ("METASCHEDULER_ENDPOINT_RPC", TOKEN),
            ("METASCHEDULER_ENDPOINT_WS", TOKEN_OF_LOGS),
        ):
            running.environment[name] = running.environment[name].replace(
                "://", f"://user:{token}@"
            )
        set_passwords(running)
        messages = Messages(broker(running))
        messages.start()
        fleet = running.fleet
        fleet.start(flower=False)
        fleet.start_flower()
        fleet.start_worker("chain-worker", "-Q", "devgrid.chain")
        metrics_port = free_port()
        fleet.start_metrics(metrics_port)
        fleet.wait_for_flower()
        wait_until(lambda: answers(metrics_port), "the metrics", 30.0)
        running.environment["FLOWER"] = fleet.flower_url
        yield running, messages
    finally:
        running.stop()


@pytest.fixture(scope="module")
def grid(recorded: tuple[Grid, "Messages"]) -> Grid:
    return recorded[0]


@pytest.fixture(scope="module")
def messages(recorded: tuple[Grid, "Messages"]) -> "Messages":
    return recorded[1]


class Messages(threading.Thread):
    """All commands that a Redis carries out from now on, with the bodies of messages,
    which are base64.
    """

    def __init__(self, server: Redis) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._commands: list[str] = []

    def run(self) -> None:
        """Listen until Redis ends."""
        try:
            server: Any = self._server  # redis has no types for it
            with server, server.monitor() as monitor:
                for command in monitor.listen():
                    self._commands.append(command["command"])
        except redis.exceptions.ConnectionError:
            return

    def text(self) -> str:
        """What was sent so far."""
        return decoded("\n".join(list(self._commands)))


def decoded(text: str) -> str:
    """The text, with what each base64 body in it says."""
    bodies = [base64.b64decode(body).decode() for body in BODY.findall(text)]
    return "\n".join([text, *bodies])


def set_passwords(grid: Grid) -> None:
    """Have Redis ask for a password, at a port as at a site, and give both servers'
    URLs one; Postgres asks the kernel who connects, not for its password.
    """
    port = free_port()
    with broker(grid) as server:
        server.config_set("requirepass", BROKERS_PASSWORD)
        # DUMP would compress the longer values
        server.config_set("rdbcompression", "no")
        server.config_set("bind", "127.0.0.1")
        server.config_set("port", str(port))
    grid.environment["BROKER_URL"] = f"redis://:{BROKERS_PASSWORD}@127.0.0.1:{port}/0"
    url = urlsplit(grid.environment["DATABASE_URL"])
    netloc = f"{url.username or ''}:{DATABASES_PASSWORD}@{url.hostname or ''}"
    grid.environment["DATABASE_URL"] = urlunsplit(url._replace(netloc=netloc))


def broker(grid: Grid) -> Redis:
    """The grid's Redis, by the URL that its processes have now. It is waited for without
    an end: no process sends a command before it has started.
    """
    url = grid.environment["BROKER_URL"]
    return Redis.from_url(url.replace("redis+socket:", "unix:"), socket_timeout=None)


@pytest.fixture(scope="module")
def job_id(grid: Grid) -> str:
    """A job that has been settled."""
    customer: Account = grid.new_customer()
    job_id = grid.submit(customer, WORKFLOW.read_text())
    wait_for_end(grid, job_id)
    return job_id


def secrets_of(grid: Grid) -> dict[str, list[str]]:
    """The variable of each secret, and the forms in which it could appear."""
    wallet = grid.environment["ETH_PRIVATE_KEY"].removeprefix("0x")
    name = slurm_key_of(grid)
    key = grid.environment[name]
    lines = list[str]()
    if name != "SLURM_JWT_KEY":
        lines = base64.b64decode(key).decode().splitlines()[1:-1]
    return {
        "ETH_PRIVATE_KEY": [wallet],
        name: [key, *lines],
        "SLURM_SUBMIT_KEY": [grid.environment["SLURM_SUBMIT_KEY"]],
        "METASCHEDULER_ENDPOINT_RPC": [TOKEN],
        "METASCHEDULER_ENDPOINT_WS": [TOKEN_OF_LOGS],
        "LDAP_BIND_PASSWORD": [grid.environment["LDAP_BIND_PASSWORD"]],
        "NOTIFY_SMTP_PASSWORD": [MAIL_PASSWORD],
        **{name: [path] for name, path in NOTIFIED.items()},
        TRACES: [KEY_OF_TRACES],
        "CALLBACK_KEY": [grid.environment["CALLBACK_KEY"]],
        "NOTIFY_WEBHOOK_TOKEN": [BEARER],
        "FLOWER_BASIC_AUTH": [FLOWERS_PASSWORD.partition(":")[2]],
        "DATABASE_URL": [DATABASES_PASSWORD],
        "BROKER_URL": [BROKERS_PASSWORD],
    }


def slurm_key_of(grid: Grid) -> str:
    """The setting of the site's key to SLURM."""
    (name,) = [name for name in SLURM_KEYS if name in grid.environment]
    return name


def test_secrets_of__every_setting_that_may_hold_one__is_looked_for(grid: Grid) -> None:
    assert secrets_of(grid).keys() | NOT_HERE.keys() | {*SLURM_KEYS} == {
        name.upper() for name in IN_FILES
    }


def found_in(text: str, grid: Grid) -> set[str]:
    found = set[str]()
    for name, forms in secrets_of(grid).items():
        if any(form in text for form in forms):
            found.add(name)
    return found


def processes_of(grid: Grid) -> Iterator[psutil.Process]:
    """All processes of this grid, with jobs and SSH sessions. Postgres and sshd
    overwrite the mark in their environment.
    """
    mark, started = (
        f"DEVGRID_STATE={grid.folder}".encode(),
        {entry.pid for entry in grid.processes.running()},
    )
    for process in psutil.process_iter():
        if process.pid in started or mark in proc(process.pid, "environ").split(b"\0"):
            yield process


def proc(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def test_environments__of_all_processes__hold_the_secrets_that_each_works_with(
    grid: Grid, job_id: str
) -> None:
    names = {entry.pid: entry.name for entry in grid.processes.running()}
    found = {}
    for process in processes_of(grid):
        secrets = found_in(proc(process.pid, "environ").decode(errors="replace"), grid)
        found[names.get(process.pid, f"{process.pid}")] = secrets
    worker = WORKS_WITH["worker"] | {slurm_key_of(grid)}
    expected = WORKS_WITH | {"worker": worker}
    assert {name: secrets for name, secrets in found.items() if secrets} == expected
    to_slurm = "sshd"
    if slurm_key_of(grid) == "SLURM_JWT_KEY":
        to_slurm = SLURMRESTD
    others = {"beat", "callbacks", "reporter", "postgres", "redis", to_slurm}
    assert others <= found.keys()


def test_command_lines__of_all_processes__hold_none(grid: Grid, job_id: str) -> None:
    lines = [
        proc(process.pid, "cmdline").decode(errors="replace")
        for process in processes_of(grid)
    ]
    assert len(lines) > 10
    assert found_in("\n".join(lines), grid) == set()


def test_logs__of_all_processes__hold_none(grid: Grid, job_id: str) -> None:
    logs = [path for path in grid.processes.logs.rglob("*") if path.is_file()]
    assert {"worker.log", "flower.log", "callbacks.log"} <= {path.name for path in logs}
    assert {
        path.name: found_in(path.read_text(errors="replace"), grid) for path in logs
    } == {path.name: set() for path in logs}


def test_redis__all_keys__hold_none(grid: Grid, job_id: str) -> None:
    with broker(grid) as server:
        dumped = [str(key) + str(server.dump(key)) for key in server.scan_iter()]
    assert dumped
    assert found_in(decoded("\n".join(dumped)), grid) == set()


def test_redis__all_messages_of_a_jobs_life__hold_none(
    grid: Grid, messages: Messages, job_id: str
) -> None:
    text = messages.text()
    assert f"{TASKS}.poll_jobs" in text
    assert job_id in text
    assert found_in(text, grid) == set()


def test_postgres__all_tables__hold_none(grid: Grid, job_id: str) -> None:
    with psycopg.connect(
        grid.environment["DATABASE_URL"].replace("+psycopg", "")
    ) as connection:
        tables = connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        )
        texts = []
        for (table,) in tables.fetchall():
            rows = connection.execute(f'SELECT t::text FROM "{table}" t')  # noqa: S608  a table's own name
            texts += [str(row) for row in rows.fetchall()]
    assert job_id in "\n".join(texts)
    assert found_in("\n".join(texts), grid) == set()


def test_flower__pages_and_answers__hold_none(grid: Grid, job_id: str) -> None:
    authorization = f"Basic {base64.b64encode(FLOWERS_PASSWORD.encode()).decode()}"
    texts: list[str] = []

    def read(page: str) -> str:
        request = urllib.request.Request(  # noqa: S310
            grid.environment["FLOWER"] + page, headers={"Authorization": authorization}
        )
        with urllib.request.urlopen(request, timeout=deadline(30)) as answer:  # noqa: S310
            texts.append(answer.read().decode())
        return texts[-1]

    def shows_settings() -> bool:  # a busy worker may answer Flower's question too late
        return any(
            "conf" in worker
            for worker in json.loads(read("/api/workers?refresh=true")).values()
        )

    wait_until(shows_settings, "Flower to show a worker's settings", 60.0, 0.2)
    for page in (
        "/workers",
        "/workers?json=1",
        "/tasks",
        "/broker",
        "/api/tasks",
        "/metrics",
        "/jobs",
        f"/jobs/{grid.cluster.name}/{job_id}",
    ):
        read(page)
    assert found_in("\n".join(texts), grid) == set()


def test_output__of_the_operators_commands__holds_none(grid: Grid, job_id: str) -> None:
    questions = (
        ["status"],
        ["job", "list", "-o", "json"],
        ["job", "show", job_id],
        ["alarm", "list"],
        ["provider", "show"],
    )
    for words in (*questions, ["sweep", "list"], ["log"], ["cluster", "show"]):
        argv = [sys.executable, "-m", "supervisor_tasks.cli", *words]
        done = subprocess.run(
            argv, cwd=REPOSITORY, env=grid.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout
        assert found_in(done.stdout + done.stderr, grid) == set()


def test_core_files__of_the_fleet__are_off(grid: Grid, job_id: str) -> None:
    names = ("worker", "chain-worker", "beat", "flower", "callbacks")
    limits = {
        name: psutil.Process(grid.fleet.find(name).pid).rlimit(psutil.RLIMIT_CORE)
        for name in (*names, "reporter", "metrics")
    }
    assert limits == dict.fromkeys(limits, (0, 0))


COMMAND = """
import resource
from supervisor_tasks.cli import main
try:
    main(["config", "check", "worker"])
finally:
    print("\\n", *resource.getrlimit(resource.RLIMIT_CORE))
"""


def test_core_files__of_a_command_that_reads_the_keys__are_off() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1].split() == ["0", "0"], done.stderr


AUTHORIZED_KEYS = """
import resource, sys
from plugins import authorized_keys
sys.argv = ["authorized_keys", "--supervisor", "127.0.0.1:9", "root"]
authorized_keys.main()
print(*resource.getrlimit(resource.RLIMIT_CORE))
"""


def test_core_files__of_the_authorized_keys_command__are_off() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AUTHORIZED_KEYS],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["0", "0"], done.stderr


GUARDED = """
import ctypes, os, subprocess
from supervisor_tasks.config.process_protection import protect_memory
PR_GET_DUMPABLE = 3
before = ctypes.CDLL(None).prctl(PR_GET_DUMPABLE)
protect_memory("worker")
child = subprocess.run(["env"], capture_output=True, text=True).stdout
print(before, ctypes.CDLL(None).prctl(PR_GET_DUMPABLE), "ETH_PRIVATE_KEY" in child)
"""


def test_guarded_process__its_own_user_reads_its_memory__is_refused_children_too() -> (
    None
):
    environment = {"PATH": "/usr/bin:/bin", "ETH_PRIVATE_KEY": "4c" * 32}
    argv = [sys.executable, "-c", GUARDED]
    done = subprocess.run(
        argv, cwd=REPOSITORY, env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == ["1", "0", "False"], done.stderr
