"""Record the answers of this machine's slurmrestd, as test data: python -m
tests.support.record_slurmrestd

It writes tests/data/slurm/rest/NAME-slurm-VERSION.json: the unchanged status and body,
in the newest version of the API that both the product and slurmrestd know. The requests
are the product's. The folder of the cluster, host and kernel are replaced.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import urllib3

from devgrid.cluster.linux_users import Users, admin
from devgrid.cluster.slurm import Slurm, slurm_version
from devgrid.cluster.slurmrestd import Slurmrestd, jwt_conf, new_jwt_key
from devgrid.ports import free_port
from devgrid.processes import wait_until
from devgrid.state_folder import private_processes
from supervisor_tasks.jobs.model import Address, Definition, JobId
from supervisor_tasks.slurm.rest_requests import submission
from supervisor_tasks.slurm.rest_tokens import TokenMint
from supervisor_tasks.slurm.rest_versions import VERSIONS, written
from tests.support.record_slurm import DATA

CUSTOMER, OTHER = Address("0x" + "a" * 40), Address("0x" + "b" * 40)
TOKEN_FOR_S = 600
ANSWERED_WITHIN_S = 60.0
UNKNOWN = 999
FOREVER_MIN = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Recorder:
    """Sends requests to slurmrestd and writes the answers."""

    slurm: Slurm
    daemon: Slurmrestd
    version: str

    def ask(
        self,
        method: str,
        path: str,
        user: str,
        body: Mapping[str, Any] | None = None,
        left_s: int = TOKEN_FOR_S,
    ) -> urllib3.BaseHTTPResponse:
        """Send one request, as the product does."""
        now_s = int(time.time())
        token = TokenMint(self.daemon.key.read_bytes()).token(
            user, now_s - TOKEN_FOR_S, now_s + left_s
        )
        headers = {"X-SLURM-USER-NAME": user, "X-SLURM-USER-TOKEN": token}
        json_body = None if body is None else dict(written(self.version, body))
        return urllib3.request(
            method,
            f"http://{self.daemon.address}/slurm/{path}",
            headers=headers,
            json=json_body,
            retries=False,
            timeout=ANSWERED_WITHIN_S,
        )

    def keep(
        self,
        name: str,
        method: str,
        path: str,
        user: str | None = None,
        body: Mapping[str, Any] | None = None,
        left_s: int = TOKEN_FOR_S,
    ) -> Any:
        """Send a request, and write the answer under this name."""
        asked_s = time.monotonic()
        answer = self.ask(
            method, f"{self.version}/{path}", user or admin(), body, left_s
        )
        print(
            f"{name}: status {answer.status} after {time.monotonic() - asked_s:.1f} s",
            flush=True,
        )
        return self.write(name, answer)

    def write(self, name: str, answer: urllib3.BaseHTTPResponse) -> Any:
        """Write an answer to its file, with this machine's own names replaced. Returns
        its body.
        """
        text, machine = answer.data.decode(), os.uname()
        replaced = {
            str(self.slurm.layout.folder): "/srv/grid/slurm",
            machine.nodename: "login1",
        }
        for ours, theirs in {
            **replaced,
            machine.release: "6.1.0",
            machine.version: "#1 SMP",
        }.items():
            text = text.replace(ours, theirs).replace(json.dumps(ours)[1:-1], theirs)
        try:
            body = json.loads(text)
        except ValueError:
            body = text
        file = DATA / "rest" / f"{name}-slurm-{slurm_version()}.json"
        file.write_text(
            json.dumps({"status": answer.status, "body": body}, indent=1) + "\n"
        )
        return body

    def submit(
        self, name: str, user: Address = CUSTOMER, keep: str = "", **changed: Any
    ) -> Any:
        """Submit a job of that name, by the product's request with changes."""
        wanted = Definition(
            gpus=changed.pop("gpus", 0),
            mem_per_cpu_mb=100,
            cpus_per_task=2,
            ntasks=1,
            batch_location_hash="h",
        )
        request = submission(
            JobId(name),
            wanted,
            f"#!/bin/sh\n{changed.pop('script', 'sleep 600')}\n",
            limit_min=changed.pop("limit_min", 5),
            partition="main",
            comment="supervisor x",
            folder="/tmp",
            environment={"PATH": "/usr/bin:/bin"},
        )
        request["job"].update(changed)
        if keep:
            return self.keep(keep, "POST", "job/submit", user, request)
        answer = self.ask("POST", f"{self.version}/job/submit", user, request)
        return answer.json()

    def state(self, name: str) -> str:
        """The state of the job of that name, as squeue shows it."""
        shown = self.slurm.run(
            "squeue", "--noheader", "--states=all", f"--name={name}", "--format=%T"
        )
        return shown.stdout.strip()

    def wait(self, name: str, state: str) -> None:
        """Wait until the job has that state."""
        wait_until(
            lambda: self.state(name) == state, f"{name} to be {state}", 60.0, 0.2
        )


def offered(slurm: Slurm, daemon: Slurmrestd) -> str:
    """The newest version of the API that slurmrestd has."""
    found = [
        version
        for version in VERSIONS
        if Recorder(slurm, daemon, version)
        .ask("GET", f"{version}/ping", admin())
        .status
        != 404
    ]
    print(f"slurmrestd has {found}")
    return found[-1]


def submit_all(recorder: Recorder) -> Any:
    """Submit jobs that wait, run and are rejected. Returns the answer for the one that
    runs.
    """
    running = recorder.submit("running", keep="submitted", limit_min=9)
    recorder.wait("running", "RUNNING")
    recorder.submit("gpu", gpus=1)
    recorder.submit("nonzero", script="exit 3")
    recorder.wait("nonzero", "FAILED")
    recorder.submit("suspended")
    recorder.wait("suspended", "RUNNING")
    recorder.submit("cancelled", begin_time=int(time.time()) + 3600)
    recorder.submit("array", array="1-2", priority=0)
    recorder.submit("threads", threads_per_core=1, priority=0)
    recorder.submit("nolimit", limit_min=FOREVER_MIN)
    recorder.submit("rej", keep="rejected-memory", memory_per_cpu=999_999)
    recorder.submit("nowhere", keep="rejected-partition", partition="nowhere")
    return running


def record(recorder: Recorder) -> None:
    """Write all answers."""
    running = submit_all(recorder)["job_id"]
    ids = {
        job["name"]: job["job_id"]
        for job in recorder.ask("GET", f"{recorder.version}/jobs", admin()).json()[
            "jobs"
        ]
    }
    recorder.keep("jobs", "GET", "jobs")
    recorder.keep("job-unknown", "GET", f"job/{UNKNOWN}")
    recorder.keep("cancelled", "DELETE", f"job/{ids['cancelled']}", CUSTOMER)
    recorder.keep("cancel-unknown", "DELETE", f"job/{UNKNOWN}")
    recorder.keep("cancel-ended", "DELETE", f"job/{ids['nonzero']}", CUSTOMER)
    recorder.keep("limit", "POST", f"job/{running}", None, {"time_limit": 20})
    recorder.keep("limit-unknown", "POST", f"job/{UNKNOWN}", None, {"time_limit": 20})
    recorder.keep("late-token", "GET", "jobs", None, None, -60)
    recorder.write("no-such-version", recorder.ask("GET", "v0.0.1/ping", admin()))
    recorder.keep("ping", "GET", "ping")
    recorder.keep("diag", "GET", "diag")
    recorder.keep("partitions", "GET", "partitions")
    recorder.keep("nodes", "GET", "nodes")
    recorder.slurm.run("scancel", str(ids["gpu"]))
    recorder.wait("gpu", "CANCELLED")
    recorder.slurm.run("scontrol", "suspend", str(ids["suspended"]))
    recorder.wait("suspended", "SUSPENDED")
    recorder.keep("jobs-ended", "GET", "jobs")
    recorder.slurm.run(
        "scontrol", "update", "nodename=node1", "state=drain", "reason=a test"
    )
    recorder.keep("nodes-drained", "GET", "nodes")
    recorder.submit("waits", keep="waits-for-node")
    recorder.slurm.run("scontrol", "update", "partitionname=main", "state=inactive")
    recorder.submit("inactive", keep="partition-inactive")
    # This must be the last: slurmctld 24.11.5 answers no request after it, and must be
    # killed.
    recorder.keep("cancel-no-answer", "DELETE", f"job/{running}", OTHER)


def main() -> None:
    """Record one version. Raises TimeoutError when the jobs do not come to their
    states.
    """
    with private_processes() as processes:
        spool, users = processes.folder / "spool", Users(processes.folder)
        spool.mkdir()
        for user in (CUSTOMER, OTHER):
            users.add(user)
        key = new_jwt_key(processes.folder)
        slurm = Slurm.start(processes, users, spool=spool, nodes=1, also=jwt_conf(key))
        daemon = Slurmrestd.start(
            processes, users, slurm.env(), key, f"127.0.0.1:{free_port()}"
        )
        try:
            record(Recorder(slurm, daemon, offered(slurm, daemon)))
        finally:
            slurm.stop()


if __name__ == "__main__":
    main()
