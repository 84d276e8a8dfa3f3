"""The fleet as a provider runs it: worker, beat, gRPC process, Flower."""

import http.client
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from devgrid.process import Processes, Running, answers, free_port, wait_until

REPOSITORY = Path(__file__).resolve().parent.parent
CELERY = (sys.executable, "-m", "celery", "-A", "supervisor_tasks")
# A worker alone talks to nobody but the broker; without these it is ready a second earlier.
LONE_WORKER = ("--without-gossip", "--without-mingle", "--without-heartbeat")


class Fleet:
    """Processes of one cluster. `environment` holds the supervisor's settings."""

    def __init__(self, processes: Processes, environment: Mapping[str, str], name: str = "") -> None:
        self.processes = processes
        self.environment = dict(environment)
        self._name = name
        self.flower_port = 0

    def start(self, flower: bool = True) -> None:
        """Bring the ledger up to date and start everything; returns when the gRPC process listens."""
        self.migrate()
        self.start_callbacks(wait=False)
        self.start_worker()
        self.start_beat()
        if flower:
            self.start_flower()
        self.wait_for_callbacks()

    def migrate(self) -> None:
        """`alembic upgrade head`."""
        argv = [sys.executable, "-m", "alembic", "upgrade", "head"]
        done = subprocess.run(argv, cwd=REPOSITORY, env=self.environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"alembic ended with status {done.returncode}:\n{done.stdout}{done.stderr}")

    def start_worker(self, name: str = "worker", *options: str) -> Running:
        """A worker of all queues, or as the options say."""
        argv = [*CELERY, "worker", "--hostname", f"{name}@%h", "--loglevel", "INFO", *LONE_WORKER, *options]
        return self._start(name, argv)

    def start_beat(self, name: str = "beat") -> Running:
        """The clock."""
        return self._start(name, [*CELERY, "beat", "--pidfile=", "--loglevel", "INFO"])

    def start_callbacks(self, wait: bool = True) -> Running:
        """The gRPC process."""
        running = self._start("callbacks", [sys.executable, "-m", "grpc_callbacks"])
        if wait:
            self.wait_for_callbacks()
        return running

    def wait_for_callbacks(self) -> None:
        """Until the gRPC process takes calls."""
        port = int(self.environment["LISTEN_ADDRESS"].rpartition(":")[2])
        wait_until(lambda: answers(port), "the gRPC process to listen", 30.0)

    def start_flower(self) -> Running:
        """The operator's dashboard."""
        self.flower_port = free_port()
        options = ["--address=127.0.0.1", f"--port={self.flower_port}", "--logging=warning"]
        return self._start("flower", [*CELERY, "flower", *options])

    @property
    def flower_url(self) -> str:
        """Where Flower is."""
        return f"http://127.0.0.1:{self.flower_port}"

    def wait_for_flower(self) -> None:
        """Until Flower serves its first page."""
        wait_until(self._flower_serves, "Flower to answer", 30.0)

    def find(self, name: str) -> Running:
        """A process of the fleet."""
        return self.processes.find(f"{self._name}{name}")

    def _flower_serves(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.flower_port, timeout=2)
        try:
            connection.request("GET", "/healthcheck")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()

    def _start(self, name: str, argv: Sequence[str | Path]) -> Running:
        return self.processes.start(f"{self._name}{name}", argv, env=self.environment, cwd=REPOSITORY)
