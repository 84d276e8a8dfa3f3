"""The job definition service, which turns a batch location hash into the script that SLURM runs."""

from collections.abc import Callable
from dataclasses import dataclass

import grpc

from protos.sbatchapi.v1alpha1.sbatch_pb2 import ChallengeRequest, GetSBatchRequest
from protos.sbatchapi.v1alpha1.sbatch_pb2_grpc import AuthAPIStub, SBatchAPIStub
from supervisor_tasks.errors import PermanentError, TransientError
from supervisor_tasks.job import Job

TIMEOUT_S = 10.0
FINAL = {
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT,
}


class ScriptUnavailableError(PermanentError):
    """The service will not give this script; its own words."""


class JobDefinitionsDownError(TransientError):
    """The service does not answer; again later."""


@dataclass(frozen=True, slots=True)
class Script:
    """What the service gives for a job."""

    text: str
    grid_logger_url: str


class JobDefinitions:
    """A client of the service. Threads may share it. `sign` makes an EIP-191 signature of 65 bytes."""

    def __init__(self, channel: grpc.Channel, sign: Callable[[bytes], bytes]) -> None:
        self._auth = AuthAPIStub(channel)
        self._sbatch = SBatchAPIStub(channel)
        self._sign = sign

    def fetch(self, job: Job) -> Script:
        """The script of a job. Raises ScriptUnavailableError (final) or JobDefinitionsDownError (retry)."""
        try:
            challenge = self._auth.Challenge(ChallengeRequest(), timeout=TIMEOUT_S).challenge
            request = GetSBatchRequest(
                batch_location_hash=job.definition.batch_location_hash,
                signed_challenge=self._sign(challenge),
                challenge=challenge,
                provider_address=bytes.fromhex(job.provider[2:]),
                customer_address=bytes.fromhex(job.customer[2:]),
                job_id=job.job_id,
            )
            answer = self._sbatch.GetSBatch(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise _translated(error) from error
        return Script(answer.sbatch, answer.grid_logger_url)


def _translated(error: grpc.RpcError) -> Exception:
    code, said = error.code(), error.details()
    if code in FINAL:
        return ScriptUnavailableError(f"job definition service: {code.name}: {said}")
    return JobDefinitionsDownError(f"job definition service: {code.name}: {said}")
