"""A slurmrestd of recorded answers (tests/data/slurm/rest), without a server."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from supervisor_tasks.jobs.model import Address, JobId, SlurmId
from supervisor_tasks.slurm.commands import comment
from supervisor_tasks.slurm.interface import SlurmSettings
from supervisor_tasks.slurm.rest import RestCluster
from supervisor_tasks.slurm.rest_access import RestAccess
from supervisor_tasks.slurm.rest_answers import RestAnswer, clock_s
from supervisor_tasks.slurm.rest_client import RestClient
from supervisor_tasks.slurm.rest_tokens import TokenMint
from supervisor_tasks.slurm.rest_versions import OLD
from tests.support.slurm_samples import rest_answer

CUSTOMER = Address("0x" + "a" * 40)
JOB, OTHER = JobId("0x" + "1" * 64), JobId("0x" + "2" * 64)
NUMBER = SlurmId(18)
ADDRESS = "supervisor.example.com:3000"
DIAG = rest_answer("diag", slurm="22.05.8", api=OLD)


class RecordedClient(RestClient):
    """Answers each request with the answer that is set for it, or with the next one of
    `in_turn`, and keeps what was asked.
    """

    def __init__(
        self,
        answers: Mapping[str, RestAnswer],
        in_turn: Mapping[str, list[RestAnswer]] = MappingProxyType({}),
    ) -> None:
        super().__init__("http://127.0.0.1:6820")
        self.answers = {"GET diag": DIAG, **answers}
        self.in_turn = in_turn
        self.asked = list[str]()

    def request(self, method: str, path: str, *_: object, **__: object) -> RestAnswer:
        """The recorded answer."""
        request = f"{method} {path}"
        self.asked.append(request)
        if request in self.in_turn:
            return self.in_turn[request].pop(0)
        return self.answers[request]


def cluster_of(client: RecordedClient) -> RestCluster:
    """A cluster behind that client."""
    return RestCluster.of(
        RestAccess(client=client, mint=TokenMint(b"key" * 16), admin="slurm"),
        SlurmSettings(partition="main", public_address=ADDRESS),
        home="/home/{address}",
        environment={},
    )


def shown(ours: JobId, **changes: Any) -> dict[str, Any]:
    """A recorded job as if slurmctld had just received it as this one of ours."""
    jobs = rest_answer("jobs", slurm="22.05.8", api=OLD).body["jobs"]
    (job,) = (job for job in jobs if job["name"] == "running")
    marks = {
        "name": ours,
        "standard_output": f"{ours}.log",
        "comment": comment(ADDRESS),
        "submit_time": clock_s(DIAG.body),
    }
    return {**job, **marks, **changes}


def raise_in(found: object) -> None:
    """Raise what was found, if it is an error."""
    if isinstance(found, Exception):
        raise found
