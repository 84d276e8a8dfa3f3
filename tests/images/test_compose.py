"""docker/compose.yaml, run by podman-compose against devgrid: a job, a rolling restart
under load, two clusters.
"""

import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from devgrid import REPOSITORY
from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.options import ClusterOptions, GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.cli.run_command import PROCESSES
from supervisor_tasks.config.settings import IN_FILES, Settings
from supervisor_tasks.jobs.model import ChainStatus
from tests.images import stacks
from tests.images.containers import engine
from tests.images.stacks import Stack
from tests.support import chaos_jobs
from tests.support.compose_files import copied
from tests.support.grid_assertions import wait_for

DOCKER = REPOSITORY / "docker"
HELLO = REPOSITORY / "devgrid" / "workflows" / "hello-world.yaml"
FLEET = ("worker-chain", "worker-slurm", "beat", "callbacks", "flower", "metrics")
JOBS_A_RESTART = 15
PAGE = (REPOSITORY / "docs" / "how-to" / "deploy.md").read_text()
UPGRADE, ONE_BY_ONE = re.search(
    r"^\*\*An upgrade\*\*.*?^```\n(.*?)^```.*?^```\n(.*?)^```", PAGE, re.M | re.S
).groups()  # type: ignore[union-attr]
BACK_UP = (REPOSITORY / "docs" / "how-to" / "back-up.md").read_text()
EACH_NIGHT, RESTORE = re.findall(
    r"^```\n(.*?)^```", BACK_UP.partition("## With compose")[2], re.M | re.S
)
RUN, DOWN = PAGE.split("**Taking it down.**")
DOWN, _ = DOWN.split("**Move to another host.**")
IN_BEAT = re.compile(
    r"^docker compose exec beat supervisor ([^#\n]+?) *(?:#.*)?$", re.M
)
LOOKS = IN_BEAT.findall(RUN)
PAUSE, LIST, RESUME = IN_BEAT.findall(DOWN)
(TAKE_DOWN,) = re.findall(r"^docker compose (.* down)$", DOWN, re.M)
(UP_AGAIN,) = re.findall(r"^docker compose (up .*)$", DOWN, re.M)
PROFILE = ("--profile", "monitoring")
SCRAPED = {
    ("ledger", "metrics"): "up",
    ("workers", "worker-chain"): "up",
    ("workers", "worker-slurm"): "up",
    ("beat", "beat"): "up",
    ("callbacks", "callbacks"): "up",
    ("flower", "flower"): "up",
}
SECOND = ClusterOptions(name="second", nodes=1, transport="rest")
ONE, TWO = ("compose.yaml",), ("compose.yaml", "compose.clusters.yaml")


@pytest.fixture
def stack(image: str, servers: None, tmp_path: Path) -> Iterator[Stack]:
    made = Stack(tmp_path)
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    """Two clusters: the second has no login node."""
    running = Grid.start(GridOptions(block_time_s=0.25, others=(SECOND,)))
    yield running
    running.stop()


def ours(files: tuple[str, ...]) -> dict[str, Any]:
    """The services that run the supervisor's image."""
    services: dict[str, Any] = {}
    for file in files:
        services |= yaml.safe_load((DOCKER / file).read_text())["services"]
    return {
        name: each
        for name, each in services.items()
        if "grid-supervisor" in each["image"]
    }


@pytest.mark.parametrize("files", [ONE, TWO])
def test_compose_files__of_one_or_two_clusters__are_taken_by_compose(
    files: tuple[str, ...], tmp_path: Path
) -> None:
    folder = copied(tmp_path)
    for name in (".env", "second.env"):
        (folder / name).write_text((folder / ".env.example").read_text())
    made = stacks.config(folder, *files)
    services = made["services"]
    assert set(services) >= {
        "postgres",
        "redis",
        "migrate",
        "prometheus",
        "grafana",
        *ours(files),
    }
    for name, service in services.items():
        named = {
            each if isinstance(each, str) else each["source"]
            for each in service.get("secrets", [])
        }
        assert named <= set(made["secrets"]), name
        assert set(service.get("depends_on", ())) <= set(services), name


@pytest.mark.parametrize(
    ("value", "expected"), [(None, "unless-stopped"), ("always", "always")]
)
def test_restart__of_the_settings__is_that_of_each_service_but_migrate(
    value: str | None, expected: str, tmp_path: Path
) -> None:
    """podman-restart.service of podman 4.3 starts what has `always`, and nothing else,
    with the host.
    """
    folder = copied(tmp_path)
    settings = (folder / ".env.example").read_text()
    (folder / "second.env").write_text(settings)
    if value is not None:
        settings = stacks.with_values(settings, {"RESTART": value})
    (folder / ".env").write_text(settings)
    services = stacks.config(folder, *TWO)["services"]
    found = {name: service["restart"] for name, service in services.items()}
    assert found == dict.fromkeys(services, expected) | {"migrate": "no"}


@pytest.mark.parametrize(("name", "service"), ours(TWO).items())
def test_service__each__is_confined_and_watched(
    name: str, service: dict[str, Any]
) -> None:
    assert service["read_only"], name
    assert service["user"] == "1000:1000"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "memory" in service["deploy"]["resources"]["limits"]
    assert service["command"][0] in PROCESSES
    if name != "migrate":
        assert service["healthcheck"]["test"][:2] == ["CMD", "probe"]
        assert service["restart"] == "${RESTART:-unless-stopped}"


@pytest.mark.parametrize(("name", "service"), ours(TWO).items())
def test_variables__are_settings__and_secrets_are_files(
    name: str, service: dict[str, Any]
) -> None:
    given = service["environment"]
    files = {
        each.removesuffix("_FILE").lower() for each in given if each.endswith("_FILE")
    }
    assert files <= set(IN_FILES), name
    assert {each.lower() for each in given if not each.endswith("_FILE")} <= set(
        Settings.model_fields
    )
    mounted = {
        each if isinstance(each, str) else each["target"] for each in service["secrets"]
    }
    assert {
        str(path).rpartition("/")[2]
        for path in given.values()
        if "/run/secrets/" in str(path)
    } <= mounted


# The services that have each secret of a cluster, in both files: of the second cluster
# they are `second-...`.
HOLDERS = {
    "eth_private_key": {"worker-chain"},
    "ldap_bind_password": {"worker-chain"},
    "metascheduler_endpoint_rpc": {"worker-chain", "worker-slurm"},
    "metascheduler_endpoint_ws": {"worker-chain", "worker-slurm"},
    "slurm_ssh_private_key": {"worker-slurm"},
    "slurm_ssh_ca_key": {"worker-slurm"},
    "slurm_submit_key": {"worker-slurm"},
    "slurm_jwt_key": {"worker-slurm"},
    "callback_key": {"callbacks"},
    "tls_key": {"callbacks"},
}
OF_THE_SITE = {
    "postgres_password": {"postgres"},
    "redis_password": {"redis"},
    "grafana_password": {"grafana"},
    "flower_basic_auth": {"flower"},
}
WORKERS = {"worker-chain", "worker-slurm", "second-worker-chain", "second-worker-slurm"}
SENDS_TRACES = {*WORKERS, "callbacks", "second-callbacks"}


def everything() -> dict[str, Any]:
    """All services of both files."""
    files = [yaml.safe_load((DOCKER / file).read_text()) for file in TWO]
    return {
        name: service for file in files for name, service in file["services"].items()
    }


@pytest.mark.parametrize(("name", "service"), everything().items())
def test_service__each__has_a_limit_of_cpus_and_of_memory(
    name: str, service: dict[str, Any]
) -> None:
    limits = service["deploy"]["resources"]["limits"]
    assert set(limits) == {"cpus", "memory"}, name
    assert re.fullmatch(r"\d+(\.\d+)?", default_of(limits["cpus"])), name
    assert re.fullmatch(r"\d+[mg]", default_of(limits["memory"])), name


def default_of(value: str) -> str:
    """What compose takes where a site says nothing: `${NAME:-default}`."""
    return re.sub(r"\$\{\w+:-(.*)\}", r"\1", value)


def test_keys__of_both_clusters__are_only_in_the_containers_that_work_with_them() -> (
    None
):
    holders: dict[str, set[str]] = {}
    for name, service in everything().items():
        for each in service.get("secrets", ()):
            holders.setdefault(
                each if isinstance(each, str) else each["source"], set()
            ).add(name)
    supervisors = set(ours(TWO))
    second = {}
    for secret, names in HOLDERS.items():
        second[f"second_{secret}"] = {f"second-{name}" for name in names}
    known = HOLDERS | OF_THE_SITE | second
    assert {
        secret: names for secret, names in holders.items() if secret in known
    } == known
    others = {secret: names for secret, names in holders.items() if secret not in known}
    assert others == {
        "database_url": supervisors,
        "broker_url": supervisors - {"migrate", "metrics", "second-metrics"},
        "otel_exporter_otlp_endpoint": SENDS_TRACES,
    } | {name: WORKERS for name in others if name.startswith("notify_")}


def test_new_secrets__makes_passwords_once__in_a_folder_of_roots(
    tmp_path: Path,
) -> None:
    folder = copied(tmp_path)
    script = folder / "new-secrets.sh"
    engine(script)
    secrets = folder / "secrets"
    before = {file.name: file.read_text() for file in secrets.iterdir()}
    assert before["postgres_password"] in before["database_url"]
    assert before["redis_password"] in before["broker_url"]
    assert (
        len(
            {
                before[name]
                for name in before
                if name.endswith("_password") and before[name]
            }
        )
        == 4
    )
    assert before["eth_private_key"] == ""
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o700
    engine(script)
    engine(script, "second")
    assert {
        file.name: file.read_text() for file in secrets.iterdir() if file.is_file()
    } == before
    named = yaml.safe_load((DOCKER / "compose.yaml").read_text())["secrets"]
    named |= yaml.safe_load((DOCKER / "compose.clusters.yaml").read_text())["secrets"]
    assert all((folder / each["file"]).is_file() for each in named.values())


def asked_redis(stack: Stack, setting: str) -> list[str]:
    """The words that the stack's Redis answers about a setting, given its password."""
    command = f'REDISCLI_AUTH="$(cat /run/secrets/redis_password)" redis-cli config get {setting}'
    return stack.compose("exec", "-T", "redis", "sh", "-c", command).split()


class Load:
    """Jobs of a customer: short ones, and one that runs until the test lets it end."""

    def __init__(self, stack: Stack, grid: Grid, customer: Account) -> None:
        self.stack, self.grid, self.customer = stack, grid, customer
        self.asked: list[str] = []

    def through(self, commands: str, *services: str) -> None:
        """Run commands that replace the containers of these services, while jobs are
        under way at their begin and their end.
        """
        before = {service: self.stack.containers(service) for service in services}
        go = chaos_jobs.start_records(self.grid) / f"go-{len(self.asked)}"
        body = f'until [ -e "{go}" ]; do sleep 0.1; done'
        (held,) = self._submit(body, 1)
        wait_for(self.grid, held, {ChainStatus.RUNNING}, 180.0)
        short = self._submit("sleep 1", JOBS_A_RESTART - 1)
        assert self._open(short), (
            "all short jobs had ended before a container was replaced"
        )
        self.stack.follow(commands)
        for service in services:
            assert set(before[service]).isdisjoint(self.stack.containers(service)), (
                service
            )
        assert self._open([held]) == [held]
        self.stack.wait_for_health(*services)
        assert self._open([held]) == [held]
        go.touch()

    def _submit(self, body: str, count: int) -> list[str]:
        submitted = self.grid.submit_scripts(
            self.customer, chaos_jobs.marking(self.grid, body), count
        )
        self.asked += submitted
        return submitted

    def _open(self, asked: list[str]) -> list[str]:
        """The jobs among these that the chain has not settled."""
        return [
            job_id
            for job_id in asked
            if not self.grid.chain.job(job_id).status.is_final
        ]


def upgraded(stack: Stack, grid: Grid, customer: Account) -> list[str]:
    """Follow the page's upgrade line by line under load, then replace two slurm workers
    one by one; the jobs of all this.
    """
    load = Load(stack, grid, customer)
    migrate, *lines = UPGRADE.splitlines()
    stack.follow(migrate)
    for line in lines:
        _, _, services = line.partition("--force-recreate ")
        load.through(line, *services.split())
    stack.follow("docker compose up -d --no-deps --scale worker-slurm=2 worker-slurm")
    stack.wait_for_health("worker-slurm")
    assert len(stack.containers("worker-slurm")) == 2
    load.through(ONE_BY_ONE, "worker-slurm")
    assert len(stack.containers("worker-slurm")) == 2
    return load.asked


def restored(stack: Stack, grid: Grid, customer: Account) -> None:
    """Follow the page's backup and restore: a job that ran after the dump is in the
    restored ledger, too, and a new one goes through.
    """
    backups = stack.folder / "backups"
    backups.mkdir()
    export = f"export BACKUPS={shlex.quote(str(backups))}\n"
    stack.follow(export + EACH_NIGHT)
    assert [dump.suffix for dump in backups.iterdir()] == [".dump"]
    after = settled(grid, customer)
    stack.follow(export + RESTORE)
    stack.wait_for_health(*FLEET)
    url = (stack.folder / "secrets" / "database_url").read_text()
    assert re.search(r"/restored_\d+t\d+$", url)
    stack.follow(export + EACH_NIGHT)  # of the restored database
    wait_until(
        lambda: after in in_beat(stack, "job list --state settled -o name"),
        "the restored ledger to know a job that ran after the dump",
        180.0,
    )
    settled(grid, customer)


def settled(grid: Grid, customer: Account) -> str:
    """A job that has gone through."""
    job_id = grid.submit(customer, HELLO.read_text())
    wait_until(
        lambda: grid.chain.job(job_id).status.is_final, "the job to be settled", 180.0
    )
    job = grid.chain.job(job_id)
    assert (job.status, job.exit_code) == (ChainStatus.FINISHED, 0)
    assert f"hello world, from {customer.address}" in grid.output(
        customer.address, job_id
    )
    return job_id


@pytest.mark.timeout(1500)  # twelve containers, on a machine that may be busy
def test_stack__takes_a_job__is_restarted_under_load_and_loses_nothing(
    stack: Stack, grid: Grid
) -> None:
    stack.serve(grid.cluster)
    stack.compose("up", "--detach")
    stack.wait_for_health(*FLEET)
    customer = grid.new_customer()
    job_id = settled(grid, customer)
    assert len(LOOKS) == 6
    for words in LOOKS:
        in_beat(stack, words.replace("0x7903", job_id[:10]))
    for service in FLEET:
        about = stack.inspected(service)
        assert about["HostConfig"]["ReadonlyRootfs"], service
        assert about["HostConfig"]["Memory"] > 0, service
        assert about["HostConfig"]["NanoCpus"] > 0, service
    assert "NOAUTH" in stack.compose(
        "exec", "-T", "redis", "redis-cli", "config", "get", "appendonly"
    )
    assert asked_redis(stack, "appendonly") == ["appendonly", "no"]
    assert asked_redis(stack, "save") == ["save"]  # no snapshots either
    stack.compose(*PROFILE, "up", "--detach", "--no-deps", "prometheus")
    stack.wait_for_health("prometheus")
    wait_until(
        lambda: stack.scraped() == SCRAPED, "Prometheus to read each process", 120.0
    )

    asked = upgraded(stack, grid, customer)
    wait_until(
        lambda: all(grid.chain.job(job).status.is_final for job in asked),
        "all jobs to be settled",
        300.0,
    )
    ended = {
        (grid.chain.job(job).status, grid.chain.job(job).exit_code) for job in asked
    }
    assert ended == {(ChainStatus.FINISHED, 0)}
    ran = [
        file.name.rpartition("-")[0]
        for file in chaos_jobs.start_records(grid).iterdir()
        if not file.name.startswith("go-")
    ]
    assert sorted(ran) == sorted(asked)  # each once
    for service in FLEET:
        assert "Traceback" not in stack.logs(service), service
    restored(stack, grid, customer)

    in_beat(stack, PAUSE)
    assert "paused by an operator" in in_beat(stack, "status")
    assert job_id not in in_beat(stack, f"{LIST} -o name")
    stack.compose(*TAKE_DOWN.split(), timeout_s=600)
    assert stack.containers("worker-chain") == []
    stack.compose(*UP_AGAIN.split())
    stack.wait_for_health(*FLEET)
    assert "paused by an operator" in in_beat(stack, "status")  # it is in the ledger
    in_beat(stack, RESUME)
    settled(grid, customer)


def in_beat(stack: Stack, words: str) -> str:
    """Give a command of the page to `supervisor` in beat's container."""
    return stack.compose("exec", "-T", "beat", "supervisor", *shlex.split(words))


@pytest.mark.timeout(1500)
def test_two_clusters__one_over_slurmrestd__each_takes_a_job_of_its_own(
    stack: Stack, grid: Grid
) -> None:
    stack.files = list(TWO)
    shutil.copy(stack.folder / ".env.example", stack.folder / "second.env")
    subprocess.run([stack.folder / "new-secrets.sh", "second"], check=True)
    first, second = grid.clusters
    stack.serve(first)
    stack.serve(second, "second.env", "second")
    stack.compose("up", "--detach")
    stack.wait_for_health(
        *FLEET, *(f"second-{name}" for name in FLEET if name != "flower")
    )
    customer = grid.new_customer()
    asked = {
        grid.submit(customer, HELLO.read_text(), on=cluster): cluster
        for cluster in grid.clusters
    }
    for job_id, cluster in asked.items():
        wait_until(
            lambda job_id=job_id: grid.chain.job(job_id).status.is_final,  # type: ignore[misc]
            "the job to be settled",
            180.0,
        )
        job = grid.chain.job(job_id)
        assert (job.status, job.exit_code, job.provider) == (
            ChainStatus.FINISHED,
            0,
            cluster.provider.address,
        )
        assert f"hello world, from {customer.address}" in cluster.output(
            customer.address, job_id
        )
    listed = stack.compose("exec", "-T", "beat", "supervisor", "cluster", "list")
    assert all(
        re.search(rf"^{name}\b", listed, re.MULTILINE) for name in ("main", "second")
    )
    for service in ours(TWO):
        assert "Traceback" not in stack.logs(service), service
    stack.compose("down", timeout_s=600)
