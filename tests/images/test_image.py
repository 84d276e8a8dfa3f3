"""The image as an orchestrator runs it: any user, read-only, every process, and a job
through a fleet of containers.
"""

import http.client
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from devgrid import REPOSITORY
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.ports import free_port
from devgrid.processes import answers, wait_until
from supervisor_tasks.cli.run_command import PROCESSES
from supervisor_tasks.config import ssh_keys
from supervisor_tasks.config.needs import KEYS
from supervisor_tasks.config.settings import IN_FILES
from supervisor_tasks.jobs.model import ChainStatus
from tests.images.containers import POSTGRES, REDIS, Containers, engine, inspected

MAX_MB = 350
ENDS_WITHIN_S = 60
KILLED = 137
# which `make demo` runs
DEMO = REPOSITORY / "devgrid" / "workflows" / "one-minute.yaml"
USERS = {
    "worker-chain": "1000:1000",
    "worker-slurm": "4242:4242",
    "beat": "100001:0",
    "flower": "65534:65534",
}
# A volume as Kubernetes makes one for an emptyDir in memory, in a pod with an fsGroup.
# The others have one of podman's.
VOLUMES = {"callbacks": ("--tmpfs", "/var/lib/supervisor:size=64m,mode=3777")}
IN_CONTAINER = "/run/secrets/supervisor"
# Settings of the grid that name this machine's files, and those that a container gets
# from the image.
OF_THE_MACHINE = {"PATH", "HOME", "STATE_DIR", "LC_ALL", "DATABASE_URL", "BROKER_URL"}
FILES = ("TLS_CERT", "TLS_KEY", "SBATCH_CA", "SLURM_SSH_KNOWN_HOSTS")


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    running = Grid.start(GridOptions(block_time_s=0.25))
    yield running
    running.stop()


class ContainerFleet:
    """The fleet of a grid, in containers. Each process gets the files of the secrets
    that it works with.
    """

    def __init__(self, containers: Containers, grid: Grid, image: str) -> None:
        self.containers, self.grid, self.image = containers, grid, image
        self.ports = {
            name: free_port()
            for name in (
                "postgres",
                "redis",
                "worker-chain",
                "worker-slurm",
                *PROCESSES,
            )
        }
        self._plain = {
            name: value
            for name, value in grid.environment.items()
            if name not in OF_THE_MACHINE
            and name.lower() not in IN_FILES
            and name not in FILES
        }
        for name in FILES:
            self._plain[name] = (
                f"{IN_CONTAINER}/{containers.secret(name.lower(), _read(grid, name)).name}"
            )
        for name in ("METASCHEDULER_ENDPOINT_RPC", "METASCHEDULER_ENDPOINT_WS"):
            self._plain[name] = grid.environment[name]
        for name in KEYS:
            if name.upper() in grid.environment:
                containers.secret(name, grid.environment[name.upper()])
        containers.secret("password", "a password")
        containers.secret(
            "database_url",
            f"postgresql://postgres:a%20password@127.0.0.1:{self.ports['postgres']}/postgres",
        )
        containers.secret(
            "broker_url", f"redis://:a%20password@127.0.0.1:{self.ports['redis']}"
        )
        containers.secret("flower_basic_auth", "operator:secret")

    @property
    def cluster(self) -> str:
        return self.grid.environment["CLUSTER_NAME"]

    def start_servers(self) -> None:
        """Postgres and Redis, each with a password."""
        password = {"POSTGRES_PASSWORD_FILE": f"{IN_CONTAINER}/password"}
        postgres = [
            "postgres",
            "-c",
            f"port={self.ports['postgres']}",
            "-c",
            "unix_socket_directories=",
        ]
        self.containers.start(
            "postgres", POSTGRES, *postgres, environment=password, user="postgres"
        )
        redis = [
            "redis-server",
            "--port",
            str(self.ports["redis"]),
            "--save",
            "",
            "--requirepass",
            "a password",
        ]
        self.containers.start("redis", REDIS, *redis, environment={}, user="redis")
        for name in ("postgres", "redis"):
            wait_until(
                lambda port=self.ports[name]: answers(port),  # type: ignore[misc]
                f"{name} to answer",
                60.0,
            )

    def start(
        self, name: str, process: str, *options: str, secrets: tuple[str, ...] = ()
    ) -> str:
        """A process, which answers probes at a port of its own."""
        given = {
            f"{secret.upper()}_FILE": f"{IN_CONTAINER}/{secret}"
            for secret in ("database_url", "broker_url", *secrets)
        }
        environment = (
            self._plain | given | {"HEALTH_ADDRESS": f"127.0.0.1:{self.ports[name]}"}
        )
        if process == "callbacks":
            private = self.grid.environment["SLURM_SSH_PRIVATE_KEY"]
            environment["SLURM_SSH_PUBLIC_KEY"] = ssh_keys.public_half(private)
        user = USERS.get(name, "1000:1000")
        volume = VOLUMES.get(name, ())
        return self.containers.start(
            name,
            self.image,
            process,
            *options,
            environment=environment,
            user=user,
            options=volume,
        )

    def wait_for(self, name: str, container: str) -> None:
        """Until a process is ready, and its container's health check says that it is
        alive.
        """
        wait_until(
            lambda: status_of(self.ports[name], "readyz") == 200,
            f"{name} to be ready",
            120.0,
        )
        wait_until(
            lambda: self.containers.execute(container, "probe", "livez")[0] == 0,
            f"{name} to be alive",
            60.0,
        )

    def start_all(self) -> Mapping[str, str]:
        """The fleet: worker of the chain, worker of SLURM, beat, gRPC process, Flower
        and metrics.
        """
        waiting = self.start("wait", "wait")
        wait_until(
            lambda: "tables_awaited" in self.containers.logs(waiting),
            "the wait for tables to begin",
            60.0,
        )
        assert self.containers.wait_for_end(self.start("migrate", "migrate")) == 0
        assert self.containers.wait_for_end(waiting) == 0
        chain, slurm = (
            f"{self.cluster}.chain",
            f"{self.cluster}.slurm,{self.cluster}.benchmark",
        )
        return {
            "worker-chain": self.start(
                "worker-chain", "worker", "-Q", chain, secrets=("eth_private_key",)
            ),
            "worker-slurm": self.start(
                "worker-slurm",
                "worker",
                "-Q",
                slurm,
                secrets=("slurm_ssh_private_key", "slurm_submit_key"),
            ),
            "beat": self.start("beat", "beat"),
            "callbacks": self.start(
                "callbacks", "callbacks", secrets=("callback_key",)
            ),
            "flower": self.start(
                "flower",
                "flower",
                f"--port={free_port()}",
                secrets=("flower_basic_auth",),
            ),
            "metrics": self.start(
                "metrics", "metrics", "--listen", f"127.0.0.1:{self.ports['metrics']}"
            ),
        }


def _read(grid: Grid, name: str) -> bytes:
    return Path(grid.environment[name]).read_bytes()


def status_of(port: int, page: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", f"/{page}")
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def test_image__its_description__is_small_labelled_and_not_roots(image: str) -> None:
    about = inspected(image)
    assert about["Size"] < MAX_MB * 10**6
    assert about["Labels"]["org.opencontainers.image.version"] == "1.2.3"
    assert about["Labels"]["org.opencontainers.image.revision"] == "0123456789abcdef"
    configuration = about["Config"]
    assert (configuration["User"], configuration["Entrypoint"]) == (
        "1000:1000",
        ["supervisor", "run"],
    )
    assert configuration["StopSignal"] == "SIGTERM"
    assert list(configuration["Volumes"]) == ["/var/lib/supervisor"]


def test_image__programs_and_modules__include_no_compiler_and_no_test_tool(
    image: str,
) -> None:
    code = (
        "import importlib.util as u, json, shutil;"
        "programs = [p for p in ('gcc', 'cc', 'g++', 'make', 'ld', 'strip', 'pip', 'pytest', 'mypy') if shutil.which(p)];"
        "modules = [m for m in ('pytest', 'hypothesis', 'selenium', 'mypy', 'pip', 'grpc_tools', 'devgrid', 'tests')"
        " if u.find_spec(m)];"
        "print(json.dumps(programs + modules))"
    )
    assert (
        json.loads(
            engine(
                "podman", "run", "--rm", "--entrypoint", "python3", image, "-c", code
            )
        )
        == []
    )


def test_image__each_process__is_known_to_the_entrypoint(image: str) -> None:
    shown = engine("podman", "run", "--rm", "--read-only", "--user", "4242:4242", image)
    assert all(name in shown for name in PROCESSES)


# which ends by itself without its options
@pytest.mark.parametrize("process", set(PROCESSES) - {"reporter"})
def test_process__asked_to_end_while_it_starts__ends(
    image: str, containers: Containers, process: str
) -> None:
    """The kernel drops a signal that the first process of a container has no handler
    for.
    """
    urls = {
        "DATABASE_URL": "postgresql://127.0.0.1:1/none",
        "BROKER_URL": "redis://127.0.0.1:1",
    }
    options = ("--wait-s=600",) if process == "migrate" else ()
    container = containers.start(process, image, process, *options, environment=urls)
    wait_until(
        lambda: containers.can_be_asked_to_end(container),
        "Python to have started",
        60.0,
    )
    assert containers.end(container, ENDS_WITHIN_S) != KILLED


def test_fleet__in_containers__takes_a_job_to_its_end_and_ends_in_order(
    image: str, servers: None, grid: Grid, containers: Containers
) -> None:
    fleet = ContainerFleet(containers, grid, image)
    fleet.start_servers()
    started = fleet.start_all()
    for name in started:
        fleet.wait_for(name, started[name])
    customer = grid.new_customer()
    job_id = grid.submit(customer, DEMO.read_text())
    wait_until(
        lambda: grid.chain.job(job_id).status.is_final, "the job to be settled", 180.0
    )
    job = grid.chain.job(job_id)
    assert (job.status, job.exit_code) == (ChainStatus.FINISHED, 0)
    assert job.final_cost_wei > 0
    assert f"hello world, from {customer.address}" in grid.output(
        customer.address, job_id
    )
    assert (
        containers.execute(started["beat"], "supervisor", "job", "show", job_id)[0] == 0
    )
    wait_until(
        lambda: status_of(fleet.ports["metrics"], "metrics") == 200, "the metrics", 60.0
    )
    for name, container in started.items():
        written = engine("podman", "diff", container).splitlines()
        assert {
            line
            for line in written
            if "/var/lib/supervisor" not in line and "/run" not in line
        } <= {"C /etc"}, name
        assert "Traceback" not in containers.logs(container), name
        assert containers.end(container, ENDS_WITHIN_S) != KILLED, (
            f"{name} did not end by itself"
        )


def waiting_reports(log: str) -> list[int]:
    """How many reports waited in the spool, each time that the reporter has told its
    figures.
    """
    lines = [json.loads(line) for line in log.splitlines()]
    return [line["waiting"] for line in lines if line["event"] == "reporter_figures"]


def test_reporter__in_a_container__watches_its_spool_and_ends_in_order(
    image: str, grid: Grid, containers: Containers, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    spool.chmod(0o777)
    containers.secret("ca", (grid.folder / "tls" / "ca.pem").read_bytes())
    options = [
        "--spool",
        "/spool",
        "--supervisor",
        grid.environment["PUBLIC_ADDRESS"],
        "--ca",
        f"{IN_CONTAINER}/ca",
    ]
    health = {"HEALTH_ADDRESS": f"127.0.0.1:{free_port()}"}
    volume = ["--volume", f"{spool}:/spool"]
    reporter = containers.start(
        "reporter", image, "reporter", *options, environment=health, options=volume
    )
    wait_until(
        lambda: 0 in waiting_reports(containers.logs(reporter)),
        "the reporter to look",
        60.0,
    )
    wait_until(
        lambda: containers.execute(reporter, "probe", "livez")[0] == 0,
        "the reporter to be alive",
        60.0,
    )
    assert containers.end(reporter, ENDS_WITHIN_S) != KILLED
