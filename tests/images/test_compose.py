"""docker/compose.yaml, run by podman-compose against devgrid: a job, a rolling restart under load, two clusters."""

import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from devgrid import REPOSITORY
from devgrid.grid import Grid
from devgrid.options import ClusterOptions, GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.cli.run_command import PROCESSES
from supervisor_tasks.config.settings import IN_FILES, Settings
from supervisor_tasks.jobs.model import ChainStatus
from tests.chaos import jobs
from tests.images import stacks
from tests.images.containers import engine
from tests.images.stacks import Stack

DOCKER = REPOSITORY / "docker"
HELLO = REPOSITORY / "devgrid" / "workflows" / "hello-world.yaml"
FLEET = ("worker-chain", "worker-slurm", "beat", "callbacks", "flower", "metrics")
RESTARTED = ("worker-slurm", "worker-chain", "beat", "callbacks")
JOBS_A_RESTART = 15
PAGE = (REPOSITORY / "docs" / "how-to" / "deploy.md").read_text()
LOOKS = re.findall(r"^docker compose exec beat supervisor ([^#\n]+?) *(?:#.*)?$", PAGE, re.MULTILINE)
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
    return {name: each for name, each in services.items() if "grid-supervisor" in each["image"]}


@pytest.mark.parametrize("files", [ONE, TWO])
def test_files__are_taken_by_compose(files: tuple[str, ...], tmp_path: Path) -> None:
    folder = stacks.copied(tmp_path)
    for name in (".env", "second.env"):
        (folder / name).write_text((folder / ".env.example").read_text())
    made = stacks.config(folder, *files)
    services = made["services"]
    assert set(services) >= {"postgres", "redis", "migrate", "prometheus", "grafana", *ours(files)}
    for name, service in services.items():
        named = {each if isinstance(each, str) else each["source"] for each in service.get("secrets", [])}
        assert named <= set(made["secrets"]), name
        assert set(service.get("depends_on", ())) <= set(services), name


@pytest.mark.parametrize(("name", "service"), ours(TWO).items())
def test_service__each__is_confined_and_watched(name: str, service: dict[str, Any]) -> None:
    assert service["read_only"], name
    assert service["user"] == "1000:1000"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "memory" in service["deploy"]["resources"]["limits"]
    assert service["command"][0] in PROCESSES
    if name != "migrate":
        assert service["healthcheck"]["test"][:2] == ["CMD", "probe"]
        assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize(("name", "service"), ours(TWO).items())
def test_variables__are_settings__and_secrets_are_files(name: str, service: dict[str, Any]) -> None:
    given = service["environment"]
    files = {each.removesuffix("_FILE").lower() for each in given if each.endswith("_FILE")}
    assert files <= set(IN_FILES), name
    assert {each.lower() for each in given if not each.endswith("_FILE")} <= set(Settings.model_fields)
    mounted = {each if isinstance(each, str) else each["target"] for each in service["secrets"]}
    assert {str(path).rpartition("/")[2] for path in given.values() if "/run/secrets/" in str(path)} <= mounted


def test_keys__are_in_the_containers_that_work_with_them_and_in_no_others() -> None:
    holders: dict[str, set[str]] = {}
    for name, service in ours(TWO).items():
        for each in service["secrets"]:
            holders.setdefault(each if isinstance(each, str) else each["source"], set()).add(name)
    assert holders["eth_private_key"] == {"worker-chain"}
    assert holders["second_eth_private_key"] == {"second-worker-chain"}
    assert holders["slurm_ssh_private_key"] == holders["slurm_submit_key"] == {"worker-slurm"}
    assert holders["second_slurm_ssh_private_key"] == {"second-worker-slurm"}
    assert holders["callback_key"] == holders["tls_key"] == {"callbacks"}
    assert holders["flower_basic_auth"] == {"flower"}


def test_new_secrets__makes_passwords_once__in_a_folder_of_roots(tmp_path: Path) -> None:
    folder = stacks.copied(tmp_path)
    script = folder / "new-secrets.sh"
    engine(script)
    secrets = folder / "secrets"
    before = {file.name: file.read_text() for file in secrets.iterdir()}
    assert before["postgres_password"] in before["database_url"]
    assert before["redis_password"] in before["broker_url"]
    assert len({before[name] for name in before if name.endswith("_password") and before[name]}) == 4
    assert before["eth_private_key"] == ""
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o700
    engine(script)
    engine(script, "second")
    assert {file.name: file.read_text() for file in secrets.iterdir() if file.is_file()} == before
    named = yaml.safe_load((DOCKER / "compose.yaml").read_text())["secrets"]
    named |= yaml.safe_load((DOCKER / "compose.clusters.yaml").read_text())["secrets"]
    assert all((folder / each["file"]).is_file() for each in named.values())


def asked_redis(stack: Stack, setting: str) -> list[str]:
    """The words that the stack's Redis answers about a setting, given its password."""
    command = f'REDISCLI_AUTH="$(cat /run/secrets/redis_password)" redis-cli config get {setting}'
    return stack.compose("exec", "-T", "redis", "sh", "-c", command).split()


@pytest.mark.timeout(1500)  # twelve containers, on a machine that may be busy
def test_stack__takes_a_job__is_restarted_under_load_and_loses_nothing(stack: Stack, grid: Grid) -> None:
    stack.serve(grid.cluster)
    stack.compose("up", "--detach")
    stack.wait_for_health(*FLEET)
    customer = grid.new_customer()
    job_id = grid.submit(customer, HELLO.read_text())
    wait_until(lambda: grid.chain.job(job_id).status.cold, "the job to be settled", 180.0)
    assert (grid.chain.job(job_id).status, grid.chain.job(job_id).exit_code) == (ChainStatus.FINISHED, 0)
    assert f"hello world, from {customer.address}" in grid.output(customer.address, job_id)
    assert len(LOOKS) == 6
    for words in LOOKS:
        stack.compose("exec", "-T", "beat", "supervisor", *words.replace("0x7903", job_id[:10]).split())
    for service in FLEET:
        about = stack.inspected(service)
        assert about["HostConfig"]["ReadonlyRootfs"], service
        assert about["HostConfig"]["Memory"] > 0, service
    assert "NOAUTH" in stack.compose("exec", "-T", "redis", "redis-cli", "config", "get", "appendonly")
    assert asked_redis(stack, "appendonly") == ["appendonly", "no"]
    assert asked_redis(stack, "save") == ["save"]  # no snapshots either
    stack.compose(*PROFILE, "up", "--detach", "--no-deps", "prometheus")
    stack.wait_for_health("prometheus")
    wait_until(lambda: stack.scraped() == SCRAPED, "Prometheus to read each process", 120.0)

    asked: list[str] = []
    before = {service: stack.containers(service) for service in RESTARTED}
    for service in RESTARTED:
        asked += grid.submit_scripts(customer, jobs.marking(grid, "sleep 1"), JOBS_A_RESTART)
        stack.compose("up", "--detach", "--no-deps", "--force-recreate", service)
        stack.wait_for_health(service)
    assert all(set(before[service]).isdisjoint(stack.containers(service)) for service in RESTARTED)
    wait_until(lambda: all(grid.chain.job(job).status.cold for job in asked), "all jobs to be settled", 300.0)
    ended = {(grid.chain.job(job).status, grid.chain.job(job).exit_code) for job in asked}
    assert ended == {(ChainStatus.FINISHED, 0)}
    ran = [file.name.rpartition("-")[0] for file in jobs.marks(grid).iterdir()]
    assert sorted(ran) == sorted(asked)  # each once
    for service in FLEET:
        assert "Traceback" not in stack.logs(service), service

    stack.compose(*PROFILE, "down", timeout_s=600)
    assert stack.containers("worker-chain") == []


@pytest.mark.timeout(1500)
def test_two_clusters__one_over_slurmrestd__each_takes_a_job_of_its_own(stack: Stack, grid: Grid) -> None:
    stack.files = list(TWO)
    shutil.copy(stack.folder / ".env.example", stack.folder / "second.env")
    subprocess.run([stack.folder / "new-secrets.sh", "second"], check=True)
    first, second = grid.clusters
    stack.serve(first)
    stack.serve(second, "second.env", "second")
    stack.compose("up", "--detach")
    stack.wait_for_health(*FLEET, *(f"second-{name}" for name in FLEET if name != "flower"))
    customer = grid.new_customer()
    asked = {grid.submit(customer, HELLO.read_text(), on=cluster): cluster for cluster in grid.clusters}
    for job_id, cluster in asked.items():
        wait_until(lambda job_id=job_id: grid.chain.job(job_id).status.cold, "the job to be settled", 180.0)  # type: ignore[misc]
        job = grid.chain.job(job_id)
        assert (job.status, job.exit_code, job.provider) == (ChainStatus.FINISHED, 0, cluster.provider.address)
        assert f"hello world, from {customer.address}" in cluster.output(customer.address, job_id)
    listed = stack.compose("exec", "-T", "beat", "supervisor", "cluster", "list")
    assert all(re.search(rf"^{name}\b", listed, re.MULTILINE) for name in ("main", "second"))
    for service in ours(TWO):
        assert "Traceback" not in stack.logs(service), service
    stack.compose("down", timeout_s=600)
